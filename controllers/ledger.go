package controllers

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/scaling"
)

// settling is for how long replicas that were asked for count as pods that may
// come to exist, though fewer have been asked for since: the Deployment and its
// ReplicaSet may still be acting on the former number.
const settling = 5 * time.Second

// ledger remembers of each queue what its pods and its Deployment do not tell, and
// of each database the connections of job queues that belong to nothing it knows.
type ledger struct {
	mu        sync.Mutex
	entries   map[types.NamespacedName]*ledgerEntry
	databases map[types.NamespacedName]*strays
}

type ledgerEntry struct {
	demand    int32
	wantsRoll bool
	asked     *scaling.Memory // of replicas applied, over settling
}

// strays evens out a database's unaccounted connections. A pod's may be in a sample,
// and the pod be gone by the time that the sample is compared with what is held.
type strays struct {
	sampled  time.Time
	beside   []string // the neighbours that were accounted for
	smoother budget.Smoother
	latest   int32
}

func newLedger() *ledger {
	return &ledger{entries: map[types.NamespacedName]*ledgerEntry{}, databases: map[types.NamespacedName]*strays{}}
}

// want notes what a queue would have without a budget.
func (l *ledger) want(queue types.NamespacedName, demand int32, wantsRoll bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(queue)
	e.demand, e.wantsRoll = demand, wantsRoll
}

// ask notes replicas before they are applied, so that no other queue counts on
// their connections meanwhile.
func (l *ledger) ask(queue types.NamespacedName, replicas int32, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(queue)
	if e.asked == nil {
		e.asked = scaling.NewMemory(now, replicas)
		return
	}
	e.asked.Remember(scaling.Recommendation{At: now, Replicas: replicas}, settling)
}

// strays takes down a database's unaccounted connections, once for each sample, and
// returns their number evened out. With other neighbours it begins anew.
func (l *ledger) strays(database types.NamespacedName, sampled time.Time, beside []string, unaccounted int32) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.databases[database]
	if s == nil || !slices.Equal(s.beside, beside) {
		s = &strays{beside: beside}
		l.databases[database] = s
	}
	if !s.sampled.Equal(sampled) {
		s.sampled, s.latest = sampled, s.smoother.Add(unaccounted)
	}
	return s.latest
}

func (l *ledger) forgetDatabase(database types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.databases, database)
}

func (l *ledger) forget(queue types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, queue)
}

// entry returns the queue's entry, which it makes if need be. l.mu is held.
func (l *ledger) entry(queue types.NamespacedName) *ledgerEntry {
	e := l.entries[queue]
	if e == nil {
		e = &ledgerEntry{}
		l.entries[queue] = e
	}
	return e
}

// standing is what the ledger has of a queue: latest is the number of replicas that holds
// now, most the largest one that may still bring pods. A queue that it knows nothing of
// yet, since the operator has just started, wants what it has.
func (l *ledger) standing(queue types.NamespacedName, replicas int32, now time.Time) (demand, latest, most int32, wantsRoll bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[queue]
	if e == nil {
		return replicas, replicas, replicas, false
	}
	latest, most = replicas, replicas
	if e.asked != nil {
		past := e.asked.Past()
		for i, r := range past {
			if i == len(past)-1 {
				latest = max(latest, r.Replicas)
			} else if now.Sub(r.At) <= settling {
				most = max(most, r.Replicas)
			}
		}
		most = max(most, latest)
	}
	return e.demand, latest, most, e.wantsRoll
}

// budgetQueue puts together what the budget needs to know of one queue.
func (l *ledger) budgetQueue(q *v1alpha1.JobQueue, f *fleet, replicas int32, template string, now time.Time) budget.Queue {
	if f == nil {
		f = &fleet{}
	}
	demand, latest, most, wantsRoll := l.standing(keyOf(q), replicas, now)
	per := perReplicaOf(q)
	live := max(f.live, most)
	lowered := live - max(f.live, latest)
	out := budget.Queue{
		Name: q.Name, PerReplica: per, Weight: positive(q.Spec.Connections.Weight, 1),
		Minimum: orDefault(q.Spec.Scaling.MinReplicas, 0), Demand: demand,
		Live: live, Held: f.connections + (live-f.live)*per,
		Twice: min(lowered, f.terminating) * per,
	}
	step := budget.RolloutPods(live)
	switch {
	case f.rolling(template):
		out.Held += max(0, step-f.terminating) * per
	case wantsRoll:
		out.Surge = step * per
	}
	return out
}
