-- Dead letters.

CREATE FUNCTION {{schema}}.list_dead(p_queue text, p_limit integer DEFAULT 100, p_after bigint DEFAULT 0)
RETURNS TABLE (id bigint, queue text, kind text, priority smallint, payload jsonb, attempt integer, max_attempts integer,
    created_at timestamptz, died_at timestamptz, reason text, last_error text, errors jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET enable_incremental_sort = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM {{schema}}.check_queue(p_queue);
    PERFORM {{schema}}.check_limit(p_limit, 10000);
    RETURN QUERY
    SELECT d.id, d.queue, d.kind, d.priority, d.payload, d.attempt, d.max_attempts, d.created_at, d.died_at, d.reason, d.last_error, d.errors
    -- A range of queues, though of one, so that only dead_queue has this order.
    FROM {{schema}}.dead d WHERE (d.queue, d.id) > (p_queue, coalesce(p_after, 0)) AND d.queue <= p_queue ORDER BY d.queue, d.id LIMIT p_limit;
END $$;
COMMENT ON FUNCTION {{schema}}.list_dead(text, integer, bigint) IS
'Returns up to limit (1 to 10000) dead letters of the queue by rising id, those after the id given. Errors: JQ001 no such queue; JQ005 bad argument.';

CREATE FUNCTION {{schema}}.requeue(p_queue text, p_ids bigint[]) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ids bigint[];
BEGIN
    PERFORM {{schema}}.check_queue(p_queue);
    PERFORM {{schema}}.check_array('ids', p_ids, 'an array of job ids, which may be empty');
    WITH gone AS (
        -- No index can serve the queue written so, which leaves the primary key.
        DELETE FROM {{schema}}.dead d WHERE d.id = ANY (p_ids) AND d.queue IS NOT DISTINCT FROM p_queue RETURNING d.*
    ), added AS (
        INSERT INTO {{schema}}.waiting AS j (id, available_at, created_at, max_attempts, priority, state, queue, kind, payload, last_error, errors)
        SELECT g.id, v_now, g.created_at, g.max_attempts, g.priority, 'pending', g.queue, g.kind, g.payload, g.last_error, g.errors
        FROM gone g
        RETURNING j.id
    )
    SELECT coalesce(array_agg(a.id), '{}') INTO v_ids FROM added a;
    IF cardinality(v_ids) > 0 THEN
        PERFORM pg_notify({{schema_literal}}, p_queue);
    END IF;
    RETURN QUERY SELECT unnest(v_ids);
END $$;
COMMENT ON FUNCTION {{schema}}.requeue(text, bigint[]) IS
'Makes dead letters of the queue pending, with all their attempts and the same ids, and returns the ids found. Errors: JQ001 no such queue; JQ005 bad argument.';

CREATE FUNCTION {{schema}}.requeue_kind(p_queue text, p_kind text DEFAULT NULL, p_limit integer DEFAULT 1000) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM {{schema}}.check_queue(p_queue);
    PERFORM {{schema}}.check_limit(p_limit, 100000);
    -- As in list_dead.
    v_ids := ARRAY(
        SELECT d.id FROM {{schema}}.dead d WHERE d.queue >= p_queue AND d.queue <= p_queue AND (p_kind IS NULL OR d.kind = p_kind)
        ORDER BY d.queue, d.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    RETURN QUERY SELECT r.id FROM {{schema}}.requeue(p_queue, v_ids) r;
END $$;
COMMENT ON FUNCTION {{schema}}.requeue_kind(text, text, integer) IS
'Requeues up to limit (1 to 100000) dead letters of the queue, of one kind or of any if null, by rising id, and returns their ids. Errors: JQ001 no such queue; JQ005 bad argument.';

CREATE FUNCTION {{schema}}.purge_dead(p_queue text, p_older_than_seconds double precision DEFAULT 0, p_limit integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_before timestamptz;
    v_ids    bigint[];
BEGIN
    PERFORM {{schema}}.check_queue(p_queue);
    PERFORM {{schema}}.check_limit(p_limit, 100000);
    IF p_older_than_seconds IS NULL OR p_older_than_seconds NOT BETWEEN 0 AND 3153600000 THEN
        PERFORM {{schema}}.bad_argument('older_than_seconds', p_older_than_seconds::text, '0 to 3153600000 (a hundred years)');
    END IF;
    v_before := clock_timestamp() - make_interval(secs => p_older_than_seconds);
    v_ids := ARRAY(
        SELECT d.id FROM {{schema}}.dead d
        WHERE d.queue = p_queue AND d.died_at <= v_before
        ORDER BY d.died_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    DELETE FROM {{schema}}.dead d WHERE d.id = ANY (v_ids);
    RETURN cardinality(v_ids);
END $$;
COMMENT ON FUNCTION {{schema}}.purge_dead(text, double precision, integer) IS
'Deletes up to limit (1 to 100000) dead letters of the queue that died at least older_than_seconds ago, the oldest first, and returns how many. Errors: JQ001 no such queue; JQ005 bad argument.';
