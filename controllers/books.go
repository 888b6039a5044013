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
// the caches have them, and those of the other databases on its server.
type books struct {
	client  client.Reader
	hub     *sampler.Hub
	ledger  *ledger
	servers *servers
}

// page is a database's ledger at one time. It is not changed.
type page struct {
	*account
	neighbours []*account // on the same server, by name
	// server is what is known of the server's connections; serverKnown is false as
	// long as it was never sampled.
	server      budget.Server
	serverKnown bool
	// total is the budget, and shares what came of dividing it.
	total  int32
	shares budget.Result
	// strays is how many connections of job queues are in use that no ledger here
	// has: of another operator, or of programs outside the cluster. They count as
	// other clients'.
	strays  int32
	demands map[string]int32 // what each queue would have without a budget
}

// account is the part of one database in a page.
type account struct {
	db          *v1alpha1.QueueDatabase
	state       sampler.State
	queues      []v1alpha1.JobQueue // without those that lost their queue's name
	losers      map[string]string   // JobQueue to the older one with the same queue
	deployments map[string]*appsv1.Deployment
	fleets      map[string]*fleet
}

// open reads a page. The shares in it follow from the demands noted so far.
func (b *books) open(ctx context.Context, db *v1alpha1.QueueDatabase, now time.Time) (*page, error) {
	own, err := b.account(ctx, db)
	if err != nil {
		return nil, err
	}
	p := &page{account: own}
	neighbours, err := b.neighbours(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, n := range neighbours {
		a, err := b.account(ctx, n)
		if err != nil {
			return nil, err
		}
		p.neighbours = append(p.neighbours, a)
	}
	p.share(b.ledger, now)
	return p, nil
}

// account reads one database's part. What it returns belongs to the caches.
func (b *books) account(ctx context.Context, db *v1alpha1.QueueDatabase) (*account, error) {
	a := &account{db: db, deployments: map[string]*appsv1.Deployment{}}
	a.state, _ = b.hub.State(keyOf(db))
	var queues v1alpha1.JobQueueList
	err := b.client.List(ctx, &queues, client.InNamespace(db.Namespace), client.MatchingFields{indexDatabase: db.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list JobQueues: %w", err)
	}
	of := client.MatchingFields{indexDatabaseLabel: db.Name}
	var deployments appsv1.DeploymentList
	if err := b.client.List(ctx, &deployments, client.InNamespace(db.Namespace), of, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Deployments: %w", err)
	}
	for i := range deployments.Items {
		a.deployments[deployments.Items[i].Name] = &deployments.Items[i]
	}
	var pods corev1.PodList
	if err := b.client.List(ctx, &pods, client.InNamespace(db.Namespace), of, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	a.fleets = countPods(pods.Items)
	a.queues, a.losers = settleNames(queues.Items)
	return a, nil
}

// share divides the server's connections by what the ledger knows now.
func (p *page) share(l *ledger, now time.Time) {
	own := p.budgetDatabase(l, now)
	p.demands = map[string]int32{}
	for _, q := range own.Queues {
		p.demands[q.Name] = q.Demand
	}
	databases := []budget.Database{own}
	for _, n := range p.neighbours {
		databases = append(databases, n.budgetDatabase(l, now))
	}
	p.observeServer(l, databases)
	if p.serverKnown {
		databases[0].Limits = budgetOf(p.db).Limits(p.server)
		for i, n := range p.neighbours {
			databases[i+1].Limits = budgetOf(n.db).Limits(p.server)
		}
	}
	p.total = databases[0].Limits.Budget()
	p.shares = budget.Share(databases...)[own.Name]
}

// observeServer takes the server's connections from the latest sample, or as long
// as the operator has none since it started from what the status still says.
func (p *page) observeServer(l *ledger, databases []budget.Database) {
	if s := p.state.Sample; s != nil {
		p.strays = l.strays(keyOf(p.db), p.state.ReadAt, p.sharedWith(), p.unaccounted(databases))
		others := p.state.Others + p.strays
		if c := p.db.Status.Connections; c != nil && !p.state.Settled {
			// The first samples of a process show each passing session, and would cost pods
			// that stood before it began (S10).
			others = min(others, c.Others)
		}
		p.server = budget.Server{Max: int32(s.MaxConnections), Reserved: int32(s.ReservedConnections), Others: others}
		p.serverKnown = true
	} else if c := p.db.Status.Connections; c != nil {
		p.server = budget.Server{Max: c.Max, Reserved: c.Reserved, Others: c.Others}
		p.serverKnown = true
	}
}

// unaccounted is how many connections of job queues the latest sample has, in this
// database and in the server's others, beyond those that are held there. Reapers
// hold theirs for moments only: the rest of the time it must not hide a stray one.
func (p *page) unaccounted(databases []budget.Database) int32 {
	here, elsewhere := databases[0].Held()-budget.ReaperConnections, int32(0)
	for i, n := range p.neighbours {
		held := databases[i+1].Held() - budget.ReaperConnections
		known := n.state.Sample != nil
		same := known && n.state.Sample.Database == p.state.Sample.Database
		if same || !known {
			here += held
		}
		if !same {
			elsewhere += held
		}
	}
	return max(0, int32(p.state.Sample.OurConnections)-here) + max(0, int32(p.state.Sample.ElsewhereConnections)-elsewhere)
}

// sharedWith names the neighbours.
func (p *page) sharedWith() []string {
	var names []string
	for _, n := range p.neighbours {
		names = append(names, keyOf(n.db).String())
	}
	return names
}

// budgetDatabase puts together what the budget needs to know of the database.
func (a *account) budgetDatabase(l *ledger, now time.Time) budget.Database {
	out := budget.Database{Name: keyOf(a.db).String()}
	seen := map[string]bool{}
	for i := range a.queues {
		q := &a.queues[i]
		seen[q.Name] = true
		replicas, template := int32(0), ""
		if d := a.deployments[q.Name]; d != nil {
			replicas, template = orDefault(d.Spec.Replicas, 1), d.Spec.Template.Annotations[AnnotationTemplate]
		}
		out.Queues = append(out.Queues, l.budgetQueue(q, a.fleets[q.Name], replicas, template, now))
	}
	for name, f := range a.fleets {
		if !seen[name] {
			out.Orphaned += f.connections
		}
	}
	return out
}

// fleet returns the pods of a queue.
func (a *account) fleet(name string) *fleet {
	if f := a.fleets[name]; f != nil {
		return f
	}
	return newFleet()
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

// budgetOf is the budget that a database declares.
func budgetOf(db *v1alpha1.QueueDatabase) budget.Spec {
	b := db.Spec.ConnectionBudget
	if b.Connections == nil && b.Percent == nil {
		return budget.Spec{Percent: new(int32(defaultBudgetPercent))}
	}
	return budget.Spec{Connections: b.Connections, Percent: b.Percent}
}
