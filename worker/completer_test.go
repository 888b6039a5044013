package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// fakeSettler answers from memory. fail, when set, decides what goes wrong.
type fakeSettler struct {
	mu      sync.Mutex
	batches [][]int64
	done    map[int64]string
	refuse  map[int64]bool
	locked  map[int64]int // how often its row is found locked
	fail    func(ids []int64) error
	block   chan struct{}
}

func (f *fakeSettler) write(what string, refs []queue.Ref) ([]int64, error) {
	return writeEach(f, refs, func(r queue.Ref) (queue.Ref, string) { return r, what })
}

// writeEach is write for results of which each says something of its own.
func writeEach[T any](f *fakeSettler, results []T, say func(T) (queue.Ref, string)) ([]int64, error) {
	if f.block != nil {
		<-f.block
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids, accepted []int64
	for _, r := range results {
		ref, _ := say(r)
		ids = append(ids, ref.ID)
	}
	f.batches = append(f.batches, ids)
	if f.fail != nil {
		if err := f.fail(ids); err != nil {
			return nil, err
		}
	}
	for i, id := range ids {
		if !f.refuse[id] {
			accepted = append(accepted, id)
			_, f.done[id] = say(results[i])
		}
	}
	return accepted, nil
}

func (f *fakeSettler) Succeed(_ context.Context, _ uuid.UUID, refs []queue.Ref, _ []time.Duration) (accepted, locked []int64, err error) {
	var free []queue.Ref
	f.mu.Lock()
	for _, r := range refs {
		if f.locked[r.ID] > 0 {
			f.locked[r.ID]--
			locked = append(locked, r.ID)
			continue
		}
		free = append(free, r)
	}
	f.mu.Unlock()
	accepted, err = f.write("succeeded", free)
	return accepted, locked, err
}

func (f *fakeSettler) Snooze(_ context.Context, _ uuid.UUID, snoozes []queue.Snooze) ([]int64, error) {
	return writeEach(f, snoozes, func(s queue.Snooze) (queue.Ref, string) { return s.Ref, "snoozed " + s.Delay.String() })
}

func (f *fakeSettler) Discard(_ context.Context, _ uuid.UUID, discards []queue.Discard) ([]int64, error) {
	return writeEach(f, discards, func(d queue.Discard) (queue.Ref, string) { return d.Ref, "discarded " + d.Reason })
}

func (f *fakeSettler) Release(_ context.Context, _ uuid.UUID, refs []queue.Ref) ([]int64, error) {
	return f.write("released", refs)
}

func (f *fakeSettler) Fail(_ context.Context, _ uuid.UUID, failures []queue.Failure) ([]queue.FailOutcome, error) {
	var refs []queue.Ref
	for _, r := range failures {
		refs = append(refs, r.Ref)
	}
	ids, err := f.write("failed", refs)
	var out []queue.FailOutcome
	for _, id := range ids {
		out = append(out, queue.FailOutcome{ID: id})
	}
	return out, err
}

func startCompleter(t *testing.T, f *fakeSettler) *completer {
	t.Helper()
	if f.done == nil {
		f.done = map[int64]string{}
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	c := newCompleter(f, log, newMetrics(prometheus.NewRegistry(), "q"), func() {}, func() {})
	c.backoff = backoff{base: time.Millisecond, ceiling: 5 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { c.run(ctx) })
	t.Cleanup(func() {
		cancel()
		loop.Wait()
	})
	return c
}

func flushed(t *testing.T, c *completer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if c.flush(ctx); c.unwritten() != 0 {
		t.Fatalf("%d results are left", c.unwritten())
	}
}

func succeedAll(ids ...int64) (results []*result) {
	id := newIdentity()
	for _, n := range ids {
		h := makeHeld(n, time.Minute, time.Minute)
		h.identity = id
		id.add([]*held{h})
		results = append(results, &result{held: h, action: actSucceed})
	}
	return results
}

func (c *completer) counted(outcome string) float64 {
	return counterValue(c.metrics.completions[outcome])
}

func counterValue(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

func TestCompleterGathersWhileOneWriteIsUnderWay(t *testing.T) {
	f := &fakeSettler{block: make(chan struct{})}
	c := startCompleter(t, f)
	results := succeedAll(1, 2, 3, 4, 5)
	c.add(results[0])
	f.block <- struct{}{} // the first is being written, alone
	for _, r := range results[1:] {
		c.add(r)
	}
	close(f.block)
	flushed(t, c)
	total := 0
	for _, b := range f.batches {
		total += len(b)
	}
	if len(f.batches[0]) != 1 || len(f.batches) > 3 || total != 5 {
		t.Errorf("batches are %v, want the first alone and the others together", f.batches)
	}
	if n := len(results[0].held.identity.jobs); n != 0 {
		t.Errorf("%d jobs are still held", n)
	}
}

// Results too many for one statement's time limit are written in smaller ones.
func TestCompleterHalvesWhatTakesTooLong(t *testing.T) {
	f := &fakeSettler{fail: func(ids []int64) error {
		if len(ids) > 300 {
			return fmt.Errorf("queue: succeed: %w", context.DeadlineExceeded)
		}
		return nil
	}}
	c := startCompleter(t, f)
	ids := make([]int64, 1000)
	for i := range ids {
		ids[i] = int64(i)
	}
	c.add(succeedAll(ids...)...)
	flushed(t, c)
	var sizes []int
	for _, b := range f.batches[:3] {
		sizes = append(sizes, len(b))
	}
	if diff := cmp.Diff([]int{1000, 500, 250}, sizes); diff != "" {
		t.Errorf("sizes of the first writes (-want +got):\n%s", diff)
	}
	if n := len(f.done); n != len(ids) {
		t.Errorf("%d results are written, want %d", n, len(ids))
	}
}

// Batches grow again once statements are answered, whatever kinds of results are in them.
func TestCompleterBatchesGrowAgain(t *testing.T) {
	late := 8 // halved to one
	f := &fakeSettler{fail: func([]int64) error {
		if late--; late >= 0 {
			return context.DeadlineExceeded
		}
		return nil
	}}
	c := startCompleter(t, f)
	ids := make([]int64, 400)
	for i := range ids {
		ids[i] = int64(i)
	}
	results := succeedAll(ids...)
	for i := range results {
		if i%2 == 0 {
			results[i].action = actFail
		}
	}
	c.add(results...)
	flushed(t, c)
	if n := len(f.batches); n > 8+20 { // 1, 2, 4 ... 256 results, in two statements each
		t.Errorf("%d statements, want some 25", n)
	}
}

// After a small write the next one is made at once; after a large one, what comes in the
// moment after it goes together (W4).
func TestCompleterGathersAfterALargeWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSettler{}
		c := startCompleter(t, f)
		results := succeedAll(make([]int64, manyResults+3)...)
		many, few := results[:manyResults], results[manyResults:]
		written := func(want ...int) {
			t.Helper()
			synctest.Wait()
			var got []int
			for _, b := range f.batches {
				got = append(got, len(b))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("sizes of writes (-want +got):\n%s", diff)
			}
		}
		c.add(many...)
		written(manyResults)
		c.add(few[0])
		written(manyResults)
		c.add(few[1])
		time.Sleep(gatherLeast)
		written(manyResults, 2)
		c.add(few[2])
		written(manyResults, 2, 1)
	})
}

