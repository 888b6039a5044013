package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// releaseWithin bounds how long a JobQueue's deletion waits for a database that
// does not answer, from when this operator first saw it.
const releaseWithin = 15 * time.Second

// deletions knows since when JobQueues are being deleted, by this process's clock:
// the API server's, which is in their deletionTimestamp, may differ from it.
type deletions struct {
	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

func newDeletions() *deletions { return &deletions{since: map[types.NamespacedName]time.Time{}} }

// waited is how long ago the deletion was first seen.
func (d *deletions) waited(q *v1alpha1.JobQueue, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, seen := d.since[keyOf(q)]
	if !seen {
		since = now
		d.since[keyOf(q)] = now
	}
	return now.Sub(since)
}

func (d *deletions) forget(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.since, key)
}

// finalize clears the owner of the queue, so that another JobQueue may have it.
// The jobs and the policy stay (P5). A database that is gone or does not answer
// delays the deletion, but does not prevent it.
func (r *queueReconciler) finalize(ctx context.Context, q *v1alpha1.JobQueue) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(q, Finalizer) {
		return ctrl.Result{}, nil
	}
	released, why, err := r.release(ctx, q)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !released {
		if left := releaseWithin - r.deletions.waited(q, r.now()); left > 0 && why == "" {
			return ctrl.Result{RequeueAfter: min(left, time.Second) + 10*time.Millisecond}, nil
		}
		if why == "" {
			why = "the database did not answer in time"
			// A Secret goes with its namespace, often before the JobQueues do.
			if c, read := r.credentials.last(databaseKey(q)); read && c.problem != nil {
				why = c.problem.Message
			}
		}
		r.recorder.Eventf(q, nil, corev1.EventTypeWarning, eventOwnerNotReleased, "Finalize",
			"queue %q may still have %q as its owner: %s; a JobQueue of the same namespace and name takes it up again, "+
				"and the SQL function release_owner lets any other one have it", queueName(q), ownerOf(q), why)
	}
	base := q.DeepCopy()
	controllerutil.RemoveFinalizer(q, Finalizer)
	if err := r.client.Patch(ctx, q, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("remove finalizer: %w", err))
	}
	r.forget(keyOf(q))
	return ctrl.Result{}, nil
}

// release asks for the owner to be cleared. why is set when that cannot be done,
// however long one waits.
func (r *queueReconciler) release(ctx context.Context, q *v1alpha1.JobQueue) (released bool, why string, err error) {
	key := databaseKey(q)
	if err := r.client.Get(ctx, key, &v1alpha1.QueueDatabase{}); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, fmt.Sprintf("QueueDatabase %q does not exist", key.Name), nil
		}
		return false, "", fmt.Errorf("read QueueDatabase: %w", err)
	}
	r.hub.Release(key, queueName(q), ownerOf(q))
	state, _ := r.hub.State(key)
	return state.Released(queueName(q), ownerOf(q)), "", nil
}
