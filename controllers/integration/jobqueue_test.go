package integration

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func clientKey(ns, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: ns, Name: name}
}

var _ = Describe("a JobQueue", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("waits for its QueueDatabase", func() {
		q := w.jobQueue("emails")
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("False/QueueDatabaseNotFound"))
		Expect(w.deployment("emails")).To(BeNil())
		w.database()
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(condition(q, v1alpha1.ConditionReconciling)()).To(BeEmpty())
	})

	It("P7: makes workers whose template and replicas have owners of their own", func() {
		w.database()
		q := w.jobQueue("emails", minReplicas(1), func(q *v1alpha1.JobQueue) {
			q.Spec.Worker.Template.Labels = map[string]string{"team": "mail"}
		})
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(func() map[string]bool { return ownersOfReplicas(w.deployment("emails")) }).
			Should(Equal(map[string]bool{controllers.OwnerScaler: true}))
		d := w.deployment("emails")
		Expect(d.Spec.Template.Labels).To(HaveKeyWithValue("team", "mail"))
		Expect(d.Spec.Selector.MatchLabels).To(Equal(map[string]string{"jobqueue.dev/queue": "emails"}))
		pdb := get(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "emails"}})
		Expect(pdb.Spec.MaxUnavailable.IntValue()).To(Equal(1))

		By("a label that somebody adds stays")
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"added":"yes"}},"spec":{"template":{"metadata":{"labels":{"added":"yes"}}}}}`))
		Expect(k8s.Patch(within(5*time.Second), d, patch, client.FieldOwner("somebody"))).To(Succeed())
		change(q, func(q *v1alpha1.JobQueue) {
			q.Spec.Worker.Template.Spec.Containers[0].Image = "registry.example/worker:2"
		})
		Eventually(func() string { return w.deployment("emails").Spec.Template.Spec.Containers[0].Image }).Should(Equal("registry.example/worker:2"))
		Expect(w.deployment("emails").Spec.Template.Labels).To(HaveKeyWithValue("added", "yes"))

		By("what the operator has set is set again")
		patch = client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"worker","image":"registry.example/other"}]}}}}`))
		Expect(k8s.Patch(within(5*time.Second), d, patch, client.FieldOwner("somebody"))).To(Succeed())
		Eventually(func() string { return w.deployment("emails").Spec.Template.Spec.Containers[0].Image }).Should(Equal("registry.example/worker:2"))

		By("replicas that somebody sets are not fought over")
		patch = client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`))
		Expect(k8s.Patch(within(5*time.Second), d, patch, client.FieldOwner("somebody"))).To(Succeed())
		Eventually(condition(q, v1alpha1.ConditionScalingActive)).Should(Equal("False/ReplicasSetByAnother"))
		Expect(message(q, v1alpha1.ConditionScalingActive)()).To(ContainSubstring("somebody"))
		Expect(w.replicas("emails")()).To(BeNumerically("==", 3))

		By("replicas beyond the connection budget are taken back at once")
		patch = client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":500}}`))
		Expect(k8s.Patch(within(5*time.Second), d, patch, client.FieldOwner("somebody"))).To(Succeed())
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 1))
		patch = client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`))
		Expect(k8s.Patch(within(5*time.Second), d, patch, client.FieldOwner("somebody"))).To(Succeed())
		Eventually(condition(q, v1alpha1.ConditionScalingActive)).Should(HavePrefix("False/"))

		By("a change of the spec takes them back")
		change(q, func(q *v1alpha1.JobQueue) { q.Spec.Scaling.TargetAgeSeconds = 31 })
		Eventually(condition(q, v1alpha1.ConditionScalingActive)).Should(Equal("True/SampleFresh"))
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 1))
	})

	It("says what is wrong with its template, and recovers", func() {
		w.database()
		q := w.jobQueue("emails", func(q *v1alpha1.JobQueue) { q.Spec.Worker.Template.Spec.Containers[0].Image = "" })
		Eventually(condition(q, v1alpha1.ConditionStalled)).Should(Equal("True/ApplyFailed"))
		Expect(message(q, v1alpha1.ConditionReady)()).To(ContainSubstring("image: Required value"))
		change(q, func(q *v1alpha1.JobQueue) {
			q.Spec.Worker.Template.Spec.Containers[0].Image = "registry.example/worker:1"
		})
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(condition(q, v1alpha1.ConditionStalled)()).To(BeEmpty())
	})

	It("takes over no Deployment that is not its own", func() {
		w.database()
		foreign := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web"},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}},
				Replicas: new(int32(0)),
			},
		}
		Expect(k8s.Create(within(5*time.Second), foreign)).To(Succeed())
		q := w.jobQueue("web")
		Eventually(condition(q, v1alpha1.ConditionStalled)).Should(Equal("True/ApplyFailed"))
		Expect(message(q, v1alpha1.ConditionReady)()).To(ContainSubstring(`Deployment "web" exists`))
		Expect(get(foreign).Spec.Template.Spec.Containers).To(HaveLen(1))
		Expect(k8s.Delete(within(5*time.Second), foreign)).To(Succeed())
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
	})

	It("leaves a queue to the older of two", func() {
		w.database()
		first := w.jobQueue("first", func(q *v1alpha1.JobQueue) { q.Spec.QueueName = "shared" })
		Eventually(condition(first, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		second := w.jobQueue("second", func(q *v1alpha1.JobQueue) { q.Spec.QueueName = "shared" })
		Eventually(condition(second, v1alpha1.ConditionStalled)).Should(Equal("True/QueueOwnedByAnother"))
		Expect(message(second, v1alpha1.ConditionReady)()).To(ContainSubstring(`"first"`))
		Expect(condition(first, v1alpha1.ConditionReady)()).To(Equal("True/Ready"))

		By("with the older gone, the younger has it")
		Expect(k8s.Delete(within(5*time.Second), first)).To(Succeed())
		Eventually(condition(second, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
	})

	It("takes a template that declares the worker's port under a name of its own", func() {
		w.database()
		q := w.jobQueue("emails", func(q *v1alpha1.JobQueue) {
			q.Spec.Worker.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}}
		})
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(w.deployment("emails").Spec.Template.Spec.Containers[0].Ports).To(HaveExactElements(HaveField("Name", "metrics")))
	})

	It("is refused a queue that another cluster's JobQueue owns", func() {
		db := w.database()
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			p := queue.DefaultPolicy()
			p.Owner, p.Generation = "elsewhere/emails", 7
			Expect(w.queue.SetPolicy(ctx, conn, "emails", p)).To(Succeed())
		})
		q := w.jobQueue("emails", minReplicas(2))
		Eventually(condition(q, v1alpha1.ConditionStalled)).Should(Equal("True/QueueOwnedByAnother"))
		Expect(message(q, v1alpha1.ConditionStalled)()).To(ContainSubstring("elsewhere/emails"))
		Consistently(func() bool {
			return apierrors.IsNotFound(k8s.Get(within(time.Second), clientKey(w.ns, "emails"), &appsv1.Deployment{}))
		}).WithTimeout(3*time.Second).Should(BeTrue(), "its workers would run another's jobs")
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			Expect(w.queue.ReleaseOwner(ctx, conn, "emails", "elsewhere/emails")).To(Succeed())
		})
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
	})

	It("P5: keeps its jobs when it is deleted, and finds them when it is made again", func() {
		w.database()
		q := w.jobQueue("emails")
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		change(q, func(q *v1alpha1.JobQueue) { q.Spec.TimeoutSeconds = 61 }) // a later generation than that of the next one
		Eventually(func() int64 { return get(q).Status.PolicyGeneration }).Should(Equal(q.Generation))
		w.enqueue("emails", 7)
		Expect(k8s.Delete(within(5*time.Second), q)).To(Succeed())
		gone := func() bool {
			return apierrors.IsNotFound(k8s.Get(within(time.Second), clientKey(w.ns, "emails"), q.DeepCopy()))
		}
		Eventually(gone).Should(BeTrue())
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			p, err := w.queue.GetPolicy(ctx, conn, "emails")
			Expect(err).NotTo(HaveOccurred())
			Expect(p.Owner).To(BeEmpty())
		})
		again := w.jobQueue("emails")
		Eventually(condition(again, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(func() int64 {
			if s := get(again).Status.Sample; s != nil {
				return s.Pending
			}
			return -1
		}).Should(BeNumerically("==", 7))
	})

	It("P5: can be deleted without its database", func() {
		db := w.database()
		q := w.jobQueue("emails")
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(k8s.Delete(within(5*time.Second), db)).To(Succeed())
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("False/QueueDatabaseNotFound"))
		Expect(k8s.Delete(within(5*time.Second), q)).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(within(time.Second), clientKey(w.ns, "emails"), q.DeepCopy()))
		}).Should(BeTrue())
		Eventually(w.events("emails")).Should(ContainElement("OwnerNotReleased"))
	})

	It("S10: a restarted operator changes and writes nothing", func() {
		db := w.database(budgetOf(40))
		q := w.jobQueue("emails", minReplicas(2))
		idle := w.jobQueue("idle")
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(condition(idle, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(func() int32 { return get(q).Status.ReadyReplicas }).Should(BeNumerically("==", 2))
		Eventually(func() int32 { return get(db).Status.Connections.InUse }).WithTimeout(30 * time.Second).Should(BeNumerically("==", 2))
		versions := func() []string {
			out := []string{get(db).ResourceVersion, get(q).ResourceVersion, get(idle).ResourceVersion}
			for _, name := range []string{"emails", "idle"} {
				out = append(out, w.deployment(name).ResourceVersion)
				out = append(out, get(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}).ResourceVersion)
			}
			return out
		}
		var settled []string
		Eventually(func() bool {
			former := settled
			settled = versions()
			time.Sleep(1500 * time.Millisecond) // more than one sample
			return len(former) > 0 && former[0] == settled[0] && former[1] == settled[1] && former[2] == settled[2] && former[3] == settled[3]
		}).WithTimeout(40 * time.Second).Should(BeTrue())
		settled = versions()

		w.stop()
		w.start()
		Consistently(versions).WithTimeout(6*time.Second).WithPolling(500*time.Millisecond).Should(Equal(settled), func() string {
			return fmt.Sprintf("%+v\n%+v\n%+v", get(db).Status, get(q).Status, get(idle).Status)
		})
	})
})

// ownersOfReplicas are the field managers of spec.replicas.
func ownersOfReplicas(d *appsv1.Deployment) map[string]bool {
	out := map[string]bool{}
	for _, m := range d.ManagedFields {
		if m.FieldsV1 != nil && containsReplicas(m.FieldsV1.GetRawString()) && m.Subresource == "" {
			out[m.Manager] = true
		}
	}
	return out
}
