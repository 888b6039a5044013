// Package integration tests the worker against a real PostgreSQL, and as real
// processes.
package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// queueName is the queue of every test; each test has a database of its own.
const queueName = "work"

const template = "worker_template"

// binary is the jobqueue program, built once.
var binary string

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestWorker(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(20 * time.Second)
	SetDefaultEventuallyPollingInterval(10 * time.Millisecond)
	RunSpecs(t, "worker")
}

var _ = BeforeSuite(func(ctx context.Context) {
	Expect(pgtest.Shared().Template(template, func(ctx context.Context, conn *pgx.Conn) error {
		client, err := queue.New("")
		if err != nil {
			return err
		}
		if _, err := client.Migrate(ctx, conn); err != nil {
			return err
		}
		// What handlers do to the world, so that SQL can judge it.
		_, err = conn.Exec(ctx, `CREATE SCHEMA demo; CREATE TABLE demo.effects (
			job_id bigint NOT NULL, token uuid NOT NULL, attempt integer NOT NULL, worker uuid NOT NULL,
			begun timestamptz, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
		return err
	})).To(Succeed())
	dir, err := os.MkdirTemp("", "jobqueue-bin-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, dir)
	binary = filepath.Join(dir, "jobqueue")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/jobqueue-dev/jobqueue-operator/cmd/jobqueue")
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}, NodeTimeout(5*time.Minute))

// fixture is one test's database with a declared queue.
type fixture struct {
	url    string
	client *queue.Client
	db     *pgxpool.Pool
}

// setUp makes a database whose queue has a policy with short times, changed by
// the given functions.
func setUp(ctx context.Context, change ...func(*queue.Policy)) *fixture {
	GinkgoHelper()
	db := pgtest.DatabaseFrom(GinkgoT(), template)
	pool, err := pgxpool.New(ctx, db.URL)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(pool.Close)
	client, err := queue.New("")
	Expect(err).NotTo(HaveOccurred())
	f := &fixture{url: db.URL, client: client, db: pool}
	f.setPolicy(ctx, change...)
	return f
}

func (f *fixture) setPolicy(ctx context.Context, change ...func(*queue.Policy)) {
	GinkgoHelper()
	policy := queue.DefaultPolicy()
	policy.Lease, policy.Heartbeat = 10*time.Second, time.Second
	policy.BackoffBase, policy.BackoffMax = 10*time.Millisecond, 50*time.Millisecond
	for _, c := range change {
		c(&policy)
	}
	Expect(f.client.SetPolicy(ctx, f.db, queueName, policy)).To(Succeed())
}

// enqueue adds n equal jobs.
func (f *fixture) enqueue(ctx context.Context, kind string, payload any, n int) []int64 {
	GinkgoHelper()
	jobs := make([]queue.NewJob, n)
	for i := range jobs {
		jobs[i] = queue.NewJob{Kind: kind, Payload: payload}
	}
	ids, err := f.client.Enqueue(ctx, f.db, queueName, jobs...)
	Expect(err).NotTo(HaveOccurred())
	return ids
}

func (f *fixture) exec(ctx context.Context, sql string) {
	GinkgoHelper()
	_, err := f.db.Exec(ctx, sql)
	Expect(err).NotTo(HaveOccurred())
}

// number runs a query for one number. It does not fail the test by itself, so
// that it can be polled while the database is away.
func (f *fixture) number(ctx context.Context, sql string, args ...any) func() (int, error) {
	return func() (n int, err error) {
		err = f.db.QueryRow(ctx, sql, args...).Scan(&n)
		return n, err
	}
}

// Queries that several tests ask.
const (
	liveJobs      = "SELECT count(*) FROM jobqueue.jobs"
	runningJobs   = "SELECT count(*) FROM jobqueue.jobs WHERE state = 'running'"
	succeededJobs = "SELECT count(*) FROM jobqueue.finished WHERE state = 'succeeded'"
	deadJobs      = "SELECT count(*) FROM jobqueue.dead"
	workerRows    = "SELECT count(*) FROM jobqueue.workers"
	effectRows    = "SELECT count(*) FROM demo.effects"
)

// running is a worker in this process.
type running struct {
	*worker.Worker
	cancel context.CancelFunc
	ended  chan error
}

// start runs a worker until the test ends, or until stop.
func (f *fixture) start(ctx context.Context, cfg worker.Config, setup func(w *worker.Worker)) *running {
	GinkgoHelper()
	cfg.DatabaseURL, cfg.Queue = f.url, queueName
	if cfg.Grace == 0 {
		cfg.Grace = 10 * time.Second
	}
	pool, err := worker.NewPool(ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	return f.startOn(ctx, pool, cfg, setup)
}

// startOn runs a worker on a pool, which is closed with its end.
func (f *fixture) startOn(ctx context.Context, pool *pgxpool.Pool, cfg worker.Config, setup func(w *worker.Worker)) *running {
	GinkgoHelper()
	log := slog.New(slog.NewTextHandler(GinkgoWriter, nil))
	w, err := worker.New(pool, cfg, worker.WithLogger(log))
	Expect(err).NotTo(HaveOccurred())
	setup(w)
	// Ginkgo's own context would end before the clean-up below has drained.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{Worker: w, cancel: cancel, ended: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- w.Run(run)
		pool.Close()
	}()
	DeferCleanup(func() {
		cancel()
		Eventually(done).Should(BeClosed())
	})
	return r
}

// stop asks the worker to stop and returns what Run returned.
func (r *running) stop() error {
	GinkgoHelper()
	r.cancel()
	var err error
	Eventually(r.ended).Should(Receive(&err))
	return err
}

// metric reads a metric's value by its name and one label's value ("" for none).
func (r *running) metric(name, label string) func() float64 {
	return func() float64 {
		families, err := r.Registry().Gather()
		Expect(err).NotTo(HaveOccurred())
		sum := 0.0
		for _, family := range families {
			if family.GetName() != "jobqueue_worker_"+name {
				continue
			}
			for _, m := range family.GetMetric() {
				match := label == ""
				for _, l := range m.GetLabel() {
					match = match || l.GetValue() == label
				}
				if match {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		return sum
	}
}

// Every test must leave no goroutine of the worker behind.
var _ = BeforeEach(func() {
	DeferCleanup(func() { // registered first, so run last, after the test's own
		Eventually(workerGoroutines).Should(BeEmpty())
	})
})

func workerGoroutines() string {
	buf := make([]byte, 4<<20)
	var left []string
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "jobqueue-operator/worker.") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

// recordEffect inserts a handler's effect.
func (f *fixture) recordEffect(ctx context.Context, job *worker.Job[struct{}], begun time.Time) error {
	_, err := f.db.Exec(ctx, "INSERT INTO demo.effects (job_id, token, attempt, worker, begun) VALUES ($1, $2, $3, $4, $5)",
		job.ID, job.Token.String(), job.Attempt, job.Worker.String(), begun)
	if err != nil {
		return fmt.Errorf("record the effect: %w", err)
	}
	return nil
}

func nothing(context.Context, *worker.Job[struct{}]) error { return nil }
