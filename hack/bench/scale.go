package main

import (
	"context"
	"fmt"
)

// scale measures whether more worker processes on one queue are at least as fast.
func (b *bench) scale(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Scale\n\nWorker processes on one queue (payload of 64 bytes). The total must not fall.\n\n")
	return b.drainRounds(ctx, b.those(oursOne, oursTwo, oursWith(4), oursWith(8)), 64)
}
