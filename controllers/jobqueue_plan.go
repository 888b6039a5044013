package controllers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/scaling"
)

// plan is what is to be applied.
type plan struct {
	decision scaling.Decision
	rates    scaling.Rates
	// template is the wanted pod template; nil while the credentials are not known,
	// when workers are left as they are.
	template      *corev1.PodTemplateSpec
	templateError error
	// hold is why the template must wait; "" when it need not.
	hold string
	// locked keeps a rollout under way from taking the next pods.
	locked bool
}

// plan decides. It asks the planner twice: first for what the queue would have
// without a budget, which is its demand in the ledger, then within its share.
func (r *queueReconciler) plan(o *observation) plan {
	key := keyOf(o.queue)
	p := plan{}
	p.makeTemplate(o)
	m := r.memories.of(o.queue, o.replicas(), o.now)
	in := scalingInput(o, m)
	p.rates = in.Rates
	r.books.ledger.want(key, scaling.Plan(in).Demand, p.rolls(o))
	o.page.share(r.books.ledger, o.now)
	grant := o.page.shares.For(o.queue.Name)
	in.Budget = allowance(o, grant)
	p.decision = scaling.Plan(in)
	m.remember(p.decision.Recommended, o.now, stabilizationOf(o.queue))
	p.holdRollout(o, grant)
	return p
}

func (p *plan) makeTemplate(o *observation) {
	if o.credentials.problem != nil {
		return
	}
	t, err := workerTemplate(o.queue, o.database, o.credentials.fingerprint)
	if err != nil {
		p.templateError = err
		return
	}
	p.template = &t
}

// rolls reports whether applying the template would replace pods.
func (p *plan) rolls(o *observation) bool {
	return p.template != nil && o.exists() && o.fleet.live > 0 && !p.isApplied(o)
}

func (p *plan) isApplied(o *observation) bool {
	return o.deployment.Spec.Template.Annotations[AnnotationTemplate] == p.template.Annotations[AnnotationTemplate]
}

// holdRollout lets a rollout begin only when the pods that it may add fit the
// budget, and go on only when those of its last step are gone (B6).
func (p *plan) holdRollout(o *observation, grant budget.Grant) {
	if p.template == nil {
		return
	}
	wanted := p.template.Annotations[AnnotationTemplate]
	switch {
	case p.rolls(o):
		p.locked = true
		// What a rollout under way may add is counted already, and a template that mends
		// it must not wait for it.
		switch underWay := o.fleet.rolling(o.deployment.Spec.Template.Annotations[AnnotationTemplate]); {
		case !underWay && !grant.MayRoll:
			p.hold = fmt.Sprintf("the new pod template waits until %d more pods fit the connection budget", budget.RolloutPods(o.fleet.live))
		case underWay && o.fleet.terminating > 0 && o.fleet.trouble == "":
			p.hold = fmt.Sprintf("the new pod template waits for %d pods to end that the former one replaced", o.fleet.terminating)
		}
	case o.exists() && o.fleet.rolling(wanted):
		p.locked = o.fleet.terminating > 0 || o.fleet.templates[wanted] == 0
	}
}

// scalingInput gathers the planner's input, without a budget.
func scalingInput(o *observation, m *memory) scaling.Input {
	name := queueName(o.queue)
	in := scaling.Input{
		Now:    o.now,
		Policy: scalingPolicyOf(o.queue, startUpOrDefault(o.fleet)),
		Rates:  o.state.Rates[name].OrSeed(m.seed),
		Fleet:  scaling.Fleet{Replicas: o.replicas(), Ready: o.fleet.ready},
		Past:   m.past.Past(),
		Stale:  o.stale.Message,
	}
	if !o.fresh {
		return in
	}
	sample, ok := o.state.Sample.Queues[name]
	if !ok {
		in.Stale = "the queue is not declared in the database yet"
		return in
	}
	in.Queue = &scaling.Queue{
		Pending: sample.Pending, PendingCapped: sample.PendingCapped, Running: sample.Running,
		DueSoon: sample.DueSoon, OldestAge: sample.OldestAge,
	}
	return in
}

func startUpOrDefault(f *fleet) time.Duration {
	if f.startUp > 0 {
		return f.startUp
	}
	return defaultStartUp
}

// allowance puts a grant into words. A budget that is not known yet lets nothing
// grow, and takes nothing away.
func allowance(o *observation, g budget.Grant) *scaling.Allowance {
	if !o.page.serverKnown {
		return &scaling.Allowance{Replicas: o.replicas(), Message: "the budget follows from the first sample"}
	}
	message := fmt.Sprintf("the budget of %d connections grants %d pods of %d connections each",
		o.page.total, g.Replicas, perReplicaOf(o.queue))
	if g.Allowed < g.Replicas {
		message += fmt.Sprintf("; %d until connections of other pods come free", g.Allowed)
	}
	message += holders(o.page.shares.Grants, g.Name) + o.page.company()
	return &scaling.Allowance{Replicas: g.Allowed, Message: message}
}

// holders says, as the end of a sentence, which other queues of the database have most
// of its budget; "" when none has any.
func holders(grants []budget.Grant, but string) string {
	others := slices.DeleteFunc(slices.Clone(grants), func(g budget.Grant) bool { return g.Name == but || g.Connections == 0 })
	if len(others) == 0 {
		return ""
	}
	slices.SortStableFunc(others, func(a, b budget.Grant) int { return cmp.Compare(b.Connections, a.Connections) })
	var shares []string
	for _, g := range others[:min(len(others), namesShown)] {
		shares = append(shares, fmt.Sprintf("%d to %s", g.Connections, g.Name))
	}
	text := "; it grants " + strings.Join(shares, ", ")
	if more := len(others) - namesShown; more > 0 {
		text += fmt.Sprintf(" and some to %d more", more)
	}
	return text
}

// memory is what the operator remembers of a JobQueue between reconciles.
type memory struct {
	uid  types.UID
	past *scaling.Memory
	seed scaling.Rates
}

func (m *memory) remember(recommended int32, now time.Time, window time.Duration) {
	m.past.Remember(scaling.Recommendation{At: now, Replicas: recommended}, window)
}

// memories holds one memory for each JobQueue.
type memories struct {
	mu    sync.Mutex
	known map[types.NamespacedName]*memory
}

func newMemories() *memories { return &memories{known: map[types.NamespacedName]*memory{}} }

// of returns the memory of a JobQueue. One that is new begins with the replicas in
// place and with the rates that the status has from an earlier process (S10).
func (m *memories) of(q *v1alpha1.JobQueue, replicas int32, now time.Time) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := keyOf(q)
	if found := m.known[key]; found != nil && found.uid == q.UID {
		return found
	}
	fresh := &memory{uid: q.UID, past: scaling.NewMemory(now, replicas), seed: seedOf(q.Status.Sample)}
	m.known[key] = fresh
	return fresh
}

func (m *memories) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, key)
}

func seedOf(s *v1alpha1.QueueSample) scaling.Rates {
	if s == nil {
		return scaling.Rates{}
	}
	perSecond := float64(s.ArrivalsPerMinute) / 60
	return scaling.Rates{
		Arrivals: perSecond, FastArrivals: perSecond,
		Completions: float64(s.CompletionsPerMinute) / 60,
		Service:     time.Duration(s.MeanRunMilliseconds) * time.Millisecond,
	}
}
