-- Views of single jobs, for people and tools.

CREATE FUNCTION {{schema}}.get_job(p_id bigint)
RETURNS TABLE (id bigint, queue text, kind text, state text, priority smallint, payload jsonb, attempt integer, max_attempts integer,
    created_at timestamptz, available_at timestamptz, started_at timestamptz, deadline timestamptz, worker_id uuid,
    finished_at timestamptz, reason text, last_error text, errors jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT j.id, j.queue, j.kind, j.state, j.priority, j.payload, j.attempt, j.max_attempts, j.created_at, j.available_at, j.started_at,
           j.deadline, j.worker_id, NULL::timestamptz, NULL, j.last_error, j.errors
    FROM {{schema}}.jobs j WHERE j.id = p_id
    UNION ALL
    SELECT f.id, f.queue, f.kind, f.state, f.priority, f.payload, f.attempt, 0, f.created_at, NULL, f.started_at,
           NULL, f.worker_id, f.finished_at, f.reason, NULL, NULL
    FROM {{schema}}.finished f WHERE f.id = p_id
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
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_before bigint := CASE WHEN p_before > 0 THEN p_before ELSE 9223372036854775807 END;
BEGIN
    PERFORM {{schema}}.check_limit(p_limit, 10000);
    IF p_state IS NULL OR p_state IN ('scheduled', 'pending', 'running') THEN
        RETURN QUERY
        SELECT j.id, j.queue, j.kind, j.state, j.priority, j.payload, j.attempt, j.max_attempts, j.created_at, j.available_at, j.started_at,
               j.deadline, j.worker_id, NULL::timestamptz, NULL::text, j.last_error, j.errors
        FROM {{schema}}.jobs j
        WHERE j.id < v_before AND (p_queue IS NULL OR j.queue = p_queue) AND (p_kind IS NULL OR j.kind = p_kind) AND (p_state IS NULL OR j.state = p_state)
        ORDER BY j.id DESC LIMIT p_limit;
    ELSIF p_state IN ('succeeded', 'discarded', 'cancelled') THEN
        RETURN QUERY
        SELECT f.id, f.queue, f.kind, f.state, f.priority, f.payload, f.attempt, 0, f.created_at, NULL::timestamptz, f.started_at,
               NULL::timestamptz, f.worker_id, f.finished_at, f.reason, NULL::text, NULL::jsonb
        FROM {{schema}}.finished f
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
'Returns up to limit (1 to 10000) jobs by falling id, those before the id given (0: from the newest), of a queue, a state and a kind; null for any, and for state: all live ones. Its cost grows with the jobs that the filter passes over. Errors: JQ005 bad argument.';
