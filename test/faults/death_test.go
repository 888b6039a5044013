package faults

import (
	"context"
	"fmt"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gstruct"

	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// held is how many jobs the victim of a test runs.
const held = 50

var _ = Describe("One of four worker processes", func() {
	It("killed with 50 running jobs: all run again, and none is lost (T2)", func(ctx context.Context) {
		w := newWorld(ctx)
		victim := w.spawn(held)
		ids := w.enqueue(ctx, work{Milliseconds: 20, FirstMilliseconds: 600_000}, held)
		Eventually(w.number(ctx, runningJobs)).Should(Equal(held))
		var others []*process
		for range 3 {
			others = append(others, w.spawn(held))
		}
		for _, p := range others {
			Eventually(p.metric("claims_total", "")).Should(BeNumerically(">", 0))
		}
		w.enqueue(ctx, work{Milliseconds: 5}, 300) // the others have work of their own
		killed := time.Now()
		victim.kill()
		w.drained(ctx)

		report := w.judge(ctx)
		Expect(report.Runs).To(Equal(held+held+300), "every other job ran once")
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
		Expect(took).To(BeNumerically("<", 10*time.Second))
		AddReportEntry("seconds from the kill until the last of its jobs ran again", fmt.Sprintf("%.2f", took.Seconds()))
	})

	It("stopped for longer than its lease: all that it still writes is refused, and counted (T2, W3)", func(ctx context.Context) {
		w := newWorld(ctx)
		frozen := w.spawn(held)
		// Half will have come to their end when it wakes, half are in the midst of it.
		done := w.enqueue(ctx, work{Milliseconds: 20, FirstMilliseconds: 3500}, held/2)
		amidst := w.enqueue(ctx, work{Milliseconds: 20, FirstMilliseconds: 600_000}, held/2)
		Eventually(w.number(ctx, runningJobs)).Should(Equal(held))
		frozen.signal(syscall.SIGSTOP)
		for range 3 {
			w.spawn(held)
		}
		w.drained(ctx)
		before := frozen.journal()
		Expect(before.Told).To(BeEmpty(), "it was stopped before it had a result")
		frozen.signal(syscall.SIGCONT)

		Eventually(frozen.metric("stale_results_total", "")).Should(BeEquivalentTo(held))
		Expect(frozen.metric("completions_total", `"succeeded"`)()).To(BeZero())
		journal := frozen.journal()
		accepted := 0
		for _, t := range journal.Told {
			if t.Outcome != "refused" {
				accepted++
			}
		}
		Expect(accepted).To(BeZero())
		lost := 0
		for _, b := range journal.Began {
			if b.ID >= amidst[0] && b.ID <= amidst[len(amidst)-1] {
				Expect(journal.Cancelled).To(HaveKeyWithValue(b.Token, worker.ErrLeaseLost.Error()))
				lost++
			}
		}
		Expect(lost).To(Equal(len(amidst)))
		Expect(done).To(HaveLen(held - lost))

		// It goes on as a good worker.
		for _, p := range w.workers[1:] {
			p.stop()
			Expect(p.exitCode()).To(BeZero())
		}
		w.enqueue(ctx, work{}, 20)
		w.drained(ctx)
		report := w.judge(ctx)
		Expect(report).To(gstruct.MatchFields(gstruct.IgnoreExtras, gstruct.Fields{
			"Jobs": Equal(held + 20), "Runs": Equal(2*held + 20), "Accepted": Equal(held + 20),
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
