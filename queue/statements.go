package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// statements holds the text of each call, made once per client. Every argument
// has a cast: with QueryExecModeExec and the simple protocol PostgreSQL is told
// no types, and the cast is what makes it read the text right. New payloads are cast one
// by one: a cast of their array keeps the memory of every element's conversion until the
// statement ends, which makes it take twice as long.
type statements struct {
	enqueuePlain, enqueue, enqueueMany                        string
	claim, heartbeat, release, disown                         string
	unregister, succeed, fail, snooze, discard, cancel        string
	reap, sample, horizon, setPolicy, getPolicy, releaseOwner string
	listDead, requeue, requeueKind, purgeDead                 string
	getJob, listJobs                                          string
}

func newStatements(schema string) statements {
	call := func(columns, function, args string) string {
		return fmt.Sprintf("SELECT %s FROM %s.%s(%s)", columns, schema, function, args)
	}
	const refs = "$1::bigint[], $2::text[]::uuid[]"
	return statements{
		enqueuePlain: call("id", "enqueue", "$1::text, $2::text, $3::text::jsonb") + " AS id",
		enqueue: call("id", "enqueue", "$1::text, $2::text, $3::text::jsonb, coalesce($4::smallint, 0::smallint), "+
			"$5::double precision, $6::text::timestamptz, $7::integer") + " AS id",
		enqueueMany: call("id", "enqueue_many", "$1::text, $2::text[], ARRAY(SELECT p::jsonb FROM unnest($3::text[]) AS p), $4::smallint[], "+
			"$5::double precision[], $6::text[]::timestamptz[], $7::integer[]"),
		claim: call("key, ids, kinds, payloads::text[], priorities, attempts, max_attempts, created_ats, available_ats, "+
			"started_at, deadline, timeout_ms, lease_ms", "claim_many",
			"$1::text, $2::uuid, $3::integer, $4::text[], $5::text, $6::text[]"),
		heartbeat:    call("lost::text[], lease_expires_at, now, policy", "heartbeat", "$1::uuid, $2::text, $3::bigint[], $4::text[]::uuid[]"),
		release:      call("id", "release", refs+", $3::uuid"),
		disown:       call("id", "disown", "$1::uuid, $2::bigint[], $3::text[]::uuid[]"),
		unregister:   call("1", "unregister", "$1::uuid"),
		succeed:      call("key, runs::text", "succeed_many", "$1::bytea[], $2::text[]::varbit[], $3::bigint[], $4::uuid, $5::boolean, $6::double precision[]"),
		fail:         call("id, dead, retry_at", "fail", refs+", $3::text[], $4::boolean[], $5::double precision[], $6::uuid"),
		snooze:       call("id", "snooze", refs+", $3::double precision[], $4::uuid"),
		discard:      call("id", "discard", refs+", $3::text[], $4::uuid"),
		cancel:       call("id", "cancel", "$1::bigint[], $2::text"),
		reap:         call("returned, buried, promoted, workers_removed, finished_purged, dead_purged, more", "reap", "$1::text, $2::integer, $3::boolean, $4::text[]"),
		sample:       call("s", "sample", "") + " AS s",
		horizon:      call("to_jsonb(h)", "horizon_holder", "") + " AS h",
		setPolicy:    call("1", "set_policy", "$1::text, $2::jsonb"),
		getPolicy:    call("p", "get_policy", "$1::text") + " AS p",
		releaseOwner: call("1", "release_owner", "$1::text, $2::text"),
		listDead: call("id, queue, kind, priority, payload, attempt, max_attempts, created_at, died_at, "+
			"reason, last_error, errors", "list_dead", "$1::text, $2::integer, $3::bigint"),
		requeue:     call("id", "requeue", "$1::text, $2::bigint[]"),
		requeueKind: call("id", "requeue_kind", "$1::text, $2::text, $3::integer"),
		purgeDead:   call("n", "purge_dead", "$1::text, $2::double precision, $3::integer") + " AS n",
		getJob:      call(jobColumns, "get_job", "$1::bigint"),
		listJobs:    call(jobColumns, "list_jobs", "$1::text, $2::text, $3::text, $4::integer, $5::bigint"),
	}
}

const jobColumns = "id, queue, kind, state, priority, payload, attempt, max_attempts, created_at, " +
	"available_at, started_at, deadline, worker_id, finished_at, reason, last_error, errors"

// queryIDs runs a statement that returns one bigint column. The result is never
// nil when the statement succeeds; capacity is a hint.
func queryIDs(ctx context.Context, db DB, capacity int, sql string, args ...any) ([]int64, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return collectIDs(rows, capacity)
}

// collectIDs reads the rows of such a statement, and closes them.
func collectIDs(rows pgx.Rows, capacity int) ([]int64, error) {
	defer rows.Close()
	ids := make([]int64, 0, capacity)
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return ids, nil
}

// formatTime writes a time as PostgreSQL reads it, to the microsecond it keeps.
func formatTime(t time.Time) string {
	return t.UTC().Format("2006-01-02T15:04:05.999999Z")
}
