package faults

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/test/history"
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
		Expect(w.leftInSessions(ctx, w.url)).To(BeEmpty())
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

	DescribeTable("keeps what a client leaves in a session, which is seen there",
		func(ctx context.Context, left string, statements ...string) {
			w := newWorld(ctx)
			url := w.server.PgBouncer(GinkgoT(), databaseOf(w.url), sessions)
			client := simply(ctx, url)
			DeferCleanup(client.Close)
			for _, sql := range statements {
				_, err := client.Exec(ctx, sql)
				Expect(err).NotTo(HaveOccurred())
			}
			if left == "" {
				Expect(w.leftInSessions(ctx, url)).To(BeEmpty())
				return
			}
			Expect(w.leftInSessions(ctx, url)).To(And(Not(BeEmpty()), HaveEach(left)))
		},
		Entry("a prepared statement", "prepared statement p", "PREPARE p AS SELECT 1"),
		Entry("a cursor", "cursor c", "DECLARE c CURSOR WITH HOLD FOR SELECT 1"),
		Entry("a channel", "channel jobqueue", "LISTEN jobqueue"),
		Entry("an advisory lock", "advisory lock 7", "SELECT pg_advisory_lock(7)"),
		Entry("a temporary table", "temporary table t", "CREATE TEMPORARY TABLE t ()"),
		Entry("a setting", "setting statement_timeout", "SET statement_timeout = '1min'"),
		Entry("a setting of ours that is for a transaction", `setting jobqueue.announced: " 1 "`, "SET jobqueue.announced = ' 1 '"),
		Entry("a setting of ours that says something else", `setting jobqueue.attended: "ada"`, "SET jobqueue.attended = 'ada'"),
		Entry("a setting of ours that nobody knew", `setting jobqueue.client: "ada"`,
			"CREATE FUNCTION jobqueue.f() RETURNS text LANGUAGE sql AS $$ SELECT set_config('jobqueue.client', 'ada', false) $$", "SELECT jobqueue.f()"),
		Entry("another, made by a statement", `setting jobqueue.client: "ada"`,
			"CREATE FUNCTION jobqueue.f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET jobqueue.client = 'ada'; END $$", "SELECT jobqueue.f()"),
		Entry("but for what the server may remember", "",
			"SELECT jobqueue.enqueue('work', 'work')", "SELECT pg_sleep(0.2)", "SELECT jobqueue.enqueue('work', 'work')",
			"SELECT jobqueue.claim('work', gen_random_uuid(), 200)",
			`DO $$ BEGIN
				ASSERT current_setting('jobqueue.memory') <> '' AND current_setting('jobqueue.attended') <> '';
			END $$`),
	)
})

// databaseOf is the name of the database in a URL.
func databaseOf(url string) string {
	cfg, err := pgx.ParseConfig(url)
	Expect(err).NotTo(HaveOccurred())
	return cfg.Database
}

// settled are the settings that PgBouncer sets itself for whoever it gives a session to.
var settled = []string{"application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings"}

// remembered are the settings of our own that functions make, and what may stay of them in
// a session: what docs/pgbouncer.md says.
var remembered = map[string]*regexp.Regexp{
	"jobqueue.memory":    regexp.MustCompile(`^kept$`),
	"jobqueue.attended":  regexp.MustCompile(`^jobqueue ` + queueName + ` [0-9]+$`),
	"jobqueue.announced": regexp.MustCompile(`^$`), // for its transaction only
}

// leftInSessions looks into every session that PgBouncer has, for what a client of
// transaction mode must not leave there.
func (w *world) leftInSessions(ctx context.Context, url string) (left []string) {
	GinkgoHelper()
	names := w.ownSettings(ctx)
	pids := map[int]bool{}
	for range sessions {
		// A transaction each that is left open, so that no session is looked into twice.
		conn := simply(ctx, url)
		defer func() { _ = conn.Close(ctx) }() // nothing depends on how it ends
		_, err := conn.Exec(ctx, "BEGIN")
		Expect(err).NotTo(HaveOccurred())
		var pid int
		Expect(conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)).To(Succeed())
		pids[pid] = true
		left = append(left, rows[string](ctx, conn, `
			SELECT 'prepared statement ' || name FROM pg_prepared_statements
			UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable
			UNION ALL SELECT 'channel ' || c FROM pg_listening_channels() c
			UNION ALL SELECT 'advisory lock ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
			UNION ALL SELECT 'temporary table ' || relname FROM pg_class WHERE relpersistence = 't'
			UNION ALL SELECT 'setting ' || name FROM pg_settings WHERE source = 'session' AND name <> ALL ($1)`, settled)...)
		// PostgreSQL lists no setting that nobody has defined, but shows each by its name.
		for _, name := range names {
			var value string
			Expect(conn.QueryRow(ctx, `SELECT coalesce(current_setting($1, true), '')`, name).Scan(&value)).To(Succeed())
			if allowed := remembered[name]; value != "" && (allowed == nil || !allowed.MatchString(value)) {
				left = append(left, fmt.Sprintf("setting %s: %q", name, value))
			}
		}
	}
	Expect(pids).To(HaveLen(sessions))
	return left
}

// settingMade is how SQL makes a setting: by the function, whatever names it there, or by
// the statement. Others than those with a dot in their names PostgreSQL lists.
var settingMade = regexp.MustCompile(`(?i)\bset_config\s*\(\s*([^,]*?)\s*,|\bset\s+(?:session\s+|local\s+)?(\w+\.\w+)`)

// ownSettings are the names of all settings of our own, found in the functions' text.
func (w *world) ownSettings(ctx context.Context) (names []string) {
	GinkgoHelper()
	for _, source := range rows[string](ctx, w.db, `SELECT prosrc FROM pg_proc WHERE pronamespace = 'jobqueue'::regnamespace`) {
		for _, m := range settingMade.FindAllStringSubmatch(source, -1) {
			name := m[2]
			if name == "" {
				name = strings.Trim(m[1], "'")
				Expect(m[1]).To(Equal("'"+name+"'"), "the name of a setting is to be found here, so it is a literal")
			}
			names = append(names, name)
		}
	}
	Expect(names).To(ContainElements(slices.Collect(maps.Keys(remembered))), "what may stay in sessions, but nobody leaves there")
	return names
}

// simply connects as clients of PgBouncer must that send several statements.
func simply(ctx context.Context, url string) *pgx.Conn {
	GinkgoHelper()
	cfg, err := pgx.ParseConfig(url)
	Expect(err).NotTo(HaveOccurred())
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	return conn
}

// rows are those of a query for one column.
func rows[T any](ctx context.Context, db history.DB, sql string, args ...any) []T {
	GinkgoHelper()
	found, err := db.Query(ctx, sql, args...)
	Expect(err).NotTo(HaveOccurred())
	all, err := pgx.CollectRows(found, pgx.RowTo[T])
	Expect(err).NotTo(HaveOccurred())
	return all
}
