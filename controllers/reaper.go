package controllers

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

const (
	reaperSuffix    = "-reaper"
	defaultSchedule = "* * * * *"
	// reaperDeadline ends a run that hangs, reaperStartWithin skips runs that could
	// not start for so long, as after an outage of the cluster.
	reaperDeadline    = 300
	reaperStartWithin = 120
	// reaperTTL removes finished runs that the history limits keep.
	reaperTTL = 3600
)

// reaperImage is the user's choice, or else the operator's own image.
func reaperImage(db *v1alpha1.QueueDatabase, operatorImage string) string {
	if db.Spec.Reaper.Image != "" {
		return db.Spec.Reaper.Image
	}
	return operatorImage
}

// reaperCronJob is the one CronJob of a database (R1, R2).
func reaperCronJob(db *v1alpha1.QueueDatabase, image string, pull corev1.PullPolicy) *batchv1.CronJob {
	labels := map[string]string{
		labelName: "jobqueue-reaper", labelInstance: db.Name, labelComponent: "reaper",
		labelManagedBy: managedBy, LabelDatabase: db.Name,
	}
	schedule := db.Spec.Reaper.Schedule
	if schedule == "" {
		schedule = defaultSchedule
	}
	return &batchv1.CronJob{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "CronJob"},
		ObjectMeta: ownedMeta(db, "QueueDatabase", db.Name+reaperSuffix, labels),
		Spec: batchv1.CronJobSpec{
			Schedule:                   schedule,
			ConcurrencyPolicy:          batchv1.ForbidConcurrent,
			StartingDeadlineSeconds:    new(int64(reaperStartWithin)),
			SuccessfulJobsHistoryLimit: new(int32(1)),
			FailedJobsHistoryLimit:     new(int32(2)),
			JobTemplate: batchv1.JobTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: batchv1.JobSpec{
					ActiveDeadlineSeconds:   new(int64(reaperDeadline)),
					BackoffLimit:            new(int32(1)),
					TTLSecondsAfterFinished: new(int32(reaperTTL)),
					Template: corev1.PodTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{Labels: labels},
						Spec:       reaperPod(db, image, pull),
					},
				},
			},
		},
	}
}

func reaperPod(db *v1alpha1.QueueDatabase, image string, pull corev1.PullPolicy) corev1.PodSpec {
	pod := corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		AutomountServiceAccountToken: new(false),
		SecurityContext:              &corev1.PodSecurityContext{RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65532))},
		Containers: []corev1.Container{{
			Name:            "reaper",
			Image:           image,
			ImagePullPolicy: pull,
			Command:         []string{"/jobqueue", "reap", "--retention"},
			Env: []corev1.EnvVar{
				{Name: "JOBQUEUE_DATABASE_URL", ValueFrom: databaseURL(db)},
				{Name: "JOBQUEUE_SCHEMA", Value: schemaOf(db)},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
				},
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
			},
			SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)},
		}},
	}
	restrictPod(&pod)
	return pod
}
