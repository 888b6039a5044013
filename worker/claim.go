package worker

import (
	"context"
	"errors"
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

const (
	// failPause is the least time between a failed claim and the next one, for which a
	// notification may come any time: where claims fail, they come by the hundred.
	failPause = 250 * time.Millisecond
	// maxClaim is the most that a claim can ask for.
	maxClaim = 10_000
)

// claimLoop keeps the slots supplied until ctx is done.
//
// It claims when two things hold: there may be jobs (the last claim was full, a
// notification came, or it is time to poll), and there is room for them (idle
// slots, and the little ahead of them that the backlog wants).
func (e *engine) claimLoop(ctx context.Context) {
	defer e.health.ended("claim")
	failing := backoff{base: 100 * time.Millisecond, ceiling: 5 * time.Second}
	polls := newPolling(e.cfg.PollInterval, e.cfg.PollMax)
	poll := time.NewTimer(0)
	defer poll.Stop()
	maybe := false // there may be jobs
	for {
		e.health.turn("claim")
		want := 0
		if maybe {
			want = e.want()
		}
		if want == 0 {
			if !e.awaitClaim(ctx, &maybe, poll) {
				return
			}
			continue
		}
		got, err := e.claim(ctx, want)
		e.contact("claim", err)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			maybe = false
			wait := failing.next()
			poll.Reset(wait)
			sleep(ctx, min(wait, failPause))
			continue
		}
		failing.reset()
		wait := polls.after(got)
		if maybe = got >= want; maybe {
			wait = e.cfg.PollInterval // room is what it waits for
		}
		poll.Reset(jitter(wait, 0.2))
	}
}

// awaitClaim waits for a reason to look again; it is false when ctx is done.
func (e *engine) awaitClaim(ctx context.Context, maybe *bool, poll *time.Timer) bool {
	room := e.backlog.wake
	if !*maybe {
		room = nil // room is no reason while nothing is known to be there
	}
	quiet := time.NewTimer(maxQuiet)
	defer quiet.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-e.woken:
		*maybe = true
	case <-poll.C:
		*maybe = true
	case <-room:
	case <-quiet.C:
	}
	return true
}

// want is how many jobs to claim now.
func (e *engine) want() int {
	batch := max(e.policy.Load().BatchSize, 1)
	if e.completer.unwritten() > 4*batch+e.cfg.Slots {
		return 0 // results first; the completer nudges when it has written some
	}
	ahead := 0
	// Till enough have run, jobs have rows of their own: few at a time.
	if e.begun.Load() >= provenRuns && e.backlog.moving(time.Now()) {
		// One batch to run while the next one is claimed.
		ahead = e.pace.ahead(e.cfg.Slots, 2*batch)
	}
	e.backlog.setAhead(ahead)
	return min(e.backlog.room(), e.claimable.limit(batch))
}

// claim claims up to limit jobs and hands them to the slots.
func (e *engine) claim(ctx context.Context, limit int) (int, error) {
	sent := time.Now()
	id := e.identities.take(sent)
	// A claim under way is not cut off when the worker is asked to stop: what it
	// brings is given back below, instead of running unknown until its lease is over.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	runs, err := with(call, e.conns, func(db queue.DB) ([]queue.Run, error) {
		sent = time.Now()
		return e.client.Claim(call, db, queue.ClaimRequest{
			Queue: e.cfg.Queue, Worker: id.id, Pod: e.pod(), Limit: limit, Kinds: e.kinds, Alone: e.alone(),
		})
	})
	took := time.Since(sent)
	e.metrics.claimed(limit, len(runs), took, err)
	if err != nil {
		if tookTooLong(err) {
			e.claimable.late(limit)
		}
		if mayHaveCommitted(err) {
			// It may have claimed jobs that nobody here knows of.
			id.retire()
			defer e.beat()
		}
		id.endClaim()
		return 0, err
	}
	jobs := make([]*held, len(runs))
	var lease time.Duration
	payloads := 0
	for i, run := range runs {
		payloads += len(run.Payload)
		lease = run.Lease
		reg := e.handlers[run.Kind]
		reg.queueWait.Observe(max(run.StartedAt.Sub(run.AvailableAt), 0).Seconds())
		jobs[i] = newHeld(run, id, reg, sent)
	}
	e.pace.claimed(took, len(runs), payloads)
	e.claimable.inTime(took, len(runs))
	id.claimed(sent, sent.Add(took), lease)
	id.add(jobs)
	if !id.endClaim() {
		// The lease ran out by our own clock while the claim was under way.
		e.giveUp(jobs)
		return 0, errors.New("worker: the lease ran out during the claim")
	}
	if ctx.Err() != nil {
		e.giveBack(jobs)
		return 0, nil
	}
	e.backlog.push(jobs)
	return len(jobs), nil
}

// giveBack returns jobs that no handler has seen to the queue, their attempt not
// counted.
func (e *engine) giveBack(jobs []*held) int {
	results := make([]*result, 0, len(jobs))
	for _, h := range jobs {
		if h.takeBack() {
			results = append(results, &result{held: h, action: actRelease})
		}
	}
	e.completer.add(results...)
	return len(results)
}

// giveUp treats jobs as lost by this process's own clock.
func (e *engine) giveUp(jobs []*held) (lost int) {
	for _, h := range jobs {
		if h.lose() {
			lost++
			e.metrics.lostByClock.Inc()
			h.identity.remove(h)
		}
	}
	return lost
}
