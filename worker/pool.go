package worker

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgdial"
)

const (
	// connectTimeout bounds one try to connect, unless the connection string says
	// otherwise.
	connectTimeout = 5 * time.Second
	// A connection that was idle for pingAfter is pinged before use, for pingTimeout. One
	// that a firewall has forgotten does not answer; there must be time for another. An
	// idle worker polls more often than that, and is spared the ping.
	pingAfter   = 5 * time.Second
	pingTimeout = time.Second
	// farewell is how long a connection that was given up, its statement cancelled, may
	// keep its place in the pool until the server has hung up. pgx would wait 15 s.
	farewell = 500 * time.Millisecond
	// maxNameBytes is PostgreSQL's limit for application_name.
	maxNameBytes = 63
)

// sessionSettings are those of a worker's sessions. A role may have another isolation by
// default, at which claims and results would fail all the time because of each other. And a
// claim whose answer is larger than the sockets' buffers is open until it has been read: of
// a process that is frozen or cut off it would keep jobs locked, under no lease, so the server
// is to give such a connection up, unless the role has a limit of its own. (It shows 0 for
// Unix sockets, whatever is set.)
const sessionSettings = `SET default_transaction_isolation = 'read committed';
	SELECT pg_catalog.set_config('tcp_user_timeout', '10s', false) WHERE pg_catalog.current_setting('tcp_user_timeout') = '0'`

// ApplicationName is the application_name of a worker's connections: by it the
// operator tells a queue's connections from others.
func ApplicationName(queueName string) string {
	return cutBytes("jobqueue:worker:"+queueName, maxNameBytes)
}

func cutBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// NewPool makes the pool of a worker process: at most cfg.PoolSize connections,
// opened as they are needed, and not to a server that is read-only. It does not connect.
// Transactions are READ COMMITTED unless they say otherwise, whatever the role's default,
// and the server gives a connection up after ten seconds without a sign that what it sent
// has been read. With cfg.DisableListen, which stands for a pooler in transaction mode,
// neither that nor a prepared statement is left behind on a connection.
//
// The error of a connection string that cannot be read does not quote it.
func NewPool(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig(cfg.DatabaseURL)
	if err != nil || cfg.DatabaseURL == "" {
		return nil, fmt.Errorf("worker: configuration: %w", &ConfigError{
			Field: EnvDatabaseURL, Allowed: "a PostgreSQL connection string, such as postgres://user:password@host:5432/database",
		})
	}
	pc.MaxConns = int32(cfg.PoolSize)
	pc.MinConns = 0
	pc.ConnConfig.RuntimeParams["application_name"] = ApplicationName(cfg.Queue)
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = connectTimeout
	}
	pc.ConnConfig.DialFunc = pgdial.Dialer(pc.ConnConfig.ConnectTimeout).DialContext
	pc.PingTimeout = pingTimeout
	pc.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	pc.BeforeClose = hangUp
	if pc.ConnConfig.ValidateConnect == nil {
		// A standby that is met while the database's name moves to another server would
		// answer, and refuse, every statement for as long as the connection lives.
		pc.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if !cfg.DisableListen {
		// Through a pooler these would be left behind.
		pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, sessionSettings)
			return err
		}
	}
	if cfg.DisableListen && pc.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("worker: make the pool: %w", err)
	}
	return pool, nil
}

// hangUp ends the cleaning up of a closing connection after a while, so that silent
// connections do not use up the pool, and with it the lease.
func hangUp(conn *pgx.Conn) {
	done, socket := conn.PgConn().CleanupDone(), conn.PgConn().Conn()
	go func() {
		timer := time.NewTimer(farewell)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			_ = socket.Close() // what it would say is of no interest
		}
	}()
}
