// Package faults does to real worker processes and a real PostgreSQL what the world does:
// it kills, stops, restarts, cuts and starves them. Each test is judged by the history of
// every run (test/history), not by what the queue says of itself.
package faults

import (
	"context"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/test/history"
)

// queueName is the queue of every test; each test has a database of its own.
const queueName = "work"

const template = "faults_template"

// TestMain makes the test binary a worker program too, which the tests run as processes.
func TestMain(m *testing.M) {
	if os.Getenv(envWorker) != "" {
		os.Exit(workerMain())
	}
	pgtest.Main(m)
}

func TestFaults(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(60 * time.Second)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RunSpecs(t, "faults")
}

var _ = BeforeSuite(func() {
	Expect(pgtest.Shared().Template(template, prepare)).To(Succeed())
})

// prepare makes the schema in an empty database, and watches it.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	client, err := queue.New("")
	if err != nil {
		return err
	}
	if _, err := client.Migrate(ctx, conn); err != nil {
		return err
	}
	if err := history.Watch(ctx, conn, client.Schema()); err != nil {
		return err
	}
	// What producers write in the transaction that enqueues.
	_, err = conn.Exec(ctx, `CREATE TABLE orders (job bigint NOT NULL)`)
	return err
}

// world is one test's database, queue and workers.
type world struct {
	url    string
	server *pgtest.Server
	client *queue.Client
	// db is the test's own way to the database, which no fault is put into.
	db *pgxpool.Pool

	workers []*process

	mu       sync.Mutex
	enqueued []int64 // that producers were told are committed
}

// newWorld makes a database on the shared server.
func newWorld(ctx context.Context, change ...func(*queue.Policy)) *world {
	GinkgoHelper()
	return newWorldOn(ctx, pgtest.DatabaseFrom(GinkgoT(), template), change...)
}

// newWorldOn declares the queue in a prepared database. Its lease and heartbeat are the
// shortest that a JobQueue may ask for.
func newWorldOn(ctx context.Context, db *pgtest.DB, change ...func(*queue.Policy)) *world {
	GinkgoHelper()
	pool, err := pgxpool.New(ctx, db.URL)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(pool.Close)
	client, err := queue.New("")
	Expect(err).NotTo(HaveOccurred())
	w := &world{url: db.URL, server: db.Server, client: client, db: pool}
	policy := queue.DefaultPolicy()
	policy.Lease, policy.Heartbeat = 4*time.Second, time.Second
	policy.BackoffBase, policy.BackoffMax = 10*time.Millisecond, 100*time.Millisecond
	policy.MaxAttempts = 100 // no test wants a job to die of the faults
	for _, c := range change {
		c(&policy)
	}
	Expect(client.SetPolicy(ctx, pool, queueName, policy)).To(Succeed())
	return w
}

// enqueue adds n equal jobs, which must work.
func (w *world) enqueue(ctx context.Context, payload work, n int) []int64 {
	GinkgoHelper()
	return w.enqueueAll(ctx, equalJobs(payload, n)...)
}

func (w *world) enqueueAll(ctx context.Context, jobs ...queue.NewJob) []int64 {
	GinkgoHelper()
	ids, err := w.client.Enqueue(ctx, w.db, queueName, jobs...)
	Expect(err).NotTo(HaveOccurred())
	w.committed(ids)
	return ids
}

func equalJobs(payload work, n int) []queue.NewJob {
	jobs := make([]queue.NewJob, n)
	for i := range jobs {
		jobs[i] = queue.NewJob{Kind: kind, Payload: payload}
	}
	return jobs
}

// committed notes jobs that a producer was told are committed.
func (w *world) committed(ids []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enqueued = append(w.enqueued, ids...)
}

// number runs a query for one number; it can be polled while the database is away.
func (w *world) number(ctx context.Context, sql string, args ...any) func() (int, error) {
	return func() (n int, err error) {
		err = w.db.QueryRow(ctx, sql, args...).Scan(&n)
		return n, err
	}
}

// Queries that several tests ask.
const (
	liveJobs      = "SELECT count(*) FROM jobqueue.jobs"
	succeededJobs = "SELECT count(*) FROM jobqueue.finished WHERE state = 'succeeded'"
	workerRows    = "SELECT count(*) FROM jobqueue.workers"
)

// drained waits until every job has succeeded.
func (w *world) drained(ctx context.Context) {
	GinkgoHelper()
	Eventually(w.number(ctx, liveJobs)).Should(BeZero())
}

// stopAll asks all workers that still live to drain, and expects that they do.
func (w *world) stopAll() {
	GinkgoHelper()
	for _, p := range w.workers {
		p.stop()
	}
	for _, p := range w.workers {
		Eventually(p.Exited).WithTimeout(time.Minute).Should(BeClosed(), "it drains, or has been killed")
		if !p.killed {
			Expect(p.ExitCode()).To(BeZero())
		}
	}
}

// judge ends the workers and checks the history of everything that has happened.
func (w *world) judge(ctx context.Context) history.Report {
	GinkgoHelper()
	w.stopAll()
	for _, p := range w.workers {
		Expect(p.journal().Store(ctx, w.db)).To(Succeed())
	}
	h, err := history.Read(ctx, w.db, w.client.Schema(), w.enqueued)
	Expect(err).NotTo(HaveOccurred())
	report := history.Check(h)
	Expect(report.Err()).NotTo(HaveOccurred())
	Expect(report.Jobs).To(BeNumerically(">=", len(w.enqueued)))
	Expect(report.Accepted).To(BeNumerically(">", 0), "workers' answers were recorded")
	AddReportEntry("history", history.Report{Jobs: report.Jobs, Runs: report.Runs, Unrun: report.Unrun, Ended: report.Ended, Accepted: report.Accepted, Refused: report.Refused})
	return report
}

// seconds reads a number of seconds from the environment.
func seconds(name string, otherwise int) time.Duration {
	GinkgoHelper()
	text := os.Getenv(name)
	if text == "" {
		return time.Duration(otherwise) * time.Second
	}
	n, err := strconv.Atoi(text)
	Expect(err).NotTo(HaveOccurred(), name)
	return time.Duration(n) * time.Second
}
