package e2e

import (
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// minimal is what a user starts with: every value that can have a default has it.
const minimal = `
apiVersion: jobqueue.dev/v1alpha1
kind: QueueDatabase
metadata: {name: app}
spec:
  credentials:
    secretRef: {name: app-db}
---
apiVersion: jobqueue.dev/v1alpha1
kind: JobQueue
metadata: {name: emails}
spec:
  databaseRef: {name: app}
  worker:
    template:
      spec:
        containers:
          - {name: worker, image: IMAGE, args: [worker]}
`

// columns splits a line that kubectl prints: a column's name may hold one blank.
var columns = regexp.MustCompile(`\s{2,}`)

var _ = Describe("Scaling on age", func() {
	// Alone, since it measures.
	It("brings a worker to an idle minimal JobQueue as soon as a job is there (S3, P1)", Serial, SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.apply(ctx, strings.ReplaceAll(minimal, "IMAGE", image))
		p.awaitQueue(ctx, "emails", ready, 30*time.Second)
		p.record(ctx)
		Expect(p.pods(ctx, "emails")).To(BeEmpty(), "an idle queue has workers")
		p.awaitSQL(ctx, 20*time.Second, "the operator does not listen", `
			SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
				AND application_name = 'jobqueue:operator' AND query ILIKE 'listen %')`)

		pods := p.watchPods(ctx)
		begun := time.Now()
		ids := p.enqueue(ctx, "emails", noop())
		Eventually(pods.first).WithContext(ctx).WithTimeout(10*time.Second).WithPolling(10*time.Millisecond).
			ShouldNot(BeZero(), "no pod was created for the first job")
		created := pods.first().Sub(begun)
		p.awaitDrained(ctx, "emails", 30*time.Second)
		// Both times are the database's, so that no clocks are compared.
		started := time.Duration(must[float64](ctx, p, `
			SELECT extract(epoch FROM started_at - created_at)::float8 FROM jobqueue.finished WHERE id = $1`, ids[0]) * float64(time.Second))
		note("first job at zero replicas", "pod created after %d ms, job started after %d ms",
			created.Milliseconds(), started.Milliseconds())
		// The aim is a second. A busy machine is allowed a second more.
		Expect(created).To(BeNumerically("<", 2*time.Second))
		p.expectAttempts(ctx, "emails", ids, 1)
	})

	It("follows the age of the oldest job up and goes back to zero (S2, S4)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20),
			MakeJobQueue("emails", p.namespace).Slots(2).Between(0, 4).TargetAge(4))
		stop := p.overload(ctx, "emails", 6, sleep(2000))
		p.awaitDesired(ctx, "emails", 4, podTime)
		p.awaitPods(ctx, "emails", 4, podTime)
		output, err := p.kubectl(ctx, "get", "jobqueue", "emails")
		Expect(err).NotTo(HaveOccurred(), output)
		expectTable(output, "NAME", "READY", "PENDING", "RUNNING", "OLDEST", "TARGET", "DESIRED", "UP", "DEAD", "WHY", "AGE")
		output, err = p.kubectl(ctx, "get", "qdb", databaseName)
		Expect(err).NotTo(HaveOccurred(), output)
		expectTable(output, "NAME", "READY", "REASON", "SCHEMA", "BUDGET", "ALLOCATED", "IN USE", "AGE")

		stop()
		p.cancelWaiting(ctx, "emails")
		p.awaitDrained(ctx, "emails", 20*time.Second)
		drained := time.Now()
		// The rate of arrivals is measured over a minute, so that the last pod stays for that long.
		p.awaitPods(ctx, "emails", 0, 2*podTime)
		note("empty queue", "no worker was left %.1f s after the last job had ended", time.Since(drained).Seconds())
		jq, err := p.jobQueue(ctx, "emails")
		Expect(err).NotTo(HaveOccurred())
		Expect(jq.Status.Sample.Pending).To(BeZero())
		p.awaitQueue(ctx, "emails", ready, 10*time.Second)
	})

	It("claims nothing while suspended and goes on when resumed (P4)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Between(1, 2))
		p.awaitPods(ctx, "emails", 1, podTime)

		p.change(ctx, "emails", func(s *v1alpha1.JobQueueSpec) { s.Suspend = true })
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionSuspended, metav1.ConditionTrue, ""}, 10*time.Second)
		p.awaitPolicy(ctx, "emails")
		p.enqueue(ctx, "emails", times(20, noop())...)
		// Nothing announces that a job is not claimed. The ready worker polls about once a
		// second, so this covers some tries.
		Consistently(func() (int64, error) {
			return one[int64](ctx, p, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending'`)
		}).WithContext(ctx).WithTimeout(3*time.Second).WithPolling(200*time.Millisecond).
			Should(Equal(int64(20)), "a suspended queue gave out jobs")

		p.change(ctx, "emails", func(s *v1alpha1.JobQueueSpec) { s.Suspend = false })
		p.awaitDrained(ctx, "emails", 20*time.Second)
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionSuspended, metav1.ConditionFalse, ""}, 10*time.Second)
	})

	It("takes a fixed number from kubectl scale, drains what it takes away, and follows the age again (P8, W5)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Slots(2))
		scale := func(n string) {
			output, err := p.kubectl(ctx, "scale", "jobqueue/emails", "--replicas="+n)
			Expect(err).NotTo(HaveOccurred(), output)
		}
		scale("2")
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionScalingActive, metav1.ConditionFalse, v1alpha1.ReasonManualReplicas}, 10*time.Second)
		pods := p.awaitPods(ctx, "emails", 2, podTime)
		watched := p.watchPods(ctx)

		ids := p.enqueue(ctx, "emails", times(4, sleep(4000))...)
		p.awaitSQL(ctx, 10*time.Second, "the jobs do not run", `SELECT count(*) = 4 FROM jobqueue.jobs WHERE state = 'running'`)
		scale("0")
		for _, pod := range pods {
			watched.expectExit(ctx, pod.Name, 0, 20*time.Second)
		}
		Expect(p.awaitDrained(ctx, "emails", time.Second).Succeeded).To(Equal(int64(4)))
		p.expectAttempts(ctx, "emails", ids, 1)

		p.change(ctx, "emails", func(s *v1alpha1.JobQueueSpec) { s.Replicas = nil })
		p.enqueue(ctx, "emails", noop())
		p.awaitDrained(ctx, "emails", 20*time.Second)
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionScalingActive, metav1.ConditionTrue, ""}, 10*time.Second)
	})
})

// expectTable fails unless kubectl has printed exactly these columns and a value in each.
func expectTable(output string, names ...string) {
	GinkgoHelper()
	lines := strings.Split(strings.TrimSpace(output), "\n")
	Expect(lines).To(HaveLen(2), output)
	Expect(columns.Split(strings.TrimSpace(lines[0]), -1)).To(Equal(names))
	values := columns.Split(strings.TrimSpace(lines[1]), -1)
	Expect(values).To(HaveLen(len(names)), "a column is empty:\n%s", output)
	Expect(values).NotTo(ContainElement(MatchRegexp(`^<(none|unknown)>$`)), output)
}
