package controllers

import (
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// reaperPatience is how long a run may go without success before that is said: its
// deadline, and as long as it takes to see that it was missed.
const reaperPatience = (reaperDeadline + reaperStartWithin) * time.Second

// reaperFailing says that the CronJob is there, and its runs come to nothing.
type reaperFailing struct{ message string }

func (e *reaperFailing) Error() string {
	return e.message + ": retention is not applied, and expired leases of queues without workers are not returned"
}

// reaperWatch remembers since when each CronJob has had a run without a success after it.
// Its status has the start of the latest run alone, which a run that hangs moves on.
type reaperWatch struct {
	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

func newReaperWatch() *reaperWatch { return &reaperWatch{since: map[types.NamespacedName]time.Time{}} }

// judge returns a *reaperFailing for a CronJob whose runs have not succeeded for
// reaperPatience. Where the status has said so before this process began, that stands
// until one succeeds.
func (w *reaperWatch) judge(cron *batchv1.CronJob, saidSo bool, now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := keyOf(cron)
	if orDefault(cron.Spec.Suspend, false) {
		return &reaperFailing{fmt.Sprintf("CronJob %q is suspended", cron.Name)}
	}
	began, succeeded := cron.Status.LastScheduleTime, cron.Status.LastSuccessfulTime
	if began == nil || succeeded != nil && !succeeded.Before(began) {
		delete(w.since, key)
		return nil
	}
	since, known := w.since[key]
	if !known {
		since = now
		if saidSo {
			since = now.Add(-reaperPatience)
		}
		w.since[key] = since
	}
	if now.Sub(since) < reaperPatience {
		return nil
	}
	last := "none ever has"
	if succeeded != nil {
		last = "the last one did at " + succeeded.UTC().Format(time.RFC3339)
	}
	return &reaperFailing{fmt.Sprintf("no run of CronJob %q succeeds, %s; see its Jobs and their pods", cron.Name, last)}
}

func (w *reaperWatch) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, key)
}

// failingReaper reports whether the status says that the reaper fails.
func failingReaper(db *v1alpha1.QueueDatabase) bool {
	c := meta.FindStatusCondition(db.Status.Conditions, v1alpha1.ConditionReady)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonReaperFailing
}
