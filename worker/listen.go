package worker

import (
	"context"
	"time"
)

// listens is true when a connection can be spared for notifications.
func (e *engine) listens() bool {
	return !e.cfg.DisableListen && e.pool.Config().MaxConns >= 2
}

// keepLoop keeps one connection of the pool for heartbeats, which also wakes the claim
// loop if the worker listens, and takes a new one when it fails, until ctx is done.
// Without it heartbeats have what the pool can spare, and the worker polls.
func (e *engine) keepLoop(ctx context.Context) {
	if !mayKeep(e.pool) {
		if connections := e.pool.Config().MaxConns; connections > 1 {
			e.log.Warn("too many workers share one pool: this one keeps no connection for its heartbeats and polls alone; "+
				"let the pool have one more connection than workers, or better two for each", "connections", connections)
		}
		return
	}
	defer unkeep(e.pool)
	failing := backoff{base: 250 * time.Millisecond, ceiling: 15 * time.Second}
	for ctx.Err() == nil {
		err := e.keepOne(ctx, failing.reset)
		if ctx.Err() != nil {
			return
		}
		e.log.Debug("no connection is kept: not listening, polling alone", "error", err)
		sleep(ctx, failing.next())
	}
}

func (e *engine) keepOne(ctx context.Context, established func()) error {
	acquired, err := e.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	if !e.listens() {
		defer acquired.Release()
		established()
		return e.conns.hold(ctx, acquired.Conn())
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
