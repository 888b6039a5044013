package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestPolicyOf(t *testing.T) {
	base := queue.Policy{
		Lease: 30 * time.Second, Heartbeat: 10 * time.Second, Timeout: time.Minute, MaxAttempts: 5,
		BackoffBase: 5 * time.Second, BackoffMax: time.Hour, BackoffJitter: 20, BatchSize: 2000, MaxPayloadBytes: 262144,
		RetainSucceeded: 24 * time.Hour, RetainDead: 14 * 24 * time.Hour, Generation: 3, Owner: "ns/emails",
	}
	cases := map[string]struct {
		change func(*v1alpha1.JobQueue)
		want   func(*queue.Policy)
	}{
		"defaults":                     {},
		"suspended":                    {func(q *v1alpha1.JobQueue) { q.Spec.Suspend = true }, func(p *queue.Policy) { p.Suspended = true }},
		"a batch fills all slots":      {func(q *v1alpha1.JobQueue) { q.Spec.Worker.Slots = 2900 }, func(p *queue.Policy) { p.BatchSize = 2900 }},
		"a batch of the user's choice": {func(q *v1alpha1.JobQueue) { q.Spec.Batch.Size = new(int32(20)) }, func(p *queue.Policy) { p.BatchSize = 20 }},
		"zero is a choice": {
			func(q *v1alpha1.JobQueue) {
				q.Spec.Retry.JitterPercent = new(int32(0))
				q.Spec.Retention.FinishedSeconds = new(int64(0))
			},
			func(p *queue.Policy) { p.BackoffJitter, p.RetainSucceeded = 0, 0 },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			q, want := testQueue(), base
			if tc.change != nil {
				tc.change(q)
				tc.want(&want)
			}
			if diff := cmp.Diff(want, policyOf(q)); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
		})
	}
}
