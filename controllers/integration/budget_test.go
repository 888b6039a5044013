package integration

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

func containsReplicas(fields string) bool { return strings.Contains(fields, `"f:replicas"`) }

var _ = Describe("the connection budget", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("B1, B3: is shared, and a lent share comes back as pods drain", func() {
		db := w.database(budgetOf(33)) // 30 for workers, 10 pods of 3
		first := w.jobQueue("first", func(q *v1alpha1.JobQueue) { q.Spec.Replicas = new(int32(10)) })
		Eventually(w.replicas("first")).Should(BeNumerically("==", 10))
		Eventually(func() int { n, _ := w.pods("first"); return n }).Should(Equal(10))
		Eventually(func() int32 { return get(db).Status.Connections.Allocated }).Should(BeNumerically("==", 33))

		By("another queue's need lowers the first, which drains slowly")
		w.player.slowDrain.Store(true)
		second := w.jobQueue("second", func(q *v1alpha1.JobQueue) { q.Spec.Replicas = new(int32(10)) })
		Eventually(w.replicas("first")).Should(BeNumerically("==", 5))
		Eventually(func() int { _, n := w.pods("first"); return n }).Should(Equal(5))
		Eventually(w.replicas("second")).Should(BeNumerically("==", 0), "its connections are still held")
		Eventually(condition(second, v1alpha1.ConditionBudgetConstrained)).Should(Equal("True/BudgetExhausted"))
		Consistently(w.replicas("first")).WithTimeout(2*time.Second).Should(BeNumerically("==", 5), "its own pods that go cost it nothing more")
		Expect(condition(first, v1alpha1.ConditionBudgetConstrained)()).To(Equal("True/BudgetExhausted"))
		Expect(w.replicas("second")()).To(BeNumerically("==", 0), "its connections are still held")

		By("each pod that is gone lets the second grow")
		Expect(w.player.letOneGo()).To(BeTrue())
		Eventually(w.replicas("second")).Should(BeNumerically(">=", 1))
		w.player.slowDrain.Store(false)
		Eventually(w.replicas("second")).Should(BeNumerically("==", 5))
		Eventually(func() int { n, _ := w.pods("second"); return n }).Should(Equal(5))
		Eventually(condition(db, v1alpha1.ConditionBudgetConstrained)).Should(Equal("True/BudgetExhausted"))
		Expect(w.player.mostHeld()).To(BeNumerically("<=", 30))

		By("what one does not need goes to the other")
		change(first, func(q *v1alpha1.JobQueue) { q.Spec.Replicas = new(int32(1)) })
		Eventually(w.replicas("second")).Should(BeNumerically("==", 9))
		Expect(w.player.mostHeld()).To(BeNumerically("<=", 30))
	})

	It("B1: a number that is patched in goes before the default share", func() {
		db := w.database()
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(get(db).Spec.ConnectionBudget.Percent).To(HaveValue(BeNumerically("==", 80)))
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"connectionBudget": {"connections": 9}}}`))
		Expect(k8s.Patch(within(5*time.Second), db, patch)).To(Succeed())
		Eventually(func() int32 { return get(db).Status.Connections.Budget }).Should(BeNumerically("==", 9))
	})

	It("B4: reports minimums that do not fit", func() {
		db := w.database(budgetOf(10)) // 7 for workers, 2 pods
		q := w.jobQueue("emails", minReplicas(4))
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 2))
		Eventually(condition(q, v1alpha1.ConditionBudgetConstrained)).Should(Equal("True/MinimumsExceedBudget"))
		Eventually(condition(db, v1alpha1.ConditionBudgetConstrained)).Should(Equal("True/MinimumsExceedBudget"))
		change(db, func(db *v1alpha1.QueueDatabase) { db.Spec.ConnectionBudget.Connections = new(int32(20)) })
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 4))
		Eventually(condition(q, v1alpha1.ConditionBudgetConstrained)).Should(Equal("False/WithinBudget"))
	})

	It("B6: a rollout makes room for itself first", func() {
		w.database(budgetOf(15)) // 12 for workers, 4 pods
		q := w.jobQueue("emails", func(q *v1alpha1.JobQueue) { q.Spec.Replicas = new(int32(4)) })
		Eventually(func() int { n, _ := w.pods("emails"); return n }).Should(Equal(4))
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))

		w.player.slowDrain.Store(true)
		change(q, func(q *v1alpha1.JobQueue) {
			q.Spec.Worker.Template.Spec.Containers[0].Image = "registry.example/worker:2"
		})
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 3))
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("False/Progressing"))
		image := func() string { return w.deployment("emails").Spec.Template.Spec.Containers[0].Image }
		Expect(image()).To(Equal("registry.example/worker:1"), "there is no room for the new template yet")

		Eventually(w.player.letOneGo).Should(BeTrue())
		Eventually(image).Should(Equal("registry.example/worker:2"))
		By("the next pod goes only when the last is gone")
		Eventually(func() int32 { return w.deployment("emails").Spec.MinReadySeconds }).Should(BeNumerically(">", 60), func() string { return w.describe("emails") })
		w.player.slowDrain.Store(false)
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 4))
		Expect(w.player.mostHeld()).To(BeNumerically("<=", 12))
	})
})
