package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// NewJob describes a job to enqueue. Kind is required; the zero value of
// everything else is a sensible default.
type NewJob struct {
	// Kind names the handler; 1 to 128 characters, none of them a control character.
	Kind string
	// Payload is the handler's argument. It is marshalled with encoding/json;
	// a json.RawMessage is passed as it is, and nil becomes JSON null. Its
	// size, as PostgreSQL prints the jsonb, must be within the queue's limit.
	Payload any
	// Priority orders ready jobs: lower runs first.
	Priority int16
	// Delay postpones the job by the database's clock. It must not be
	// negative, and not be given together with RunAt.
	Delay time.Duration
	// RunAt is the time the job becomes ready; zero means now. A time in the
	// past is kept, and puts the job before younger ones of its priority.
	RunAt time.Time
	// MaxAttempts bounds the runs begun; 0 means the queue's policy.
	MaxAttempts int
}

// Enqueue adds jobs to a queue in one statement and returns their ids in the
// order given. No jobs is no work: it returns nil without asking the database.
//
// Inside a transaction of the caller's, at any isolation level, the jobs become
// visible when it commits and vanish when it rolls back. All are added or none.
//
// Errors: ErrQueueNotFound, ErrPayloadTooLarge, ErrInvalidArgument and
// ErrInvalidPayload; in a transaction they abort it, as every SQL error does.
func (c *Client) Enqueue(ctx context.Context, db DB, queue string, jobs ...NewJob) ([]int64, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	statement, args, err := c.enqueueStatement(queue, jobs)
	if err != nil {
		return nil, err
	}
	ids, err := queryIDs(ctx, db, len(jobs), statement, args...)
	return ids, wrapEnqueue(err)
}

// EnqueueInBatch adds Enqueue's statement to a batch of the caller's, so that jobs and
// what they belong to go to the database in one round trip. It does not send the batch:
// SendBatch of a pool or a connection runs all of it in one transaction, unless the batch
// says otherwise. No jobs add nothing.
//
// got, which may be nil, is called with the jobs' ids in the order given while the results
// of the batch are read, which its Close does. The ids are valid once the transaction has
// committed.
//
// Errors of arguments are returned at once, and then nothing is added to the batch; those
// of the database, Enqueue's, come from the results.
func (c *Client) EnqueueInBatch(batch *pgx.Batch, queue string, got func(ids []int64), jobs ...NewJob) error {
	if len(jobs) == 0 {
		return nil
	}
	statement, args, err := c.enqueueStatement(queue, jobs)
	if err != nil {
		return err
	}
	batch.Queue(statement, args...).Query(func(rows pgx.Rows) error {
		ids, err := collectIDs(rows, len(jobs))
		if err == nil && got != nil {
			got(ids)
		}
		return wrapEnqueue(err)
	})
	return nil
}

// enqueueStatement is the statement that adds jobs, of which there is one at least.
func (c *Client) enqueueStatement(queue string, jobs []NewJob) (string, []any, error) {
	if err := checkText("queue", queue); err != nil {
		return "", nil, wrap("enqueue", err)
	}
	args, err := enqueueArgs(queue, jobs)
	if err != nil {
		return "", nil, fmt.Errorf("queue: enqueue: %w", err)
	}
	if len(jobs) > 1 {
		return c.stmt.enqueueMany, args, nil
	}
	args = single(args)
	if !slices.ContainsFunc(args[3:], func(option any) bool { return option != nil }) {
		return c.stmt.enqueuePlain, args[:3], nil // what a parameter costs is seen where commits are fast
	}
	return c.stmt.enqueue, args, nil
}

// single turns the arrays of enqueue_many, of one element, into the arguments of
// enqueue, which costs a third less.
func single(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		switch a := arg.(type) {
		case []string:
			out[i] = a[0]
		case []int16:
			out[i] = a[0]
		case []float64:
			out[i] = a[0]
		case []*string:
			out[i] = *a[0]
		case []int32:
			out[i] = a[0]
		default:
			out[i] = arg // the queue's name, or null
		}
	}
	return out
}

