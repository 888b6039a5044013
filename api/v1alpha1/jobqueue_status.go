package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JobQueueStatus is what the operator saw, decided and applied.
type JobQueueStatus struct {
	// The generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions: Ready, Reconciling, Stalled, DatabaseReachable, ScalingActive,
	// ScalingLimited, BudgetConstrained, JobsUnhandled, Suspended.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// The generation whose policy is in force in the database.
	// +optional
	PolicyGeneration int64 `json:"policyGeneration,omitempty"`

	// Worker pods that exist.
	// +optional
	Replicas int32 `json:"replicas"`

	// Worker pods that are ready to claim.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`

	// Label selector of the worker pods, for /scale.
	// +optional
	Selector string `json:"selector,omitempty"`

	// The sample that the decision was made from.
	// +optional
	Sample *QueueSample `json:"sample,omitempty"`

	// The decision, with every limit that changed it.
	// +optional
	Decision *ScalingDecision `json:"decision,omitempty"`
}

// QueueSample is what one query of the database said of the queue.
type QueueSample struct {
	// When it was taken, on the database's clock. Samples are taken all the time; where
	// nothing else has changed, this one is written every five minutes at most.
	TakenAt metav1.Time `json:"takenAt"`
	// Jobs that are ready and wait. Counted up to a bound: see pendingCapped.
	Pending int64 `json:"pending"`
	// True when pending is the bound of the count and there may be more.
	// +optional
	PendingCapped bool `json:"pendingCapped,omitempty"`
	// Jobs that wait for their time, counted up to the same bound.
	Scheduled int64 `json:"scheduled"`
	// Jobs that run.
	Running int64 `json:"running"`
	// Dead letters, counted up to the same bound.
	Dead int64 `json:"dead"`
	// Seconds that the oldest ready job has waited.
	OldestAgeSeconds int64 `json:"oldestAgeSeconds"`
	// Jobs that became ready per minute, measured over the past samples.
	// +optional
	ArrivalsPerMinute int64 `json:"arrivalsPerMinute,omitempty"`
	// Runs that ended per minute, measured over the past samples.
	// +optional
	CompletionsPerMinute int64 `json:"completionsPerMinute,omitempty"`
	// Mean length of a run in milliseconds, measured over the past samples.
	// +optional
	MeanRunMilliseconds int64 `json:"meanRunMilliseconds,omitempty"`
}

// ScalingDecision is how many replicas were decided on, and why.
type ScalingDecision struct {
	// Replicas decided on.
	Replicas int32 `json:"replicas"`
	// Replicas that the queue needs, before any limit.
	Needed int32 `json:"needed"`
	// The limit that decided, or what the need follows from.
	Reason string `json:"reason"`
	// The same in a sentence, with its numbers.
	// +optional
	Message string `json:"message,omitempty"`
	// The limits that changed the number, in the order they were applied.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Limits []AppliedLimit `json:"limits,omitempty"`
	// When the number last changed.
	// +optional
	LastChangeTime *metav1.Time `json:"lastChangeTime,omitempty"`
}

// AppliedLimit is one limit that changed a decision.
type AppliedLimit struct {
	// Name of the limit, for example MaxReplicas or ConnectionBudget.
	Name string `json:"name"`
	// Replicas before it.
	From int32 `json:"from"`
	// Replicas after it.
	To int32 `json:"to"`
	// Why, in a sentence.
	Message string `json:"message"`
}
