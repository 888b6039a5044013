package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

// What follows fills the tables of a database that has the sequence history, whose
// numbers fall from -1: ids older than those of all jobs that are enqueued.

// waitingJobs adds jobs to queues ($1), to each so many ($2), in a state ($3), of a
// priority ($4), available so long from now ($5).
const waitingJobs = `INSERT INTO jobqueue.waiting (available_at, created_at, max_attempts, priority, state, queue, kind, payload)
	SELECT clock_timestamp() + $5::interval, clock_timestamp(), 10, $4::smallint, $3, q, 'k', '{"n": 1}'
	FROM unnest($1::text[]) q, generate_series(1, $2::int)`

// batchesOf adds batches to queues ($1), to each so many ($2) of so many jobs each ($3),
// which run, five batches of a queue on each of its workers, or are finished ($4).
const batchesOf = `WITH j AS (
		SELECT q, i / $3::int AS n, nextval('history') AS id FROM unnest($1::text[]) q, generate_series(0, $2::int * $3 - 1) i
	), b AS (
		SELECT q, n, min(id) AS min_id, max(id) AS max_id, array_agg(id) AS ids,
			array_agg(ROW(id, now(), now(), NULL, 0, 5, 0, 'pending', q, 'k', '{"n": 1}', NULL, NULL)::jobqueue.waiting) AS jobs
		FROM j GROUP BY q, n)
	INSERT INTO jobqueue.batches (started_at, deadline, finished_at, worker_id, min_id, max_id, key, open, succeeded, queue, ids, jobs)
	SELECT now(), now() + interval '1 h', CASE WHEN $4 = 'finished' THEN now() END, md5(q || n / 5)::uuid, min_id, max_id, jobqueue.new_batch_key(),
		repeat(CASE WHEN $4 = 'finished' THEN '0' ELSE '1' END, $3)::varbit, repeat(CASE WHEN $4 = 'finished' THEN '1' ELSE '0' END, $3)::varbit, q, ids, jobs
	FROM b`

// mixedBatches adds finished batches to a queue ($1), so many ($2), each of an old job and
// some ($3) that are newer than all others.
const mixedBatches = `WITH j AS (
		SELECT n, CASE i WHEN 0 THEN nextval('history') ELSE nextval(pg_get_serial_sequence('jobqueue.waiting', 'id')) END AS id
		FROM generate_series(1, $2::int) n, generate_series(0, $3::int) i
	), b AS (
		SELECT n, min(id) AS min_id, max(id) AS max_id, array_agg(id ORDER BY id) AS ids,
			array_agg(ROW(id, now(), now(), NULL, 0, 5, 0, 'pending', $1, 'k', '{"n": 1}', NULL, NULL)::jobqueue.waiting ORDER BY id) AS jobs
		FROM j GROUP BY n)
	INSERT INTO jobqueue.batches (started_at, deadline, finished_at, worker_id, min_id, max_id, key, open, succeeded, queue, ids, jobs)
	SELECT now(), now() + interval '1 h', now(), md5($1 || n)::uuid, min_id, max_id, jobqueue.new_batch_key(),
		repeat('0', $3 + 1)::varbit, repeat('1', $3 + 1)::varbit, $1, ids, jobs
	FROM b`

const (
	workersOfBatches = `INSERT INTO jobqueue.workers (id, queue, pod, started_at, heartbeat_at, lease_expires_at)
		SELECT DISTINCT worker_id, queue, 'pod', now() - interval '1 h', now(), now() + interval '1 h' FROM jobqueue.batches WHERE finished_at IS NULL
		ON CONFLICT DO NOTHING`
	endsOfBatches = `INSERT INTO jobqueue.batch_ends (key, ended_at, runs)
		SELECT key, now(), succeeded FROM jobqueue.batches WHERE finished_at IS NOT NULL AND queue = ANY ($1)`
	endedJobs = `INSERT INTO jobqueue.ended (id, created_at, started_at, finished_at, attempt, priority, state, queue, kind, payload)
		SELECT nextval('history'), now(), now(), now(), 1, 0, 'discarded', q, 'k', '1' FROM unnest($1::text[]) q, generate_series(1, $2::int)`
	deadJobs = `INSERT INTO jobqueue.dead (id, created_at, died_at, attempt, max_attempts, priority, queue, kind, payload, reason, last_error)
		SELECT nextval('history'), now(), now(), 10, 10, 0, q, 'k', '1', 'attempts exhausted', 'boom' FROM unnest($1::text[]) q, generate_series(1, $2::int)`
	tallies = `INSERT INTO jobqueue.tallies (queue, claimed) SELECT q, 1 FROM unnest($1::text[]) q, generate_series(1, $2::int)`
)

