package worker

import (
	"context"
	"time"
)

// listens is true when a connection can be spared for notifications.
func (e *engine) listens() bool {
	return !e.cfg.DisableListen && e.pool.Config().MaxConns >= 2
}

// listenLoop holds one connection of the pool that wakes the claim loop, and takes
// a new one when it fails, until ctx is done. Without it the worker polls.
func (e *engine) listenLoop(ctx context.Context) {
	failing := backoff{base: 250 * time.Millisecond, ceiling: 15 * time.Second}
	for ctx.Err() == nil {
		err := e.listen(ctx, failing.reset)
		if ctx.Err() != nil {
			return
		}
		e.log.Debug("not listening, polling alone", "error", err)
		sleep(ctx, failing.next())
	}
}

func (e *engine) listen(ctx context.Context, established func()) error {
	acquired, err := e.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// The connection has state (LISTEN) that must not reach another user of the
	// pool. It counts in the pool until it is closed; the pool drops closed ones.
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = acquired.Conn().Close(closing)
		acquired.Release()
	}()
	defer e.metrics.listening.Set(0)
	return e.conns.listen(ctx, e.client, acquired.Conn(), beatTimeout(e.policy.Load().Lease), func(name string) {
		established()
		e.metrics.listening.Set(1)
		if name == "" || name == e.cfg.Queue {
			e.wake()
		}
	})
}
