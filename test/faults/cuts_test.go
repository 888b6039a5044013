package faults

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("Connections cut", func() {
	It("in a request, in a statement, and between commit and answer: nothing is lost or done twice (W4, W9)", func(ctx context.Context) {
		// Cuts at each moment: more when there is more time.
		chaos := seconds(envChaos, 0)
		each := 20 + int(chaos.Seconds())
		w := newWorld(ctx)
		c := newCutter(net.JoinHostPort("127.0.0.1", strconv.Itoa(w.server.Port())), random(0))
		w.url = c.through(w.url)
		for range 3 {
			w.spawn(10)
		}
		load := w.produce(ctx, w.url, random(1))
		for m := range moments {
			Eventually(c.cuts[m].Load).WithTimeout(time.Minute+3*chaos).Should(BeNumerically(">=", each), "cuts at moment %d", m)
		}
		load.end()
		c.harmless.Store(true)
		w.drained(ctx)
		for _, p := range w.workers {
			Expect(p.Metric("completion_errors_total", "")()).To(BeNumerically(">", 0), "it was cut off with results")
		}
		report := w.judge(ctx)
		w.ordersMatch(ctx)
		Expect(load.failed).To(BeNumerically(">", 0))
		unseen := w.unacknowledged(ctx)
		Expect(unseen).To(BeNumerically(">", 0), "some commits had no answer")
		AddReportEntry("cuts", fmt.Sprintf("seed %d: %d in a request, %d in a statement, %d after the commit; %d jobs in %d runs, %d enqueued without an answer",
			GinkgoRandomSeed(), c.cuts[inRequest].Load(), c.cuts[inStatement].Load(), c.cuts[afterCommit].Load(), report.Jobs, report.Runs, unseen))
	})
})

// unacknowledged counts jobs that are there and whose producer was not told so.
func (w *world) unacknowledged(ctx context.Context) int {
	GinkgoHelper()
	n, err := w.number(ctx, "SELECT count(DISTINCT id) FROM history.events WHERE id <> ALL ($1::bigint[])", w.enqueued)()
	Expect(err).NotTo(HaveOccurred())
	return n
}
