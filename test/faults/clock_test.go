package faults

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

var _ = Describe("The database's clock", func() {
	// Go programs do not ask libc for the time, so this shifts the server's alone.
	DescribeTable("off against the workers': leases hold as long as they should, and no longer (Q5)",
		func(ctx context.Context, offset string, want time.Duration) {
			libraries, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
			Expect(err).NotTo(HaveOccurred())
			if len(libraries) == 0 {
				Skip("libfaketime is not installed; hack/postgres.sh installs it when root")
			}
			server, err := pgtest.StartWithEnv([]string{"LD_PRELOAD=" + libraries[0], "FAKETIME=" + offset, "FAKETIME_DONT_FAKE_MONOTONIC=1"})
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(server.Stop)
			Expect(server.Template(template, prepare)).To(Succeed())
			w := newWorldOn(ctx, server.DatabaseFrom(GinkgoT(), template))
			var now time.Time
			Expect(w.db.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)).To(Succeed())
			Expect(time.Until(now)).To(BeNumerically("~", want, time.Minute))

			const few = 5
			victim := w.spawn(few)
			w.enqueue(ctx, work{Milliseconds: 20, FirstMilliseconds: 600_000}, few)
			Eventually(victim.Metric("running", "")).Should(BeEquivalentTo(few))
			w.spawn(4 * few)
			w.enqueue(ctx, work{Milliseconds: 5000}, few) // longer than the lease
			w.enqueue(ctx, work{Milliseconds: 5}, 100)
			w.enqueue(ctx, work{Failures: 1}, 20)
			w.enqueue(ctx, work{SnoozeMilliseconds: 500}, 20)
			killed := time.Now()
			victim.kill()
			w.drained(ctx)
			took := time.Since(killed)

			report := w.judge(ctx)
			Expect(report.Begun()).To(Equal(2*few+few+100+2*20+2*20), "the same runs as under one clock; ended by: %v", report.Ended)
			Expect(report.Refused).To(BeZero())
			Expect(took).To(BeNumerically("<", 15*time.Second))
			AddReportEntry("seconds until the killed worker's jobs were done", fmt.Sprintf("%.2f", took.Seconds()))
		},
		Entry("an hour ahead", "+1h", time.Hour),
		Entry("an hour behind", "-1h", -time.Hour),
	)
})
