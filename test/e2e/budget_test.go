package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/scaling"
)

// perReplica is the number of connections that a worker pod has by default.
const perReplica = 3

// budgetFor is a budget that holds exactly so many worker pods.
func budgetFor(pods int32) int32 { return budget.Overhead + pods*perReplica }

var _ = Describe("The connection budget", func() {
	It("caps a queue at its peak, exactly, and says so (B1, B2, P6)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(budgetFor(4)),
			MakeJobQueue("emails", p.namespace).Slots(2).Between(0, 10).TargetAge(2))
		connections := p.watchConnections(ctx)
		stop := p.overload(ctx, "emails", 6, sleep(2000))
		p.awaitDesired(ctx, "emails", 4, podTime)
		p.awaitPods(ctx, "emails", 4, podTime)
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionBudgetConstrained, metav1.ConditionTrue, v1alpha1.ReasonBudgetExhausted}, 10*time.Second)
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionScalingLimited, metav1.ConditionTrue, ""}, 10*time.Second)
		p.awaitDatabase(ctx, want{v1alpha1.ConditionBudgetConstrained, metav1.ConditionTrue, ""}, 10*time.Second)
		Eventually(func(g Gomega) {
			jq, err := p.jobQueue(ctx, "emails")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(jq.Status.Decision.Needed).To(BeNumerically(">", 4))
			g.Expect(jq.Status.Decision.Reason).To(Equal(scaling.LimitBudget))
			g.Expect(jq.Status.Decision.Limits).To(ContainElement(And(
				HaveField("Name", scaling.LimitBudget), HaveField("To", int32(4)), HaveField("Message", Not(BeEmpty())))))
			qdb, err := p.queueDatabase(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(qdb.Status.Connections).To(HaveValue(And(
				HaveField("Budget", budgetFor(4)), HaveField("Allocated", budgetFor(4)))))
			g.Expect(qdb.Status.Grants).To(ContainElement(v1alpha1.ConnectionGrant{Name: "emails", Connections: 4 * perReplica, Replicas: 4}))
		}).WithContext(ctx).WithTimeout(10 * time.Second).Should(Succeed())

		stop()
		p.cancelWaiting(ctx, "emails")
		p.awaitDrained(ctx, "emails", 20*time.Second)
		connections.expectWithin(int(budgetFor(4)))
	})

	It("keeps while a new template rolls out under load, and loses nothing (B6)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(budgetFor(3)),
			MakeJobQueue("emails", p.namespace).Slots(2).Between(0, 10).TargetAge(1))
		connections := p.watchConnections(ctx)
		stop := p.overload(ctx, "emails", 4, sleep(2000))
		old := p.awaitPods(ctx, "emails", 3, podTime)

		p.change(ctx, "emails", func(s *v1alpha1.JobQueueSpec) {
			s.Worker.Template.Annotations = map[string]string{"example.org/release": "2"}
		})
		begun := time.Now()
		Eventually(func(g Gomega) {
			pods, err := p.pods(ctx, "emails")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(len(pods)).To(BeNumerically(">=", 2))
			for _, pod := range pods {
				g.Expect(pod.Annotations).To(HaveKeyWithValue("example.org/release", "2"), "pod %s is of the old template", pod.Name)
				g.Expect(isReady(pod)).To(BeTrue(), "pod %s is not ready", pod.Name)
			}
		}).WithContext(ctx).WithTimeout(3*podTime).Should(Succeed(), "the rollout does not end")
		note("rollout of 3 pods under load", "%.0f s", time.Since(begun).Seconds())
		for _, pod := range old {
			Eventually(findPod).WithContext(ctx).WithArguments(p, pod.Name).WithTimeout(20*time.Second).
				Should(BeFalse(), "pod %s of the old template is left", pod.Name)
		}

		stop()
		p.cancelWaiting(ctx, "emails")
		report := p.awaitDrained(ctx, "emails", podTime)
		Expect(report.Dead).To(BeZero())
		connections.expectWithin(int(budgetFor(3)))
		// Every pod was asked to stop, none was killed: so no attempt was lost.
		Expect(must[int64](ctx, p, `SELECT count(*) FROM jobqueue.finished WHERE state = 'succeeded' AND attempt <> 1`)).To(BeZero())
	})

	It("is shared between two queues by weight, and lent while one is idle (B3)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(budgetFor(6)),
			MakeJobQueue("light", p.namespace).Slots(2).Between(0, 10).TargetAge(2).Weight(1),
			MakeJobQueue("heavy", p.namespace).Slots(2).Between(0, 10).TargetAge(2).Weight(2))
		connections := p.watchConnections(ctx)
		stopHeavy := p.overload(ctx, "heavy", 6, sleep(2000))
		stopLight := p.overload(ctx, "light", 4, sleep(2000))

		Eventually(func(g Gomega) {
			for name, replicas := range map[string]int32{"light": 2, "heavy": 4} {
				d, err := p.deployment(ctx, name)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(d.Status.ReadyReplicas).To(Equal(replicas), "replicas of %s", name)
			}
		}).WithContext(ctx).WithTimeout(2*podTime).Should(Succeed(), "the budget is not shared 1:2")

		stopHeavy()
		p.cancelWaiting(ctx, "heavy")
		p.awaitDrained(ctx, "heavy", 20*time.Second)
		Eventually(func(g Gomega) {
			d, err := p.deployment(ctx, "light")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(d.Status.ReadyReplicas).To(BeNumerically(">", 2))
		}).WithContext(ctx).WithTimeout(podTime).Should(Succeed(), "what one queue does not use is not lent to the other")
		stopLight()
		p.cancelWaiting(ctx, "light")
		p.awaitDrained(ctx, "light", 20*time.Second)
		connections.expectWithin(int(budgetFor(6)))
	})

	It("that cannot hold the minimums is reported and not exceeded (B4)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(budgetFor(2)), MakeJobQueue("emails", p.namespace).Between(3, 5))
		connections := p.watchConnections(ctx)
		p.awaitDatabase(ctx, want{v1alpha1.ConditionBudgetConstrained, metav1.ConditionTrue, v1alpha1.ReasonMinimumsExceedBudget}, podTime)
		p.awaitPods(ctx, "emails", 2, podTime)
		p.enqueue(ctx, "emails", times(20, sleep(200))...)
		p.awaitDrained(ctx, "emails", 20*time.Second)
		connections.expectWithin(int(budgetFor(2)))
	})
})
