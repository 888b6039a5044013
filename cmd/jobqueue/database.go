package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/pflag"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// databaseFlags say where the queue is.
type databaseFlags struct {
	url, schema string
}

func (f *databaseFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "database-url", "", "PostgreSQL connection string (default $"+worker.EnvDatabaseURL+")")
	flags.StringVar(&f.schema, "schema", "", "schema of the queue's tables (default $"+worker.EnvSchema+", else "+worker.DefaultSchema+")")
}

func (f *databaseFlags) databaseURL() string {
	if f.url != "" {
		return f.url
	}
	return os.Getenv(worker.EnvDatabaseURL)
}

// client is the queue's client for the schema chosen.
func (f *databaseFlags) client() (*queue.Client, error) {
	schema := f.schema
	if schema == "" {
		schema = os.Getenv(worker.EnvSchema)
	}
	client, err := queue.New(schema)
	if err != nil {
		return nil, usageError("--schema: %w", err)
	}
	return client, nil
}

const connectTimeout = 10 * time.Second

// connect opens one connection under the given application name. No error of it
// quotes the connection string, which may hold a password.
func (f *databaseFlags) connect(ctx context.Context, name string) (*pgx.Conn, error) {
	url := f.databaseURL()
	if url == "" {
		return nil, usageError("no database: set %s or --database-url", worker.EnvDatabaseURL)
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, usageError("the connection string in %s or --database-url cannot be read: "+
			"it should look like postgres://user:password@host:5432/database", worker.EnvDatabaseURL)
	}
	// Settings of a worker's pool, which a server does not know and would refuse.
	maps.DeleteFunc(cfg.RuntimeParams, func(name, _ string) bool { return strings.HasPrefix(name, "pool_") })
	cfg.RuntimeParams["application_name"] = name
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// with connects, calls do, and closes the connection.
func (f *databaseFlags) with(ctx context.Context, name string, do func(*queue.Client, *pgx.Conn) error) error {
	client, err := f.client()
	if err != nil {
		return err
	}
	conn, err := f.connect(ctx, name)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	return do(client, conn)
}

// Names of connections, by which the operator counts them.
const (
	nameCLI    = "jobqueue:cli"
	nameReaper = "jobqueue:reaper"
)
