package e2e

import (
	"context"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// lease is MakeJobQueue's, in a form to compute with.
const lease = 4 * time.Second

var _ = Describe("A worker's death", func() {
	It("by SIGKILL in mid-job is made good by another worker after the lease, and the dead one's word counts no more (Q3, Q4, R3, T2)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Slots(4).Replicas(2))
		pods := p.awaitPods(ctx, "emails", 2, podTime)
		ids := p.enqueue(ctx, "emails", times(8, sleep(5000))...)
		p.awaitSQL(ctx, 10*time.Second, "the jobs do not run", `SELECT count(*) = 8 FROM jobqueue.jobs WHERE state = 'running'`)
		held := p.awaitHeld(ctx, pods[0].Name, 4)

		how := p.sigkill(ctx, pods[0])
		killed := time.Now()
		// Again under way elsewhere: running with a token that the dead worker never had.
		p.awaitSQL(ctx, lease+8*time.Second, "the dead worker's jobs do not run again", `
			SELECT count(*) = cardinality($1::bigint[]) FROM jobqueue.jobs
			WHERE id = ANY($1) AND state = 'running' AND NOT token::text = ANY($2)`, held.ids(), held.tokens())
		recovery := time.Since(killed)
		note("recovery after SIGKILL", "4 jobs ran again %.1f s after %s (lease %s)", recovery.Seconds(), how, lease)
		Expect(recovery).To(BeNumerically("<", lease+5*time.Second))

		p.expectRefused(ctx, "emails", held)
		report := p.awaitDrained(ctx, "emails", 30*time.Second)
		Expect(report.Succeeded).To(Equal(int64(8)))
		p.expectAttempts(ctx, "emails", held.ids(), 2)
		p.expectAttempts(ctx, "emails", without(ids, held.ids()), 1)
		if onLocalCluster {
			Eventually(func(g Gomega) {
				pod := &corev1.Pod{}
				g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(&pods[0]), pod)).To(Succeed())
				g.Expect(pod.Status.ContainerStatuses[0].LastTerminationState.Terminated).To(HaveValue(HaveField("ExitCode", int32(137))))
			}).WithContext(ctx).WithTimeout(podTime).Should(Succeed(), "the kubelet does not say that the worker was killed")
		}
	})

	It("with no worker left is made good by the reaper CronJob, under the restricted pod security (R1, R2, D3)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Replicas(1))
		pods := p.awaitPods(ctx, "emails", 1, podTime)
		ids := p.enqueue(ctx, "emails", times(3, sleep(8000))...)
		p.awaitSQL(ctx, 10*time.Second, "the jobs do not run", `SELECT count(*) = 3 FROM jobqueue.jobs WHERE state = 'running'`)
		held := p.awaitHeld(ctx, pods[0].Name, 3)

		// The pod is on its way out and is killed while it drains, so that no other takes its place.
		p.change(ctx, "emails", func(s *v1alpha1.JobQueueSpec) { s.Replicas = new(int32(0)) })
		Eventually(func(g Gomega) {
			pod := &corev1.Pod{}
			g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(&pods[0]), pod)).To(Succeed())
			g.Expect(pod.DeletionTimestamp).NotTo(BeNil())
		}).WithContext(ctx).WithTimeout(10*time.Second).WithPolling(50*time.Millisecond).Should(Succeed(), "the pod is not asked to stop")
		p.sigkill(ctx, pods[0])
		killed := time.Now()

		// The schedule's grain is a minute.
		p.awaitSQL(ctx, 90*time.Second, "nobody returns the dead worker's jobs", `
			SELECT count(*) = 3 FROM jobqueue.jobs WHERE id = ANY($1) AND state <> 'running'`, ids)
		note("recovery without a worker", "the reaper returned 3 jobs %.0f s after the kill", time.Since(killed).Seconds())
		p.expectRefused(ctx, "emails", held)
		p.expectReaperRan(ctx)

		p.change(ctx, "emails", func(s *v1alpha1.JobQueueSpec) { s.Replicas = new(int32(1)) })
		p.awaitDrained(ctx, "emails", 40*time.Second)
		p.expectAttempts(ctx, "emails", ids, 2)
	})

	It("that was asked for costs no attempt: what runs is finished, what waits is given back (W2, W5)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Slots(2).Replicas(2))
		watched := p.watchPods(ctx)
		pods := p.awaitPods(ctx, "emails", 2, podTime)
		// Short jobs are claimed ahead of the slots, so that some wait in the worker's memory.
		p.enqueue(ctx, "emails", times(400, sleep(30))...)
		p.awaitSQL(ctx, 10*time.Second, "the jobs do not run", `SELECT count(*) > 20 FROM jobqueue.finished`)
		for i := range pods {
			Expect(kube.Delete(ctx, &pods[i])).To(Succeed())
		}
		for _, pod := range pods {
			watched.expectExit(ctx, pod.Name, 0, 30*time.Second)
		}
		Expect(p.awaitDrained(ctx, "emails", 40*time.Second).Succeeded).To(Equal(int64(400)))
		Expect(must[int64](ctx, p, `SELECT count(*) FROM jobqueue.finished WHERE attempt <> 1`)).To(BeZero(), "an attempt was spent")
	})

	It("that cannot wait for a job gives it back in time, the attempt not counted (W5)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Replicas(1).
			Change(func(s *v1alpha1.JobQueueSpec) {
				s.TimeoutSeconds = 3
				s.Worker.Template.Spec.TerminationGracePeriodSeconds = new(int64(5))
			}))
		pods := p.awaitPods(ctx, "emails", 1, podTime)
		watched := p.watchPods(ctx)
		// A pod keeps the grace that it was made with. Where the timeout has been raised since,
		// which running workers learn from the database, a job may need longer than that.
		policy, err := p.queue.GetPolicy(ctx, p.pool, "emails")
		Expect(err).NotTo(HaveOccurred())
		policy.Timeout = time.Minute
		Expect(p.queue.SetPolicy(ctx, p.pool, "emails", policy)).To(Succeed())
		ids := p.enqueue(ctx, "emails", sleep(50_000))
		p.awaitHeld(ctx, pods[0].Name, 1)
		Expect(kube.Delete(ctx, &pods[0])).To(Succeed())
		watched.expectExit(ctx, pods[0].Name, 0, 25*time.Second)

		p.awaitSQL(ctx, 20*time.Second, "the job does not run elsewhere, or its attempt was counted", `
			SELECT state = 'running' AND attempt = 1 AND last_error IS NULL FROM jobqueue.jobs WHERE id = $1`, ids[0])
		Expect(p.queue.Cancel(ctx, p.pool, ids, "seen enough")).To(Equal(ids))
		Expect(p.awaitDrained(ctx, "emails", 5*time.Second).Cancelled).To(Equal(int64(1)))
	})
})

