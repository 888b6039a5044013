package queue

import (
	"cmp"
	"context"
)

// ReapRequest says what to reap.
type ReapRequest struct {
	// Queue restricts the work to one queue; "" means all. Runs whose worker has
	// unregistered are looked for in all queues either way.
	Queue string
	// Kinds restricts expired runs to jobs of these kinds; nil means all. Whoever knows
	// the others takes those back.
	Kinds []string
	// Limit bounds the rows of each kind of work in this call, 1 to 100,000;
	// 0 means 1,000. Ask again while ReapResult.More is true.
	Limit int
	// Retention also deletes finished jobs and dead letters that are older
	// than their queue's policy keeps them.
	Retention bool
}

// ReapResult counts what one call did.
type ReapResult struct {
	// Returned are expired runs scheduled again, and runs of workers that have
	// unregistered, which are pending again; Buried are those expired that had no
	// attempts left and went to the dead letters.
	Returned, Buried int64
	// Promoted are scheduled jobs that came due and are pending now.
	Promoted int64
	// WorkersRemoved are workers whose lease had run out.
	WorkersRemoved int64
	// FinishedPurged and DeadPurged are rows past their retention.
	FinishedPurged, DeadPurged int64
	// More is true when a limit was reached and another call has work to do.
	More bool
}

// Reap takes back runs whose lease or deadline has passed, promotes scheduled
// jobs that are due, and, if asked, applies retention. It never waits for a
// job that someone else has locked; any number of reapers may run at once.
func (c *Client) Reap(ctx context.Context, db DB, req ReapRequest) (ReapResult, error) {
	if err := cmp.Or(checkText("Queue", req.Queue), checkText("Kinds", req.Kinds...), checkLimit(req.Limit, 100_000)); err != nil {
		return ReapResult{}, wrap("reap", err)
	}
	var queue any
	if req.Queue != "" {
		queue = req.Queue
	}
	limit := req.Limit
	if limit == 0 {
		limit = 1000
	}
	var kinds any
	if req.Kinds != nil {
		kinds = req.Kinds
	}
	var r ReapResult
	err := db.QueryRow(ctx, c.stmt.reap, queue, limit, req.Retention, kinds).Scan(&r.Returned, &r.Buried,
		&r.Promoted, &r.WorkersRemoved, &r.FinishedPurged, &r.DeadPurged, &r.More)
	return r, wrap("reap", err)
}
