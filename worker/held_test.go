package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// makeHeld is a job claimed now that may run for timeout, with lease as the margin
// of its hard limit.
func makeHeld(id int64, timeout, lease time.Duration) *held {
	now := time.Now()
	run := queue.Run{
		Ref: queue.Ref{ID: id}, Queue: "q", Kind: "k", Attempt: 1, MaxAttempts: 3,
		StartedAt: now, Deadline: now.Add(timeout + lease), Timeout: timeout, Lease: lease,
	}
	return newHeld(run, newIdentity(), nil, now)
}

func (h *held) testBegin(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	if !h.begin(cancel, time.Now()) {
		t.Fatal("a waiting job does not begin")
	}
	return ctx
}

func TestHeldHasOneOwnerOfItsEnd(t *testing.T) {
	steps := map[string]func(*held) bool{
		"take back": (*held).takeBack,
		"finish":    func(h *held) bool { settled, _, _ := h.finish(); return settled },
		"abandon":   func(h *held) bool { settled, _ := h.abandon(); return settled },
		"lose":      (*held).lose,
		"write off": func(h *held) bool { _, settled, _ := h.writeOff(time.Now().Add(time.Hour)); return settled },
	}
	cases := map[string]struct {
		running bool
		first   string
		want    map[string]bool // whether a second step succeeds; false unless named
		wantOK  bool
	}{
		"waiting, taken back":  {first: "take back", wantOK: true},
		"waiting, lost":        {first: "lose", wantOK: true},
		"waiting, abandoned":   {first: "abandon", want: map[string]bool{"take back": true, "lose": true}},
		"running, taken back":  {running: true, first: "take back", want: map[string]bool{"finish": true, "abandon": true, "lose": true, "write off": true}},
		"running, finished":    {running: true, first: "finish", wantOK: true},
		"running, abandoned":   {running: true, first: "abandon", wantOK: true},
		"running, lost":        {running: true, first: "lose", wantOK: true},
		"running, written off": {running: true, first: "write off", wantOK: true},
	}
	for name, tc := range cases {
		for second, step := range steps {
			t.Run(name+", then "+second, func(t *testing.T) {
				h := makeHeld(1, time.Minute, time.Minute)
				if tc.running {
					h.testBegin(t)
				}
				if ok := steps[tc.first](h); ok != tc.wantOK {
					t.Fatalf("%s is %t, want %t", tc.first, ok, tc.wantOK)
				}
				if ok := step(h); ok != tc.want[second] {
					t.Errorf("%s is %t, want %t", second, ok, tc.want[second])
				}
			})
		}
	}
}

func TestHeldLostJobDoesNotBegin(t *testing.T) {
	h := makeHeld(1, time.Minute, time.Minute)
	h.lose()
	_, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if h.begin(cancel, time.Now()) {
		t.Error("a lost job begins")
	}
}

// The slot's next job may have the same context, so no cancel may come after finish.
func TestHeldCancelsBeforeItCanFinish(t *testing.T) {
	for name, step := range map[string]func(*held) bool{"lose": (*held).lose, "interrupt": (*held).interrupt} {
		t.Run(name, func(t *testing.T) {
			h, cancelled := makeHeld(1, time.Minute, time.Minute), false
			cancel := func(error) {
				cancelled = true
				if h.mu.TryLock() {
					t.Error("finish could return before the context is cancelled")
					h.mu.Unlock()
				}
			}
			if !h.begin(cancel, time.Now()) || !step(h) || !cancelled {
				t.Error("a running job's context is not cancelled")
			}
			h.finish()
			cancelled = false
			if step(h) || cancelled {
				t.Error("the context is cancelled after the handler's return")
			}
		})
	}
}

func TestHeldContextCauses(t *testing.T) {
	h := makeHeld(1, time.Minute, time.Minute)
	ctx := h.testBegin(t)
	h.lose()
	if cause := context.Cause(ctx); !errors.Is(cause, ErrLeaseLost) {
		t.Errorf("cause of a lost job's context is %v", cause)
	}
	h = makeHeld(1, time.Minute, time.Minute)
	ctx = h.testBegin(t)
	if !h.interrupt() {
		t.Error("a running job is not interrupted")
	}
	if cause := context.Cause(ctx); !errors.Is(cause, ErrShutdown) {
		t.Errorf("cause of an interrupted job's context is %v", cause)
	}
	if settled, _, interrupted := h.finish(); !settled || !interrupted {
		t.Errorf("finish is settled=%t interrupted=%t, want both", settled, interrupted)
	}
}

func TestHeldSucceededInTransactionIsNotLost(t *testing.T) {
	h := makeHeld(1, time.Minute, time.Minute)
	ctx := h.testBegin(t)
	h.markSucceeded()
	if h.lose() || ctx.Err() != nil {
		t.Error("a run that the handler has finished itself counts as lost")
	}
}

func TestHeldLimits(t *testing.T) {
	h := makeHeld(1, time.Second, 2*time.Second)
	begun := h.claimedAt.Add(500 * time.Millisecond)
	if got, want := h.limit(begun), begun.Add(time.Second); !got.Equal(want) {
		t.Errorf("limit is %s after the claim, want the timeout after the start", got.Sub(h.claimedAt))
	}
	late := h.claimedAt.Add(2500 * time.Millisecond)
	if got := h.limit(late); !got.Equal(h.hardLimit) {
		t.Errorf("limit of a late start is %s after the claim, want the hard limit", got.Sub(h.claimedAt))
	}
	h.testBegin(t)
	if stuck, _, _ := h.writeOff(h.hardLimit.Add(-time.Millisecond)); stuck {
		t.Error("stuck before the hard limit")
	}
	if stuck, settled, _ := h.writeOff(h.hardLimit); !stuck || !settled {
		t.Errorf("at the hard limit stuck=%t settled=%t, want both", stuck, settled)
	}
	if stuck, _, _ := h.writeOff(h.hardLimit); stuck {
		t.Error("reported twice")
	}
}