func TestCompleterGathersForAsLongAsTheWriteTook(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: gatherLeast, 20 * time.Millisecond: 20 * time.Millisecond, time.Second: gatherMost,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeSettler{fail: func([]int64) error {
				time.Sleep(took)
				return nil
			}}
			c := startCompleter(t, f)
			ids := make([]int64, manyResults+1)
			for i := range ids {
				ids[i] = int64(i)
			}
			results := succeedAll(ids...)
			start := time.Now()
			c.add(results[:manyResults]...)
			synctest.Wait()
			c.add(results[manyResults])
			flushed(t, c)
			if got := time.Since(start) - 2*took; got != want {
				t.Errorf("after a write of %s, the next began %s later; want %s", took, got, want)
			}
		})
	}
}

func TestCompleterTriesAgainUntilTheDatabaseAnswers(t *testing.T) {
	down := 5
	f := &fakeSettler{fail: func([]int64) error {
		if down--; down >= 0 {
			return errors.New("connection reset")
		}
		return nil
	}}
	c := startCompleter(t, f)
	c.add(succeedAll(1, 2, 3)...)
	flushed(t, c)
	if len(f.done) != 3 || c.counted(outcomeSucceeded) != 3 {
		t.Errorf("written: %v, counted: %v", f.done, c.counted(outcomeSucceeded))
	}
}

func TestCompleterLetsOthersPastAResultTheDatabaseRejects(t *testing.T) {
	f := &fakeSettler{}
	f.fail = func(ids []int64) error {
		for _, id := range ids {
			if id == 2 {
				return &pgconn.PgError{Code: "22021", Severity: "ERROR", SeverityUnlocalized: "ERROR"}
			}
		}
		return nil
	}
	c := startCompleter(t, f)
	c.add(succeedAll(1, 2, 3)...)
	deadline := time.Now().Add(10 * time.Second)
	for c.unwritten() != 1 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done[1] == "" || f.done[3] == "" || f.done[2] != "" {
		t.Errorf("written: %v, want 1 and 3", f.done)
	}
}

