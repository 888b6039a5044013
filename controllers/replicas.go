package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownedElsewhere says that another field manager holds the number of replicas.
type ownedElsewhere struct{ deployment, by string }

func (e *ownedElsewhere) Error() string {
	return fmt.Sprintf("spec.replicas of Deployment %q was set by %s and is left alone; "+
		"scale the JobQueue instead: any change of its spec takes the number back, and so does a number beyond the connection budget", e.deployment, e.by)
}

// scale sets the number of replicas as OwnerScaler, and returns the number before.
// Somebody else's number is not fought over: without force it stays, and the error
// is *ownedElsewhere.
func (a *applier) scale(ctx context.Context, d *appsv1.Deployment, replicas int32, force bool) (from int32, err error) {
	from = a.scaledTo(d)
	if from == replicas && orDefault(d.Spec.Replicas, 1) == replicas && ownsReplicas(d, OwnerScaler) {
		return from, nil
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1",
		"kind":       "Deployment",
		"metadata":   map[string]any{"namespace": d.Namespace, "name": d.Name},
		"spec":       map[string]any{"replicas": int64(replicas)},
	}}
	options := []client.ApplyOption{client.FieldOwner(OwnerScaler)}
	if force || ownsReplicas(d, OwnerTemplate) {
		options = append(options, client.ForceOwnership)
	}
	err = a.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), options...)
	if by := conflictingManagers(err); by != "" {
		return from, &ownedElsewhere{deployment: d.Name, by: by}
	}
	if err != nil {
		return from, fmt.Errorf("scale Deployment %q: %w", d.Name, err)
	}
	a.saw(appliedKey{"Deployment", keyOf(d)}, d.Generation, object.GetGeneration())
	a.setScaled(d, replicas)
	return from, nil
}

// scaledTo is the number set last, or else the one that the Deployment shows.
func (a *applier) scaledTo(d *appsv1.Deployment) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n, ok := a.scaled[keyOf(d)]; ok {
		return n
	}
	return orDefault(d.Spec.Replicas, 1)
}

func (a *applier) setScaled(d *appsv1.Deployment, replicas int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.scaled[keyOf(d)] = replicas
}

// ownsReplicas reports whether a field manager has set spec.replicas.
func ownsReplicas(d *appsv1.Deployment, manager string) bool {
	for _, entry := range d.ManagedFields {
		if entry.Manager == manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.FieldsV1 != nil &&
			strings.Contains(entry.FieldsV1.GetRawString(), `"f:replicas"`) {
			return true
		}
	}
	return false
}

// conflictingManagers names who holds the fields that an apply wanted; "" when the
// error is another.
func conflictingManagers(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return ""
	}
	var names []string
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			names = append(names, strings.TrimPrefix(cause.Message, "conflict with "))
		}
	}
	return strings.Join(names, ", ")
}
