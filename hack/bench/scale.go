package main

import (
	"context"
	"fmt"
)

const (
	// scaleHandler is how long the handlers wait of whom the database leaves room for more.
	scaleHandler = 10
	// scaleJobs is how many jobs they have at most.
	scaleJobs = 20_000
)

// scale measures whether more worker processes on one queue are at least as fast: with
// handlers that do nothing, of which one process takes all that the database gives, and
// with such as take a while, so that processes are what is scarce.
func (b *bench) scale(ctx context.Context) error {
	contenders := b.those(oursOne, oursTwo, oursWith(4), oursWith(8))
	fmt.Fprintf(b.out, "## Scale\n\nWorker processes on one queue (payload of 64 bytes). The total must not fall.\n\n")
	if err := b.drainRounds(ctx, contenders, 64); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "With handlers that wait for %d ms, ten at once in each process (up to %s jobs):\n\n", scaleHandler, count(scaleJobs))
	for i := range contenders {
		contenders[i].handlerMillis, contenders[i].most = scaleHandler, scaleJobs
	}
	return b.drainRounds(ctx, contenders, 64)
}
