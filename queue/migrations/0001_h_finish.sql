-- Finishing. All of it is fenced by (id, token) as 0001_g_lease.sql says, and
-- none of it touches the worker's row, so that a handler may finish its job in
-- its own long transaction without holding up the worker's heartbeats. They wait
-- two seconds for a row that another session has locked: a batch must not hang on
-- one job that somebody cancels in a transaction left open.

CREATE FUNCTION {{schema}}.succeed(p_ids bigint[], p_tokens uuid[], p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    -- A payload that had to be stored out of line is not copied into history
    -- for a success; nobody has to look at it again.
    RETURN QUERY
    WITH gone AS (
        DELETE FROM {{schema}}.jobs j
        WHERE j.id = ANY (p_ids) AND (p_worker IS NULL OR j.worker_id = p_worker)
          AND ((j.id, j.token) IN (SELECT u.id, u.token FROM unnest(p_ids, p_tokens) u (id, token)) OR false)
        RETURNING j.*
    ), kept AS (
        INSERT INTO {{schema}}.finished (id, created_at, started_at, finished_at, worker_id, attempt, priority, state, queue, kind, payload)
        SELECT g.id, g.created_at, g.started_at, v_now, g.worker_id, g.attempt, g.priority, 'succeeded', g.queue, g.kind,
               CASE WHEN pg_column_size(g.payload) <= 2000 THEN g.payload END
        FROM gone g
    ), counted AS (
        INSERT INTO {{schema}}.tallies (queue, succeeded, execution_ms)
        SELECT g.queue, count(*), sum(greatest(extract(epoch FROM v_now - g.started_at)::double precision * 1000, 0))::bigint
        FROM gone g GROUP BY g.queue
    )
    SELECT g.id FROM gone g;
END $$;
COMMENT ON FUNCTION {{schema}}.succeed(bigint[], uuid[], uuid) IS
'Finishes runs as succeeded and returns the ids accepted; the others were refused because their lease was lost, and their results must be dropped. In the handler''s own transaction, the job is finished if and only if that commits: check the result before committing. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.discard(p_ids bigint[], p_tokens uuid[], p_reason text DEFAULT NULL, p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    RETURN QUERY
    WITH gone AS (
        DELETE FROM {{schema}}.jobs j
        WHERE j.id = ANY (p_ids) AND (p_worker IS NULL OR j.worker_id = p_worker)
          AND ((j.id, j.token) IN (SELECT u.id, u.token FROM unnest(p_ids, p_tokens) u (id, token)) OR false)
        RETURNING j.*
    ), kept AS (
        INSERT INTO {{schema}}.finished (id, created_at, started_at, finished_at, worker_id, attempt, priority, state, queue, kind, payload, reason)
        SELECT g.id, g.created_at, g.started_at, v_now, g.worker_id, g.attempt, g.priority, 'discarded', g.queue, g.kind, g.payload, left(p_reason, 4000)
        FROM gone g
    ), counted AS (
        INSERT INTO {{schema}}.tallies (queue, discarded, execution_ms)
        SELECT g.queue, count(*), sum(greatest(extract(epoch FROM v_now - g.started_at)::double precision * 1000, 0))::bigint
        FROM gone g GROUP BY g.queue
    )
    SELECT g.id FROM gone g;
END $$;
COMMENT ON FUNCTION {{schema}}.discard(bigint[], uuid[], text, uuid) IS
'Finishes runs as discarded: refused by a business rule, neither a success nor a failure. reason is kept, cut to 4000 characters. Returns the ids accepted. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.snooze(p_ids bigint[], p_tokens uuid[], p_delay_seconds double precision, p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    IF p_delay_seconds IS NULL OR p_delay_seconds NOT BETWEEN 0 AND 3153600000 THEN
        PERFORM {{schema}}.bad_argument('delay_seconds', p_delay_seconds::text, '0 to 3153600000 (a hundred years)');
    END IF;
    RETURN QUERY
    UPDATE {{schema}}.jobs j
    SET state = CASE WHEN p_delay_seconds > 0 THEN 'scheduled' ELSE 'pending' END,
        available_at = v_now + make_interval(secs => p_delay_seconds),
        attempt = j.attempt - 1, token = NULL, worker_id = NULL, started_at = NULL, deadline = NULL
    WHERE j.id = ANY (p_ids) AND (p_worker IS NULL OR j.worker_id = p_worker)
      AND ((j.id, j.token) IN (SELECT u.id, u.token FROM unnest(p_ids, p_tokens) u (id, token)) OR false)
    RETURNING j.id;
END $$;
COMMENT ON FUNCTION {{schema}}.snooze(bigint[], uuid[], double precision, uuid) IS
'Puts runs off by delay_seconds, the attempt not counted. Returns the ids accepted. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.fail(
    p_ids bigint[], p_tokens uuid[], p_errors text[], p_permanent boolean[] DEFAULT NULL,
    p_retry_after_seconds double precision[] DEFAULT NULL, p_worker uuid DEFAULT NULL
) RETURNS TABLE (id bigint, dead boolean, retry_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_n   integer := cardinality(p_ids);
    v_now timestamptz := clock_timestamp();
    v_bad record;
    r     record;
    j     {{schema}}.jobs;
    q     {{schema}}.queues;
    v_queue  text;
    v_failed integer := 0;
    v_ms     double precision := 0;
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    IF p_errors IS NULL THEN
        PERFORM {{schema}}.bad_argument('errors', NULL, 'an array of messages, one for each id');
    END IF;
    SELECT a.name, a.n INTO v_bad
    FROM (VALUES ('errors', cardinality(p_errors)), ('permanent', cardinality(p_permanent)), ('retry_after_seconds', cardinality(p_retry_after_seconds))) AS a (name, n)
    WHERE a.n <> v_n LIMIT 1;
    IF FOUND THEN
        PERFORM {{schema}}.bad_argument(v_bad.name, format('an array of %s', v_bad.n), format('as many as ids, which are %s', v_n));
    END IF;
    SELECT u.delay, u.n INTO v_bad FROM unnest(p_retry_after_seconds) WITH ORDINALITY u (delay, n)
    WHERE u.delay NOT BETWEEN 0 AND 3153600000 LIMIT 1;
    IF FOUND THEN
        PERFORM {{schema}}.bad_argument(format('retry_after_seconds[%s]', v_bad.n), v_bad.delay::text,
            '0 to 3153600000 (a hundred years); 0 or null for the queue''s backoff');
    END IF;

    -- One row after the other, each by primary key, in order of id: failures are
    -- few, or else the queue has other worries than these microseconds.
    FOR r IN
        SELECT u.* FROM unnest(p_ids, p_tokens, p_errors, p_permanent, p_retry_after_seconds) u (id, token, error, permanent, delay)
        ORDER BY u.id
    LOOP
        SELECT * INTO j FROM {{schema}}.jobs s
        WHERE s.id = r.id AND s.token = r.token AND (p_worker IS NULL OR s.worker_id = p_worker) FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        id := j.id;
        dead := j.attempt >= j.max_attempts OR r.permanent IS TRUE;
        retry_at := NULL;
        j.last_error := left(coalesce(r.error, ''), 4000);
        j.errors := {{schema}}.push_error(j.errors, j.attempt, v_now, j.last_error);
        IF dead THEN
            DELETE FROM {{schema}}.jobs s WHERE s.id = j.id;
            INSERT INTO {{schema}}.dead (id, created_at, died_at, worker_id, attempt, max_attempts, priority, queue, kind, payload, reason, last_error, errors)
            VALUES (j.id, j.created_at, v_now, j.worker_id, j.attempt, j.max_attempts, j.priority, j.queue, j.kind, j.payload,
                    CASE WHEN r.permanent THEN 'permanent failure' ELSE 'attempts exhausted' END, j.last_error, j.errors);
        ELSE
            IF q.name IS DISTINCT FROM j.queue THEN
                SELECT * INTO q FROM {{schema}}.queues s WHERE s.name = j.queue;
            END IF;
            retry_at := v_now + CASE WHEN r.delay > 0 THEN make_interval(secs => r.delay)
                ELSE {{schema}}.backoff(q.backoff_base, q.backoff_max, q.backoff_jitter, j.attempt) END;
            UPDATE {{schema}}.jobs s
            SET state = 'scheduled', available_at = retry_at, last_error = j.last_error, errors = j.errors,
                token = NULL, worker_id = NULL, started_at = NULL, deadline = NULL
            WHERE s.id = j.id;
        END IF;
        IF v_queue IS DISTINCT FROM j.queue THEN
            INSERT INTO {{schema}}.tallies (queue, failed, execution_ms) SELECT v_queue, v_failed, v_ms WHERE v_failed > 0;
            v_queue := j.queue; v_failed := 0; v_ms := 0;
        END IF;
        v_failed := v_failed + 1;
        v_ms := v_ms + greatest(extract(epoch FROM v_now - j.started_at)::double precision * 1000, 0);
        RETURN NEXT;
    END LOOP;
    INSERT INTO {{schema}}.tallies (queue, failed, execution_ms) SELECT v_queue, v_failed, v_ms WHERE v_failed > 0;
END $$;
COMMENT ON FUNCTION {{schema}}.fail(bigint[], uuid[], text[], boolean[], double precision[], uuid) IS
'Records failed attempts. A job with attempts left is scheduled again after retry_after_seconds, or if that is null or 0 after min(backoff_max, backoff_base * 2^(attempt-1)) ± jitter; one without, or whose failure is permanent, goes to the dead letters.
errors: the messages, kept to 4000 characters; permanent and retry_after_seconds: null for none; all as many as ids. Returns a row for each failure accepted: dead, or when the next attempt is due. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.cancel(p_ids bigint[], p_reason text DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF p_ids IS NULL OR array_position(p_ids, NULL) IS NOT NULL THEN
        PERFORM {{schema}}.bad_argument('ids', CASE WHEN p_ids IS NOT NULL THEN 'an array with a null' END, 'an array of job ids, which may be empty');
    END IF;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM {{schema}}.jobs j WHERE j.id = ANY (p_ids) RETURNING j.*
    ), kept AS (
        INSERT INTO {{schema}}.finished (id, created_at, started_at, finished_at, worker_id, attempt, priority, state, queue, kind, payload, reason)
        SELECT g.id, g.created_at, g.started_at, v_now, g.worker_id, g.attempt, g.priority, 'cancelled', g.queue, g.kind, g.payload, left(p_reason, 4000)
        FROM gone g
    ), counted AS (
        INSERT INTO {{schema}}.tallies (queue, cancelled) SELECT g.queue, count(*) FROM gone g GROUP BY g.queue
    )
    SELECT g.id FROM gone g;
END $$;
COMMENT ON FUNCTION {{schema}}.cancel(bigint[], text) IS
'Finishes live jobs as cancelled, scheduled, pending or running, and returns the ids that were live. A worker that runs one learns of it by its next heartbeat, and what it then reports is refused. reason is kept, cut to 4000 characters. Errors: JQ005 bad argument.';
