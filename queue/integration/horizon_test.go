package integration_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// horizonEnv is a migrated database on a server where nothing else happens.
type horizonEnv struct {
	ctx  context.Context
	db   *pgtest.DB
	conn *pgx.Conn
	c    *queue.Client
}

// open connects to a database of the server, this one if none is named.
func (e *horizonEnv) open(edit func(*pgx.ConnConfig)) *pgx.Conn {
	GinkgoHelper()
	cfg, err := pgx.ParseConfig(e.db.URL)
	Expect(err).NotTo(HaveOccurred())
	if edit != nil {
		edit(cfg)
	}
	conn, err := pgx.ConnectConfig(e.ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = conn.Close(e.ctx) })
	return conn
}

func (e *horizonEnv) exec(conn *pgx.Conn, statements ...string) {
	GinkgoHelper()
	for _, sql := range statements {
		_, err := conn.Exec(e.ctx, sql, pgx.QueryExecModeSimpleProtocol)
		Expect(err).NotTo(HaveOccurred(), sql)
	}
}

func (e *horizonEnv) holder() *queue.HorizonHolder {
	GinkgoHelper()
	h, err := e.c.HorizonHolder(e.ctx, e.conn)
	Expect(err).NotTo(HaveOccurred())
	return h
}

// leaveDead leaves a page of dead rows in a table, as claims do.
func (e *horizonEnv) leaveDead() {
	GinkgoHelper()
	e.exec(e.conn, `DROP TABLE IF EXISTS dead`, `CREATE TABLE dead (n int) WITH (autovacuum_enabled = off)`,
		`INSERT INTO dead SELECT generate_series(1, 100)`, `DELETE FROM dead`)
}

// removable reports whether PostgreSQL can remove them.
func (e *horizonEnv) removable() bool {
	GinkgoHelper()
	e.exec(e.conn, `VACUUM (TRUNCATE, INDEX_CLEANUP off) dead`)
	var size int64
	Expect(e.conn.QueryRow(e.ctx, `SELECT pg_relation_size('dead')`).Scan(&size)).To(Succeed())
	return size == 0
}

// held checks against PostgreSQL that dead rows cannot be removed, and returns who is named for it.
func (e *horizonEnv) held() queue.HorizonHolder {
	GinkgoHelper()
	e.leaveDead()
	Expect(e.removable()).To(BeFalse(), "the horizon is held")
	h := e.holder()
	Expect(h).NotTo(BeNil())
	Expect(h.XminAge).To(BeNumerically(">", 0))
	return *h
}

func (e *horizonEnv) free() {
	GinkgoHelper()
	e.leaveDead()
	Expect(e.removable()).To(BeTrue())
	Expect(e.holder()).To(BeNil())
}

// walsender opens a replication connection, "true" for a standby's and "database"
// for logical replication.
func (e *horizonEnv) walsender(replication, application string) *pgconn.PgConn {
	GinkgoHelper()
	cfg, err := pgconn.ParseConfig(e.db.URL)
	Expect(err).NotTo(HaveOccurred())
	cfg.RuntimeParams["replication"], cfg.RuntimeParams["application_name"] = replication, application
	conn, err := pgconn.ConnectConfig(e.ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = conn.Close(e.ctx) })
	return conn
}

// standby speaks to the server as a standby with hot_standby_feedback does, which
// needs the transaction xmin.
func (e *horizonEnv) standby(slot string, xmin uint32) *pgconn.PgConn {
	GinkgoHelper()
	conn := e.walsender("true", "replica1")
	var at string
	Expect(e.conn.QueryRow(e.ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&at)).To(Succeed())
	if slot != "" {
		slot = "SLOT " + slot + " "
	}
	conn.Frontend().Send(&pgproto3.Query{String: "START_REPLICATION " + slot + "PHYSICAL " + at})
	feedback := []byte{'h'}
	feedback = binary.BigEndian.AppendUint64(feedback, 0) // when it was sent
	feedback = binary.BigEndian.AppendUint32(feedback, xmin)
	feedback = binary.BigEndian.AppendUint32(feedback, 0) // its epoch
	feedback = binary.BigEndian.AppendUint64(feedback, 0) // catalog_xmin and its epoch
	conn.Frontend().Send(&pgproto3.CopyData{Data: feedback})
	Expect(conn.Frontend().Flush()).To(Succeed())
	return conn
}

