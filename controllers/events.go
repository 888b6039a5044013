package controllers

import (
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	corev1 "k8s.io/api/core/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// Reasons of events that are not those of a condition.
const (
	eventDatabaseLost      = "DatabaseLost"
	eventDatabaseRecovered = "DatabaseRecovered"
	eventBudgetFreed       = "BudgetFreed"
	eventOwnerNotReleased  = "OwnerNotReleased"
)

// loggingRecorder also logs the events that it records, under the name of the
// object's kind: events are gone after an hour, and their like are folded into one.
type loggingRecorder struct {
	events.EventRecorder
	log  logr.Logger
	kind string
}

// Eventf implements [events.EventRecorder].
func (r loggingRecorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
	name := ""
	if o, err := meta.Accessor(regarding); err == nil {
		name = o.GetNamespace() + "/" + o.GetName()
	}
	r.log.Info(fmt.Sprintf(note, args...), r.kind, name, "event", reason, "type", eventtype)
}

// announce emits events for what has changed between two sets of conditions, and
// none for what has not (P7).
func announce(recorder events.EventRecorder, object runtime.Object, before, after []metav1.Condition) {
	say := func(kind, reason string, c *metav1.Condition) {
		recorder.Eventf(object, nil, kind, reason, "Reconcile", "%s", c.Message)
	}
	for i := range after {
		now := &after[i]
		was := meta.FindStatusCondition(before, now.Type)
		changed := was != nil && (was.Status != now.Status || was.Reason != now.Reason)
		isTrue := now.Status == metav1.ConditionTrue
		switch now.Type {
		case v1alpha1.ConditionDatabaseReachable:
			switch {
			case isTrue && was != nil && was.Status == metav1.ConditionFalse:
				say(corev1.EventTypeNormal, eventDatabaseRecovered, now)
			case !isTrue && (was == nil || changed) && now.Reason != v1alpha1.ReasonProgressing:
				say(corev1.EventTypeWarning, eventDatabaseLost, now)
			}
		case v1alpha1.ConditionStalled:
			if was == nil || changed {
				say(corev1.EventTypeWarning, now.Reason, now)
			}
		case v1alpha1.ConditionBudgetConstrained:
			switch {
			case isTrue && (was == nil || changed):
				say(corev1.EventTypeWarning, now.Reason, now)
			case !isTrue && was != nil && was.Status == metav1.ConditionTrue:
				say(corev1.EventTypeNormal, eventBudgetFreed, now)
			}
		case v1alpha1.ConditionJobsUnhandled:
			if isTrue && (was == nil || changed) {
				say(corev1.EventTypeWarning, now.Reason, now)
			}
		case v1alpha1.ConditionSuspended:
			if (was == nil && isTrue) || changed {
				say(corev1.EventTypeNormal, now.Reason, now)
			}
		}
	}
}
