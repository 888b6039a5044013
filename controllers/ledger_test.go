package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
)

func TestBudgetQueue(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	type ask struct {
		ago      time.Duration
		replicas int32
	}
	pods := func(live, terminating int32, templates map[string]int32) *fleet {
		return &fleet{live: live, terminating: terminating, connections: 3 * (live + terminating), templates: templates}
	}
	cases := map[string]struct {
		demand    int32
		wantsRoll bool
		unknown   bool
		asked     []ask
		replicas  int32
		fleet     *fleet
		want      budget.Queue
	}{
		"after a start a queue wants what it has": {
			unknown: true, replicas: 4, fleet: pods(4, 0, map[string]int32{"new": 4}),
			want: budget.Queue{Demand: 4, Live: 4, Held: 12},
		},
		"pods that are still to come are held": {
			demand: 6, asked: []ask{{0, 6}}, replicas: 2, fleet: pods(2, 0, map[string]int32{"new": 2}),
			want: budget.Queue{Demand: 6, Live: 6, Held: 18},
		},
		"a number just lowered may still bring pods": {
			demand: 1, asked: []ask{{4 * time.Second, 6}, {time.Second, 1}}, replicas: 1, fleet: pods(1, 0, map[string]int32{"new": 1}),
			want: budget.Queue{Demand: 1, Live: 6, Held: 18},
		},
		"B2: what goes for a number just lowered is not promised as well": {
			demand: 4, asked: []ask{{4 * time.Second, 5}, {time.Second, 4}}, replicas: 4, fleet: pods(4, 1, map[string]int32{"new": 4}),
			want: budget.Queue{Demand: 4, Live: 5, Held: 18, Twice: 3},
		},
		"as long as it has not begun to go it is": {
			demand: 4, asked: []ask{{4 * time.Second, 5}, {time.Second, 4}}, replicas: 4, fleet: pods(5, 0, map[string]int32{"new": 5}),
			want: budget.Queue{Demand: 4, Live: 5, Held: 15},
		},
		"pods that went before a number was raised are not its own": {
			demand: 5, asked: []ask{{4 * time.Second, 4}, {time.Second, 5}}, replicas: 5, fleet: pods(4, 1, map[string]int32{"new": 4}),
			want: budget.Queue{Demand: 5, Live: 5, Held: 18},
		},
		"after it has settled it does not": {
			demand: 1, asked: []ask{{8 * time.Second, 6}, {6 * time.Second, 1}}, replicas: 1, fleet: pods(1, 0, map[string]int32{"new": 1}),
			want: budget.Queue{Demand: 1, Live: 1, Held: 3},
		},
		"B2: terminating pods are held": {
			demand: 1, replicas: 1, fleet: pods(1, 4, map[string]int32{"new": 1}),
			want: budget.Queue{Demand: 1, Live: 1, Held: 15},
		},
		"B6: a rollout to come asks for room": {
			demand: 8, wantsRoll: true, replicas: 8, fleet: pods(8, 0, map[string]int32{"new": 8}),
			want: budget.Queue{Demand: 8, Live: 8, Held: 24, Surge: 6},
		},
		"B6: one under way holds it": {
			demand: 8, replicas: 8, fleet: pods(8, 1, map[string]int32{"new": 1, "old": 7}),
			want: budget.Queue{Demand: 8, Live: 8, Held: 30},
		},
		"B6: one that kubectl began holds it too": {
			demand: 8, replicas: 8, fleet: &fleet{
				live: 8, terminating: 1, connections: 27, templates: map[string]int32{"new": 8}, hashes: map[string]int32{"1": 7, "2": 1},
			},
			want: budget.Queue{Demand: 8, Live: 8, Held: 30},
		},
		"a template that mends a rollout asks for no more room": {
			demand: 8, wantsRoll: true, replicas: 8, fleet: pods(8, 2, map[string]int32{"new": 2, "old": 6}),
			want: budget.Queue{Demand: 8, Live: 8, Held: 30},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			q, l := testQueue(), newLedger()
			if !tc.unknown {
				l.want(keyOf(q), tc.demand, tc.wantsRoll)
			}
			for _, a := range tc.asked {
				l.ask(keyOf(q), a.replicas, now.Add(-a.ago))
			}
			tc.want.Name, tc.want.PerReplica, tc.want.Weight = "emails", 3, 1
			got := l.budgetQueue(q, tc.fleet, tc.replicas, "new", now)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("queue (-want +got):\n%s", diff)
			}
		})
	}
}
