package controllers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

func TestQueueChange(t *testing.T) {
	base := func() v1alpha1.JobQueueStatus {
		return v1alpha1.JobQueueStatus{
			ObservedGeneration: 1, PolicyGeneration: 1, Replicas: 2, ReadyReplicas: 2,
			Conditions: []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready", Message: "m"}},
			Sample:     &v1alpha1.QueueSample{TakenAt: metav1.Unix(100, 0), Pending: 5},
			Decision:   &v1alpha1.ScalingDecision{Replicas: 2, Needed: 2, Reason: "Backlog"},
		}
	}
	cases := map[string]struct {
		change func(*v1alpha1.JobQueueStatus)
		want   importance
	}{
		"nothing":            {func(*v1alpha1.JobQueueStatus) {}, sameStatus},
		"a newer sample":     {func(s *v1alpha1.JobQueueStatus) { s.Sample.TakenAt = metav1.Unix(105, 0) }, newerSample},
		"other numbers":      {func(s *v1alpha1.JobQueueStatus) { s.Sample.Pending = 6 }, otherNumbers},
		"another message":    {func(s *v1alpha1.JobQueueStatus) { s.Conditions[0].Message = "n" }, otherNumbers},
		"another need":       {func(s *v1alpha1.JobQueueStatus) { s.Decision.Needed = 3 }, otherNumbers},
		"another decision":   {func(s *v1alpha1.JobQueueStatus) { s.Decision.Replicas = 3 }, otherState},
		"another pod":        {func(s *v1alpha1.JobQueueStatus) { s.ReadyReplicas = 1 }, otherState},
		"another condition":  {func(s *v1alpha1.JobQueueStatus) { s.Conditions[0].Status = "False" }, otherState},
		"a policy in force":  {func(s *v1alpha1.JobQueueStatus) { s.PolicyGeneration = 2 }, otherState},
		"no sample any more": {func(s *v1alpha1.JobQueueStatus) { s.Sample = nil }, otherState},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			after := base()
			tc.change(&after)
			if got := queueChange(base(), after); got != tc.want {
				t.Errorf("importance %d, want %d", got, tc.want)
			}
		})
	}
}

// P7: numbers alone are written rarely, states at once, and after a start nothing
// that is only newer.
func TestStatusClock(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := newStatusClock()
	q := testQueue()
	q.UID = "uid"
	for _, step := range []struct {
		after time.Duration
		i     importance
		want  bool
	}{
		{0, otherNumbers, false},
		{5 * time.Second, newerSample, false},
		{10 * time.Second, otherState, true},
		{14 * time.Second, otherNumbers, false},
		{15 * time.Second, otherNumbers, true},
		{16 * time.Second, sameStatus, false},
		{5*time.Minute + 14*time.Second, newerSample, false},
		{5*time.Minute + 15*time.Second, newerSample, true},
		{30 * time.Minute, sameStatus, false},
	} {
		if got := c.due(q, step.i, start.Add(step.after)); got != step.want {
			t.Errorf("after %s, importance %d: due %v", step.after, step.i, got)
		}
	}
	again := q.DeepCopy()
	again.UID = "another"
	if c.due(again, otherNumbers, start.Add(time.Hour)) {
		t.Error("the first sight of a new object of that name is no change")
	}
	c.forget(keyOf(q))
	if len(c.written) != 0 {
		t.Errorf("%d objects are known after all were forgotten", len(c.written))
	}
}

// The API server's clock may be an hour ahead or behind: only this process's counts.
func TestDeletionsWaitByOneClock(t *testing.T) {
	d := newDeletions()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		q := testQueue(func(q *v1alpha1.JobQueue) { q.DeletionTimestamp = &metav1.Time{Time: now.Add(skew)} })
		for _, after := range []time.Duration{0, time.Second, releaseWithin} {
			if got := d.waited(q, now.Add(after)); got != after {
				t.Errorf("with the API server's clock off by %s, %s after it was first seen: waited %s", skew, after, got)
			}
		}
		d.forget(keyOf(q))
	}
	if len(d.since) != 0 {
		t.Errorf("%d deletions are known after all were forgotten", len(d.since))
	}
}

func TestSettleNames(t *testing.T) {
	at := func(name, queue string, second int64) v1alpha1.JobQueue {
		q := *testQueue(func(q *v1alpha1.JobQueue) { q.Name, q.Spec.QueueName = name, queue })
		q.CreationTimestamp = metav1.Unix(second, 0)
		return q
	}
	winners, losers := settleNames([]v1alpha1.JobQueue{at("young", "x", 2), at("old", "x", 1), at("alone", "", 3), at("b", "y", 1), at("a", "y", 1)})
	if len(winners) != 3 || losers["young"] != "old" || losers["b"] != "a" || len(losers) != 2 {
		t.Errorf("winners %d, losers %v", len(winners), losers)
	}
}
