package history

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what recording and reading need of a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

//go:embed record.sql
var recordSQL string

// Watch records what happens to the jobs of the schema from now on. It is harmless when
// repeated.
func Watch(ctx context.Context, db DB, schema string) error {
	sql := strings.ReplaceAll(recordSQL, "{{schema}}", pgx.Identifier{schema}.Sanitize())
	if _, err := db.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("recording the history of schema %q: %w", schema, err)
	}
	return nil
}

// Read returns what has been recorded. enqueued are the ids that producers were told.
func Read(ctx context.Context, db DB, schema string, enqueued []int64) (History, error) {
	h := History{Enqueued: enqueued}
	err := collect(ctx, db, &h.Events, func(row pgx.CollectableRow) (e Event, err error) {
		var token *uuid.UUID
		var deadline, lease *time.Time
		err = row.Scan(&e.Seq, &e.Xid, &e.What, &e.ID, &token, &e.Place, &e.By, &e.At, &deadline, &e.Registered, &lease)
		if token != nil {
			e.Token = *token
		}
		if deadline != nil {
			e.Deadline = *deadline
		}
		if lease != nil {
			e.Lease = *lease
		}
		return e, err
	}, `SELECT seq, xid::text::bigint, what, id, token, place, by, at, deadline, coalesce(registered::text::bigint, 0), lease
		FROM history.events ORDER BY seq`)
	if err != nil {
		return History{}, err
	}
	err = collect(ctx, db, &h.Told, func(row pgx.CollectableRow) (t Told, err error) {
		return t, row.Scan(&t.ID, &t.Token, &t.Outcome, &t.At)
	}, `SELECT id, token, outcome, at FROM history.told`)
	if err != nil {
		return History{}, err
	}
	err = collect(ctx, db, &h.Began, pgx.RowTo[uuid.UUID], `SELECT token FROM history.began`)
	if err != nil {
		return History{}, err
	}
	s := pgx.Identifier{schema}.Sanitize()
	err = collect(ctx, db, &h.Live, pgx.RowTo[int64], `SELECT id FROM `+s+`.waiting UNION ALL
		SELECT i.id FROM `+s+`.batches b CROSS JOIN LATERAL unnest(b.ids) WITH ORDINALITY i (id, n)
		WHERE get_bit(b.open, (i.n - 1)::integer) = 1`)
	return h, err
}

func collect[T any](ctx context.Context, db DB, into *[]T, scan pgx.RowToFunc[T], sql string) error {
	rows, err := db.Query(ctx, sql)
	if err == nil {
		*into, err = pgx.CollectRows(rows, scan)
	}
	if err != nil {
		return fmt.Errorf("reading the history: %w", err)
	}
	return nil
}
