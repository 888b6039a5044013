package controllers

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

// recheck is how often a JobQueue is looked at when nothing happens. Samples come
// much more often.
const recheck = time.Minute

// queueReconciler keeps JobQueues: their policy in the database, their workers and
// the number of them.
type queueReconciler struct {
	client      client.Client
	hub         *sampler.Hub
	credentials *credentialStore
	books       *books
	applier     *applier
	memories    *memories
	clock       *statusClock
	deletions   *deletions
	recorder    events.EventRecorder
	now         func() time.Time
	written     lastWritten[v1alpha1.JobQueueStatus]
}

// Reconcile observes a JobQueue, plans, and applies.
func (r *queueReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	q := &v1alpha1.JobQueue{}
	if err := r.client.Get(ctx, req.NamespacedName, q); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read JobQueue: %w", err)
	}
	if !q.DeletionTimestamp.IsZero() {
		return r.finalize(ctx, q)
	}
	if err := r.ensureFinalizer(ctx, q); err != nil {
		return ctrl.Result{}, err
	}
	o, ready, err := r.observe(ctx, q)
	if err != nil || !ready {
		return ctrl.Result{}, err
	}
	out := outcome{}
	if o.obstacle == nil {
		r.setPolicy(o)
		o.obstacle = o.refused()
	}
	if o.obstacle == nil {
		out.plan = r.plan(o)
		r.apply(ctx, o, &out)
	}
	if err := r.report(ctx, o, out); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: recheck}, nil
}

// observation is what one reconcile decides from.
type observation struct {
	now         time.Time
	queue       *v1alpha1.JobQueue
	database    *v1alpha1.QueueDatabase
	credentials credentials
	state       sampler.State
	fresh       bool
	stale       sampler.Problem // why not fresh
	page        *page
	deployment  *appsv1.Deployment // without UID when there is none
	fleet       *fleet
	// obstacle is why nothing at all can be done.
	obstacle *sampler.Problem
}

// observe gathers. ready is false while the operator has just started and the
// database's turn has not come: then nothing can be said, and nothing is changed. A
// JobQueue that is new says so.
func (r *queueReconciler) observe(ctx context.Context, q *v1alpha1.JobQueue) (*observation, bool, error) {
	o := &observation{now: r.now(), queue: q, deployment: &appsv1.Deployment{}, fleet: &fleet{}}
	db := &v1alpha1.QueueDatabase{}
	err := r.client.Get(ctx, databaseKey(q), db)
	if apierrors.IsNotFound(err) {
		o.obstacle = &sampler.Problem{Reason: v1alpha1.ReasonDatabaseNotFound,
			Message: fmt.Sprintf("QueueDatabase %q does not exist in this namespace", q.Spec.DatabaseRef.Name)}
		return o, true, r.observeDeployment(ctx, o)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read QueueDatabase: %w", err)
	}
	o.database = db
	c, known := r.credentials.last(keyOf(db))
	o.credentials = c
	o.state, _ = r.hub.State(keyOf(db))
	if !known || o.credentials.problem == nil && !o.state.Attempted {
		o.obstacle = &sampler.Problem{Reason: v1alpha1.ReasonProgressing,
			Message: fmt.Sprintf("QueueDatabase %q is being connected to", db.Name)}
		return o, q.Status.ObservedGeneration == 0, nil
	}
	o.fresh, o.stale = o.state.Fresh(o.now)
	if o.credentials.problem != nil {
		o.fresh, o.stale = false, *o.credentials.problem
	}
	if o.page, err = r.books.open(ctx, db, o.now); err != nil {
		return nil, false, err
	}
	if older, lost := o.page.losers[q.Name]; lost {
		o.obstacle = &sampler.Problem{Reason: v1alpha1.ReasonQueueOwned, Message: fmt.Sprintf(
			"JobQueue %q, which is older, has the queue %q in this database; choose another queueName", older, queueName(q))}
	}
	o.fleet = o.page.fleet(q.Name)
	return o, true, r.observeDeployment(ctx, o)
}

func (r *queueReconciler) observeDeployment(ctx context.Context, o *observation) error {
	err := r.client.Get(ctx, keyOf(o.queue), o.deployment)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Deployment: %w", err)
	}
	return nil
}

// exists reports whether there is a Deployment.
func (o *observation) exists() bool { return o.deployment.UID != "" }

// replicas is what the Deployment asks for.
func (o *observation) replicas() int32 {
	if !o.exists() {
		return 0
	}
	return orDefault(o.deployment.Spec.Replicas, 1)
}

// refused is the database's word that the queue is another's, whose jobs workers of this
// JobQueue would run.
func (o *observation) refused() *sampler.Problem {
	if p := o.state.Policies[queueName(o.queue)].Problem; p != nil && p.Reason == v1alpha1.ReasonQueueOwned {
		return p
	}
	return nil
}

