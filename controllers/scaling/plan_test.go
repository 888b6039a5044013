package scaling

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// basePolicy is what a JobQueue with nothing but defaults has.
func basePolicy() Policy {
	return Policy{
		MinReplicas: 0, MaxReplicas: 10, Slots: 10,
		TargetAge: 30 * time.Second, StartUp: 5 * time.Second, Stabilization: time.Minute,
	}
}

func ptr[T any](v T) *T { return &v }

func TestPlan(t *testing.T) {
	type want struct {
		Replicas, Needed, Demand int32
		Reason                   string
		Limits                   []string
	}
	measured := Rates{Service: time.Second}
	cases := map[string]struct {
		policy func(*Policy)
		queue  *Queue
		rates  Rates
		fleet  Fleet
		past   []Recommendation
		budget *Allowance
		want   want
	}{
		"an empty queue without pods stays at zero": {
			queue: &Queue{},
			want:  want{Reason: NeedIdle},
		},
		"S3: a first job brings one pod": {
			queue: &Queue{Pending: 1},
			want:  want{Replicas: 1, Needed: 1, Demand: 1, Reason: NeedBacklog},
		},
		"an unmeasured backlog begins with one pod": {
			queue: &Queue{Pending: 10000, PendingCapped: true},
			want: want{Replicas: 1, Needed: 63, Demand: 1, Reason: LimitScaleUpStep,
				Limits: []string{LimitScaleUpStep}},
		},
		"jobs that wait in workers' memory are no reason for more pods": {
			queue: &Queue{Running: 84}, rates: measured, fleet: Fleet{Replicas: 3, Ready: 3},
			want: want{Replicas: 3, Needed: 3, Demand: 3, Reason: NeedRunning},
		},
		"a measured backlog is worked off in f·target - start-up": {
			// 160 jobs of 1 s in 0.7·30-5 = 16 s take 10 slots, one pod.
			queue: &Queue{Pending: 160}, rates: measured, fleet: Fleet{Replicas: 1, Ready: 1},
			want: want{Replicas: 1, Needed: 1, Demand: 1, Reason: NeedBacklog},
		},
		"age shortens the time that is left": {
			// 160 jobs in 16-8 = 8 s take 20 slots.
			queue: &Queue{Pending: 160, OldestAge: 8 * time.Second}, rates: measured, fleet: Fleet{Replicas: 1, Ready: 1},
			want: want{Replicas: 2, Needed: 2, Demand: 2, Reason: NeedBacklog},
		},
		"a late backlog is worked off in a tenth of the target": {
			// 160 jobs in 3 s take 53.3 slots.
			queue: &Queue{Pending: 160, OldestAge: time.Hour}, rates: measured, fleet: Fleet{Replicas: 2, Ready: 2},
			want: want{Replicas: 6, Needed: 6, Demand: 6, Reason: NeedBacklog},
		},
		"long jobs never need more slots than there are jobs": {
			queue: &Queue{Pending: 7, OldestAge: time.Hour}, rates: Rates{Service: time.Hour},
			want: want{Replicas: 1, Needed: 1, Demand: 1, Reason: NeedBacklog},
		},
		"arrivals keep pods though nothing waits": {
			// 25/s of 1 s: 25 + 5 slots.
			queue: &Queue{}, rates: Rates{Service: time.Second, Arrivals: 25}, fleet: Fleet{Replicas: 3, Ready: 3},
			want: want{Replicas: 3, Needed: 3, Demand: 3, Reason: NeedArrivals},
		},
		"a rise counts before the minute's rate shows it": {
			queue: &Queue{}, rates: Rates{Service: time.Second, Arrivals: 5, FastArrivals: 40}, fleet: Fleet{Replicas: 1, Ready: 1},
			want: want{Replicas: 4, Needed: 4, Demand: 4, Reason: NeedBurst},
		},
		"running jobs are load whatever the rates say": {
			queue: &Queue{Running: 31}, rates: measured, fleet: Fleet{Replicas: 4, Ready: 4},
			want: want{Replicas: 4, Needed: 4, Demand: 4, Reason: NeedRunning},
		},
		"jobs that run without end are not short": {
			queue: &Queue{Pending: 40, Running: 10}, fleet: Fleet{Replicas: 1, Ready: 1},
			rates: Rates{Service: 0, ServiceAtLeast: 10 * time.Minute},
			want: want{Replicas: 3, Needed: 4, Demand: 3, Reason: LimitScaleUpStep,
				Limits: []string{LimitScaleUpStep}},
		},
		"S6: without a sample replicas hold": {
			fleet: Fleet{Replicas: 7, Ready: 0},
			want:  want{Replicas: 7, Needed: 7, Demand: 7, Reason: LimitSampleStale},
		},
		"S6: without a sample the minimum adds no pods": {
			policy: func(p *Policy) { p.MinReplicas = 3 },
			want:   want{Reason: LimitSampleStale},
		},
		"without a sample a lowered maximum still holds": {
			policy: func(p *Policy) { p.MaxReplicas = 2 }, fleet: Fleet{Replicas: 7},
			want: want{Replicas: 2, Needed: 7, Demand: 2, Reason: LimitMaxReplicas, Limits: []string{LimitMaxReplicas}},
		},
		"P4: suspended with running jobs stays": {
			policy: func(p *Policy) { p.Suspended = true }, queue: &Queue{Pending: 500, Running: 3}, rates: measured,
			fleet: Fleet{Replicas: 2, Ready: 2},
			want: want{Replicas: 2, Needed: 4, Demand: 2, Reason: LimitSuspended,
				Limits: []string{LimitSuspended}},
		},
		"P4: suspended and drained goes to the minimum": {
			policy: func(p *Policy) { p.Suspended = true; p.MinReplicas = 1 }, queue: &Queue{Pending: 500}, rates: measured,
			fleet: Fleet{Replicas: 5, Ready: 5},
			want: want{Replicas: 1, Needed: 4, Demand: 1, Reason: LimitMinReplicas,
				Limits: []string{LimitSuspended, LimitMinReplicas}},
		},
		"P8: a manual number replaces the need": {
			policy: func(p *Policy) { p.Manual = ptr[int32](12) }, queue: &Queue{}, fleet: Fleet{Replicas: 1},
			want: want{Replicas: 12, Demand: 12, Reason: LimitManualReplicas, Limits: []string{LimitManualReplicas}},
		},
		"a manual number needs no sample": {
			policy: func(p *Policy) { p.Manual = ptr[int32](2) }, fleet: Fleet{Replicas: 2},
			want: want{Replicas: 2, Needed: 2, Demand: 2, Reason: LimitManualReplicas},
		},
		"a manual number stays within the budget": {
			policy: func(p *Policy) { p.Manual = ptr[int32](12) }, queue: &Queue{}, budget: &Allowance{Replicas: 5},
			want: want{Replicas: 5, Demand: 12, Reason: LimitBudget, Limits: []string{LimitManualReplicas, LimitBudget}},
		},
		"a job due soon keeps the last pod": {
			queue: &Queue{DueSoon: 3}, fleet: Fleet{Replicas: 1, Ready: 1},
			want: want{Replicas: 1, Demand: 1, Reason: LimitToZero, Limits: []string{LimitToZero}},
		},
		"hysteresis keeps a pod whose slots are nearly needed": {
			// 19 slots fit 2 pods, but 19·1.1 do not.
			queue: &Queue{Running: 19}, rates: measured, fleet: Fleet{Replicas: 3, Ready: 3},
			want: want{Replicas: 3, Needed: 2, Demand: 3, Reason: LimitHysteresis, Limits: []string{LimitHysteresis}},
		},
		"S4: the past window keeps replicas up": {
			queue: &Queue{}, rates: measured, fleet: Fleet{Replicas: 5, Ready: 5},
			past: []Recommendation{{At: t0.Add(-61 * time.Second), Replicas: 5}, {At: t0.Add(-30 * time.Second), Replicas: 3}},
			want: want{Replicas: 3, Demand: 3, Reason: LimitStabilization, Limits: []string{LimitStabilization}},
		},
		"S4: starting pods count as capacity": {
			// Late by now, but 160 jobs in 21 s take one pod, and four are starting.
			queue: &Queue{Pending: 160, OldestAge: 25 * time.Second}, rates: measured, fleet: Fleet{Replicas: 4, Ready: 0},
			want: want{Replicas: 4, Needed: 6, Demand: 4, Reason: LimitStartingPods, Limits: []string{LimitStartingPods}},
		},
		"S8: failures that dominate add no pods": {
			queue: &Queue{Pending: 5000}, rates: Rates{Service: time.Second, Ended: 100, Failed: 60}, fleet: Fleet{Replicas: 2, Ready: 2},
			want: want{Replicas: 2, Needed: 32, Demand: 2, Reason: LimitFailuresDominate, Limits: []string{LimitFailuresDominate}},
		},
		"a step is twice the ready pods and a few": {
			queue: &Queue{Pending: 5000}, rates: measured, fleet: Fleet{Replicas: 2, Ready: 2},
			want: want{Replicas: 8, Needed: 32, Demand: 8, Reason: LimitScaleUpStep, Limits: []string{LimitScaleUpStep}},
		},
		"the minimum raises": {
			policy: func(p *Policy) { p.MinReplicas = 2 }, queue: &Queue{},
			want: want{Replicas: 2, Demand: 2, Reason: LimitMinReplicas, Limits: []string{LimitMinReplicas}},
		},
		"the maximum cuts": {
			queue: &Queue{Pending: 5000}, rates: measured, fleet: Fleet{Replicas: 9, Ready: 9},
			want: want{Replicas: 10, Needed: 32, Demand: 10, Reason: LimitMaxReplicas,
				Limits: []string{LimitScaleUpStep, LimitMaxReplicas}},
		},
		"B4: the budget cuts even the minimum": {
			policy: func(p *Policy) { p.MinReplicas = 4 }, queue: &Queue{}, budget: &Allowance{Replicas: 1, Message: "b"},
			want: want{Replicas: 1, Demand: 4, Reason: LimitBudget, Limits: []string{LimitMinReplicas, LimitBudget}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := basePolicy()
			if tc.policy != nil {
				tc.policy(&p)
			}
			d := Plan(Input{Now: t0, Policy: p, Queue: tc.queue, Rates: tc.rates, Fleet: tc.fleet, Past: tc.past, Budget: tc.budget})
			got := want{Replicas: d.Replicas, Needed: d.Needed, Demand: d.Demand, Reason: d.Reason}
			for _, l := range d.Limits {
				got.Limits = append(got.Limits, l.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s\n%+v", diff, d)
			}
		})
	}
}

func TestMemoryKeepsWhatAMaximumCanDependOn(t *testing.T) {
	m := NewMemory(t0, 5)
	for i, n := range []int32{2, 4, 3, 3, 1} {
		m.Remember(Recommendation{At: t0.Add(time.Duration(i+1) * 10 * time.Second), Replicas: n}, time.Minute)
	}
	at := func(s int, n int32) Recommendation {
		return Recommendation{At: t0.Add(time.Duration(s) * time.Second), Replicas: n}
	}
	want := []Recommendation{at(0, 5), at(20, 4), at(40, 3), at(50, 1)}
	if diff := cmp.Diff(want, m.Past()); diff != "" {
		t.Errorf("past (-want +got):\n%s", diff)
	}
	m.Remember(at(75, 0), time.Minute)
	if diff := cmp.Diff([]Recommendation{at(20, 4), at(40, 3), at(50, 1), at(75, 0)}, m.Past()); diff != "" {
		t.Errorf("after the window (-want +got):\n%s", diff)
	}
}

// S10: an operator that has just started finds replicas in place and keeps them.
func TestRestartKeepsReplicasForAWindow(t *testing.T) {
	m := NewMemory(t0, 6)
	for _, step := range []struct {
		after time.Duration
		want  int32
	}{{0, 6}, {30 * time.Second, 6}, {60 * time.Second, 6}, {61 * time.Second, 0}} {
		now := t0.Add(step.after)
		d := Plan(Input{Now: now, Policy: basePolicy(), Queue: &Queue{}, Fleet: Fleet{Replicas: 6, Ready: 6}, Past: m.Past()})
		m.Remember(Recommendation{At: now, Replicas: d.Recommended}, time.Minute)
		if d.Replicas != step.want {
			t.Errorf("after %s: %d replicas, want %d", step.after, d.Replicas, step.want)
		}
	}
}
