package controllers

import (
	"context"
	"errors"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/scaling"
)

// Reasons of conditions that only JobQueues have.
const (
	reasonReplicasTaken  = "ReplicasSetByAnother"
	reasonWorkersFailing = "WorkersFailing"
)

// report writes the status if it is due, and announces what has changed.
func (r *queueReconciler) report(ctx context.Context, o *observation, out outcome) error {
	key := keyOf(o.queue)
	before := r.written.of(key, o.queue.UID, o.queue.Status)
	after := queueStatus(*before.DeepCopy(), o, out)
	queueMetrics(o, out, after)
	if out.changed {
		r.announceScaling(o, out)
	}
	if !r.clock.due(o.queue, queueChange(before, after), o.now) {
		return nil
	}
	base := o.queue.DeepCopy()
	base.Status = before
	changed := o.queue.DeepCopy()
	changed.Status = after
	if err := r.client.Status().Patch(ctx, changed, client.MergeFrom(base)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write status: %w", err))
	}
	r.written.keep(key, o.queue.UID, after)
	announce(r.recorder, o.queue, before.Conditions, after.Conditions)
	return nil
}

func (r *queueReconciler) announceScaling(o *observation, out outcome) {
	d := out.plan.decision
	r.recorder.Eventf(o.queue, nil, corev1.EventTypeNormal, v1alpha1.ReasonScaled, "Scale",
		"from %d to %d replicas: %s: %s", out.from, d.Replicas, d.Reason, d.Message)
}

// queueStatus is the former status brought up to date.
func queueStatus(s v1alpha1.JobQueueStatus, o *observation, out outcome) v1alpha1.JobQueueStatus {
	s.ObservedGeneration = o.queue.Generation
	s.Selector = labels.SelectorFromSet(selectorLabels(o.queue)).String()
	if o.page != nil { // else what runs is not known
		s.Replicas, s.ReadyReplicas = o.fleet.live, o.fleet.ready
	}
	c := conditions{list: &s.Conditions, generation: o.queue.Generation}
	c.set(v1alpha1.ConditionSuspended, o.queue.Spec.Suspend, suspendedReason(o.queue), suspendedMessage(o.queue))
	if o.obstacle != nil {
		setBlocked(c, o)
		return s
	}
	policy := policyState(o, s.PolicyGeneration)
	s.PolicyGeneration = policy.Generation
	if o.fresh {
		s.Sample = sampleStatus(o, out.plan.rates)
	}
	s.Decision = decisionStatus(s.Decision, o, out)
	setReachable(c, stateProblem(o))
	setScaling(c, o, out)
	setQueueBudget(c, o, out.plan.decision)
	setUnhandled(c, o)
	setReadiness(c, readinessProblem(o, out, policy), "policy and workers are as declared")
	return s
}

// policyState is what became of the policy. While an operator that has just started
// has not written it again, the generation that was in force counts, unless a sample
// shows another one in the database.
func policyState(o *observation, former int64) sampler.PolicyState {
	name := queueName(o.queue)
	policy := o.state.Policies[name]
	if policy.Generation == 0 && policy.Problem == nil &&
		(o.state.Sample == nil || o.state.Sample.Queues[name].PolicyGeneration == former) {
		policy.Generation = former
	}
	return policy
}

// setBlocked sets conditions where nothing could be decided.
func setBlocked(c conditions, o *observation) {
	p := o.obstacle
	c.set(v1alpha1.ConditionDatabaseReachable, false, p.Reason, p.Message)
	if o.database != nil { // the database is there, only the queue is another's
		setReachable(c, stateProblem(o))
	}
	c.set(v1alpha1.ConditionScalingActive, false, p.Reason, p.Message)
	setReadiness(c, p, "")
}

func stateProblem(o *observation) *sampler.Problem {
	if o.credentials.problem != nil {
		return o.credentials.problem
	}
	return o.state.Problem
}

func suspendedReason(q *v1alpha1.JobQueue) string {
	if q.Spec.Suspend {
		return v1alpha1.ReasonSuspended
	}
	return v1alpha1.ReasonResumed
}

