package queue

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPolicyRoundTrip(t *testing.T) {
	cases := map[string]Policy{
		"default": DefaultPolicy(),
		"zero":    {},
		"all": {
			Lease: 1234567 * time.Microsecond, Heartbeat: time.Millisecond, Timeout: 720 * time.Hour, MaxAttempts: 2,
			BackoffBase: 1, BackoffMax: time.Hour, BackoffJitter: 3, BatchSize: 4, MaxPayloadBytes: 5,
			RetainSucceeded: 6 * time.Hour, RetainDead: 87600 * time.Hour, Suspended: true, Generation: 1<<63 - 1, Owner: "ü/\"'",
		},
	}
	for name, p := range cases {
		t.Run(name, func(t *testing.T) {
			raw, err := json.Marshal(policyToWire(p))
			if err != nil {
				t.Fatal(err)
			}
			got, err := parsePolicy(raw)
			if err != nil {
				t.Fatal(err)
			}
			want := p
			want.BackoffBase = p.BackoffBase.Round(time.Microsecond) // PostgreSQL keeps microseconds
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParsePolicyErrors(t *testing.T) {
	for _, raw := range []string{"", "{", `{"lease_seconds": "30"}`} {
		if _, err := parsePolicy([]byte(raw)); err == nil {
			t.Errorf("parsePolicy(%q): no error", raw)
		}
	}
}

func TestParseSample(t *testing.T) {
	got, err := parseSample([]byte(`{"taken_at": "2030-01-02T03:04:05.6+00:00", "max_connections": 100, "reserved_connections": 3,
		"our_connections": 4, "elsewhere_connections": 6, "other_connections": 5, "in_recovery": true,
		"database": "app", "server_started_at": "2030-01-01T00:00:00.123456+02:00", "queues": {"q": {"pending": 1, "pending_capped": true,
		"scheduled": 2, "scheduled_capped": true, "due_soon": 3, "running": 4, "dead": 5, "oldest_age_seconds": 1.5, "workers": 6,
		"claimed": 7, "succeeded": 8, "failed": 9, "lost": 10, "overdue": 6, "discarded": 11, "cancelled": 12, "execution_ms": 13,
		"generation": 14, "suspended": true}, "empty": {}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Sample{
		TakenAt:        time.Date(2030, 1, 2, 3, 4, 5, 600_000_000, time.UTC),
		MaxConnections: 100, ReservedConnections: 3, OurConnections: 4, ElsewhereConnections: 6, OtherConnections: 5, InRecovery: true,
		Database: "app", ServerStartedAt: time.Date(2029, 12, 31, 22, 0, 0, 123_456_000, time.UTC),
		Queues: map[string]QueueSample{
			"q": {
				Pending: 1, PendingCapped: true, Scheduled: 2, ScheduledCapped: true, DueSoon: 3, Running: 4, Dead: 5,
				OldestAge: 1500 * time.Millisecond, Workers: 6, Claimed: 7, Succeeded: 8, Failed: 9, Lost: 10, Overdue: 6, Discarded: 11,
				Cancelled: 12, ExecutionMillis: 13, PolicyGeneration: 14, Suspended: true,
			},
			"empty": {},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sample (-want +got):\n%s", diff)
	}
	if _, err := parseSample([]byte("[]")); err == nil {
		t.Error("parseSample([]): no error")
	}
}