func TestCompleterPausesWhenTheDatabaseGoesWhileItWritesOneByOne(t *testing.T) {
	rejected := &pgconn.PgError{Code: "55P03", Severity: "ERROR", SeverityUnlocalized: "ERROR"}
	calls := 0
	f := &fakeSettler{}
	f.fail = func(ids []int64) error {
		calls++
		switch {
		case len(ids) == 5: // together: rejected, so each is tried alone
			return rejected
		case calls == 3: // the second of them meets an outage
			return errors.New("connection reset")
		case ids[0] == 2: // and stays locked for longer
			return rejected
		}
		return nil
	}
	c := startCompleter(t, f)
	c.add(succeedAll(1, 2, 3, 4, 5)...)
	deadline := time.Now().Add(10 * time.Second)
	for c.unwritten() != 1 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.done) != 4 || f.done[2] != "" {
		t.Errorf("written: %v, want all but 2", f.done)
	}
	want := [][]int64{{1, 2, 3, 4, 5}, {1}, {2}, {2}}
	if diff := cmp.Diff(want, f.batches[:len(want)]); diff != "" {
		t.Errorf("the first writes (-want +got):\n%s", diff)
	}
}

func TestCompleterTriesLockedRowsAgainWhileOthersPass(t *testing.T) {
	f := &fakeSettler{locked: map[int64]int{1: 3, 2: 1 << 30}}
	c := startCompleter(t, f)
	c.add(succeedAll(1, 2, 3)...)
	deadline := time.Now().Add(10 * time.Second)
	for c.unwritten() != 1 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	c.add(succeedAll(4, 5)...)
	for c.unwritten() != 1 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.done) != 4 || f.done[2] != "" {
		t.Errorf("written: %v, want all but 2", f.done)
	}
	if c.counted(outcomeSucceeded) != 4 || c.counted(outcomeRefused) != 0 {
		t.Errorf("counted %v succeeded and %v refused", c.counted(outcomeSucceeded), c.counted(outcomeRefused))
	}
}

func TestCompleterWaitsForFewLockedRows(t *testing.T) {
	locked := map[int64]bool{1: true, 2: true, 3: true, 4: true}
	f := &fakeSettler{}
	f.fail = func(ids []int64) error {
		for _, id := range ids {
			if locked[id] {
				return &pgconn.PgError{Code: "55P03", Severity: "ERROR", SeverityUnlocalized: "ERROR"}
			}
		}
		return nil
	}
	c := startCompleter(t, f)
	c.add(succeedAll(1, 2, 3, 4, 5, 6)...)
	deadline := time.Now().Add(10 * time.Second)
	for c.unwritten() != 4 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done[5] == "" || f.done[6] == "" || len(f.done) != 2 {
		t.Errorf("written: %v, want 5 and 6", f.done)
	}
	want := [][]int64{{1, 2, 3, 4, 5, 6}, {1}, {2}, {3}, {4, 5, 6}}
	if diff := cmp.Diff(want, f.batches[:len(want)]); diff != "" {
		t.Errorf("the first writes (-want +got):\n%s", diff)
	}
}

// A parked result has its turn though others come all the time, and they have theirs
// though there are many parked ones (W4).
func TestCompleterTakesTurnsBetweenParkedResultsAndOthers(t *testing.T) {
	c := newCompleter(nil, nil, nil, func() {}, func() {})
	all := succeedAll(1, 2, 3, 4, 5, 6, 7)
	due, later, others := all[:3], all[3], all[4:]
	later.notBefore = time.Now().Add(time.Hour)
	c.parked = append([]*result{later}, due...)
	var got [][]int64
	for i := range 6 {
		if i < len(others) {
			c.pending = append(c.pending, others[i])
		}
		batch, _, _ := c.take()
		var ids []int64
		for _, r := range batch {
			ids = append(ids, r.held.ID)
		}
		got = append(got, ids)
	}
	want := [][]int64{{1}, {5, 6}, {2}, {7}, {3}, nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

// What the database rejects is tried again for as long as its run may be this worker's,
// and what is locked until it is not.
func TestCompleterDropsAResultThatIsRejectedLongAfterItsRunsHardLimit(t *testing.T) {
	cases := map[string]struct {
		code        string
		ago         time.Duration // since the hard limit
		wantLeft    int
		wantRefused float64
	}{
		"before the limit":       {code: "JQ005", ago: -time.Minute, wantLeft: 1},
		"just after":             {code: "JQ005", ago: judgedAfter - 10*time.Second, wantLeft: 1},
		"long after":             {code: "JQ005", ago: judgedAfter + time.Second, wantRefused: 1},
		"long after, but locked": {code: "55P03", ago: judgedAfter + time.Second, wantLeft: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCompleter(t, &fakeSettler{fail: func([]int64) error {
					return &pgconn.PgError{Code: tc.code, Severity: "ERROR", SeverityUnlocalized: "ERROR"}
				}})
				results := succeedAll(1)
				h := results[0].held
				h.hardLimit = time.Now().Add(-tc.ago)
				c.add(results...)
				synctest.Wait()
				if got := c.unwritten(); got != tc.wantLeft || len(h.identity.jobs) != tc.wantLeft {
					t.Errorf("%d results are left and %d jobs held, want %d", got, len(h.identity.jobs), tc.wantLeft)
				}
				if got := c.counted(outcomeRefused); got != tc.wantRefused {
					t.Errorf("%v are counted as refused, want %v", got, tc.wantRefused)
				}
			})
		})
	}
}

