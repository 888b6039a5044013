package controllers

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

// databaseReconciler keeps QueueDatabases: their sampler, their reaper, and the
// state of their budget.
type databaseReconciler struct {
	client      client.Client
	hub         *sampler.Hub
	credentials *credentialStore
	books       *books
	applier     *applier
	clock       *statusClock
	reapers     *reaperWatch
	recorder    events.EventRecorder
	now         func() time.Time
	image       string
	pull        corev1.PullPolicy
	// horizonLimit is how long the horizon may be held without a warning.
	horizonLimit time.Duration
	written      lastWritten[v1alpha1.QueueDatabaseStatus]
}

// Reconcile observes a QueueDatabase, sets its sampler to work, applies the reaper
// and writes the status.
func (r *databaseReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	db := &v1alpha1.QueueDatabase{}
	if err := r.client.Get(ctx, req.NamespacedName, db); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read QueueDatabase: %w", err)
	}
	if !db.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	found, err := r.sample(ctx, db)
	if err != nil {
		return ctrl.Result{}, err
	}
	if found.credentials.problem == nil && !found.state.Attempted && db.Status.ObservedGeneration == db.Generation {
		// The operator has just started: what the status says is the best there is.
		return ctrl.Result{RequeueAfter: time.Minute}, nil
	}
	found.reaper = r.applyReaper(ctx, db)
	if found.ledger, err = r.books.open(ctx, db, r.now()); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.report(ctx, db, found); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: time.Minute}, nil
}

// sample reads the credentials and has the sampler use them.
func (r *databaseReconciler) sample(ctx context.Context, db *v1alpha1.QueueDatabase) (databaseFindings, error) {
	key := keyOf(db)
	before, known := r.credentials.last(key)
	c, err := r.credentials.read(ctx, db)
	if err != nil {
		return databaseFindings{}, err
	}
	changed := !known || !before.equal(c)
	if c.problem == nil {
		if err := r.hub.Configure(key, samplerConfig(db, c.url)); err != nil {
			c.problem = &sampler.Problem{Reason: v1alpha1.ReasonSecretInvalid, Message: err.Error()}
		}
	} else {
		r.hub.Remove(key) // a Secret that is gone has been revoked
	}
	if changed {
		r.hub.Announce(key)
	}
	state, _ := r.hub.State(key)
	return databaseFindings{credentials: c, state: state}, nil
}

func samplerConfig(db *v1alpha1.QueueDatabase, url string) sampler.Config {
	return sampler.Config{
		URL: url, Schema: schemaOf(db),
		Interval: seconds(positive(db.Spec.SampleIntervalSeconds, 5)),
		Migrate:  db.Spec.Migrations != v1alpha1.MigrationManual,
	}
}

// applyReaper applies the CronJob; its error is a finding for the status.
func (r *databaseReconciler) applyReaper(ctx context.Context, db *v1alpha1.QueueDatabase) error {
	image := reaperImage(db, r.image)
	if image == "" {
		return fmt.Errorf("no image for the reaper: set spec.reaper.image, or --operator-image for the operator")
	}
	wanted := reaperCronJob(db, image, r.pull)
	found := &batchv1.CronJob{}
	if err := r.client.Get(ctx, keyOf(wanted), found); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read CronJob: %w", err)
	}
	if err := r.applier.apply(ctx, wanted, found); err != nil {
		return err
	}
	return r.reapers.judge(found, failingReaper(db), r.now())
}

// forget drops what is known of a QueueDatabase that is gone. It announces that once
// only: the announcement has this reconciler look again, too.
func (r *databaseReconciler) forget(key types.NamespacedName) {
	_, known := r.credentials.last(key)
	r.hub.Remove(key)
	forgetDatabaseMetrics(key) // there are some without a sampler, too
	r.credentials.forget(key)
	r.applier.forget("CronJob", types.NamespacedName{Namespace: key.Namespace, Name: key.Name + reaperSuffix})
	r.written.forget(key)
	r.clock.forget(key)
	r.reapers.forget(types.NamespacedName{Namespace: key.Namespace, Name: key.Name + reaperSuffix})
	r.books.ledger.forgetDatabase(key)
	r.books.servers.forget(key)
	if known {
		r.hub.Announce(key)
	}
}
