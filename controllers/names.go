package controllers

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// Labels and annotations of what the operator makes.
const (
	// LabelQueue names the JobQueue on its Deployment and pods. It alone is the
	// selector, which can never change.
	LabelQueue = "jobqueue.dev/queue"
	// LabelDatabase names the QueueDatabase.
	LabelDatabase = "jobqueue.dev/database"

	labelName      = "app.kubernetes.io/name"
	labelInstance  = "app.kubernetes.io/instance"
	labelComponent = "app.kubernetes.io/component"
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "jobqueue-operator"

	// AnnotationCredentials changes with the credentials, so that pods with
	// rotated ones are replaced.
	AnnotationCredentials = "jobqueue.dev/credentials"
	// AnnotationConnections is how many connections a pod was started with, which
	// may differ from what the JobQueue says by now.
	AnnotationConnections = "jobqueue.dev/connections"
	// AnnotationTemplate tells pods of one template from those of another.
	AnnotationTemplate = "jobqueue.dev/template"
)

// Field owners of server-side apply: the template and the number of replicas belong
// to different ones, so that neither takes the other back.
const (
	OwnerTemplate = "jobqueue-operator"
	OwnerScaler   = "jobqueue-scaler"
)

// Finalizer delays a JobQueue's end until its queue has no owner any more.
const Finalizer = "jobqueue.dev/queue-owner"

// queueName is the name of the queue in the database.
func queueName(q *v1alpha1.JobQueue) string {
	if q.Spec.QueueName != "" {
		return q.Spec.QueueName
	}
	return q.Name
}

// ownerOf is what the database knows the JobQueue as.
func ownerOf(q *v1alpha1.JobQueue) string { return q.Namespace + "/" + q.Name }

func keyOf(o interface {
	GetNamespace() string
	GetName() string
}) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func databaseKey(q *v1alpha1.JobQueue) types.NamespacedName {
	return types.NamespacedName{Namespace: q.Namespace, Name: q.Spec.DatabaseRef.Name}
}

// workerLabels are on the Deployment, its pods and its PodDisruptionBudget.
func workerLabels(q *v1alpha1.JobQueue) map[string]string {
	return map[string]string{
		labelName:      "jobqueue-worker",
		labelInstance:  q.Name,
		labelComponent: "worker",
		labelManagedBy: managedBy,
		LabelQueue:     q.Name,
		LabelDatabase:  q.Spec.DatabaseRef.Name,
	}
}

func selectorLabels(q *v1alpha1.JobQueue) map[string]string {
	return map[string]string{LabelQueue: q.Name}
}

func orDefault[T any](p *T, value T) T {
	if p != nil {
		return *p
	}
	return value
}

func positive(n, otherwise int32) int32 {
	if n > 0 {
		return n
	}
	return otherwise
}
