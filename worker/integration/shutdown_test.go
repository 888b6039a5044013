package integration

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// probe asks the worker's own HTTP handler and returns the status.
func (r *running) probe(path string) func() int {
	return func() int {
		rec := httptest.NewRecorder()
		r.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		return rec.Code
	}
}

var _ = Describe("A worker asked to stop", func() {
	untouched := "SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND attempt = 0 AND token IS NULL"

	It("lets handlers finish, and gives back at once what none has seen (W2, W5)", func(ctx context.Context) {
		f := setUp(ctx)
		var began atomic.Int32
		goOn := make(chan struct{})
		f.enqueue(ctx, "fast", struct{}{}, 300)
		w := f.start(ctx, worker.Config{Slots: 2}, func(w *worker.Worker) {
			worker.Handle(w, "fast", nothing)
			worker.Handle(w, "slow", func(context.Context, *worker.Job[struct{}]) error {
				began.Add(1)
				<-goOn
				return nil
			})
		})
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(300))
		f.enqueue(ctx, "slow", struct{}{}, 40)
		Eventually(began.Load).Should(BeEquivalentTo(2))
		// More than the slots are claimed, for the jobs so far were fast.
		w.cancel()
		Eventually(f.number(ctx, untouched)).Should(Equal(38))
		Expect(w.probe("/readyz")()).To(Equal(503))
		Expect(w.probe("/healthz")()).To(Equal(200))
		Consistently(w.ended, "200ms").ShouldNot(Receive(), "handlers still run")
		close(goOn)
		Expect(w.stop()).To(Succeed())
		Expect(f.number(ctx, succeededJobs)()).To(Equal(302))
		Expect(f.number(ctx, workerRows)()).To(BeZero())
	})

	It("cancels handlers near the end of the grace period, and no attempt is counted (W5)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "minds", struct{}{}, 1)
		f.enqueue(ctx, "ignores", struct{}{}, 1)
		f.enqueue(ctx, "hurries", struct{}{}, 1)
		var began atomic.Int32
		causes := make(chan error, 3)
		end := make(chan struct{})
		DeferCleanup(func() { close(end) })
		w := f.start(ctx, worker.Config{Grace: 2 * time.Second}, func(w *worker.Worker) {
			worker.Handle(w, "minds", func(ctx context.Context, _ *worker.Job[struct{}]) error {
				began.Add(1)
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return errors.New("half done")
			})
			worker.Handle(w, "ignores", func(context.Context, *worker.Job[struct{}]) error { began.Add(1); <-end; return nil })
			worker.Handle(w, "hurries", func(ctx context.Context, _ *worker.Job[struct{}]) error { began.Add(1); <-ctx.Done(); return nil })
		})
		// One that is claimed and has not begun would go back at once.
		Eventually(began.Load).Should(BeEquivalentTo(3))
		begun := time.Now()
		Expect(w.stop()).To(Succeed())
		Expect(time.Since(begun)).To(And(BeNumerically(">", time.Second), BeNumerically("<", 2*time.Second)))
		Expect(causes).To(Receive(MatchError(worker.ErrShutdown)))
		Expect(f.number(ctx, untouched)()).To(Equal(2))
		Expect(f.number(ctx, succeededJobs)()).To(Equal(1), "a result that comes in time counts")
	})

	It("is not held up by a handler that keeps its transaction open (W5, Q8)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "k", struct{}{}, 1)
		inTx := make(chan struct{})
		end := make(chan struct{})
		DeferCleanup(func() { close(end) })
		w := f.start(ctx, worker.Config{Grace: 2 * time.Second}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(ctx context.Context, job *worker.Job[struct{}]) error {
				tx, err := f.db.Begin(ctx)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback(context.Background()) }()
				if err := job.Succeed(ctx, tx); err != nil {
					return err
				}
				close(inTx)
				<-end
				return nil
			})
		})
		Eventually(inTx).Should(BeClosed())
		begun := time.Now()
		Expect(w.stop()).To(Succeed())
		Expect(time.Since(begun)).To(BeNumerically("<", 2*time.Second))
	})

	It("writes every result before it ends (W4)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "k", struct{}{}, 2000)
		var ran atomic.Int32
		w := f.start(ctx, worker.Config{}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(context.Context, *worker.Job[struct{}]) error { ran.Add(1); return nil })
		})
		Eventually(ran.Load).Should(BeNumerically(">", 500))
		Expect(w.stop()).To(Succeed())
		Expect(f.number(ctx, succeededJobs)()).To(BeEquivalentTo(ran.Load()))
		Expect(f.number(ctx, untouched)()).To(BeEquivalentTo(2000 - ran.Load()))
	})
})
