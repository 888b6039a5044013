package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

// The server of these tests has 27 connections for clients without a part in the
// reserved ones. Less the operator's and the reaper's for two databases and one of
// the tests' own these are 20: 6 pods of 3.
const (
	smallMax      = 30
	smallReserved = 3
)

var _ = Describe("two QueueDatabases on one server", func() {
	var server *pgtest.Server
	var monitor *pgx.Conn
	BeforeEach(func() {
		var err error
		server, err = pgtest.Start(fmt.Sprintf("max_connections=%d", smallMax))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(server.Stop)
		monitor, err = pgx.Connect(within(10*time.Second), server.URL("postgres"))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = monitor.Close(context.Background()) })
		_, err = monitor.Exec(within(10*time.Second), "CREATE ROLE plain LOGIN")
		Expect(err).NotTo(HaveOccurred())
	})
	// plugIn has a world's pods open real connections.
	plugIn := func(w *world) *plugs {
		p, err := newPlugs(w.dbURL, "plain")
		Expect(err).NotTo(HaveOccurred())
		w.player.plugs.Store(p)
		return p
	}
	percent := func(n int32) func(*v1alpha1.QueueDatabase) {
		return func(db *v1alpha1.QueueDatabase) {
			db.Spec.ConnectionBudget = v1alpha1.ConnectionBudget{Percent: &n}
		}
	}
	// greedy needs more pods than the server has connections for.
	greedy := func(q *v1alpha1.JobQueue) {
		q.Spec.Worker.Slots = 1
		q.Spec.Scaling.MaxReplicas = 50
	}

	It("B1, B3: share it between namespaces and databases, and an operator's restart changes nothing (S10)", func() {
		x, y := makeWorld(server), makeWorld(server)
		plugs := []*plugs{plugIn(x), plugIn(y)}
		x.watch = []string{x.ns, y.ns}
		x.start()
		DeferCleanup(func() {
			x.stop()
			for i, w := range []*world{x, y} {
				w.player.stop()
				plugs[i].closeAll()
			}
		})
		peak := watchPeak(x.ns, y.ns)

		By("both want all of it at once")
		dbX, dbY := x.database(percent(100)), y.database(percent(100))
		qx, qy := x.jobQueue("emails", greedy), y.jobQueue("reports", greedy)
		Eventually(condition(qx, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(condition(qy, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		x.enqueue("emails", 2000)
		y.enqueue("reports", 2000)
		Eventually(x.replicas("emails")).Should(BeNumerically("==", 3))
		Eventually(y.replicas("reports")).Should(BeNumerically("==", 3))

		By("each says what it has, and who else has a part")
		Eventually(condition(dbX, v1alpha1.ConditionBudgetConstrained)).Should(Equal("True/BudgetExhausted"))
		Eventually(condition(dbY, v1alpha1.ConditionBudgetConstrained)).Should(Equal("True/BudgetExhausted"))
		Expect(message(dbX, v1alpha1.ConditionBudgetConstrained)()).To(ContainSubstring("12 connections are promised to QueueDatabase " + y.ns + "/db"))
		Expect(message(qx, v1alpha1.ConditionBudgetConstrained)()).To(ContainSubstring("promised to QueueDatabase " + y.ns + "/db"))
		Expect(message(qy, v1alpha1.ConditionBudgetConstrained)()).To(ContainSubstring("promised to QueueDatabase " + x.ns + "/db"))
		Expect(get(dbX).Status.Connections).To(HaveValue(And(
			HaveField("Max", int32(smallMax)), HaveField("Reserved", int32(smallReserved)),
			HaveField("Allocated", int32(12)), HaveField("Elsewhere", int32(12)), HaveField("SharedWith", []string{y.ns + "/db"}))))
		Expect(get(dbY).Status.Connections.SharedWith).To(Equal([]string{x.ns + "/db"}))

		By("it stays so, also when the operator starts anew")
		steady := func() {
			GinkgoHelper()
			Consistently(func() []int32 { return []int32{x.replicas("emails")(), y.replicas("reports")()} }).
				WithTimeout(3 * time.Second).Should(Equal([]int32{3, 3}))
		}
		steady()
		x.stop()
		before := get(dbY).Status.LastSampleTime.Time
		x.start()
		steady()
		change(dbY, func(db *v1alpha1.QueueDatabase) { db.Spec.Reaper.Schedule = "*/5 * * * *" })
		Eventually(func() time.Time { return get(dbY).Status.LastSampleTime.Time }).Should(BeTemporally(">", before), "the new operator samples")
		steady()

		By("also when it starts anew and cannot reach one of the databases")
		allow := func(allowed bool) {
			_, err := monitor.Exec(within(10*time.Second), fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %t", y.ns, allowed))
			Expect(err).NotTo(HaveOccurred())
		}
		x.stop()
		allow(false)
		x.start()
		Eventually(condition(dbY, v1alpha1.ConditionDatabaseReachable)).Should(Equal("False/ConnectionFailed"))
		steady()
		allow(true)
		Eventually(condition(dbY, v1alpha1.ConditionDatabaseReachable)).Should(Equal("True/Connected"))
		steady()

		By("what one gives up goes to the other")
		change(qx, func(q *v1alpha1.JobQueue) { q.Spec.Replicas = new(int32(0)) })
		Eventually(y.replicas("reports")).Should(BeNumerically("==", 6))
		change(qx, func(q *v1alpha1.JobQueue) { q.Spec.Replicas = nil })
		Eventually(x.replicas("emails")).Should(BeNumerically("==", 3))
		Eventually(y.replicas("reports")).Should(BeNumerically("==", 3))

		peak.expectWithin(smallMax - smallReserved - 1)
		for _, p := range plugs {
			Expect(p.refusals()).To(BeEmpty(), "the server had connections for all pods")
		}
	})

	It("B1: share one database, and count what no QueueDatabase has promised", func() {
		w := makeWorld(server)
		pods := plugIn(w)
		w.start()
		DeferCleanup(func() { w.stop(); w.player.stop(); pods.closeAll() })
		peak := watchPeak(w.ns)

		By("the first has it for itself")
		first := w.database(budgetOf(21))
		w.jobQueue("emails", func(q *v1alpha1.JobQueue) { q.Spec.Replicas = new(int32(20)) })
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 6))
		Eventually(func() int { n, _ := w.pods("emails"); return n }).Should(Equal(6))
		Expect(get(first).Status.Connections.SharedWith).To(BeEmpty())

		By("the second, in a schema of its own, grows as the first gives way")
		second := w.database(budgetOf(21), func(db *v1alpha1.QueueDatabase) { db.Name, db.Spec.Schema = "second", "second" })
		w.jobQueue("reports", func(q *v1alpha1.JobQueue) { q.Spec.DatabaseRef.Name, q.Spec.Replicas = "second", new(int32(20)) })
		Eventually(w.replicas("reports")).Should(BeNumerically("==", 3))
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 3))
		Eventually(func() []string { return get(first).Status.Connections.SharedWith }).Should(Equal([]string{w.ns + "/second"}))
		Eventually(func() []string { return get(second).Status.Connections.SharedWith }).Should(Equal([]string{w.ns + "/db"}))
		Eventually(func() int { n, gone := w.pods("emails"); return n + gone }).Should(Equal(3))
		peak.expectWithin(smallMax - smallReserved - 1)
		Expect(pods.refusals()).To(BeEmpty())

		By("workers that it does not know count as other clients")
		for range 3 {
			pods.open(within(5*time.Second), "stranger", "jobqueue:worker:elsewhere")
		}
		Eventually(func() []int32 { return []int32{w.replicas("emails")(), w.replicas("reports")()} }).WithTimeout(20 * time.Second).Should(
			ConsistOf(BeNumerically("==", 2), BeNumerically("==", 3)))
		Eventually(message(second, v1alpha1.ConditionBudgetConstrained)).Should(
			ContainSubstring("3 connections of job queues are in use that this operator has not promised"))
		pods.close("stranger")
		Eventually(func() []int32 { return []int32{w.replicas("emails")(), w.replicas("reports")()} }).WithTimeout(20 * time.Second).Should(
			Equal([]int32{3, 3}))
	})
})

