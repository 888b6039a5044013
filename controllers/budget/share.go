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
	// Twice is how many connections of Held are most likely counted twice: as those of
	// pods that terminate, and as those of pods that a number since lowered might still
	// bring. They hold up growth, but are no promise.
	Twice int32
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

// Database is the part of one database in the ledger of its server.
type Database struct {
	// Name breaks ties.
	Name string
	// Limits bound it. Those of databases on one server may differ.
	Limits Limits
	// Orphaned is what pods hold that belong to no queue any more.
	Orphaned int32
	Queues   []Queue
}

// Held is what is held now or may be: by the operator and the reaper, and by all pods.
func (d Database) Held() int32 {
	held := plus(Overhead, d.Orphaned)
	for _, q := range d.Queues {
		held = plus(held, q.held())
	}
	return held
}

// Result is the state of the ledger for one database.
type Result struct {
	// Overhead is what the operator and the reaper take.
	Overhead int32
	// Held is [Database.Held]; Allocated is the same after every queue has done what
	// it is allowed, without what is counted twice.
	Held, Allocated int32
	// Elsewhere is what is allocated to the server's other databases.
	Elsewhere int32
	// Exceeded is true when more is allocated than a limit has.
	Exceeded bool
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

// Share divides a server's connections between the queues of its databases, and
// returns a Result for each by name: minimums first, then max-min fairness by weight
// among those that want more, whichever database they are in. A queue gets no more
// once its database is at its own limit, or all databases together are at what that
// database allows for. A rollout that is to begin lowers the shares by what it will
// add. What terminating pods hold does not: it comes back, and until it does it only
// keeps queues from growing. Otherwise a queue that shrinks would, for its own pods
// that go, have to shrink again.
//
// Whatever state it finds: as long as no database holds more than its own limit, and
// all together no more than the largest of their limits for the server, that remains
// so after every queue has grown as allowed. Where more is held, no queue may grow.
func Share(databases ...Database) map[string]Result {
	l := newLedger(databases)
	granted, missing := l.fair()
	grants := l.grow(granted)
	return l.results(grants, missing)
}

// ledger is the state that Share works on: queues of all databases in one list, by
// the names of databases and then of queues.
type ledger struct {
	databases []Database
	queues    []Queue
	of        []int // the database of each queue
	together  int64 // the most that all databases may hold
}

func newLedger(databases []Database) *ledger {
	l := &ledger{databases: slices.SortedFunc(slices.Values(databases), func(a, b Database) int { return cmp.Compare(a.Name, b.Name) })}
	for d, db := range l.databases {
		l.together = max(l.together, int64(db.Limits.Server))
		for _, q := range slices.SortedFunc(slices.Values(db.Queues), func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) }) {
			l.queues, l.of = append(l.queues, q), append(l.of, d)
		}
	}
	return l
}

// fair grants pods to queues: minimums first, then the rest, in databases whose
// minimums fit.
func (l *ledger) fair() (granted, missing []int32) {
	left := newRoom(l.databases)
	for d, db := range l.databases {
		left.take(d, plus(Overhead, db.Orphaned))
	}
	for i, q := range l.queues {
		left.take(l.of[i], q.Surge)
	}
	granted, missing = make([]int32, len(l.queues)), make([]int32, len(l.databases))
	l.fill(left, granted, func(i int) int32 { return l.queues[i].minimum() })
	for i, q := range l.queues {
		missing[l.of[i]] = plus(missing[l.of[i]], times(q.minimum()-granted[i], q.per()))
	}
	l.fill(left, granted, func(i int) int32 {
		if missing[l.of[i]] > 0 {
			return granted[i]
		}
		return l.queues[i].wanted()
	})
	return granted, missing
}

// grow turns shares into what is allowed now. Rollouts come first, since they
// end; then queues grow into what is free, again fairly. What is free on the server
// is the same for all: shares are within it, and one that is due to a database with
// a lower limit must not wait until all others are below that.
func (l *ledger) grow(granted []int32) []Grant {
	free := newRoom(l.databases)
	for d, db := range l.databases {
		free.server[d] = l.together
		free.take(d, db.Held())
	}
	grants := make([]Grant, len(l.queues))
	allowed := make([]int32, len(l.queues))
	for i, q := range l.queues {
		allowed[i] = min(q.Live, granted[i])
		grants[i] = Grant{Name: q.Name, Replicas: granted[i], Connections: times(granted[i], q.per())}
		if q.Surge > 0 && free.fits(l.of[i], q.Surge) {
			grants[i].MayRoll = true
			free.take(l.of[i], q.Surge)
		}
	}
	growing := func(i int) int32 {
		if l.queues[i].Live >= granted[i] {
			return allowed[i]
		}
		return granted[i]
	}
	l.fill(free, allowed, growing)
	for i := range grants {
		grants[i].Allowed = allowed[i]
	}
	return grants
}

// results adds up. A queue that is to shrink still holds its pods until they are gone.
func (l *ledger) results(grants []Grant, missing []int32) map[string]Result {
	results := make([]Result, len(l.databases))
	for d, db := range l.databases {
		results[d] = Result{Overhead: Overhead, Held: db.Held(), Allocated: plus(Overhead, db.Orphaned), Missing: missing[d]}
	}
	for i, q := range l.queues {
		r, g := &results[l.of[i]], grants[i]
		r.Grants = append(r.Grants, g)
		r.Allocated = plus(r.Allocated, plus(times(max(q.Live, g.Allowed), q.per()), q.leaving()-q.Twice))
		if g.MayRoll {
			r.Allocated = plus(r.Allocated, q.Surge)
		}
	}
	var all int32
	for _, r := range results {
		all = plus(all, r.Allocated)
	}
	byName := make(map[string]Result, len(results))
	for d, r := range results {
		r.Elsewhere = all - r.Allocated
		r.Exceeded = r.Allocated > l.databases[d].Limits.Own || int64(all) > l.together
		byName[l.databases[d].Name] = r
	}
	return byName
}

// room is what is left for each database: of its own limit, and of what it allows
// for all of them.
type room struct {
	own, server []int64
	taken       int64 // by all of them
}

func newRoom(databases []Database) *room {
	r := &room{}
	for _, db := range databases {
		r.own, r.server = append(r.own, int64(db.Limits.Own)), append(r.server, int64(db.Limits.Server))
	}
	return r
}

func (r *room) fits(database int, connections int32) bool {
	return int64(connections) <= min(r.own[database], r.server[database]-r.taken)
}

func (r *room) take(database int, connections int32) {
	r.own[database] -= int64(connections)
	r.taken += int64(connections)
}

// fill hands out pods one at a time, each to the queue that holds the fewest
// connections for its weight, until every queue has what it may have or nothing
// fits any more. It adds to pods and takes from left.
func (l *ledger) fill(left *room, pods []int32, most func(i int) int32) {
	h := &byLevel{queues: l.queues, pods: pods}
	for i := range l.queues {
		if pods[i] < most(i) {
			h.order = append(h.order, i)
		}
	}
	heap.Init(h)
	for h.Len() > 0 {
		i := h.order[0]
		if !left.fits(l.of[i], l.queues[i].per()) {
			heap.Pop(h) // another, with smaller pods or in another database, may still fit
			continue
		}
		left.take(l.of[i], l.queues[i].per())
		pods[i]++
		if pods[i] < most(i) {
			heap.Fix(h, 0)
		} else {
			heap.Pop(h)
		}
	}
}

// byLevel orders queues by the connections they would hold for their weight with
// one pod more, and then by name, which is their order in the ledger.
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
