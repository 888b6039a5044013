package controllers

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

// books opens a database's ledger: its queues, their Deployments and their pods, as
// the caches have them.
type books struct {
	client client.Reader
	hub    *sampler.Hub
	ledger *ledger
}

// page is a database's ledger at one time. It is not changed.
type page struct {
	queues      []v1alpha1.JobQueue // without those that lost their queue's name
	losers      map[string]string   // JobQueue to the older one with the same queue
	deployments map[string]*appsv1.Deployment
	fleets      map[string]*fleet
	total       int32
	totalKnown  bool
	shares      budget.Result
	demands     map[string]int32 // what each queue would have without a budget
}

// open reads a page. The shares in it follow from the demands noted so far.
func (b *books) open(ctx context.Context, db *v1alpha1.QueueDatabase, now time.Time) (*page, error) {
	p := &page{deployments: map[string]*appsv1.Deployment{}}
	var queues v1alpha1.JobQueueList
	if err := b.client.List(ctx, &queues, client.InNamespace(db.Namespace), client.MatchingFields{indexDatabase: db.Name}); err != nil {
		return nil, fmt.Errorf("list JobQueues: %w", err)
	}
	of := client.MatchingLabels{LabelDatabase: db.Name}
	var deployments appsv1.DeploymentList
	if err := b.client.List(ctx, &deployments, client.InNamespace(db.Namespace), of); err != nil {
		return nil, fmt.Errorf("list Deployments: %w", err)
	}
	for i := range deployments.Items {
		p.deployments[deployments.Items[i].Name] = &deployments.Items[i]
	}
	var pods corev1.PodList
	if err := b.client.List(ctx, &pods, client.InNamespace(db.Namespace), of, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	p.fleets = countPods(pods.Items)
	p.queues, p.losers = settleNames(queues.Items)
	state, _ := b.hub.State(keyOf(db))
	p.total, p.totalKnown = totalOf(db, state)
	p.share(b.ledger, now)
	return p, nil
}

// share divides the budget by what the ledger knows now.
func (p *page) share(l *ledger, now time.Time) {
	p.demands = map[string]int32{}
	queues := make([]budget.Queue, 0, len(p.queues))
	seen := map[string]bool{}
	for i := range p.queues {
		q := &p.queues[i]
		seen[q.Name] = true
		replicas, template := int32(0), ""
		if d := p.deployments[q.Name]; d != nil {
			replicas, template = orDefault(d.Spec.Replicas, 1), d.Spec.Template.Annotations[AnnotationTemplate]
		}
		entry := l.budgetQueue(q, p.fleets[q.Name], replicas, template, now)
		queues = append(queues, entry)
		p.demands[q.Name] = entry.Demand
	}
	var orphaned int32
	for name, f := range p.fleets {
		if !seen[name] {
			orphaned += f.connections
		}
	}
	p.shares = budget.Share(p.total, orphaned, queues)
}

// fleet returns the pods of a queue.
func (p *page) fleet(name string) *fleet {
	if f := p.fleets[name]; f != nil {
		return f
	}
	return &fleet{templates: map[string]int32{}}
}

// settleNames finds JobQueues that name the same queue: the oldest has it, by name
// where they are of the same second.
func settleNames(queues []v1alpha1.JobQueue) (winners []v1alpha1.JobQueue, losers map[string]string) {
	holder := map[string]*v1alpha1.JobQueue{}
	for i := range queues {
		q := &queues[i]
		if h := holder[queueName(q)]; h == nil || olderThan(q, h) {
			holder[queueName(q)] = q
		}
	}
	losers = map[string]string{}
	for i := range queues {
		q := &queues[i]
		if h := holder[queueName(q)]; h.Name == q.Name {
			winners = append(winners, *q)
		} else {
			losers[q.Name] = h.Name
		}
	}
	return winners, losers
}

func olderThan(a, b *v1alpha1.JobQueue) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// totalOf is a database's budget. A share of a server that has not been sampled
// since the operator started is what the status still says of it.
func totalOf(db *v1alpha1.QueueDatabase, state sampler.State) (int32, bool) {
	spec := budget.Spec{Connections: db.Spec.ConnectionBudget.Connections, Percent: db.Spec.ConnectionBudget.Percent}
	if spec.Connections == nil && spec.Percent == nil {
		spec.Percent = new(int32(80))
	}
	var server *budget.Server
	if s := state.Sample; s != nil {
		server = &budget.Server{Max: int32(s.MaxConnections), Reserved: int32(s.ReservedConnections), Others: state.Others}
	}
	if total, known := budget.Total(spec, server); known {
		return total, true
	}
	if c := db.Status.Connections; c != nil {
		return c.Budget, true
	}
	return 0, false
}
