package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// State is where a job is in its life.
type State string

// The states. Scheduled, pending and running jobs are live; the others are
// terminal, but for dead jobs, which can be requeued.
const (
	StateScheduled State = "scheduled"
	StatePending   State = "pending"
	StateRunning   State = "running"
	StateSucceeded State = "succeeded"
	StateDiscarded State = "discarded"
	StateCancelled State = "cancelled"
	StateDead      State = "dead"
)

// Job is a view of a job in any state, for people and tools.
type Job struct {
	ID          int64
	Queue, Kind string
	State       State
	Priority    int16
	// Payload is the handler's argument, as jsonb is printed.
	Payload              json.RawMessage
	Attempt, MaxAttempts int
	CreatedAt            time.Time
	// AvailableAt is when a live job is or was ready; zero otherwise.
	AvailableAt time.Time
	// StartedAt, Deadline and Worker are those of the current or last run;
	// zero when there is none or it is not known.
	StartedAt, Deadline time.Time
	Worker              uuid.UUID
	// FinishedAt is when the job reached a terminal state; zero for live ones.
	FinishedAt time.Time
	// Reason is why it was discarded, cancelled or buried.
	Reason string
	// LastError and Errors are the failures of a live or dead job's attempts.
	LastError string
	Errors    []AttemptError
}

// ListRequest selects jobs to list.
type ListRequest struct {
	// Queue and Kind restrict the list; "" means any.
	Queue, Kind string
	// State selects live jobs of that state, finished jobs or dead letters;
	// "" means all live jobs.
	State State
	// Limit is 1 to 10,000; 0 means 100.
	Limit int
	// Before is the id to continue before, 0 for the first page: jobs are
	// listed by falling id.
	Before int64
}

// Get returns the job of that id, live, finished or dead, or ErrJobNotFound.
func (c *Client) Get(ctx context.Context, db DB, id int64) (Job, error) {
	rows, err := db.Query(ctx, c.stmt.getJob, id)
	if err != nil {
		return Job{}, wrap("get job", err)
	}
	job, err := pgx.CollectExactlyOneRow(rows, scanJob)
	if errors.Is(err, pgx.ErrNoRows) {
		return Job{}, wrap("get job", ErrJobNotFound)
	}
	return job, wrap("get job", err)
}

// List returns jobs by falling id. It is meant for people: its cost grows with
// the number of jobs that the filter passes over.
func (c *Client) List(ctx context.Context, db DB, req ListRequest) ([]Job, error) {
	if err := cmp.Or(checkText("Queue", req.Queue), checkText("State", string(req.State)), checkText("Kind", req.Kind),
		checkLimit(req.Limit, 10_000)); err != nil {
		return nil, wrap("list jobs", err)
	}
	limit := req.Limit
	if limit == 0 {
		limit = 100
	}
	rows, err := db.Query(ctx, c.stmt.listJobs, nullable(req.Queue), nullable(string(req.State)),
		nullable(req.Kind), limit, req.Before)
	if err != nil {
		return nil, wrap("list jobs", err)
	}
	jobs, err := pgx.CollectRows(rows, scanJob)
	return jobs, wrap("list jobs", err)
}

func scanJob(row pgx.CollectableRow) (Job, error) {
	var j Job
	var state string
	var available, started, deadline, finished *time.Time
	var worker *uuid.UUID
	var reason, lastError *string
	var errs []byte
	err := row.Scan(&j.ID, &j.Queue, &j.Kind, &state, &j.Priority, (*[]byte)(&j.Payload), &j.Attempt,
		&j.MaxAttempts, &j.CreatedAt, &available, &started, &deadline, &worker, &finished, &reason,
		&lastError, &errs)
	if err != nil {
		return Job{}, err
	}
	j.State = State(state)
	j.AvailableAt, j.StartedAt, j.Deadline = deref(available), deref(started), deref(deadline)
	j.FinishedAt, j.Worker = deref(finished), deref(worker)
	j.Reason, j.LastError = deref(reason), deref(lastError)
	j.Errors, err = parseErrors(errs)
	return j, err
}

// deref is the pointer's value, or the zero value for nil.
func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// nullable is the text as an SQL argument: "" is NULL.
func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}
