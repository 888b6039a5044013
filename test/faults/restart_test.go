package faults

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

// How long the database is restarted, and how often. `make chaos` sets the first.
const (
	envChaos       = "CHAOS_SECONDS"
	shortChaos     = 10 // seconds
	minRestarts    = 4
	shortRestart   = 2 * time.Second
	longRestart    = 10 * time.Second
	longChaosAbove = 60 * time.Second
)

var _ = Describe("PostgreSQL restarted again and again under load", func() {
	It("fast and immediate in turn: the same workers go on, and nothing is lost or done twice (W9, T3)", func(ctx context.Context) {
		w := newWorld(ctx)
		total := seconds(envChaos, shortChaos)
		every := shortRestart
		if total >= longChaosAbove {
			every = longRestart
		}
		for range 3 {
			w.spawn(10)
		}
		loads := []*producer{w.produce(ctx, w.url, random(0)), w.produce(ctx, w.url, random(1))}
		restarts := 0
		done := 0
		for end := time.Now().Add(total); time.Now().Before(end) || restarts < minRestarts; restarts++ {
			pause(ctx, every)
			mode := pgtest.Fast
			if restarts%2 == 1 {
				mode = pgtest.Immediate
			}
			Expect(w.server.Restart(mode)).To(Succeed())
			// There was work between this restart and the one before.
			before := done
			Eventually(func() (n int, err error) {
				done, err = w.number(ctx, succeededJobs)()
				return done, err
			}).Should(BeNumerically(">", before))
		}
		failed := 0
		for _, load := range loads {
			load.end()
			failed += load.failed
		}
		w.drained(ctx)
		for _, p := range w.workers {
			Consistently(p.Exited, "10ms").ShouldNot(BeClosed())
		}
		report := w.judge(ctx)
		w.ordersMatch(ctx)
		Expect(w.number(ctx, workerRows)()).To(BeZero(), "no row is left of identities that were given up")
		AddReportEntry("restarts", fmt.Sprintf("%d restarts, %d jobs in %d runs, %d transactions of producers failed",
			restarts, report.Jobs, report.Runs, failed))
	})
})
