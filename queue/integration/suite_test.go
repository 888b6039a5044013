// Package integration_test drives the queue's client and SQL functions against
// a real PostgreSQL.
package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestIntegration(t *testing.T) {
	RegisterFailHandler(Fail)
	common = pgtest.Database(t)
	conn, err := pgx.Connect(context.Background(), common.URL)
	if err == nil {
		_, err = newClient().Migrate(context.Background(), conn)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if commonPool, err = pgxpool.New(context.Background(), common.URL+"&pool_max_conns=8"); err != nil {
		t.Fatal(err)
	}
	defer commonPool.Close()
	RunSpecs(t, "queue")
}

func newClient() *queue.Client {
	c, err := queue.New("")
	if err != nil {
		panic(err)
	}
	return c
}

// common is the migrated database that all specs use, one after the other:
// emptying it is much faster than making another.
var common *pgtest.DB

// env is an empty, migrated database with one queue named "q".
type env struct {
	ctx  context.Context
	db   *pgtest.DB
	pool *pgxpool.Pool
	c    *queue.Client
}

// commonPool is the pool of specs that want nothing special of theirs.
var commonPool *pgxpool.Pool

// newEnv empties the database and connects to it; edit may be nil.
func newEnv(edit func(*pgxpool.Config)) *env {
	GinkgoHelper()
	e := &env{ctx: context.Background(), db: common, c: newClient()}
	if e.pool = commonPool; edit != nil {
		e.pool = e.connect(edit)
	}
	// DELETE: what a spec leaves is little, and TRUNCATE is slow on many tables.
	e.run(`DELETE FROM jobqueue.waiting; DELETE FROM jobqueue.batches; DELETE FROM jobqueue.batch_ends;
		DELETE FROM jobqueue.ended; DELETE FROM jobqueue.dead; DELETE FROM jobqueue.workers;
		DELETE FROM jobqueue.totals; DELETE FROM jobqueue.tallies; DELETE FROM jobqueue.marks; DELETE FROM jobqueue.walks; DELETE FROM jobqueue.queues;
		UPDATE jobqueue.folded SET floor = '0', folded_at = '-infinity'`)
	Expect(e.c.SetPolicy(e.ctx, e.pool, "q", queue.DefaultPolicy())).To(Succeed())
	return e
}

// connect opens another pool on the database, closed when the spec ends.
func (e *env) connect(edit func(*pgxpool.Config)) *pgxpool.Pool {
	GinkgoHelper()
	cfg, err := pgxpool.ParseConfig(e.db.URL)
	Expect(err).NotTo(HaveOccurred())
	cfg.MaxConns = 8
	if edit != nil {
		edit(cfg)
	}
	pool, err := pgxpool.NewWithConfig(e.ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(pool.Close)
	return pool
}

// fresh gives the tables new files, for specs that count buffers. batches comes first, as for
// whoever analyses it, who then looks up the type of its jobs, which is that of waiting.
func (e *env) fresh() {
	GinkgoHelper()
	e.exec(`TRUNCATE jobqueue.batches, jobqueue.waiting, jobqueue.batch_ends, jobqueue.ended, jobqueue.dead, jobqueue.workers, jobqueue.tallies, jobqueue.marks, jobqueue.walks`)
}

// policy changes the policy of "q".
func (e *env) policy(edit func(*queue.Policy)) {
	GinkgoHelper()
	p, err := e.c.GetPolicy(e.ctx, e.pool, "q")
	Expect(err).NotTo(HaveOccurred())
	edit(&p)
	Expect(e.c.SetPolicy(e.ctx, e.pool, "q", p)).To(Succeed())
}

// enqueue adds n jobs of kind "k" to "q".
func (e *env) enqueue(n int, edit ...func(i int, job *queue.NewJob)) []int64 {
	GinkgoHelper()
	jobs := make([]queue.NewJob, n)
	for i := range jobs {
		jobs[i] = queue.NewJob{Kind: "k", Payload: map[string]int{"n": i}}
		for _, f := range edit {
			f(i, &jobs[i])
		}
	}
	ids, err := e.c.Enqueue(e.ctx, e.pool, "q", jobs...)
	Expect(err).NotTo(HaveOccurred())
	Expect(ids).To(HaveLen(n))
	return ids
}

// claim takes up to limit jobs of "q" for the worker.
func (e *env) claim(worker uuid.UUID, limit int) []queue.Run {
	GinkgoHelper()
	runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Pod: "pod-0", Limit: limit})
	Expect(err).NotTo(HaveOccurred())
	return runs
}

