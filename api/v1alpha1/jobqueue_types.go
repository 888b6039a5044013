package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JobQueueSpec describes a queue: its policy, its workers and how they scale.
// +kubebuilder:validation:XValidation:rule="!has(self.worker.template.spec) || !has(self.worker.template.spec.terminationGracePeriodSeconds) || self.worker.template.spec.terminationGracePeriodSeconds > self.timeoutSeconds",message="worker.template.spec.terminationGracePeriodSeconds must be greater than timeoutSeconds, else a running job is killed before it may finish; leave it out for timeoutSeconds + 30"
// +kubebuilder:validation:XValidation:rule="!has(self.worker.template.spec) || !has(self.worker.template.spec.terminationGracePeriodSeconds) || self.worker.template.spec.terminationGracePeriodSeconds <= 172800",message="worker.template.spec.terminationGracePeriodSeconds must be at most 172800, two days"
// +kubebuilder:validation:XValidation:rule="!has(self.batch.size) || self.batch.size >= self.worker.slots",message="batch.size must not be below worker.slots: a claim must be able to fill every slot"
type JobQueueSpec struct {
	// The QueueDatabase that holds the queue, in the same namespace.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",messageExpression="'databaseRef cannot be changed: the jobs would stay behind in the other database; create another JobQueue; it is ' + oldSelf.name + ', not ' + self.name"
	DatabaseRef LocalReference `json:"databaseRef"`

	// Name of the queue in the database. Empty: the name of the JobQueue.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9_.]*[a-z0-9])?$')",messageExpression="'queueName must consist of lower-case letters, digits, \\'-\\', \\'_\\' and \\'.\\', and begin and end with a letter or digit; it is ' + self"
	QueueName string `json:"queueName,omitempty"`

	// Stops new claims; running jobs finish. Workers stay until none runs any more, and
	// then go, down to scaling.minReplicas.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// A fixed number of replicas instead of scaling by age, still within the connection
	// budget. `kubectl scale` sets it; remove it to scale by age again.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Replicas *int32 `json:"replicas,omitempty"`

	// How long a run may take, in seconds. Then its context is cancelled and the
	// attempt has failed.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// When a worker counts as dead.
	// +optional
	// +kubebuilder:default={}
	Lease LeaseSpec `json:"lease,omitempty"`

	// What happens after a failed attempt.
	// +optional
	// +kubebuilder:default={}
	Retry RetrySpec `json:"retry,omitempty"`

	// How many jobs a worker claims at once.
	// +optional
	// +kubebuilder:default={}
	Batch BatchSpec `json:"batch,omitempty"`

	// The largest payload accepted at enqueue, in bytes. Large data belongs in
	// object storage, with a reference in the payload.
	// +optional
	// +kubebuilder:default=262144
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777216
	MaxPayloadBytes int32 `json:"maxPayloadBytes,omitempty"`

	// How long ended jobs are kept.
	// +optional
	// +kubebuilder:default={}
	Retention RetentionSpec `json:"retention,omitempty"`

	// The worker pods.
	// +required
	Worker WorkerSpec `json:"worker"`

	// How the number of worker pods follows the queue.
	// +optional
	// +kubebuilder:default={}
	Scaling ScalingSpec `json:"scaling,omitempty"`

	// What each worker pod takes of the database's connection budget.
	// +optional
	// +kubebuilder:default={}
	Connections ConnectionsSpec `json:"connections,omitempty"`
}

