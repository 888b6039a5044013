// Package invariants counts, in SQL, what must never happen to a queue: a job lost, a job
// finished twice, a job that is both alive and ended.
//
// It does not trust the queue's own bookkeeping. A trigger copies every end of a job into a
// table of its own that has no key, so that a second end would be seen and not be refused.
package invariants

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what a count needs of a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Report is one count over one queue.
type Report struct {
	// Expected is the number of jobs that were enqueued, as the caller knows it.
	Expected int64 `json:"expected"`
	// Alive are those that are scheduled, pending or running.
	Alive int64 `json:"alive"`
	// Succeeded, Discarded, Cancelled and Dead are those that have ended.
	Succeeded int64 `json:"succeeded"`
	Discarded int64 `json:"discarded"`
	Cancelled int64 `json:"cancelled"`
	Dead      int64 `json:"dead"`
	// Lost is Expected less all of the above.
	Lost int64 `json:"lost"`
	// EndedTwice counts jobs whose end was written more than once.
	EndedTwice int64 `json:"endedTwice"`
	// AliveAndEnded counts jobs that have ended and are alive all the same.
	AliveAndEnded int64 `json:"aliveAndEnded"`
}

// Err says which invariants do not hold, or returns nil. A queue that still has live jobs
// is not an error here.
func (r Report) Err() error {
	if r.Lost != 0 || r.EndedTwice != 0 || r.AliveAndEnded != 0 {
		return fmt.Errorf("invariants broken: %d lost, %d ended twice, %d alive and ended", r.Lost, r.EndedTwice, r.AliveAndEnded)
	}
	return nil
}

// Schema is where the ends of jobs are recorded, in the same database.
const Schema = "jobqueue_invariants"

// Watch records every end of a job in the schema from now on. It is harmless when repeated.
func Watch(ctx context.Context, db DB, schema string) error {
	s := pgx.Identifier{schema}.Sanitize()
	_, err := db.Exec(ctx, `
		CREATE SCHEMA IF NOT EXISTS `+Schema+`;
		CREATE TABLE IF NOT EXISTS `+Schema+`.ended (
			schema text NOT NULL, queue text NOT NULL, id bigint NOT NULL, into_table text NOT NULL,
			at timestamptz NOT NULL DEFAULT clock_timestamp());
		CREATE OR REPLACE FUNCTION `+Schema+`.record() RETURNS trigger LANGUAGE plpgsql AS $f$
		BEGIN
			INSERT INTO `+Schema+`.ended SELECT TG_TABLE_SCHEMA, n.queue, n.id, TG_TABLE_NAME FROM new_rows n;
			RETURN NULL;
		END $f$;
		CREATE OR REPLACE FUNCTION `+Schema+`.record_successes() RETURNS trigger LANGUAGE plpgsql AS $f$
		BEGIN
			INSERT INTO `+Schema+`.ended SELECT TG_TABLE_SCHEMA, NEW.queue, i.id, TG_TABLE_NAME
			FROM unnest(NEW.ids) WITH ORDINALITY i (id, n)
			WHERE get_bit(NEW.succeeded & ~OLD.succeeded, (i.n - 1)::integer) = 1;
			RETURN NULL;
		END $f$;
		CREATE OR REPLACE TRIGGER invariants_record AFTER UPDATE ON `+s+`.batches
			FOR EACH ROW WHEN (NEW.succeeded <> OLD.succeeded) EXECUTE FUNCTION `+Schema+`.record_successes();
		CREATE OR REPLACE TRIGGER invariants_record AFTER INSERT ON `+s+`.ended
			REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION `+Schema+`.record();
		CREATE OR REPLACE TRIGGER invariants_record AFTER INSERT ON `+s+`.dead
			REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION `+Schema+`.record();
	`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return fmt.Errorf("recording the ends of jobs in schema %q: %w", schema, err)
	}
	return nil
}

// Count counts the queue's jobs in one snapshot. Watch must have been called before the
// jobs were enqueued, and no dead letter may have been requeued or row purged since.
func Count(ctx context.Context, db DB, schema, queue string, expected int64) (Report, error) {
	s := pgx.Identifier{schema}.Sanitize()
	r := Report{Expected: expected}
	err := db.QueryRow(ctx, `
		WITH alive AS (SELECT id FROM `+s+`.jobs WHERE queue = $1),
		     finished AS (SELECT id, state FROM `+s+`.finished WHERE queue = $1),
		     dead AS (SELECT id FROM `+s+`.dead WHERE queue = $1),
		     ended AS (SELECT id FROM `+Schema+`.ended WHERE schema = $2 AND queue = $1)
		SELECT (SELECT count(*) FROM alive),
		       (SELECT count(*) FROM finished WHERE state = 'succeeded'),
		       (SELECT count(*) FROM finished WHERE state = 'discarded'),
		       (SELECT count(*) FROM finished WHERE state = 'cancelled'),
		       (SELECT count(*) FROM dead),
		       (SELECT count(*) FROM (SELECT id FROM ended GROUP BY id HAVING count(*) > 1) twice),
		       (SELECT count(*) FROM alive JOIN ended USING (id))`, queue, schema).
		Scan(&r.Alive, &r.Succeeded, &r.Discarded, &r.Cancelled, &r.Dead, &r.EndedTwice, &r.AliveAndEnded)
	if err != nil {
		return Report{}, fmt.Errorf("counting queue %q in schema %q: %w", queue, schema, err)
	}
	r.Lost = expected - r.Alive - r.Succeeded - r.Discarded - r.Cancelled - r.Dead
	return r, nil
}
