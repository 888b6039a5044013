-- Taking jobs.
--
-- How the plans are held: every statement on jobs either names a literal state,
-- so that exactly one partial index fits, or looks rows up by id and names no
-- state, so that only the primary key does. With sequential and bitmap scans
-- and sorts priced out there is one plan, whatever the statistics say.

-- Makes due scheduled jobs pending, at most p_limit, the longest due first. A job
-- that was taken back from a dead worker goes to the place that it had, not
-- behind the backlog that came after it.
CREATE FUNCTION {{schema}}.promote(p_queue text, p_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_ids  bigint[];
    v_from timestamptz;
BEGIN
    SELECT k.due_from INTO v_from FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1;
    v_ids := ARRAY(
        SELECT j.id FROM {{schema}}.jobs j
        WHERE j.queue = p_queue AND j.state = 'scheduled'
          AND j.available_at <= clock_timestamp() AND j.available_at >= coalesce(v_from, '-infinity')
        ORDER BY j.available_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    IF cardinality(v_ids) = 0 THEN
        RETURN 0;
    END IF;
    UPDATE {{schema}}.jobs j
    SET state = 'pending', available_at = coalesce(j.resume_at, j.available_at), resume_at = NULL
    WHERE j.id = ANY (v_ids);
    PERFORM {{schema}}.lower_marks(p_queue, v_ids);
    RETURN cardinality(v_ids);
END $$;

CREATE FUNCTION {{schema}}.claim(
    p_queue  text,
    p_worker uuid,
    p_limit  integer DEFAULT 1,
    p_kinds  text[]  DEFAULT NULL,
    p_pod    text    DEFAULT NULL
) RETURNS TABLE (
    id bigint, token uuid, kind text, payload jsonb, priority smallint, attempt integer, max_attempts integer,
    created_at timestamptz, available_at timestamptz, started_at timestamptz, deadline timestamptz,
    timeout_ms bigint, lease_ms bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    q         record;
    v_marked  boolean;
    v_now     timestamptz := clock_timestamp();
    v_walk    bigint;
    v_ids     bigint[];
BEGIN
    SELECT s.lease, s.heartbeat, s.timeout, s.suspended,
           w.queue AS worker_queue, w.pod AS worker_pod, w.heartbeat_at, w.lease_expires_at,
           coalesce(m.due_from, '-infinity') AS due_from, m.walked_at, m.walk_cost
      INTO q
    FROM {{schema}}.queues s
    LEFT JOIN {{schema}}.workers w ON w.id = p_worker
    LEFT JOIN LATERAL (SELECT * FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1) m ON true
    WHERE s.name = p_queue;
    IF NOT FOUND THEN
        PERFORM {{schema}}.no_such_queue(p_queue);
    END IF;
    IF p_worker IS NULL OR p_worker = '00000000-0000-0000-0000-000000000000' THEN
        PERFORM {{schema}}.bad_argument('worker', p_worker::text, 'a random UUID that the worker process made when it started');
    END IF;
    IF p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 10000 THEN
        PERFORM {{schema}}.check_limit(p_limit, 10000);
    END IF;

    -- The worker's row is written only when half a heartbeat has passed since
    -- it last was: a write per claim would be the busiest row of the database.
    -- A row that a heartbeat made does not name the pod yet.
    IF q.worker_queue IS NULL OR q.worker_queue <> p_queue OR q.heartbeat_at < v_now - q.heartbeat / 2
       OR q.lease_expires_at < v_now + (q.lease - q.heartbeat / 2) / 2 OR (q.worker_pod = '' AND p_pod <> '') THEN
        PERFORM {{schema}}.renew(p_worker, p_queue, p_pod, q.lease);
    END IF;
    IF q.suspended OR cardinality(p_kinds) = 0 THEN
        RETURN;
    END IF;

    v_marked := q.due_from > '-infinity';
    IF v_marked AND v_now > q.walked_at + least(interval '1 second' + q.walk_cost * interval '10 microseconds', interval '30 seconds')
       AND pg_try_advisory_xact_lock(hashtextextended('jobqueue marks ' || {{schema_literal}} || ' ' || p_queue, 0)) THEN
        PERFORM {{schema}}.set_marks(p_queue, true);
        q.due_from := '-infinity';
    END IF;

    v_walk := {{schema}}.walked('{{name}}.jobs_ready') + {{schema}}.walked('{{name}}.jobs_scheduled');
    IF EXISTS (SELECT 1 FROM {{schema}}.jobs j
               WHERE j.queue = p_queue AND j.state = 'scheduled' AND j.available_at <= v_now
                 AND j.available_at >= q.due_from) THEN
        PERFORM {{schema}}.promote(p_queue, greatest(p_limit, 100));
    END IF;

    IF v_marked THEN
        v_ids := ARRAY(
            SELECT first.id
            FROM {{schema}}.ready_ranges(p_queue) r
            CROSS JOIN LATERAL (
                SELECT j.id FROM {{schema}}.jobs j
                WHERE j.queue = p_queue AND j.state = 'pending'
                  AND (j.priority, j.available_at, j.id) >= (r.lo_priority, r.lo_at, r.lo_id) AND j.priority < r.hi_priority
                  AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
                ORDER BY j.priority, j.available_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED) first
            LIMIT p_limit);
    ELSE
        v_ids := ARRAY(
            SELECT j.id FROM {{schema}}.jobs j
            WHERE j.queue = p_queue AND j.state = 'pending' AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            ORDER BY j.priority, j.available_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    END IF;
    v_walk := {{schema}}.walked('{{name}}.jobs_ready') + {{schema}}.walked('{{name}}.jobs_scheduled') - v_walk;
    IF v_walk > 1000 + 2 * p_limit
       AND pg_try_advisory_xact_lock(hashtextextended('jobqueue marks ' || {{schema_literal}} || ' ' || p_queue, 0)) THEN
        PERFORM {{schema}}.set_marks(p_queue, false);
    END IF;
    IF cardinality(v_ids) = 0 THEN
        RETURN;
    END IF;

    RETURN QUERY
    WITH taken AS (
        UPDATE {{schema}}.jobs j
        SET state = 'running', token = gen_random_uuid(), worker_id = p_worker, attempt = j.attempt + 1,
            started_at = v_now, deadline = v_now + q.timeout + q.lease
        WHERE j.id = ANY (v_ids)
        RETURNING j.*
    ), counted AS (
        INSERT INTO {{schema}}.tallies (queue, claimed) VALUES (p_queue, cardinality(v_ids))
    )
    SELECT t.id, t.token, t.kind, t.payload, t.priority, t.attempt, t.max_attempts, t.created_at, t.available_at, t.started_at, t.deadline,
           (extract(epoch FROM q.timeout) * 1000)::bigint, (extract(epoch FROM q.lease) * 1000)::bigint
    FROM taken t ORDER BY t.priority, t.available_at, t.id;
END $$;
COMMENT ON FUNCTION {{schema}}.claim(text, uuid, integer, text[], text) IS
'Claims up to limit ready jobs for a worker and returns them in order of priority, available_at and id. Call it outside a transaction, so that it commits at once; a transaction that stays open keeps the rows locked.
queue: a declared queue; a suspended one yields none. worker: a random UUID made when the worker process started, which serves one queue; it is registered, and its lease renewed when half a heartbeat old. limit: 1 to 10000. kinds: null for all. pod: a name shown to people.
Each job returned is running under a new token. Finish it with succeed, fail, snooze, discard or release before the lease of the worker (renewed by heartbeat) or the deadline passes. timeout_ms is how long the handler may run.
Errors: JQ001 no such queue; JQ005 bad argument; JQ006 the worker id serves another queue.';
