-- Keeping and giving back what was claimed.
--
-- Fencing: rows are found by id = ANY (…), and the pair (id, token) is looked up
-- in a hash of the arguments. "OR false" keeps the planner from turning that
-- lookup into a join, whose order it might choose badly.

-- Makes running jobs, locked by the caller, pending again as if never claimed.
CREATE FUNCTION {{schema}}.put_back(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_queue text;
BEGIN
    UPDATE {{schema}}.jobs j
    SET state = 'pending', attempt = j.attempt - 1, token = NULL, worker_id = NULL, started_at = NULL, deadline = NULL
    WHERE j.id = ANY (p_ids);
    FOR v_queue IN SELECT DISTINCT j.queue FROM {{schema}}.jobs j WHERE j.id = ANY (p_ids) LOOP
        PERFORM {{schema}}.lower_marks(v_queue, p_ids);
        PERFORM pg_notify({{schema_literal}}, v_queue);
    END LOOP;
END $$;

CREATE FUNCTION {{schema}}.heartbeat(p_worker uuid, p_queue text, p_ids bigint[] DEFAULT '{}', p_tokens uuid[] DEFAULT '{}')
RETURNS TABLE (lost bigint[], lease_expires_at timestamptz, now timestamptz, policy jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    q      {{schema}}.queues;
    v_held bigint[];
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
    SELECT r.now, r.lease_expires_at INTO now, lease_expires_at FROM {{schema}}.renew(p_worker, p_queue, NULL, q.lease) r;
    v_held := ARRAY(
        SELECT j.id FROM {{schema}}.jobs j
        WHERE j.id = ANY (p_ids)
          AND ((j.id, j.token) IN (SELECT u.id, u.token FROM unnest(p_ids, p_tokens) u (id, token)) OR false));
    lost := ARRAY(SELECT unnest(p_ids) EXCEPT SELECT unnest(v_held));
    policy := {{schema}}.policy_json(q);
    PERFORM {{schema}}.fold('5 s');
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION {{schema}}.heartbeat(uuid, text, bigint[], uuid[]) IS
'Renews the lease of a worker, which is the lease of every job it runs, registering it anew if it had been removed; call it every heartbeat_seconds. One row is written whatever the number of jobs.
ids, tokens: the runs the worker believes it holds. lost: those among them that it does not hold any more; stop them and drop their results. now and lease_expires_at: by the database''s clock. policy: the queue''s, as get_policy returns it.
Errors: JQ001 no such queue; JQ005 bad argument; JQ006 the worker id serves another queue.';

CREATE FUNCTION {{schema}}.release(p_ids bigint[], p_tokens uuid[], p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    v_ids := ARRAY(
        SELECT j.id FROM {{schema}}.jobs j
        WHERE j.id = ANY (p_ids) AND (p_worker IS NULL OR j.worker_id = p_worker)
          AND ((j.id, j.token) IN (SELECT u.id, u.token FROM unnest(p_ids, p_tokens) u (id, token)) OR false)
        FOR UPDATE);
    IF cardinality(v_ids) > 0 THEN
        PERFORM {{schema}}.put_back(v_ids);
    END IF;
    RETURN QUERY SELECT unnest(v_ids);
END $$;
COMMENT ON FUNCTION {{schema}}.release(bigint[], uuid[], uuid) IS
'Gives runs back unfinished: pending at once, in their old place, the attempt not counted. Returns the ids accepted; the others were not owned any more. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.unregister(p_worker uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM 1 FROM {{schema}}.workers w WHERE w.id = p_worker FOR UPDATE;
    -- A locked job may be one that a concurrent claim has just looked at, which
    -- takes a moment, or one that is being finished in a handler's transaction,
    -- which may take long. So wait, but not for ever: what is left then, and is
    -- not finished, the reaper finds without a worker.
    FOR i IN 1 .. 25 LOOP
        v_ids := ARRAY(
            SELECT j.id FROM {{schema}}.jobs j WHERE j.state = 'running' AND j.worker_id = p_worker FOR UPDATE SKIP LOCKED);
        IF cardinality(v_ids) > 0 THEN
            PERFORM {{schema}}.put_back(v_ids);
        END IF;
        EXIT WHEN NOT EXISTS (SELECT 1 FROM {{schema}}.jobs j WHERE j.state = 'running' AND j.worker_id = p_worker);
        PERFORM pg_sleep(0.01);
    END LOOP;
    DELETE FROM {{schema}}.workers w WHERE w.id = p_worker;
    PERFORM {{schema}}.fold('0 s');
END $$;
COMMENT ON FUNCTION {{schema}}.unregister(uuid) IS
'Releases every run that the worker still holds and removes its row. Call it last when a worker shuts down. An unknown worker is not an error.';
