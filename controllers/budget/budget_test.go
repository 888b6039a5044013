package budget

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLimits(t *testing.T) {
	fixed := func(n int32) Spec { return Spec{Connections: &n} }
	share := func(n int32) Spec { return Spec{Percent: &n} }
	cases := map[string]struct {
		spec   Spec
		server Server
		want   Limits
	}{
		"B1: a share of what others leave":               {share(80), Server{Max: 100, Reserved: 3, Others: 22}, Limits{Own: 60, Server: 60}},
		"a share is rounded down":                        {share(33), Server{Max: 100}, Limits{Own: 33, Server: 33}},
		"a share of a full server is nothing":            {share(80), Server{Max: 100, Reserved: 3, Others: 99}, Limits{}},
		"a number bounds its own database, not the rest": {fixed(40), Server{Max: 100, Reserved: 3, Others: 22}, Limits{Own: 40, Server: 75}},
		"a number is cut to what others leave":           {fixed(40), Server{Max: 100, Reserved: 3, Others: 70}, Limits{Own: 27, Server: 27}},
		"a number of a full server is nothing":           {fixed(40), Server{Max: 100, Reserved: 3, Others: 99}, Limits{}},
		"neither is nothing":                             {Spec{}, Server{Max: 100}, Limits{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.spec.Limits(tc.server)); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSmoother(t *testing.T) {
	var s Smoother
	var got []int32
	for _, others := range []int32{10, 10, 90, 10, 10, 50, 50, 50, 50, 50, 50} {
		got = append(got, s.Add(others))
	}
	want := []int32{10, 10, 10, 10, 10, 10, 10, 50, 50, 50, 50}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("medians (-want +got):\n%s", diff)
	}
}

// alone shares a budget between the queues of one database that has its server for
// itself.
func alone(total, orphaned int32, queues []Queue) Result {
	return Share(Database{Name: "db", Limits: Limits{Own: total, Server: total}, Orphaned: orphaned, Queues: queues})["db"]
}

func TestShare(t *testing.T) {
	// q is a queue in steady state: it holds what its live pods take.
	q := func(name string, demand, live int32, change ...func(*Queue)) Queue {
		out := Queue{Name: name, PerReplica: 3, Weight: 1, Demand: demand, Live: live}
		for _, c := range change {
			c(&out)
		}
		return out
	}
	minimum := func(n int32) func(*Queue) { return func(q *Queue) { q.Minimum = n } }
	weight := func(n int32) func(*Queue) { return func(q *Queue) { q.Weight = n } }
	per := func(n int32) func(*Queue) { return func(q *Queue) { q.PerReplica = n } }
	held := func(n int32) func(*Queue) { return func(q *Queue) { q.Held = n } }
	surge := func(n int32) func(*Queue) { return func(q *Queue) { q.Surge = n } }

	type grant struct{ Share, Allowed int32 }
	cases := map[string]struct {
		total, orphaned int32
		queues          []Queue
		want            map[string]grant
		missing         int32
		allocated       int32
		rolls           []string
	}{
		"all fits": {
			total: 33, queues: []Queue{q("a", 4, 0), q("b", 2, 0)},
			want: map[string]grant{"a": {4, 4}, "b": {2, 2}}, allocated: 3 + 18,
		},
		"B3: competing queues get equal shares, what one leaves goes to the others": {
			total: 33, queues: []Queue{q("a", 20, 0), q("b", 2, 0), q("c", 20, 0)},
			want: map[string]grant{"a": {4, 4}, "b": {2, 2}, "c": {4, 4}}, allocated: 33,
		},
		"B3: weights": {
			total: 33, queues: []Queue{q("a", 20, 0, weight(4)), q("b", 20, 0)},
			want: map[string]grant{"a": {8, 8}, "b": {2, 2}}, allocated: 33,
		},
		"B3: minimums come before weights": {
			total: 33, queues: []Queue{q("a", 20, 0, weight(1000)), q("b", 20, 0, minimum(5))},
			want: map[string]grant{"a": {5, 5}, "b": {5, 5}}, allocated: 33,
		},
		"B4: minimums that do not fit are reported and not exceeded": {
			total: 12, queues: []Queue{q("a", 2, 0, minimum(2)), q("b", 3, 0, minimum(3))},
			want: map[string]grant{"a": {2, 2}, "b": {1, 1}}, missing: 6, allocated: 12,
		},
		"B4: a budget below the overhead grants nothing": {
			total: 2, queues: []Queue{q("a", 2, 0)},
			want: map[string]grant{"a": {0, 0}}, allocated: 3,
		},
		"B3: a lent share comes back first as a lower number there, and no growth here": {
			total: 33, queues: []Queue{q("a", 10, 10), q("b", 10, 0)},
			want: map[string]grant{"a": {5, 5}, "b": {5, 0}}, allocated: 33,
		},
		"B2: terminating pods still hold": {
			total: 33, queues: []Queue{q("a", 10, 5, held(30)), q("b", 10, 0)},
			want: map[string]grant{"a": {5, 5}, "b": {5, 0}}, allocated: 33,
		},
		"B3: as they go, the other grows": {
			total: 33, queues: []Queue{q("a", 10, 5, held(21)), q("b", 10, 0)},
			want: map[string]grant{"a": {5, 5}, "b": {5, 3}}, allocated: 33,
		},
		"B6: a rollout begins where it fits": {
			total: 33, queues: []Queue{q("a", 8, 8, surge(6))},
			want: map[string]grant{"a": {8, 8}}, allocated: 33, rolls: []string{"a"},
		},
		"B6: else the queue makes room first": {
			total: 33, queues: []Queue{q("a", 10, 10, surge(6))},
			want: map[string]grant{"a": {8, 8}}, allocated: 33,
		},
		"B6: and does so once, not again for the pods that go": {
			total: 33, queues: []Queue{q("a", 10, 8, held(30), surge(6))},
			want: map[string]grant{"a": {8, 8}}, allocated: 33,
		},
		"what is counted twice keeps others from growing and is not promised": {
			total: 20, queues: []Queue{q("a", 4, 5, held(18), func(q *Queue) { q.Twice = 3 }), q("b", 1, 0)},
			want: map[string]grant{"a": {4, 4}, "b": {1, 0}}, allocated: 18,
		},
		"B6: a rollout comes before growth": {
			total: 33, queues: []Queue{q("a", 8, 7, surge(3)), q("b", 9, 2)},
			want: map[string]grant{"a": {5, 5}, "b": {4, 2}}, allocated: 33, rolls: []string{"a"},
		},
		"a single pod in a budget for one goes before it comes back": {
			total: 6, queues: []Queue{q("a", 1, 1, surge(3))},
			want: map[string]grant{"a": {0, 0}}, allocated: 6,
		},
		"pods of a queue that is gone still hold": {
			total: 33, orphaned: 20, queues: []Queue{q("a", 10, 0)},
			want: map[string]grant{"a": {3, 3}}, allocated: 32,
		},
		"a smaller pod takes what a larger one cannot": {
			total: 15, queues: []Queue{q("a", 5, 0, per(10)), q("b", 5, 0, per(2))},
			want: map[string]grant{"a": {0, 0}, "b": {5, 5}}, allocated: 13,
		},
		"more held than there is: nobody grows": {
			total: 12, queues: []Queue{q("a", 10, 10), q("b", 2, 0)},
			want: map[string]grant{"a": {2, 2}, "b": {1, 0}}, allocated: 33,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := alone(tc.total, tc.orphaned, tc.queues)
			got := map[string]grant{}
			var rolls []string
			for _, g := range r.Grants {
				got[g.Name] = grant{g.Replicas, g.Allowed}
				if g.MayRoll {
					rolls = append(rolls, g.Name)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("grants (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.rolls, rolls); diff != "" {
				t.Errorf("rollouts (-want +got):\n%s", diff)
			}
			if r.Missing != tc.missing || r.Allocated != tc.allocated {
				t.Errorf("missing %d, allocated %d; want %d, %d", r.Missing, r.Allocated, tc.missing, tc.allocated)
			}
		})
	}
}

// Databases of one server: B1 holds for each and for all, B3 across them.
func TestShareOfServer(t *testing.T) {
	q := func(name string, demand, live int32) Queue {
		return Queue{Name: name, PerReplica: 3, Weight: 1, Demand: demand, Live: live}
	}
	heavy := func(q Queue) Queue { q.Weight = 4; return q }
	least := func(q Queue, n int32) Queue { q.Minimum = n; return q }
	rolls := func(q Queue) Queue { q.Surge = 3; return q }
	db := func(name string, own, server int32, queues ...Queue) Database {
		return Database{Name: name, Limits: Limits{Own: own, Server: server}, Queues: queues}
	}
	type grant struct{ Share, Allowed int32 }
	type outcome struct {
		Grants                        map[string]grant
		Allocated, Elsewhere, Missing int32
		Exceeded                      bool
	}
	cases := map[string]struct {
		databases []Database
		want      map[string]outcome
	}{
		"equal shares, though each would fill the server alone": {
			databases: []Database{db("x", 36, 36, q("a", 20, 0)), db("y", 36, 36, q("a", 20, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {5, 5}}, Allocated: 18, Elsewhere: 18},
				"y": {Grants: map[string]grant{"a": {5, 5}}, Allocated: 18, Elsewhere: 18},
			},
		},
		"what one does not need goes to the other": {
			databases: []Database{db("x", 36, 36, q("a", 20, 0)), db("y", 36, 36, q("a", 1, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {9, 9}}, Allocated: 30, Elsewhere: 6},
				"y": {Grants: map[string]grant{"a": {1, 1}}, Allocated: 6, Elsewhere: 30},
			},
		},
		"one that came first gives way before the other grows": {
			databases: []Database{db("x", 36, 36, q("a", 20, 10)), db("y", 36, 36, q("a", 20, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {5, 5}}, Allocated: 33, Elsewhere: 3},
				"y": {Grants: map[string]grant{"a": {5, 0}}, Allocated: 3, Elsewhere: 33},
			},
		},
		"weights count across databases": {
			databases: []Database{db("x", 36, 36, heavy(q("a", 20, 0))), db("y", 36, 36, q("a", 20, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {8, 8}}, Allocated: 27, Elsewhere: 9},
				"y": {Grants: map[string]grant{"a": {2, 2}}, Allocated: 9, Elsewhere: 27},
			},
		},
		"numbers that fit the server together are not touched": {
			databases: []Database{db("x", 15, 97, q("a", 20, 0)), db("y", 24, 97, q("a", 20, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {4, 4}}, Allocated: 15, Elsewhere: 24},
				"y": {Grants: map[string]grant{"a": {7, 7}}, Allocated: 24, Elsewhere: 15},
			},
		},
		"numbers that do not are cut": {
			databases: []Database{db("x", 18, 20, q("a", 20, 0)), db("y", 18, 20, q("a", 20, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {2, 2}}, Allocated: 9, Elsewhere: 9},
				"y": {Grants: map[string]grant{"a": {2, 2}}, Allocated: 9, Elsewhere: 9},
			},
		},
		"a smaller share of the server stops first, and its part is not taken by the larger": {
			databases: []Database{db("x", 60, 60, q("a", 20, 17)), db("y", 30, 30, q("a", 20, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {14, 14}}, Allocated: 54, Elsewhere: 6},
				"y": {Grants: map[string]grant{"a": {4, 1}}, Allocated: 6, Elsewhere: 54},
			},
		},
		"minimums come first across databases": {
			databases: []Database{db("x", 24, 24, q("a", 20, 0)), db("y", 24, 24, least(q("a", 20, 0), 5))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {1, 1}}, Allocated: 6, Elsewhere: 18},
				"y": {Grants: map[string]grant{"a": {5, 5}}, Allocated: 18, Elsewhere: 6},
			},
		},
		"B4: minimums that one budget cannot hold keep nobody else from growing": {
			databases: []Database{db("x", 9, 97, least(q("a", 5, 0), 5)), db("y", 15, 97, q("a", 20, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {2, 2}}, Allocated: 9, Elsewhere: 15, Missing: 9},
				"y": {Grants: map[string]grant{"a": {4, 4}}, Allocated: 15, Elsewhere: 9},
			},
		},
		"B6: a rollout in one waits for room on the server": {
			databases: []Database{db("x", 36, 36, rolls(q("a", 5, 5))), db("y", 36, 36, q("a", 5, 5))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {5, 5}}, Allocated: 18, Elsewhere: 18},
				"y": {Grants: map[string]grant{"a": {4, 4}}, Allocated: 18, Elsewhere: 18},
			},
		},
		"more promised than the server has: nobody grows": {
			databases: []Database{db("x", 20, 20, q("a", 5, 5)), db("y", 20, 20, q("a", 5, 0))},
			want: map[string]outcome{
				"x": {Grants: map[string]grant{"a": {2, 2}}, Allocated: 18, Elsewhere: 3, Exceeded: true},
				"y": {Grants: map[string]grant{"a": {2, 0}}, Allocated: 3, Elsewhere: 18, Exceeded: true},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := map[string]outcome{}
			for name, r := range Share(tc.databases...) {
				o := outcome{Grants: map[string]grant{}, Allocated: r.Allocated, Elsewhere: r.Elsewhere, Missing: r.Missing, Exceeded: r.Exceeded}
				for _, g := range r.Grants {
					o.Grants[g.Name] = grant{g.Replicas, g.Allowed}
				}
				got[name] = o
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRolloutPods(t *testing.T) {
	for replicas, want := range map[int32]int32{0: 0, 1: 1, 3: 1, 4: 1, 7: 1, 8: 2, 100: 25} {
		if got := RolloutPods(replicas); got != want {
			t.Errorf("RolloutPods(%d) = %d, want %d", replicas, got, want)
		}
	}
}

// pods is one simulated queue: replicas asked for, and pods that are going away.
type pods struct {
	queue       Queue
	live        int32
	terminating int32
	rolling     int32 // pods that a rollout may add
	wantsRoll   bool
}

func (p *pods) observed() Queue {
	q := p.queue
	q.Live = p.live
	q.Held = (p.live + max(p.terminating, p.rolling)) * q.PerReplica
	if p.wantsRoll && p.rolling == 0 {
		q.Surge = RolloutPods(p.live) * q.PerReplica
	}
	return q
}

// B1, B2: whatever the demands do, and in whatever order queues act and pods
// drain, no more connections are ever held than a budget has, nor than the server
// has for all databases, as long as neither shrinks; and once demands rest, the
// shares are reached.
func TestNeverAboveTheBudget(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 600 {
		databases := make([]Database, 1+r.IntN(3))
		free := int32(Overhead*len(databases)) + r.Int32N(120)
		var together int32
		for d := range databases {
			l := Limits{Own: r.Int32N(free + 1), Server: free}
			if r.IntN(2) == 0 {
				l.Server = l.Own
			}
			// A database is sampled and reaped whatever its budget.
			l.Own, l.Server = max(l.Own, Overhead), max(l.Server, int32(Overhead*len(databases)))
			databases[d] = Database{Name: fmt.Sprintf("db%d", d), Limits: l}
			together = max(together, l.Server)
		}
		fleet := make([]*pods, 1+r.IntN(6))
		of := make([]int, len(fleet))
		for i := range fleet {
			of[i] = r.IntN(len(databases))
			fleet[i] = &pods{queue: Queue{
				Name: fmt.Sprintf("q%d", i), PerReplica: 2 + r.Int32N(6), Weight: 1 + r.Int32N(4), Minimum: r.Int32N(3),
			}}
		}
		ledger := func() map[string]Result {
			now := slices.Clone(databases)
			for _, i := range r.Perm(len(fleet)) {
				now[of[i]].Queues = append(now[of[i]].Queues, fleet[i].observed())
			}
			return Share(now...)
		}
		grant := func(i int) Grant { return ledger()[databases[of[i]].Name].For(fleet[i].queue.Name) }
		act := func(i int) {
			p, g := fleet[i], grant(i)
			if p.wantsRoll && p.rolling == 0 && (g.MayRoll || p.live == 0) {
				p.wantsRoll, p.rolling = false, RolloutPods(p.live)
			}
			p.terminating += max(0, p.live-g.Allowed)
			p.live = g.Allowed
		}
		check := func(step int) {
			held, all := make([]int32, len(databases)), int32(0)
			for d := range databases {
				held[d] = Overhead
			}
			for i, p := range fleet {
				held[of[i]] += (p.live + max(p.terminating, p.rolling)) * p.queue.PerReplica
			}
			for d, db := range databases {
				if all += held[d]; held[d] > db.Limits.Own {
					t.Fatalf("round %d step %d: %s holds %d of %d\n%+v", round, step, db.Name, held[d], db.Limits.Own, ledger())
				}
			}
			if all > together {
				t.Fatalf("round %d step %d: %d held of the server's %d\n%+v", round, step, all, together, ledger())
			}
		}
		for step := range 120 {
			i := r.IntN(len(fleet))
			p := fleet[i]
			switch r.IntN(6) {
			case 0:
				p.queue.Demand = r.Int32N(30)
			case 1:
				p.terminating -= min(p.terminating, 1+r.Int32N(3))
			case 2:
				p.rolling = 0
			case 3:
				p.wantsRoll = true
			default:
				act(i)
			}
			check(step)
		}
		for step := range 40 {
			for i, p := range fleet {
				p.terminating, p.rolling = 0, 0
				act(i)
				check(1000 + step)
			}
		}
		for name, result := range ledger() {
			if result.Exceeded {
				t.Fatalf("round %d: %s says that it is exceeded: %+v", round, name, result)
			}
			for _, g := range result.Grants {
				if g.Allowed != g.Replicas {
					t.Fatalf("round %d: %s of %s rests at %d, its share is %d", round, g.Name, name, g.Allowed, g.Replicas)
				}
			}
		}
	}
}

func TestShareIsDeterministic(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 500 {
		queues := make([]Queue, 1+r.IntN(8))
		for i := range queues {
			queues[i] = Queue{
				Name: fmt.Sprintf("q%d", i), PerReplica: r.Int32N(9), Weight: r.Int32N(5), Minimum: r.Int32N(5),
				Demand: r.Int32N(40), Live: r.Int32N(20), Held: r.Int32N(200), Surge: r.Int32N(2) * r.Int32N(20),
			}
		}
		total := r.Int32N(300)
		first := alone(total, 0, queues)
		r.Shuffle(len(queues), func(i, j int) { queues[i], queues[j] = queues[j], queues[i] })
		if again := alone(total, 0, queues); !reflect.DeepEqual(first, again) {
			t.Fatalf("the order of the queues changed the outcome:\n%s", cmp.Diff(first, again))
		}
	}
}