// declare declares the queues that calls are made on.
func declare(e *env) {
	for _, name := range []string{"q", "idle"} {
		e.exec(`SELECT jobqueue.set_policy($1, '{"lease_seconds": 600, "heartbeat_seconds": 200}')`, name)
	}
}

// few is what every shape has: n jobs of each state or so, and enough pending ones.
func few(e *env, n int) {
	declare(e)
	q := []string{"q"}
	e.exec(waitingJobs, q, 1000+10*n, "pending", 0, "-1 min")
	e.exec(waitingJobs, q, n, "scheduled", 0, "1 day")
	e.exec(batchesOf, q, n/4, 1, "running")
	e.exec(batchesOf, q, 2, 50, "running")
	e.exec(workersOfBatches)
	e.exec(batchesOf, q, n, 1, "finished")
	e.exec(batchesOf, q, n/2, 50, "finished")
	e.exec(endedJobs, q, n)
	e.exec(deadJobs, q, n)
}

// future is what is scheduled for later, before everything else in order (Q15).
func future(e *env) {
	e.exec(waitingJobs, []string{"q", "idle"}, 100_000, "scheduled", -10, "1 day")
}

// history is what has finished and is kept (Q15).
func history(e *env) {
	q := []string{"q"}
	e.exec(batchesOf, q, 100_000, 1, "finished")
	e.exec(batchesOf, q, 500, 200, "finished")
	e.exec(endsOfBatches, q)
	e.exec(endedJobs, q, 30_000)
	e.exec(deadJobs, q, 30_000)
}

// manyQueues is how many more queues there are after queues.
const manyQueues = 1000

// queues is a thousand queues that have a little of everything.
func queues(e *env) {
	names := make([]string, manyQueues)
	for i := range names {
		names[i] = fmt.Sprintf("queue-%d", i)
	}
	e.exec(`SELECT jobqueue.set_policy(q) FROM unnest($1::text[]) q`, names)
	e.exec(waitingJobs, names, 10, "pending", 0, "-1 s")
	e.exec(waitingJobs, names, 10, "scheduled", 0, "1 day")
	e.exec(batchesOf, names, 10, 1, "running")
	e.exec(workersOfBatches)
	e.exec(batchesOf, names, 5, 1, "finished")
	e.exec(endedJobs, names, 5)
	e.exec(deadJobs, names, 5)
	e.exec(tallies, names, 3)
	e.exec(`SELECT jobqueue.fold('0 s')`)
}

// mixed is what has finished where jobs that had been put off for long were claimed together
// with fresh ones: a thousand batches, each of which has most ids between its own.
func mixed(e *env) { e.exec(mixedBatches, "q", 1000, 99) }

