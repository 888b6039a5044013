package queue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Failure reports a failed attempt.
type Failure struct {
	Ref
	// Error is the message to keep. It is cut to 4,000 characters; NUL bytes
	// and invalid UTF-8, which PostgreSQL cannot store, are replaced.
	Error string
	// Permanent buries the job at once, whatever attempts remain.
	Permanent bool
	// RetryAfter is the delay before the next attempt; 0 means the queue's
	// backoff. It must not be negative.
	RetryAfter time.Duration
}

// FailOutcome is what became of a job whose failure was accepted.
type FailOutcome struct {
	ID int64
	// Dead is true when the job went to the dead letters.
	Dead bool
	// RetryAt is when the next attempt is due; zero when Dead.
	RetryAt time.Time
}

// Succeed finishes runs as succeeded and returns the ids accepted, in no order. The others
// were refused: their lease was lost, and their results must be dropped.
//
// Inside a transaction the jobs are finished when it commits, together with
// whatever else it wrote, or not at all; this is how a handler in PostgreSQL
// gets exactly-once effects. Check there that the id was accepted before
// committing. Runs that share a row (ClaimRequest.Alone) wait for each other then; a
// handler of package worker calls Job.Succeed instead, by which the worker learns to
// keep the jobs of its kind apart. worker may be uuid.Nil; the token alone decides then.
func (c *Client) Succeed(ctx context.Context, db DB, worker uuid.UUID, refs []Ref) ([]int64, error) {
	accepted, _, err := c.succeed(ctx, db, worker, refs, nil, false)
	return accepted, err
}

// TrySucceed is Succeed for those who have many results to write and do not want
// to wait for one: rows that another session has locked are passed over, and the
// runs in them are returned as locked. Nothing has become of those; try them again.
//
// took says how long each run's handler took; nil stands for the time since the claim, in
// which a run may have waited for its turn. From it follows the queue's mean service
// time, by which the number of workers is planned. It must be nil or as long as refs.
func (c *Client) TrySucceed(ctx context.Context, db DB, worker uuid.UUID, refs []Ref, took []time.Duration) (accepted, locked []int64, err error) {
	if took != nil && len(took) != len(refs) {
		return nil, nil, fmt.Errorf("queue: succeed: %w: took has %d elements; allowed are nil or as many as refs, which are %d",
			ErrInvalidArgument, len(took), len(refs))
	}
	return c.succeed(ctx, db, worker, refs, took, true)
}

