package sampler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgdial"
)

// ApplicationName is what the operator's connections are called in
// pg_stat_activity; samples count them by it.
const ApplicationName = "jobqueue:operator"

// Timeouts of what is done on the connection that works.
const (
	// opTimeout bounds one round of statements from the operator's side, and
	// statementTimeout each statement from the server's side, a little less, so
	// that the server's word on it comes first.
	opTimeout        = 5 * time.Second
	statementTimeout = 4 * time.Second
	connectTimeout   = 5 * time.Second
	// migrateTimeout bounds a migration.
	migrateTimeout = 10 * time.Minute
)

// ErrURL is returned for a connection string that cannot be read. The string is
// not quoted, for it holds a password.
var ErrURL = errors.New("not a PostgreSQL connection string: postgres://user:password@host:5432/database is wanted")

// ParseURL reads a connection string for the operator's use.
func ParseURL(text string) (*pgx.ConnConfig, error) {
	if text == "" {
		return nil, fmt.Errorf("%w, but it is empty", ErrURL)
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, ErrURL
	}
	dropPoolSettings(config)
	config.RuntimeParams["application_name"] = ApplicationName
	config.ConnectTimeout = connectTimeout
	if config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// No named prepared statements: they break behind a pooler in transaction mode.
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	config.DialFunc = pgdial.Dialer(connectTimeout).DialContext
	return config, nil
}

// dropPoolSettings takes out what is meant for a worker's pool, such as
// pool_max_conns: a server does not know these parameters and refuses them.
func dropPoolSettings(config *pgx.ConnConfig) {
	maps.DeleteFunc(config.RuntimeParams, func(name, _ string) bool { return strings.HasPrefix(name, "pool_") })
}

// connect opens a connection within connectTimeout.
func connect(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return pgx.ConnectConfig(ctx, config.Copy())
}

// disconnect closes politely, but does not wait long for a server that is gone.
func disconnect(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the connection is given up either way
}

// bounded runs f in a transaction whose statements the server ends by itself when
// they take too long. The limits hold for this transaction only, so that nothing
// is left behind in a pooler's connection.
func bounded(ctx context.Context, conn *pgx.Conn, f func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		limits := fmt.Sprintf("SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %d",
			statementTimeout.Milliseconds(), statementTimeout.Milliseconds()/2)
		if _, err := tx.Exec(ctx, limits, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("set timeouts: %w", err)
		}
		return f(ctx, tx)
	})
}
