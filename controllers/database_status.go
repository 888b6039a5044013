package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

// databaseFindings is what a reconcile of a QueueDatabase has found out.
type databaseFindings struct {
	credentials credentials
	state       sampler.State
	reaper      error
	ledger      *page
}

// problem is what keeps the database from being used; nil when nothing does.
func (f databaseFindings) problem() *sampler.Problem {
	switch {
	case f.credentials.problem != nil:
		return f.credentials.problem
	case !f.state.Attempted:
		return &sampler.Problem{Reason: v1alpha1.ReasonProgressing, Message: "connecting for the first time"}
	}
	return f.state.Problem
}

// needsUser tells reasons that only a change by the user mends from those that may
// pass by themselves.
func needsUser(reason string) bool {
	switch reason {
	case v1alpha1.ReasonSecretInvalid, v1alpha1.ReasonAuthenticationFailed, v1alpha1.ReasonSchemaMissing,
		v1alpha1.ReasonSchemaOutdated, v1alpha1.ReasonSchemaTooNew, v1alpha1.ReasonMigrationFailed,
		v1alpha1.ReasonApplyFailed, v1alpha1.ReasonQueueOwned, v1alpha1.ReasonPolicyRefused:
		return true
	}
	return false
}

// reachable tells whether a problem is one of reaching the database.
func reachable(reason string) bool {
	switch reason {
	case v1alpha1.ReasonSchemaMissing, v1alpha1.ReasonSchemaOutdated, v1alpha1.ReasonSchemaTooNew, v1alpha1.ReasonMigrationFailed:
		return true
	}
	return false
}

// report writes the status if it is due, and announces what has changed.
func (r *databaseReconciler) report(ctx context.Context, db *v1alpha1.QueueDatabase, f databaseFindings) error {
	before := r.written.of(keyOf(db), db.UID, db.Status)
	after := databaseStatus(db.Generation, *before.DeepCopy(), f, r.horizonLimit)
	databaseMetrics(db, f, after)
	horizonMetrics(keyOf(db), f.state, before.HorizonHolder, after.HorizonHolder)
	if !r.clock.due(db, databaseChange(before, after), r.now()) {
		return nil
	}
	base := db.DeepCopy()
	base.Status = before
	changed := db.DeepCopy()
	changed.Status = after
	if err := r.client.Status().Patch(ctx, changed, client.MergeFrom(base)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write status: %w", err))
	}
	r.written.keep(keyOf(db), db.UID, after)
	announce(r.recorder, db, before.Conditions, after.Conditions)
	announceHorizon(r.recorder, db, before, after)
	return nil
}

// databaseStatus is the former status brought up to date.
func databaseStatus(generation int64, s v1alpha1.QueueDatabaseStatus, f databaseFindings, horizonLimit time.Duration) v1alpha1.QueueDatabaseStatus {
	s.ObservedGeneration = generation
	c := conditions{list: &s.Conditions, generation: generation}
	if f.state.Attempted {
		s.SchemaVersion = int32(f.state.SchemaVersion)
	}
	if sample := f.state.Sample; sample != nil {
		s.LastSampleTime = &metav1.Time{Time: sample.TakenAt.Truncate(1e9)}
		s.Connections = &v1alpha1.DatabaseConnections{
			Max: int32(sample.MaxConnections), Reserved: int32(sample.ReservedConnections),
			Others: f.ledger.server.Others, InUse: int32(sample.OurConnections),
			Budget: f.ledger.total, Allocated: f.ledger.shares.Allocated,
			Elsewhere: f.ledger.shares.Elsewhere, SharedWith: f.ledger.sharedWith(),
		}
	}
	s.Grants = nil
	for _, g := range f.ledger.shares.Grants {
		s.Grants = append(s.Grants, v1alpha1.ConnectionGrant{Name: g.Name, Connections: g.Connections, Replicas: g.Replicas})
	}
	setReachable(c, f.problem())
	setDatabaseBudget(c, f.ledger)
	if f.state.Sample != nil { // what was seen last stands
		s.HorizonHolder = horizonHolder(s.HorizonHolder, f.state, horizonLimit)
		setHorizon(c, s.HorizonHolder, f.state.Sample, horizonLimit)
	}
	setDatabaseReady(c, f)
	return s
}

func setReachable(c conditions, problem *sampler.Problem) {
	if problem == nil || reachable(problem.Reason) {
		c.set(v1alpha1.ConditionDatabaseReachable, true, v1alpha1.ReasonConnected, "the database answers")
		return
	}
	c.set(v1alpha1.ConditionDatabaseReachable, false, problem.Reason, problem.Message)
}

