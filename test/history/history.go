// Package history judges a queue from outside: it records what became of every run of
// every job, and what workers were told of it, and finds what must never be.
//
// It trusts nothing of the queue but where a run is stored. Triggers of its own write each
// event into a table that has no key, so that what must not happen is seen and not
// refused. A worker's side comes from its log, which outlives its death by any signal.
package history

import (
	"time"

	"github.com/google/uuid"
)

// What says what happened to a run or a job.
type What string

// The events that triggers record.
const (
	// Claimed: a run began.
	Claimed What = "claimed"
	// Closed: a run ended, in whatever way.
	Closed What = "closed"
	// Succeeded: a run was marked as successful.
	Succeeded What = "succeeded"
	// Arrived: a job came into the table Place.
	Arrived What = "arrived"
)

// Event is one change in the database.
type Event struct {
	// Seq orders the events of one job.
	Seq int64
	// Xid is the transaction; the changes of one belong together.
	Xid  uint64
	What What
	// ID is the job's.
	ID int64
	// Token is the run's; zero for Arrived.
	Token uuid.UUID
	// Place is the table that a job arrived in: waiting, dead or ended.
	Place string
	// By is the public function that a client had called.
	By string
	// At is the time by the database's clock.
	At time.Time
	// Deadline is the run's; zero for Arrived.
	Deadline time.Time
	// Registered is the transaction that made the row of the run's worker, as it was then;
	// 0 if it had none. A row that was removed and made anew has another one.
	Registered uint64
	// Lease is the end of the lease in that row.
	Lease time.Time
}

// Told is one answer of the database to a worker about a result.
type Told struct {
	ID    int64
	Token uuid.UUID
	// Outcome is as the worker logs it: succeeded, retried, dead, snoozed, discarded and
	// released were accepted; refused was not; of unconfirmed the worker is unsure.
	Outcome string
	// At is no sooner than the answer: by the worker's clock in a Journal, by the
	// database's in a History.
	At time.Time
}

// Began is the start of a handler.
type Began struct {
	ID    int64
	Token uuid.UUID
	// At is the time by the worker's clock.
	At time.Time
}

// History is all that is known of a queue's life.
type History struct {
	// Enqueued are the jobs that producers were told are committed.
	Enqueued []int64
	// Events are in the order of Seq.
	Events []Event
	Told   []Told
	// Began are the runs whose handlers began, from the workers' logs.
	Began []uuid.UUID
	// Live are the jobs that wait or run at the end.
	Live []int64
}
