package integration

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

var _ = Describe("a QueueDatabase", func() {
	It("is ready, counts connections and runs one reaper (R2)", func() {
		w := newWorld()
		db := w.database()
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(db.Status.SchemaVersion).To(BeNumerically(">=", 1))
		c := db.Status.Connections
		Expect(c.Max).To(BeNumerically("==", serverMax(w)))
		Expect(c.Budget).To(BeNumerically(">", 0))
		Expect(c.Budget).To(BeNumerically("<=", (c.Max-c.Reserved)*80/100))
		Expect(c.Allocated).To(BeNumerically("==", 3))

		job := get(&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "db-reaper"}})
		Expect(job.Spec.ConcurrencyPolicy).To(Equal(batchv1.ForbidConcurrent))
		Expect(job.Spec.Schedule).To(Equal("* * * * *"))
		Expect(job.Spec.JobTemplate.Spec.ActiveDeadlineSeconds).To(HaveValue(BeNumerically("==", 300)))
		pod := job.Spec.JobTemplate.Spec.Template.Spec
		Expect(pod.Containers[0].Image).To(Equal("registry.example/jobqueue:test"))
		Expect(pod.Containers[0].Command).To(Equal([]string{"/jobqueue", "reap", "--retention"}))
		Expect(pod.SecurityContext.RunAsNonRoot).To(HaveValue(BeTrue()))
		Expect(pod.AutomountServiceAccountToken).To(HaveValue(BeFalse()))
		Expect(metav1.GetControllerOf(job).Name).To(Equal("db"))

		By("a changed reaper is applied, a deleted one comes back")
		change(db, func(db *v1alpha1.QueueDatabase) { db.Spec.Reaper.Schedule = "*/5 * * * *" })
		Eventually(func() string { return get(job).Spec.Schedule }).Should(Equal("*/5 * * * *"))
		old := job.UID
		Expect(k8s.Delete(within(5*time.Second), job)).To(Succeed())
		Eventually(func(g Gomega) {
			found := &batchv1.CronJob{}
			g.Expect(k8s.Get(within(time.Second), clientKey(w.ns, "db-reaper"), found)).To(Succeed())
			g.Expect(found.UID).NotTo(Equal(old))
		}).Should(Succeed())
	})

	It("says what is wrong with its Secret, and mends itself", func() {
		w := newWorld()
		db := w.database(func(db *v1alpha1.QueueDatabase) { db.Spec.Credentials.SecretRef.Name = "late" })
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("False/SecretNotFound"))
		Expect(condition(db, v1alpha1.ConditionReconciling)()).To(Equal("True/SecretNotFound"))

		w.setSecret("late", "postgres://user:hunter2@:not-a-port/x")
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("False/SecretInvalid"))
		Expect(condition(db, v1alpha1.ConditionStalled)()).To(Equal("True/SecretInvalid"))
		Expect(message(db, v1alpha1.ConditionReady)()).NotTo(ContainSubstring("hunter2"))

		w.setSecret("late", w.dbURL)
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(condition(db, v1alpha1.ConditionStalled)()).To(BeEmpty())
		Expect(condition(db, v1alpha1.ConditionReconciling)()).To(BeEmpty())

		By("a Secret that goes is noticed")
		Expect(k8s.Delete(within(5*time.Second), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "late"}})).To(Succeed())
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("False/SecretNotFound"))

		By("no metric stays of a database that is gone")
		reachable := func() (series []float64) {
			w.gather("jobqueue_operator_database_reachable", func(m *dto.Metric, _ map[string]string) { series = append(series, m.GetGauge().GetValue()) })
			return series
		}
		Eventually(reachable).Should(Equal([]float64{0}))
		Expect(k8s.Delete(within(5*time.Second), db)).To(Succeed())
		Eventually(reachable).Should(BeEmpty())
	})

	It("tells a wrong password from an absent server, and prints no password", func() {
		w := newWorld()
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "CREATE ROLE nobody_"+w.ns+" NOLOGIN")
			Expect(err).NotTo(HaveOccurred())
		})
		w.setSecret("db", strings.Replace(w.dbURL, "postgres@", "nobody_"+w.ns+":s3cr3t@", 1))
		db := w.database()
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("False/AuthenticationFailed"))
		Expect(condition(db, v1alpha1.ConditionStalled)()).To(Equal("True/AuthenticationFailed"))
		Eventually(w.events("db")).Should(ContainElements("DatabaseLost", "AuthenticationFailed"))

		w.setSecret("db", "postgres://u:s3cr3t@127.0.0.1:1/x?sslmode=disable")
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("False/ConnectionFailed"))
		Expect(message(db, v1alpha1.ConditionReady)()).To(ContainSubstring("cannot connect to 127.0.0.1:1: connection refused"))
		Expect(condition(db, v1alpha1.ConditionReconciling)()).To(Equal("True/ConnectionFailed"))

		w.setSecret("db", w.dbURL)
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(w.events("db")).Should(ContainElement("DatabaseRecovered"))
		for _, note := range w.eventNotes() {
			Expect(note).NotTo(ContainSubstring("s3cr3t"))
		}
	})

	It("waits for a migration by hand", func() {
		w := newWorld()
		db := w.database(func(db *v1alpha1.QueueDatabase) { db.Spec.Migrations = v1alpha1.MigrationManual })
		q := w.jobQueue("emails")
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("False/SchemaMissing"))
		Expect(message(db, v1alpha1.ConditionReady)()).To(ContainSubstring("jobqueue migrate"))
		Expect(condition(db, v1alpha1.ConditionDatabaseReachable)()).To(Equal("True/Connected"))
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("False/QueueDatabaseNotReady"))
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			_, err := w.queue.Migrate(ctx, conn)
			Expect(err).NotTo(HaveOccurred())
		})
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))

		By("a schema from the future is left alone")
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "INSERT INTO jobqueue.schema_migrations (version) VALUES (9999)")
			Expect(err).NotTo(HaveOccurred())
		})
		w.setSecret("db", w.dbURL+"&application_name=anew") // new connections, which look again
		Eventually(condition(db, v1alpha1.ConditionReady)).Should(Equal("False/SchemaTooNew"))
	})

	It("S6: an outage holds replicas, and says so", func() {
		server, err := pgtest.Start()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(server.Stop)
		w := newWorldOn(server)
		db := w.database()
		q := w.jobQueue("emails", minReplicas(2))
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 2))

		Expect(server.Halt(pgtest.Fast)).To(Succeed())
		Eventually(condition(db, v1alpha1.ConditionDatabaseReachable)).Should(Equal("False/ConnectionFailed"))
		Eventually(condition(q, v1alpha1.ConditionScalingActive)).Should(Equal("False/SampleStale"))
		Expect(condition(q, v1alpha1.ConditionReady)()).To(Equal("False/QueueDatabaseNotReady"))
		change(q, func(q *v1alpha1.JobQueue) { q.Spec.Scaling.MinReplicas = new(int32(5)) })
		Eventually(func() int64 { return get(q).Status.ObservedGeneration }).Should(Equal(q.Generation))
		Expect(w.replicas("emails")()).To(BeNumerically("==", 2), "nothing is added while the database is away")

		Expect(server.Resume()).To(Succeed())
		Eventually(condition(q, v1alpha1.ConditionScalingActive)).Should(Equal("True/SampleFresh"))
		Eventually(w.replicas("emails")).Should(BeNumerically("==", 5))
		Eventually(w.events("emails")).Should(ContainElements("DatabaseLost", "DatabaseRecovered"))
	})

	It("rolls workers when credentials are rotated, and only then", func() {
		w := newWorld()
		w.database()
		q := w.jobQueue("emails", minReplicas(1))
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		fingerprint := func() string {
			return w.deployment("emails").Spec.Template.Annotations["jobqueue.dev/credentials"]
		}
		before := fingerprint()
		Expect(before).NotTo(BeEmpty())

		By("another key of the Secret changes nothing")
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "db"}}
		change(secret, func(s *corev1.Secret) { s.Data["note"] = []byte("x") })
		Consistently(fingerprint).WithTimeout(time.Second).Should(Equal(before))

		By("the URL changes the template and the operator's own connections")
		u, err := url.Parse(w.dbURL)
		Expect(err).NotTo(HaveOccurred())
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "CREATE ROLE rotated_"+w.ns+" SUPERUSER LOGIN")
			Expect(err).NotTo(HaveOccurred())
		})
		u.User = url.User("rotated_" + w.ns)
		w.setSecret("db", u.String())
		Eventually(fingerprint).ShouldNot(Equal(before))
		w.sql(func(ctx context.Context, conn *pgx.Conn) {
			Eventually(func() (users []string, err error) {
				rows, err := conn.Query(ctx, "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobqueue:operator'")
				if err != nil {
					return nil, err
				}
				return pgx.CollectRows(rows, pgx.RowTo[string])
			}).Should(Equal([]string{"rotated_" + w.ns}))
		})
		Eventually(condition(q, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
	})
})

// serverMax is the server's max_connections.
func serverMax(w *world) (n int) {
	w.sql(func(ctx context.Context, conn *pgx.Conn) {
		Expect(conn.QueryRow(ctx, "SELECT current_setting('max_connections')::int").Scan(&n)).To(Succeed())
	})
	return n
}
