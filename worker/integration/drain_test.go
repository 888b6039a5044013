package integration

import (
	"context"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

var _ = Describe("Draining a queue", func() {
	It("runs thousands of jobs of many workers once each (T1, Q1, Q3)", func(ctx context.Context) {
		const jobs, workers = 4000, 4
		f := setUp(ctx)
		f.enqueue(ctx, "effect", struct{}{}, jobs)
		for range workers {
			f.start(ctx, worker.Config{Slots: 8}, func(w *worker.Worker) {
				worker.Handle(w, "effect", func(ctx context.Context, job *worker.Job[struct{}]) error {
					return f.recordEffect(ctx, job, time.Now())
				})
			})
		}
		Eventually(f.number(ctx, succeededJobs), 60*time.Second).Should(Equal(jobs))
		for what, sql := range map[string]string{
			"live":                   liveJobs,
			"dead":                   deadJobs,
			"lost":                   "SELECT count(*) FROM jobqueue.finished j WHERE NOT EXISTS (SELECT FROM demo.effects e WHERE e.job_id = j.id)",
			"unknown":                "SELECT count(*) FROM demo.effects e WHERE NOT EXISTS (SELECT FROM jobqueue.finished j WHERE j.id = e.job_id)",
			"run twice":              "SELECT count(*) - count(DISTINCT job_id) FROM demo.effects",
			"tokens used twice":      "SELECT count(*) - count(DISTINCT token) FROM demo.effects",
			"not the first attempt":  "SELECT count(*) FROM demo.effects WHERE attempt <> 1",
			"owners that differ":     "SELECT count(*) FROM demo.effects e JOIN jobqueue.finished j ON j.id = e.job_id WHERE j.worker_id <> e.worker",
			"two owners at one time": "SELECT count(*) FROM demo.effects a JOIN demo.effects b USING (job_id) WHERE a.token < b.token AND a.begun < b.at AND b.begun < a.at",
		} {
			Expect(f.number(ctx, sql)()).To(BeZero(), what)
		}
		Expect(f.number(ctx, "SELECT count(DISTINCT worker) FROM demo.effects")()).To(Equal(workers))
	})

	It("claims far fewer times than there are jobs", func(ctx context.Context) {
		const jobs = 3000
		f := setUp(ctx)
		f.enqueue(ctx, "noop", struct{}{}, jobs)
		w := f.start(ctx, worker.Config{}, func(w *worker.Worker) { worker.Handle(w, "noop", nothing) })
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(jobs))
		Expect(w.metric("claims_total", "full")() + w.metric("claims_total", "partial")()).To(BeNumerically("<", jobs/20))
		Expect(w.metric("completions_total", "succeeded")()).To(BeEquivalentTo(jobs))
	})

	It("never holds more jobs than slots when handlers are slow (W2)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "slow", struct{}{}, 20)
		release := make(chan struct{})
		var running atomic.Int32
		f.start(ctx, worker.Config{Slots: 3}, func(w *worker.Worker) {
			worker.Handle(w, "slow", func(ctx context.Context, _ *worker.Job[struct{}]) error {
				running.Add(1)
				<-release
				return nil
			})
		})
		Eventually(running.Load).Should(BeEquivalentTo(3))
		Consistently(f.number(ctx, runningJobs), "500ms").Should(Equal(3))
		close(release)
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(20))
	})

	It("claims none ahead while all slots have been busy for a while, however fast they were before (W2)", func(ctx context.Context) {
		f := setUp(ctx)
		var slow atomic.Bool
		gate := make(chan struct{})
		f.start(ctx, worker.Config{Slots: 4}, func(w *worker.Worker) {
			worker.Handle(w, "k", func(context.Context, *worker.Job[struct{}]) error {
				if slow.Load() {
					<-gate
				}
				return nil
			})
		})
		DeferCleanup(func() { close(gate) }) // before the worker's own, which waits for handlers
		f.enqueue(ctx, "k", struct{}{}, 500)
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(500))
		slow.Store(true)
		f.enqueue(ctx, "k", struct{}{}, 4)
		Eventually(f.number(ctx, runningJobs)).Should(Equal(4))
		Consistently(f.number(ctx, runningJobs), "600ms").Should(Equal(4))
		f.enqueue(ctx, "k", struct{}{}, 100)
		Consistently(f.number(ctx, runningJobs), "500ms").Should(Equal(4), "the others are left to other workers")
	})

	It("gives jobs back that wait in memory behind slower ones (W2)", func(ctx context.Context) {
		f := setUp(ctx)
		release := make(chan struct{})
		var blocked atomic.Int32
		f.enqueue(ctx, "fast", struct{}{}, 500)
		w := f.start(ctx, worker.Config{Slots: 2}, func(w *worker.Worker) {
			worker.Handle(w, "fast", nothing)
			worker.Handle(w, "slow", func(context.Context, *worker.Job[struct{}]) error {
				blocked.Add(1)
				<-release
				return nil
			})
		})
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(500))
		// The worker expects fast jobs now, and reaches ahead.
		f.enqueue(ctx, "slow", struct{}{}, 50)
		Eventually(blocked.Load).Should(BeEquivalentTo(2))
		Eventually(w.metric("completions_total", "released")).Should(BeNumerically(">", 0))
		Eventually(f.number(ctx, runningJobs)).Should(Equal(2))
		Expect(f.number(ctx, "SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND attempt <> 0")()).To(BeZero())
		close(release)
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(550))
	})

	It("wakes for a new job long before it would poll, and polls when it cannot listen (Q14)", func(ctx context.Context) {
		f := setUp(ctx)
		ran := make(chan time.Time, 10)
		setup := func(w *worker.Worker) {
			worker.Handle(w, "noop", func(context.Context, *worker.Job[struct{}]) error { ran <- time.Now(); return nil })
		}
		listening := f.start(ctx, worker.Config{PollInterval: time.Minute}, setup)
		Eventually(listening.metric("listening", "")).Should(BeEquivalentTo(1))
		Eventually(listening.metric("claims_total", "empty")).Should(BeNumerically(">", 0))
		f.enqueue(ctx, "noop", struct{}{}, 1)
		Eventually(ran, "5s").Should(Receive())
		Expect(listening.stop()).To(Succeed())

		polling := f.start(ctx, worker.Config{PollInterval: 200 * time.Millisecond, DisableListen: true}, setup)
		Eventually(polling.metric("claims_total", "empty")).Should(BeNumerically(">", 0))
		f.enqueue(ctx, "noop", struct{}{}, 1)
		Eventually(ran, "5s").Should(Receive())
		Expect(polling.metric("listening", "")()).To(BeZero())
		Expect(f.number(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobqueue:worker:work' AND query LIKE 'LISTEN%'")()).To(BeZero())
	})

	It("stays within its pool, the listener included", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "noop", struct{}{}, 2000)
		f.start(ctx, worker.Config{PoolSize: 2}, func(w *worker.Worker) { worker.Handle(w, "noop", nothing) })
		connections := f.number(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobqueue:worker:work'")
		peak := 0
		Eventually(func(g Gomega) {
			n, err := connections()
			g.Expect(err).NotTo(HaveOccurred())
			peak = max(peak, n)
			g.Expect(f.number(ctx, succeededJobs)()).To(Equal(2000))
		}).Should(Succeed())
		Expect(peak).To(Equal(2))
	})

	It("leaves alone the kinds that it does not know (W1)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "unknown", struct{}{}, 5)
		f.enqueue(ctx, "noop", struct{}{}, 5)
		f.start(ctx, worker.Config{}, func(w *worker.Worker) { worker.Handle(w, "noop", nothing) })
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(5))
		Expect(f.number(ctx, "SELECT count(*) FROM jobqueue.jobs WHERE kind = 'unknown' AND state = 'pending' AND attempt = 0")()).To(Equal(5))
	})

	It("takes a new policy without a restart, and stops claiming while suspended (W10, P4)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) { p.Heartbeat = 100 * time.Millisecond })
		limits := make(chan time.Duration, 100)
		w := f.start(ctx, worker.Config{PollInterval: 50 * time.Millisecond, PollMax: 50 * time.Millisecond}, func(w *worker.Worker) {
			worker.Handle(w, "limit", func(ctx context.Context, _ *worker.Job[struct{}]) error {
				deadline, _ := ctx.Deadline()
				limits <- time.Until(deadline)
				return nil
			})
		})
		// A claim that is under way while the policy changes has the former one.
		claimsBegunBeforeAreOver := func() {
			GinkgoHelper()
			before := w.metric("claims_total", "")()
			Eventually(w.metric("claims_total", "")).Should(BeNumerically(">=", before+2))
		}
		f.enqueue(ctx, "limit", struct{}{}, 1)
		Eventually(limits).Should(Receive(BeNumerically("~", time.Minute, 5*time.Second)))

		f.setPolicy(ctx, func(p *queue.Policy) { p.Timeout, p.Generation = time.Hour, 1 })
		claimsBegunBeforeAreOver()
		f.enqueue(ctx, "limit", struct{}{}, 1)
		Eventually(limits).Should(Receive(BeNumerically("~", time.Hour, 5*time.Second)))

		f.setPolicy(ctx, func(p *queue.Policy) { p.Suspended, p.Generation = true, 2 })
		claimsBegunBeforeAreOver()
		f.enqueue(ctx, "limit", struct{}{}, 1)
		Consistently(limits, "500ms").ShouldNot(Receive())

		f.setPolicy(ctx, func(p *queue.Policy) { p.Generation = 3 })
		Eventually(limits).Should(Receive())
	})

	It("ends by itself after its number of jobs, with nothing lost (W8)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "noop", struct{}{}, 500)
		w := f.start(ctx, worker.Config{RecycleJobs: 100}, func(w *worker.Worker) { worker.Handle(w, "noop", nothing) })
		Eventually(w.ended).Should(Receive(BeNil()))
		done, err := f.number(ctx, succeededJobs)()
		Expect(err).NotTo(HaveOccurred())
		Expect(done).To(BeNumerically(">=", 100))
		Expect(f.number(ctx, "SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND attempt = 0")()).To(Equal(500 - done))
		Expect(f.number(ctx, workerRows)()).To(BeZero())
	})
})
