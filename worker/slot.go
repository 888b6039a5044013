package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// errGoexit is the failure of a handler that ended its goroutine.
var errGoexit = errors.New("worker: the handler called runtime.Goexit")

// slot runs one job after the other until the backlog is closed and empty.
func (e *engine) slot(i int) {
	var parent slotContext
	defer parent.end()
	for {
		h := e.backlog.pop()
		if h == nil {
			return
		}
		e.execute(i, h, &parent)
		e.backlog.done()
	}
}

// slotContext is the parent of the contexts of a slot's jobs: what a job's held cancels,
// with a cause, while its handler runs. One that was not cancelled serves the next job,
// which spares each of them a third of what contexts cost.
type slotContext struct {
	context.Context
	cancel context.CancelCauseFunc
}

// renew makes a new one of base if it must.
func (c *slotContext) renew(base context.Context) {
	if c.Context == nil || c.Err() != nil {
		c.end()
		c.Context, c.cancel = context.WithCancelCause(base)
	}
}

func (c *slotContext) end() {
	if c.cancel != nil {
		c.cancel(nil)
	}
}

// execute runs the handler of one job and passes its result on.
func (e *engine) execute(i int, h *held, parent *slotContext) {
	begun := time.Now()
	if h.overdue(begun) {
		e.pace.overtaken(begun.Sub(h.claimedAt))
		e.giveBack([]*held{h})
		return
	}
	parent.renew(e.handlerBase)
	if !h.begin(parent.cancel, begun) {
		return
	}
	ctx, stop := h.context(parent, begun)
	defer stop()
	e.current[i].Store(h)
	e.metrics.running.Inc()
	if e.begun.Add(1) == e.cfg.RecycleJobs {
		e.oldOne.Do(func() { close(e.recycle) })
	}
	returned := false
	// Deferred, so that a handler that ends its goroutine (runtime.Goexit) is
	// accounted for as well, and its slot gets a new goroutine.
	defer func() {
		e.metrics.running.Dec()
		e.current[i].CompareAndSwap(h, nil)
		if !returned {
			e.finished(ctx, h, time.Since(begun), errGoexit)
			e.backlog.done()
			e.slots.Go(func() { e.slot(i) })
		}
	}()
	err := e.invoke(ctx, h)
	returned = true
	e.finished(ctx, h, time.Since(begun), err)
}

// context is the handler's, until the handler has returned.
func (h *held) context(parent context.Context, begun time.Time) (context.Context, context.CancelFunc) {
	if limit := h.limit(begun); !limit.IsZero() {
		return context.WithDeadlineCause(parent, limit, ErrTimeout)
	}
	return context.WithCancel(parent)
}

// limit is when the handler's context ends: the timeout counted from its start,
// but never past the run's hard limit.
func (h *held) limit(begun time.Time) time.Time {
	limit := h.hardLimit
	if h.Timeout > 0 {
		if soft := begun.Add(h.Timeout); limit.IsZero() || soft.Before(limit) {
			limit = soft
		}
	}
	return limit
}

// invoke calls the handler and turns a panic into an error with its stack.
func (e *engine) invoke(ctx context.Context, h *held) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = e.panicked(p)
		}
	}()
	return h.handler.run(ctx, h)
}

// panicked is the failure that a recovered panic makes of its attempt.
func (e *engine) panicked(p any) error {
	e.metrics.panics.Inc()
	return &PanicError{Value: p, Stack: debug.Stack()}
}

// PanicError is the failure of an attempt whose handler panicked, or whose handler's
// error did when it was asked what it says.
type PanicError struct {
	Value any
	Stack []byte
}

func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", p.Value, p.Stack) }

// finished decides what a handler's return means and passes it to the completer.
func (e *engine) finished(ctx context.Context, h *held, took time.Duration, err error) {
	e.pace.ran(took)
	h.handler.sharing.returned()
	h.handler.execution.Observe(took.Seconds())
	timedOut := errors.Is(context.Cause(ctx), ErrTimeout)
	if timedOut {
		e.metrics.timeouts.Inc()
	}
	// Before the run is settled, so that a draining worker waits for what is decided here.
	e.deciding.Add(1)
	defer e.deciding.Add(-1)
	settled, succeeded, interrupted := h.finish()
	if !settled {
		e.metrics.staleByWorker.Inc()
		e.log.Warn("result dropped: the run is no longer this worker's", "job", h.ID, "kind", h.Kind,
			"attempt", h.Attempt, "worker", h.identity.id, "seconds", took.Seconds())
		return
	}
	if timedOut && err != nil {
		err = fmt.Errorf("%w after %s: %w", ErrTimeout, took.Round(time.Millisecond), err)
	}
	r := e.judge(h, err, succeeded, interrupted)
	r.took = took
	e.completer.add(&r)
}

// judge is ending. An error's methods are the handler's code too: one that panics (a
// nil pointer returned as an error) makes a failed attempt, as the handler's own panic
// does.
func (e *engine) judge(h *held, err error, succeeded, interrupted bool) (r result) {
	defer func() {
		if p := recover(); p != nil {
			r = ending(h, e.panicked(p), succeeded, interrupted)
		}
	}()
	return ending(h, err, succeeded, interrupted)
}
