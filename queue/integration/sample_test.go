package integration_test

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("the sample (S1, S6)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })

	It("is zero for an empty queue, and knows every declared one", func() {
		Expect(e.c.SetPolicy(e.ctx, e.pool, "zwei", queue.DefaultPolicy())).To(Succeed())
		s, err := e.c.Sample(e.ctx, e.pool)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Queues).To(Equal(map[string]queue.QueueSample{"q": {}, "zwei": {}}))
		Expect(s.InRecovery).To(BeFalse())
		Expect(s.TakenAt).To(BeTemporally("~", query[time.Time](e, `SELECT clock_timestamp()`), time.Minute))
		e.exec(`DELETE FROM jobqueue.queues`)
		s, err = e.c.Sample(e.ctx, e.pool)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Queues).To(BeEmpty())
	})

	It("counts states, due jobs as ready, and the oldest age over all priorities (S7)", func() {
		worker := uuid.New()
		e.enqueue(5, func(i int, j *queue.NewJob) { j.Priority = int16(i % 3) })
		e.claim(worker, 2)
		e.enqueue(3, func(_ int, j *queue.NewJob) { j.Delay = time.Hour })
		e.enqueue(2, func(_ int, j *queue.NewJob) { j.Delay = 30 * time.Second })
		s := e.sample()
		Expect(s.Pending).To(BeEquivalentTo(3))
		Expect(s.Scheduled).To(BeEquivalentTo(5))
		Expect(s.DueSoon).To(BeEquivalentTo(2))
		Expect(s.Running).To(BeEquivalentTo(2))
		Expect(s.Workers).To(Equal(1))
		Expect(s.Claimed).To(BeEquivalentTo(2))
		Expect(s.OldestAge).To(And(BeNumerically(">", 0), BeNumerically("<", time.Minute)))

		e.exec(`UPDATE jobqueue.waiting SET available_at = clock_timestamp() - interval '1 h' WHERE id = (SELECT max(id) FROM jobqueue.waiting WHERE state = 'pending')`)
		Expect(e.sample().OldestAge).To(BeNumerically("~", time.Hour, time.Minute))
		e.exec(`UPDATE jobqueue.waiting SET available_at = clock_timestamp() - interval '2 h' WHERE id = (SELECT max(id) FROM jobqueue.waiting WHERE state = 'scheduled')`)
		s = e.sample()
		Expect(s.OldestAge).To(BeNumerically("~", 2*time.Hour, time.Minute), "a due job that nobody has promoted")
		Expect(s.Pending).To(BeEquivalentTo(4))
		Expect(s.Scheduled).To(BeEquivalentTo(4))
	})

	It("names jobs that wait for a handler that no worker has, once workers have been up for a while (W1)", func() {
		claims := func(worker uuid.UUID, kinds ...string) {
			_, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 10, Kinds: kinds})
			Expect(err).NotTo(HaveOccurred())
		}
		old := func(_ int, j *queue.NewJob) { j.Kind, j.RunAt = "emial", time.Now().Add(-2*time.Minute) }
		e.enqueue(3, old)
		Expect(e.sample().Unhandled).To(BeZero(), "no worker is there")
		one := uuid.New()
		claims(one, "email", "fax")
		Expect(e.sample().Unhandled).To(BeZero(), "it has just come up; others with other handlers may")
		e.exec(`UPDATE jobqueue.workers SET started_at = clock_timestamp() - interval '61 s'`)
		s := e.sample()
		Expect(s.Unhandled).To(BeEquivalentTo(3))
		Expect(s.UnhandledKind).To(Equal("emial"))
		_, err := e.c.Heartbeat(e.ctx, e.pool, one, "q", nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.sample().Unhandled).To(BeEquivalentTo(3), "a heartbeat forgets no kinds")

		e.enqueue(1, func(_ int, j *queue.NewJob) { j.Kind = "emial" })
		Expect(e.sample().Unhandled).To(BeEquivalentTo(3), "one has not waited long")
		claims(uuid.New(), "fax", "emial") // a younger worker knows them, and takes them
		e.enqueue(2, old)
		Expect(e.sample().Unhandled).To(BeZero())
		e.exec(`UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() WHERE kinds @> '{emial}'`)
		Expect(e.sample().Unhandled).To(BeEquivalentTo(2), "it has died")
		claims(one, "email", "emial")
		e.enqueue(2, old)
		Expect(e.sample().Unhandled).To(BeZero(), "a worker may come to know more kinds")
		claims(one, "email")
		Expect(e.sample().Unhandled).To(BeEquivalentTo(2), "and fewer")
		e.exec(`SELECT count(*) FROM jobqueue.claim('q', $1, 1)`, one)
		Expect(e.sample().Unhandled).To(BeZero(), "it has asked for all kinds")
	})

	It("stops counting at the cap", func() {
		e.enqueue(60)
		e.enqueue(60, func(_ int, j *queue.NewJob) { j.Delay = time.Hour })
		var raw string
		Expect(e.pool.QueryRow(e.ctx, `SELECT jsonb_path_query(jobqueue.sample(50), '$.queues.q')`).Scan(&raw)).To(Succeed())
		Expect(raw).To(ContainSubstring(`"pending": 50,`))
		Expect(raw).To(ContainSubstring(`"pending_capped": true`))
		Expect(raw).To(ContainSubstring(`"scheduled_capped": true`))
		s := e.sample()
		Expect(s.Pending).To(BeEquivalentTo(60))
		Expect(s.PendingCapped || s.ScheduledCapped).To(BeFalse())
	})

	It("has totals that never decrease, whoever folds them", func() {
		worker := uuid.New()
		e.enqueue(40)
		var last queue.QueueSample
		for i := range 40 {
			run := e.claim(worker, 1)[0]
			Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(run))).To(HaveLen(1))
			switch i % 4 {
			case 0:
				e.reap(queue.ReapRequest{})
			case 1:
				_, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", nil)
				Expect(err).NotTo(HaveOccurred())
			case 2:
				Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())
			}
			s := e.sample()
			Expect(s.Claimed).To(BeEquivalentTo(i + 1))
			Expect(s.Succeeded).To(BeEquivalentTo(i + 1))
			Expect(s.ExecutionMillis).To(BeNumerically(">=", last.ExecutionMillis))
			last = s
		}
		e.reap(queue.ReapRequest{})
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.tallies`)).To(Equal(0))
	})

	It("counts what a slow transaction commits after a fold", func() {
		worker := uuid.New()
		run := e.one(worker)
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.c.Succeed(e.ctx, tx, uuid.Nil, refs(run))).To(HaveLen(1))
		e.one(worker)
		e.reap(queue.ReapRequest{})
		Expect(e.sample().Succeeded).To(BeEquivalentTo(0))
		Expect(tx.Commit(e.ctx)).To(Succeed())
		Expect(e.sample().Succeeded).To(BeEquivalentTo(1))
		e.reap(queue.ReapRequest{})
		Expect(e.sample().Succeeded).To(BeEquivalentTo(1))
		Expect(e.sample().Claimed).To(BeEquivalentTo(2))
	})

	It("counts connections by application name, whoever asks (B1)", func() {
		e.connect(func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["application_name"] = "jobqueue:worker:q"
			c.MinConns = 1
		})
		ours := e.connect(func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["application_name"] = "jobqueue:operator"
			c.MaxConns = 1
		})
		Eventually(func() int {
			s, err := e.c.Sample(e.ctx, ours)
			Expect(err).NotTo(HaveOccurred())
			Expect(s.MaxConnections).To(Equal(200))
			Expect(s.ReservedConnections).To(Equal(3))
			Expect(s.OtherConnections).To(BeNumerically(">=", 1))
			Expect(s.Database).To(Equal(e.db.Name))
			Expect(s.ServerStartedAt).To(BeTemporally("==", query[time.Time](e, `SELECT pg_postmaster_start_time()`)))
			return s.OurConnections
		}).Should(Equal(2))

		beside, err := pgx.ParseConfig(e.db.Server.URL("postgres"))
		Expect(err).NotTo(HaveOccurred())
		beside.RuntimeParams["application_name"] = "jobqueue:worker:other"
		neighbour, err := pgx.ConnectConfig(e.ctx, beside)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = neighbour.Close(e.ctx) })

		// The functions' owner sees little of other roles' sessions, but enough.
		e.run(`CREATE ROLE plain LOGIN; CREATE ROLE caller LOGIN`)
		e.run(`GRANT CREATE ON DATABASE ` + pgx.Identifier{e.db.Name}.Sanitize() + ` TO plain`)
		DeferCleanup(func() {
			e.run(`DROP SCHEMA IF EXISTS plain CASCADE; DROP OWNED BY plain, caller; DROP ROLE plain, caller`)
		})
		as := func(role string) *pgx.Conn {
			cfg, err := pgx.ParseConfig(e.db.URL)
			Expect(err).NotTo(HaveOccurred())
			cfg.User = role
			conn, err := pgx.ConnectConfig(e.ctx, cfg)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { _ = conn.Close(e.ctx) })
			return conn
		}
		owner := as("plain")
		c, err := queue.New("plain")
		Expect(err).NotTo(HaveOccurred())
		_, err = c.Migrate(e.ctx, owner)
		Expect(err).NotTo(HaveOccurred(), "an unprivileged role that may create a schema can migrate")
		caller := as("caller")
		_, err = c.Sample(e.ctx, caller)
		Expect(err).To(MatchError(ContainSubstring("permission denied")))
		_, err = owner.Exec(e.ctx, `SELECT plain.grant_access('caller', 'operator')`)
		Expect(err).NotTo(HaveOccurred())
		s, err := c.Sample(e.ctx, caller)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.OurConnections).To(Equal(2))
		Eventually(func() (int, error) {
			s, err := c.Sample(e.ctx, caller)
			return s.ElsewhereConnections, err
		}).Should(Equal(1))
		Expect(s.OtherConnections).To(BeNumerically(">=", 3))
		_, err = caller.Exec(e.ctx, `SELECT * FROM plain.jobs`)
		Expect(err).To(MatchError(ContainSubstring("permission denied")))
		Expect(c.SetPolicy(e.ctx, caller, "q", queue.DefaultPolicy())).To(Succeed())
		_, err = c.Enqueue(e.ctx, caller, "q", queue.NewJob{Kind: "k"})
		Expect(err).To(MatchError(ContainSubstring("permission denied")))
		_, err = owner.Exec(e.ctx, `SELECT plain.grant_access('caller', 'producer')`)
		Expect(err).NotTo(HaveOccurred())
		_, err = c.Enqueue(e.ctx, caller, "q", queue.NewJob{Kind: "k"})
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Version(e.ctx, caller)).To(Equal(queue.LatestVersion))
	})
})
