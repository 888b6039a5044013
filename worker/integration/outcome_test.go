package integration

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

var _ = Describe("What becomes of a job", func() {
	// one runs a single job with the given handler and returns the worker.
	one := func(ctx context.Context, f *fixture, h func(context.Context, *worker.Job[struct{}]) error) (*running, int64) {
		GinkgoHelper()
		ids := f.enqueue(ctx, "k", struct{}{}, 1)
		w := f.start(ctx, worker.Config{PollInterval: 50 * time.Millisecond}, func(w *worker.Worker) { worker.Handle(w, "k", h) })
		return w, ids[0]
	}
	state := func(ctx context.Context, f *fixture, id int64) func() (queue.State, error) {
		return func() (queue.State, error) {
			job, err := f.client.Get(ctx, f.db, id)
			return job.State, err
		}
	}

	It("is tried again until it succeeds (Q5)", func(ctx context.Context) {
		f := setUp(ctx)
		_, id := one(ctx, f, func(_ context.Context, j *worker.Job[struct{}]) error {
			if j.Attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateSucceeded))
		job, err := f.client.Get(ctx, f.db, id)
		Expect(err).NotTo(HaveOccurred())
		Expect(job.Attempt).To(Equal(3))
	})

	It("is buried when its attempts are used up, with its errors (Q5, Q7)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.MaxAttempts = 2 })
		w, id := one(ctx, f, func(context.Context, *worker.Job[struct{}]) error { return errors.New("never\x00") })
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateDead))
		job, err := f.client.Get(ctx, f.db, id)
		Expect(err).NotTo(HaveOccurred())
		Expect(job.LastError).To(Equal("never\uFFFD"))
		Expect(job.Errors).To(HaveLen(2))
		Expect(w.metric("completions_total", "retried")()).To(BeEquivalentTo(1))
		Expect(w.metric("completions_total", "dead")()).To(BeEquivalentTo(1))
	})

	It("is buried at once by a permanent error (Q6)", func(ctx context.Context) {
		f := setUp(ctx)
		_, id := one(ctx, f, func(context.Context, *worker.Job[struct{}]) error {
			return worker.Permanent(errors.New("no such user"))
		})
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateDead))
		job, err := f.client.Get(ctx, f.db, id)
		Expect(err).NotTo(HaveOccurred())
		Expect(job.Attempt).To(Equal(1))
	})

	It("waits as long as the handler says (Q6)", func(ctx context.Context) {
		f := setUp(ctx)
		_, id := one(ctx, f, func(context.Context, *worker.Job[struct{}]) error {
			return worker.RetryAfter(time.Hour, errors.New("429"))
		})
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateScheduled))
		Expect(f.number(ctx, "SELECT attempt FROM jobqueue.jobs WHERE available_at > clock_timestamp() + interval '59 minutes'")()).To(Equal(1))
	})

	It("is snoozed without an attempt (Q6)", func(ctx context.Context) {
		f := setUp(ctx)
		_, id := one(ctx, f, func(context.Context, *worker.Job[struct{}]) error { return worker.Snooze(time.Hour) })
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateScheduled))
		Expect(f.number(ctx, "SELECT attempt FROM jobqueue.jobs WHERE available_at > clock_timestamp() + interval '59 minutes'")()).To(BeZero())
	})

	It("is discarded with its reason (Q6)", func(ctx context.Context) {
		f := setUp(ctx)
		_, id := one(ctx, f, func(context.Context, *worker.Job[struct{}]) error { return worker.Discard("unsubscribed") })
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateDiscarded))
		job, err := f.client.Get(ctx, f.db, id)
		Expect(err).NotTo(HaveOccurred())
		Expect(job.Reason).To(Equal("unsubscribed"))
	})

	It("fails by a panic, whose stack is kept, and the process goes on (W7)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.MaxAttempts = 1 })
		w, id := one(ctx, f, func(context.Context, *worker.Job[struct{}]) error { panic("oh no") })
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateDead))
		job, err := f.client.Get(ctx, f.db, id)
		Expect(err).NotTo(HaveOccurred())
		Expect(job.LastError).To(And(HavePrefix("panic: oh no"), ContainSubstring("outcome_test.go")))
		Expect(w.metric("panics_total", "")()).To(BeEquivalentTo(1))
		Consistently(w.ended, "200ms").ShouldNot(Receive())
	})

	It("fails by its timeout (W6)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.MaxAttempts, p.Timeout = 1, 200*time.Millisecond })
		_, id := one(ctx, f, func(ctx context.Context, _ *worker.Job[struct{}]) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		Eventually(state(ctx, f, id)).Should(Equal(queue.StateDead))
		job, err := f.client.Get(ctx, f.db, id)
		Expect(err).NotTo(HaveOccurred())
		Expect(job.LastError).To(HavePrefix("worker: the job's timeout is over after "))
	})

	It("fails when its handler is stuck, and the worker ends after the others (W6)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) {
			p.MaxAttempts, p.Timeout, p.Lease, p.Heartbeat = 1, 300*time.Millisecond, time.Second, 200*time.Millisecond
		})
		f.enqueue(ctx, "stuck", struct{}{}, 1)
		unstick := make(chan struct{})
		DeferCleanup(func() { close(unstick) })
		var others atomic.Int32
		stopping := make(chan struct{})
		w := f.start(ctx, worker.Config{Slots: 2}, func(w *worker.Worker) {
			worker.Handle(w, "stuck", func(context.Context, *worker.Job[struct{}]) error { <-unstick; return nil })
			worker.Handle(w, "other", func(context.Context, *worker.Job[struct{}]) error {
				<-stopping
				others.Add(1)
				return nil
			})
		})
		Eventually(f.number(ctx, runningJobs)).Should(Equal(1))
		Eventually(w.metric("stuck_handlers_total", "")).Should(BeEquivalentTo(1))
		close(stopping)
		Eventually(w.ended).Should(Receive(MatchError(worker.ErrStuckHandler)))
		Expect(f.number(ctx, deadJobs)()).To(Equal(1), "the attempt counts, or a poisonous job would run for ever")
		Expect(f.number(ctx, workerRows)()).To(BeZero())
	})

	Describe("finished in the handler's own transaction (Q8)", func() {
		// inTx inserts an effect and finishes the job in one transaction, which end ends.
		inTx := func(f *fixture, end func(ctx context.Context, tx pgx.Tx) error) func(context.Context, *worker.Job[struct{}]) error {
			return func(ctx context.Context, job *worker.Job[struct{}]) error {
				tx, err := f.db.Begin(ctx)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
				_, err = tx.Exec(ctx, "INSERT INTO demo.effects (job_id, token, attempt, worker) VALUES ($1, $2, $3, $4)",
					job.ID, job.Token.String(), job.Attempt, job.Worker.String())
				if err != nil {
					return err
				}
				if err := job.Succeed(ctx, tx); err != nil {
					return err
				}
				return end(ctx, tx)
			}
		}
		commit := func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }

		It("commits effects and end together, once", func(ctx context.Context) {
			f := setUp(ctx)
			w, id := one(ctx, f, inTx(f, commit))
			Eventually(w.metric("completions_total", "succeeded")).Should(BeEquivalentTo(1))
			Expect(state(ctx, f, id)()).To(Equal(queue.StateSucceeded))
			Expect(f.number(ctx, effectRows)()).To(Equal(1))
			Expect(w.metric("stale_results_total", "")()).To(BeZero())
		})

		It("puts off those that waited in vain for a row they share, their attempt not counted", func(ctx context.Context) {
			f := setUp(ctx, func(p *queue.Policy) { p.MaxAttempts = 1 })
			var own atomic.Bool
			slow := inTx(f, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT pg_sleep(1)")
				return errors.Join(err, tx.Commit(ctx))
			})
			w := f.start(ctx, worker.Config{Slots: 4}, func(w *worker.Worker) {
				worker.Handle(w, "k", func(ctx context.Context, job *worker.Job[struct{}]) error {
					if own.Load() {
						return slow(ctx, job)
					}
					return nil
				})
			})
			f.enqueue(ctx, "k", struct{}{}, 100) // until the kind's jobs share rows
			Eventually(f.number(ctx, succeededJobs)).Should(Equal(100))
			own.Store(true)
			f.enqueue(ctx, "k", struct{}{}, 4)
			Eventually(f.number(ctx, succeededJobs)).WithTimeout(20 * time.Second).Should(Equal(104))
			Expect(f.number(ctx, effectRows)()).To(Equal(4))
			Expect(f.number(ctx, deadJobs)()).To(BeZero())
			Expect(w.metric("completions_total", "snoozed")()).To(BeNumerically(">", 0), "some shared a row")
		})

		It("does not take the handler's word for a transaction that was rolled back", func(ctx context.Context) {
			f := setUp(ctx, func(p *queue.Policy) { p.MaxAttempts = 1 })
			_, id := one(ctx, f, inTx(f, func(ctx context.Context, tx pgx.Tx) error { _ = tx.Rollback(ctx); return nil }))
			Eventually(state(ctx, f, id)).Should(Equal(queue.StateDead))
			job, err := f.client.Get(ctx, f.db, id)
			Expect(err).NotTo(HaveOccurred())
			Expect(job.LastError).To(Equal(worker.ErrNotCommitted.Error()))
			Expect(f.number(ctx, effectRows)()).To(BeZero())
		})

		DescribeTable("takes the handler's word for what becomes of the job after a rollback (Q6)", func(ctx context.Context, word error, want queue.State, outcome string) {
			f := setUp(ctx, func(p *queue.Policy) { p.MaxAttempts = 1 })
			w, id := one(ctx, f, inTx(f, func(ctx context.Context, tx pgx.Tx) error { _ = tx.Rollback(ctx); return word }))
			Eventually(state(ctx, f, id)).Should(Equal(want))
			Eventually(w.metric("completions_total", outcome)).Should(BeEquivalentTo(1))
			Expect(f.number(ctx, deadJobs)()).To(BeZero())
		},
			Entry("snoozed", worker.Snooze(time.Hour), queue.StateScheduled, "snoozed"),
			Entry("discarded", worker.Discard("refused by a rule"), queue.StateDiscarded, "discarded"),
		)

		It("is succeeded, whatever the handler says after its commit", func(ctx context.Context) {
			f := setUp(ctx)
			w, id := one(ctx, f, inTx(f, func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(tx.Commit(ctx), worker.Snooze(time.Hour))
			}))
			Eventually(w.metric("completions_total", "unconfirmed")).Should(BeEquivalentTo(1))
			Expect(state(ctx, f, id)()).To(Equal(queue.StateSucceeded))
		})

		It("does not run again when the answer to the commit was lost", func(ctx context.Context) {
			f := setUp(ctx)
			w, id := one(ctx, f, inTx(f, func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(tx.Commit(ctx), errors.New("connection reset"))
			}))
			Eventually(w.metric("completions_total", "unconfirmed")).Should(BeEquivalentTo(1))
			Expect(state(ctx, f, id)()).To(Equal(queue.StateSucceeded))
			Expect(f.number(ctx, effectRows)()).To(Equal(1))
		})

		It("leaves the handler alone after the commit, though its row is gone", func(ctx context.Context) {
			f := setUp(ctx, func(p *queue.Policy) { p.Heartbeat = 50 * time.Millisecond })
			cause := make(chan error, 1)
			w, _ := one(ctx, f, inTx(f, func(ctx context.Context, tx pgx.Tx) error {
				if err := tx.Commit(ctx); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
				case <-time.After(500 * time.Millisecond): // several heartbeats
				}
				cause <- context.Cause(ctx)
				return nil
			}))
			Eventually(cause).Should(Receive(BeNil()))
			Eventually(w.metric("completions_total", "succeeded")).Should(BeEquivalentTo(1))
		})

		It("tells the handler to roll back when the lease was lost", func(ctx context.Context) {
			f := setUp(ctx)
			got := make(chan error, 1)
			one(ctx, f, func(ctx context.Context, job *worker.Job[struct{}]) error {
				if _, err := f.client.Cancel(ctx, f.db, []int64{job.ID}, "changed our mind"); err != nil {
					return err
				}
				err := inTx(f, commit)(ctx, job)
				got <- err
				return err
			})
			Eventually(got).Should(Receive(MatchError(worker.ErrLeaseLost)))
			Expect(f.number(ctx, effectRows)()).To(BeZero())
		})
	})
})
