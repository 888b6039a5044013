package controllers

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// testAccount is a database with one queue, which wants and has so many pods of 3
// connections each.
func testAccount(l *ledger, name string, demand, pods int32, change ...func(*account)) *account {
	db := testDatabase()
	db.Name = name
	db.Spec.ConnectionBudget.Percent = new(int32(100))
	q := testQueue(func(q *v1alpha1.JobQueue) { q.Name, q.Spec.DatabaseRef.Name = name+"-queue", name })
	l.want(keyOf(q), demand, false)
	l.ask(keyOf(q), pods, at(0))
	a := &account{
		db: db, queues: []v1alpha1.JobQueue{*q},
		fleets: map[string]*fleet{q.Name: {live: pods, ready: pods, connections: 3 * pods}},
		state: sampler.State{Attempted: true, ReadAt: at(0), Others: 4, Sample: &queue.Sample{
			Database: name, ServerStartedAt: at(-9), MaxConnections: 40, ReservedConnections: 3,
		}},
	}
	for _, c := range change {
		c(a)
	}
	return a
}

func TestPage(t *testing.T) {
	sample := func(change func(*queue.Sample)) func(*account) {
		return func(a *account) { change(a.state.Sample) }
	}
	inUse := func(here, elsewhere int) func(*account) {
		return sample(func(s *queue.Sample) { s.OurConnections, s.ElsewhereConnections = here, elsewhere })
	}
	of := func(database string) func(*account) { return sample(func(s *queue.Sample) { s.Database = database }) }
	fixed := func(n int32) func(*account) {
		return func(a *account) { a.db.Spec.ConnectionBudget = v1alpha1.ConnectionBudget{Connections: &n} }
	}
	unsampled := func(c *v1alpha1.DatabaseConnections) func(*account) {
		return func(a *account) { a.state.Sample, a.db.Status.Connections = nil, c }
	}
	status := func(c *v1alpha1.DatabaseConnections) func(*account) {
		return func(a *account) { a.db.Status.Connections = c }
	}
	others := func(n int32, settled bool) func(*account) {
		return func(a *account) { a.state.Others, a.state.Settled = n, settled }
	}
	type outcome struct {
		Server    budget.Server
		Known     bool
		Total     int32
		Strays    int32
		Replicas  int32
		Elsewhere int32
		Company   string
	}
	const onServer = "; on the same server, "
	cases := map[string]struct {
		own, neighbour func(l *ledger) *account
		want           outcome
	}{
		"alone": {
			own:  func(l *ledger) *account { return testAccount(l, "a", 20, 0) },
			want: outcome{Server: budget.Server{Max: 40, Reserved: 3, Others: 4}, Known: true, Total: 33, Replicas: 10},
		},
		"B1: two that would both fill the server have half of its pods each": {
			own:       func(l *ledger) *account { return testAccount(l, "a", 20, 0) },
			neighbour: func(l *ledger) *account { return testAccount(l, "b", 20, 0) },
			want: outcome{
				Server: budget.Server{Max: 40, Reserved: 3, Others: 4}, Known: true, Total: 33, Replicas: 5, Elsewhere: 15,
				Company: onServer + "15 connections are promised to QueueDatabase ns/b",
			},
		},
		"what a neighbour's workers use is no other client's": {
			own:       func(l *ledger) *account { return testAccount(l, "a", 20, 2, inUse(8, 8)) },
			neighbour: func(l *ledger) *account { return testAccount(l, "b", 2, 2) },
			want: outcome{
				Server: budget.Server{Max: 40, Reserved: 3, Others: 4}, Known: true, Total: 33, Replicas: 7, Elsewhere: 9,
				Company: onServer + "9 connections are promised to QueueDatabase ns/b",
			},
		},
		"nor when it is in the same database": {
			own:       func(l *ledger) *account { return testAccount(l, "a", 20, 2, inUse(16, 0)) },
			neighbour: func(l *ledger) *account { return testAccount(l, "b", 2, 2, of("a")) },
			want: outcome{
				Server: budget.Server{Max: 40, Reserved: 3, Others: 4}, Known: true, Total: 33, Replicas: 7, Elsewhere: 9,
				Company: onServer + "9 connections are promised to QueueDatabase ns/b",
			},
		},
		"what nobody here has promised counts as other clients', in this database": {
			own: func(l *ledger) *account { return testAccount(l, "a", 20, 2, inUse(14, 0)) },
			want: outcome{
				Server: budget.Server{Max: 40, Reserved: 3, Others: 10}, Known: true, Total: 27, Strays: 6, Replicas: 8,
				Company: "; 6 connections of job queues are in use that this operator has not promised, and count as other clients'",
			},
		},
		"and in others, whatever is promised here": {
			own: func(l *ledger) *account { return testAccount(l, "a", 20, 2, inUse(2, 6)) },
			want: outcome{
				Server: budget.Server{Max: 40, Reserved: 3, Others: 10}, Known: true, Total: 27, Strays: 6, Replicas: 8,
				Company: "; 6 connections of job queues are in use that this operator has not promised, and count as other clients'",
			},
		},
		"a neighbour that cannot be reached after a start holds what it has": {
			own:       func(l *ledger) *account { return testAccount(l, "a", 20, 2, inUse(8, 8)) },
			neighbour: func(l *ledger) *account { return testAccount(l, "b", 2, 2, unsampled(nil)) },
			want: outcome{
				Server: budget.Server{Max: 40, Reserved: 3, Others: 4}, Known: true, Total: 33, Replicas: 7, Elsewhere: 9,
				Company: onServer + "9 connections are promised to QueueDatabase ns/b",
			},
		},
		"S10: after a start the server is what the status says": {
			own: func(l *ledger) *account {
				return testAccount(l, "a", 20, 5, unsampled(&v1alpha1.DatabaseConnections{Max: 40, Reserved: 3, Others: 7}))
			},
			want: outcome{Server: budget.Server{Max: 40, Reserved: 3, Others: 7}, Known: true, Total: 30, Replicas: 9},
		},
		"S10: nor is a passing session that the first samples of a process show": {
			own: func(l *ledger) *account {
				return testAccount(l, "a", 20, 5, others(12, false), status(&v1alpha1.DatabaseConnections{Max: 40, Reserved: 3, Others: 4}))
			},
			want: outcome{Server: budget.Server{Max: 40, Reserved: 3, Others: 4}, Known: true, Total: 33, Replicas: 10},
		},
		"but one that has lasted is": {
			own: func(l *ledger) *account {
				return testAccount(l, "a", 20, 5, others(12, true), status(&v1alpha1.DatabaseConnections{Max: 40, Reserved: 3, Others: 4}))
			},
			want: outcome{Server: budget.Server{Max: 40, Reserved: 3, Others: 12}, Known: true, Total: 25, Replicas: 7},
		},
		"a number is not known to be there before the first sample": {
			own:  func(l *ledger) *account { return testAccount(l, "a", 20, 0, fixed(20), unsampled(nil)) },
			want: outcome{},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			p := &page{account: tc.own(l)}
			if tc.neighbour != nil {
				p.neighbours = append(p.neighbours, tc.neighbour(l))
			}
			p.share(l, at(0))
			got := outcome{
				Server: p.server, Known: p.serverKnown, Total: p.total, Strays: p.strays,
				Replicas: p.shares.For("a-queue").Replicas, Elsewhere: p.shares.Elsewhere, Company: p.company(),
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("page (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompanyNamesAFew(t *testing.T) {
	l := newLedger()
	p := &page{account: testAccount(l, "a", 1, 1)}
	for _, name := range []string{"b", "c", "d", "e", "f"} {
		p.neighbours = append(p.neighbours, testAccount(l, name, 0, 0))
	}
	p.share(l, at(0))
	want := "; on the same server, 15 connections are promised to QueueDatabase ns/b, ns/c, ns/d and 2 more"
	if got := p.company(); got != want {
		t.Errorf("company = %q, want %q", got, want)
	}
}
