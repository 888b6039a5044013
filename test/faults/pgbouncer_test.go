package faults

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// sessions is how many connections PgBouncer has to the server, which all clients share.
const sessions = 3

var _ = Describe("PgBouncer in transaction mode", func() {
	BeforeEach(func() {
		if !pgtest.HasPgBouncer() {
			Skip("PgBouncer is not installed; hack/postgres.sh installs it when root")
		}
	})

	It("between all clients and the database: workers drain the queue and leave nothing in its sessions (Q14)", func(ctx context.Context) {
		w := newWorld(ctx)
		direct := w.url
		w.url = w.server.PgBouncer(GinkgoT(), databaseOf(direct), sessions)
		for range 2 {
			w.spawn(10, worker.EnvListen+"=false")
		}
		// What docs/pgbouncer.md says that a client has to set.
		load := w.produce(ctx, w.url+"&default_query_exec_mode=cache_describe", random(0))
		Eventually(w.number(ctx, succeededJobs)).Should(BeNumerically(">", 1000))
		for _, p := range w.workers {
			Eventually(p.Metric("heartbeats_total", `"ok"`)).Should(BeNumerically(">=", 3))
		}
		load.end()
		Expect(load.failed).To(BeNumerically("<=", 1), "but for the one that was under way at the end")
		w.drained(ctx)
		for _, p := range w.workers {
			for _, name := range []string{"completion_errors_total", "leases_lost_total", "stale_results_total"} {
				Expect(p.Metric(name, "")()).To(BeZero(), name)
			}
			Expect(p.Metric("claims_total", `"error"`)()).To(BeZero())
			Expect(p.Metric("heartbeats_total", `"error"`)()).To(BeZero())
			Expect(p.Metric("completions_total", `"retried"`)()).To(BeNumerically(">", 0))
			Expect(p.Metric("completions_total", `"snoozed"`)()).To(BeNumerically(">", 0))
		}
		expectCleanSessions(ctx, w.url)
		w.judge(ctx)
		w.ordersMatch(ctx)
		Expect(w.number(ctx, workerRows)()).To(BeZero())
	})

	// Without that, the test above would show nothing.
	It("does break prepared statements, which clients use by default", func(ctx context.Context) {
		w := newWorld(ctx)
		url := w.server.PgBouncer(GinkgoT(), databaseOf(w.url), sessions)
		pool, err := pgxpool.New(ctx, url)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(pool.Close)
		jobs := equalJobs(work{}, 1)
		_, err = w.order(ctx, pool, jobs)
		Expect(err).NotTo(HaveOccurred())
		// Another client holds the session in which that was prepared.
		other, err := pgx.Connect(ctx, url)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(other.Close)
		_, err = other.Exec(ctx, "BEGIN", pgx.QueryExecModeSimpleProtocol)
		Expect(err).NotTo(HaveOccurred())
		_, err = w.order(ctx, pool, jobs)
		Expect(err).To(MatchError(ContainSubstring("prepared statement")))
	})
})

// databaseOf is the name of the database in a URL.
func databaseOf(url string) string {
	cfg, err := pgx.ParseConfig(url)
	Expect(err).NotTo(HaveOccurred())
	return cfg.Database
}

// expectCleanSessions looks into every session that PgBouncer has: for what a client of
// transaction mode must not leave there.
func expectCleanSessions(ctx context.Context, url string) {
	GinkgoHelper()
	pids := map[int]bool{}
	for range sessions {
		// A transaction each that is left open, so that no session is looked into twice.
		cfg, err := pgx.ParseConfig(url)
		Expect(err).NotTo(HaveOccurred())
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		conn, err := pgx.ConnectConfig(ctx, cfg)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = conn.Close(ctx) }() // nothing depends on how it ends
		_, err = conn.Exec(ctx, "BEGIN")
		Expect(err).NotTo(HaveOccurred())
		var pid, statements, channels, locks, tables int
		var settings string
		Expect(conn.QueryRow(ctx, `SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements),
			(SELECT count(*) FROM pg_listening_channels()),
			(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
			(SELECT count(*) FROM pg_class WHERE relpersistence = 't'),
			(SELECT coalesce(string_agg(name, ' '), '') FROM pg_settings WHERE source = 'session')`).
			Scan(&pid, &statements, &channels, &locks, &tables, &settings)).To(Succeed())
		pids[pid] = true
		Expect([]int{statements, channels, locks, tables}).To(HaveEach(0), "prepared statements, channels, advisory locks, temporary tables")
		for _, name := range strings.Fields(settings) {
			// Those that PgBouncer sets itself for whoever it gives the session to.
			Expect(name).To(BeElementOf("application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings"))
		}
	}
	Expect(pids).To(HaveLen(sessions))
}