// oldSnapshot leaves dead rows of every kind that cannot be removed, because another
// session's snapshot, taken before, is held until the spec ends (Q16).
func oldSnapshot(e *env) {
	conn, err := pgx.Connect(e.ctx, e.db.URL)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = conn.Close(e.ctx) })
	old, err := conn.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	Expect(err).NotTo(HaveOccurred())
	_, err = old.Exec(e.ctx, `SELECT pg_current_snapshot(), pg_current_xact_id()`) // as one that has also written
	Expect(err).NotTo(HaveOccurred())

	// Deadlines pass at once, and nothing is kept that has finished.
	e.exec(`SELECT jobqueue.set_policy('q', '{"timeout_seconds": 0.001, "lease_seconds": 0.2, "heartbeat_seconds": 0.1,
		"retain_finished_seconds": 0, "retain_dead_seconds": 0}')`)
	worker := uuid.NewString()
	finish := func(how string, n int, alone []string) {
		e.exec(`WITH r AS MATERIALIZED (SELECT array_agg(id) ids, array_agg(token) tokens, array_agg('boom'::text) errors, array_agg(true) permanent,
					array_agg(86400::float8) retry_afters
				FROM jobqueue.claim('q', $1, $2, p_alone => $3))
			SELECT count(f) FROM r, jobqueue.`+how+` f`, worker, n, alone)
	}
	q := []string{"q"}
	e.exec(batchesOf, q, 10_000, 1, "finished")
	e.exec(waitingJobs, q, 10_000, "pending", -1, "-2 min")
	e.exec(waitingJobs, q, 20_000, "scheduled", 0, "-2 min")
	for range 5 {
		finish(`succeed(ids, tokens)`, 2000, nil)
		finish(`succeed(ids, tokens)`, 2000, []string{})
		finish(`fail(ids, tokens, errors, permanent)`, 500, nil)
		finish(`fail(ids, tokens, errors, null, retry_afters)`, 500, nil)
		finish(`discard(ids, tokens)`, 1000, nil)
		e.exec(`SELECT jobqueue.requeue_kind('q', null, 100)`)
		e.exec(`SELECT jobqueue.cancel(ARRAY(SELECT id FROM jobqueue.waiting WHERE queue = 'q' LIMIT 500))`)
		for range 50 {
			e.exec(`SELECT jobqueue.heartbeat($1, 'q')`, worker)
		}
		e.exec(tallies, q, 5000)
		for e.exec(`SELECT FROM jobqueue.reap() WHERE more`) > 0 {
		}
	}
	few(e, 200)
	e.run(`UPDATE jobqueue.batches SET finished_at = now() + interval '1 day' WHERE finished_at IS NOT NULL;
		UPDATE jobqueue.ended SET finished_at = now() + interval '1 day'; UPDATE jobqueue.dead SET died_at = now() + interval '1 day'`)
	e.exec(`SELECT jobqueue.heartbeat($1, 'q')`, worker)
}

// shape is what the budgets of some calls depend on.
type shape struct {
	queues int  // how many more there are
	dead   bool // an old snapshot keeps dead rows
	mixed  bool // batches have ids between theirs that are not their own
}

const analyze = `ANALYZE jobqueue.waiting, jobqueue.batches, jobqueue.batch_ends, jobqueue.ended, jobqueue.dead, jobqueue.workers,
	jobqueue.totals, jobqueue.tallies, jobqueue.marks, jobqueue.walks, jobqueue.queues, jobqueue.folded`