// peakWatch looks all the time at what the workers of some namespaces hold or may
// come to hold.
type peakWatch struct {
	cancel context.CancelFunc
	done   chan struct{}
	looks  int
	most   int32
	atMost string
}

func watchPeak(namespaces ...string) *peakWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &peakWatch{cancel: cancel, done: make(chan struct{})}
	DeferCleanup(func() { w.cancel(); <-w.done })
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.look(ctx, namespaces)
		}
	}()
	return w
}

// look adds up, of one state of the API server each, replicas and pods.
func (w *peakWatch) look(ctx context.Context, namespaces []string) {
	var deployments appsv1.DeploymentList
	var pods corev1.PodList
	ours := client.HasLabels{controllers.LabelQueue}
	if k8s.List(ctx, &deployments, ours) != nil || k8s.List(ctx, &pods, ours) != nil {
		return
	}
	var wanted, held int32
	for _, d := range deployments.Items {
		if slices.Contains(namespaces, d.Namespace) {
			n, _ := strconv.Atoi(d.Spec.Template.Annotations[controllers.AnnotationConnections])
			wanted += *d.Spec.Replicas * int32(n)
		}
	}
	for _, p := range pods.Items {
		if slices.Contains(namespaces, p.Namespace) {
			n, _ := strconv.Atoi(p.Annotations[controllers.AnnotationConnections])
			held += int32(n)
		}
	}
	w.looks++
	if n := max(wanted, held); n > w.most {
		w.most, w.atMost = n, fmt.Sprintf("replicas ask for %d, pods hold %d", wanted, held)
	}
}

// expectWithin ends the watch. The operator and the reaper have connections of
// their own for each of the two databases.
func (w *peakWatch) expectWithin(connections int32) {
	GinkgoHelper()
	w.cancel()
	<-w.done
	GinkgoWriter.Printf("at most %d connections of %d in %d looks: %s\n", w.most+2*budget.Overhead, connections, w.looks, w.atMost)
	Expect(w.looks).To(BeNumerically(">", 20))
	Expect(w.most+2*budget.Overhead).To(BeNumerically("<=", connections), w.atMost)
}