// LocalReference names an object in the same namespace.
type LocalReference struct {
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// LeaseSpec says when a worker that gives no sign of life loses its jobs.
// +kubebuilder:validation:XValidation:rule="!has(self.heartbeatSeconds) || !has(self.durationSeconds) || self.heartbeatSeconds * 2 <= self.durationSeconds",message="lease.heartbeatSeconds must be at most half of lease.durationSeconds, so that one late heartbeat loses no job"
type LeaseSpec struct {
	// Seconds without a heartbeat after which a worker's jobs run elsewhere.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=4
	// +kubebuilder:validation:Maximum=86400
	DurationSeconds int32 `json:"durationSeconds,omitempty"`

	// Seconds between two heartbeats of a worker.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=43200
	HeartbeatSeconds int32 `json:"heartbeatSeconds,omitempty"`
}

// RetrySpec says how often and how late a failed job runs again. The delay before
// attempt n+1 is min(backoffMaxSeconds, backoffSeconds * 2^(n-1)), give or take the jitter.
// +kubebuilder:validation:XValidation:rule="!has(self.backoffSeconds) || !has(self.backoffMaxSeconds) || self.backoffSeconds <= self.backoffMaxSeconds",message="retry.backoffSeconds must not exceed retry.backoffMaxSeconds"
type RetrySpec struct {
	// Attempts after which a job goes to the dead letters. A job may name its own number.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// Delay after the first failed attempt, in seconds.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	BackoffSeconds int32 `json:"backoffSeconds,omitempty"`

	// The longest delay, in seconds.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	BackoffMaxSeconds int32 `json:"backoffMaxSeconds,omitempty"`

	// How far a delay may differ at random in either direction, in percent of it.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	JitterPercent *int32 `json:"jitterPercent,omitempty"`
}

// BatchSpec bounds a claim.
type BatchSpec struct {
	// The most jobs that one claim takes. A claim never takes more than the worker can
	// start soon. Not below worker.slots. Empty: 2000, or worker.slots if that is more.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Size *int32 `json:"size,omitempty"`
}

// RetentionSpec says how long ended jobs are kept.
type RetentionSpec struct {
	// Seconds that finished jobs (succeeded, discarded, cancelled) are kept.
	// +optional
	// +kubebuilder:default=86400
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=315360000
	FinishedSeconds *int64 `json:"finishedSeconds,omitempty"`

	// Seconds that dead letters are kept.
	// +optional
	// +kubebuilder:default=1209600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=315360000
	DeadSeconds *int64 `json:"deadSeconds,omitempty"`
}

// WorkerSpec describes the worker pods.
// +kubebuilder:validation:XValidation:rule="has(self.template.spec) && size(self.template.spec.containers) > 0",message="worker.template.spec must name the worker's container"
type WorkerSpec struct {
	// Jobs that one pod runs at the same time.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Slots int32 `json:"slots,omitempty"`

	// The pod. The container named "worker", or else the first one, is the worker: it gets
	// the database's URI, the queue, slots and pool size in its environment, probes, and a
	// restricted security context, wherever the template does not set them itself.
	// +required
	Template corev1.PodTemplateSpec `json:"template"`
}

// ScalingSpec says how replicas follow the age of the oldest pending job.
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="scaling.minReplicas must not exceed scaling.maxReplicas"
type ScalingSpec struct {
	// The fewest worker pods. 0 lets an idle queue cost nothing.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MinReplicas *int32 `json:"minReplicas,omitempty"`

	// The most worker pods.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxReplicas int32 `json:"maxReplicas,omitempty"`

	// How old, in seconds, the oldest pending job may become. Replicas are chosen so that
	// it stays below.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	TargetAgeSeconds int32 `json:"targetAgeSeconds,omitempty"`

	// Replicas fall only to the most that any decision within this many past seconds asked for.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ScaleDownStabilizationSeconds *int32 `json:"scaleDownStabilizationSeconds,omitempty"`
}

// ConnectionsSpec is what the queue takes of the database's connection budget.
type ConnectionsSpec struct {
	// Database connections of one worker pod, the listening one among them.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=1000
	PerReplica int32 `json:"perReplica,omitempty"`

	// Share in the budget where queues compete for it, relative to the other queues' weights.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Weight int32 `json:"weight,omitempty"`
}

// JobQueue is a queue of jobs in a PostgreSQL database, with its workers.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=jq,categories=jobqueue-operator
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.sample.pending`
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.sample.running`
// +kubebuilder:printcolumn:name="Oldest",type=integer,JSONPath=`.status.sample.oldestAgeSeconds`,description="Age of the oldest pending job in seconds"
// +kubebuilder:printcolumn:name="Target",type=integer,JSONPath=`.spec.scaling.targetAgeSeconds`,description="The age to stay below in seconds"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.decision.replicas`
// +kubebuilder:printcolumn:name="Up",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.sample.dead`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.decision.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="metadata.name must be at most 52 characters: the worker Deployment and its pods are named after it"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.queueName) ? self.spec.queueName : self.metadata.name) == (has(oldSelf.spec.queueName) ? oldSelf.spec.queueName : self.metadata.name)",message="spec.queueName cannot be changed, nor given or taken away later: the jobs would stay behind; create another JobQueue"
type JobQueue struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec JobQueueSpec `json:"spec"`
	// +optional
	Status JobQueueStatus `json:"status,omitempty"`
}

// JobQueueList is a list of JobQueues.
// +kubebuilder:object:root=true
type JobQueueList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []JobQueue `json:"items"`
}
