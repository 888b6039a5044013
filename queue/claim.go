package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Ref names one run of a job: the id and the token that its claim made.
type Ref struct {
	ID    int64
	Token uuid.UUID
}

// Run is a job that has been claimed: one attempt, owned by the claiming worker
// until it is finished, its worker's lease runs out, or Deadline passes.
type Run struct {
	Ref
	// Queue and Kind are as enqueued.
	Queue, Kind string
	// Payload is the job's JSON.
	Payload json.RawMessage
	// Priority is as enqueued; lower runs first.
	Priority int16
	// Attempt counts the runs begun, this one included: 1 is the first.
	Attempt int
	// MaxAttempts is how many runs may begin before the job is dead.
	MaxAttempts int
	// CreatedAt is when the job was enqueued, AvailableAt when this run became
	// ready, and StartedAt when it was claimed, by the database's clock.
	CreatedAt, AvailableAt, StartedAt time.Time
	// Deadline is the hard limit of this run: StartedAt + timeout + lease.
	// From then on it is taken back even when its worker still heartbeats.
	Deadline time.Time
	// Timeout and Lease are the queue's policy at the time of the claim.
	Timeout, Lease time.Duration
}

// ClaimRequest asks for ready jobs of a queue.
type ClaimRequest struct {
	// Queue is the queue to claim from.
	Queue string
	// Worker identifies the claiming process: a random UUID made when it
	// started, never a name that a later process could bear too. A worker id
	// serves one queue.
	Worker uuid.UUID
	// Pod is a name shown to people; nothing depends on it.
	Pod string
	// Limit is how many jobs to claim at most, 1 to 10,000; a claim brings no more than
	// make 8 MiB of payloads full, as the database stores them.
	Limit int
	// Kinds restricts the claim to these kinds; nil means all, and an empty
	// list that is not nil means none.
	Kinds []string
	// Alone names the kinds whose jobs are stored in a row each; nil means all,
	// and an empty list that is not nil means none. The other jobs of one claim
	// share rows, which is several times faster; but whoever finishes one of
	// them in a transaction holds up those that share its row until it ends.
	Alone []string
}

// Claim takes up to Limit ready jobs in order of priority, available time and
// id, gives each a new run token, and returns them in that order. It is one
// statement and, outside a transaction, committed when it returns. A job that another
// claim has locked is passed over; claims of 200 and more take turns in their queue,
// and wait 0.2 s for theirs at most.
//
// A claim also registers the worker and renews its lease when a good part of it
// is spent. A suspended queue yields none. Fewer than Limit, or none, is not an
// error. Errors: ErrQueueNotFound, ErrWorkerQueue, ErrInvalidArgument.
func (c *Client) Claim(ctx context.Context, db DB, req ClaimRequest) ([]Run, error) {
	if err := cmp.Or(checkText("Queue", req.Queue), checkText("Pod", req.Pod), checkText("Kinds", req.Kinds...),
		checkText("Alone", req.Alone...), checkLimit(req.Limit, 10_000)); err != nil {
		return nil, wrap("claim", err)
	}
	var kinds any
	if req.Kinds != nil {
		kinds = req.Kinds
	}
	var alone any
	if req.Alone != nil {
		alone = req.Alone
	}
	rows, err := db.Query(ctx, c.stmt.claim, req.Queue, req.Worker.String(), req.Limit, kinds, req.Pod, alone)
	if err != nil {
		return nil, wrap("claim", err)
	}
	defer rows.Close()
	var runs []Run
	batches := 0
	for rows.Next() {
		if runs, err = appendBatch(runs, rows, req.Queue); err != nil {
			return nil, wrap("claim", err)
		}
		batches++
	}
	if err := rows.Err(); err != nil {
		return nil, wrap("claim", err)
	}
	if batches > 1 {
		slices.SortFunc(runs, func(a, b Run) int {
			return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.AvailableAt.Compare(b.AvailableAt), cmp.Compare(a.ID, b.ID))
		})
	}
	return runs, nil
}

// appendBatch reads one row of claim_many.
func appendBatch(runs []Run, rows pgx.Rows, queue string) ([]Run, error) {
	var (
		key                    []byte
		ids                    []int64
		kinds                  []string
		payloads               [][]byte
		priorities             []int16
		attempts, maxAttempts  []int32
		createdAt, availableAt []time.Time
		startedAt, deadline    time.Time
		timeoutMS, leaseMS     int64
	)
	if err := rows.Scan(&key, &ids, &kinds, &payloads, &priorities, &attempts, &maxAttempts, &createdAt, &availableAt,
		&startedAt, &deadline, &timeoutMS, &leaseMS); err != nil {
		return nil, err
	}
	runs = slices.Grow(runs, len(ids))
	for slot, id := range ids {
		runs = append(runs, Run{
			Ref: Ref{ID: id, Token: joinToken(batchKey(key), slot)}, Queue: queue, Kind: kinds[slot],
			Payload: payloads[slot], Priority: priorities[slot],
			Attempt: int(attempts[slot]), MaxAttempts: int(maxAttempts[slot]),
			CreatedAt: createdAt[slot], AvailableAt: availableAt[slot], StartedAt: startedAt, Deadline: deadline,
			Timeout: time.Duration(timeoutMS) * time.Millisecond, Lease: time.Duration(leaseMS) * time.Millisecond,
		})
	}
	return runs, nil
}
