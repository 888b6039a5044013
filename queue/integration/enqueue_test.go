package integration_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("enqueue (Q9, Q10)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })

	It("measures a payload as workers are sent it, not as it is stored (Q10)", func() {
		_, err := e.c.Enqueue(e.ctx, e.pool, "q", queue.NewJob{Kind: "k", Payload: json.RawMessage(`[1e131000, 1e131000, 1e131000]`)})
		Expect(err).To(MatchError(queue.ErrPayloadTooLarge))
	})

	It("refuses what is small in the database and large for workers, so that a claim's memory is bounded (Q10)", func() {
		ids := e.enqueue(3, func(i int, j *queue.NewJob) {
			j.Payload = []any{
				json.RawMessage(`[1.7976931348623157e308, -1.7976931348623157e308, 5e-324]`),
				strings.Repeat("\x01", 30000),        // six times as large as text
				strings.Repeat("compressible", 9000), // once it is stored
			}[i]
		})
		e.exec(`SELECT jobqueue.enqueue('q', kind, payload) FROM jobqueue.jobs WHERE id = $1`, ids[2])
		for _, sql := range []string{
			`SELECT jobqueue.enqueue('q', 'big', '[1e131000, 1e130000]')`,
			`SELECT count(*) FROM jobqueue.enqueue_many('q', '{big}', ARRAY['[1e131000, 1e130000]'::jsonb])`,
		} {
			_, err := e.pool.Exec(e.ctx, sql)
			Expect(err).To(MatchError(MatchRegexp(
				`of kind "big" has 261006 bytes as text, and \d\d in the database; queue "q" allows at most 4096 and eight times the latter \(SQLSTATE JQ003\)`)))
		}
	})

	It("returns ids in the order given, and nothing for nothing", func() {
		ids, err := e.c.Enqueue(e.ctx, e.pool, "q")
		Expect(err).NotTo(HaveOccurred())
		Expect(ids).To(BeEmpty())

		ids = e.enqueue(500, func(i int, j *queue.NewJob) { j.Kind = fmt.Sprint("kind-", i); j.Priority = int16(-i) })
		for i, id := range ids {
			if i%100 == 0 {
				Expect(e.job(id).Kind).To(Equal(fmt.Sprint("kind-", i)))
			}
		}
	})

	It("takes a delay of 0 for none, in both calls", func() {
		e.exec(`SELECT jobqueue.enqueue('q', 'k', p_delay_seconds => 0, p_run_at => 'yesterday')`)
		e.exec(`SELECT count(*) FROM jobqueue.enqueue_many('q', '{k}', ARRAY['1'::jsonb], p_delay_seconds => '{0}', p_run_ats => '{yesterday}')`)
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs WHERE available_at = 'yesterday'`)).To(Equal(2))
	})

	It("keeps payloads of any JSON, unicode included", func() {
		payloads := []any{
			nil, "grüße, 世界 🙂", 12.5, []int{1, 2}, map[string]any{"a": map[string]any{"b": nil}},
			json.RawMessage(`{"z": 1}`), json.RawMessage(nil), `a "quoted" \ back{slash},NULL`, "", `\\u0000 is text`,
		}
		ids := e.enqueue(len(payloads), func(i int, j *queue.NewJob) { j.Payload = payloads[i]; j.Kind = "größe-世界" })
		runs := e.claim(uuid.New(), 100)
		Expect(runIDs(runs)).To(Equal(ids))
		for i, run := range runs {
			want, err := json.Marshal(payloads[i])
			Expect(err).NotTo(HaveOccurred())
			if raw, ok := payloads[i].(json.RawMessage); ok && raw == nil {
				want = []byte("null")
			}
			Expect(run.Payload).To(MatchJSON(want))
			Expect(run.Kind).To(Equal("größe-世界"))
		}
	})

	It("reads its own text alike in sessions that take backslashes for escapes", func() {
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = tx.Rollback(e.ctx) })
		_, err = tx.Exec(e.ctx, `SET LOCAL standard_conforming_strings = off`)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.c.SetPolicy(e.ctx, tx, "late", queue.DefaultPolicy())).To(Succeed())
		for _, n := range []int{1, 2} {
			_, err := e.c.Enqueue(e.ctx, tx, "late", slices.Repeat([]queue.NewJob{{Kind: "k"}}, n)...)
			Expect(err).NotTo(HaveOccurred())
		}
	})

	It("takes a huge batch in one statement", func() {
		ids := e.enqueue(20_000)
		Expect(ids).To(HaveLen(20_000))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs`)).To(Equal(20_000))
	})

	It("belongs to the caller's transaction at every isolation level (Q18)", func() {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			tx, err := e.pool.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: level})
			Expect(err).NotTo(HaveOccurred())
			_, err = e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "rolled back"})
			Expect(err).NotTo(HaveOccurred())
			Expect(e.claim(uuid.New(), 10)).To(BeEmpty())
			Expect(tx.Rollback(e.ctx)).To(Succeed())

			tx, err = e.pool.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: level})
			Expect(err).NotTo(HaveOccurred())
			_, err = e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "committed"})
			Expect(err).NotTo(HaveOccurred())
			Expect(tx.Commit(e.ctx)).To(Succeed())
			runs := e.claim(uuid.New(), 10)
			Expect(runs).To(HaveLen(1))
			Expect(runs[0].Kind).To(Equal("committed"))
		}
	})

	It("does not make serializable producers fail each other", func() {
		var txs []pgx.Tx
		for range 4 {
			tx, err := e.pool.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
			Expect(err).NotTo(HaveOccurred())
			_, err = e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "k"}, queue.NewJob{Kind: "k"})
			Expect(err).NotTo(HaveOccurred())
			txs = append(txs, tx)
		}
		for _, tx := range txs {
			Expect(tx.Commit(e.ctx)).To(Succeed())
		}
		Expect(e.claim(uuid.New(), 100)).To(HaveLen(8))
	})

	It("refuses a payload over the queue's limit, naming size and limit", func() {
		e.policy(func(p *queue.Policy) { p.MaxPayloadBytes = 1000 })
		e.enqueue(1, func(_ int, j *queue.NewJob) { j.Payload = strings.Repeat("x", 998) })
		_, err := e.c.Enqueue(e.ctx, e.pool, "q", queue.NewJob{Kind: "fine"}, queue.NewJob{Kind: "big", Payload: strings.Repeat("x", 999)})
		Expect(err).To(MatchError(queue.ErrPayloadTooLarge))
		Expect(err).To(MatchError(ContainSubstring(`payloads[2] of kind "big" has 1001 bytes; queue "q" allows at most 1000`)))
		_, err = e.pool.Exec(e.ctx, `SELECT jobqueue.enqueue('q', 'big', to_jsonb(repeat('x', 999)))`)
		Expect(err).To(MatchError(ContainSubstring("has 1001 bytes")))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs`)).To(Equal(1), "all are added or none")
	})

	It("refuses a queue that was not declared, with a hint", func() {
		_, err := e.c.Enqueue(e.ctx, e.pool, "nope", queue.NewJob{Kind: "k"})
		Expect(err).To(MatchError(queue.ErrQueueNotFound))
		Expect(err).To(MatchError(ContainSubstring(`queue "nope" does not exist`)))
	})

	It("keeps future jobs from claims until they are due, then promotes them", func() {
		later := e.enqueue(3, func(i int, j *queue.NewJob) { j.Delay = time.Hour; j.Priority = -10 })
		at := time.Now().Add(30 * time.Minute)
		soon := e.enqueue(1, func(_ int, j *queue.NewJob) { j.RunAt = at })
		Expect(e.job(soon[0]).AvailableAt).To(BeTemporally("~", at, time.Microsecond))
		now := e.enqueue(1)
		past := e.enqueue(1, func(_ int, j *queue.NewJob) { j.RunAt = time.Now().Add(-time.Hour) })
		worker := uuid.New()
		Expect(runIDs(e.claim(worker, 100))).To(Equal([]int64{past[0], now[0]}))
		Expect(e.claim(worker, 100)).To(BeEmpty())
		e.due()
		Expect(runIDs(e.claim(worker, 100))).To(Equal(append(later, soon...)))
	})

	DescribeTable("refuses bad arguments, naming argument, value and what is allowed",
		func(sql, message string) {
			_, err := e.pool.Exec(e.ctx, sql)
			Expect(err).To(MatchError(And(ContainSubstring(message), ContainSubstring("JQ005"))))
		},
		Entry("null queue", `SELECT jobqueue.enqueue(NULL, 'k')`, "queue is null; allowed:"),
		Entry("empty kind", `SELECT jobqueue.enqueue('q', '')`, "kind is empty; allowed: 1 to 128 characters"),
		Entry("null kind", `SELECT jobqueue.enqueue('q', NULL)`, "kind is null; allowed: 1 to 128 characters"),
		Entry("long kind", `SELECT jobqueue.enqueue('q', repeat('k', 129))`, "(129 characters); allowed: 1 to 128"),
		Entry("kind with a control character", `SELECT jobqueue.enqueue('q', E'a\nb')`, "allowed: 1 to 128 characters, none of them a control character"),
		Entry("null payload", `SELECT jobqueue.enqueue('q', 'k', NULL)`, "payload is null; allowed: a jsonb value"),
		Entry("null priority", `SELECT jobqueue.enqueue('q', 'k', p_priority => NULL)`, "priority is null; allowed: -32768 to 32767"),
		Entry("negative delay", `SELECT jobqueue.enqueue('q', 'k', p_delay_seconds => -1)`, "delay_seconds is -1; allowed: 0 to"),
		Entry("NaN delay", `SELECT jobqueue.enqueue('q', 'k', p_delay_seconds => 'NaN')`, "delay_seconds is NaN; allowed: 0 to"),
		Entry("endless delay", `SELECT jobqueue.enqueue('q', 'k', p_delay_seconds => 'infinity')`, "delay_seconds is Infinity"),
		Entry("delay and time", `SELECT jobqueue.enqueue('q', 'k', p_delay_seconds => 1, p_run_at => now())`, "allowed: null when the job has a delay"),
		Entry("endless time", `SELECT jobqueue.enqueue('q', 'k', p_run_at => 'infinity')`, "run_at is infinity; allowed: a finite time"),
		Entry("attempts", `SELECT jobqueue.enqueue('q', 'k', p_max_attempts => 1001)`, "max_attempts is 1001; allowed: 1 to 1000"),
		Entry("negative attempts", `SELECT jobqueue.enqueue('q', 'k', p_max_attempts => -1)`, "max_attempts is -1"),
		Entry("many: null kinds", `SELECT jobqueue.enqueue_many('q', NULL, '{}')`, "kinds is null; allowed: an array"),
		Entry("many: null payloads", `SELECT jobqueue.enqueue_many('q', '{k}', NULL)`, "payloads is null; allowed: an array"),
		Entry("many: lengths", `SELECT jobqueue.enqueue_many('q', '{a,b}', ARRAY['1'::jsonb])`, "payloads is an array of 1; allowed: as many as kinds, which are 2"),
		Entry("many: lengths of others", `SELECT jobqueue.enqueue_many('q', '{a}', ARRAY['1'::jsonb], p_run_ats => '{}')`, "run_ats is an array of 0"),
		Entry("many: kind", `SELECT jobqueue.enqueue_many('q', '{a,""}', ARRAY['1','2']::jsonb[])`, "kinds[2] is empty"),
		Entry("many: kind with a control character", `SELECT jobqueue.enqueue_many('q', ARRAY['a', E'b\u009f'], ARRAY['1','2']::jsonb[])`, "kinds[2] is"),
		Entry("many: kinds of two dimensions", `SELECT jobqueue.enqueue_many('q', '{{a},{b}}', ARRAY['1','2']::jsonb[])`, "kinds is an array of 2 dimensions"),
		Entry("many: payloads of two dimensions", `SELECT jobqueue.enqueue_many('q', '{a,b}', ARRAY[ARRAY['1','2']]::jsonb[])`, "payloads is an array of 2 dimensions"),
		Entry("many: null payload", `SELECT jobqueue.enqueue_many('q', '{a,b}', ARRAY['1',NULL]::jsonb[])`, "payloads[2] is null"),
		Entry("many: null priority", `SELECT jobqueue.enqueue_many('q', '{a}', ARRAY['1']::jsonb[], '{NULL}')`, "priorities[1] is null"),
		Entry("many: delay", `SELECT jobqueue.enqueue_many('q', '{a}', ARRAY['1']::jsonb[], NULL, '{-0.5}')`, "delay_seconds[1] is -0.5"),
		Entry("many: time", `SELECT jobqueue.enqueue_many('q', '{a}', ARRAY['1']::jsonb[], NULL, NULL, '{-infinity}')`, "run_ats[1] is -infinity"),
		Entry("many: attempts", `SELECT jobqueue.enqueue_many('q', '{a}', ARRAY['1']::jsonb[], NULL, NULL, NULL, '{2000}')`, "max_attempts[1] is 2000"),
	)

	It("refuses bad jobs before asking the database, or with its words", func() {
		for _, job := range []queue.NewJob{
			{Kind: ""}, {Kind: "k", Delay: -time.Second}, {Kind: "k", MaxAttempts: -1}, {Kind: "k", MaxAttempts: 1 << 40},
			{Kind: "k", Delay: time.Second, RunAt: time.Now()},
		} {
			_, err := e.c.Enqueue(e.ctx, e.pool, "q", job)
			Expect(err).To(MatchError(queue.ErrInvalidArgument))
		}
		for _, payload := range []any{
			json.RawMessage(`{`), "nul\x00byte", json.RawMessage(`"\u0000"`), func() {}, json.RawMessage("\"\xff\""), json.RawMessage("1e200000"),
		} {
			job := queue.NewJob{Kind: "k", Payload: payload}
			_, err := e.c.Enqueue(e.ctx, e.pool, "q", job)
			Expect(err).To(MatchError(queue.ErrInvalidPayload))
			_, err = e.c.Enqueue(e.ctx, e.pool, "q", queue.NewJob{Kind: "fine"}, job)
			Expect(err).To(MatchError(queue.ErrInvalidPayload))
		}

		// What is nested as deeply as encoding/json takes it, and not by the server's stack.
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = tx.Rollback(e.ctx) })
		_, err = tx.Exec(e.ctx, `SET LOCAL max_stack_depth = '500kB'`)
		Expect(err).NotTo(HaveOccurred())
		_, err = e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "k", Payload: json.RawMessage(strings.Repeat("[", 9999) + strings.Repeat("]", 9999))})
		Expect(err).To(And(MatchError(queue.ErrInvalidPayload), MatchError(ContainSubstring("54001"))))
	})

	It("notifies idle workers at commit, and not while jobs are pending (Q14)", func() {
		woken := e.listen()

		e.enqueue(1)
		Eventually(woken).Should(Receive(Equal("q")))
		e.enqueue(5)
		e.claim(uuid.New(), 100)
		e.enqueue(1)
		Eventually(woken).Should(Receive(Equal("q")))
		Expect(woken).To(BeEmpty(), "the five found a pending job and did not notify")
	})

	It("notifies past a job whose kind nobody asks for (Q14, W1)", func() {
		woken := e.listen()

		asking := uuid.New()
		claim := func() {
			_, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: asking, Limit: 10, Kinds: []string{"k"}})
			Expect(err).NotTo(HaveOccurred())
		}
		other := e.enqueue(1, func(_ int, j *queue.NewJob) { j.Kind = "nobody's" })
		Eventually(woken).Should(Receive(Equal("q")))
		claim()
		e.enqueue(1)
		claim()
		e.exec(`SELECT pg_notify('jobqueue', 'after')`)
		Eventually(woken).Should(Receive(Equal("after")), "young as it is, it may be about to be claimed")

		e.exec(`UPDATE jobqueue.waiting SET available_at = available_at - interval '2 s' WHERE id = $1`, other[0])
		e.enqueue(1)
		Eventually(woken).Should(Receive(Equal("q")), "one by one")
		claim()
		e.enqueue(2)
		Eventually(woken).Should(Receive(Equal("q")), "in bulk")

		// Once somebody asks for that kind too, it is a backlog like any other.
		_, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 1, Kinds: []string{"nobody's"}})
		Expect(err).NotTo(HaveOccurred())
		claim()
		e.enqueue(1, func(_ int, j *queue.NewJob) { j.Kind = "nobody's"; j.RunAt = time.Now().Add(-time.Minute) })
		Eventually(woken).Should(Receive(Equal("q")))
		e.enqueue(1)
		e.enqueue(2)
		e.exec(`SELECT pg_notify('jobqueue', 'end')`)
		Eventually(woken).Should(Receive(Equal("end")))
	})

	// locksAfter enqueues one by one for so long, and counts the transaction's advisory locks.
	locksAfter := func(tx pgx.Tx, long time.Duration) (locks int) {
		GinkgoHelper()
		var began, now time.Time
		Expect(tx.QueryRow(e.ctx, "SELECT clock_timestamp()").Scan(&began)).To(Succeed())
		for now.Sub(began) < long {
			_, err := e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "k"})
			Expect(err).NotTo(HaveOccurred())
			Expect(tx.QueryRow(e.ctx, "SELECT clock_timestamp()").Scan(&now)).To(Succeed())
		}
		Expect(tx.QueryRow(e.ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()").Scan(&locks)).To(Succeed())
		return locks
	}

	It("keeps no more than a lock for each queue, however long its transaction enqueues (Q9, Q18)", func() {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			tx, err := e.pool.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: level})
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { _ = tx.Rollback(e.ctx) }) // it has been, unless the spec failed
			Expect(locksAfter(tx, 100*time.Millisecond)).To(BeNumerically("<=", 1), string(level))
			Expect(tx.Rollback(e.ctx)).To(Succeed())
		}
	})

	It("nor while it enqueues behind a job that nobody asks for (Q9, Q14)", func() {
		old := e.enqueue(1, func(_ int, j *queue.NewJob) { j.Kind = "nobody's" })
		_, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 1, Kinds: []string{"k"}})
		Expect(err).NotTo(HaveOccurred())
		e.exec(`UPDATE jobqueue.waiting SET available_at = available_at - interval '2 s' WHERE id = $1`, old[0])
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = tx.Rollback(e.ctx) })
		Expect(locksAfter(tx, 300*time.Millisecond)).To(Equal(1))
	})

	It("looks for others once in a moment where workers are behind, for transactions like its own (Q14)", func() {
		e.enqueue(1)
		e.exec(`UPDATE jobqueue.waiting SET available_at = available_at - interval '300 ms'`)
		session, err := e.connect(nil).Acquire(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(session.Release)
		remembers := func(level pgx.TxIsoLevel) (remembered bool) {
			GinkgoHelper()
			tx, err := session.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: level})
			Expect(err).NotTo(HaveOccurred())
			_, err = e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "k"})
			Expect(err).NotTo(HaveOccurred())
			Expect(tx.Commit(e.ctx)).To(Succeed())
			Expect(session.QueryRow(e.ctx, `SELECT coalesce(current_setting('jobqueue.attended', true), '') <> ''`).Scan(&remembered)).To(Succeed())
			return remembered
		}
		Expect(remembers(pgx.RepeatableRead)).To(BeFalse(), "its snapshot may be old")
		Expect(remembers(pgx.ReadCommitted)).To(BeTrue())

		By("announcing what a SERIALIZABLE transaction adds, which may commit much later")
		woken := e.listen()
		_, err = session.Exec(e.ctx, `SET default_transaction_isolation = serializable`)
		Expect(err).NotTo(HaveOccurred())
		_, err = session.Exec(e.ctx, `SELECT set_config('jobqueue.attended', jobqueue.moment('q', clock_timestamp()), false); SELECT jobqueue.enqueue('q', 'k')`,
			pgx.QueryExecModeSimpleProtocol)
		Expect(err).NotTo(HaveOccurred())
		Eventually(woken).Should(Receive(Equal("q")))
	})

	It("has few of the transactions that overlap notify, so that the others commit side by side (Q14)", func() {
		const producers = 60
		woken := e.listen()
		pool := e.connect(func(cfg *pgxpool.Config) { cfg.MaxConns = producers })
		txs := make([]pgx.Tx, producers)
		for i := range txs {
			tx, err := pool.Begin(e.ctx)
			Expect(err).NotTo(HaveOccurred())
			txs[i] = tx
			defer func() { _ = txs[i].Rollback(e.ctx) }()
			// The first call of a connection takes long.
			_, err = e.c.Enqueue(e.ctx, txs[i], "q", queue.NewJob{Kind: "k", Delay: time.Hour})
			Expect(err).NotTo(HaveOccurred())
		}
		var began, ended time.Time
		now := func(t *time.Time) { Expect(e.pool.QueryRow(e.ctx, "SELECT clock_timestamp()").Scan(t)).To(Succeed()) }
		now(&began)
		for _, tx := range txs {
			_, err := e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "k"})
			Expect(err).NotTo(HaveOccurred())
		}
		now(&ended)
		for _, tx := range txs {
			Expect(tx.Commit(e.ctx)).To(Succeed())
		}
		// One for each hundredth of a second that was touched.
		most := int(ended.Sub(began)/(10*time.Millisecond)) + 2
		e.exec("SELECT pg_notify('jobqueue', 'the last')")
		notified := 0
		for name := ""; name != "the last"; {
			Eventually(woken).Should(Receive(&name))
			if name == "q" {
				notified++
			}
		}
		GinkgoWriter.Printf("%d of %d notified in %s\n", notified, producers, ended.Sub(began))
		Expect(notified).To(And(BeNumerically(">=", 1), BeNumerically("<=", most)))
	})
})
