package worker

import (
	"context"
	"sync"
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// stage is where a held job stands in this process.
type stage int

const (
	stageWaiting stage = iota // in memory, no handler has seen it
	stageRunning              // its handler runs
	stageSettled              // what becomes of it is decided, once and for all
	stageLost                 // it is another worker's now
)

// held is one claimed run while it is in this process's hands. Whoever moves it
// to stageSettled or stageLost owns what follows; all others let go.
type held struct {
	queue.Run
	identity *identity
	handler  *registration

	// Local times of this process's monotonic clock. claimedAt is taken before the
	// claim was sent, so that hardLimit, the run's deadline in the database, is never
	// later here than there.
	claimedAt time.Time
	hardLimit time.Time

	mu          sync.Mutex
	stage       stage
	cancel      context.CancelCauseFunc // only while it is in stageRunning: the slot's next job may have the same
	startedAt   time.Time
	returned    bool // the handler is back
	succeeded   bool // Job.Succeed was accepted inside the handler's transaction
	locked      bool // Job.Succeed waited in vain for the job's row
	interrupted bool // the worker stops and has cancelled the context
	stuck       bool // reported as past its hard limit
}

func newHeld(run queue.Run, id *identity, reg *registration, claimedAt time.Time) *held {
	h := &held{Run: run, identity: id, handler: reg, claimedAt: claimedAt}
	if !run.Deadline.IsZero() {
		h.hardLimit = claimedAt.Add(run.Deadline.Sub(run.StartedAt))
	}
	return h
}

// overdue is true for a job that has waited in memory for so long that its handler would
// reach the run's hard limit before its timeout.
func (h *held) overdue(now time.Time) bool {
	return h.Timeout > 0 && !h.hardLimit.IsZero() && now.Add(h.Timeout).After(h.hardLimit)
}

// begin marks the handler's start. It is false when the job has been lost or
// taken back in the meantime.
func (h *held) begin(cancel context.CancelCauseFunc, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stage != stageWaiting {
		return false
	}
	h.stage, h.cancel, h.startedAt = stageRunning, cancel, now
	return true
}

// takeBack settles a job that no handler has seen.
func (h *held) takeBack() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stage != stageWaiting {
		return false
	}
	h.stage = stageSettled
	return true
}

// finish is called once by the slot whose handler has returned. settled is false
// when the lease was lost or somebody else has settled the run, and the handler's
// result must be dropped.
func (h *held) finish() (settled, succeeded, interrupted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.returned = true
	if h.stage == stageRunning {
		h.stage = stageSettled
		settled = true
	}
	return settled, h.succeeded, h.interrupted
}

// abandon settles a run whose handler is not waited for any longer. succeeded
// says that the handler has called Job.Succeed, and that its open transaction may
// keep the job's row locked.
func (h *held) abandon() (settled, succeeded bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stage != stageRunning {
		return false, h.succeeded
	}
	h.stage = stageSettled
	return true, h.succeeded
}

// lose takes the job out of this process's hands and tells its handler why. A
// committed Job.Succeed looks lost to a heartbeat, because the row is gone; such a
// handler is left alone to return. It is false when there was nothing to lose.
func (h *held) lose() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.succeeded || h.stage == stageSettled || h.stage == stageLost {
		return false
	}
	if h.stage == stageRunning {
		h.cancel(ErrLeaseLost)
	}
	h.stage = stageLost
	return true
}

// interrupt ends the context of a running handler because the worker stops. The
// handler's result still counts if it comes in time.
func (h *held) interrupt() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stage != stageRunning {
		return false
	}
	h.interrupted = true
	h.cancel(ErrShutdown)
	return true
}

// writeOff reports, once, a handler that goes on past the hard limit; settled
// and succeeded are as abandon returns them.
func (h *held) writeOff(now time.Time) (stuck, settled, succeeded bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	begun := !h.startedAt.IsZero()
	if !begun || h.returned || h.stuck || h.hardLimit.IsZero() || now.Before(h.hardLimit) {
		return false, false, false
	}
	h.stuck = true
	if h.stage == stageRunning {
		h.stage = stageSettled
		settled = true
	}
	return true, settled, h.succeeded
}

// markSucceeded notes that the database accepted Job.Succeed.
func (h *held) markSucceeded() {
	h.mu.Lock()
	h.succeeded = true
	h.mu.Unlock()
}

// markLocked notes that another transaction held the job's row for too long.
func (h *held) markLocked() {
	h.mu.Lock()
	h.locked = true
	h.mu.Unlock()
}

func (h *held) wasLocked() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.locked
}

func (h *held) isStuck() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stuck
}

// mustBeOurs is true while neither the run's hard limit nor its lease is over by this
// process's own clock: nobody has taken it back then, unless it was cancelled.
func (h *held) mustBeOurs(now time.Time) bool {
	return (h.hardLimit.IsZero() || now.Before(h.hardLimit)) && !h.identity.over(now)
}

// active is true while the job's lease matters to this process.
func (h *held) active() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stage == stageWaiting || h.stage == stageRunning
}
