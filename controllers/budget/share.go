package budget

import (
	"cmp"
	"container/heap"
	"slices"
)

// Queue is what the ledger knows of one queue.
type Queue struct {
	// Name breaks ties.
	Name string
	// PerReplica is how many connections a pod takes; below 1 counts as 1.
	PerReplica int32
	// Weight is the queue's share where queues compete; below 1 counts as 1.
	Weight int32
	// Minimum is how many pods it gets before any queue gets more.
	Minimum int32
	// Demand is how many pods it would have without a budget.
	Demand int32
	// Live is how many pods exist or may come to exist and are not going away:
	// the replicas asked for, or the pods there are if these are more.
	Live int32
	// Held is the connections of all its pods that exist or may exist: Live ones,
	// terminating ones, and those that a rollout under way may add.
	Held int32
	// Surge is the connections that a rollout which has not begun will add.
	Surge int32
}

func (q Queue) per() int32 { return max(1, q.PerReplica) }

// live is the connections of the pods that stay.
func (q Queue) live() int32 { return times(q.Live, q.per()) }

// held is at least what live pods need once all have today's pool size.
func (q Queue) held() int32 { return max(q.Held, q.live()) }

// leaving is the connections that go back by themselves: of terminating pods
// and of a rollout.
func (q Queue) leaving() int32 { return q.held() - q.live() }

// wanted is the number of pods that the ledger may grant.
func (q Queue) wanted() int32 { return max(0, q.Demand) }

func (q Queue) minimum() int32 { return min(max(0, q.Minimum), q.wanted()) }

// Grant is the outcome for one queue.
type Grant struct {
	Name string
	// Replicas is its fair share in pods, and Connections the same in connections.
	Replicas, Connections int32
	// Allowed is how many replicas it may ask for now: its share, but no growth
	// into connections that another still holds.
	Allowed int32
	// MayRoll is true when the rollout that Surge stands for fits now.
	MayRoll bool
}

// Result is the state of the ledger.
type Result struct {
	// Total is the budget, Overhead what the operator and the reaper take of it.
	Total, Overhead int32
	// Held is what is held now or may be, the overhead included; Allocated is the
	// same after every queue has done what it is allowed.
	Held, Allocated int32
	// Missing is how many connections the minimums lack; 0 when they fit.
	Missing int32
	// Grants are sorted by name.
	Grants []Grant
}

// For returns the grant of a queue; the zero Grant if it has none.
func (r Result) For(name string) Grant {
	i, found := slices.BinarySearchFunc(r.Grants, name, func(g Grant, n string) int { return cmp.Compare(g.Name, n) })
	if !found {
		return Grant{Name: name}
	}
	return r.Grants[i]
}