var _ = Describe("buffers of every call (Q15, Q16)", Ordered, ContinueOnFailure, func() {
	var (
		e *env
		// few rows: what each call touched among them.
		clean = map[string]int{}
		// table is what was measured, for whoever reads the log.
		table = map[string][]string{}
		heads []string
	)
	BeforeAll(func() {
		e = &env{ctx: context.Background(), db: pgtest.Database(GinkgoT()), c: newClient()}
		e.pool = e.connect(nil)
		conn, err := e.pool.Acquire(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		defer conn.Release()
		_, err = e.c.Migrate(e.ctx, conn.Conn())
		Expect(err).NotTo(HaveOccurred())
		// What vacuum removes, and when, is not to be left to chance.
		e.run(`DO $$ DECLARE t regclass; BEGIN
			FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'jobqueue'::regnamespace AND relkind = 'r' LOOP
				EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)', t);
			END LOOP; END $$; CREATE SEQUENCE history INCREMENT -1`)
	})
	reset := func() {
		e.fresh()
		e.run(`TRUNCATE jobqueue.queues, jobqueue.totals; UPDATE jobqueue.folded SET floor = '0', folded_at = '-infinity'`)
		e.exec(analyze)
	}
	// budget is how many buffers a call may touch in a shape.
	budget := func(c call, in shape) int {
		first, known := clean[c.String()]
		if !known {
			return c.clean
		}
		n := max(first*3/2+15, c.most) + c.perQueue*in.queues
		if in.dead {
			n += max(150, c.behindDead)
		}
		if in.mixed {
			n += c.amidMixed
		}
		return n
	}
	// checkEach measures every call and fails if any is over its budget.
	checkEach := func(name string, of func(call) *session, in shape) {
		GinkgoHelper()
		heads = append(heads, name)
		var over []string
		for _, c := range calls {
			s := of(c)
			n := s.typical(c)
			table[c.String()] = append(table[c.String()], fmt.Sprint(n))
			if allowed := budget(c, in); n > allowed {
				over = append(over, fmt.Sprintf("%s: %d buffers, budget %d\n%s", c, n, allowed, s.plans(c)))
			}
			if name == "few" {
				clean[c.String()] = n
			}
		}
		if len(over) > 0 {
			Fail(strings.Join(over, "\n"))
		}
	}
	check := func(name string, s *session, in shape) {
		GinkgoHelper()
		checkEach(name, func(call) *session { return s }, in)
	}
	// without drops an index and expects a call to exceed its budget for that.
	without := func(s *session, index, of string, in shape) {
		GinkgoHelper()
		i := slices.IndexFunc(calls, func(c call) bool { return c.String() == of })
		Expect(i).To(BeNumerically(">=", 0), of)
		drop := query[string](e, `SELECT coalesce((SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname)
			FROM pg_constraint WHERE conindid = $1::regclass), 'DROP INDEX ' || $1)`, "jobqueue."+index)
		n, err := s.buffers(calls[i], drop)
		var refused *pgconn.PgError
		// There is nothing to conflict on, or the function asks how far the index is walked.
		if errors.As(err, &refused) && slices.Contains([]string{"42P10", "42P01"}, refused.Code) {
			return
		}
		Expect(err).NotTo(HaveOccurred())
		Expect(n).To(BeNumerically(">", budget(calls[i], in)), "%s without %s", of, index)
	}

	It("has a budget for every function that anybody may call", func() {
		s := newSession(e)
		s.exec(`BEGIN`)
		s.exec(`CREATE ROLE granted`)
		s.exec(`SELECT jobqueue.grant_access('granted', 'all')`)
		public := column[string](s, `SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'jobqueue'::regnamespace
			AND (has_function_privilege('granted', p.oid, 'EXECUTE') OR obj_description(p.oid, 'pg_proc') IS NOT NULL)`)
		s.exec(`ROLLBACK`)
		var budgeted []string
		for _, c := range calls {
			if c.function != "" {
				budgeted = append(budgeted, c.function)
			}
		}
		slices.Sort(public)
		Expect(slices.Compact(slices.Clone(public))).To(Equal(public), "functions of one name need a budget each")
		for _, name := range public {
			Expect(budgeted).To(ContainElement(name), "add a call of it to calls")
		}
		for _, name := range budgeted {
			Expect(public).To(ContainElement(name), "it is not public")
		}
	})

	It("among few rows", func() {
		reset()
		few(e, 200)
		e.exec(analyze)
		check("few", newSession(e), shape{})
	})
	It("before 200,000 jobs of a better priority that are scheduled for later", func() {
		reset()
		few(e, 200)
		future(e)
		e.exec(analyze)
		check("future", newSession(e), shape{})
	})
	It("after 200,000 finished jobs, and 30,000 each of the discarded and the dead", func() {
		reset()
		few(e, 200)
		history(e)
		e.exec(analyze)
		check("history", newSession(e), shape{})
	})
	It("beside 1,000 queues and 2,000 workers", func() {
		reset()
		few(e, 200)
		queues(e)
		e.exec(analyze)
		check("queues", newSession(e), shape{queues: manyQueues})
	})
	It("after 1,000 finished batches that mix old jobs with new ones", func() {
		reset()
		few(e, 200)
		mixed(e)
		e.exec(analyze)
		check("mixed", newSession(e), shape{mixed: true})
	})
	It("behind rows that are dead and kept by an old snapshot", func() {
		reset()
		few(e, 200)
		oldSnapshot(e)
		e.exec(analyze)
		s := newSession(e)
		check("snapshot", s, shape{dead: true})
		without(s, "tallies_xid", "unregister, nobody", shape{dead: true})
	})
	It("with plans that were made while the tables were empty", func() {
		reset()
		// Each in a session of its own: what functions share is planned by the first.
		sessions := map[string]*session{}
		plan := func(c call) {
			s := newSession(e)
			sessions[c.String()] = s
			for range 6 { // PostgreSQL thinks again for the first five, if it is let
				_, err := s.buffers(c, "")
				Expect(err).NotTo(HaveOccurred(), c.String())
				if c.kept {
					break
				}
			}
		}
		// Claims can do without a job, and the others cannot.
		claims := func(c call) bool { return strings.HasPrefix(c.function, "claim") }
		declare(e)
		for _, c := range calls {
			if claims(c) {
				plan(c)
			}
		}
		few(e, 4)
		for _, c := range calls {
			if !claims(c) {
				plan(c)
			}
		}
		few(e, 200)
		future(e)
		history(e)
		queues(e)
		checkEach("empty", func(c call) *session { return sessions[c.String()] }, shape{queues: manyQueues})
	})
	It("without statistics", func() {
		e.run(`DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'jobqueue'::regnamespace);
			UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relnamespace = 'jobqueue'::regnamespace AND relkind IN ('r', 'i')`)
		e.exec(waitingJobs, []string{"q"}, 3000, "pending", 0, "-1 min")
		check("none", newSession(e), shape{queues: manyQueues})
	})
	It("notices that an index is missing", func() {
		noticedBy := map[string]string{
			"waiting_pkey":      "cancel, 20 that wait",
			"waiting_ready":     "enqueue, to an idle queue",
			"waiting_scheduled": "reap, nothing in a queue",
			"batches_pkey":      "succeed, 20",
			"batches_open":      "unregister, 20 runs",
			"batches_retention": "reap, 20 of each",
			"batches_ids":       "get_job, that runs",
			"batch_ends_key":    "get_job, that finished long ago",
			"ended_pkey":        "get_job, that waits",
			"ended_retention":   "reap, 20 of each",
			"dead_pkey":         "requeue, 20",
			"dead_queue":        "list_dead, 100",
			"dead_retention":    "purge_dead, 20",
			"workers_pkey":      "heartbeat, of a new worker",
			"workers_queue":     "sample",
			"queues_pkey":       "set_policy",
			"totals_pkey":       "set_policy",
		}
		s := newSession(e)
		for index, of := range noticedBy {
			without(s, index, of, shape{queues: manyQueues})
		}
		for _, index := range column[string](s, `SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid IN
				(SELECT oid FROM pg_class WHERE relnamespace = 'jobqueue'::regnamespace)`) {
			name := strings.TrimPrefix(index, "jobqueue.")
			switch name {
			case "tallies_xid": // above, behind dead rows
			case "marks_pkey", "walks_pkey", "folded_pkey", "schema_migrations_pkey": // of few rows
			default:
				Expect(noticedBy).To(HaveKey(name), "an index that nothing needs, or that no test would miss")
			}
		}
	})
	It("with the statistics of other data", func() {
		reset()
		few(e, 4)
		future(e)
		e.exec(analyze)
		e.exec(`DELETE FROM jobqueue.waiting`)
		few(e, 200)
		history(e)
		queues(e)
		check("other", newSession(e), shape{queues: manyQueues})
	})
	AfterAll(func() {
		var b strings.Builder
		fmt.Fprintf(&b, "%-36s", "buffers")
		for _, head := range heads {
			fmt.Fprintf(&b, "%9s", head)
		}
		for _, c := range calls {
			fmt.Fprintf(&b, "\n%-36s", c)
			for _, n := range table[c.String()] {
				fmt.Fprintf(&b, "%9s", n)
			}
		}
		GinkgoWriter.Println(b.String())
	})
})