func setDatabaseBudget(c conditions, p *page) {
	switch {
	case !p.serverKnown:
		c.set(v1alpha1.ConditionBudgetConstrained, false, v1alpha1.ReasonProgressing, "the budget follows from the first sample")
	case p.shares.Missing > 0:
		c.set(v1alpha1.ConditionBudgetConstrained, true, v1alpha1.ReasonMinimumsExceedBudget, fmt.Sprintf(
			"%d connections lack for the queues' minReplicas: the budget is %d, %d of them for operator and reaper%s",
			p.shares.Missing, p.total, p.shares.Overhead, p.company()))
	case p.shares.Exceeded:
		c.set(v1alpha1.ConditionBudgetConstrained, true, v1alpha1.ReasonBudgetOverdrawn, fmt.Sprintf(
			"more connections are promised than there are by now, %d of them from the budget of %d: no pods are added until enough are gone%s",
			p.shares.Allocated, p.total, p.company()))
	case p.short():
		c.set(v1alpha1.ConditionBudgetConstrained, true, v1alpha1.ReasonBudgetExhausted, fmt.Sprintf(
			"the queues need more connections than the budget of %d has%s", p.total, p.company()))
	default:
		c.set(v1alpha1.ConditionBudgetConstrained, false, v1alpha1.ReasonWithinBudget, fmt.Sprintf(
			"all that the queues need fits the budget of %d connections", p.total))
	}
}

// namesShown is how many neighbours a message names.
const namesShown = 3

// company says, as the end of a sentence, who else has connections of the server
// that the budget must leave; "" when nobody has.
func (p *page) company() string {
	text := ""
	if names := p.sharedWith(); len(names) > 0 {
		more := ""
		if len(names) > namesShown {
			more = fmt.Sprintf(" and %d more", len(names)-namesShown)
			names = names[:namesShown]
		}
		text = fmt.Sprintf("; on the same server, %d connections are promised to QueueDatabase %s%s",
			p.shares.Elsewhere, strings.Join(names, ", "), more)
	}
	if p.strays > 0 {
		text += fmt.Sprintf("; %d connections of job queues are in use that this operator has not promised, and count as other clients'", p.strays)
	}
	return text
}

// short reports whether a queue gets less than it would have without a budget.
func (p *page) short() bool {
	for _, g := range p.shares.Grants {
		if g.Replicas < p.demands[g.Name] {
			return true
		}
	}
	return false
}

func setDatabaseReady(c conditions, f databaseFindings) {
	problem := f.problem()
	var failing *reaperFailing
	switch {
	case problem != nil:
	case errors.As(f.reaper, &failing):
		problem = &sampler.Problem{Reason: v1alpha1.ReasonReaperFailing, Message: failing.Error()}
	case f.reaper != nil:
		problem = &sampler.Problem{Reason: v1alpha1.ReasonApplyFailed, Message: "reaper: " + f.reaper.Error()}
	}
	setReadiness(c, problem, fmt.Sprintf("the database answers, its schema has version %d", f.state.SchemaVersion))
}

// setReadiness sets Ready, and Reconciling or Stalled as kstatus wants them.
func setReadiness(c conditions, problem *sampler.Problem, ready string) {
	if problem == nil {
		c.set(v1alpha1.ConditionReady, true, v1alpha1.ReasonReady, ready)
		meta.RemoveStatusCondition(c.list, v1alpha1.ConditionReconciling)
		meta.RemoveStatusCondition(c.list, v1alpha1.ConditionStalled)
		return
	}
	stalled := needsUser(problem.Reason)
	c.set(v1alpha1.ConditionReady, false, problem.Reason, problem.Message)
	c.only(v1alpha1.ConditionStalled, stalled, problem.Reason, problem.Message)
	c.only(v1alpha1.ConditionReconciling, !stalled, problem.Reason, problem.Message)
}

// databaseChange compares two statuses.
func databaseChange(a, b v1alpha1.QueueDatabaseStatus) importance {
	switch {
	case a.ObservedGeneration != b.ObservedGeneration, a.SchemaVersion != b.SchemaVersion,
		!sameConditions(a.Conditions, b.Conditions), !slices.Equal(a.Grants, b.Grants),
		(a.Connections == nil) != (b.Connections == nil),
		a.Connections != nil && !slices.Equal(a.Connections.SharedWith, b.Connections.SharedWith):
		return otherState
	case equalStatus(a, b):
		return sameStatus
	}
	a.LastSampleTime = b.LastSampleTime
	if equalStatus(a, b) {
		return newerSample
	}
	return otherNumbers
}