func (c *Client) succeed(ctx context.Context, db DB, worker uuid.UUID, refs []Ref, took []time.Duration, skipLocked bool) (accepted, locked []int64, err error) {
	if len(refs) == 0 {
		return nil, nil, nil
	}
	batches := byBatch(refs, took)
	keys, runs, idXors := make([][]byte, len(batches)), make([]string, len(batches)), make([]int64, len(batches))
	var ms []float64
	byKey := make(map[batchKey]*batchRuns, len(batches))
	for i, b := range batches {
		keys[i], runs[i], idXors[i] = b.key[:], string(b.bits), b.idXor
		if took != nil {
			ms = append(ms, b.took.Seconds()*1000)
		}
		byKey[b.key] = b
	}
	rows, err := db.Query(ctx, c.stmt.succeed, keys, runs, idXors, workerArg(worker), skipLocked, ms)
	if err != nil {
		return nil, nil, wrap("succeed", err)
	}
	defer rows.Close()
	accepted = make([]int64, 0, len(refs))
	for rows.Next() {
		var key []byte
		var bits *string
		if err := rows.Scan(&key, &bits); err != nil {
			return nil, nil, wrap("succeed", err)
		}
		if b := byKey[batchKey(key)]; bits == nil {
			locked = b.named(string(b.bits), locked)
		} else {
			accepted = b.named(*bits, accepted)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, nil, wrap("succeed", err)
	}
	return accepted, locked, nil
}

// Fail records failed attempts. A job with attempts left is scheduled again,
// after RetryAfter or min(BackoffMax, BackoffBase·2^(attempt-1)) ± jitter;
// one without, or whose failure is permanent, goes to the dead letters. It
// returns an outcome for each failure accepted; the others were refused.
func (c *Client) Fail(ctx context.Context, db DB, worker uuid.UUID, failures []Failure) ([]FailOutcome, error) {
	if len(failures) == 0 {
		return nil, nil
	}
	ids := make([]int64, len(failures))
	tokens := make([]string, len(failures))
	messages := make([]string, len(failures))
	permanent := make([]bool, len(failures))
	retryAfter := make([]float64, len(failures))
	for i, f := range failures {
		ids[i], tokens[i] = f.ID, f.Token.String()
		messages[i] = cleanText(f.Error)
		permanent[i] = f.Permanent
		retryAfter[i] = f.RetryAfter.Seconds()
	}
	rows, err := db.Query(ctx, c.stmt.fail, ids, tokens, messages, permanent, retryAfter, workerArg(worker))
	if err != nil {
		return nil, wrap("fail", err)
	}
	defer rows.Close()
	outcomes := make([]FailOutcome, 0, len(failures))
	for rows.Next() {
		var out FailOutcome
		var retryAt *time.Time
		if err := rows.Scan(&out.ID, &out.Dead, &retryAt); err != nil {
			return nil, wrap("fail", err)
		}
		if retryAt != nil {
			out.RetryAt = *retryAt
		}
		outcomes = append(outcomes, out)
	}
	return outcomes, wrap("fail", rows.Err())
}

// Snooze puts off a run.
type Snooze struct {
	Ref
	// Delay is 0 to 100 years. 0 makes the job pending at once, behind those that wait.
	Delay time.Duration
}

// Snooze puts runs off without counting the attempt, and returns the ids accepted.
func (c *Client) Snooze(ctx context.Context, db DB, worker uuid.UUID, snoozes []Snooze) ([]int64, error) {
	if len(snoozes) == 0 {
		return nil, nil
	}
	ids, tokens := make([]int64, len(snoozes)), make([]string, len(snoozes))
	delays := make([]float64, len(snoozes))
	for i, s := range snoozes {
		ids[i], tokens[i], delays[i] = s.ID, s.Token.String(), s.Delay.Seconds()
	}
	accepted, err := queryIDs(ctx, db, len(ids), c.stmt.snooze, ids, tokens, delays, workerArg(worker))
	return accepted, wrap("snooze", err)
}

// Discard is a run's end by a business rule, which is neither a success nor a failure.
type Discard struct {
	Ref
	// Reason is kept with the job. It is cut to 4,000 characters; what PostgreSQL cannot
	// store is replaced, as in Failure.Error.
	Reason string
}

// Discard finishes runs as discarded and returns the ids accepted.
func (c *Client) Discard(ctx context.Context, db DB, worker uuid.UUID, discards []Discard) ([]int64, error) {
	if len(discards) == 0 {
		return nil, nil
	}
	ids, tokens := make([]int64, len(discards)), make([]string, len(discards))
	reasons := make([]string, len(discards))
	for i, d := range discards {
		ids[i], tokens[i], reasons[i] = d.ID, d.Token.String(), cleanText(d.Reason)
	}
	accepted, err := queryIDs(ctx, db, len(ids), c.stmt.discard, ids, tokens, reasons, workerArg(worker))
	return accepted, wrap("discard", err)
}

// Cancel finishes jobs as cancelled, whatever live state they are in, and
// returns the ids that were live. A worker that runs one of them learns of it
// by its next heartbeat, and its result is refused. Nothing is changed, and the error
// has SQLSTATE 55P03, when another session has kept one of the jobs' rows locked for
// half a second.
func (c *Client) Cancel(ctx context.Context, db DB, ids []int64, reason string) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	accepted, err := queryIDs(ctx, db, len(ids), c.stmt.cancel, ids, cleanText(reason))
	return accepted, wrap("cancel", err)
}

// cleanText makes text storable: PostgreSQL refuses NUL and invalid UTF-8, and
// a failure that cannot be recorded because of its message helps nobody.
func cleanText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}
