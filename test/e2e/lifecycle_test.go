package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// chart is the operator's chart, release what hack/cluster.sh installs it as.
func chart() string { return filepath.Join(os.Getenv("JOBQUEUE_ROOT"), "charts", "jobqueue-operator") }

const release = "jobqueue"

var _ = Describe("A life with the operator", func() {
	It("goes on when the operator is restarted, at the same number of replicas (S10)", Serial, SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		// A long stabilization holds what a burst has brought. The new operator knows nothing of
		// the burst: if it planned from the present alone, it would take the pods away.
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20),
			MakeJobQueue("emails", p.namespace).Slots(2).Between(0, 3).TargetAge(2).Stabilization(300))
		p.enqueue(ctx, "emails", times(30, sleep(700))...)
		p.awaitDesired(ctx, "emails", 3, podTime)
		p.awaitPods(ctx, "emails", 3, podTime)
		p.awaitDrained(ctx, "emails", 30*time.Second)
		before := p.steadyDeployment(ctx, "emails")
		stop := p.feed(ctx, "emails", 100*time.Millisecond, noop())

		restartOperator(ctx)
		p.awaitFreshSample(ctx, "emails", 60*time.Second)
		Consistently(func(g Gomega) {
			now, err := p.deployment(ctx, "emails")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(now.UID).To(Equal(before.UID))
			g.Expect(now.Spec.Replicas).To(Equal(before.Spec.Replicas))
			g.Expect(now.Generation).To(Equal(before.Generation), "the new operator changed the Deployment's spec")
			g.Expect(now.ResourceVersion).To(Equal(before.ResourceVersion), "the new operator wrote the Deployment")
			// Some decisions, each of which might have changed something.
		}).WithContext(ctx).WithTimeout(5*time.Second).WithPolling(250*time.Millisecond).Should(Succeed(), "the restart shows")
		stop()
		p.awaitDrained(ctx, "emails", 20*time.Second)
	})

	It("keeps the jobs of a deleted JobQueue for its successor (P5)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Between(1, 1))
		p.awaitPods(ctx, "emails", 1, podTime)
		workers, err := p.selector(ctx, "emails")
		Expect(err).NotTo(HaveOccurred())
		later := noop()
		later.Delay = time.Hour
		p.enqueue(ctx, "emails", append(times(5, sleep(3000)), later)...)
		p.awaitSQL(ctx, 10*time.Second, "the jobs do not run", `SELECT count(*) = 4 FROM jobqueue.jobs WHERE state = 'running'`)

		Expect(kube.Delete(ctx, MakeJobQueue("emails", p.namespace).Obj())).To(Succeed())
		Eventually(func(g Gomega) {
			_, err := p.jobQueue(ctx, "emails")
			g.Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
			g.Expect(err).To(HaveOccurred(), "the JobQueue is still there")
			var pods corev1.PodList
			g.Expect(kube.List(ctx, &pods, client.InNamespace(p.namespace), workers)).To(Succeed())
			g.Expect(describe(pods.Items)).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(40*time.Second).Should(Succeed(), "the deleted JobQueue's pods do not go")
		report := p.count(ctx, "emails")
		Expect(report.Alive).To(BeNumerically(">=", 1), "jobs went with the JobQueue")
		Expect(must[int64](ctx, p, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'running'`)).To(BeZero())
		policy, err := p.queue.GetPolicy(ctx, p.pool, "emails")
		Expect(err).NotTo(HaveOccurred())
		Expect(policy.Owner).To(BeEmpty(), "the queue is still owned by the deleted JobQueue")
		p.enqueue(ctx, "emails", times(3, noop())...) // producers need no JobQueue

		p.create(ctx, MakeJobQueue("emails", p.namespace).Between(0, 2).Obj())
		p.awaitQueue(ctx, "emails", ready, 20*time.Second)
		p.awaitSQL(ctx, 40*time.Second, "the successor does not take the jobs up", `SELECT count(*) = 8 FROM jobqueue.finished`)
		report = p.count(ctx, "emails")
		Expect(report.Alive).To(Equal(int64(1)), "the job for later is alive")
		Expect(must[int64](ctx, p, `SELECT count(*) FROM jobqueue.finished WHERE attempt <> 1`)).To(BeZero(), "an attempt was spent")
	})

	It("comes to rest when there is nothing left to do", Serial, SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace))
		Expect(kube.Delete(ctx, MakeJobQueue("emails", p.namespace).Obj())).To(Succeed())
		Expect(kube.Delete(ctx, MakeDatabase(databaseName, p.namespace).Obj())).To(Succeed())
		p.awaitNone(ctx, &v1alpha1.JobQueueList{})
		p.awaitNone(ctx, &v1alpha1.QueueDatabaseList{})
		const span = 2 * time.Second
		Eventually(func() float64 {
			before := reconciles(ctx)
			time.Sleep(span) // a rate needs its span
			return (reconciles(ctx) - before) / span.Seconds()
		}).WithContext(ctx).WithTimeout(20*time.Second).Should(BeNumerically("<", 5), "reconciles a second of an operator without objects")
	})

	// Last, since it takes the operator away.
	It("survives the chart's upgrade, removal and reinstallation (T4, D1)", Serial, SpecPriority(-10), SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Between(1, 2))
		p.awaitPods(ctx, "emails", 1, podTime)
		before := p.steadyDeployment(ctx, "emails")
		stop := p.feed(ctx, "emails", 100*time.Millisecond, noop())
		// What the release was installed with is what it is put back to.
		values := filepath.Join(GinkgoT().TempDir(), "values.yaml")
		Expect(os.WriteFile(values, []byte(helm(ctx, "get", "values", release, "--output", "yaml")), 0o600)).To(Succeed())
		install := func(more ...string) {
			GinkgoHelper()
			helm(ctx, append([]string{"upgrade", "--install", release, chart(), "--values", values, "--wait", "--timeout", "90s"}, more...)...)
			awaitOperator(ctx)
			p.awaitFreshSample(ctx, "emails", 60*time.Second)
		}

		install("--set", "podAnnotations.example\\.org/upgrade=yes")
		Expect(operatorDeployment(ctx, Default).Spec.Template.Annotations).To(HaveKey("example.org/upgrade"))
		p.expectFlow(ctx)

		helm(ctx, "uninstall", release, "--wait")
		Expect(p.jobQueue(ctx, "emails")).NotTo(BeNil(), "the JobQueue went with the chart")
		p.awaitPods(ctx, "emails", 1, podTime)
		p.expectFlow(ctx) // workers need no operator

		install()
		stop()
		p.awaitDrained(ctx, "emails", 30*time.Second)
		p.awaitQueue(ctx, "emails", ready, 20*time.Second)
		after, err := p.deployment(ctx, "emails")
		Expect(err).NotTo(HaveOccurred())
		Expect(after.UID).To(Equal(before.UID))
		Expect(after.Generation).To(Equal(before.Generation), "an upgrade of the operator rolled the workers")
	})
})

// reconciles is how often the operator's controllers have been called, by their own count.
func reconciles(ctx context.Context) float64 {
	GinkgoHelper()
	pods := operatorPods(ctx)
	Expect(pods).To(HaveLen(1))
	metrics := program{path: "kubectl"}.mustRun(ctx, "get", "--raw",
		fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/metrics", operatorNamespace, pods[0].Name))
	total := 0.0
	for _, match := range reconcileTotal.FindAllStringSubmatch(metrics, -1) {
		n, err := strconv.ParseFloat(match[1], 64)
		Expect(err).NotTo(HaveOccurred())
		total += n
	}
	return total
}

var reconcileTotal = regexp.MustCompile(`(?m)^controller_runtime_reconcile_total\{.*\} (\S+)$`)

func helm(ctx context.Context, args ...string) string {
	GinkgoHelper()
	return tool("helm").mustRun(ctx, append([]string{"--namespace", operatorNamespace}, args...)...)
}

// expectFlow fails unless jobs that are enqueued from now on are done.
func (p *place) expectFlow(ctx context.Context) {
	GinkgoHelper()
	ids := p.enqueue(ctx, "emails", []queue.NewJob{noop(), noop()}...)
	p.awaitSQL(ctx, 20*time.Second, "jobs do not flow", `SELECT count(*) = 2 FROM jobqueue.finished WHERE id = ANY($1)`, ids)
}

// steadyDeployment waits until the Deployment has come to rest and returns it.
func (p *place) steadyDeployment(ctx context.Context, jobQueue string) *appsv1.Deployment {
	GinkgoHelper()
	var d *appsv1.Deployment
	// New pods count as available some time after they have become ready; until then the
	// Deployment's status, and with it its version, is still to change.
	Eventually(func(g Gomega) {
		var err error
		d, err = p.deployment(ctx, jobQueue)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect(d.Status.AvailableReplicas).To(Equal(*d.Spec.Replicas))
		g.Expect(d.Status.UpdatedReplicas).To(Equal(*d.Spec.Replicas))
	}).WithContext(ctx).WithTimeout(60*time.Second).Should(Succeed(), "the Deployment does not come to rest")
	return d
}

// operatorPods returns the operator's pods.
func operatorPods(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	selector, err := labels.ValidatedSelectorFromSet(operatorDeployment(ctx, Default).Spec.Selector.MatchLabels)
	Expect(err).NotTo(HaveOccurred())
	var pods corev1.PodList
	Expect(kube.List(ctx, &pods, client.InNamespace(operatorNamespace), client.MatchingLabelsSelector{Selector: selector})).To(Succeed())
	return pods.Items
}

// restartOperator deletes the operator's pods and waits for their successors.
func restartOperator(ctx context.Context) {
	GinkgoHelper()
	old := operatorPods(ctx)
	Expect(old).NotTo(BeEmpty())
	for i := range old {
		Expect(kube.Delete(ctx, &old[i])).To(Succeed())
	}
	Eventually(func(g Gomega) {
		for i := range old {
			err := kube.Get(ctx, client.ObjectKeyFromObject(&old[i]), &corev1.Pod{})
			g.Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
			g.Expect(err).To(HaveOccurred(), "pod %s is still there", old[i].Name)
		}
	}).WithContext(ctx).WithTimeout(40*time.Second).Should(Succeed(), "the operator's pod does not go")
	awaitOperator(ctx)
}
