package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

const (
	// watchEvery is how often this process looks at its own clock.
	watchEvery = 250 * time.Millisecond
	// minHeartbeat keeps a policy from turning heartbeats into load.
	minHeartbeat = 10 * time.Millisecond
	// beatRetryMax bounds the time between tries of a failing heartbeat.
	beatRetryMax = 2 * time.Second
	// minBeatTimeout leaves a slow database the time to answer at all.
	minBeatTimeout = time.Second
)

// beat asks the heartbeat loop for a turn now.
func (e *engine) beat() { leave(e.beatNow) }

// heartbeatLoop extends the leases of what is held until ctx is done. A heartbeat
// is one statement, whatever the number of jobs, and brings the policy.
func (e *engine) heartbeatLoop(ctx context.Context) {
	defer e.health.ended("heartbeat")
	failing := backoff{base: 100 * time.Millisecond, ceiling: beatRetryMax}
	for {
		ok := e.beatAll(ctx)
		if ctx.Err() != nil {
			return
		}
		leave(e.tidyNow)
		wait := failing.next()
		if ok {
			failing.reset()
			wait = jitter(max(e.policy.Load().Heartbeat, minHeartbeat), 0.1)
		}
		if !e.untilBeat(ctx, wait) {
			return
		}
	}
}

// beatAll sends the heartbeats of all identities, the current one's first and those of the
// retired ones side by side, for each may hang for its time limit, and no lease should
// run out because of another's. It is false when one should be tried again soon.
func (e *engine) beatAll(ctx context.Context) bool {
	ids := e.identities.all()
	e.health.turn("heartbeat")
	var failed atomic.Bool
	beat := func(id *identity) {
		if e.beatOne(ctx, id) != nil {
			failed.Store(true)
		}
	}
	beat(ids[0])
	e.health.turn("heartbeat")
	var retired sync.WaitGroup
	for _, id := range ids[1:] {
		retired.Go(func() { beat(id) })
	}
	retired.Wait()
	return !failed.Load()
}

// untilBeat waits for d, or less when asked for a heartbeat now.
func (e *engine) untilBeat(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	quiet := time.NewTicker(maxQuiet)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-e.beatNow:
			return true
		case <-quiet.C:
			e.health.turn("heartbeat")
		}
	}
}

