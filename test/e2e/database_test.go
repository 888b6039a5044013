package e2e

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/test/invariants"
)

// one reads one value of the place's database.
func one[T any](ctx context.Context, p *place, sql string, args ...any) (T, error) {
	var value T
	err := p.pool.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// must is one that may not fail.
func must[T any](ctx context.Context, p *place, sql string, args ...any) T {
	GinkgoHelper()
	value, err := one[T](ctx, p, sql, args...)
	Expect(err).NotTo(HaveOccurred(), sql)
	return value
}

// awaitSQL waits until a query that yields one boolean yields true.
func (p *place) awaitSQL(ctx context.Context, within time.Duration, what, sql string, args ...any) {
	GinkgoHelper()
	Eventually(func() (bool, error) { return one[bool](ctx, p, sql, args...) }).
		WithContext(ctx).WithTimeout(within).Should(BeTrue(), what)
}

// enqueue adds jobs, and for each an order, in one transaction: so the orders know which jobs
// there must be, whatever became of the answer to the commit.
func (p *place) enqueue(ctx context.Context, name string, jobs ...queue.NewJob) []int64 {
	GinkgoHelper()
	ids, err := p.tryEnqueue(ctx, name, jobs)
	Expect(err).NotTo(HaveOccurred(), "enqueueing %d jobs in queue %s", len(jobs), name)
	return ids
}

func (p *place) tryEnqueue(ctx context.Context, name string, jobs []queue.NewJob) (ids []int64, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if ids, err = p.queue.Enqueue(ctx, tx, name, jobs...); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO orders SELECT id, $2 FROM unnest($1::bigint[]) AS id`, ids, name)
		return err
	})
	return ids, err
}

// feed keeps enqueueing jobs until it is told to stop. A database that does not answer stops
// nothing: the next tick tries again.
func (p *place) feed(ctx context.Context, name string, every time.Duration, jobs ...queue.NewJob) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			try, end := context.WithTimeout(ctx, 5*time.Second)
			_, _ = p.tryEnqueue(try, name, jobs)
			end()
		}
	})
	stop = func() {
		cancel()
		done.Wait()
	}
	DeferCleanup(stop)
	return stop
}

// overload feeds more work than the queue's workers can do, so that a state that a spec waits
// for lasts until it has been seen, however slowly this machine starts pods.
func (p *place) overload(ctx context.Context, name string, perSecond int, job queue.NewJob) (stop func()) {
	const every = 500 * time.Millisecond
	return p.feed(ctx, name, every, times(max(1, perSecond*int(every)/int(time.Second)), job)...)
}

// cancelWaiting cancels the jobs of a queue that do not run, so that a spec which has seen what
// it wanted does not wait for a backlog. They are counted like all others.
func (p *place) cancelWaiting(ctx context.Context, name string) {
	GinkgoHelper()
	rows, err := p.pool.Query(ctx, `SELECT id FROM jobqueue.jobs WHERE queue = $1 AND state <> 'running'`, name)
	Expect(err).NotTo(HaveOccurred())
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	Expect(err).NotTo(HaveOccurred())
	_, err = p.queue.Cancel(ctx, p.pool, ids, "the spec has seen enough")
	Expect(err).NotTo(HaveOccurred())
}

// awaitDrained waits until no job of the queue is alive and then counts what became of all.
func (p *place) awaitDrained(ctx context.Context, name string, within time.Duration) invariants.Report {
	GinkgoHelper()
	Eventually(func() (int64, error) {
		return one[int64](ctx, p, `SELECT count(*) FROM jobqueue.jobs WHERE queue = $1`, name)
	}).WithContext(ctx).WithTimeout(within).Should(BeZero(), "jobs of queue %s are alive", name)
	return p.count(ctx, name)
}

// count counts the jobs of a queue in SQL and fails when one is lost or has ended twice.
func (p *place) count(ctx context.Context, name string) invariants.Report {
	GinkgoHelper()
	expected := must[int64](ctx, p, `SELECT count(*) FROM orders WHERE queue = $1`, name)
	report, err := invariants.Count(ctx, p.pool, p.queue.Schema(), name, expected)
	Expect(err).NotTo(HaveOccurred())
	Expect(report.Err()).NotTo(HaveOccurred(), "%+v", report)
	Expect(must[int64](ctx, p, `
		SELECT count(*) FROM orders o WHERE queue = $1
		AND NOT EXISTS (SELECT FROM jobqueue.jobs j WHERE j.id = o.id)
		AND NOT EXISTS (SELECT FROM jobqueue.finished f WHERE f.id = o.id)
		AND NOT EXISTS (SELECT FROM jobqueue.dead d WHERE d.id = o.id)`, name)).To(BeZero(), "orders without a job")
	return report
}

// expectAttempts fails unless every finished job of the queue took that many attempts.
func (p *place) expectAttempts(ctx context.Context, name string, ids []int64, attempts int) {
	GinkgoHelper()
	Expect(must[int64](ctx, p, `
		SELECT count(*) FROM jobqueue.finished
		WHERE queue = $1 AND id = ANY($2) AND state = 'succeeded' AND attempt = $3`, name, ids, attempts)).
		To(Equal(int64(len(ids))), "jobs that succeeded in attempt %d", attempts)
}

// holding is the runs that a pod's worker holds.
type holding struct {
	worker uuid.UUID
	refs   []queue.Ref
}

// heldBy returns the runs that the worker of a pod holds at this moment.
func (p *place) heldBy(ctx context.Context, pod string) (holding, error) {
	var h holding
	rows, err := p.pool.Query(ctx, `
		SELECT w.id, j.id, j.token FROM jobqueue.workers w JOIN jobqueue.jobs j ON j.worker_id = w.id
		WHERE w.pod = $1 AND j.state = 'running'`, p.namespace+"/"+pod)
	if err != nil {
		return h, err
	}
	var ref queue.Ref
	_, err = pgx.ForEachRow(rows, []any{&h.worker, &ref.ID, &ref.Token}, func() error {
		h.refs = append(h.refs, ref)
		return nil
	})
	return h, err
}

// awaitHeld waits until the worker of a pod holds so many runs, and returns them.
func (p *place) awaitHeld(ctx context.Context, pod string, n int) holding {
	GinkgoHelper()
	var h holding
	Eventually(func() (int, error) {
		var err error
		h, err = p.heldBy(ctx, pod)
		return len(h.refs), err
	}).WithContext(ctx).WithTimeout(10*time.Second).WithPolling(50*time.Millisecond).Should(Equal(n), "runs of pod %s", pod)
	return h
}

func (h holding) ids() []int64 {
	ids := make([]int64, len(h.refs))
	for i, ref := range h.refs {
		ids[i] = ref.ID
	}
	return ids
}

func (h holding) tokens() []string {
	tokens := make([]string, len(h.refs))
	for i, ref := range h.refs {
		tokens[i] = ref.Token.String()
	}
	return tokens
}