func TestCompleterCountsRefusals(t *testing.T) {
	cases := map[string]struct {
		change      func(*result)
		failFirst   error
		wantOutcome string
	}{
		"lease lost":                             {wantOutcome: outcomeRefused},
		"failure of a lost lease":                {change: func(r *result) { r.action = actFail }, wantOutcome: outcomeRefused},
		"committed in the handler's transaction": {change: func(r *result) { r.verify = true }, wantOutcome: outcomeSucceeded},
		"commit failed, or only its answer": {
			change:      func(r *result) { r.verify, r.handlerFailed = true, true },
			wantOutcome: outcomeUnconfirmed,
		},
		"its lease was over by then": {
			change:      func(r *result) { r.verify, r.held.hardLimit = true, time.Now().Add(-time.Second) },
			wantOutcome: outcomeUnconfirmed,
		},
		"written before, answer lost": {failFirst: errors.New("connection reset"), wantOutcome: outcomeUnconfirmed},
		"surely not written before": {
			failFirst:   &pgconn.PgError{Code: "40001", SeverityUnlocalized: "ERROR"},
			wantOutcome: outcomeRefused,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := &fakeSettler{refuse: map[int64]bool{7: true}}
			first := tc.failFirst
			f.fail = func([]int64) error { err := first; first = nil; return err }
			c := startCompleter(t, f)
			results := succeedAll(7)
			if tc.change != nil {
				tc.change(results[0])
			}
			c.add(results...)
			flushed(t, c)
			for _, outcome := range outcomes {
				want := 0.0
				if outcome == tc.wantOutcome {
					want = 1
				}
				if got := c.counted(outcome); got != want {
					t.Errorf("outcome %s is counted %v times, want %v", outcome, got, want)
				}
			}
		})
	}
}

// What was put off because of a lock is tried at once, and often, when the worker drains (W4).
func TestCompleterHurries(t *testing.T) {
	for name, made := range map[string]func(f *fakeSettler, busy *atomic.Bool){
		"parked": func(f *fakeSettler, busy *atomic.Bool) {
			f.fail = func([]int64) error {
				if busy.Load() {
					return &pgconn.PgError{Code: "55P03", SeverityUnlocalized: "ERROR"}
				}
				return nil
			}
		},
		"locked": func(f *fakeSettler, _ *atomic.Bool) { f.locked = map[int64]int{1: 20} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, busy := &fakeSettler{}, new(atomic.Bool)
				busy.Store(true)
				made(f, busy)
				c := startCompleter(t, f)
				c.add(succeedAll(1)...)
				time.Sleep(20 * time.Second)
				if c.unwritten() != 1 {
					t.Fatal("it is not held up")
				}
				c.hurry()
				time.Sleep(time.Second)
				busy.Store(false)
				time.Sleep(2 * lastPause)
				if n := c.unwritten(); n != 0 {
					t.Errorf("%d results are left", n)
				}
			})
		})
	}
}

func TestCompleterFlushGivesUpWithItsContext(t *testing.T) {
	f := &fakeSettler{fail: func([]int64) error { return errors.New("down") }}
	c := startCompleter(t, f)
	c.add(succeedAll(1, 2)...)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	c.flush(ctx)
	if n := c.unwritten(); n != 2 {
		t.Errorf("%d results are unwritten, want both", n)
	}
}

func TestCompleterWritesEachKindAsWhatItIs(t *testing.T) {
	f := &fakeSettler{}
	c := startCompleter(t, f)
	results := succeedAll(1, 2, 3, 4, 5)
	results[1].action = actFail
	results[2].action, results[2].delay = actSnooze, time.Minute
	results[3].action, results[3].text = actDiscard, "because"
	results[4].action = actRelease
	c.add(results...)
	flushed(t, c)
	want := map[int64]string{1: "succeeded", 2: "failed", 3: "snoozed 1m0s", 4: "discarded because", 5: "released"}
	for id, what := range want {
		if f.done[id] != what {
			t.Errorf("job %d is %q, want %q", id, f.done[id], what)
		}
	}
}