// nextXid is the number that the next transaction gets.
func (e *horizonEnv) nextXid() (xid uint32) {
	GinkgoHelper()
	Expect(e.conn.QueryRow(e.ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&xid)).To(Succeed())
	return xid
}

func named(name string) func(*pgx.ConnConfig) {
	return func(cfg *pgx.ConnConfig) { cfg.RuntimeParams["application_name"] = name }
}

var _ = Describe("the holder of the horizon (Q16, O1)", Ordered, func() {
	var server *pgtest.Server
	var e *horizonEnv
	BeforeAll(func() {
		var err error
		server, err = pgtest.Start("max_prepared_transactions=4", "wal_level=logical", "autovacuum=off")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(server.Stop)
	})
	BeforeEach(func() {
		e = &horizonEnv{ctx: context.Background(), db: server.DatabaseFrom(GinkgoT(), "template1"), c: newClient()}
		e.conn = e.open(nil)
		_, err := e.c.Migrate(e.ctx, e.conn)
		Expect(err).NotTo(HaveOccurred())
	})

	It("is nobody while nobody holds it, and a transaction without a snapshot does not", func() {
		idle := e.open(nil)
		e.exec(idle, `BEGIN`, `SELECT 1`)
		e.free()
		s, err := e.c.Sample(e.ctx, e.conn)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Horizon).To(BeNil())
	})

	It("is a REPEATABLE READ session, with pid, application, user, state and age", func() {
		reader := e.open(named("report"))
		e.exec(reader, `BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT 1`)
		var started time.Time
		Expect(reader.QueryRow(e.ctx, `SELECT now()`).Scan(&started)).To(Succeed())
		h := e.held()
		Expect(h.Age).To(And(BeNumerically(">", 0), BeNumerically("<", time.Minute)))
		Expect(h.Started).To(BeTemporally("==", started))
		Expect(h.Age).To(BeNumerically("~", time.Since(started), 2*time.Second))
		age := h.Age
		xmin := h.Xmin
		h.Started, h.Age, h.Xmin, h.XminAge = time.Time{}, 0, 0, 0
		Expect(h).To(Equal(queue.HorizonHolder{
			Kind: queue.HolderSession, Database: e.db.Name, PID: int(reader.PgConn().PID()), Application: "report", User: "postgres", State: "idle in transaction",
		}))

		By("its own look does not count, nor does it in a sample, which shows the same")
		later, err := e.c.HorizonHolder(e.ctx, reader)
		Expect(err).NotTo(HaveOccurred())
		Expect(later).To(BeNil())
		s, err := e.c.Sample(e.ctx, e.conn)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Horizon.PID).To(Equal(h.PID))
		Expect(s.Horizon.Xmin).To(Equal(xmin))
		Expect(s.Horizon.Age).To(BeNumerically(">", age))

		e.exec(reader, `COMMIT`)
		e.free()
	})

	It("is a session that has written and does nothing, rather than those whose snapshots inherit its transaction", func() {
		older := e.open(named("older")) // its transaction is older, its snapshot is not
		e.exec(older, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
		writer := e.open(named("writer"))
		e.exec(writer, `BEGIN`, `SELECT pg_current_xact_id()`)
		e.exec(older, `SELECT 1`)
		h := e.held()
		Expect(h.Application).To(Equal("writer"))
		Expect(h.State).To(Equal("idle in transaction"))
		e.exec(writer, `ROLLBACK`)
		Expect(e.held().Application).To(Equal("older"))
		e.exec(older, `ROLLBACK`)
		e.free()
	})

	It("is a prepared transaction", func() {
		conn := e.open(nil)
		e.exec(conn, `BEGIN`, `SELECT pg_current_xact_id()`, `PREPARE TRANSACTION 'it''s "left"'`)
		h := e.held()
		Expect(h.Age).To(BeNumerically(">", 0))
		h.Started, h.Age, h.Xmin, h.XminAge = time.Time{}, 0, 0, 0
		Expect(h).To(Equal(queue.HorizonHolder{
			Kind: queue.HolderPrepared, Name: `it's "left"`, Database: e.db.Name, User: "postgres", State: "prepared",
		}))
		e.exec(conn, `ROLLBACK PREPARED 'it''s "left"'`)
		e.free()
	})

	It("is a replication slot, used or not, and its walsender does not count twice", func() {
		e.exec(e.conn, `SELECT pg_create_physical_replication_slot('replica1', true)`)
		e.free()
		xmin := e.nextXid()
		conn := e.standby("replica1", xmin)
		Eventually(e.holder).ShouldNot(BeNil())
		h := e.held()
		h.XminAge = 0
		Expect(h).To(Equal(queue.HorizonHolder{
			Kind: queue.HolderSlot, Name: "replica1", PID: int(conn.PID()), Application: "replica1", User: "postgres", State: "active", Xmin: xmin,
		}))
		Expect(conn.Close(e.ctx)).To(Succeed())
		Eventually(func() string { return e.holder().State }).Should(Equal("inactive"))
		h = e.held()
		h.XminAge = 0
		Expect(h).To(Equal(queue.HorizonHolder{Kind: queue.HolderSlot, Name: "replica1", State: "inactive", Xmin: xmin}))
		e.exec(e.conn, `SELECT pg_drop_replication_slot('replica1')`)
		e.free()
	})

	It("is a standby without a slot", func() {
		xmin := e.nextXid()
		conn := e.standby("", xmin)
		Eventually(e.holder).ShouldNot(BeNil())
		h := e.held()
		h.XminAge, h.State = 0, "" // it comes to stream, sooner or later
		Expect(h).To(Equal(queue.HorizonHolder{
			Kind: queue.HolderStandby, PID: int(conn.PID()), Application: "replica1", User: "postgres", Xmin: xmin,
		}))
		Expect(conn.Close(e.ctx)).To(Succeed())
		Eventually(e.holder).Should(BeNil())
		e.free()
	})

	It("is not a logical slot, which needs old rows of catalogs only", func() {
		e.exec(e.conn, `SELECT pg_create_logical_replication_slot('changes', 'test_decoding')`)
		DeferCleanup(func() { e.exec(e.conn, `SELECT pg_drop_replication_slot('changes')`) })
		e.free()
	})

	It("is the walsender that has exported a snapshot for a copy, but not one that decodes", func() {
		conn := e.walsender("database", "subscriber")
		Expect(conn.Exec(e.ctx, `CREATE_REPLICATION_SLOT copied TEMPORARY LOGICAL test_decoding EXPORT_SNAPSHOT`).Close()).To(Succeed())
		h := e.held()
		Expect(h.Kind).To(Equal(queue.HolderSession))
		Expect(h.PID).To(Equal(int(conn.PID())))
		Expect(h.Application).To(Equal("subscriber"))
		conn.Frontend().Send(&pgproto3.Query{String: "START_REPLICATION SLOT copied LOGICAL 0/0"})
		Expect(conn.Frontend().Flush()).To(Succeed())
		Eventually(func() (state string, err error) {
			err = e.conn.QueryRow(e.ctx, `SELECT state FROM pg_stat_replication WHERE pid = $1`, conn.PID()).Scan(&state)
			return state, err
		}).Should(Equal("streaming"))
		e.free()
	})

	It("is a session of another database once it has written, and not for its snapshots", func() {
		other := server.DatabaseFrom(GinkgoT(), "template1")
		elsewhere := e.open(func(cfg *pgx.ConnConfig) { cfg.Database = other.Name; named("elsewhere")(cfg) })
		e.exec(elsewhere, `BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT 1`)
		e.free()
		e.exec(elsewhere, `SELECT pg_current_xact_id()`)

		// What is deleted now is not even visible to this snapshot, yet must stay: the
		// snapshot has inherited the other database's transaction.
		e.leaveDead()
		reader := e.open(nil)
		e.exec(reader, `BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT 1`)
		Expect(e.removable()).To(BeFalse())
		h := e.holder()
		Expect(h.Application).To(Equal("elsewhere"))
		Expect(h.Database).To(Equal(other.Name))
		e.exec(reader, `ROLLBACK`)
		e.exec(elsewhere, `ROLLBACK`)
		Expect(e.removable()).To(BeTrue())
		Expect(e.holder()).To(BeNil())
	})

	It("is not a session that vacuums", func() {
		vacuum := e.open(named("vacuum"))
		e.exec(vacuum, `CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)`, `SET vacuum_cost_limit = 1`, `SET vacuum_cost_delay = '10ms'`)
		ended := make(chan error, 1)
		go func() {
			_, err := vacuum.Exec(e.ctx, `VACUUM large`)
			ended <- err
		}()
		pid := vacuum.PgConn().PID()
		Eventually(func() (n int, err error) {
			err = e.conn.QueryRow(e.ctx, `SELECT count(*) FROM pg_stat_progress_vacuum JOIN pg_stat_activity USING (pid)
				WHERE pid = $1 AND backend_xmin IS NOT NULL`, pid).Scan(&n)
			return n, err
		}).Should(Equal(1))
		e.free()
		e.exec(e.conn, `SELECT pg_cancel_backend(pid) FROM pg_stat_progress_vacuum`)
		Eventually(ended).Should(Receive(MatchError(ContainSubstring("canceling statement"))))
	})

	It("names the session of another role to an owner who may not see its state, and says so", func() {
		e.exec(e.conn, `CREATE ROLE plain LOGIN; CREATE ROLE caller LOGIN; CREATE ROLE ada LOGIN`,
			`GRANT CREATE ON DATABASE `+pgx.Identifier{e.db.Name}.Sanitize()+` TO plain`)
		DeferCleanup(func() {
			e.exec(e.conn, `DROP SCHEMA IF EXISTS plain CASCADE; DROP OWNED BY plain, caller, ada; DROP ROLE plain, caller, ada`)
		})
		as := func(role string) *pgx.Conn { return e.open(func(cfg *pgx.ConnConfig) { cfg.User = role }) }
		owner, caller, ada := as("plain"), as("caller"), e.open(func(cfg *pgx.ConnConfig) { cfg.User = "ada"; named("report")(cfg) })
		DeferCleanup(func() {
			for _, conn := range []*pgx.Conn{owner, caller, ada} {
				_ = conn.Close(e.ctx)
			}
		})
		c, err := queue.New("plain")
		Expect(err).NotTo(HaveOccurred())
		_, err = c.Migrate(e.ctx, owner)
		Expect(err).NotTo(HaveOccurred())
		_, err = c.HorizonHolder(e.ctx, caller)
		Expect(err).To(MatchError(ContainSubstring("permission denied")))
		e.exec(owner, `SELECT plain.grant_access('caller', 'operator')`)

		e.exec(ada, `BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT 1`)
		e.leaveDead()
		h, err := c.HorizonHolder(e.ctx, caller)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.XminAge).To(BeNumerically(">", 0))
		h.Xmin, h.XminAge = 0, 0
		Expect(*h).To(Equal(queue.HorizonHolder{
			Kind: queue.HolderSession, Database: e.db.Name, PID: int(ada.PgConn().PID()), Application: "report", User: "ada", Hidden: true,
		}))
		e.exec(e.conn, `GRANT pg_read_all_stats TO plain`)
		h, err = c.HorizonHolder(e.ctx, caller)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Hidden).To(BeFalse())
		Expect(h.State).To(Equal("idle in transaction"))
		Expect(h.Age).To(BeNumerically(">", 0))
	})

	It("is found on a standby as well, where samples work too", func() {
		server, err := pgtest.Start()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(server.Stop)
		e.db = &pgtest.DB{URL: server.URL("postgres"), Name: "postgres", Server: server}
		_, err = e.c.Migrate(e.ctx, e.open(nil))
		Expect(err).NotTo(HaveOccurred())
		Expect(server.Halt(pgtest.Fast)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(server.SocketDir(), "data", "standby.signal"), nil, 0o644)).To(Succeed())
		Expect(server.Resume()).To(Succeed())
		reader := e.open(named("report"))
		e.exec(reader, `BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT 1`)
		s, err := e.c.Sample(e.ctx, e.open(nil))
		Expect(err).NotTo(HaveOccurred())
		Expect(s.InRecovery).To(BeTrue())
		Expect(s.Horizon).NotTo(BeNil())
		Expect(s.Horizon.Application).To(Equal("report"))
	})
})
