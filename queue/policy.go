package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// Policy is how a queue treats its jobs. It is stored with the queue, so that
// workers in any language and the reaper see the same one.
type Policy struct {
	// Lease is how long a worker may be silent before its jobs are taken back.
	Lease time.Duration
	// Heartbeat is how often workers renew; it must be less than Lease.
	Heartbeat time.Duration
	// Timeout is how long a handler may run. A run is taken back for good at
	// Timeout + Lease after its claim, whether its worker heartbeats or not.
	Timeout time.Duration
	// MaxAttempts is how many runs of a job may begin, 1 to 1,000.
	MaxAttempts int
	// BackoffBase, BackoffMax and BackoffJitter give the delay before a retry:
	// min(BackoffMax, BackoffBase·2^(attempt-1)), ± BackoffJitter percent.
	BackoffBase, BackoffMax time.Duration
	BackoffJitter           int
	// BatchSize is how many jobs a worker should claim at once at most, 1 to
	// 10,000. It is advice to workers; the database does not enforce it.
	BatchSize int
	// MaxPayloadBytes bounds a job's payload as PostgreSQL prints it.
	MaxPayloadBytes int
	// RetainSucceeded is how long finished jobs (succeeded, discarded and
	// cancelled) are kept, RetainDead how long dead letters are.
	RetainSucceeded, RetainDead time.Duration
	// Suspended queues yield no jobs to claims; running jobs finish.
	Suspended bool
	// Generation and Owner guard against writers that are out of date or do
	// not own the queue; see SetPolicy.
	Generation int64
	Owner      string
}

// DefaultPolicy is the policy of a queue declared without further wishes; the
// JobQueue API has the same defaults.
func DefaultPolicy() Policy {
	return Policy{
		Lease:           30 * time.Second,
		Heartbeat:       10 * time.Second,
		Timeout:         time.Minute,
		MaxAttempts:     5,
		BackoffBase:     5 * time.Second,
		BackoffMax:      time.Hour,
		BackoffJitter:   20,
		BatchSize:       2000,
		MaxPayloadBytes: 256 * 1024,
		RetainSucceeded: 24 * time.Hour,
		RetainDead:      14 * 24 * time.Hour,
	}
}

// SetPolicy declares the queue, or replaces its policy. It takes effect with
// the next claim, heartbeat or finish.
//
// A queue with an owner accepts only that owner's policies (ErrQueueOwned), and
// from it none of an older generation than the stored one (ErrPolicyStale);
// the same generation again is accepted. Values out of range are refused with
// ErrInvalidArgument, each naming the field, its value and what is allowed.
func (c *Client) SetPolicy(ctx context.Context, db DB, queue string, p Policy) error {
	if err := cmp.Or(checkText("queue", queue), checkText("Owner", p.Owner)); err != nil {
		return wrap("set policy", err)
	}
	raw, err := json.Marshal(policyToWire(p))
	if err != nil {
		return wrap("set policy", err)
	}
	_, err = db.Exec(ctx, c.stmt.setPolicy, queue, string(raw))
	return wrap("set policy", err)
}

// GetPolicy returns the stored policy of a queue, or ErrQueueNotFound.
func (c *Client) GetPolicy(ctx context.Context, db DB, queue string) (Policy, error) {
	var raw []byte
	if err := db.QueryRow(ctx, c.stmt.getPolicy, queue).Scan(&raw); err != nil {
		return Policy{}, wrap("get policy", err)
	}
	p, err := parsePolicy(raw)
	return p, wrap("get policy", err)
}

// ReleaseOwner clears the queue's owner if it is the given one, so that another
// may take it over. Jobs and policy stay. A queue that is missing, or owned by
// someone else, is left alone without an error.
func (c *Client) ReleaseOwner(ctx context.Context, db DB, queue, owner string) error {
	_, err := db.Exec(ctx, c.stmt.releaseOwner, queue, owner)
	return wrap("release owner", err)
}

// policyWire is the policy as the SQL functions take and return it: durations
// are seconds, which may have fractions.
type policyWire struct {
	Lease           float64 `json:"lease_seconds"`
	Heartbeat       float64 `json:"heartbeat_seconds"`
	Timeout         float64 `json:"timeout_seconds"`
	MaxAttempts     int     `json:"max_attempts"`
	BackoffBase     float64 `json:"backoff_base_seconds"`
	BackoffMax      float64 `json:"backoff_max_seconds"`
	BackoffJitter   int     `json:"backoff_jitter_percent"`
	BatchSize       int     `json:"batch_size"`
	MaxPayloadBytes int     `json:"max_payload_bytes"`
	RetainSucceeded float64 `json:"retain_finished_seconds"`
	RetainDead      float64 `json:"retain_dead_seconds"`
	Suspended       bool    `json:"suspended"`
	Generation      int64   `json:"generation"`
	Owner           string  `json:"owner"`
}

func policyToWire(p Policy) policyWire {
	return policyWire{
		Lease: p.Lease.Seconds(), Heartbeat: p.Heartbeat.Seconds(), Timeout: p.Timeout.Seconds(),
		MaxAttempts: p.MaxAttempts,
		BackoffBase: p.BackoffBase.Seconds(), BackoffMax: p.BackoffMax.Seconds(), BackoffJitter: p.BackoffJitter,
		BatchSize: p.BatchSize, MaxPayloadBytes: p.MaxPayloadBytes,
		RetainSucceeded: p.RetainSucceeded.Seconds(), RetainDead: p.RetainDead.Seconds(),
		Suspended: p.Suspended, Generation: p.Generation, Owner: p.Owner,
	}
}

// parsePolicy decodes the JSON that the functions return.
func parsePolicy(raw []byte) (Policy, error) {
	if len(raw) == 0 {
		return Policy{}, errors.New("decode the policy: it is empty")
	}
	var w policyWire
	if err := json.Unmarshal(raw, &w); err != nil {
		return Policy{}, fmt.Errorf("decode the policy: %w", err)
	}
	return Policy{
		Lease: seconds(w.Lease), Heartbeat: seconds(w.Heartbeat), Timeout: seconds(w.Timeout),
		MaxAttempts: w.MaxAttempts,
		BackoffBase: seconds(w.BackoffBase), BackoffMax: seconds(w.BackoffMax), BackoffJitter: w.BackoffJitter,
		BatchSize: w.BatchSize, MaxPayloadBytes: w.MaxPayloadBytes,
		RetainSucceeded: seconds(w.RetainSucceeded), RetainDead: seconds(w.RetainDead),
		Suspended: w.Suspended, Generation: w.Generation, Owner: w.Owner,
	}, nil
}

// seconds converts to a Duration, rounded to microseconds, which is all that
// PostgreSQL keeps. What no Duration can hold becomes the longest one.
func seconds(s float64) time.Duration {
	const limit = math.MaxInt64 / 1e9
	switch {
	case s >= limit:
		return math.MaxInt64
	case s <= -limit:
		return math.MinInt64
	}
	return time.Duration(math.Round(s*1e6)) * time.Microsecond
}
