-- Views of single jobs, for people and tools.

CREATE FUNCTION {{schema}}.get_job(p_id bigint)
RETURNS TABLE (id bigint, queue text, kind text, state text, priority smallint, payload jsonb, attempt integer, max_attempts integer,
    created_at timestamptz, available_at timestamptz, started_at timestamptz, deadline timestamptz, worker_id uuid,
    finished_at timestamptz, reason text, last_error text, errors jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT w.id, w.queue, w.kind, w.state::text, w.priority, w.payload, w.attempt, w.max_attempts, w.created_at, w.available_at, NULL::timestamptz,
           NULL::timestamptz, NULL::uuid, NULL::timestamptz, NULL, w.last_error, w.errors
    FROM {{schema}}.waiting w WHERE w.id = p_id
    UNION ALL
    SELECT j.id, j.queue, j.kind, x.state, j.priority, j.payload, j.attempt + 1, CASE WHEN x.open THEN j.max_attempts ELSE 0 END, j.created_at,
           CASE WHEN x.open THEN j.available_at END, b.started_at, CASE WHEN x.open THEN b.deadline END, b.worker_id,
           CASE WHEN NOT x.open THEN coalesce((SELECT e.ended_at FROM {{schema}}.batch_ends e WHERE e.key = b.key AND get_bit(e.runs, x.slot) = 1), b.finished_at) END,
           NULL, CASE WHEN x.open THEN j.last_error END, CASE WHEN x.open THEN j.errors END
    FROM {{schema}}.batches_around(p_id) b
    CROSS JOIN LATERAL (SELECT array_position(b.ids, p_id) - 1 AS slot) s
    CROSS JOIN LATERAL (SELECT s.slot, get_bit(b.open, s.slot) = 1 AS open,
        CASE WHEN get_bit(b.open, s.slot) = 1 THEN 'running' ELSE 'succeeded' END AS state) x
    CROSS JOIN LATERAL unnest(b.jobs[s.slot + 1 : s.slot + 1]) j
    WHERE s.slot IS NOT NULL AND (get_bit(b.open, s.slot) = 1 OR get_bit(b.succeeded, s.slot) = 1)
    UNION ALL
    SELECT f.id, f.queue, f.kind, f.state, f.priority, f.payload, f.attempt, 0, f.created_at, NULL, f.started_at,
           NULL, f.worker_id, f.finished_at, f.reason, NULL, NULL
    FROM {{schema}}.ended f WHERE f.id = p_id
    UNION ALL
    SELECT d.id, d.queue, d.kind, 'dead', d.priority, d.payload, d.attempt, d.max_attempts, d.created_at, NULL, NULL,
           NULL, d.worker_id, d.died_at, d.reason, d.last_error, d.errors
    FROM {{schema}}.dead d WHERE d.id = p_id
$$;
COMMENT ON FUNCTION {{schema}}.get_job(bigint) IS
'Returns the job of that id in whatever state, or no row. max_attempts is 0 for finished jobs, whose history does not keep it.';

CREATE FUNCTION {{schema}}.list_jobs(p_queue text DEFAULT NULL, p_state text DEFAULT NULL, p_kind text DEFAULT NULL,
    p_limit integer DEFAULT 100, p_before bigint DEFAULT 0)
RETURNS TABLE (id bigint, queue text, kind text, state text, priority smallint, payload jsonb, attempt integer, max_attempts integer,
    created_at timestamptz, available_at timestamptz, started_at timestamptz, deadline timestamptz, worker_id uuid,
    finished_at timestamptz, reason text, last_error text, errors jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    b        record;
    s        record;
    v_keys   bytea[]  := '{}';
    v_ids    bigint[] := '{}';
    v_before bigint := CASE WHEN p_before > 0 THEN p_before ELSE 9223372036854775807 END;
BEGIN
    PERFORM {{schema}}.check_limit(p_limit, 10000);
    IF p_queue IS NOT NULL THEN
        PERFORM {{schema}}.check_queue(p_queue);
    END IF;
    IF p_state IS NULL OR p_state IN ('scheduled', 'pending', 'running') THEN
        RETURN QUERY
        SELECT * FROM (
            (SELECT w.id, w.queue, w.kind, w.state::text, w.priority, w.payload, w.attempt, w.max_attempts, w.created_at, w.available_at, NULL::timestamptz,
                    NULL::timestamptz, NULL::uuid, NULL::timestamptz, NULL::text, w.last_error, w.errors
             FROM {{schema}}.waiting w
             WHERE (p_state IS NULL OR p_state <> 'running') AND w.id < v_before
               AND (p_queue IS NULL OR w.queue = p_queue) AND (p_kind IS NULL OR w.kind = p_kind) AND (p_state IS NULL OR w.state::text = p_state)
             ORDER BY w.id DESC LIMIT p_limit)
            UNION ALL
            (SELECT j.id, j.queue, j.kind, 'running', j.priority, j.payload, j.attempt + 1, j.max_attempts, j.created_at, j.available_at, b.started_at,
                    b.deadline, b.worker_id, NULL, NULL, j.last_error, j.errors
             FROM {{schema}}.batches b
             CROSS JOIN LATERAL unnest(b.jobs) WITH ORDINALITY
                 j (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors, n)
             WHERE b.finished_at IS NULL AND (p_state IS NULL OR p_state = 'running') AND get_bit(b.open, (j.n - 1)::integer) = 1
               AND j.id < v_before AND (p_queue IS NULL OR b.queue = p_queue) AND (p_kind IS NULL OR j.kind = p_kind)
             ORDER BY j.id DESC LIMIT p_limit)) live
        ORDER BY 1 DESC LIMIT p_limit;
    ELSIF p_state = 'succeeded' THEN
        -- Of each span (batches_around), batches by falling max_id, until none that
        -- follows can hold a later job than those found.
        FOR s IN SELECT * FROM {{schema}}.spans() LOOP
            FOR b IN
                SELECT t.key, t.max_id, ARRAY(
                    SELECT j.id FROM unnest(t.jobs) WITH ORDINALITY
                        j (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors, n)
                    WHERE get_bit(t.succeeded, (j.n - 1)::integer) = 1 AND j.id < v_before AND (p_kind IS NULL OR j.kind = p_kind)) AS ids
                FROM {{schema}}.batches t
                WHERE t.span = s.span AND t.max_id <= least(v_before - 1, 9223372036854775807 - s.width) + s.width
                  AND t.min_id < v_before AND bit_count(t.succeeded) > 0 AND (p_queue IS NULL OR t.queue = p_queue)
                ORDER BY t.max_id DESC
            LOOP
                EXIT WHEN cardinality(v_ids) >= p_limit
                    AND (SELECT count(*) FROM unnest(v_ids) f (id) WHERE f.id > b.max_id) >= p_limit;
                v_keys := v_keys || b.key;
                v_ids := v_ids || b.ids;
            END LOOP;
        END LOOP;
        RETURN QUERY
        SELECT j.id, j.queue, j.kind, 'succeeded', j.priority, j.payload, j.attempt + 1, 0, j.created_at, NULL::timestamptz, t.started_at,
               NULL::timestamptz, t.worker_id,
               coalesce((SELECT e.ended_at FROM {{schema}}.batch_ends e WHERE e.key = t.key AND get_bit(e.runs, (j.n - 1)::integer) = 1), t.finished_at),
               NULL::text, NULL::text, NULL::jsonb
        FROM {{schema}}.batches t
        CROSS JOIN LATERAL unnest(t.jobs) WITH ORDINALITY
            j (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors, n)
        WHERE t.key = ANY (v_keys) AND get_bit(t.succeeded, (j.n - 1)::integer) = 1 AND j.id < v_before AND (p_kind IS NULL OR j.kind = p_kind)
        ORDER BY j.id DESC LIMIT p_limit;
    ELSIF p_state IN ('discarded', 'cancelled') THEN
        RETURN QUERY
        SELECT f.id, f.queue, f.kind, f.state, f.priority, f.payload, f.attempt, 0, f.created_at, NULL::timestamptz, f.started_at,
               NULL::timestamptz, f.worker_id, f.finished_at, f.reason, NULL::text, NULL::jsonb
        FROM {{schema}}.ended f
        WHERE f.id < v_before AND (p_queue IS NULL OR f.queue = p_queue) AND (p_kind IS NULL OR f.kind = p_kind) AND f.state = p_state
        ORDER BY f.id DESC LIMIT p_limit;
    ELSIF p_state = 'dead' THEN
        RETURN QUERY
        SELECT d.id, d.queue, d.kind, 'dead', d.priority, d.payload, d.attempt, d.max_attempts, d.created_at, NULL::timestamptz, NULL::timestamptz,
               NULL::timestamptz, d.worker_id, d.died_at, d.reason, d.last_error, d.errors
        FROM {{schema}}.dead d
        WHERE d.id < v_before AND (p_queue IS NULL OR d.queue = p_queue) AND (p_kind IS NULL OR d.kind = p_kind)
        ORDER BY d.id DESC LIMIT p_limit;
    ELSE
        PERFORM {{schema}}.bad_argument('state', p_state, 'scheduled, pending, running, succeeded, discarded, cancelled, dead, or null for all live ones');
    END IF;
END $$;
COMMENT ON FUNCTION {{schema}}.list_jobs(text, text, text, integer, bigint) IS
'Returns up to limit (1 to 10000) jobs by falling id, those before the id given (0: from the newest), of a queue, a state and a kind; null for any, and for state: all live ones. Its cost grows with the jobs that the filter passes over. Errors: JQ001 no such queue; JQ005 bad argument.';
