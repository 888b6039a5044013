package integration

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// P2: wrong combinations are refused in words that a user understands. No
// controller runs here: the API server refuses by itself.
var _ = Describe("admission", Ordered, func() {
	const ns = "admission"
	BeforeAll(func() {
		Expect(k8s.Create(within(5*time.Second), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
	})

	queueCase := func(change func(*v1alpha1.JobQueue), wanted string) {
		q := minimal(ns, "", func(q *v1alpha1.JobQueue) { q.GenerateName = "q-" }, change)
		err := k8s.Create(within(5*time.Second), q)
		if wanted == "" {
			Expect(err).NotTo(HaveOccurred())
			return
		}
		Expect(err).To(MatchError(ContainSubstring(wanted)))
	}
	type Q = *v1alpha1.JobQueue
	DescribeTable("JobQueue", queueCase,
		Entry("minimal", func(Q) {}, ""),
		Entry("heartbeat at half of the lease", func(q Q) { q.Spec.Lease = v1alpha1.LeaseSpec{DurationSeconds: 20, HeartbeatSeconds: 10} }, ""),
		Entry("heartbeat above half of the lease", func(q Q) { q.Spec.Lease = v1alpha1.LeaseSpec{DurationSeconds: 20, HeartbeatSeconds: 11} },
			"lease.heartbeatSeconds must be at most half of lease.durationSeconds, so that one late heartbeat loses no job"),
		Entry("lease below its minimum", func(q Q) { q.Spec.Lease.DurationSeconds = 3 }, "spec.lease.durationSeconds"),
		Entry("backoff above its maximum", func(q Q) { q.Spec.Retry = v1alpha1.RetrySpec{BackoffSeconds: 60, BackoffMaxSeconds: 30} },
			"retry.backoffSeconds must not exceed retry.backoffMaxSeconds"),
		Entry("jitter above 100 %", func(q Q) { q.Spec.Retry.JitterPercent = new(int32(101)) }, "spec.retry.jitterPercent"),
		Entry("minimum above maximum", func(q Q) {
			q.Spec.Scaling = v1alpha1.ScalingSpec{MinReplicas: new(int32(5)), MaxReplicas: 4}
		}, "scaling.minReplicas must not exceed scaling.maxReplicas"),
		Entry("minimum above the default maximum", func(q Q) { q.Spec.Scaling.MinReplicas = new(int32(11)) }, "scaling.minReplicas must not exceed scaling.maxReplicas"),
		Entry("grace above the timeout", func(q Q) { q.Spec.Worker.Template.Spec.TerminationGracePeriodSeconds = new(int64(61)) }, ""),
		Entry("grace not above the timeout", func(q Q) { q.Spec.Worker.Template.Spec.TerminationGracePeriodSeconds = new(int64(60)) },
			"worker.template.spec.terminationGracePeriodSeconds must be greater than timeoutSeconds, else a running job is killed before it may finish; leave it out for timeoutSeconds + 30"),
		Entry("batch below slots", func(q Q) { q.Spec.Batch.Size = new(int32(9)) },
			"batch.size must not be below worker.slots: a claim must be able to fill every slot"),
		Entry("queue name with upper case", func(q Q) { q.Spec.QueueName = "Emails" }, "queueName must consist of lower-case letters, digits, '-', '_' and '.', and begin and end with a letter or digit; it is Emails"),
		Entry("queue name with a dot", func(q Q) { q.Spec.QueueName = "emails.eu_1" }, ""),
		Entry("name too long", func(q Q) {
			q.Name = "a-name-of-more-than-fifty-two-characters-which-is-too-long"
		}, "metadata.name must be at most 52 characters"),
		Entry("too few connections", func(q Q) { q.Spec.Connections.PerReplica = 1 }, "spec.connections.perReplica"),
		Entry("negative replicas", func(q Q) { q.Spec.Replicas = new(int32(-1)) }, "spec.replicas"),
		Entry("no database", func(q Q) { q.Spec.DatabaseRef.Name = "" }, "spec.databaseRef.name"),
	)

	databaseCase := func(change func(*v1alpha1.QueueDatabase), wanted string) {
		db := &v1alpha1.QueueDatabase{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "db-"},
			Spec: v1alpha1.QueueDatabaseSpec{Credentials: v1alpha1.DatabaseCredentials{
				SecretRef: v1alpha1.SecretKeyReference{Name: "db"}}},
		}
		change(db)
		err := k8s.Create(within(5*time.Second), db)
		if wanted == "" {
			Expect(err).NotTo(HaveOccurred())
			return
		}
		Expect(err).To(MatchError(ContainSubstring(wanted)))
	}
	type D = *v1alpha1.QueueDatabase
	DescribeTable("QueueDatabase", databaseCase,
		Entry("minimal", func(D) {}, ""),
		Entry("both kinds of budget, as after a patch of the default", func(d D) {
			d.Spec.ConnectionBudget = v1alpha1.ConnectionBudget{Connections: new(int32(10)), Percent: new(int32(10))}
		}, ""),
		Entry("a budget of nothing", func(d D) { d.Spec.ConnectionBudget.Connections = new(int32(3)) }, "spec.connectionBudget.connections"),
		Entry("a schema with a dash", func(d D) { d.Spec.Schema = "job-queue" }, "not starting with a digit; it is job-queue"),
		Entry("a schema of PostgreSQL's own", func(d D) { d.Spec.Schema = "pg_jobs" }, "which PostgreSQL keeps for itself; it is pg_jobs"),
		Entry("a name too long", func(d D) { d.Name = "a-name-of-more-than-forty-characters-is-too-long" }, "metadata.name must be at most 40 characters"),
		Entry("an unknown migration policy", func(d D) { d.Spec.Migrations = "Sometimes" }, "spec.migrations"),
		Entry("no secret", func(d D) { d.Spec.Credentials.SecretRef.Name = "" }, "spec.credentials.secretRef.name"),
	)

	It("fills in the defaults", func() {
		q := minimal(ns, "defaults")
		q.Spec.Scaling = v1alpha1.ScalingSpec{}
		Expect(k8s.Create(within(5*time.Second), q)).To(Succeed())
		s := q.Spec
		Expect(s.TimeoutSeconds).To(BeNumerically("==", 60))
		Expect(s.Lease).To(Equal(v1alpha1.LeaseSpec{DurationSeconds: 30, HeartbeatSeconds: 10}))
		Expect(s.Retry).To(Equal(v1alpha1.RetrySpec{MaxAttempts: 5, BackoffSeconds: 5, BackoffMaxSeconds: 3600, JitterPercent: new(int32(20))}))
		Expect(s.Retention).To(Equal(v1alpha1.RetentionSpec{FinishedSeconds: new(int64(86400)), DeadSeconds: new(int64(1209600))}))
		Expect(s.Scaling).To(Equal(v1alpha1.ScalingSpec{MinReplicas: new(int32(0)), MaxReplicas: 10, TargetAgeSeconds: 30, ScaleDownStabilizationSeconds: new(int32(60))}))
		Expect(s.Connections).To(Equal(v1alpha1.ConnectionsSpec{PerReplica: 3, Weight: 1}))
		Expect(s.Worker.Slots).To(BeNumerically("==", 10))
		Expect(s.MaxPayloadBytes).To(BeNumerically("==", 262144))
	})

	DescribeTable("what cannot be changed", func(change func(*v1alpha1.JobQueue), wanted string) {
		q := minimal(ns, "", func(q *v1alpha1.JobQueue) { q.GenerateName = "fixed-"; q.Spec.QueueName = "fixed" })
		Expect(k8s.Create(within(5*time.Second), q)).To(Succeed())
		change(q)
		Expect(k8s.Update(within(5*time.Second), q)).To(MatchError(ContainSubstring(wanted)))
	},
		Entry("the database", func(q Q) { q.Spec.DatabaseRef.Name = "other" }, "databaseRef cannot be changed: the jobs would stay behind in the other database; create another JobQueue; it is db, not other"),
		Entry("the queue", func(q Q) { q.Spec.QueueName = "other" }, "queueName cannot be changed"),
	)

	It("keeps a database's schema", func() {
		db := &v1alpha1.QueueDatabase{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "schema"},
			Spec: v1alpha1.QueueDatabaseSpec{Credentials: v1alpha1.DatabaseCredentials{SecretRef: v1alpha1.SecretKeyReference{Name: "db"}}}}
		Expect(k8s.Create(within(5*time.Second), db)).To(Succeed())
		Expect(db.Spec.Schema).To(Equal("jobqueue"))
		Expect(db.Spec.ConnectionBudget.Percent).To(HaveValue(BeNumerically("==", 80)))
		db.Spec.Schema = "other"
		Expect(k8s.Update(within(5*time.Second), db)).To(MatchError(ContainSubstring("schema cannot be changed: the jobs in it would stay behind; create another QueueDatabase; it is jobqueue, not other")))
	})
})
