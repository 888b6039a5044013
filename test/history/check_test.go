package history

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// Three runs of job 1, or of others where a test says so.
var run1, run2, run3, run4 = uuid.UUID{1}, uuid.UUID{2}, uuid.UUID{3}, uuid.UUID{4}

// after is a time after the transaction of that number, counted from 1, and before the next.
func after(transaction int) time.Time {
	return time.Unix(int64(transaction), 0).Add(time.Second / 2)
}

// story makes events of transactions: each inner list is one, in order, a second apart.
func story(transactions ...[]Event) []Event {
	var all []Event
	for xid, events := range transactions {
		for _, e := range events {
			e.Xid, e.Seq, e.At = uint64(xid+1), int64(len(all)+1), time.Unix(int64(xid+1), 0)
			if e.ID == 0 {
				e.ID = 1
			}
			all = append(all, e)
		}
	}
	return all
}

func tx(events ...Event) []Event { return events }

func arrived(place, by string) Event        { return Event{What: Arrived, Place: place, By: by} }
func claimed(run uuid.UUID) Event           { return Event{What: Claimed, Token: run, By: "claim_many"} }
func closed(run uuid.UUID, by string) Event { return Event{What: Closed, Token: run, By: by} }
func succeeded(run uuid.UUID) Event         { return Event{What: Succeeded, Token: run, By: "succeed_many"} }

// success is one transaction of a run's success, reaped one that takes a run back.
func success(run uuid.UUID) []Event { return tx(closed(run, "succeed_many"), succeeded(run)) }
func reaped(run uuid.UUID) []Event  { return tx(arrived("waiting", "reap"), closed(run, "reap")) }

// held is a claim by a worker that was registered by the transaction 9, and taken is one
// transaction in which the reaper takes the run: registered and lease are its worker's then.
func held(run uuid.UUID) Event {
	return Event{What: Claimed, Token: run, By: "claim_many", Registered: 9}
}
func taken(run uuid.UUID, registered uint64, lease, deadline time.Time) []Event {
	return tx(arrived("waiting", "reap"), Event{What: Closed, Token: run, By: "reap", Registered: registered, Lease: lease, Deadline: deadline})
}

// refused is such an answer about job 1, after a transaction.
func refused(run uuid.UUID, transaction int) Told {
	return Told{ID: 1, Token: run, Outcome: "refused", At: after(transaction)}
}

