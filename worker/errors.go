package worker

import (
	"errors"
	"fmt"
	"time"
)

// Causes with which a handler's context ends; read them with context.Cause.
var (
	// ErrLeaseLost: another worker may run this job now. Whatever the handler
	// returns is dropped; it should stop having effects.
	ErrLeaseLost = errors.New("worker: the job's lease is lost")
	// ErrTimeout: the job ran longer than its queue's policy allows.
	ErrTimeout = errors.New("worker: the job's timeout is over")
	// ErrShutdown: the grace period of a stopping worker is nearly over. The job
	// goes back to the queue and the attempt is not counted.
	ErrShutdown = errors.New("worker: the worker is shutting down")
)

// Errors of a worker's run.
var (
	// ErrStuckHandler: a handler went on past its job's hard limit. Run has
	// drained the others and returns, so that the process can be replaced.
	ErrStuckHandler = errors.New("worker: a handler ignored its context past the job's hard limit")
	// ErrUnwritten: results could not be written before the grace period was over.
	// Their jobs run again once the lease is over.
	ErrUnwritten = errors.New("worker: results could not be written before the end")
	// ErrNotCommitted is the failure of a run that called [Job.Succeed] and returned
	// without an error, but whose transaction was not committed.
	ErrNotCommitted = errors.New("worker: Succeed was called but its transaction is not committed")
)

// verdict is what a handler's error asks the queue to do with the job.
type verdict int

const (
	verdictRetry verdict = iota
	verdictPermanent
	verdictRetryAfter
	verdictSnooze
	verdictDiscard
)

// classified carries a verdict through wrapping.
type classified struct {
	verdict verdict
	err     error
	delay   time.Duration
	reason  string
}

func (c *classified) Unwrap() error { return c.err }

func (c *classified) Error() string {
	switch c.verdict {
	case verdictSnooze:
		return fmt.Sprintf("worker: snoozed for %s", c.delay)
	case verdictDiscard:
		return "worker: discarded: " + c.reason
	case verdictRetryAfter:
		if c.err == nil {
			return fmt.Sprintf("worker: retry after %s", c.delay)
		}
	}
	return c.err.Error()
}

// Permanent marks err as one that no retry can mend: the job goes to the dead
// letters at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &classified{verdict: verdictPermanent, err: err}
}

// maxDelay is the longest delay that the database takes.
const maxDelay = 3153600000 * time.Second

// RetryAfter is a failed attempt whose next one begins after d, at most 100 years,
// instead of after the policy's backoff. With d <= 0 it is the policy's backoff after
// all. err may be nil.
func RetryAfter(d time.Duration, err error) error {
	return &classified{verdict: verdictRetryAfter, err: err, delay: min(max(d, 0), maxDelay)}
}

// Snooze puts the job back for d, at most 100 years, without counting the attempt.
func Snooze(d time.Duration) error {
	return &classified{verdict: verdictSnooze, delay: min(max(d, 0), maxDelay)}
}

// Discard ends the job for good by the handler's own decision. It is neither a
// success nor a failure.
func Discard(reason string) error {
	return &classified{verdict: verdictDiscard, reason: reason}
}

// classify finds the outermost verdict in err; an error without one is a
// retryable failure.
func classify(err error) *classified {
	var c *classified
	if errors.As(err, &c) {
		return c
	}
	return &classified{verdict: verdictRetry, err: err}
}
