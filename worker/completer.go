package worker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// settler writes what became of runs. Each method returns those the database
// accepted; it refuses a run whose lease was lost. Those locked are to be tried again.
type settler interface {
	Succeed(ctx context.Context, worker uuid.UUID, refs []queue.Ref, took []time.Duration) (accepted, locked []int64, err error)
	Fail(ctx context.Context, worker uuid.UUID, failures []queue.Failure) ([]queue.FailOutcome, error)
	Snooze(ctx context.Context, worker uuid.UUID, snoozes []queue.Snooze) ([]int64, error)
	Discard(ctx context.Context, worker uuid.UUID, discards []queue.Discard) ([]int64, error)
	Release(ctx context.Context, worker uuid.UUID, refs []queue.Ref) ([]int64, error)
}

const (
	// maxWrite is the largest number of results in one statement.
	maxWrite = 4000
	// After a write of many results more are coming, and are waited for as long as it
	// took, within bounds: two small writes cost more than a larger one, also because
	// each makes a new version of the rows that its runs share. And where many processes
	// share the database's processors, each of them writes less often.
	manyResults = 200
	gatherLeast = 5 * time.Millisecond
	gatherMost  = 50 * time.Millisecond
	// writeTimeout bounds one statement; its results stay and are tried again.
	writeTimeout = 10 * time.Second
	// maxLocked is how many locked rows in a row of single writes are waited for.
	maxLocked = 3
	// parkFirst and parkMax bound the time between two tries of a result that the
	// database rejects by itself, as one of a batch that it accepts.
	parkFirst, parkMax = time.Second, 30 * time.Second
	// judgedAfter is how long after its run's hard limit a result that the database
	// rejects is dropped: by then the run has been taken back.
	judgedAfter = time.Minute
	// lockedFirst and lockedMax bound the time between two tries of a success whose
	// row another session has locked.
	lockedFirst, lockedMax = 20 * time.Millisecond, 2 * time.Second
	// lastPause is the most between two tries of either once the worker drains: what held
	// them up may be gone, and their time ends.
	lastPause = 200 * time.Millisecond
)

// completer writes results. One statement is under way at a time, and what comes
// in meanwhile goes into the next one: alone when the worker is idle, together when
// it is not. No result leaves it but by an answer of the database, except one that the
// database rejects as such for as long as its run can be anybody's.
type completer struct {
	store   settler
	log     *slog.Logger
	metrics *metrics
	wrote   func() // after each write: there is room again
	turn    func() // the loop turns

	backoff backoff
	sizes   bound // of statements

	mu      sync.Mutex
	pending []*result // to be written next
	parked  []*result // to be written alone, later
	locked  []*result // to be written with others, later
	writing int
	single  bool // what was taken last was a parked one
	hurried bool // the worker drains
	closed  bool
	changed chan struct{} // one token when pending, hurried or closed has changed
	settled sync.Cond     // the completer has become empty
}

func newCompleter(store settler, log *slog.Logger, m *metrics, wrote, turn func()) *completer {
	c := &completer{
		store: store, log: log, metrics: m, wrote: wrote, turn: turn,
		backoff: backoff{base: 100 * time.Millisecond, ceiling: 2 * time.Second},
		sizes:   bound{timeout: writeTimeout, ceiling: maxWrite},
		changed: make(chan struct{}, 1),
	}
	c.settled.L = &c.mu
	return c
}

// add takes over results; it never blocks. The claim loop keeps their number
// bounded by claiming no more while too many are unwritten.
func (c *completer) add(results ...*result) {
	if len(results) == 0 {
		return
	}
	c.mu.Lock()
	c.pending = append(c.pending, results...)
	c.mu.Unlock()
	c.nudge()
}

func (c *completer) nudge() { leave(c.changed) }

// unwritten is the number of results that the database has not answered for.
func (c *completer) unwritten() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unwrittenLocked()
}

func (c *completer) unwrittenLocked() int {
	return len(c.pending) + len(c.parked) + len(c.locked) + c.writing
}

// hurry has the results that are to be written later written now, and those to come soon.
func (c *completer) hurry() {
	c.mu.Lock()
	c.hurried = true
	for _, r := range slices.Concat(c.parked, c.locked) {
		r.notBefore = time.Time{}
	}
	c.mu.Unlock()
	c.nudge()
}

// dueLocked is when to try again what has been put off n times. c.mu is held.
func (c *completer) dueLocked(first, most time.Duration, n int) time.Time {
	if c.hurried {
		most = min(most, lastPause)
	}
	return time.Now().Add(min(first<<min(n, 10), most))
}

// flush waits until everything is written or ctx is done.
func (c *completer) flush(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settled.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.unwrittenLocked() > 0 && ctx.Err() == nil {
		c.settled.Wait()
	}
}

