package controllers

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

func testQueue(change ...func(*v1alpha1.JobQueue)) *v1alpha1.JobQueue {
	q := &v1alpha1.JobQueue{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "emails", UID: "uid", Generation: 3},
		Spec: v1alpha1.JobQueueSpec{
			DatabaseRef: v1alpha1.LocalReference{Name: "app"},
			Worker: v1alpha1.WorkerSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main", Image: "image"}},
			}}},
		},
	}
	for _, c := range change {
		c(q)
	}
	return q
}

func testDatabase() *v1alpha1.QueueDatabase {
	return &v1alpha1.QueueDatabase{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app", UID: "db-uid"},
		Spec:       v1alpha1.QueueDatabaseSpec{Credentials: v1alpha1.DatabaseCredentials{SecretRef: v1alpha1.SecretKeyReference{Name: "secret"}}},
	}
}

func mustTemplate(t *testing.T, q *v1alpha1.JobQueue, credentials string) corev1.PodTemplateSpec {
	t.Helper()
	out, err := workerTemplate(q, testDatabase(), credentials)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func envOf(c corev1.Container) map[string]string {
	out := map[string]string{}
	for _, e := range c.Env {
		out[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			out[e.Name] = "secret:" + e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			out[e.Name] = "field:" + e.ValueFrom.FieldRef.FieldPath
		}
	}
	return out
}

func TestWorkerEnvironment(t *testing.T) {
	defaults := map[string]string{
		"JOBQUEUE_DATABASE_URL":  "secret:secret/uri",
		"JOBQUEUE_SCHEMA":        "jobqueue",
		"JOBQUEUE_QUEUE":         "emails",
		"JOBQUEUE_SLOTS":         "10",
		"JOBQUEUE_POOL_SIZE":     "3",
		"JOBQUEUE_GRACE_SECONDS": "90",
		"JOBQUEUE_POD_NAME":      "field:metadata.name",
		"JOBQUEUE_POD_NAMESPACE": "field:metadata.namespace",
		"JOBQUEUE_HTTP_ADDR":     ":8080",
	}
	with := func(changes map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range defaults {
			out[k] = v
		}
		for k, v := range changes {
			out[k] = v
		}
		return out
	}
	users := func(env ...corev1.EnvVar) func(*v1alpha1.JobQueue) {
		return func(q *v1alpha1.JobQueue) { q.Spec.Worker.Template.Spec.Containers[0].Env = env }
	}
	cases := map[string]struct {
		change func(*v1alpha1.JobQueue)
		want   map[string]string
		port   int32
		probed intstr.IntOrString // by name when not set
	}{
		"defaults": {want: defaults, port: 8080},
		"spec": {
			change: func(q *v1alpha1.JobQueue) {
				q.Spec.QueueName, q.Spec.TimeoutSeconds = "mail.out", 600
				q.Spec.Worker.Slots, q.Spec.Connections.PerReplica = 4, 2
			},
			want: with(map[string]string{"JOBQUEUE_QUEUE": "mail.out", "JOBQUEUE_GRACE_SECONDS": "630", "JOBQUEUE_SLOTS": "4", "JOBQUEUE_POOL_SIZE": "2"}),
			port: 8080,
		},
		"a grace period of the template": {
			change: func(q *v1alpha1.JobQueue) {
				q.Spec.Worker.Template.Spec.TerminationGracePeriodSeconds = new(int64(300))
			},
			want: with(map[string]string{"JOBQUEUE_GRACE_SECONDS": "300"}), port: 8080,
		},
		"the user's own variables stay": {
			change: users(corev1.EnvVar{Name: "MAILER", Value: "smtp"}),
			want:   with(map[string]string{"MAILER": "smtp"}), port: 8080,
		},
		"what the budget and the planner rely on is not the user's": {
			change: users(corev1.EnvVar{Name: "JOBQUEUE_POOL_SIZE", Value: "50"}, corev1.EnvVar{Name: "JOBQUEUE_QUEUE", Value: "x"},
				corev1.EnvVar{Name: "JOBQUEUE_DATABASE_URL", Value: "postgres://elsewhere"}),
			want: defaults, port: 8080,
		},
		"the address is, and the port follows it": {
			change: users(corev1.EnvVar{Name: "JOBQUEUE_HTTP_ADDR", Value: ":9000"}),
			want:   with(map[string]string{"JOBQUEUE_HTTP_ADDR": ":9000"}), port: 9000,
		},
		"a named port chooses the address": {
			change: func(q *v1alpha1.JobQueue) {
				q.Spec.Worker.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "jobqueue-http", ContainerPort: 7070}}
			},
			want: with(map[string]string{"JOBQUEUE_HTTP_ADDR": ":7070"}), port: 7070,
		},
		"the port under a name of the user's is not declared twice": {
			change: func(q *v1alpha1.JobQueue) {
				q.Spec.Worker.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}}
			},
			want: defaults, port: 8080, probed: intstr.FromInt32(8080),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			q := testQueue()
			if tc.change != nil {
				tc.change(q)
			}
			c := mustTemplate(t, q, "c").Spec.Containers[0]
			if diff := cmp.Diff(tc.want, envOf(c)); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
			if tc.probed == (intstr.IntOrString{}) {
				tc.probed = intstr.FromString(portName)
			}
			if got := c.Ports[0]; len(c.Ports) != 1 || got.ContainerPort != tc.port || tc.probed.Type == intstr.String && got.Name != portName {
				t.Errorf("ports: %+v", c.Ports)
			}
			for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if p.HTTPGet.Port != tc.probed {
					t.Errorf("probe of port %v", p.HTTPGet.Port)
				}
			}
		})
	}
}

