package integration

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("scaling", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	// ready waits until a JobQueue is in force.
	ready := func(q *v1alpha1.JobQueue) {
		GinkgoHelper()
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
	}

	It("S2, S3: follows real jobs from zero to many and down again", func() {
		w.database(budgetOf(100))
		q := w.jobQueue("emails")
		ready(q)
		Expect(w.replicas("emails")()).To(BeZero())

		By("a first job brings a pod at once")
		began := time.Now()
		w.enqueue("emails", 1)
		Eventually(w.replicas("emails")).WithPolling(10 * time.Millisecond).Should(BeNumerically("==", 1))
		Expect(time.Since(began)).To(BeNumerically("<", 2*time.Second), "a second, and as much again for a busy machine")

		By("runs that take seconds and a backlog that ages bring more")
		worker := uuid.New()
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			runs, err := w.queue.Claim(ctx, conn, queue.ClaimRequest{Queue: "emails", Worker: worker, Limit: 1})
			Expect(err).NotTo(HaveOccurred())
			Expect(runs).To(HaveLen(1))
			time.Sleep(1500 * time.Millisecond) // the length of the run, which is measured
			_, err = w.queue.Succeed(ctx, conn, worker, []queue.Ref{runs[0].Ref})
			Expect(err).NotTo(HaveOccurred())
		})
		w.enqueue("emails", 1000)
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 10))
		Eventually(func() int64 { return get(q).Status.Sample.Pending }).WithTimeout(20 * time.Second).Should(BeNumerically("==", 1000))
		Expect(get(q).Status.Decision.Needed).To(BeNumerically(">=", 7))

		By("an emptied queue brings them down")
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			for {
				runs, err := w.queue.Claim(ctx, conn, queue.ClaimRequest{Queue: "emails", Worker: worker, Limit: 500})
				Expect(err).NotTo(HaveOccurred())
				if len(runs) == 0 {
					return
				}
				var refs []queue.Ref
				for _, r := range runs {
					refs = append(refs, r.Ref)
				}
				_, err = w.queue.Succeed(ctx, conn, worker, refs)
				Expect(err).NotTo(HaveOccurred())
			}
		})
		Eventually(w.replicas("emails")).WithTimeout(20 * time.Second).Should(BeNumerically("<=", 3))
		Expect(w.events("emails")()).To(ContainElement(v1alpha1.ReasonScaled))
	})

	It("P4: suspends and resumes", func() {
		w.database(budgetOf(100))
		q := w.jobQueue("emails", minReplicas(1))
		ready(q)
		change(q, func(q *v1alpha1.JobQueue) { q.Spec.Suspend = true })
		Eventually(condition(q, v1alpha1.ConditionSuspended)).Should(Equal("True/Suspended"))
		ready(q)
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			p, err := w.queue.GetPolicy(ctx, conn, "emails")
			Expect(err).NotTo(HaveOccurred())
			Expect(p.Suspended).To(BeTrue())
			Expect(p.Generation).To(Equal(get(q).Status.PolicyGeneration))
			Expect(p.Owner).To(Equal(w.ns + "/emails"))
		})
		w.enqueue("emails", 500)
		Eventually(func() int64 { return get(q).Status.Sample.Pending }).WithTimeout(20 * time.Second).Should(BeNumerically("==", 500))
		Expect(w.replicas("emails")()).To(BeNumerically("==", 1), "no new need while suspended")

		change(q, func(q *v1alpha1.JobQueue) { q.Spec.Suspend = false })
		Eventually(condition(q, v1alpha1.ConditionSuspended)).Should(Equal("False/Resumed"))
		Eventually(w.replicas("emails")).Should(BeNumerically(">", 1))
		Eventually(w.events("emails")).Should(ContainElements(v1alpha1.ReasonSuspended, v1alpha1.ReasonResumed))
	})

	It("W1: says which kind of jobs no worker handles, and takes it back", func() {
		w.database(budgetOf(30))
		q := w.jobQueue("emails", minReplicas(1))
		ready(q)
		Eventually(condition(q, v1alpha1.ConditionJobsUnhandled)).Should(Equal("False/KindsKnown"))
		worker := uuid.New()
		claim := func(kinds ...string) func(ctx context.Context, conn *pgx.Conn) {
			return func(ctx context.Context, conn *pgx.Conn) {
				_, err := w.queue.Claim(ctx, conn, queue.ClaimRequest{Queue: "emails", Worker: worker, Limit: 1, Kinds: kinds})
				Expect(err).NotTo(HaveOccurred())
			}
		}
		w.sql(claim("email"))
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "UPDATE jobqueue.workers SET started_at = clock_timestamp() - interval '2 minutes'")
			Expect(err).NotTo(HaveOccurred())
			_, err = w.queue.Enqueue(ctx, conn, "emails", queue.NewJob{Kind: "emial", RunAt: time.Now().Add(-5 * time.Minute)})
			Expect(err).NotTo(HaveOccurred())
		})
		Eventually(condition(q, v1alpha1.ConditionJobsUnhandled)).Should(Equal("True/UnknownKind"))
		Expect(message(q, v1alpha1.ConditionJobsUnhandled)()).To(ContainSubstring(`kind "emial"`))
		Eventually(w.events("emails")).Should(ContainElement(v1alpha1.ReasonUnknownKind))
		w.sql(claim("email", "emial"))
		Eventually(condition(q, v1alpha1.ConditionJobsUnhandled)).Should(Equal("False/KindsKnown"))
	})

	It("P8: takes a manual number by /scale, and scales by age again without it", func() {
		w.database(budgetOf(30))
		q := w.jobQueue("emails")
		ready(q)
		// What `kubectl scale` does.
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":4}}`))
		Expect(k8s.SubResource("scale").Patch(within(5*time.Second), q.DeepCopy(), patch)).To(Succeed())
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 4))
		Eventually(condition(q, v1alpha1.ConditionScalingActive)).Should(Equal("False/ManualReplicas"))
		Eventually(func() int32 { return get(q).Status.ReadyReplicas }).Should(BeNumerically("==", 4))

		scale := &autoscalingv1.Scale{}
		Expect(k8s.SubResource("scale").Get(within(5*time.Second), q, scale)).To(Succeed())
		Expect(scale.Status.Replicas).To(BeNumerically("==", 4))
		Expect(scale.Status.Selector).To(Equal("jobqueue.dev/queue=emails"))

		By("a number above the budget is cut")
		change(q, func(q *v1alpha1.JobQueue) { q.Spec.Replicas = new(int32(20)) })
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 9))
		Eventually(condition(q, v1alpha1.ConditionBudgetConstrained)).Should(Equal("True/BudgetExhausted"))

		change(q, func(q *v1alpha1.JobQueue) { q.Spec.Replicas = nil })
		Eventually(w.replicas("emails")).Should(BeZero())
	})
})
