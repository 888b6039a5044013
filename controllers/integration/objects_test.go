package integration

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers"
)

// database makes a QueueDatabase called "db" that is sampled every second.
func (w *world) database(change ...func(*v1alpha1.QueueDatabase)) *v1alpha1.QueueDatabase {
	GinkgoHelper()
	db := &v1alpha1.QueueDatabase{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "db"},
		Spec: v1alpha1.QueueDatabaseSpec{
			Credentials:           v1alpha1.DatabaseCredentials{SecretRef: v1alpha1.SecretKeyReference{Name: "db"}},
			SampleIntervalSeconds: 1,
		},
	}
	for _, c := range change {
		c(db)
	}
	Expect(k8s.Create(within(5*time.Second), db)).To(Succeed())
	return db
}

func budgetOf(n int32) func(*v1alpha1.QueueDatabase) {
	return func(db *v1alpha1.QueueDatabase) {
		db.Spec.ConnectionBudget = v1alpha1.ConnectionBudget{Connections: &n}
	}
}

// minimal is a JobQueue with nothing but what it must have, except a short
// stabilization window.
func minimal(ns, name string, change ...func(*v1alpha1.JobQueue)) *v1alpha1.JobQueue {
	q := &v1alpha1.JobQueue{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.JobQueueSpec{
			DatabaseRef: v1alpha1.LocalReference{Name: "db"},
			Worker: v1alpha1.WorkerSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "worker", Image: "registry.example/worker:1"}},
			}}},
			Scaling: v1alpha1.ScalingSpec{ScaleDownStabilizationSeconds: new(int32(2))},
		},
	}
	for _, c := range change {
		c(q)
	}
	return q
}

func (w *world) jobQueue(name string, change ...func(*v1alpha1.JobQueue)) *v1alpha1.JobQueue {
	GinkgoHelper()
	q := minimal(w.ns, name, change...)
	Expect(k8s.Create(within(5*time.Second), q)).To(Succeed())
	return q
}

func minReplicas(n int32) func(*v1alpha1.JobQueue) {
	return func(q *v1alpha1.JobQueue) { q.Spec.Scaling.MinReplicas = &n }
}

// change updates an object, also against others that write to it.
func change[T client.Object](o T, f func(T)) {
	GinkgoHelper()
	Eventually(func() error {
		ctx := within(5 * time.Second)
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		f(o)
		return k8s.Update(ctx, o)
	}).Should(Succeed())
}

// get reads an object anew.
func get[T client.Object](o T) T {
	GinkgoHelper()
	Expect(k8s.Get(within(5*time.Second), client.ObjectKeyFromObject(o), o)).To(Succeed())
	return o
}

// deployment reads a queue's Deployment; nil when there is none.
func (w *world) deployment(name string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	if err := k8s.Get(within(5*time.Second), client.ObjectKeyFromObject(d), d); err != nil {
		return nil
	}
	return d
}

// replicas is what a queue's Deployment asks for; -1 when there is none.
func (w *world) replicas(name string) func() int32 {
	return func() int32 {
		d := w.deployment(name)
		if d == nil {
			return -1
		}
		return *d.Spec.Replicas
	}
}

// condition is "Status/Reason" of a condition; "" when there is none.
func condition(o client.Object, kind string) func() string {
	return func() string {
		c := conditionOf(o, kind)
		if c == nil {
			return ""
		}
		return string(c.Status) + "/" + c.Reason
	}
}

// message is a condition's message.
func message(o client.Object, kind string) func() string {
	return func() string {
		if c := conditionOf(o, kind); c != nil {
			return c.Message
		}
		return ""
	}
}

func conditionOf(o client.Object, kind string) *metav1.Condition {
	if err := k8s.Get(within(5*time.Second), client.ObjectKeyFromObject(o), o); err != nil {
		return nil
	}
	switch o := o.(type) {
	case *v1alpha1.JobQueue:
		return meta.FindStatusCondition(o.Status.Conditions, kind)
	case *v1alpha1.QueueDatabase:
		return meta.FindStatusCondition(o.Status.Conditions, kind)
	}
	return nil
}

// events are the reasons of the events about an object, oldest first.
func (w *world) events(about string) func() []string {
	return func() []string {
		var list eventsv1.EventList
		if err := k8s.List(within(5*time.Second), &list, client.InNamespace(w.ns)); err != nil {
			return nil
		}
		var out []string
		for _, e := range list.Items {
			if e.Regarding.Name == about {
				out = append(out, e.Reason)
			}
		}
		return out
	}
}

// eventNotes are the texts of all events of the namespace.
func (w *world) eventNotes() []string {
	var list eventsv1.EventList
	Expect(k8s.List(within(5*time.Second), &list, client.InNamespace(w.ns))).To(Succeed())
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Note)
	}
	return out
}

// describe tells the state of a queue's workers, for failures.
func (w *world) describe(name string) string {
	d := w.deployment(name)
	if d == nil {
		return "no Deployment"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "Deployment %s: replicas %d, minReadySeconds %d, template %s, generation %d\n", name, *d.Spec.Replicas,
		d.Spec.MinReadySeconds, d.Spec.Template.Annotations[controllers.AnnotationTemplate], d.Generation)
	var pods corev1.PodList
	if err := k8s.List(within(5*time.Second), &pods, client.InNamespace(w.ns), client.MatchingLabels{controllers.LabelQueue: name}); err != nil {
		return out.String() + err.Error()
	}
	for _, p := range pods.Items {
		fmt.Fprintf(&out, "Pod %s: template %s, made %s, going %v\n", p.Name, p.Annotations[controllers.AnnotationTemplate],
			p.CreationTimestamp.Format(time.TimeOnly), p.DeletionTimestamp)
	}
	q := get(&v1alpha1.JobQueue{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}})
	fmt.Fprintf(&out, "JobQueue: %+v", q.Status)
	return out.String()
}
