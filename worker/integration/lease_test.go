package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

var _ = Describe("A lease", func() {
	quick := func(p *queue.Policy) { p.Heartbeat, p.Lease = 100*time.Millisecond, 5*time.Second }

	It("taken back underneath cancels the handler, and its late result is refused (W3, T2)", func(ctx context.Context) {
		f := setUp(ctx, quick)
		ids := f.enqueue(ctx, "k", struct{}{}, 1)
		causes := make(chan error, 1)
		goOn := make(chan struct{})
		w := f.start(ctx, worker.Config{PollInterval: time.Minute, DisableListen: true}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(ctx context.Context, job *worker.Job[struct{}]) error {
				if job.Attempt > 1 {
					return nil
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				<-goOn
				return nil // as if nothing had happened
			})
		})
		Eventually(w.metric("running", "")).Should(BeEquivalentTo(1))
		// As when the lease had run out: the reaper takes the job, another runs it.
		Eventually(func(g Gomega) {
			_, err := f.db.Exec(ctx, "UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() - interval '1 second'")
			g.Expect(err).NotTo(HaveOccurred())
			r, err := f.client.Reap(ctx, f.db, queue.ReapRequest{Queue: queueName})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.Returned).To(BeEquivalentTo(1))
		}).Should(Succeed())
		Eventually(causes).Should(Receive(MatchError(worker.ErrLeaseLost)))
		Expect(w.metric("leases_lost_total", "heartbeat")()).To(BeEquivalentTo(1))

		other := uuid.New()
		var runs []queue.Run
		Eventually(func() ([]queue.Run, error) {
			var err error
			runs, err = f.client.Claim(ctx, f.db, queue.ClaimRequest{Queue: queueName, Worker: other, Limit: 1})
			return runs, err
		}).Should(HaveLen(1))
		close(goOn)
		Eventually(w.metric("stale_results_total", "")).Should(BeEquivalentTo(1))
		Expect(f.number(ctx, runningJobs)()).To(Equal(1), "the other's run is untouched")
		Expect(f.client.Succeed(ctx, f.db, other, []queue.Ref{runs[0].Ref})).To(Equal(ids))
	})

	DescribeTable("outlasts a lock that claims, results and rescues hang on (Q14)", func(ctx context.Context, disableListen bool) {
		f := setUp(ctx, func(p *queue.Policy) { p.Heartbeat, p.Lease = 200*time.Millisecond, 2*time.Second })
		f.enqueue(ctx, "long", struct{}{}, 1)
		failing, goOn := make(chan struct{}), make(chan struct{})
		w := f.start(ctx, worker.Config{Slots: 5, PoolSize: 2, PollInterval: 50 * time.Millisecond, PollMax: 50 * time.Millisecond, DisableListen: disableListen}, func(w *worker.Worker) {
			worker.Handle(w, "long", func(context.Context, *worker.Job[struct{}]) error {
				<-goOn
				return nil
			})
			worker.Handle(w, "failing", func(context.Context, *worker.Job[struct{}]) error {
				<-failing
				return worker.Discard("only written later")
			})
		})
		f.enqueue(ctx, "failing", struct{}{}, 1)
		Eventually(w.metric("running", "")).Should(BeEquivalentTo(2))
		tx, err := f.db.Begin(ctx)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "LOCK jobqueue.waiting, jobqueue.ended")
		Expect(err).NotTo(HaveOccurred())
		close(failing)
		Eventually(f.number(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")).
			Should(Equal(1), "the connection hangs that is not kept for heartbeats")
		Consistently(w.metric("leases_lost_total", "")).WithTimeout(4 * time.Second).Should(BeZero()) // two leases
		Expect(tx.Rollback(ctx)).To(Succeed())
		close(goOn)
		Eventually(f.number(ctx, liveJobs)).Should(BeZero())
		Expect(w.metric("completions_total", "succeeded")()).To(BeEquivalentTo(1))
		Expect(w.metric("completions_total", "discarded")()).To(BeEquivalentTo(1))
		Expect(w.metric("stale_results_total", "")()).To(BeZero())
	},
		Entry("with the listener's connection, lent", false),
		Entry("with a connection kept for it", true),
	)

	DescribeTable("outlasts handlers that hold all connections of the pool that are to be had (Q14)", func(ctx context.Context, disableListen bool) {
		f := setUp(ctx, func(p *queue.Policy) { p.Heartbeat, p.Lease = 200*time.Millisecond, time.Second })
		f.enqueue(ctx, "k", struct{}{}, 6)
		w := f.start(ctx, worker.Config{Slots: 6, PoolSize: 3, DisableListen: disableListen}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(ctx context.Context, job *worker.Job[struct{}]) error {
				return pgx.BeginFunc(ctx, w.Pool(), func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, "SELECT pg_sleep(3)"); err != nil { // three leases
						return err
					}
					return job.Succeed(ctx, tx)
				})
			})
		})
		Eventually(f.number(ctx, liveJobs)).WithTimeout(time.Minute).Should(BeZero())
		Expect(w.metric("leases_lost_total", "")()).To(BeZero())
		Expect(w.metric("heartbeats_total", "error")()).To(BeZero())
		Expect(f.number(ctx, "SELECT count(*) FROM jobqueue.dead")()).To(BeZero())
	},
		Entry("listening", false),
		Entry("polling alone", true),
	)

	It("are renewed by workers that share a pool too small for them, and all of them run jobs (Q14)", func(ctx context.Context) {
		f := setUp(ctx)
		const workers = 4
		shared, err := worker.NewPool(ctx, worker.Config{DatabaseURL: f.url, Queue: queueName, PoolSize: 3})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(shared.Close)
		for i := range workers {
			name := fmt.Sprint("shared-", i)
			Expect(f.client.SetPolicy(ctx, f.db, name, queue.DefaultPolicy())).To(Succeed())
			w, err := worker.New(shared, worker.Config{Queue: name, PollInterval: 100 * time.Millisecond})
			Expect(err).NotTo(HaveOccurred())
			worker.Handle(w, "k", func(context.Context, *worker.Job[struct{}]) error { return nil })
			running, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- w.Run(running) }()
			DeferCleanup(func() {
				stop()
				Expect(<-ended).To(Succeed())
			})
		}
		for i := range workers {
			_, err := f.client.Enqueue(ctx, f.db, fmt.Sprint("shared-", i), queue.NewJob{Kind: "k"})
			Expect(err).NotTo(HaveOccurred())
		}
		Eventually(f.number(ctx, liveJobs)).Should(BeZero())
	})

	It("lost before the worker can know: the database refuses the result, and that is counted (W3)", func(ctx context.Context) {
		f := setUp(ctx) // a heartbeat a second
		ids := f.enqueue(ctx, "k", struct{}{}, 1)
		w := f.start(ctx, worker.Config{}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(ctx context.Context, job *worker.Job[struct{}]) error {
				_, err := f.client.Cancel(ctx, f.db, ids, "overtaken")
				return err
			})
		})
		Eventually(w.metric("stale_results_total", "database")).Should(BeEquivalentTo(1))
		Expect(w.metric("completions_total", "succeeded")()).To(BeZero())
	})

	It("whose row somebody has locked holds up its own result only, which is written once the lock is gone (W4)", func(ctx context.Context) {
		f := setUp(ctx)
		ids := f.enqueue(ctx, "k", struct{}{}, 50)
		goOn := make(chan struct{})
		w := f.start(ctx, worker.Config{Slots: 50}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(context.Context, *worker.Job[struct{}]) error {
				<-goOn
				return nil
			})
		})
		Eventually(f.number(ctx, runningJobs)).Should(Equal(50))
		tx, err := f.db.Begin(ctx)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = tx.Rollback(ctx) }()
		Expect(f.client.Cancel(ctx, tx, ids[:1], "thinking about it")).To(HaveLen(1))
		close(goOn)
		Eventually(f.number(ctx, succeededJobs)).WithTimeout(20 * time.Second).Should(Equal(49))
		Expect(tx.Rollback(ctx)).To(Succeed())
		Eventually(f.number(ctx, succeededJobs)).WithTimeout(20 * time.Second).Should(Equal(50))
		Expect(w.metric("stale_results_total", "")()).To(BeZero())
	})

	It("whose row is shared and locked by somebody holds up those that share it, and nobody else (W4)", func(ctx context.Context) {
		f := setUp(ctx)
		gate := make(chan struct{})
		var held atomic.Bool
		w := f.start(ctx, worker.Config{Slots: 50}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(context.Context, *worker.Job[struct{}]) error {
				if held.Load() {
					<-gate
				}
				return nil
			})
		})
		f.enqueue(ctx, "k", struct{}{}, 100) // until the kind's jobs share rows
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(100))
		held.Store(true)
		ids := f.enqueue(ctx, "k", struct{}{}, 50)
		Eventually(f.number(ctx, runningJobs)).Should(Equal(50))
		sharing := f.number(ctx, "SELECT bit_count(open) FROM jobqueue.batches WHERE $1 = ANY (ids)", ids[0])
		Expect(sharing()).To(BeNumerically(">", 1))
		tx, err := f.db.Begin(ctx)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = tx.Rollback(ctx) }()
		Expect(f.client.Cancel(ctx, tx, ids[:1], "thinking about it")).To(HaveLen(1))
		held.Store(false)
		close(gate)
		f.enqueue(ctx, "k", struct{}{}, 2000)
		waiting, err := sharing()
		Expect(err).NotTo(HaveOccurred())
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(2150 - waiting))
		Expect(tx.Rollback(ctx)).To(Succeed())
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(2150))
		Expect(w.metric("stale_results_total", "")()).To(BeZero())
	})

	It("of a dead worker is rescued by a live one within a few seconds (R3)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.Lease, p.Heartbeat = 2*time.Second, 500*time.Millisecond })
		f.enqueue(ctx, "k", struct{}{}, 20)
		dead, err := f.client.Claim(ctx, f.db, queue.ClaimRequest{Queue: queueName, Worker: uuid.New(), Limit: 20})
		Expect(err).NotTo(HaveOccurred())
		Expect(dead).To(HaveLen(20))
		begun := time.Now()
		w := f.start(ctx, worker.Config{}, func(w *worker.Worker) { worker.Handle(w, "k", nothing) })
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(20))
		Expect(time.Since(begun)).To(BeNumerically("<", 10*time.Second))
		Expect(w.metric("rescued_jobs_total", "queue")()).To(BeEquivalentTo(20))
	})

	It("of a claim whose answer was lost ends at once, though other jobs of that worker go on (W3, W9)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.Lease, p.Heartbeat = time.Minute, 200*time.Millisecond })
		cfg := worker.Config{DatabaseURL: f.url, Queue: queueName, Grace: 10 * time.Second, Slots: 2, PollInterval: 100 * time.Millisecond}
		f.enqueue(ctx, "long", struct{}{}, 1)
		goOn := make(chan struct{})
		attempts := make(chan int, 2)
		w, cut := f.startCutting(ctx, cfg, "lose me", func(w *worker.Worker) {
			worker.Handle(w, "long", func(ctx context.Context, job *worker.Job[struct{}]) error {
				select {
				case <-goOn:
				case <-ctx.Done():
				}
				attempts <- job.Attempt
				return context.Cause(ctx)
			})
			worker.Handle(w, "k", nothing)
		})
		Eventually(w.metric("running", "")).Should(BeEquivalentTo(1))
		f.enqueue(ctx, "k", map[string]string{"mark": "lose me"}, 1)
		// Well before the lease or the job's deadline could be over.
		Eventually(f.number(ctx, "SELECT count(*) FROM jobqueue.finished WHERE kind = 'k' AND attempt = 1")).Should(Equal(1))
		Expect(cut.Load()).To(BeEquivalentTo(1))
		Consistently(attempts, "500ms").ShouldNot(Receive(), "the other goes on")
		close(goOn)
		Eventually(attempts).Should(Receive(Equal(1)))
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(2))
		Eventually(f.number(ctx, workerRows)).Should(Equal(1), "the identity that was retired is gone")
		Expect(w.metric("stale_results_total", "")()).To(BeZero())
	})

	It("does not wait for the end of an identity that was retired (W9)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.Lease, p.Heartbeat = 4*time.Second, time.Second })
		cfg := worker.Config{DatabaseURL: f.url, Queue: queueName, Grace: 10 * time.Second, Slots: 2, PollInterval: 100 * time.Millisecond}
		w, cut := f.startCutting(ctx, cfg, "lose me", func(w *worker.Worker) {
			worker.Handle(w, "long", func(ctx context.Context, _ *worker.Job[struct{}]) error {
				select {
				case <-time.After(6 * time.Second): // longer than a lease, and than the limit for removing a row
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
			worker.Handle(w, "k", nothing)
		})
		Eventually(f.number(ctx, workerRows+" WHERE kinds IS NOT NULL")).Should(Equal(1), "it has claimed, and need not write its row to claim again")
		tx, err := f.db.Begin(ctx)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "SELECT FROM jobqueue.workers FOR UPDATE")
		Expect(err).NotTo(HaveOccurred())
		f.enqueue(ctx, "k", map[string]string{"mark": "lose me"}, 1)
		Eventually(cut.Load).Should(BeEquivalentTo(1))
		f.enqueue(ctx, "long", struct{}{}, 1)
		Eventually(f.number(ctx, "SELECT count(*) FROM jobqueue.finished WHERE kind = 'long'")).Should(Equal(1))
		Expect(f.number(ctx, "SELECT attempt FROM jobqueue.finished WHERE kind = 'long'")()).To(Equal(1))
		Expect(w.metric("leases_lost_total", "clock")()).To(BeZero())
		Expect(f.number(ctx, succeededJobs)()).To(Equal(1), "the claim that was lost still has the other")
		Expect(tx.Rollback(ctx)).To(Succeed())
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(2))
		Eventually(f.number(ctx, workerRows)).Should(Equal(1))
	})

	It("of long jobs is kept by heartbeats, at one statement each", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.Lease, p.Heartbeat = time.Second, 200*time.Millisecond })
		f.enqueue(ctx, "long", struct{}{}, 50)
		w := f.start(ctx, worker.Config{Slots: 50}, func(w *worker.Worker) {
			worker.Handle(w, "long", func(ctx context.Context, _ *worker.Job[struct{}]) error {
				select {
				case <-time.After(3 * time.Second): // three leases
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		})
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(50))
		Expect(f.number(ctx, "SELECT count(*) FROM jobqueue.finished WHERE attempt <> 1")()).To(BeZero())
		Expect(w.metric("heartbeats_total", "ok")()).To(BeNumerically("<", 60))
	})
})