// one enqueues a job and claims it.
func (e *env) one(worker uuid.UUID) queue.Run {
	GinkgoHelper()
	e.enqueue(1)
	runs := e.claim(worker, 1)
	Expect(runs).To(HaveLen(1))
	return runs[0]
}

// exec runs SQL and returns the rows affected.
func (e *env) exec(sql string, args ...any) int64 {
	GinkgoHelper()
	tag, err := e.pool.Exec(e.ctx, sql, args...)
	Expect(err).NotTo(HaveOccurred())
	return tag.RowsAffected()
}

// query returns the single value of an SQL query.
func query[T any](e *env, sql string, args ...any) T {
	GinkgoHelper()
	var value T
	Expect(e.pool.QueryRow(e.ctx, sql, args...).Scan(&value)).To(Succeed(), sql)
	return value
}

// listen returns the queues that notifications name, from now on.
func (e *env) listen() <-chan string {
	GinkgoHelper()
	conn, err := pgx.Connect(e.ctx, e.db.URL)
	Expect(err).NotTo(HaveOccurred())
	woken := make(chan string, 1000)
	ctx, cancel := context.WithCancel(e.ctx)
	done := make(chan error, 1)
	go func() { done <- e.c.Listen(ctx, conn, func(q string) { woken <- q }) }()
	DeferCleanup(func() {
		cancel()
		Eventually(done).Should(Receive(HaveOccurred()))
		Expect(conn.Close(e.ctx)).To(Succeed())
	})
	Eventually(woken).Should(Receive(BeEmpty()), "a first call after LISTEN took effect")
	return woken
}

// expire makes the worker's lease run out a second ago.
func (e *env) expire(worker uuid.UUID) {
	GinkgoHelper()
	Expect(e.exec(`UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE id = $1`, worker)).To(BeEquivalentTo(1))
}

// due makes every scheduled job due.
func (e *env) due() {
	GinkgoHelper()
	e.exec(`UPDATE jobqueue.waiting SET available_at = now() WHERE state = 'scheduled' AND available_at > now()`)
}

func (e *env) reap(req queue.ReapRequest) queue.ReapResult {
	GinkgoHelper()
	res, err := e.c.Reap(e.ctx, e.pool, req)
	Expect(err).NotTo(HaveOccurred())
	return res
}

func (e *env) sample() queue.QueueSample {
	GinkgoHelper()
	s, err := e.c.Sample(e.ctx, e.pool)
	Expect(err).NotTo(HaveOccurred())
	Expect(s.Queues).To(HaveKey("q"))
	return s.Queues["q"]
}

func (e *env) job(id int64) queue.Job {
	GinkgoHelper()
	j, err := e.c.Get(e.ctx, e.pool, id)
	Expect(err).NotTo(HaveOccurred())
	return j
}

func refs(runs ...queue.Run) []queue.Ref {
	all := make([]queue.Ref, len(runs))
	for i, run := range runs {
		all[i] = run.Ref
	}
	return all
}

func snoozes(delay time.Duration, refs ...queue.Ref) (all []queue.Snooze) {
	for _, ref := range refs {
		all = append(all, queue.Snooze{Ref: ref, Delay: delay})
	}
	return all
}

func discards(reason string, refs ...queue.Ref) (all []queue.Discard) {
	for _, ref := range refs {
		all = append(all, queue.Discard{Ref: ref, Reason: reason})
	}
	return all
}

func runIDs(runs []queue.Run) []int64 {
	ids := make([]int64, len(runs))
	for i, run := range runs {
		ids[i] = run.ID
	}
	return ids
}

// short is long enough for anything local, and what Eventually waits at most.
const short = 10 * time.Second

var _ = BeforeSuite(func() {
	SetDefaultEventuallyTimeout(short)
	SetDefaultEventuallyPollingInterval(5 * time.Millisecond)
})

// run executes several statements at once.
func (e *env) run(sql string) {
	GinkgoHelper()
	_, err := e.pool.Exec(e.ctx, sql, pgx.QueryExecModeSimpleProtocol)
	Expect(err).NotTo(HaveOccurred())
}
