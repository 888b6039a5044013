package integration_test

import (
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("migrations (Q19)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })
	connect := func(mode pgx.QueryExecMode) *pgx.Conn {
		cfg, err := pgx.ParseConfig(e.db.URL)
		Expect(err).NotTo(HaveOccurred())
		cfg.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(e.ctx, cfg)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = conn.Close(e.ctx) })
		return conn
	}
	client := func(schema string) *queue.Client {
		c, err := queue.New(schema)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { e.run(`DROP SCHEMA IF EXISTS ` + pgx.Identifier{schema}.Sanitize() + ` CASCADE`) })
		return c
	}

	It("creates a schema, any number of them beside each other, and then has nothing to do", func() {
		for _, schema := range []string{"other", "select", "_9", "a_schema_with_the_longest_name_that_postgresql_takes_63_bytes__"} {
			c := client(schema)
			conn := connect(pgx.QueryExecModeCacheStatement)
			Expect(c.Version(e.ctx, conn)).To(Equal(0))
			_, err := c.Enqueue(e.ctx, e.pool, "q", queue.NewJob{Kind: "k"})
			Expect(err).To(MatchError(queue.ErrSchemaMissing))
			Expect(c.Migrate(e.ctx, conn)).To(Equal(queue.MigrateResult{From: 0, To: queue.LatestVersion}))
			Expect(c.Migrate(e.ctx, conn)).To(Equal(queue.MigrateResult{From: queue.LatestVersion, To: queue.LatestVersion}))
			Expect(c.Version(e.ctx, conn)).To(Equal(queue.LatestVersion))
			Expect(c.SetPolicy(e.ctx, conn, "q", queue.DefaultPolicy())).To(Succeed())
			ids, err := c.Enqueue(e.ctx, conn, "q", queue.NewJob{Kind: "k"})
			Expect(err).NotTo(HaveOccurred())
			runs, err := c.Claim(e.ctx, conn, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 9})
			Expect(err).NotTo(HaveOccurred())
			Expect(runIDs(runs)).To(Equal(ids))
			_, err = c.Heartbeat(e.ctx, conn, uuid.New(), "q", refs(runs...))
			Expect(err).NotTo(HaveOccurred())
			Expect(c.Reap(e.ctx, conn, queue.ReapRequest{Retention: true})).To(Equal(queue.ReapResult{}))
			_, err = c.Sample(e.ctx, conn)
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(e.sample().Pending).To(BeZero(), "schemas share nothing")
	})

	It("works in a schema that was made beforehand, and through a pooler", func() {
		e.run(`CREATE SCHEMA prepared`)
		c := client("prepared")
		Expect(c.Migrate(e.ctx, connect(pgx.QueryExecModeExec))).To(Equal(queue.MigrateResult{To: queue.LatestVersion}))
	})

	It("is harmless by many at once", func() {
		c := client("raced")
		var conns []*pgx.Conn
		for range 6 {
			conns = append(conns, connect(pgx.QueryExecModeSimpleProtocol))
		}
		var wg sync.WaitGroup
		for _, conn := range conns {
			wg.Go(func() {
				defer GinkgoRecover()
				res, err := c.Migrate(e.ctx, conn)
				Expect(err).NotTo(HaveOccurred())
				Expect(res.To).To(Equal(queue.LatestVersion))
			})
		}
		wg.Wait()
		Expect(query[int](e, `SELECT count(*) FROM raced.schema_migrations`)).To(Equal(queue.LatestVersion))
	})

	It("refuses a schema newer than itself and changes nothing", func() {
		c := client("newer")
		conn := connect(pgx.QueryExecModeCacheStatement)
		_, err := c.Migrate(e.ctx, conn)
		Expect(err).NotTo(HaveOccurred())
		e.exec(`INSERT INTO newer.schema_migrations (version) VALUES (999)`)
		_, err = c.Migrate(e.ctx, conn)
		Expect(err).To(MatchError(queue.ErrSchemaTooNew))
		Expect(err).To(MatchError(ContainSubstring("version 999")))
	})

	It("is bound to nothing that the session's search_path puts before the server's own (Q19)", func() {
		DeferCleanup(func() { e.run(`DROP SCHEMA planted CASCADE; DROP ROLE IF EXISTS planted_producer`) })
		e.run(`CREATE ROLE planted_producer; CREATE SCHEMA planted;
			CREATE FUNCTION planted.caught(what text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called %', what; END $$;
			CREATE FUNCTION planted.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT planted.caught('clock_timestamp')::timestamptz $$;
			CREATE FUNCTION planted.to_regclass(text) RETURNS regclass LANGUAGE sql AS $$ SELECT planted.caught('to_regclass')::regclass $$;
			CREATE FUNCTION planted.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT planted.caught('current_setting') $$;
			CREATE FUNCTION planted.pg_advisory_xact_lock(bigint) RETURNS text LANGUAGE sql AS $$ SELECT planted.caught('pg_advisory_xact_lock') $$;
			CREATE FUNCTION planted.format(text, text, name) RETURNS text LANGUAGE sql AS $$ SELECT planted.caught('format') $$;
			CREATE FUNCTION planted.eq(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT planted.caught('=')::boolean $$;
			CREATE OPERATOR planted.= (LEFTARG = text, RIGHTARG = text, FUNCTION = planted.eq)`)
		conn := connect(pgx.QueryExecModeExec)
		_, err := conn.Exec(e.ctx, `SET search_path = planted, pg_catalog`)
		Expect(err).NotTo(HaveOccurred())
		_, err = conn.Exec(e.ctx, `SELECT clock_timestamp()`)
		Expect(err).To(MatchError(ContainSubstring("called clock_timestamp")), "what was planted is found, or this proves nothing")

		c := client("guarded")
		Expect(c.Migrate(e.ctx, conn)).To(Equal(queue.MigrateResult{To: queue.LatestVersion}))
		_, err = conn.Exec(e.ctx, `SELECT guarded.grant_access('planted_producer', 'all')`)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.SetPolicy(e.ctx, conn, "q", queue.DefaultPolicy())).To(Succeed())
		_, err = c.Enqueue(e.ctx, conn, "q", queue.NewJob{Kind: "k"})
		Expect(err).NotTo(HaveOccurred())
		bound := query[[]string](e, `
			SELECT coalesce(array_agg(pg_describe_object(d.classid, d.objid, d.objsubid)), '{}') FROM pg_depend d
			WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid IN (SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'planted'::regnamespace)
			   OR d.refclassid = 'pg_operator'::regclass AND d.refobjid IN (SELECT o.oid FROM pg_operator o WHERE o.oprnamespace = 'planted'::regnamespace)`)
		Expect(bound).To(ConsistOf("operator planted.=(text,text)"), "its own function's")
		var path string
		Expect(conn.QueryRow(e.ctx, `SHOW search_path`).Scan(&path)).To(Succeed())
		Expect(path).To(Equal("planted, pg_catalog"), "the session keeps its own")
	})

	It("describes every public function in the database itself, and keeps the rest private", func() {
		undescribed := query[[]string](e, `
			SELECT coalesce(array_agg(p.proname::text), '{}') FROM pg_proc p
			WHERE p.pronamespace = 'jobqueue'::regnamespace AND p.prosecdef AND obj_description(p.oid) IS NULL`)
		Expect(undescribed).To(BeEmpty())
		unpinned := query[[]string](e, `
			SELECT coalesce(array_agg(p.proname::text), '{}') FROM pg_proc p
			WHERE p.pronamespace = 'jobqueue'::regnamespace AND (p.prosecdef OR obj_description(p.oid) IS NOT NULL)
			  AND NOT coalesce(array_to_string(p.proconfig, ',') LIKE '%search_path=pg_catalog, pg_temp%', false)`)
		Expect(unpinned).To(BeEmpty(), "a function with its owner's rights must not look names up where the caller says")
		open := query[[]string](e, `
			SELECT coalesce(array_agg(p.proname::text), '{}') FROM pg_proc p
			WHERE p.pronamespace = 'jobqueue'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')`)
		Expect(open).To(BeEmpty())
	})
})

