package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

// serverSettings are what differs from PostgreSQL's defaults. The server is durable.
var serverSettings = []string{
	"fsync=on", "synchronous_commit=on", "shared_buffers=512MB", "max_wal_size=4GB", "max_connections=200",
}

// cluster is the one server that all measurements use, one after the other.
type cluster struct {
	server *pgtest.Server
	made   int
}

// database is made for one measurement and dropped after it.
type database struct {
	name, url string
	server    *pgtest.Server
	conn      *pgx.Conn // to the database
	admin     *pgx.Conn // to another one, so that looking at statistics does not count
}

// create makes an empty database.
func (c *cluster) create(ctx context.Context) (*database, error) {
	c.made++
	name := fmt.Sprintf("bench_%d", c.made)
	admin, err := pgx.Connect(ctx, c.server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	d := &database{name: name, url: c.server.URL(name), server: c.server, admin: admin}
	if _, err = admin.Exec(ctx, "CREATE DATABASE "+name); err == nil {
		d.conn, err = pgx.Connect(ctx, d.url)
	}
	// What the bench itself asks is bounded too.
	for _, conn := range []*pgx.Conn{admin, d.conn} {
		if err == nil {
			_, err = conn.Exec(ctx, "SET statement_timeout = '10min'")
		}
	}
	if err != nil {
		d.drop()
		return nil, err
	}
	return d, nil
}

// drop removes the database, whoever is still connected. What is left goes with the
// server.
func (d *database) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if d.conn != nil {
		_ = d.conn.Close(ctx)
	}
	if _, err := d.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+d.name+" WITH (FORCE)"); err != nil {
		logf("dropping %s: %v", d.name, err)
	}
	_ = d.admin.Close(ctx)
}

// settle brings every contender's tables to the same state: vacuumed, with statistics,
// and nothing left to be written that a measurement would pay for.
func (d *database) settle(ctx context.Context) error {
	if _, err := d.conn.Exec(ctx, "VACUUM (ANALYZE)"); err != nil {
		return err
	}
	return d.checkpoint(ctx)
}

func (d *database) checkpoint(ctx context.Context) error {
	_, err := d.admin.Exec(ctx, "CHECKPOINT")
	return err
}

// usage is what the server has done for the database so far.
type usage struct {
	walBytes, commits, buffers int64
}

// usage reads it from another database. Sessions report what they did when they end.
func (d *database) usage(ctx context.Context) (usage, error) {
	var u usage
	err := d.admin.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - '0/0')::bigint, xact_commit, blks_hit + blks_read
		FROM pg_stat_database WHERE datname = $1`, d.name).Scan(&u.walBytes, &u.commits, &u.buffers)
	return u, err
}

func (u usage) since(before usage) usage {
	return usage{u.walBytes - before.walBytes, u.commits - before.commits, u.buffers - before.buffers}
}

// deadTuples is how many rows wait for vacuum.
func (d *database) deadTuples(ctx context.Context) (n int64, err error) {
	err = d.conn.QueryRow(ctx, "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables").Scan(&n)
	return n, err
}
