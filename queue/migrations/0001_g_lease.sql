-- Keeping and giving back what was claimed.

-- Makes running jobs, whose batches the caller has locked, pending again as if
-- never claimed.
CREATE FUNCTION {{schema}}.put_back(p_keys bytea[], p_masks varbit[]) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_ids   bigint[];
    v_queue text;
BEGIN
    WITH back AS (
        INSERT INTO {{schema}}.waiting AS w SELECT (r.job).* FROM {{schema}}.jobs_of(p_keys, p_masks) r RETURNING w.id
    )
    SELECT array_agg(b.id) INTO v_ids FROM back b;
    PERFORM {{schema}}.close_runs(p_keys, p_masks);
    FOR v_queue IN SELECT DISTINCT w.queue FROM {{schema}}.waiting w WHERE w.id = ANY (v_ids) LOOP
        PERFORM {{schema}}.lower_marks(v_queue, v_ids);
        PERFORM pg_notify({{schema_literal}}, v_queue);
    END LOOP;
    RETURN QUERY SELECT unnest(v_ids);
END $$;

CREATE FUNCTION {{schema}}.heartbeat(p_worker uuid, p_queue text, p_ids bigint[] DEFAULT '{}', p_tokens uuid[] DEFAULT '{}')
RETURNS TABLE (lost uuid[], lease_expires_at timestamptz, now timestamptz, policy jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    q      {{schema}}.queues;
    v_held uuid[];
BEGIN
    SELECT * INTO q FROM {{schema}}.queues s WHERE s.name = p_queue;
    IF NOT FOUND THEN
        PERFORM {{schema}}.no_such_queue(p_queue);
    END IF;
    IF p_worker IS NULL OR p_worker = '00000000-0000-0000-0000-000000000000' THEN
        PERFORM {{schema}}.bad_argument('worker', p_worker::text, 'a random UUID that the worker process made when it started');
    END IF;
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    -- The worker's row first, then the jobs: the order in which the reaper locks.
    SELECT r.now, r.lease_expires_at INTO now, lease_expires_at FROM {{schema}}.renew(p_worker, p_queue, NULL, false, NULL, q.lease) r;
    v_held := ARRAY(
        SELECT {{schema}}.run_token(n.key, i.n - 1)
        FROM {{schema}}.named(p_ids, p_tokens) n
        CROSS JOIN LATERAL (SELECT * FROM {{schema}}.batches x WHERE x.key = n.key OFFSET 0) b
        CROSS JOIN LATERAL {{schema}}.open_mask(b.open, b.ids, n.ids, n.slots) mask
        CROSS JOIN LATERAL unnest(b.ids) WITH ORDINALITY i (id, n)
        WHERE b.worker_id = p_worker AND get_bit(mask, (i.n - 1)::integer) = 1);
    lost := ARRAY(SELECT unnest(p_tokens) EXCEPT SELECT unnest(v_held));
    policy := {{schema}}.policy_json(q);
    PERFORM {{schema}}.fold('5 s');
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION {{schema}}.heartbeat(uuid, text, bigint[], uuid[]) IS
'Renews the lease of a worker, which is the lease of every job it runs, registering it anew if it had been removed; call it every heartbeat_seconds. One row is written whatever the number of jobs.
ids, tokens: the runs the worker believes it holds. lost: the tokens of those among them that it does not hold, or not any more; stop them and drop their results. Call it outside a transaction: one that stays open keeps others from folding the counts. now and lease_expires_at: by the database''s clock. policy: the queue''s, as get_policy returns it.
Errors: JQ001 no such queue; JQ005 bad argument; JQ006 the worker id serves another queue.';

CREATE FUNCTION {{schema}}.release(p_ids bigint[], p_tokens uuid[], p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v record;
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    SELECT * INTO v FROM {{schema}}.lock_named(p_ids, p_tokens, p_worker);
    IF cardinality(v.keys) > 0 THEN
        RETURN QUERY SELECT * FROM {{schema}}.put_back(v.keys, v.masks);
    END IF;
END $$;
COMMENT ON FUNCTION {{schema}}.release(bigint[], uuid[], uuid) IS
'Gives runs back unfinished: pending at once, in their old place, the attempt not counted. Returns the ids accepted; the others were not owned any more. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

-- The worker's batches with open runs that are not named, and these runs, locked unless
-- others have locked them; those of which all runs are named are not even locked. Named
-- runs are grouped once and found by a hash, or each batch would look through all of them.
CREATE FUNCTION {{schema}}.lock_unnamed(p_worker uuid, p_ids bigint[], p_tokens uuid[], OUT keys bytea[], OUT masks varbit[])
LANGUAGE plpgsql SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    SELECT array_agg(o.key), array_agg(o.mask) INTO keys, masks
    FROM (SELECT b.key, b.open & ~{{schema}}.open_mask(b.open, b.ids, n.ids, n.slots) AS mask
          FROM {{schema}}.batches b
          LEFT JOIN {{schema}}.named(p_ids, p_tokens) n ON n.key = b.key
          WHERE b.finished_at IS NULL AND b.worker_id = p_worker
            AND bit_count(b.open & ~{{schema}}.open_mask(b.open, b.ids, n.ids, n.slots)) > 0
          FOR UPDATE OF b SKIP LOCKED) o;
END $$;

CREATE FUNCTION {{schema}}.disown(p_worker uuid, p_ids bigint[], p_tokens uuid[]) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_keys  bytea[];
    v_masks varbit[];
BEGIN
    IF p_worker IS NULL THEN
        PERFORM {{schema}}.bad_argument('worker', NULL, 'the id of a worker');
    END IF;
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    SELECT o.keys, o.masks INTO v_keys, v_masks FROM {{schema}}.lock_unnamed(p_worker, p_ids, p_tokens) o;
    IF v_keys IS NOT NULL THEN
        RETURN QUERY SELECT * FROM {{schema}}.put_back(v_keys, v_masks);
    END IF;
END $$;
COMMENT ON FUNCTION {{schema}}.disown(uuid, bigint[], uuid[]) IS
'Gives back every run of the worker but those named, as release does, and returns the ids: for what a claim took whose answer was lost, while other runs of the worker go on. Call it when no claim of the worker is under way, and go on under another worker id; call it again with each heartbeat, because the lost claim may end in the database later, and locked rows are passed over. An unknown worker is not an error. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.unregister(p_worker uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_keys  bytea[];
    v_masks varbit[];
BEGIN
    IF p_worker IS NULL THEN
        PERFORM {{schema}}.bad_argument('worker', NULL, 'the id of a worker');
    END IF;
    PERFORM 1 FROM {{schema}}.workers w WHERE w.id = p_worker FOR UPDATE;
    -- A locked batch may be one whose results are just being written, which takes
    -- a moment, or hold a job that is being finished in a handler's transaction,
    -- which may take long. So wait, but not for ever: what is left then, and is
    -- not finished, the reaper finds without a worker.
    FOR i IN 1 .. 25 LOOP
        SELECT array_agg(o.key), array_agg(o.open) INTO v_keys, v_masks
        FROM (SELECT b.key, b.open FROM {{schema}}.batches b
              WHERE b.finished_at IS NULL AND b.worker_id = p_worker FOR UPDATE SKIP LOCKED) o;
        IF v_keys IS NOT NULL THEN
            PERFORM {{schema}}.put_back(v_keys, v_masks);
        END IF;
        EXIT WHEN NOT EXISTS (SELECT 1 FROM {{schema}}.batches b WHERE b.finished_at IS NULL AND b.worker_id = p_worker);
        PERFORM pg_sleep(0.01);
    END LOOP;
    DELETE FROM {{schema}}.workers w WHERE w.id = p_worker;
    PERFORM {{schema}}.fold('0 s');
END $$;
COMMENT ON FUNCTION {{schema}}.unregister(uuid) IS
'Releases every run that the worker still holds and removes its row. Call it last when a worker shuts down. An unknown worker is not an error. Errors: JQ005 bad argument.';