// expectRefused has a worker that lost its lease come back and say all that a worker can say.
func (p *place) expectRefused(ctx context.Context, name string, held holding) {
	GinkgoHelper()
	for _, worker := range []uuid.UUID{held.worker, uuid.Nil} {
		Expect(p.queue.Succeed(ctx, p.pool, worker, held.refs)).To(BeEmpty(), "a stale success was accepted")
		failures := make([]queue.Failure, len(held.refs))
		snoozes := make([]queue.Snooze, len(held.refs))
		discards := make([]queue.Discard, len(held.refs))
		for i, ref := range held.refs {
			failures[i] = queue.Failure{Ref: ref, Error: "stale"}
			snoozes[i] = queue.Snooze{Ref: ref, Delay: time.Minute}
			discards[i] = queue.Discard{Ref: ref, Reason: "stale"}
		}
		Expect(p.queue.Fail(ctx, p.pool, worker, failures)).To(BeEmpty(), "a stale failure was accepted")
		Expect(p.queue.Snooze(ctx, p.pool, worker, snoozes)).To(BeEmpty(), "a stale snooze was accepted")
		Expect(p.queue.Discard(ctx, p.pool, worker, discards)).To(BeEmpty(), "a stale discard was accepted")
		Expect(p.queue.Release(ctx, p.pool, worker, held.refs)).To(BeEmpty(), "a stale release was accepted")
	}
	var tokens []uuid.UUID
	for _, ref := range held.refs {
		tokens = append(tokens, ref.Token)
	}
	beat, err := p.queue.Heartbeat(ctx, p.pool, held.worker, name, held.refs)
	Expect(err).NotTo(HaveOccurred())
	Expect(beat.Lost).To(ConsistOf(tokens), "a late heartbeat kept jobs")
	Expect(p.queue.Unregister(ctx, p.pool, held.worker)).To(Succeed())
}

// expectReaperRan waits for a successful run of the place's reaper and looks at what it was
// allowed to do.
func (p *place) expectReaperRan(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var jobs batchv1.JobList
		g.Expect(kube.List(ctx, &jobs, client.InNamespace(p.namespace))).To(Succeed())
		g.Expect(jobs.Items).To(ContainElement(HaveField("Status.Succeeded", int32(1))))
	}).WithContext(ctx).WithTimeout(20*time.Second).Should(Succeed(), "no run of the reaper has succeeded")

	var crons batchv1.CronJobList
	Expect(kube.List(ctx, &crons, client.InNamespace(p.namespace))).To(Succeed())
	Expect(crons.Items).To(HaveLen(1), "one CronJob for the database")
	Expect(metav1.GetControllerOf(&crons.Items[0])).To(HaveValue(HaveField("Kind", "QueueDatabase")))
	Expect(crons.Items[0].Spec.ConcurrencyPolicy).To(Equal(batchv1.ForbidConcurrent))
	// The namespace enforces the restricted standard, so that the pod's existence is the
	// proof; these are what a reader would look for.
	pod := crons.Items[0].Spec.JobTemplate.Spec.Template.Spec
	Expect(pod.SecurityContext.RunAsNonRoot).To(HaveValue(BeTrue()))
	Expect(pod.SecurityContext.SeccompProfile).To(HaveValue(HaveField("Type", corev1.SeccompProfileTypeRuntimeDefault)))
	Expect(pod.Containers[0].SecurityContext.AllowPrivilegeEscalation).To(HaveValue(BeFalse()))
	Expect(pod.Containers[0].SecurityContext.Capabilities.Drop).To(ConsistOf(corev1.Capability("ALL")))
}

func without(ids, others []int64) []int64 {
	var rest []int64
	for _, id := range ids {
		found := false
		for _, other := range others {
			found = found || id == other
		}
		if !found {
			rest = append(rest, id)
		}
	}
	return rest
}
