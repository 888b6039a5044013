package faults

import (
	"context"
	"net"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("Connections that fall silent and stay open", func() {
	It("are given up in time: a worker that can connect anew keeps its lease (W3, W9)", func(ctx context.Context) {
		const slots = 5
		w := newWorld(ctx, func(p *queue.Policy) { p.Lease = 5 * time.Second })
		c := newCutter(net.JoinHostPort("127.0.0.1", strconv.Itoa(w.server.Port())), random(0))
		c.harmless.Store(true)
		w.url = c.through(w.url)
		p := w.spawn(slots)
		w.enqueue(ctx, work{Milliseconds: 7000}, slots) // longer than the lease
		Eventually(p.Metric("running", "")).Should(BeEquivalentTo(slots))
		Eventually(p.Metric("heartbeats_total", `"ok"`)).Should(BeNumerically(">", 0))
		Expect(c.silence()).To(BeNumerically(">=", 2), "the listener's and another")
		w.drained(ctx)
		Expect(p.Metric("leases_lost_total", "")()).To(BeZero())
		Expect(p.Metric("heartbeats_total", `"error"`)()).To(BeNumerically(">", 0))
		Expect(w.judge(ctx).Begun()).To(Equal(slots))
	})
})
