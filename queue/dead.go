package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"time"
)

// DeadJob is a dead letter: a job that will not run again unless requeued.
type DeadJob struct {
	ID          int64
	Queue, Kind string
	Priority    int16
	Payload     json.RawMessage
	// Attempt is how many runs began, of at most MaxAttempts.
	Attempt, MaxAttempts int
	CreatedAt, DiedAt    time.Time
	// Reason says why it died: "attempts exhausted", "permanent failure", or,
	// after its last attempt, "lease expired" (its worker's process died, or could
	// not renew its lease) or "deadline passed" (its handler was stuck).
	Reason string
	// LastError is the message of the last failure, at most 4,000 characters.
	LastError string
	// Errors are the last attempts' failures, the oldest first.
	Errors []AttemptError
}

// AttemptError is the failure of one attempt.
type AttemptError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Error   string    `json:"error"`
}

// ListDead returns up to limit dead letters of the queue in order of id, those
// after the id given; pass 0 for the first page, then the last id seen.
func (c *Client) ListDead(ctx context.Context, db DB, queue string, limit int, after int64) ([]DeadJob, error) {
	if err := cmp.Or(checkText("queue", queue), checkLimit(limit, 10_000)); err != nil {
		return nil, wrap("list dead", err)
	}
	rows, err := db.Query(ctx, c.stmt.listDead, queue, limit, after)
	if err != nil {
		return nil, wrap("list dead", err)
	}
	defer rows.Close()
	var jobs []DeadJob
	for rows.Next() {
		var j DeadJob
		var errs []byte
		err := rows.Scan(&j.ID, &j.Queue, &j.Kind, &j.Priority, (*[]byte)(&j.Payload), &j.Attempt,
			&j.MaxAttempts, &j.CreatedAt, &j.DiedAt, &j.Reason, &j.LastError, &errs)
		if err != nil {
			return nil, wrap("list dead", err)
		}
		if j.Errors, err = parseErrors(errs); err != nil {
			return nil, wrap("list dead", err)
		}
		jobs = append(jobs, j)
	}
	return jobs, wrap("list dead", rows.Err())
}

// Requeue makes dead letters of the queue pending again, with all their
// attempts, the same ids and their history of errors, and returns the ids that
// were found. No ids is no work.
func (c *Client) Requeue(ctx context.Context, db DB, queue string, ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if err := checkText("queue", queue); err != nil {
		return nil, wrap("requeue", err)
	}
	found, err := queryIDs(ctx, db, len(ids), c.stmt.requeue, queue, ids)
	return found, wrap("requeue", err)
}

// RequeueKind is Requeue for up to limit dead letters of a kind, the oldest
// first; "" means any kind. Call again until it returns none for all of them.
func (c *Client) RequeueKind(ctx context.Context, db DB, queue, kind string, limit int) ([]int64, error) {
	if err := cmp.Or(checkText("queue", queue), checkText("kind", kind), checkLimit(limit, 100_000)); err != nil {
		return nil, wrap("requeue", err)
	}
	var filter any
	if kind != "" {
		filter = kind
	}
	found, err := queryIDs(ctx, db, 0, c.stmt.requeueKind, queue, filter, limit)
	return found, wrap("requeue", err)
}

// PurgeDead deletes up to limit dead letters of the queue that died longer ago
// than olderThan (0: all), the oldest first, and returns how many.
func (c *Client) PurgeDead(ctx context.Context, db DB, queue string, olderThan time.Duration, limit int) (int64, error) {
	if err := cmp.Or(checkText("queue", queue), checkLimit(limit, 100_000)); err != nil {
		return 0, wrap("purge dead", err)
	}
	var purged int64
	err := db.QueryRow(ctx, c.stmt.purgeDead, queue, olderThan.Seconds(), limit).Scan(&purged)
	return purged, wrap("purge dead", err)
}

// parseErrors decodes a job's history of errors; NULL is none.
func parseErrors(raw []byte) ([]AttemptError, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var errs []AttemptError
	if err := json.Unmarshal(raw, &errs); err != nil {
		return nil, err
	}
	return errs, nil
}