var _ = Describe("An outage of the database", func() {
	server := pgtest.Shared

	for _, mode := range []pgtest.Mode{pgtest.Fast, pgtest.Immediate} {
		It("by a "+string(mode)+" restart in mid-load loses nothing, and the same process goes on (W9, T3)", func(ctx context.Context) {
			const jobs = 3000
			f := setUp(ctx)
			f.enqueue(ctx, "k", struct{}{}, jobs)
			w := f.start(ctx, worker.Config{}, func(w *worker.Worker) {
				worker.Handle(w, "k", func(ctx context.Context, _ *worker.Job[struct{}]) error {
					time.Sleep(2 * time.Millisecond)
					return nil
				})
			})
			for i := range 2 {
				Eventually(f.number(ctx, succeededJobs)).Should(BeNumerically(">", (i+1)*jobs/5))
				Expect(server().Restart(mode)).To(Succeed())
			}
			Eventually(f.number(ctx, succeededJobs), 60*time.Second).Should(Equal(jobs))
			Expect(f.number(ctx, liveJobs)()).To(BeZero())
			Expect(f.number(ctx, deadJobs)()).To(BeZero())
			Consistently(w.ended, "100ms").ShouldNot(Receive())
			Expect(w.stop()).To(Succeed())
			Expect(f.number(ctx, workerRows)()).To(BeZero(), "identities that were retired are gone as well")
		})
	}

	It("is not what a role's isolation level makes of it: a worker has its own (W9)", func(ctx context.Context) {
		f := setUp(ctx)
		f.exec(ctx, "ALTER DATABASE "+f.db.Config().ConnConfig.Database+" SET default_transaction_isolation = serializable")
		f.enqueue(ctx, "k", struct{}{}, 1000)
		var workers []*running
		for range 2 {
			workers = append(workers, f.start(ctx, worker.Config{}, func(w *worker.Worker) { worker.Handle(w, "k", nothing) }))
		}
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(1000))
		for _, w := range workers {
			Expect(w.metric("claims_total", "error")()).To(BeZero())
			Expect(w.metric("completion_errors_total", "")()).To(BeZero())
			var level string
			Expect(w.Pool().QueryRow(ctx, "SHOW transaction_isolation").Scan(&level)).To(Succeed())
			Expect(level).To(Equal("read committed"))
			var limit string
			Expect(w.Pool().QueryRow(ctx, "SHOW tcp_user_timeout").Scan(&limit)).To(Succeed())
			Expect(limit).To(Equal("10000"), "or what a frozen process was about to claim stays locked (Q14)")
		}
	})

	It("that leads a worker to a standby for a while does not keep it there (W9)", func(ctx context.Context) {
		f := setUp(ctx)
		name := f.db.Config().ConnConfig.Database
		f.exec(ctx, "ALTER DATABASE "+name+" SET default_transaction_read_only = on") // of new sessions
		f.enqueue(ctx, "k", struct{}{}, 1)
		w := f.start(ctx, worker.Config{DisableListen: true, PollInterval: 50 * time.Millisecond}, func(w *worker.Worker) { worker.Handle(w, "k", nothing) })
		Eventually(w.metric("claims_total", "error")).Should(BeNumerically(">", 1))
		f.exec(ctx, "ALTER DATABASE "+name+" RESET default_transaction_read_only")
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(1))
	})

	It("makes a worker not ready, but alive, and results wait for its end (W4, W9, W12)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.Heartbeat = 200 * time.Millisecond })
		f.enqueue(ctx, "k", struct{}{}, 1)
		goOn := make(chan struct{})
		w := f.start(ctx, worker.Config{}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(context.Context, *worker.Job[struct{}]) error { <-goOn; return nil })
		})
		Eventually(w.probe("/readyz")).Should(Equal(200))
		Eventually(w.metric("running", "")).Should(BeEquivalentTo(1))
		Expect(server().Halt(pgtest.Fast)).To(Succeed())
		resumed := false
		DeferCleanup(func() {
			if !resumed {
				Expect(server().Resume()).To(Succeed())
			}
		})
		Eventually(w.probe("/readyz")).Should(Equal(503))
		close(goOn)
		Eventually(w.metric("completion_errors_total", "")).Should(BeNumerically(">", 1))
		Expect(w.probe("/healthz")()).To(Equal(200))
		Expect(w.metric("unwritten", "")()).To(BeEquivalentTo(1))
		Expect(server().Resume()).To(Succeed())
		resumed = true
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(1))
		Eventually(w.probe("/readyz")).Should(Equal(200))
		Expect(f.number(ctx, "SELECT max(attempt) FROM jobqueue.finished")()).To(Equal(1))
	})

	It("longer than the lease makes a worker give up what it holds, by its own clock", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.Lease, p.Heartbeat = time.Second, 200*time.Millisecond })
		f.enqueue(ctx, "k", struct{}{}, 1)
		causes := make(chan error, 1)
		w := f.start(ctx, worker.Config{PollInterval: 100 * time.Millisecond}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(ctx context.Context, job *worker.Job[struct{}]) error {
				if job.Attempt > 1 {
					return nil
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return errors.New("interrupted")
			})
		})
		Eventually(w.metric("running", "")).Should(BeEquivalentTo(1))
		Expect(server().Halt(pgtest.Fast)).To(Succeed())
		resumed := false
		DeferCleanup(func() {
			if !resumed {
				Expect(server().Resume()).To(Succeed())
			}
		})
		Eventually(causes).Should(Receive(MatchError(worker.ErrLeaseLost)))
		Expect(w.metric("leases_lost_total", "clock")()).To(BeEquivalentTo(1))
		Expect(server().Resume()).To(Succeed())
		resumed = true
		Eventually(f.number(ctx, "SELECT count(*) FROM jobqueue.finished WHERE attempt = 2")).Should(Equal(1))
	})
})

// startCutting is start with connections of which the first that brings the given bytes is
// cut instead.
func (f *fixture) startCutting(ctx context.Context, cfg worker.Config, at string, setup func(*worker.Worker)) (*running, *atomic.Int64) {
	GinkgoHelper()
	plain, err := worker.NewPool(ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	cut := new(atomic.Int64)
	through := plain.Config()
	plain.Close()
	through.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &cutConn{Conn: conn, at: []byte(at), cut: cut}, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, through)
	Expect(err).NotTo(HaveOccurred())
	return f.startOn(ctx, pool, cfg, setup), cut
}

// cutConn is cut, the first of all that share cut, where an answer has the bytes at.
type cutConn struct {
	net.Conn
	at  []byte
	cut *atomic.Int64
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], c.at) && c.cut.CompareAndSwap(0, 1) {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
