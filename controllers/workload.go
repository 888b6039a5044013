package controllers

import (
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	corev1 "k8s.io/api/core/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
)

// Seconds for which a new pod must have been ready before a rollout takes the next
// ones away. While pods of the last step still hold connections that is their
// whole grace period; else it is long enough for an operator that takes over to
// notice the next step.
const (
	rolloutStepSeconds = 15
	rolloutLockMargin  = 5
	progressMargin     = 600
)

// workerDeployment is the Deployment without its number of replicas, which is the
// scaler's. locked holds a rollout back, see above (B6).
func workerDeployment(q *v1alpha1.JobQueue, template corev1.PodTemplateSpec, locked bool) *appsv1.Deployment {
	minReady := int32(rolloutStepSeconds)
	if locked {
		minReady = int32(min(graceOf(q), 1<<30)) + rolloutLockMargin
	}
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: ownedMeta(q, "JobQueue", q.Name, workerLabels(q)),
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: selectorLabels(q)},
			Template: template,
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxSurge:       new(intstr.FromInt32(budget.MaxSurge)),
					MaxUnavailable: new(intstr.FromString(budget.MaxUnavailable)),
				},
			},
			MinReadySeconds:         minReady,
			ProgressDeadlineSeconds: new(minReady + progressMargin),
			RevisionHistoryLimit:    new(int32(3)),
		},
	}
}

// workerDisruption lets a drain take one pod at a time. That is at least one also
// where there is only one, so that no queue blocks a node's drain.
func workerDisruption(q *v1alpha1.JobQueue) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: ownedMeta(q, "JobQueue", q.Name, workerLabels(q)),
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:                   &metav1.LabelSelector{MatchLabels: selectorLabels(q)},
			MaxUnavailable:             new(intstr.FromInt32(1)),
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}

// ownedMeta is the metadata of something that goes when its owner does.
func ownedMeta(owner metav1.Object, kind, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: owner.GetNamespace(),
		Name:      name,
		Labels:    labels,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: kind,
			Name: owner.GetName(), UID: owner.GetUID(),
			Controller: new(true), BlockOwnerDeletion: new(true),
		}},
	}
}