func TestCheck(t *testing.T) {
	enqueued := tx(arrived("waiting", "enqueue_many"))
	type broken struct {
		Rule  Rule
		ID    int64
		Token uuid.UUID
	}
	cases := map[string]struct {
		history History
		want    []broken
	}{
		"nothing": {},
		"a success": {history: History{
			Enqueued: []int64{1},
			Events:   story(enqueued, tx(claimed(run1)), success(run1)),
			Told:     []Told{{ID: 1, Token: run1, Outcome: "succeeded"}},
		}},
		"a job that waits": {history: History{Events: story(enqueued), Live: []int64{1}}},
		"a failure, then a success": {history: History{
			Events: story(enqueued, tx(claimed(run1)), tx(arrived("waiting", "fail"), closed(run1, "fail")), tx(claimed(run2)), success(run2)),
			Told:   []Told{{ID: 1, Token: run1, Outcome: "retried"}, {ID: 1, Token: run2, Outcome: "succeeded"}},
		}},
		"taken back, and the late result refused": {history: History{
			Events: story(enqueued, tx(claimed(run1)), reaped(run1), tx(claimed(run2)), success(run2)),
			Told:   []Told{refused(run1, 3), {ID: 1, Token: run2, Outcome: "succeeded"}},
		}},
		"given back by the worker itself, and the late result refused": {history: History{
			Events: story(enqueued, tx(claimed(run1)), tx(arrived("waiting", "unregister"), closed(run1, "unregister"))),
			Told:   []Told{refused(run1, 3)}, Live: []int64{1},
		}},
		"cancelled, and the result refused": {history: History{
			Events: story(enqueued, tx(claimed(run1)), tx(arrived("ended", "cancel"), closed(run1, "cancel"))),
			Told:   []Told{refused(run1, 3)},
		}},
		"refused a second time": {history: History{
			Events: story(enqueued, tx(claimed(run1)), success(run1)),
			Told:   []Told{{ID: 1, Token: run1, Outcome: "succeeded"}, refused(run1, 3)},
		}},
		"failed, the answer lost, and then refused": {history: History{
			Events: story(enqueued, tx(claimed(run1)), tx(arrived("waiting", "fail"), closed(run1, "fail"))),
			Told:   []Told{refused(run1, 3), {ID: 1, Token: run1, Outcome: "unconfirmed"}}, Live: []int64{1},
		}},
		"refused of a run that was never claimed, and of another job's": {history: History{
			Enqueued: []int64{2},
			Events:   story(enqueued, tx(claimed(run1)), success(run1)),
			Told:     []Told{refused(run3, 1), {ID: 2, Token: run1, Outcome: "refused", At: after(2)}}, Live: []int64{2},
		}},
		"an answer that was lost, and then a refusal": {history: History{
			Events: story(enqueued, tx(claimed(run1)), success(run1)),
			Told:   []Told{{ID: 1, Token: run1, Outcome: "unconfirmed"}},
		}},
		"dead, requeued and done": {history: History{
			Events: story(enqueued, tx(claimed(run1)), tx(arrived("dead", "fail"), closed(run1, "fail")),
				tx(arrived("waiting", "requeue")), tx(claimed(run2)), success(run2)),
			Told: []Told{{ID: 1, Token: run1, Outcome: "dead"}},
		}},
		"taken back after the end of the lease": {history: History{
			Events: story(enqueued, tx(held(run1)), taken(run1, 9, after(2), after(9))), Live: []int64{1},
		}},
		"taken back after the deadline": {history: History{
			Events: story(enqueued, tx(held(run1)), taken(run1, 9, after(9), after(2))), Live: []int64{1},
		}},
		"taken back after its worker was removed": {history: History{
			Events: story(enqueued, tx(held(run1)), taken(run1, 0, time.Time{}, after(9))), Live: []int64{1},
		}},
		"taken back after its worker was removed, which is just registered anew": {history: History{
			Events: story(enqueued, tx(held(run1)), taken(run1, 10, after(9), after(9))), Live: []int64{1},
		}},
		"taken back, claimed when its worker had been removed": {history: History{
			Events: story(enqueued, tx(claimed(run1)), taken(run1, 10, after(9), after(9))), Live: []int64{1},
		}},
		"given back by the worker itself before the end of the lease": {history: History{
			Events: story(enqueued, tx(held(run1)), tx(arrived("waiting", "disown"),
				Event{What: Closed, Token: run1, By: "disown", Registered: 9, Lease: after(9), Deadline: after(9)})),
			Live: []int64{1},
		}},
		"cancelled while it waits": {history: History{Events: story(enqueued, tx(arrived("ended", "cancel")))}},

		"lost: enqueued and never seen": {
			history: History{Enqueued: []int64{1}},
			want:    []broken{{Lost, 1, uuid.Nil}},
		},
		"lost: its run was ended and it went nowhere": {
			history: History{Events: story(enqueued, tx(claimed(run1)), tx(closed(run1, "reap")))},
			want:    []broken{{Lost, 1, uuid.Nil}},
		},
		"lost: requeued and gone": {
			history: History{Events: story(enqueued, tx(claimed(run1)), tx(arrived("dead", "reap"), closed(run1, "reap")), tx(arrived("waiting", "requeue")))},
			want:    []broken{{Lost, 1, uuid.Nil}},
		},
		"two owners: claimed again while its run goes on": {
			history: History{Events: story(enqueued, tx(claimed(run1)), tx(arrived("waiting", "reap")), tx(claimed(run2))), Live: []int64{1}},
			want:    []broken{{TwoOwners, 1, run2}},
		},
		"stale: succeeded after it was taken back": {
			history: History{
				Events: story(enqueued, tx(claimed(run1)), reaped(run1), tx(succeeded(run1))),
				Told:   []Told{{ID: 1, Token: run1, Outcome: "succeeded"}}, Live: []int64{1},
			},
			want: []broken{{StaleWrite, 1, run1}},
		},
		"stale: succeeded and never claimed": {
			history: History{Events: story(enqueued, tx(succeeded(run3)))},
			want:    []broken{{StaleWrite, 1, run3}},
		},
		"stale: failed after it was taken back": {
			history: History{
				Events: story(enqueued, tx(claimed(run1)), reaped(run1), tx(claimed(run2)), tx(arrived("waiting", "fail"))),
				Live:   []int64{1, 1},
			},
			want: []broken{{StaleWrite, 1, uuid.Nil}},
		},
		"stale: told so, of a run that the reaper had ended": {
			history: History{
				Events: story(enqueued, tx(claimed(run1)), reaped(run1)),
				Told:   []Told{{ID: 1, Token: run1, Outcome: "released"}}, Live: []int64{1},
			},
			want: []broken{{StaleWrite, 1, run1}},
		},
		"stale: told so, of a run that was never claimed": {
			history: History{Events: story(enqueued), Told: []Told{{ID: 1, Token: run3, Outcome: "succeeded"}}, Live: []int64{1}},
			want:    []broken{{StaleWrite, 1, run3}},
		},
		"stale: told so, of another job's run": {
			history: History{
				Enqueued: []int64{2},
				Events:   story(enqueued, tx(claimed(run1)), success(run1)),
				Told:     []Told{{ID: 2, Token: run1, Outcome: "succeeded"}}, Live: []int64{2},
			},
			want: []broken{{StaleWrite, 2, run1}},
		},
		"finished twice: by two runs": {
			history: History{Events: story(enqueued, tx(claimed(run1)), tx(closed(run1, "reap"), succeeded(run1)), tx(claimed(run2)), success(run2))},
			want:    []broken{{FinishedTwice, 1, run2}},
		},
		"finished twice: dead and discarded": {
			history: History{Events: story(enqueued, tx(arrived("dead", "reap")), tx(arrived("ended", "cancel")))},
			want:    []broken{{FinishedTwice, 1, uuid.Nil}},
		},
		"ended and alive: succeeded, and waits again": {
			history: History{Events: story(enqueued, tx(claimed(run1)), success(run1), tx(arrived("waiting", "fail"), closed(run1, "fail"))), Live: []int64{1}},
			want:    []broken{{Revived, 1, uuid.Nil}},
		},
		"result lost: accepted, and the run goes on": {
			history: History{
				Events: story(enqueued, tx(claimed(run1))),
				Told:   []Told{{ID: 1, Token: run1, Outcome: "succeeded"}}, Live: []int64{1},
			},
			want: []broken{{ResultLost, 1, run1}},
		},
		"causeless: refused, and the run goes on": {
			history: History{Events: story(enqueued, tx(claimed(run1))), Told: []Told{refused(run1, 2)}, Live: []int64{1}},
			want:    []broken{{Causeless, 1, run1}},
		},
		"causeless: refused, and taken back later": {
			history: History{Events: story(enqueued, tx(claimed(run1)), reaped(run1)), Told: []Told{refused(run1, 2)}, Live: []int64{1}},
			want:    []broken{{Causeless, 1, run1}},
		},
		"causeless: refused, and succeeded all the same": {
			history: History{Events: story(enqueued, tx(claimed(run1)), success(run1)), Told: []Told{refused(run1, 3)}},
			want:    []broken{{Causeless, 1, run1}},
		},
		"causeless: refused, and snoozed all the same": {
			history: History{
				Events: story(enqueued, tx(claimed(run1)), tx(arrived("waiting", "snooze"), closed(run1, "snooze"))),
				Told:   []Told{refused(run1, 3)}, Live: []int64{1},
			},
			want: []broken{{Causeless, 1, run1}},
		},
		"robbed: taken back before the end of the lease, and before the deadline": {
			history: History{Events: story(enqueued, tx(held(run1)), taken(run1, 9, after(3), after(4))), Live: []int64{1}},
			want:    []broken{{Robbed, 1, run1}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			report := Check(tc.history)
			var got []broken
			for _, v := range report.Violations {
				got = append(got, broken{v.Rule, v.ID, v.Token})
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
			if (report.Err() != nil) != (len(tc.want) > 0) {
				t.Errorf("Err() = %v", report.Err())
			}
		})
	}
}

func TestReportCountsWhatItJudged(t *testing.T) {
	report := Check(History{
		Enqueued: []int64{1, 2},
		Events:   story(tx(arrived("waiting", "enqueue")), tx(claimed(run3)), tx(closed(run3, "release")), tx(claimed(run4)), tx(closed(run4, "release")), tx(claimed(run1)), reaped(run1), tx(claimed(run2)), success(run2)),
		Told:     []Told{refused(run1, 7), {ID: 1, Token: run2, Outcome: "succeeded"}, {ID: 1, Token: run2, Outcome: "unconfirmed"}},
		Began:    []uuid.UUID{run1, run2, run4},
		Live:     []int64{2},
	})
	want := Report{Jobs: 2, Runs: 4, Unrun: 1, Ended: map[string]int{"release": 2, "reap": 1, "succeed_many": 1}, Accepted: 1, Refused: 1}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if begun := report.Begun(); begun != 3 {
		t.Errorf("Begun() = %d, want 3", begun)
	}
}