// setPolicy leaves the policy with the sampler, which writes it.
func (r *queueReconciler) setPolicy(o *observation) {
	r.hub.SetPolicy(keyOf(o.database), queueName(o.queue), policyOf(o.queue))
}

// outcome is what became of applying a plan.
type outcome struct {
	plan plan
	// applied is a finding: why the workers are not as wanted.
	applied error
	// scaled is a finding about the number of replicas alone.
	scaled error
	// waiting is why the template is held back; "" when it is not.
	waiting string
	// changed is true when the number of replicas was changed, from that one.
	changed bool
	from    int32
}

// apply brings the workers to the plan: template first, then disruption budget,
// then replicas. What goes wrong is kept for the status, and tried again with the
// next sample.
func (r *queueReconciler) apply(ctx context.Context, o *observation, out *outcome) {
	if out.applied = out.plan.templateError; out.applied != nil {
		return
	}
	if !o.exists() && policyState(o, o.queue.Status.PolicyGeneration).Generation == 0 {
		// The database may yet say that the queue is another's.
		out.waiting = "workers are made once the policy is in the database"
		return
	}
	r.books.ledger.ask(keyOf(o.queue), out.plan.decision.Replicas, o.now)
	if out.plan.hold != "" {
		out.waiting = out.plan.hold
	} else if out.applied = r.applyDeployment(ctx, o, out.plan); out.applied != nil {
		return
	}
	if out.applied = r.applyDisruption(ctx, o.queue); out.applied != nil {
		return
	}
	out.scaled = r.applyReplicas(ctx, o, out)
}

// applyDeployment applies all but the replicas. A Deployment that does not exist yet
// is made with them, for otherwise it would begin with one, and they are left out
// only when the scaler has them too, for otherwise they would fall back to one.
func (r *queueReconciler) applyDeployment(ctx context.Context, o *observation, p plan) error {
	if o.exists() && !o.deployment.DeletionTimestamp.IsZero() {
		return fmt.Errorf("the former Deployment %q is being deleted", o.deployment.Name)
	}
	if p.template == nil {
		return nil
	}
	wanted := workerDeployment(o.queue, *p.template, p.locked)
	if !o.exists() || ownsReplicas(o.deployment, OwnerTemplate) && !ownsReplicas(o.deployment, OwnerScaler) {
		wanted.Spec.Replicas = new(p.decision.Replicas)
	}
	if err := r.applier.apply(ctx, wanted, o.deployment); err != nil {
		return err
	}
	if !o.exists() {
		_, err := r.applier.scale(ctx, wanted, p.decision.Replicas, true)
		return err
	}
	return nil
}

func (r *queueReconciler) applyDisruption(ctx context.Context, q *v1alpha1.JobQueue) error {
	found := &policyv1.PodDisruptionBudget{}
	if err := r.client.Get(ctx, keyOf(q), found); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read PodDisruptionBudget: %w", err)
	}
	return r.applier.apply(ctx, workerDisruption(q), found)
}

// applyReplicas scales. A change of the spec takes the number back from whoever
// else has set it; without one it is not fought over, unless it breaks the budget.
func (r *queueReconciler) applyReplicas(ctx context.Context, o *observation, out *outcome) error {
	if !o.exists() {
		return nil // made with its replicas, if it was made
	}
	wanted := out.plan.decision.Replicas
	specChanged := r.written.of(keyOf(o.queue), o.queue.UID, o.queue.Status).ObservedGeneration != o.queue.Generation
	beyond := o.page.serverKnown && (o.page.shares.Exceeded ||
		int64(o.replicas())*int64(perReplicaOf(o.queue)) > int64(o.page.total-o.page.shares.Overhead))
	from, err := r.applier.scale(ctx, o.deployment, wanted, specChanged || beyond)
	if err != nil {
		return err
	}
	out.from, out.changed = from, wanted != from
	return nil
}

// ensureFinalizer adds the finalizer before anything is written to the database.
func (r *queueReconciler) ensureFinalizer(ctx context.Context, q *v1alpha1.JobQueue) error {
	if controllerutil.ContainsFinalizer(q, Finalizer) {
		return nil
	}
	base := q.DeepCopy()
	controllerutil.AddFinalizer(q, Finalizer)
	if err := r.client.Patch(ctx, q, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("add finalizer: %w", err)
	}
	return nil
}

func (r *queueReconciler) forget(key types.NamespacedName) {
	r.books.ledger.forget(key)
	r.memories.forget(key)
	r.applier.forget("Deployment", key)
	r.applier.forget("PodDisruptionBudget", key)
	r.written.forget(key)
	r.clock.forget(key)
	r.deletions.forget(key)
	forgetQueueMetrics(key)
}
