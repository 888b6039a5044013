package integration

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers"
)

// hold opens a session that keeps a snapshot until it is closed.
func (w *world) hold(application string) *pgx.Conn {
	GinkgoHelper()
	cfg, err := pgx.ParseConfig(w.dbURL)
	Expect(err).NotTo(HaveOccurred())
	cfg.RuntimeParams["application_name"] = application
	ctx := within(20 * time.Second)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = conn.Close(context.Background()) })
	for _, sql := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		_, err = conn.Exec(ctx, sql)
		Expect(err).NotTo(HaveOccurred())
	}
	return conn
}

// write makes a transaction that writes, so that later snapshots differ.
func (w *world) write() {
	GinkgoHelper()
	w.sql(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "SELECT pg_current_xact_id()")
		Expect(err).NotTo(HaveOccurred())
	})
}

// samples counts the operator's samples of the world's database.
func (w *world) samples() (n uint64) {
	w.gather("jobqueue_operator_sample_duration_seconds", func(m *dto.Metric, _ map[string]string) { n = m.GetHistogram().GetSampleCount() })
	return n
}

// horizonEvents are the warnings of a held horizon.
func (w *world) horizonEvents() (out []eventsv1.Event) {
	var list eventsv1.EventList
	Expect(k8s.List(within(5*time.Second), &list, client.InNamespace(w.ns))).To(Succeed())
	for _, e := range list.Items {
		if e.Reason == v1alpha1.ConditionHorizonHeld {
			out = append(out, e)
		}
	}
	return out
}

// gather calls f with each series of a metric of the world's database.
func (w *world) gather(name string, f func(m *dto.Metric, labels map[string]string)) {
	families, err := ctrlmetrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["namespace"] == w.ns {
				f(m, labels)
			}
		}
	}
}

// holders are the values of the info metric, by pid and application.
func (w *world) holders() map[string]float64 {
	out := map[string]float64{}
	w.gather("jobqueue_operator_horizon_holder_info", func(m *dto.Metric, labels map[string]string) {
		out[labels["pid"]+" "+labels["application"]] = m.GetGauge().GetValue()
	})
	return out
}

// horizonAge is the metric of the horizon's age in seconds; -1 when there is none.
func (w *world) horizonAge() float64 {
	age := float64(-1)
	w.gather("jobqueue_operator_horizon_age_seconds", func(m *dto.Metric, _ map[string]string) { age = m.GetGauge().GetValue() })
	return age
}

var _ = Describe("a held horizon (Q16, O1, P7)", func() {
	It("is a condition, one event and a metric that name the holder, for as long as it holds", func() {
		w := newWorldOn(postgres, controllers.WithHorizonLimit(2*time.Second))
		db := w.database(func(db *v1alpha1.QueueDatabase) { db.Spec.SampleIntervalSeconds = 1 })
		Eventually(condition(db, v1alpha1.ConditionHorizonHeld)).Should(Equal("False/HorizonAdvances"))
		Expect(w.holders()).To(BeEmpty())

		first := w.hold("report")
		pid := strconv.Itoa(int(first.PgConn().PID()))
		Eventually(condition(db, v1alpha1.ConditionHorizonHeld)).Should(Equal("True/OldSession"))
		Expect(message(db, v1alpha1.ConditionHorizonHeld)()).To(And(
			MatchRegexp(`session %s \(application "report", user "postgres", database "%s", idle in transaction\) has held .* for [2-9]s:`, pid, w.ns),
			HaveSuffix(fmt.Sprintf("SELECT pg_terminate_backend(%s)", pid))))
		Expect(db.Status.HorizonHolder).NotTo(BeNil())
		Expect(db.Status.HorizonHolder.ApplicationName).To(Equal("report"))
		Expect(condition(db, v1alpha1.ConditionReady)()).To(Equal("True/Ready"))
		Expect(w.holders()).To(Equal(map[string]float64{pid + " report": 1}))
		Eventually(w.horizonAge).Should(BeNumerically(">", 2))
		Eventually(w.horizonEvents).Should(HaveLen(1))

		By("further samples say no more")
		Eventually(message(db, v1alpha1.ConditionHorizonHeld)).Should(MatchRegexp("for (8|9|1.)s:"))
		events := w.horizonEvents()
		Expect(events).To(HaveLen(1))
		Expect(events[0].Series).To(BeNil())
		Expect(events[0].Type).To(Equal(corev1.EventTypeWarning))
		Expect(events[0].Note).To(And(ContainSubstring("session "+pid+` (application "report"`), ContainSubstring("pg_terminate_backend("+pid+")")))

		By("the next one to hold it is another event")
		w.write() // or both had the same snapshot
		second := w.hold("dump")
		Expect(first.Close(within(5 * time.Second))).To(Succeed())
		next := strconv.Itoa(int(second.PgConn().PID()))
		Eventually(message(db, v1alpha1.ConditionHorizonHeld)).Should(ContainSubstring("session " + next))
		Eventually(w.horizonEvents).Should(ContainElement(HaveField("Note", ContainSubstring("session "+next+` (application "dump"`))))
		Expect(w.horizonEvents()).To(HaveLen(2))
		Expect(w.holders()).To(Equal(map[string]float64{next + " dump": 1}))

		By("another operator takes it over and says no more")
		w.stop()
		w.start()
		before := w.samples()
		Eventually(w.samples).Should(BeNumerically(">", before+3))
		Expect(condition(db, v1alpha1.ConditionHorizonHeld)()).To(Equal("True/OldSession"))
		Expect(w.horizonEvents()).To(HaveLen(2))

		By("it goes, and so does all that is said of it")
		Expect(second.Close(within(5 * time.Second))).To(Succeed())
		Eventually(condition(db, v1alpha1.ConditionHorizonHeld)).Should(Equal("False/HorizonAdvances"))
		Expect(db.Status.HorizonHolder).To(BeNil())
		Expect(w.holders()).To(BeEmpty())
		Eventually(w.horizonAge).Should(BeZero())
		Expect(w.horizonEvents()).To(HaveLen(2))
	})

	It("is not what an old transaction at READ COMMITTED does between its statements", func() {
		w := newWorldOn(postgres, controllers.WithHorizonLimit(2*time.Second))
		db := w.database(func(db *v1alpha1.QueueDatabase) { db.Spec.SampleIntervalSeconds = 1 })
		Eventually(condition(db, v1alpha1.ConditionHorizonHeld)).Should(Equal("False/HorizonAdvances"))
		before := w.samples()
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "BEGIN")
			Expect(err).NotTo(HaveOccurred())
			for w.samples() < before+6 {
				_, err := conn.Exec(ctx, "SELECT pg_sleep(0.5)") // samples mostly meet one
				Expect(err).NotTo(HaveOccurred())
				w.write()
			}
		})
		Expect(condition(db, v1alpha1.ConditionHorizonHeld)()).To(Equal("False/HorizonAdvances"))
		Expect(w.horizonEvents()).To(BeEmpty())
	})
})
