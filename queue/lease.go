package queue

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Heartbeat is what a heartbeat learns.
type Heartbeat struct {
	// Lost are the tokens of those runs among the held that are not this worker's
	// any more: their lease was taken back, or the job was cancelled, or it was
	// finished while the heartbeat was under way. Cancel their handlers and
	// drop their results; runs that the caller has finished meanwhile mean nothing.
	Lost []uuid.UUID
	// LeaseExpiresAt is when the renewed lease ends unless renewed again, and
	// Now the time of the heartbeat, both by the database's clock: subtract
	// them rather than comparing with a local clock.
	LeaseExpiresAt, Now time.Time
	// Policy is the queue's policy as it stands.
	Policy Policy
}

// Heartbeat renews the worker's lease, which is the lease of every job it
// holds, and reports which of the held runs are lost. One row is written,
// whatever the number of jobs. A worker that was removed because its lease had
// run out is registered anew. Errors: ErrQueueNotFound, ErrWorkerQueue.
func (c *Client) Heartbeat(ctx context.Context, db DB, worker uuid.UUID, queue string, held []Ref) (Heartbeat, error) {
	if err := checkText("queue", queue); err != nil {
		return Heartbeat{}, wrap("heartbeat", err)
	}
	ids, tokens := refArrays(held)
	var hb Heartbeat
	var lost []string
	var policy []byte
	err := db.QueryRow(ctx, c.stmt.heartbeat, worker.String(), queue, ids, tokens).
		Scan(&lost, &hb.LeaseExpiresAt, &hb.Now, &policy)
	if err != nil {
		return Heartbeat{}, wrap("heartbeat", err)
	}
	for _, text := range lost {
		token, err := uuid.Parse(text)
		if err != nil {
			return Heartbeat{}, wrap("heartbeat", err)
		}
		hb.Lost = append(hb.Lost, token)
	}
	hb.Policy, err = parsePolicy(policy)
	return hb, wrap("heartbeat", err)
}

// Release gives runs back unfinished: they become pending at once, keep their
// place in the order, and the attempt is not counted. It returns the ids
// accepted; the others were no longer owned.
func (c *Client) Release(ctx context.Context, db DB, worker uuid.UUID, refs []Ref) ([]int64, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	ids, tokens := refArrays(refs)
	accepted, err := queryIDs(ctx, db, len(refs), c.stmt.release, ids, tokens, workerArg(worker))
	return accepted, wrap("release", err)
}

// Disown gives back every run of the worker but those held, as Release does, and
// returns their ids. It is for the runs of a claim whose answer was lost, while
// others of the same worker go on. Call it when no claim of the worker is under
// way, and claim under another id from then on; call it again with each
// heartbeat, because the lost claim may end in the database later, and rows that
// another session has locked are passed over. An unknown worker is not an error.
func (c *Client) Disown(ctx context.Context, db DB, worker uuid.UUID, held []Ref) ([]int64, error) {
	ids, tokens := refArrays(held)
	back, err := queryIDs(ctx, db, 0, c.stmt.disown, worker.String(), ids, tokens)
	return back, wrap("disown", err)
}

// Unregister releases every run the worker still holds and removes its row.
// Call it last when shutting down. An unknown worker is not an error. What another
// session has locked then is released by a Reap of any queue, within about ten seconds.
func (c *Client) Unregister(ctx context.Context, db DB, worker uuid.UUID) error {
	_, err := db.Exec(ctx, c.stmt.unregister, worker.String())
	return wrap("unregister", err)
}

// workerArg is the worker as an SQL argument: uuid.Nil is NULL, which means
// that the run's token alone decides.
func workerArg(worker uuid.UUID) any {
	if worker == uuid.Nil {
		return nil
	}
	return worker.String()
}

// refArrays splits refs into the two arrays that the protocol takes.
func refArrays(refs []Ref) ([]int64, []string) {
	ids := make([]int64, len(refs))
	tokens := make([]string, len(refs))
	for i, ref := range refs {
		ids[i], tokens[i] = ref.ID, ref.Token.String()
	}
	return ids, tokens
}
