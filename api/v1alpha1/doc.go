// Package v1alpha1 holds the API of the JobQueue operator: QueueDatabase, a
// PostgreSQL database that holds job queues, and JobQueue, one queue in it with
// its policy and its workers.
//
// Every duration is an integer whose unit is part of the field's name
// (leaseSeconds style), as in the core Kubernetes API, so that admission rules can compare
// them and no reader has to guess a unit.
//
// +kubebuilder:object:generate=true
// +groupName=jobqueue.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every kind in this package.
	GroupVersion = schema.GroupVersion{Group: "jobqueue.dev", Version: "v1alpha1"}

	// SchemeBuilder registers the kinds of this package.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&JobQueue{}, &JobQueueList{},
		&QueueDatabase{}, &QueueDatabaseList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