// Share divides total between the queues: minimums first, then max-min fairness by
// weight among those that want more. orphaned is what pods hold that belong to no
// queue any more. A rollout that is to begin lowers the shares by what it will add.
// What terminating pods hold does not: it comes back, and until it does it only
// keeps queues from growing. Otherwise a queue that shrinks would, for its own pods
// that go, have to shrink again.
//
// Whatever state it finds: if no more than total is held, then no more is held
// after every queue has grown as allowed; and if more is held, no queue may grow.
func Share(total, orphaned int32, queues []Queue) Result {
	queues = slices.SortedFunc(slices.Values(queues), func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
	r := Result{Total: total, Overhead: Overhead, Held: plus(Overhead, orphaned)}
	grantable := total - r.Held
	for _, q := range queues {
		r.Held = plus(r.Held, q.held())
		grantable -= q.Surge
	}
	granted, missing := fair(grantable, queues)
	r.Missing = missing
	r.Grants = grow(total-r.Held, granted, queues)
	r.Allocated = allocated(r, orphaned, queues)
	return r
}

// fair grants pods to queues: minimums first, then the rest.
func fair(grantable int32, queues []Queue) (granted []int32, missing int32) {
	granted = make([]int32, len(queues))
	minimums := func(i int) int32 { return queues[i].minimum() }
	left := fill(grantable, granted, queues, minimums)
	for i, q := range queues {
		missing = plus(missing, times(q.minimum()-granted[i], q.per()))
	}
	if missing == 0 {
		fill(left, granted, queues, func(i int) int32 { return queues[i].wanted() })
	}
	return granted, missing
}

// grow turns shares into what is allowed now. Rollouts come first, since they
// end; then queues grow into what is free, again fairly.
func grow(free int32, granted []int32, queues []Queue) []Grant {
	grants := make([]Grant, len(queues))
	allowed := make([]int32, len(queues))
	for i, q := range queues {
		allowed[i] = min(q.Live, granted[i])
		grants[i] = Grant{Name: q.Name, Replicas: granted[i], Connections: times(granted[i], q.per())}
		if q.Surge > 0 && q.Surge <= free {
			grants[i].MayRoll = true
			free -= q.Surge
		}
	}
	growing := func(i int) int32 {
		if queues[i].Live >= granted[i] {
			return allowed[i]
		}
		return granted[i]
	}
	fill(free, allowed, queues, growing)
	for i := range grants {
		grants[i].Allowed = allowed[i]
	}
	return grants
}

// allocated adds up what will be held once every queue has done as allowed. A
// queue that is to shrink still holds its pods until they are gone.
func allocated(r Result, orphaned int32, queues []Queue) int32 {
	sum := plus(r.Overhead, orphaned)
	for i, q := range queues {
		sum = plus(sum, times(max(q.Live, r.Grants[i].Allowed), q.per()))
		sum = plus(sum, q.leaving())
		if r.Grants[i].MayRoll {
			sum = plus(sum, q.Surge)
		}
	}
	return sum
}

// fill hands out pods one at a time, each to the queue that holds the fewest
// connections for its weight, until every queue has what it may have or nothing
// fits any more. It adds to pods and returns what is left.
func fill(connections int32, pods []int32, queues []Queue, most func(i int) int32) int32 {
	h := &byLevel{queues: queues, pods: pods}
	for i := range queues {
		if pods[i] < most(i) {
			h.order = append(h.order, i)
		}
	}
	heap.Init(h)
	for h.Len() > 0 {
		i := h.order[0]
		if queues[i].per() > connections {
			heap.Pop(h) // another, with smaller pods, may still fit
			continue
		}
		connections -= queues[i].per()
		pods[i]++
		if pods[i] < most(i) {
			heap.Fix(h, 0)
		} else {
			heap.Pop(h)
		}
	}
	return connections
}

// byLevel orders queues by the connections they would hold for their weight with
// one pod more, and then by name, which is the order of the queues.
type byLevel struct {
	queues []Queue
	pods   []int32
	order  []int
}

func (h *byLevel) Len() int      { return len(h.order) }
func (h *byLevel) Swap(i, j int) { h.order[i], h.order[j] = h.order[j], h.order[i] }
func (h *byLevel) Push(x any)    { h.order = append(h.order, x.(int)) }
func (h *byLevel) Pop() any {
	last := len(h.order) - 1
	x := h.order[last]
	h.order = h.order[:last]
	return x
}

func (h *byLevel) Less(a, b int) bool {
	i, j := h.order[a], h.order[b]
	left, right := h.next(i)*h.weight(j), h.next(j)*h.weight(i)
	if left != right {
		return left < right
	}
	return i < j
}

func (h *byLevel) next(i int) int64   { return (int64(h.pods[i]) + 1) * int64(h.queues[i].per()) }
func (h *byLevel) weight(i int) int64 { return int64(max(1, h.queues[i].Weight)) }

// times and plus stop at a bound far above any budget instead of overflowing.
const bound = 1 << 30

func times(a, b int32) int32 { return int32(min(int64(a)*int64(b), bound)) }
func plus(a, b int32) int32  { return int32(min(int64(a)+int64(b), bound)) }
