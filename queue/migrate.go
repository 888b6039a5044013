package queue

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// LatestVersion is the schema version that this package makes and speaks.
const LatestVersion = 1

// The files of one version share its number, NNNN_*.sql, and run in order of
// their names in one transaction.
//
//go:embed migrations/*.sql
var migrationFiles embed.FS

const (
	// migrateLockTimeout bounds each wait for a lock, so that a migration that
	// is blocked by a long transaction does not block everyone behind it.
	migrateLockTimeout = 5 * time.Second
	migrateTries       = 24
)

// MigrateResult is the version before and after; From is the same as To when nothing
// was left to do.
type MigrateResult struct{ From, To int }

// Migrate brings the schema to LatestVersion, creating it when it is missing.
// Each version is one transaction, and takes an advisory lock on the schema's
// name, so that of two migrators at once one does the work and the other finds
// it done. A lock that cannot be had within 5 seconds is tried again for about
// two minutes.
//
// conn must not be in a transaction; a transaction-mode pooler may be between.
// The role becomes the owner of what is created, and needs CREATE on the
// database only when the schema does not exist yet. A schema newer than this
// package is left as it is: ErrSchemaTooNew.
func (c *Client) Migrate(ctx context.Context, conn *pgx.Conn) (MigrateResult, error) {
	versions, err := c.migrations()
	if err != nil {
		return MigrateResult{}, wrap("migrate", err)
	}
	from, err := c.Version(ctx, conn)
	if err != nil {
		return MigrateResult{}, err
	}
	res := MigrateResult{From: from, To: from}
	if from > LatestVersion {
		return res, wrap("migrate", tooNew(from))
	}
	if err := supported(ctx, conn); err != nil {
		return res, wrap("migrate", err)
	}
	for _, m := range versions {
		if m.version <= from {
			continue
		}
		applied, err := c.applyWithRetry(ctx, conn, m)
		if err != nil {
			return res, wrap(fmt.Sprintf("migrate to version %d", m.version), err)
		}
		res.To = m.version
		if !applied { // another migrator did
			res.From = m.version
		}
	}
	return res, nil
}

// Version returns the schema's version, or 0 when the schema is missing or has
// never been migrated.
func (c *Client) Version(ctx context.Context, db DB) (int, error) {
	var exists bool
	err := db.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1::text) IS NOT NULL", c.quoted+".schema_migrations").Scan(&exists)
	if err != nil || !exists {
		return 0, wrap("version", err)
	}
	var version int
	err = db.QueryRow(ctx, "SELECT coalesce(pg_catalog.max(version), 0) FROM "+c.quoted+".schema_migrations").Scan(&version)
	return version, wrap("version", err)
}

// minServer is the oldest PostgreSQL that has what the schema uses.
const minServer = 14

func supported(ctx context.Context, db DB) error {
	var server int
	var encoding string
	err := db.QueryRow(ctx, "SELECT pg_catalog.current_setting('server_version_num')::integer, pg_catalog.current_setting('server_encoding')").
		Scan(&server, &encoding)
	if err != nil {
		return err
	}
	return supportedServer(server, encoding)
}

// supportedServer also wants UTF-8: a database in another encoding would take what Go
// sends for something else than what other clients mean, and the kinds would differ.
func supportedServer(versionNum int, encoding string) error {
	if major := versionNum / 10000; major < minServer {
		return fmt.Errorf("the server is PostgreSQL %d; the queue needs %d or newer", major, minServer)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("the database's encoding is %s; allowed is UTF8, which CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0 gives", encoding)
	}
	return nil
}

func tooNew(version int) error {
	return fmt.Errorf("%w: the schema has version %d, this program knows up to %d; use a newer program",
		ErrSchemaTooNew, version, LatestVersion)
}

type migration struct {
	version int
	sql     string
}

// migrations reads the embedded files and puts the schema's name in.
func (c *Client) migrations() ([]migration, error) {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	literal := "'" + c.schema + "'" // safe: ValidateSchema allows no quotes
	replacer := strings.NewReplacer("{{schema}}", c.quoted, "{{schema_literal}}", literal, "{{name}}", c.schema)
	byVersion := map[int]*migration{}
	for _, name := range names {
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("migration %q has no number: %w", name, err)
		}
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		m := byVersion[version]
		if m == nil {
			m = &migration{version: version}
			byVersion[version] = m
		}
		m.sql += replacer.Replace(string(text)) + "\n"
	}
	var all []migration
	for _, m := range byVersion {
		all = append(all, *m)
	}
	slices.SortFunc(all, func(a, b migration) int { return cmp.Compare(a.version, b.version) })
	return all, nil
}

// applyWithRetry tries again what can be expected to pass: a lock not had in
// time, and a race with another migrator.
func (c *Client) applyWithRetry(ctx context.Context, conn *pgx.Conn, m migration) (applied bool, err error) {
	for try := range migrateTries {
		if applied, err = c.apply(ctx, conn, m); err == nil || !retryableMigration(err) {
			return applied, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(min(time.Duration(try+1)*50*time.Millisecond, time.Second)):
		}
	}
	return false, fmt.Errorf("gave up after %d tries: %w", migrateTries, err)
}

func retryableMigration(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "55P03", "40P01", "40001": // lock_not_available, deadlock_detected, serialization_failure
		return true
	case "23505", "42P06", "42P07": // CREATE SCHEMA or TABLE raced with another migrator's
		return true
	}
	return false
}

// apply runs one version in one transaction, unless another migrator has done
// so while this one waited for the lock.
func (c *Client) apply(ctx context.Context, conn *pgx.Conn, m migration) (applied bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// What views, defaults and checks refer to is looked up when they are made: not
		// in what the session's search_path puts before the server's own.
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = %d; SELECT pg_advisory_xact_lock(%d)",
			migrateLockTimeout.Milliseconds(), c.lockKey()), pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		version, err := c.Version(ctx, tx)
		switch {
		case err != nil:
			return err
		case version > LatestVersion:
			return tooNew(version)
		case version >= m.version:
			return nil
		}
		var exists bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1::text)", c.schema).Scan(&exists); err != nil {
			return err
		}
		if !exists {
			if _, err := tx.Exec(ctx, "CREATE SCHEMA "+c.quoted); err != nil {
				return err
			}
		}
		// Many statements in one text: only the simple protocol takes that.
		if _, err := tx.Exec(ctx, m.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO "+c.quoted+".schema_migrations (version) VALUES ($1::integer)", m.version)
		applied = err == nil
		return err
	})
	return applied && err == nil, err
}

// lockKey is the advisory lock of this schema's migrations.
func (c *Client) lockKey() int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("jobqueue migrations " + c.schema)) // never fails
	return int64(h.Sum64())
}
