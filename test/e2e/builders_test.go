package e2e

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

const (
	// databaseName and secretName are what builders name unless told otherwise.
	databaseName = "app"
	secretName   = "app-db"
)

// DatabaseBuilder builds a QueueDatabase.
type DatabaseBuilder struct{ obj *v1alpha1.QueueDatabase }

// MakeDatabase begins a QueueDatabase that is sampled every second.
func MakeDatabase(name, namespace string) DatabaseBuilder {
	return DatabaseBuilder{&v1alpha1.QueueDatabase{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1alpha1.QueueDatabaseSpec{
			Credentials:           v1alpha1.DatabaseCredentials{SecretRef: v1alpha1.SecretKeyReference{Name: secretName}},
			SampleIntervalSeconds: 1,
		},
	}}
}

// Obj returns the built object.
func (b DatabaseBuilder) Obj() *v1alpha1.QueueDatabase { return b.obj }

// Budget fixes the number of connections.
func (b DatabaseBuilder) Budget(connections int32) DatabaseBuilder {
	b.obj.Spec.ConnectionBudget = v1alpha1.ConnectionBudget{Connections: &connections}
	return b
}

// Secret names another Secret.
func (b DatabaseBuilder) Secret(name string) DatabaseBuilder {
	b.obj.Spec.Credentials.SecretRef.Name = name
	return b
}

// Migrations says who migrates.
func (b DatabaseBuilder) Migrations(p v1alpha1.MigrationPolicy) DatabaseBuilder {
	b.obj.Spec.Migrations = p
	return b
}

// JobQueueBuilder builds a JobQueue.
type JobQueueBuilder struct{ obj *v1alpha1.JobQueue }

// MakeJobQueue begins a JobQueue with the shortest lease, quick retries and quick scaling, so
// that a spec waits for seconds where a user's queue may wait for a minute. So it does for a
// pod that is deleted while it starts: a signal that comes before the new process can handle
// it is lost on a container's first process, and the pod then stays for its whole grace.
func MakeJobQueue(name, namespace string) JobQueueBuilder {
	return JobQueueBuilder{&v1alpha1.JobQueue{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1alpha1.JobQueueSpec{
			DatabaseRef:    v1alpha1.LocalReference{Name: databaseName},
			TimeoutSeconds: 12,
			Lease:          v1alpha1.LeaseSpec{DurationSeconds: 4, HeartbeatSeconds: 1},
			Retry:          v1alpha1.RetrySpec{MaxAttempts: 5, BackoffSeconds: 1, BackoffMaxSeconds: 2},
			Scaling: v1alpha1.ScalingSpec{
				TargetAgeSeconds: 5, ScaleDownStabilizationSeconds: new(int32(2)),
			},
			Worker: v1alpha1.WorkerSpec{
				Slots: 4,
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(15)),
					Containers: []corev1.Container{{
						Name: "worker", Image: image, Args: []string{"worker"},
						Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{
								corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
							},
							Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
						},
					}},
				}},
			},
		},
	}}
}

// Obj returns the built object.
func (b JobQueueBuilder) Obj() *v1alpha1.JobQueue { return b.obj }

// Change changes what has no method of its own.
func (b JobQueueBuilder) Change(f func(*v1alpha1.JobQueueSpec)) JobQueueBuilder {
	f(&b.obj.Spec)
	return b
}

// Slots sets the jobs that one pod runs at once.
func (b JobQueueBuilder) Slots(n int32) JobQueueBuilder {
	b.obj.Spec.Worker.Slots = n
	return b
}

// Replicas fixes the number of pods.
func (b JobQueueBuilder) Replicas(n int32) JobQueueBuilder {
	b.obj.Spec.Replicas = &n
	return b
}

// Between bounds the number of pods.
func (b JobQueueBuilder) Between(least, most int32) JobQueueBuilder {
	b.obj.Spec.Scaling.MinReplicas, b.obj.Spec.Scaling.MaxReplicas = &least, most
	return b
}

// TargetAge sets the age of the oldest job to stay below.
func (b JobQueueBuilder) TargetAge(seconds int32) JobQueueBuilder {
	b.obj.Spec.Scaling.TargetAgeSeconds = seconds
	return b
}

// Stabilization sets how long replicas are kept.
func (b JobQueueBuilder) Stabilization(seconds int32) JobQueueBuilder {
	b.obj.Spec.Scaling.ScaleDownStabilizationSeconds = &seconds
	return b
}

// Weight sets the queue's share where queues compete.
func (b JobQueueBuilder) Weight(n int32) JobQueueBuilder {
	b.obj.Spec.Connections.Weight = n
	return b
}

// Timeout sets how long a run may take.
func (b JobQueueBuilder) Timeout(seconds int32) JobQueueBuilder {
	b.obj.Spec.TimeoutSeconds = seconds
	return b
}

// Env sets a variable of the worker's container.
func (b JobQueueBuilder) Env(name, value string) JobQueueBuilder {
	c := &b.obj.Spec.Worker.Template.Spec.Containers[0]
	c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	return b
}

// Image sets the image of the workers.
func (b JobQueueBuilder) Image(name string) JobQueueBuilder {
	b.obj.Spec.Worker.Template.Spec.Containers[0].Image = name
	return b
}

// noop is a job that succeeds at once.
func noop() queue.NewJob { return queue.NewJob{Kind: "noop", Payload: struct{}{}} }

// sleep is a job that takes so long.
func sleep(milliseconds int) queue.NewJob {
	return queue.NewJob{Kind: "sleep", Payload: map[string]int{"milliseconds": milliseconds}}
}

// times repeats a job.
func times(n int, job queue.NewJob) []queue.NewJob {
	jobs := make([]queue.NewJob, n)
	for i := range jobs {
		jobs[i] = job
	}
	return jobs
}
