package budget

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

func TestTotal(t *testing.T) {
	cases := map[string]struct {
		spec   Spec
		server *Server
		want   int32
		known  bool
	}{
		"a fixed number needs no sample":               {spec: Spec{Connections: ptr[int32](40)}, want: 40, known: true},
		"a share without a sample is not known":        {spec: Spec{Percent: ptr[int32](80)}},
		"B1: a share of what others leave":             {spec: Spec{Percent: ptr[int32](80)}, server: &Server{Max: 100, Reserved: 3, Others: 22}, want: 60, known: true},
		"a share is rounded down":                      {spec: Spec{Percent: ptr[int32](33)}, server: &Server{Max: 100}, want: 33, known: true},
		"a fixed number is cut to what others leave":   {spec: Spec{Connections: ptr[int32](40)}, server: &Server{Max: 100, Reserved: 3, Others: 70}, want: 27, known: true},
		"a fixed number of a full server is nothing":   {spec: Spec{Connections: ptr[int32](40)}, server: &Server{Max: 100, Reserved: 3, Others: 99}, want: 0, known: true},
		"a fixed number that is free is what is given": {spec: Spec{Connections: ptr[int32](40)}, server: &Server{Max: 100, Reserved: 3, Others: 22}, want: 40, known: true},
		"a full server leaves nothing":                 {spec: Spec{Percent: ptr[int32](80)}, server: &Server{Max: 100, Reserved: 3, Others: 99}, want: 0, known: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, known := Total(tc.spec, tc.server)
			if got != tc.want || known != tc.known {
				t.Errorf("Total = %d, %v; want %d, %v", got, known, tc.want, tc.known)
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
			r := Share(tc.total, tc.orphaned, tc.queues)
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
// drain, no more connections are ever held than the budget has, as long as it does
// not shrink; and once demands rest, the shares are reached.
func TestNeverAboveTheBudget(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 400 {
		total := 3 + r.Int32N(120)
		fleet := make([]*pods, 1+r.IntN(6))
		for i := range fleet {
			fleet[i] = &pods{queue: Queue{
				Name: fmt.Sprintf("q%d", i), PerReplica: 2 + r.Int32N(6), Weight: 1 + r.Int32N(4), Minimum: r.Int32N(3),
			}}
		}
		ledger := func() Result {
			var queues []Queue
			for _, i := range r.Perm(len(fleet)) {
				queues = append(queues, fleet[i].observed())
			}
			return Share(total, 0, queues)
		}
		act := func(p *pods, g Grant) {
			if p.wantsRoll && p.rolling == 0 && (g.MayRoll || p.live == 0) {
				p.wantsRoll, p.rolling = false, RolloutPods(p.live)
			}
			p.terminating += max(0, p.live-g.Allowed)
			p.live = g.Allowed
		}
		check := func(step int) {
			held := int32(Overhead)
			for _, p := range fleet {
				held += (p.live + max(p.terminating, p.rolling)) * p.queue.PerReplica
			}
			if held > max(total, Overhead) {
				t.Fatalf("round %d step %d: %d held of %d\n%+v", round, step, held, total, ledger())
			}
		}
		for step := range 120 {
			p := fleet[r.IntN(len(fleet))]
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
				act(p, ledger().For(p.queue.Name))
			}
			check(step)
		}
		for step := range 40 {
			for _, p := range fleet {
				p.terminating, p.rolling = 0, 0
				act(p, ledger().For(p.queue.Name))
				check(1000 + step)
			}
		}
		for _, g := range ledger().Grants {
			if g.Allowed != g.Replicas {
				t.Fatalf("round %d: %s rests at %d, its share is %d", round, g.Name, g.Allowed, g.Replicas)
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
		first := Share(total, 0, queues)
		r.Shuffle(len(queues), func(i, j int) { queues[i], queues[j] = queues[j], queues[i] })
		if again := Share(total, 0, queues); !reflect.DeepEqual(first, again) {
			t.Fatalf("the order of the queues changed the outcome:\n%s", cmp.Diff(first, again))
		}
	}
}