// enqueueArgs turns jobs into the arrays of enqueue_many. An array that would
// hold only defaults is sent as NULL, which costs the database nothing.
func enqueueArgs(queue string, jobs []NewJob) ([]any, error) {
	kinds := make([]string, len(jobs))
	payloads := make([]string, len(jobs))
	priorities := make([]int16, len(jobs))
	delays := make([]float64, len(jobs))
	runAts := make([]*string, len(jobs))
	attempts := make([]int32, len(jobs))
	var havePriority, haveDelay, haveRunAt, haveAttempts bool

	for i, job := range jobs {
		payload, err := marshalPayload(job.Payload)
		if err != nil {
			return nil, fmt.Errorf("%w: job %d of kind %q: %w", ErrInvalidPayload, i, job.Kind, err)
		}
		if job.Delay != 0 && !job.RunAt.IsZero() {
			return nil, fmt.Errorf("%w: job %d of kind %q has both Delay %s and RunAt %s; give one of them",
				ErrInvalidArgument, i, job.Kind, job.Delay, job.RunAt.Format(time.RFC3339))
		}
		if !utf8.ValidString(job.Kind) || strings.ContainsRune(job.Kind, 0) {
			return nil, fmt.Errorf("%w: job %d has kind %q; allowed are 1 to 128 characters of UTF-8, none of them a control character",
				ErrInvalidArgument, i, job.Kind)
		}
		kinds[i], payloads[i] = job.Kind, payload
		priorities[i] = job.Priority
		havePriority = havePriority || job.Priority != 0
		delays[i] = job.Delay.Seconds()
		haveDelay = haveDelay || job.Delay != 0
		if !job.RunAt.IsZero() {
			at := formatTime(job.RunAt)
			runAts[i], haveRunAt = &at, true
		}
		if job.MaxAttempts != int(int32(job.MaxAttempts)) {
			return nil, fmt.Errorf("%w: job %d of kind %q has MaxAttempts %d; allowed are 0 (the queue's) to 1000",
				ErrInvalidArgument, i, job.Kind, job.MaxAttempts)
		}
		attempts[i] = int32(job.MaxAttempts)
		haveAttempts = haveAttempts || job.MaxAttempts != 0
	}

	args := []any{queue, kinds, payloads, nil, nil, nil, nil}
	if havePriority {
		args[3] = priorities
	}
	if haveDelay {
		args[4] = delays
	}
	if haveRunAt {
		args[5] = runAts
	}
	if haveAttempts {
		args[6] = attempts
	}
	return args, nil
}

// marshalPayload returns the payload as JSON text. A RawMessage is checked
// here, so that the error can say which job it was.
func marshalPayload(payload any) (string, error) {
	raw, ok := payload.(json.RawMessage)
	if !ok {
		encoded, err := json.Marshal(payload)
		if err != nil {
			return "", err
		}
		raw = encoded
	}
	if len(raw) == 0 {
		return "null", nil
	}
	if ok && (!json.Valid(raw) || !utf8.Valid(raw)) {
		return "", fmt.Errorf("payload of %d bytes is not valid JSON in UTF-8", len(raw))
	}
	if hasNullEscape(raw) {
		return "", fmt.Errorf("payload has \\u0000 in a string, which PostgreSQL cannot store in jsonb")
	}
	return string(raw), nil
}

// hasNullEscape reports whether valid JSON holds the escape \u0000, which an
// escaped backslash before a plain "u0000" is not.
func hasNullEscape(raw []byte) bool {
	for from := 0; ; {
		at := bytes.Index(raw[from:], []byte(`\u0000`))
		if at < 0 {
			return false
		}
		at += from
		backslashes := 0
		for i := at - 1; i >= 0 && raw[i] == '\\'; i-- {
			backslashes++
		}
		if backslashes%2 == 0 {
			return true
		}
		from = at + 1
	}
}