// close ends run once the current statement is answered.
func (c *completer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.nudge()
}

// run writes until close is called or ctx is done.
func (c *completer) run(ctx context.Context) {
	for {
		batch, wait, closed := c.take()
		if closed || ctx.Err() != nil {
			return
		}
		c.turn()
		if len(batch) == 0 {
			timer := time.NewTimer(wait)
			select {
			case <-c.changed:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		began := time.Now()
		paused := c.write(ctx, batch)
		took := time.Since(began)
		c.mu.Lock()
		c.writing = 0
		if c.unwrittenLocked() == 0 {
			c.settled.Broadcast()
		}
		c.mu.Unlock()
		c.wrote()
		if paused {
			sleep(ctx, c.backoff.next())
		} else if len(batch) >= manyResults && c.waiting() < maxWrite/2 {
			sleep(ctx, min(max(took, gatherLeast), gatherMost))
		}
	}
}

// waiting is the number of results to be written next.
func (c *completer) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// take moves what is due to be written out of the queue, or says how long there is
// nothing to do.
func (c *completer) take() (batch []*result, wait time.Duration, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = maxQuiet
	if c.closed {
		return nil, 0, true
	}
	now := time.Now()
	still := c.locked[:0]
	for _, r := range c.locked {
		if due := r.notBefore.Sub(now); due > 0 {
			wait = min(wait, due)
			still = append(still, r)
			continue
		}
		c.pending = append(c.pending, r)
	}
	clear(c.locked[len(still):])
	c.locked = still
	// In turns, for a run that waits too long is taken back, and a parked result may
	// take a while to be rejected again.
	if !c.single || len(c.pending) == 0 {
		for i, r := range c.parked {
			if due := r.notBefore.Sub(now); due > 0 {
				wait = min(wait, due)
				continue
			}
			c.parked = append(c.parked[:i], c.parked[i+1:]...)
			c.writing, c.single = 1, true
			return []*result{r}, 0, false
		}
	}
	c.single = false
	if n := c.sizes.limit(min(len(c.pending), maxWrite)); n > 0 {
		batch = append(batch, c.pending[:n]...)
		rest := copy(c.pending, c.pending[n:])
		clear(c.pending[rest:])
		c.pending = c.pending[:rest]
		c.writing = n
		return batch, 0, false
	}
	return nil, wait, false
}

// write writes a batch, one statement for each kind of result. It is true when the
// database could not be used, and a pause is due.
func (c *completer) write(ctx context.Context, batch []*result) (paused bool) {
	begun := time.Now()
	failed, late := false, false
	defer func() {
		switch {
		case late:
			c.sizes.late(len(batch))
		case !failed:
			c.sizes.inTime(time.Since(begun), len(batch))
		}
	}()
	for _, same := range grouped(batch) {
		c.turn()
		if paused {
			c.putBack(same)
			continue
		}
		err := c.send(ctx, same)
		failed, late = failed || err != nil, late || tookTooLong(err)
		switch {
		case err == nil:
			c.backoff.reset()
		case concernsData(err) && len(same) > 1:
			paused = c.writeEach(ctx, same)
		case concernsData(err):
			c.park(same[0], err)
		default:
			c.log.Warn("results not written, trying again",
				"action", same[0].action.String(), "jobs", len(same), "error", err)
			c.putBack(same)
			paused = true
		}
	}
	return paused
}

// writeEach writes results one by one, because one of them may be to blame for an
// error: the others get through. It is true when the database could not be used,
// or too much of it is locked; what is left then is put back.
func (c *completer) writeEach(ctx context.Context, same []*result) (paused bool) {
	locked := 0
	for i, r := range same {
		c.turn()
		err := c.send(ctx, []*result{r})
		switch {
		case err == nil:
			continue
		case !concernsData(err):
			c.putBack(same[i:])
			return true
		}
		c.park(r, err)
		if isLocked(err) {
			// Each of these was waited for; the other results should not be.
			if locked++; locked >= maxLocked {
				c.putBack(same[i+1:])
				return true
			}
		}
	}
	return false
}

func (c *completer) putBack(results []*result) {
	c.mu.Lock()
	c.pending = append(results, c.pending...)
	c.writing -= len(results)
	c.mu.Unlock()
}

// park keeps a result that the database rejects by itself until it is worth another
// try. One that is only held up by a lock is judged once that is gone; of another, the
// run has been taken back some time after its hard limit.
func (c *completer) park(r *result, err error) {
	h := r.held
	if !isLocked(err) && !h.hardLimit.IsZero() && time.Since(h.hardLimit) > judgedAfter {
		c.drop(r, err)
		return
	}
	c.log.Error("the database rejects a result, trying again later", "action", r.action.String(),
		"job", h.ID, "kind", h.Kind, "attempt", h.Attempt, "error", err)
	c.mu.Lock()
	r.notBefore = c.dueLocked(parkFirst, parkMax, r.tries)
	c.parked = append(c.parked, r)
	c.writing--
	c.mu.Unlock()
}

// drop gives up a result that the database will not take, and counts it as refused.
func (c *completer) drop(r *result, err error) {
	h := r.held
	c.log.Error("the database rejects a result, and its run is long over: dropped", "action", r.action.String(),
		"job", h.ID, "kind", h.Kind, "attempt", h.Attempt, "error", err)
	c.metrics.staleByDatabase.Inc()
	c.metrics.completed(outcomeRefused)
	h.identity.remove(h)
	c.mu.Lock()
	c.writing--
	c.mu.Unlock()
}

// send writes results of one group and accounts for the answer.
func (c *completer) send(ctx context.Context, same []*result) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	worker, kind := same[0].held.identity.id, same[0].action
	begun := time.Now()
	accepted := make(map[int64]string, len(same))
	note := func(ids []int64, outcome string) {
		for _, id := range ids {
			accepted[id] = outcome
		}
	}
	var ids, locked []int64
	var err error
	switch kind {
	case actSucceed:
		ids, locked, err = c.store.Succeed(ctx, worker, refsOf(same), tookOf(same))
		note(ids, outcomeSucceeded)
	case actFail:
		var outcomes []queue.FailOutcome
		outcomes, err = c.store.Fail(ctx, worker, failuresOf(same))
		for _, o := range outcomes {
			accepted[o.ID] = outcomeRetried
			if o.Dead {
				accepted[o.ID] = outcomeDead
			}
		}
	case actSnooze:
		ids, err = c.store.Snooze(ctx, worker, snoozesOf(same))
		note(ids, outcomeSnoozed)
	case actDiscard:
		ids, err = c.store.Discard(ctx, worker, discardsOf(same))
		note(ids, outcomeDiscarded)
	case actRelease:
		ids, err = c.store.Release(ctx, worker, refsOf(same))
		note(ids, outcomeReleased)
	}
	c.metrics.wrote(len(same), time.Since(begun), err)
	if err != nil {
		unsure := mayHaveCommitted(err)
		for _, r := range same {
			r.tries++
			r.unsure = r.unsure || unsure
		}
		return err
	}
	wait := make(map[int64]bool, len(locked))
	for _, id := range locked {
		wait[id] = true
	}
	for _, r := range same {
		if wait[r.held.ID] {
			c.postpone(r)
			continue
		}
		c.account(r, accepted[r.held.ID])
		r.held.identity.remove(r.held)
	}
	return nil
}

// postpone keeps a success whose row is locked until it is worth another try.
func (c *completer) postpone(r *result) {
	r.postponed++
	if r.postponed == 10 { // some ten seconds
		h := r.held
		c.log.Warn("the row of a finished job has been locked by another session for a while",
			"job", h.ID, "kind", h.Kind, "attempt", h.Attempt)
	}
	c.mu.Lock()
	r.notBefore = c.dueLocked(lockedFirst, lockedMax, r.postponed-1)
	c.locked = append(c.locked, r)
	c.writing--
	c.mu.Unlock()
}

// account counts and logs one answered result; outcome is empty for a refused one.
func (c *completer) account(r *result, outcome string) {
	h := r.held
	if outcome == "" {
		switch {
		case r.verify && !r.handlerFailed && !r.unsure && h.mustBeOurs(time.Now()):
			outcome = outcomeSucceeded
		case r.verify, r.unsure: // after an unsure write, a refusal may be its own doing
			outcome = outcomeUnconfirmed
		default:
			outcome = outcomeRefused
			c.metrics.staleByDatabase.Inc()
		}
	}
	c.metrics.completed(outcome)
	level := slog.LevelDebug
	switch outcome {
	case outcomeRetried, outcomeRefused:
		level = slog.LevelWarn
	case outcomeDead:
		level = slog.LevelError
	case outcomeDiscarded:
		level = slog.LevelInfo
	}
	if !c.log.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("outcome", outcome), slog.Int64("job", h.ID), slog.String("kind", h.Kind),
		slog.Int("attempt", h.Attempt), slog.Int("max_attempts", h.MaxAttempts),
		slog.String("worker", h.identity.id.String()), slog.String("token", h.Token.String()),
	}
	if r.action == actFail && outcome != outcomeSucceeded {
		attrs = append(attrs, slog.String("error", r.text))
	}
	if outcome == outcomeDiscarded {
		attrs = append(attrs, slog.String("reason", r.text))
	}
	c.log.LogAttrs(context.Background(), level, "job ended", attrs...)
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
