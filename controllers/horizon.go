package controllers

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

const (
	// defaultHorizonLimit is how long the horizon may be held without a warning. Longer
	// than reports and migrations mostly take, and short of what harms.
	defaultHorizonLimit = 5 * time.Minute
	// horizonSettle is how long the operator must have seen the horizon stand still
	// before it believes in the age of a transaction: an old one at READ COMMITTED takes a
	// new snapshot for each statement, and holds nothing between them.
	horizonSettle = 10 * time.Second
)

// horizonAge says since when and for how long the sample's holder has held the
// horizon. former is what was reported before: a restart forgets what the operator
// has seen, a status does not.
func horizonAge(former *v1alpha1.HorizonHolder, state sampler.State, settle time.Duration) (since time.Time, age time.Duration) {
	h, now := state.Sample.Horizon, state.Sample.TakenAt
	if h == nil {
		return time.Time{}, 0
	}
	since = state.HorizonSince
	known := former != nil && sameHolder(former, holderStatus(h, since))
	if h.Started.IsZero() {
		if known && former.Xmin == int64(h.Xmin) && former.Since.Time.Before(since) {
			since = former.Since.Time
		}
	} else if now.Sub(since) >= settle || known && former.Since.Time.Equal(h.Started.Truncate(time.Second)) {
		since = h.Started
	}
	return since, max(now.Sub(since), 0)
}

// horizonHolder is who has held the horizon for the limit or longer, or nil.
func horizonHolder(former *v1alpha1.HorizonHolder, state sampler.State, limit time.Duration) *v1alpha1.HorizonHolder {
	since, age := horizonAge(former, state, min(horizonSettle, limit))
	if state.Sample.Horizon == nil || age < limit {
		return nil
	}
	return holderStatus(state.Sample.Horizon, since)
}

func holderStatus(h *queue.HorizonHolder, since time.Time) *v1alpha1.HorizonHolder {
	return &v1alpha1.HorizonHolder{
		Kind: string(h.Kind), Name: h.Name, Database: h.Database, PID: int32(h.PID), ApplicationName: h.Application, User: h.User,
		Since: metav1.Time{Time: since.Truncate(time.Second)}, Xmin: int64(h.Xmin),
	}
}

// sameHolder is HorizonHolder.Same of package queue.
func sameHolder(a, b *v1alpha1.HorizonHolder) bool {
	of := func(h *v1alpha1.HorizonHolder) queue.HorizonHolder {
		return queue.HorizonHolder{Kind: queue.HolderKind(h.Kind), Name: h.Name, PID: int(h.PID)}
	}
	return of(a).Same(of(b))
}

// setHorizon names the holder and what to do about it. Its age is rounded, so that it
// alone is a status write in a minute at most.
func setHorizon(c conditions, holder *v1alpha1.HorizonHolder, sample *queue.Sample, limit time.Duration) {
	if holder == nil {
		c.set(v1alpha1.ConditionHorizonHeld, false, v1alpha1.ReasonHorizonAdvances,
			fmt.Sprintf("nothing has kept dead rows for longer than %s", limit))
		return
	}
	h := sample.Horizon
	atLeast := ""
	if h.Started.IsZero() {
		atLeast = "at least "
	}
	c.set(v1alpha1.ConditionHorizonHeld, true, holderReason(h.Kind), fmt.Sprintf(
		"%s has held an old snapshot or transaction for %s%s: dead rows of the queues' tables cannot be removed, and tables and indexes grow; %s",
		h, atLeast, roundAge(sample.TakenAt.Sub(holder.Since.Time)), h.Remedy()))
}

func holderReason(kind queue.HolderKind) string {
	switch kind {
	case queue.HolderPrepared:
		return v1alpha1.ReasonPreparedTransaction
	case queue.HolderSlot:
		return v1alpha1.ReasonReplicationSlot
	case queue.HolderStandby:
		return v1alpha1.ReasonStandby
	}
	return v1alpha1.ReasonOldSession
}

func roundAge(age time.Duration) time.Duration {
	if age < time.Minute {
		return age.Truncate(time.Second)
	}
	return age.Truncate(time.Minute)
}

// announceHorizon warns of each holder once.
func announceHorizon(recorder events.EventRecorder, object runtime.Object, before, after v1alpha1.QueueDatabaseStatus) {
	holder := after.HorizonHolder
	if holder == nil || before.HorizonHolder != nil && sameHolder(before.HorizonHolder, holder) {
		return
	}
	c := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionHorizonHeld)
	recorder.Eventf(object, nil, corev1.EventTypeWarning, v1alpha1.ConditionHorizonHeld, "Reconcile", "%s", c.Message)
}

// horizonMetrics shows the horizon's age, and who holds it while it is reported.
func horizonMetrics(key types.NamespacedName, state sampler.State, before, after *v1alpha1.HorizonHolder) {
	if after == nil || before == nil || !sameHolder(before, after) {
		metricHolder.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "queuedatabase": key.Name})
	}
	if state.Sample == nil {
		return
	}
	_, age := horizonAge(before, state, horizonSettle)
	transactions := int64(0)
	if h := state.Sample.Horizon; h != nil {
		transactions = h.XminAge
	}
	metricHorizon.WithLabelValues(key.Namespace, key.Name).Set(age.Seconds())
	metricHorizonTx.WithLabelValues(key.Namespace, key.Name).Set(float64(transactions))
	if after != nil {
		metricHolder.WithLabelValues(after.Kind, after.Name, pid(after.PID), after.ApplicationName, after.User, key.Namespace, key.Name).Set(1)
	}
}

// pid is empty where there is no process.
func pid(n int32) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}
