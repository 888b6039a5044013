package faults

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gstruct"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

const (
	// held is how many jobs the victim of a test runs.
	held = 50
	// warm is how many jobs it has run before, and quick how many it claims together
	// with those: so that the runs in question share rows with others, which have ended
	// well, as they do in a worker that has been at it for a while.
	warm, quick = 100, 10
)

// hold starts a worker and makes it run two halves of held jobs, which are returned.
func (w *world) hold(ctx context.Context, one, other work) (victim *process, ones, others []int64) {
	GinkgoHelper()
	victim = w.spawn(held)
	w.enqueue(ctx, work{}, warm)
	w.drained(ctx)
	ids := w.enqueueAll(ctx, slices.Concat(equalJobs(work{}, quick), equalJobs(one, held/2), equalJobs(other, held/2))...)
	Eventually(w.number(ctx, succeededJobs)).Should(Equal(warm + quick))
	Eventually(victim.Metric("running", "")).Should(BeEquivalentTo(held))
	Expect(w.number(ctx, "SELECT count(*) FROM jobqueue.batches WHERE bit_count(open) > 1 AND bit_count(succeeded) > 0")()).
		To(BeNumerically(">", 0), "rows shared with runs that have ended")
	ids = ids[quick:]
	return victim, ids[:held/2], ids[held/2:]
}

var _ = Describe("One of four worker processes", func() {
	DescribeTable("killed with 50 running jobs: all run again, and none is lost (T2)", func(ctx context.Context, lease, heartbeat time.Duration) {
		w := newWorld(ctx, func(p *queue.Policy) { p.Lease, p.Heartbeat = lease, heartbeat })
		long := work{Milliseconds: 20, FirstMilliseconds: 600_000}
		victim, some, rest := w.hold(ctx, long, long)
		ids := slices.Concat(some, rest)
		var others []*process
		for range 3 {
			others = append(others, w.spawn(held))
		}
		for _, p := range others {
			Eventually(p.Metric("claims_total", "")).Should(BeNumerically(">", 0))
		}
		w.enqueue(ctx, work{Milliseconds: 5}, 300) // the others have work of their own
		killed := time.Now()
		victim.kill()
		w.drained(ctx)

		report := w.judge(ctx)
		// More, if the victim had claimed some of the others' ahead.
		Expect(report.Runs).To(BeNumerically(">=", warm+quick+held+held+300))
		last := killed
		again := 0
		for _, p := range others {
			for _, b := range p.journal().Began {
				if b.ID >= ids[0] && b.ID <= ids[held-1] {
					again++
					last = later(last, b.At)
				}
			}
		}
		Expect(again).To(Equal(held))
		took := last.Sub(killed)
		// The lease, the others' look for dead workers, the second that such jobs wait, a poll.
		Expect(took).To(BeNumerically("<", lease+6*time.Second))
		AddReportEntry("seconds from the kill until the last of its jobs ran again", fmt.Sprintf("%.2f", took.Seconds()))
	},
		Entry("with the shortest lease that a JobQueue may ask for", 4*time.Second, time.Second),
		Entry("with the default lease", queue.DefaultPolicy().Lease, queue.DefaultPolicy().Heartbeat),
	)

	It("stopped for longer than its lease: all that it still writes is refused, and counted (T2, W3)", func(ctx context.Context) {
		w := newWorld(ctx)
		// Half will have come to their end when it wakes, half are in the midst of it.
		// The latter insist on finishing their jobs in transactions of their own.
		frozen, done, amidst := w.hold(ctx, work{Milliseconds: 20, FirstMilliseconds: 3500},
			work{Milliseconds: 20, FirstMilliseconds: 600_000, Insist: true})
		frozen.Signal(syscall.SIGSTOP)
		for range 3 {
			w.spawn(held)
		}
		w.drained(ctx)
		Expect(frozen.journal().Told).To(HaveLen(warm+quick), "it was stopped before it had a result of the others")
		frozen.Signal(syscall.SIGCONT)

		Eventually(frozen.Metric("stale_results_total", "")).Should(BeEquivalentTo(held))
		Expect(frozen.Metric("completions_total", `"succeeded"`)()).To(BeEquivalentTo(warm + quick))
		journal := frozen.journal()
		insisted := 0
		for _, t := range journal.Told[warm+quick:] {
			Expect(t.Outcome).To(Equal("refused"))
			if slices.Contains(amidst, t.ID) {
				insisted++
			} else {
				Expect(done).To(ContainElement(t.ID))
			}
		}
		Expect(insisted).To(Equal(len(amidst)))
		lost := 0
		for _, b := range journal.Began {
			if b.ID >= amidst[0] && b.ID <= amidst[len(amidst)-1] {
				Expect(journal.Cancelled).To(HaveKeyWithValue(b.Token, worker.ErrLeaseLost.Error()))
				lost++
			}
		}
		Expect(lost).To(Equal(len(amidst)))

		// It goes on as a good worker.
		for _, p := range w.workers[1:] {
			p.stop()
			Expect(p.ExitCode()).To(BeZero())
		}
		w.enqueue(ctx, work{}, 20)
		w.drained(ctx)
		report := w.judge(ctx)
		Expect(report.Begun()).To(Equal(warm+quick+2*held+20), "ended by: %v", report.Ended)
		Expect(report).To(gstruct.MatchFields(gstruct.IgnoreExtras, gstruct.Fields{
			"Jobs":     Equal(warm + quick + held + 20),
			"Accepted": Equal(warm + quick + held + 20 + report.Ended["release"]),
			"Refused":  Equal(len(journal.Told) - warm - quick),
		}))
		AddReportEntry("refused by the database", report.Refused)
	})
})

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
