package faults

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// producer enqueues without end, each time in the transaction that writes an order for
// each job, whatever the database does meanwhile.
type producer struct {
	stop context.CancelFunc
	done sync.WaitGroup
	// committed and failed count transactions; of a failed one nobody knows.
	committed, failed int
}

// produce starts a producer on a pool of its own, which the faults of url are put into.
func (w *world) produce(ctx context.Context, url string, random *rand.Rand) *producer {
	GinkgoHelper()
	pool, err := pgxpool.New(ctx, url)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(pool.Close)
	run, stop := context.WithCancel(ctx)
	p := &producer{stop: stop}
	DeferCleanup(p.end)
	p.done.Go(func() {
		for run.Err() == nil {
			ids, err := w.order(run, pool, mixedJobs(random))
			if err != nil {
				p.failed++
				pause(run, 50*time.Millisecond)
				continue
			}
			p.committed++
			w.committed(ids)
			pause(run, 10*time.Millisecond)
		}
	})
	return p
}

// end stops the producer and waits for it.
func (p *producer) end() {
	p.stop()
	p.done.Wait()
}

// order enqueues jobs in the transaction that writes an order for each.
func (w *world) order(ctx context.Context, pool *pgxpool.Pool, jobs []queue.NewJob) (ids []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if ids, err = w.client.Enqueue(ctx, tx, queueName, jobs...); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO orders SELECT unnest($1::bigint[])", ids)
		return err
	})
	return ids, err
}

// mixedJobs are up to ten jobs that succeed, fail first, or put themselves off.
func mixedJobs(random *rand.Rand) []queue.NewJob {
	jobs := make([]queue.NewJob, 1+random.IntN(10))
	for i := range jobs {
		w := work{Milliseconds: random.IntN(40)}
		switch random.IntN(10) {
		case 0:
			w.Failures = 1 + random.IntN(2)
		case 1:
			w.SnoozeMilliseconds = 100
		}
		jobs[i] = queue.NewJob{Kind: kind, Payload: w}
	}
	return jobs
}

// ordersMatch expects a job for each order and an order for each job.
func (w *world) ordersMatch(ctx context.Context) {
	GinkgoHelper()
	const unmatched = `SELECT count(*) FROM orders FULL JOIN (SELECT DISTINCT id FROM history.events) jobs ON id = job WHERE id IS NULL OR job IS NULL`
	Expect(w.number(ctx, unmatched)()).To(BeZero(), "orders without a job, and jobs without an order")
}

// random is the n-th source of a spec, from Ginkgo's seed, which every run prints. None is
// safe for use by two at a time.
func random(n uint64) *rand.Rand { return rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), n)) }

// pause waits, or ends with ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