func suspendedMessage(q *v1alpha1.JobQueue) string {
	if q.Spec.Suspend {
		return "no job is claimed; running jobs finish"
	}
	return "jobs are claimed"
}

// sampleStatus is what the decision was made from.
func sampleStatus(o *observation, r scaling.Rates) *v1alpha1.QueueSample {
	q, ok := o.state.Sample.Queues[queueName(o.queue)]
	if !ok {
		return nil
	}
	return &v1alpha1.QueueSample{
		TakenAt: metav1.Time{Time: o.state.Sample.TakenAt.Truncate(1e9)},
		Pending: q.Pending, PendingCapped: q.PendingCapped, Scheduled: q.Scheduled,
		Running: q.Running, Dead: q.Dead, OldestAgeSeconds: int64(q.OldestAge.Seconds()),
		ArrivalsPerMinute:    perMinute(r.Arrivals),
		CompletionsPerMinute: perMinute(r.Completions),
		MeanRunMilliseconds:  r.Service.Milliseconds(),
	}
}

func perMinute(perSecond float64) int64 { return int64(math.Round(perSecond * 60)) }

func decisionStatus(former *v1alpha1.ScalingDecision, o *observation, out outcome) *v1alpha1.ScalingDecision {
	d := out.plan.decision
	s := &v1alpha1.ScalingDecision{Replicas: d.Replicas, Needed: d.Needed, Reason: d.Reason, Message: d.Message}
	for _, l := range d.Limits {
		s.Limits = append(s.Limits, v1alpha1.AppliedLimit{Name: l.Name, From: l.From, To: l.To, Message: l.Message})
	}
	switch {
	case former != nil && former.Replicas == d.Replicas:
		s.LastChangeTime = former.LastChangeTime
	case former != nil || d.Replicas > 0:
		s.LastChangeTime = &metav1.Time{Time: o.now.Truncate(1e9)}
	}
	return s
}

// setScaling says whether replicas follow the queue, and what limits them.
func setScaling(c conditions, o *observation, out outcome) {
	d := out.plan.decision
	var taken *ownedElsewhere
	switch {
	case errors.As(out.scaled, &taken):
		c.set(v1alpha1.ConditionScalingActive, false, reasonReplicasTaken, taken.Error())
	case o.queue.Spec.Replicas != nil:
		c.set(v1alpha1.ConditionScalingActive, false, v1alpha1.ReasonManualReplicas, fmt.Sprintf(
			"spec.replicas is %d; remove it to scale by age again", *o.queue.Spec.Replicas))
	case !o.fresh:
		c.set(v1alpha1.ConditionScalingActive, false, v1alpha1.ReasonSampleStale, "replicas hold: "+o.stale.Message)
	case d.Reason == scaling.LimitSampleStale:
		c.set(v1alpha1.ConditionScalingActive, false, v1alpha1.ReasonSampleStale, "replicas hold: "+d.Message)
	case o.queue.Spec.Suspend:
		c.set(v1alpha1.ConditionScalingActive, false, v1alpha1.ReasonSuspended, "the queue is suspended")
	default:
		c.set(v1alpha1.ConditionScalingActive, true, v1alpha1.ReasonSampleFresh, "replicas follow the queue")
	}
	if len(d.Limits) == 0 {
		c.set(v1alpha1.ConditionScalingLimited, false, v1alpha1.ReasonWithinLimits, "replicas are what the queue needs")
		return
	}
	last := d.Limits[len(d.Limits)-1]
	c.set(v1alpha1.ConditionScalingLimited, true, last.Name, fmt.Sprintf("from %d to %d: %s", last.From, last.To, last.Message))
}

