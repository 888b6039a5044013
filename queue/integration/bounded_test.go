package integration_test

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// buffers is what a statement touches.
func buffers(e *env, sql string) int {
	GinkgoHelper()
	n, err := touched(e.ctx, e.pool, sql)
	Expect(err).NotTo(HaveOccurred())
	return n
}

const insertJobs = `INSERT INTO jobqueue.waiting (available_at, created_at, max_attempts, priority, state, queue, kind, payload)
	SELECT clock_timestamp() + $4::interval, clock_timestamp(), 10, $2::smallint, $3, 'q', 'k', '1' FROM generate_series(1, $1::int)`

var _ = Describe("bounded costs (Q15, Q16)", func() {
	var (
		e      *env
		worker string
	)
	BeforeEach(func() {
		// One session throughout: its plans are made while the tables are empty.
		e = newEnv(func(c *pgxpool.Config) { c.MaxConns = 1 })
		e.fresh()
		worker = uuid.NewString()
		DeferCleanup(func() { e.fresh() })
	})
	claim := func(limit string) func() int {
		return func() int {
			return buffers(e, `SELECT count(*) FROM jobqueue.claim('q', '`+worker+`', `+limit+`)`)
		}
	}

	DescribeTable("claims payloads of 8 MiB and no more, in order, whatever follows what (W3)", func(text string) {
		e.exec(insertJobs, 300, 0, "pending", "-2 min")
		e.exec(`INSERT INTO jobqueue.waiting (available_at, created_at, max_attempts, priority, state, queue, kind, payload)
			SELECT clock_timestamp() - interval '1 min', clock_timestamp(), 10, 0, 'pending', 'q', 'large', to_jsonb(long.text)
			FROM (SELECT ` + text + ` AS text) long, generate_series(1, 500)`)
		for _, pod := range []string{"first", "second", "third"} {
			e.exec(`SELECT count(*) FROM jobqueue.claim('q', gen_random_uuid(), 5000, p_pod => $1, p_alone => '{}')`, pod)
		}
		of := func(pod string) (jobs, large, bytes int) {
			Expect(e.pool.QueryRow(e.ctx, `SELECT count(*), count(*) FILTER (WHERE kind = 'large'), sum(length(payload::text))
				FROM jobqueue.jobs j JOIN jobqueue.workers w ON w.id = j.worker_id WHERE w.pod = $1`, pod).Scan(&jobs, &large, &bytes)).To(Succeed())
			return jobs, large, bytes
		}
		jobs, large, bytes := of("first")
		Expect(jobs-large).To(Equal(300), "the older ones")
		Expect(bytes).To(BeNumerically("~", 8<<20, 65_000))
		_, large, _ = of("second")
		Expect(large).To(BeNumerically("~", 131, 1))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND id < (SELECT max(id) FROM jobqueue.jobs WHERE state = 'running')`)).To(BeZero())
	},
		Entry("as large as stored", `(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 2000) n)`),
		Entry("compressed to nearly nothing", `repeat('0123456789abcdef', 4000)`),
	)

	It("claims, samples and enqueues at a bounded cost while an old snapshot keeps dead rows", func() {
		e.exec(insertJobs, 2000, 0, "pending", "0")
		claim("200")()
		clean := typical(5, claim("200"))

		conn, err := pgx.Connect(e.ctx, e.db.URL)
		Expect(err).NotTo(HaveOccurred())
		old, err := conn.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		Expect(err).NotTo(HaveOccurred())
		_, err = old.Exec(e.ctx, `SELECT count(*) FROM jobqueue.jobs`)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = conn.Close(e.ctx) })

		e.exec(insertJobs, 30_000, 0, "pending", "-1 min")
		for range 14 {
			e.exec(`SELECT jobqueue.claim('q', $1, 2000)`, worker)
		}
		dirty := typical(5, claim("200"))
		GinkgoWriter.Printf("claim of 200: %d buffers clean, %d behind 28,000 dead rows\n", clean, dirty)
		Expect(dirty).To(BeNumerically("<", clean+8000))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.marks`)).To(BeNumerically(">", 0))

		By("finding a job that appears behind the marks, when the whole is walked again")
		e.exec(`INSERT INTO jobqueue.waiting (available_at, created_at, max_attempts, priority, state, queue, kind, payload)
			VALUES (clock_timestamp() - interval '1 h', clock_timestamp(), 10, 0, 'pending', 'q', 'late', '1')`)
		Eventually(func() string {
			return query[string](e, `SELECT kind FROM jobqueue.claim('q', $1, 1)`, worker)
		}).Should(Equal("late"))

		By("finding at once a job that is enqueued with a time in the past")
		e.exec(`SELECT jobqueue.enqueue('q', 'past', p_run_at => now() - interval '1 h')`)
		Expect(query[string](e, `SELECT kind FROM jobqueue.claim('q', $1, 1)`, worker)).To(Equal("past"))

		By("drained to nothing, with everything still dead")
		for e.exec(`SELECT jobqueue.claim('q', $1, 2000)`, worker) > 0 {
		}
		e.exec(`SELECT jobqueue.claim('q', $1, 2000)`, worker)
		empty := typical(5, claim("200"))
		enqueue := typical(5, func() int { return buffers(e, `SELECT jobqueue.enqueue('q', 'k')`) })
		GinkgoWriter.Printf("empty claim: %d buffers; enqueue: %d\n", empty, enqueue)
		Expect(empty).To(BeNumerically("<", 8000))
		Expect(enqueue).To(BeNumerically("<", 8000))
		Expect(e.sample().Pending).To(BeEquivalentTo(5))

		By("forgetting the marks once the snapshot is gone and the dead are swept")
		Expect(old.Rollback(e.ctx)).To(Succeed())
		e.run(`VACUUM jobqueue.waiting`)
		Eventually(func() bool {
			claim("1")()
			return query[bool](e, `SELECT due_from = '-infinity' FROM jobqueue.marks WHERE queue = 'q' ORDER BY seq DESC LIMIT 1`)
		}).Should(BeTrue())
	})

	It("writes no mark where a claim has walked over many jobs of kinds that it does not want, all of them alive", func() {
		e.exec(insertJobs, 50_000, 0, "pending", "0")
		for range 20 {
			Expect(e.exec(`SELECT jobqueue.claim('q', $1, 10, ARRAY['other'])`, worker)).To(BeZero())
		}
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.marks`)).To(BeZero())
	})

	It("has a session keep its memory once it claims by the hundred, and no other", func() {
		e := newEnv(nil)
		session, err := e.connect(nil).Acquire(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		defer session.Release()
		keeps := func(limit int) (kept bool) {
			_, err := e.c.Claim(e.ctx, session, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: limit})
			Expect(err).NotTo(HaveOccurred())
			Expect(session.QueryRow(e.ctx, `SELECT current_setting('jobqueue.memory', true) IS NOT DISTINCT FROM 'kept'`).Scan(&kept)).To(Succeed())
			return kept
		}
		Expect(keeps(199)).To(BeFalse())
		Expect(keeps(200)).To(BeTrue())
	})

	It("samples at a cost that does not follow the backlog", func() {
		e.exec(insertJobs, 12_000, 0, "pending", "0")
		e.exec(insertJobs, 12_000, 0, "scheduled", "1 day")
		measure := func() int { return buffers(e, `SELECT jobqueue.sample()`) }
		measure()
		small := measure()
		e.exec(insertJobs, 50_000, 0, "pending", "0")
		e.exec(insertJobs, 50_000, 0, "scheduled", "1 day")
		large := measure()
		GinkgoWriter.Printf("sample: %d buffers at 24,000 jobs, %d at 124,000\n", small, large)
		Expect(large).To(BeNumerically("<", small*3/2))
		Expect(e.sample().PendingCapped).To(BeTrue())
	})
})