var _ = Describe("the server's troubles (T3)", Serial, func() {
	It("loses nothing when it crashes and comes back", func() {
		e := newEnv(nil)
		worker := uuid.New()
		ids := e.enqueue(20)
		runs := e.claim(worker, 10)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[:5]...))).To(HaveLen(5))
		Expect(pgtest.Shared().Restart(pgtest.Immediate)).To(Succeed())
		Eventually(func() error { return e.pool.Ping(e.ctx) }).Should(Succeed())

		Eventually(func() ([]int64, error) { return e.c.Succeed(e.ctx, e.pool, worker, refs(runs[5:]...)) }).Should(HaveLen(5))
		rest := e.claim(worker, 100)
		Expect(runIDs(rest)).To(Equal(ids[10:]))
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(rest...))).To(HaveLen(10))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.finished`)).To(Equal(20))
		Expect(e.sample().Succeeded).To(BeEquivalentTo(20))

		Expect(pgtest.Shared().Halt(pgtest.Fast)).To(Succeed())
		_, err := e.c.Sample(e.ctx, e.pool)
		Expect(err).To(HaveOccurred(), "no data is an error, not zero")
		Expect(pgtest.Shared().Resume()).To(Succeed())
		Eventually(func() error { _, err := e.c.Sample(e.ctx, e.pool); return err }).WithTimeout(time.Minute).Should(Succeed())
	})
})