// beatOne sends the heartbeat of an identity that needs one. An error means that it should
// be tried again soon.
func (e *engine) beatOne(ctx context.Context, id *identity) error {
	if beating, done := id.state(); !beating || done {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, beatTimeout(e.policy.Load().Lease))
	defer cancel()
	if !id.holdRow(call) {
		return id.unheld(call)
	}
	defer id.freeRow()
	jobs := id.active()
	refs := make([]queue.Ref, len(jobs))
	for i, h := range jobs {
		refs[i] = h.Ref
	}
	var sent time.Time
	var hb queue.Heartbeat
	err := e.conns.keep(call, func(db queue.DB) (err error) {
		sent = time.Now()
		hb, err = e.client.Heartbeat(call, db, id.id, e.cfg.Queue, refs)
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	e.contact("heartbeat", err)
	if err != nil {
		e.metrics.heartbeats.WithLabelValues("error").Inc()
		return err
	}
	e.metrics.heartbeats.WithLabelValues("ok").Inc()
	id.renew(sent, hb.LeaseExpiresAt.Sub(hb.Now))
	e.adopt(hb.Policy)
	e.lose(jobs, hb.Lost)
	return nil
}

// tidyLoop ends what is over of retired identities until ctx is done, after each round of
// heartbeats and sooner while it fails. It is a loop of its own because heartbeats cannot
// wait for it: whoever holds a retired identity's row locked must not end the live one's lease.
func (e *engine) tidyLoop(ctx context.Context) {
	defer e.health.ended("tidying")
	failing := backoff{base: 100 * time.Millisecond, ceiling: beatRetryMax}
	for ctx.Err() == nil {
		wait := maxQuiet
		if e.tidy(ctx) == nil {
			failing.reset()
		} else {
			wait = failing.next()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-e.tidyNow:
		}
		timer.Stop()
	}
}

// tidy gives back what lost claims took, and removes the rows of identities on which
// nothing hangs any more.
func (e *engine) tidy(ctx context.Context) (failed error) {
	for _, id := range e.identities.all() {
		e.health.turn("tidying")
		switch beating, done := id.state(); {
		case done && !beating:
			e.identities.forget(id)
		case done:
			failed = errors.Join(failed, e.unregister(ctx, id))
		case beating:
			failed = errors.Join(failed, e.disown(ctx, id))
		}
	}
	return failed
}

// disown gives back what a claim without an answer took, if its identity is retired:
// each time anew, because that claim may still end in the database.
func (e *engine) disown(ctx context.Context, id *identity) error {
	refs, ok := id.known()
	if !ok {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	back, err := with(call, e.conns, func(db queue.DB) ([]int64, error) { return e.client.Disown(call, db, id.id, refs) })
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		e.log.Warn("runs of a lost claim not looked for, trying again", "worker", id.id, "error", err)
		return err
	}
	if len(back) > 0 {
		e.log.Warn("runs given back of a claim whose answer was lost", "worker", id.id, "jobs", len(back))
	}
	return nil
}

// beatTimeout bounds one heartbeat: a lease must have room for several tries, because a
// connection may be dead without a sign of it.
func beatTimeout(lease time.Duration) time.Duration {
	return min(max(lease/6, minBeatTimeout), heartbeatTimeout)
}

// unregister removes the row of a retired identity, and with it releases any runs
// that a claim without an answer may have left there.
func (e *engine) unregister(ctx context.Context, id *identity) error {
	call, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	if !id.holdRow(call) {
		if id.isGone() {
			e.identities.forget(id)
		}
		return id.unheld(call)
	}
	err := e.conns.do(call, func(db queue.DB) error { return e.client.Unregister(call, db, id.id) })
	if err != nil {
		id.freeRow()
		e.log.Warn("worker row not removed, trying again", "worker", id.id, "error", err)
		return err
	}
	close(id.gone)
	e.identities.forget(id)
	return nil
}

// lose cancels the handlers of those jobs that the database says are lost. A job
// that was settled while the heartbeat was under way is not.
func (e *engine) lose(jobs []*held, tokens []uuid.UUID) {
	if len(tokens) == 0 {
		return
	}
	lost := make(map[uuid.UUID]bool, len(tokens))
	for _, token := range tokens {
		lost[token] = true
	}
	for _, h := range jobs {
		if !lost[h.Token] || !h.lose() {
			continue
		}
		h.identity.remove(h)
		e.metrics.lostByHeartbeat.Inc()
		e.log.Warn("lease lost: the handler's context is cancelled", "job", h.ID, "kind", h.Kind,
			"attempt", h.Attempt, "worker", h.identity.id)
	}
}

// watch looks at this process's own clock until ctx is done: for leases that could
// not be extended in time, for handlers past their hard limit, and for jobs that
// have waited in memory for too long.
func (e *engine) watch(ctx context.Context) {
	defer e.health.ended("watch")
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.health.turn("watch")
		now := time.Now()
		e.expireLeases(now)
		e.writeOffStuck(now)
		e.relieve(now)
	}
}

func (e *engine) expireLeases(now time.Time) {
	for _, id := range e.identities.all() {
		if !id.expire(now) {
			continue
		}
		lost := e.giveUp(id.active())
		e.beat()
		if lost == 0 {
			continue // only results are left, and the database judges those
		}
		e.log.Error("the lease could not be extended in time: all jobs held are treated as lost",
			"worker", id.id, "jobs", lost)
	}
}

// writeOffStuck reports handlers that went on past their job's hard limit. Their
// attempt has failed, and their slot is gone: the process must be replaced.
func (e *engine) writeOffStuck(now time.Time) {
	for i := range e.current {
		h := e.current[i].Load()
		if h == nil {
			continue
		}
		stuck, settled, succeeded := h.writeOff(now)
		if !stuck {
			continue
		}
		e.metrics.stuck.Inc()
		e.log.Error("handler is stuck: it ignored its context past the job's hard limit; this process ends",
			"job", h.ID, "kind", h.Kind, "attempt", h.Attempt, "worker", h.identity.id,
			"seconds", now.Sub(h.startedAt).Seconds())
		if settled {
			e.letGo(h, &result{held: h, action: actFail, text: ErrStuckHandler.Error()}, succeeded)
		}
		e.stuckOne.Do(func() { close(e.stuck) })
	}
}

// letGo settles a run whose handler has not returned. When that handler has called
// Job.Succeed, a write would wait for its transaction; it is left to that, and to
// the reaper, which finds the job if the transaction dies with the process.
func (e *engine) letGo(h *held, r *result, succeeded bool) {
	if succeeded {
		h.identity.remove(h)
		return
	}
	e.completer.add(r)
}

// relieve gives back jobs that have waited in memory for too long, because those
// before them took longer than was to be expected.
func (e *engine) relieve(now time.Time) {
	old := func(h *held) bool { return now.Sub(h.claimedAt) > maxBacklogWait }
	jobs := e.backlog.withdraw(func(h *held) bool { return !old(h) })
	if n := e.giveBack(jobs); n > 0 {
		e.pace.overtaken(maxBacklogWait)
		e.log.Info("jobs given back that waited for slower ones", "jobs", n)
	}
}