func setQueueBudget(c conditions, o *observation, d scaling.Decision) {
	for _, l := range d.Limits {
		if l.Name == scaling.LimitBudget {
			reason := v1alpha1.ReasonBudgetExhausted
			if o.page.shares.Missing > 0 {
				reason = v1alpha1.ReasonMinimumsExceedBudget
			}
			c.set(v1alpha1.ConditionBudgetConstrained, true, reason, fmt.Sprintf("%d replicas are wanted: %s", l.From, l.Message))
			return
		}
	}
	c.set(v1alpha1.ConditionBudgetConstrained, false, v1alpha1.ReasonWithinBudget, "the connection budget cuts nothing")
}

// setUnhandled names jobs that wait for a handler that no worker has. What a stale
// sample said stands.
func setUnhandled(c conditions, o *observation) {
	if !o.fresh {
		return
	}
	q := o.state.Sample.Queues[queueName(o.queue)]
	if q.Unhandled == 0 {
		c.set(v1alpha1.ConditionJobsUnhandled, false, v1alpha1.ReasonKindsKnown, "no job at the head of the queue waits for a handler that is not there")
		return
	}
	c.set(v1alpha1.ConditionJobsUnhandled, true, v1alpha1.ReasonUnknownKind, fmt.Sprintf(
		"jobs of kind %q and perhaps others have waited for more than a minute, and no worker has a handler of that kind; they hold replicas up. "+
			"Deploy workers that handle it, or cancel the jobs", q.UnhandledKind))
}

// readinessProblem is the first thing that keeps the JobQueue from being as
// declared; nil when it is. The number of pods that are up is no such thing: it
// comes and goes with the load.
func readinessProblem(o *observation, out outcome, policy sampler.PolicyState) *sampler.Problem {
	progressing := func(message string) *sampler.Problem {
		return &sampler.Problem{Reason: v1alpha1.ReasonProgressing, Message: message}
	}
	var taken *ownedElsewhere
	switch {
	case out.applied != nil:
		return &sampler.Problem{Reason: v1alpha1.ReasonApplyFailed, Message: out.applied.Error()}
	case out.scaled != nil && !errors.As(out.scaled, &taken):
		return &sampler.Problem{Reason: v1alpha1.ReasonApplyFailed, Message: out.scaled.Error()}
	case stateProblem(o) != nil:
		return &sampler.Problem{Reason: v1alpha1.ReasonDatabaseNotReady, Message: fmt.Sprintf(
			"QueueDatabase %q: %s: %s", o.database.Name, stateProblem(o).Reason, stateProblem(o).Message)}
	case policy.Problem != nil:
		return policy.Problem
	case deploymentTrouble(o.deployment) != "":
		return &sampler.Problem{Reason: v1alpha1.ReasonApplyFailed, Message: "pods cannot be made: " + deploymentTrouble(o.deployment)}
	case o.fleet.trouble != "":
		return &sampler.Problem{Reason: reasonWorkersFailing, Message: o.fleet.trouble}
	case policy.Generation != o.queue.Generation:
		return progressing("the policy is being written to the database")
	case out.waiting != "":
		return progressing(out.waiting)
	case !o.exists():
		return progressing("the Deployment is being made")
	case out.plan.template != nil && o.fleet.rolling(out.plan.template.Annotations[AnnotationTemplate]):
		return progressing("pods are being replaced by those of the new template")
	}
	return nil
}

// queueChange compares two statuses.
func queueChange(a, b v1alpha1.JobQueueStatus) importance {
	switch {
	case a.ObservedGeneration != b.ObservedGeneration, a.PolicyGeneration != b.PolicyGeneration,
		a.Selector != b.Selector, a.Replicas != b.Replicas, a.ReadyReplicas != b.ReadyReplicas,
		(a.Sample == nil) != (b.Sample == nil), (a.Decision == nil) != (b.Decision == nil),
		a.Decision != nil && a.Decision.Replicas != b.Decision.Replicas,
		!sameConditions(a.Conditions, b.Conditions):
		return otherState
	case equalStatus(a, b):
		return sameStatus
	}
	if a.Sample != nil {
		copied := *a.Sample
		copied.TakenAt = b.Sample.TakenAt
		a.Sample = &copied
	}
	if equalStatus(a, b) {
		return newerSample
	}
	return otherNumbers
}
