package worker

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Part of the grace period that is kept for ending what does not end by itself and
// for writing the results: a tenth of it, within these bounds.
const (
	minMargin = 500 * time.Millisecond
	maxMargin = 5 * time.Second
	// unregisterPatience bounds the tries to remove the worker's row, which would
	// also go by itself.
	unregisterPatience = 5 * time.Second
)

// margin is what drain keeps of a grace period, at most half of it.
func margin(grace time.Duration) time.Duration {
	return min(max(grace/10, minMargin), maxMargin, grace/2)
}

// drain brings everything held to an end by the deadline. Claiming has been told
// to stop.
//
//  1. what no handler has seen goes back to the queue at once
//  2. handlers may finish until a margin before the deadline
//  3. then their contexts are cancelled (ErrShutdown); what returns within half the
//     margin counts, and the rest is given back, the attempt not counted
//  4. results are written, and the worker's rows removed, in what is left
func (e *engine) drain(ctx context.Context, claimers *sync.WaitGroup, deadline time.Time) error {
	keep := margin(e.cfg.Grace)
	end, cancel := context.WithDeadline(ctx, deadline.Add(-keep/10))
	defer cancel()

	patience, stop := context.WithDeadline(ctx, deadline.Add(-keep))
	returned := e.giveBack(e.backlog.withdraw(keepNone))
	e.backlog.close()
	// One that hangs must not take from handlers the time to end.
	await(patience, claimers.Wait)
	// A claim that was under way may have brought some just before it was told.
	returned += e.giveBack(e.backlog.withdraw(keepNone))
	if returned > 0 {
		e.log.Info("jobs given back that had not begun", "jobs", returned)
	}
	e.awaitHandlers(patience)
	stop()

	if n := e.interruptAll(); n > 0 {
		e.log.Warn("grace period nearly over: contexts of running handlers cancelled", "jobs", n)
		last, stop := context.WithDeadline(ctx, deadline.Add(-keep/2))
		e.awaitHandlers(last)
		stop()
		e.abandonAll()
	}

	await(end, claimers.Wait)
	until(end, func() bool { return e.deciding.Load() == 0 })
	e.completer.hurry()
	e.completer.flush(end)
	unwritten := e.completer.unwritten() + int(e.deciding.Load())
	e.completer.close()
	removed := e.unregisterAll(end)
	if e.backlog.taken() == 0 {
		e.slots.Wait()
	}
	if unwritten > 0 {
		e.log.Error("results not written; their jobs run again once the lease is over", "jobs", unwritten)
		return fmt.Errorf("%w: %d", ErrUnwritten, unwritten)
	}
	if !removed {
		e.log.Warn("worker row not removed; it goes once the lease is over")
	}
	return nil
}

// awaitHandlers waits until no slot runs a handler that can still be waited for.
func (e *engine) awaitHandlers(ctx context.Context) {
	until(ctx, func() bool { return e.backlog.taken() <= e.running((*held).isStuck) })
}

// until looks every now and then whether done is true, and returns when it is or ctx is done.
func until(ctx context.Context, done func() bool) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil && !done() {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// running counts the runs in slots for which count is true.
func (e *engine) running(count func(*held) bool) (n int) {
	for i := range e.current {
		if h := e.current[i].Load(); h != nil && count(h) {
			n++
		}
	}
	return n
}

func (e *engine) interruptAll() int { return e.running((*held).interrupt) }

// abandonAll gives back the jobs of handlers that have not returned.
func (e *engine) abandonAll() {
	e.running(func(h *held) bool {
		settled, succeeded := h.abandon()
		if settled {
			e.log.Warn("handler did not return in time: its job is given back", "job", h.ID, "kind", h.Kind,
				"attempt", h.Attempt, "worker", h.identity.id)
			e.letGo(h, &result{held: h, action: actRelease}, succeeded)
		}
		return settled
	})
}

// unregisterAll removes the worker's rows, if the database answers soon.
func (e *engine) unregisterAll(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, unregisterPatience)
	defer cancel()
	failing := backoff{base: 50 * time.Millisecond, ceiling: time.Second}
	for _, id := range e.identities.all() {
		if beating, _ := id.state(); !beating {
			continue // given up: whatever is left there is for the reaper
		}
		for e.unregister(ctx, id) != nil {
			sleep(ctx, failing.next())
			if ctx.Err() != nil {
				return false
			}
		}
	}
	return true
}

func keepNone(*held) bool { return false }

// await calls wait and returns when it does, or when ctx is done.
func await(ctx context.Context, wait func()) {
	done := make(chan struct{})
	go func() {
		wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
