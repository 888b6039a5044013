package faults

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("max_connections used up by another client", func() {
	It("for longer than the lease: workers that lost theirs resume by themselves (W9)", func(ctx context.Context) {
		const slots = 5
		w := newWorld(ctx)
		observer, err := w.db.Acquire(ctx)
		Expect(err).NotTo(HaveOccurred())
		defer observer.Release()
		w.spawn(slots)
		w.spawn(slots)
		w.enqueue(ctx, work{Milliseconds: 5, FirstMilliseconds: 600_000}, 2*slots)
		for _, p := range w.workers {
			Eventually(p.Metric("running", "")).Should(BeEquivalentTo(slots))
		}
		w.enqueue(ctx, work{Milliseconds: 5}, 200)

		hog := &hog{url: w.url}
		DeferCleanup(hog.release)
		Eventually(func(g Gomega) {
			_, err := observer.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'jobqueue:worker:%'`)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(hog.fill(ctx)).To(Succeed())
			// A backend that is just being started, or ended, has a place and is not shown.
			var left, hidden int
			g.Expect(observer.QueryRow(ctx, `SELECT count(*) FILTER (WHERE application_name LIKE 'jobqueue:worker:%'),
				current_setting('max_connections')::int - count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'`).Scan(&left, &hidden)).To(Succeed())
			g.Expect(left).To(BeZero(), "connections of workers")
			g.Expect(hidden).To(BeZero(), "places that nobody is seen to have")
		}).Should(Succeed())
		for _, p := range w.workers {
			Eventually(p.Metric("leases_lost_total", `"clock"`)).Should(BeEquivalentTo(slots))
			Expect(p.Metric("heartbeats_total", `"error"`)()).To(BeNumerically(">", 0))
		}
		hog.release()
		w.drained(ctx)
		report := w.judge(ctx) // which expects that the same processes end in order
		Expect(report.Begun()).To(Equal(2*slots+2*slots+200), "ended by: %v", report.Ended)
		AddReportEntry("connections that the other client held", hog.most)
	})
})

// hog takes all connections that a server has left.
type hog struct {
	url   string
	conns []*pgx.Conn
	most  int
}

const maxHogs = 500

var errNotFull = errors.New("the server takes more connections than any test allows it")

// fill connects until the server refuses.
func (h *hog) fill(ctx context.Context) error {
	for range maxHogs {
		conn, err := pgx.Connect(ctx, h.url)
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "53300" { // too_many_connections
			return nil
		}
		if err != nil {
			return err
		}
		h.conns = append(h.conns, conn)
		h.most = max(h.most, len(h.conns))
	}
	return errNotFull
}

func (h *hog) release() {
	for _, conn := range h.conns {
		_ = conn.Close(context.Background()) // whether politely or not
	}
	h.conns = nil
}
