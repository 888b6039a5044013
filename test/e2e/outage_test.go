package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

var _ = Describe("The database going away in mid-load", Label(labelLocal), Serial, func() {
	It("changes no replicas, restarts no worker and loses nothing (S6, W9, T3)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20),
			MakeJobQueue("emails", p.namespace).Between(0, 3).TargetAge(1).Stabilization(120))
		stop := p.feed(ctx, "emails", 100*time.Millisecond, times(2, sleep(300))...)
		p.enqueue(ctx, "emails", times(150, sleep(300))...)
		p.awaitDesired(ctx, "emails", 3, podTime)
		pods := p.awaitPods(ctx, "emails", 3, podTime)

		// As a crash, with jobs and results under way.
		DeferCleanup(func(ctx SpecContext) { postgres(ctx, "start") }, NodeTimeout(time.Minute))
		postgres(ctx, "stop", "--mode", "immediate")
		stopped := time.Now()
		unreachable := want{v1alpha1.ConditionDatabaseReachable, metav1.ConditionFalse, v1alpha1.ReasonConnectionFailed}
		p.awaitQueue(ctx, "emails", unreachable, 20*time.Second)
		p.awaitDatabase(ctx, unreachable, 20*time.Second)
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionScalingActive, metav1.ConditionFalse, ""}, 20*time.Second)
		note("database stopped", "the condition said so after %.1f s", time.Since(stopped).Seconds())
		// That nothing is scaled for want of data shows only by waiting: some intervals of
		// sampling, and longer than a lease.
		Consistently(func(g Gomega) {
			d, err := p.deployment(ctx, "emails")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(d.Spec.Replicas).To(HaveValue(Equal(int32(3))))
		}).WithContext(ctx).WithTimeout(lease+time.Second).WithPolling(500*time.Millisecond).Should(Succeed(), "replicas did not hold")

		postgres(ctx, "start")
		started := time.Now()
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionDatabaseReachable, metav1.ConditionTrue, ""}, 60*time.Second)
		note("database back", "the condition said so after %.1f s", time.Since(started).Seconds())
		p.expectSameProcesses(ctx, pods)

		// A crash and its recovery without a pause between.
		postgres(ctx, "restart", "--mode", "immediate")
		p.awaitFreshSample(ctx, "emails", 60*time.Second)
		stop()
		report := p.awaitDrained(ctx, "emails", 90*time.Second)
		note("outage", "%d jobs, 0 lost", report.Expected)
		Expect(report.Dead).To(BeZero(), "an outage must not bury jobs")
		p.expectSameProcesses(ctx, pods)
		p.awaitQueue(ctx, "emails", ready, 20*time.Second)
	})
})

// expectSameProcesses fails unless the pods exist with the containers that they had.
func (p *place) expectSameProcesses(ctx context.Context, before []corev1.Pod) {
	GinkgoHelper()
	for _, old := range before {
		pod := &corev1.Pod{}
		Expect(kube.Get(ctx, p.key(old.Name), pod)).To(Succeed())
		Expect(pod.UID).To(Equal(old.UID))
		Expect(pod.DeletionTimestamp).To(BeNil())
		Expect(pod.Status.ContainerStatuses).To(HaveLen(len(old.Status.ContainerStatuses)))
		for i, status := range pod.Status.ContainerStatuses {
			Expect(status.ContainerID).To(Equal(old.Status.ContainerStatuses[i].ContainerID), "pod %s was restarted", pod.Name)
			Expect(status.RestartCount).To(BeZero(), "pod %s was restarted", pod.Name)
		}
	}
}
