package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestHorizonHolder(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	session := func(started time.Duration, xmin uint32) *queue.HorizonHolder {
		return &queue.HorizonHolder{Kind: queue.HolderSession, PID: 7, Application: "report", User: "ada", Database: "shop", Started: ago(started), Xmin: xmin}
	}
	hidden := &queue.HorizonHolder{Kind: queue.HolderSession, PID: 7, Application: "report", Xmin: 100, Hidden: true}
	slot := func(pid int) *queue.HorizonHolder {
		return &queue.HorizonHolder{Kind: queue.HolderSlot, Name: "s", PID: pid, Xmin: 100}
	}
	reported := func(h *queue.HorizonHolder, since time.Duration) *v1alpha1.HorizonHolder {
		return holderStatus(h, ago(since))
	}
	const s, m = time.Second, time.Minute
	cases := map[string]struct {
		holder *queue.HorizonHolder
		seen   time.Duration // how long the operator has seen it
		former *v1alpha1.HorizonHolder
		want   time.Duration // since when it is reported; 0: it is not
	}{
		"nobody":                        {nil, 0, nil, 0},
		"a short transaction":           {session(20*s, 100), 20 * s, nil, 0},
		"shortly before the limit":      {session(5*m-s, 100), 5*m - s, nil, 0},
		"at the limit":                  {session(5*m, 100), 5 * m, nil, 5 * m},
		"old when the operator started": {session(10*m, 100), 10 * s, nil, 10 * m},
		// At READ COMMITTED, it would have another snapshot at the next look.
		"old, with a snapshot just seen":                  {session(10*m, 100), 9 * s, nil, 0},
		"reported, and seen by an operator just started":  {session(10*m, 100), 0, reported(session(0, 100), 10*m), 10 * m},
		"reported, and on in the same transaction":        {session(10*m, 200), 0, reported(session(0, 100), 10*m), 10 * m},
		"reported, and another transaction in the same":   {session(6*m, 200), 0, reported(session(0, 100), 10*m), 0},
		"reported, and another session now":               {session(10*m, 100), 0, reported(&queue.HorizonHolder{Kind: queue.HolderSession, PID: 8, Xmin: 100}, 10*m), 0},
		"hidden, seen for less":                           {hidden, 4 * m, nil, 0},
		"hidden, seen for long":                           {hidden, 6 * m, nil, 6 * m},
		"hidden, reported before the operator's start":    {hidden, 1 * s, reported(hidden, 9*m), 9 * m},
		"slot, seen for long":                             {slot(0), 5 * m, nil, 5 * m},
		"slot, reported, its standby has come back":       {slot(9), 1 * s, reported(slot(0), 9*m), 9 * m},
		"slot, reported, and advanced since":              {&queue.HorizonHolder{Kind: queue.HolderSlot, Name: "s", Xmin: 101}, 0, reported(slot(0), 9*m), 0},
		"slot, another one":                               {&queue.HorizonHolder{Kind: queue.HolderSlot, Name: "t", Xmin: 100}, 0, reported(slot(0), 9*m), 0},
		"prepared, before the operator's start, and seen": {&queue.HorizonHolder{Kind: queue.HolderPrepared, Name: "x", Started: ago(m * 6), Xmin: 1}, 10 * s, nil, 6 * m},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			state := sampler.State{Sample: &queue.Sample{TakenAt: now, Horizon: tc.holder}}
			if tc.holder != nil {
				state.HorizonSince = ago(tc.seen)
			}
			var want *v1alpha1.HorizonHolder
			if tc.want != 0 {
				want = holderStatus(tc.holder, ago(tc.want))
			}
			if diff := cmp.Diff(want, horizonHolder(tc.former, state, defaultHorizonLimit)); diff != "" {
				t.Errorf("holder (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSetHorizon(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	session := queue.HorizonHolder{Kind: queue.HolderSession, PID: 7, Application: "report", User: "ada", Database: "shop", State: "idle in transaction"}
	cases := map[string]struct {
		holder                  *queue.HorizonHolder
		started                 bool
		wantStatus, wantMessage string
	}{
		"nobody": {nil, false, "False/HorizonAdvances", "nothing has kept dead rows for longer than 5m0s"},
		"a session": {&session, true, "True/OldSession",
			`session 7 (application "report", user "ada", database "shop", idle in transaction) has held an old snapshot or transaction for 12m0s: ` +
				`dead rows of the queues' tables cannot be removed, and tables and indexes grow; ` +
				`end its transaction, or the session: SELECT pg_terminate_backend(7)`},
		"a slot": {&queue.HorizonHolder{Kind: queue.HolderSlot, Name: "s", State: "inactive"}, false, "True/ReplicationSlot",
			`replication slot "s" (inactive) has held an old snapshot or transaction for at least 12m0s: ` +
				`dead rows of the queues' tables cannot be removed, and tables and indexes grow; ` +
				`bring its standby back, or drop it: SELECT pg_drop_replication_slot('s')`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var list []metav1.Condition
			sample := &queue.Sample{TakenAt: now}
			var status *v1alpha1.HorizonHolder
			if tc.holder != nil {
				h := *tc.holder
				since := now.Add(-12*time.Minute - 34*time.Second)
				if tc.started {
					h.Started = since
				}
				sample.Horizon, status = &h, holderStatus(&h, since)
			}
			setHorizon(conditions{list: &list, generation: 1}, status, sample, defaultHorizonLimit)
			if got := string(list[0].Status) + "/" + list[0].Reason; got != tc.wantStatus {
				t.Errorf("condition %s, want %s", got, tc.wantStatus)
			}
			if diff := cmp.Diff(tc.wantMessage, list[0].Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}