func TestWorkerContainerIsTheNamedOne(t *testing.T) {
	q := testQueue(func(q *v1alpha1.JobQueue) {
		q.Spec.Worker.Template.Spec.Containers = []corev1.Container{{Name: "proxy"}, {Name: "worker"}}
	})
	spec := mustTemplate(t, q, "c").Spec
	if len(spec.Containers[0].Env) != 0 || len(spec.Containers[1].Env) == 0 {
		t.Errorf("environment went to the wrong container: %+v", spec.Containers)
	}
}

// D3: the restricted Pod Security Standard, unless the user decided otherwise.
func TestRestrictedUnlessTheUserDecided(t *testing.T) {
	q := testQueue(func(q *v1alpha1.JobQueue) {
		spec := &q.Spec.Worker.Template.Spec
		spec.InitContainers = []corev1.Container{{Name: "init"}}
		spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(false), RunAsUser: new(int64(0))}
	})
	spec := mustTemplate(t, q, "c").Spec
	if *spec.SecurityContext.RunAsNonRoot {
		t.Error("the user's runAsNonRoot was overruled")
	}
	if spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("no seccomp profile")
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		if *c.SecurityContext.AllowPrivilegeEscalation || c.SecurityContext.Capabilities.Drop[0] != "ALL" {
			t.Errorf("container %s: %+v", c.Name, c.SecurityContext)
		}
	}
	if *spec.AutomountServiceAccountToken {
		t.Error("the service account's token is mounted")
	}
}

func TestTemplateLabelsAndFingerprints(t *testing.T) {
	q := testQueue(func(q *v1alpha1.JobQueue) {
		q.Spec.Worker.Template.Labels = map[string]string{"team": "mail", labelName: "emails", LabelQueue: "stolen"}
		q.Spec.Worker.Template.Annotations = map[string]string{"note": "kept"}
	})
	first := mustTemplate(t, q, "c1")
	want := map[string]string{
		"team": "mail", labelName: "emails", labelInstance: "emails", labelComponent: "worker",
		labelManagedBy: managedBy, LabelQueue: "emails", LabelDatabase: "app",
	}
	if diff := cmp.Diff(want, first.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if first.Annotations["note"] != "kept" || first.Annotations[AnnotationConnections] != "3" || first.Annotations[AnnotationCredentials] != "c1" {
		t.Errorf("annotations: %v", first.Annotations)
	}
	if again := mustTemplate(t, q, "c1"); again.Annotations[AnnotationTemplate] != first.Annotations[AnnotationTemplate] {
		t.Error("the same template has two fingerprints")
	}
	if other := mustTemplate(t, q, "c2"); other.Annotations[AnnotationTemplate] == first.Annotations[AnnotationTemplate] {
		t.Error("other credentials have the same fingerprint")
	}
	if q.Spec.Worker.Template.Annotations[AnnotationTemplate] != "" {
		t.Error("the JobQueue itself was changed")
	}
}

func TestDeploymentKeepsRolloutsInside(t *testing.T) {
	q := testQueue()
	template := mustTemplate(t, q, "c")
	d := workerDeployment(q, template, false)
	if d.Spec.Replicas != nil {
		t.Error("the template's owner sets replicas")
	}
	if s := d.Spec.Strategy.RollingUpdate; s.MaxSurge.IntValue() != 0 || s.MaxUnavailable.String() != "25%" {
		t.Errorf("strategy: %+v", s)
	}
	locked := workerDeployment(q, template, true)
	if d.Spec.MinReadySeconds != 15 || locked.Spec.MinReadySeconds != 95 {
		t.Errorf("minReadySeconds: %d, locked %d", d.Spec.MinReadySeconds, locked.Spec.MinReadySeconds)
	}
	if *locked.Spec.ProgressDeadlineSeconds <= locked.Spec.MinReadySeconds {
		t.Error("the progress deadline is not beyond minReadySeconds")
	}
}
