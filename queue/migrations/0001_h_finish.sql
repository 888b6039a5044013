-- Finishing. All of it is fenced by (id, token), and none of it touches the
-- worker's row, so that a handler may finish its job in its own long transaction
-- without holding up the worker's heartbeats. It waits half a second for a row that
-- another session has locked: results must not hang on one job that somebody
-- cancels in a transaction left open.

-- Marks runs as succeeded, their batches being locked. p_ms: for each, how long its
-- runs took in all, or null for what has passed since their claim. At least a millisecond
-- is counted, so that a mean is never 0, which would stand for nothing known.
CREATE FUNCTION {{schema}}.mark_succeeded(p_keys bytea[], p_masks varbit[], p_ms double precision[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    WITH m AS MATERIALIZED (
        SELECT b.place, m.mask, m.ms
        FROM unnest(p_keys, p_masks, p_ms) m (key, mask, ms)
        CROSS JOIN LATERAL (SELECT x.ctid AS place FROM {{schema}}.batches x WHERE x.key = m.key OFFSET 0) b
    ), done AS (
        UPDATE {{schema}}.batches b
        SET open = b.open & ~m.mask, succeeded = b.succeeded | m.mask,
            finished_at = CASE WHEN bit_count(b.open & ~m.mask) = 0 THEN v_now END
        FROM m WHERE b.ctid = m.place
        RETURNING b.key, b.queue, b.started_at, b.finished_at, m.mask, m.ms, bit_count(m.mask) AS runs
    ), timed AS (
        INSERT INTO {{schema}}.batch_ends (key, ended_at, runs) SELECT d.key, v_now, d.mask FROM done d WHERE d.finished_at IS NULL
    )
    INSERT INTO {{schema}}.tallies (queue, succeeded, execution_ms)
    SELECT d.queue, sum(d.runs), ceil(sum(coalesce(d.ms, d.runs * greatest(extract(epoch FROM v_now - d.started_at)::double precision * 1000, 0))))::bigint
    FROM done d GROUP BY d.queue;
END $$;

CREATE FUNCTION {{schema}}.succeed(p_ids bigint[], p_tokens uuid[], p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v record;
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    SELECT * INTO v FROM {{schema}}.lock_named(p_ids, p_tokens, p_worker);
    IF cardinality(v.keys) > 0 THEN
        PERFORM {{schema}}.mark_succeeded(v.keys, v.masks, NULL);
        RETURN QUERY
        SELECT i.id FROM unnest(v.keys, v.masks) m (key, mask)
        CROSS JOIN LATERAL (SELECT x.ids FROM {{schema}}.batches x WHERE x.key = m.key OFFSET 0) b
        CROSS JOIN LATERAL unnest(b.ids) WITH ORDINALITY i (id, n) WHERE get_bit(m.mask, (i.n - 1)::integer) = 1;
    END IF;
END $$;
COMMENT ON FUNCTION {{schema}}.succeed(bigint[], uuid[], uuid) IS
'Finishes runs as succeeded and returns the ids accepted; the others were refused because their lease was lost, and their results must be dropped. In the handler''s own transaction, the job is finished if and only if that commits: check the result before committing. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

-- The same for clients that finish many, at a cost per batch and not per run.
CREATE FUNCTION {{schema}}.succeed_many(p_keys bytea[], p_runs varbit[], p_id_xors bigint[], p_worker uuid DEFAULT NULL,
    p_skip_locked boolean DEFAULT false, p_execution_ms double precision[] DEFAULT NULL)
RETURNS TABLE (key bytea, runs varbit)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_keys  bytea[];
    v_masks varbit[];
    v_ms    double precision[];
    v_bad   record;
BEGIN
    PERFORM {{schema}}.check_array('keys', p_keys, 'an array of batch keys');
    PERFORM {{schema}}.check_array('runs', p_runs, 'an array of bit strings, one for each key');
    PERFORM {{schema}}.check_array('id_xors', p_id_xors, 'an array of numbers, one for each key');
    IF cardinality(p_runs) <> cardinality(p_keys) THEN
        PERFORM {{schema}}.bad_argument('runs', 'an array of ' || cardinality(p_runs), format('as many as keys, which are %s', cardinality(p_keys)));
    ELSIF cardinality(p_id_xors) <> cardinality(p_keys) THEN
        PERFORM {{schema}}.bad_argument('id_xors', 'an array of ' || cardinality(p_id_xors), format('as many as keys, which are %s', cardinality(p_keys)));
    ELSIF cardinality(p_keys) > 1 AND (SELECT count(DISTINCT k) FROM unnest(p_keys) k) < cardinality(p_keys) THEN
        PERFORM {{schema}}.bad_argument('keys', 'an array with a key twice', 'each key once');
    ELSIF p_execution_ms IS NOT NULL THEN
        PERFORM {{schema}}.check_array('execution_ms', p_execution_ms, 'null, or an array of numbers, one for each key');
        IF cardinality(p_execution_ms) <> cardinality(p_keys) THEN
            PERFORM {{schema}}.bad_argument('execution_ms', 'an array of ' || cardinality(p_execution_ms), format('as many as keys, which are %s', cardinality(p_keys)));
        END IF;
        SELECT u.ms, u.n INTO v_bad FROM unnest(p_execution_ms) WITH ORDINALITY u (ms, n) WHERE u.ms NOT BETWEEN 0 AND 1e15 LIMIT 1;
        IF FOUND THEN
            PERFORM {{schema}}.bad_argument(format('execution_ms[%s]', v_bad.n), v_bad.ms::text, '0 to 1e15');
        END IF;
    END IF;
    v_keys := p_keys;
    IF p_skip_locked THEN
        v_keys := ARRAY(SELECT b.key FROM {{schema}}.batches b WHERE b.key = ANY (p_keys) ORDER BY b.key FOR UPDATE SKIP LOCKED);
        IF cardinality(v_keys) < cardinality(p_keys) THEN
            RETURN QUERY
            SELECT k, NULL::varbit FROM unnest(p_keys) k
            WHERE k <> ALL (v_keys) AND EXISTS (SELECT 1 FROM {{schema}}.batches b WHERE b.key = k);
        END IF;
    ELSE
        PERFORM 1 FROM {{schema}}.batches b WHERE b.key = ANY (p_keys) ORDER BY b.key FOR UPDATE;
    END IF;
    -- A bit string is as long as its client saw fit: made as long as the batch's here,
    -- once. Of each run no more is counted than the longest timeout that a policy may have:
    -- a wrong number is not to spoil the totals, but a result is worth more than its time. That
    -- all batches were locked is the rule: none of them is then looked for among all.
    WITH f AS MATERIALIZED (
        SELECT b.key, b.open, b.ids, m.id_xor, m.ms, substring(m.runs || (b.open & ~b.open) FROM 1 FOR length(b.open))::varbit AS mask
        FROM unnest(p_keys, p_runs, p_id_xors, p_execution_ms) m (key, runs, id_xor, ms)
        CROSS JOIN LATERAL (SELECT * FROM {{schema}}.batches x WHERE x.key = m.key OFFSET 0) b
        WHERE (cardinality(v_keys) = cardinality(p_keys) OR m.key = ANY (v_keys)) AND (p_worker IS NULL OR b.worker_id = p_worker)
    )
    SELECT array_agg(f.key), array_agg(f.mask & f.open), array_agg(CASE WHEN f.ms IS NOT NULL THEN
               least(f.ms, 2592000000 * bit_count(f.mask)) * bit_count(f.mask & f.open) / bit_count(f.mask) END) INTO v_keys, v_masks, v_ms FROM f
    WHERE bit_count(f.mask & f.open) > 0
      AND f.id_xor = (SELECT bit_xor(i.id) FROM unnest(f.ids) WITH ORDINALITY i (id, n) WHERE get_bit(f.mask, (i.n - 1)::integer) = 1);
    IF v_keys IS NOT NULL THEN
        PERFORM {{schema}}.mark_succeeded(v_keys, v_masks, v_ms);
        RETURN QUERY SELECT m.key, m.runs FROM unnest(v_keys, v_masks) m (key, runs);
    END IF;
END $$;
COMMENT ON FUNCTION {{schema}}.succeed_many(bytea[], varbit[], bigint[], uuid, boolean, double precision[]) IS
'Finishes runs as succeeded, as succeed does, named by batch. keys: the first 14 bytes of the runs'' tokens, each once. runs: for each key, bits set at the places of the runs, which are the last two bytes of their tokens as a number. id_xors: for each key, the exclusive or of the ids of those jobs; what does not match is refused as a whole. Returns for each key with any the runs accepted. With skip_locked, it does not wait for batches that other sessions have locked, and returns null for them: nothing has become of those runs, try again. execution_ms: for each key, how many milliseconds its runs took in all (0 to 1e15, of which thirty days are counted for a run at most), for the queue''s totals; null for the time since the claim, in which a job may have waited for its turn. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.discard(p_ids bigint[], p_tokens uuid[], p_reasons text[] DEFAULT NULL, p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v     record;
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    PERFORM {{schema}}.check_for_each('reasons', p_reasons, p_ids);
    SELECT * INTO v FROM {{schema}}.lock_named(p_ids, p_tokens, p_worker);
    RETURN QUERY
    WITH runs AS (
        SELECT * FROM {{schema}}.jobs_of(v.keys, v.masks)
    ), kept AS (
        INSERT INTO {{schema}}.ended (id, created_at, started_at, finished_at, worker_id, attempt, priority, state, queue, kind, payload, reason)
        SELECT (r.job).id, (r.job).created_at, r.started_at, v_now, r.worker_id, (r.job).attempt + 1, (r.job).priority, 'discarded',
               (r.job).queue, (r.job).kind, (r.job).payload,
               left(p_reasons[{{schema}}.element_of(p_ids, p_tokens, (r.job).id, {{schema}}.run_token(r.key, r.slot))], 4000)
        FROM runs r
    ), counted AS (
        INSERT INTO {{schema}}.tallies (queue, discarded, execution_ms)
        SELECT (r.job).queue, count(*), sum(greatest(extract(epoch FROM v_now - r.started_at)::double precision * 1000, 0))::bigint
        FROM runs r GROUP BY 1
    )
    SELECT (r.job).id FROM runs r;
    PERFORM {{schema}}.close_runs(v.keys, v.masks);
END $$;
COMMENT ON FUNCTION {{schema}}.discard(bigint[], uuid[], text[], uuid) IS
'Finishes runs as discarded: refused by a business rule, neither a success nor a failure. reasons: null for none, or one for each id, of which 4000 characters are kept. Returns the ids accepted. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.snooze(p_ids bigint[], p_tokens uuid[], p_delay_seconds double precision[], p_worker uuid DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v     record;
    v_bad record;
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    PERFORM {{schema}}.check_array('delay_seconds', p_delay_seconds, 'an array of numbers, one for each id');
    PERFORM {{schema}}.check_for_each('delay_seconds', p_delay_seconds, p_ids);
    SELECT u.delay, u.n INTO v_bad FROM unnest(p_delay_seconds) WITH ORDINALITY u (delay, n)
    WHERE u.delay NOT BETWEEN 0 AND 3153600000 LIMIT 1;
    IF FOUND THEN
        PERFORM {{schema}}.bad_argument(format('delay_seconds[%s]', v_bad.n), v_bad.delay::text, '0 to 3153600000 (a hundred years)');
    END IF;
    SELECT * INTO v FROM {{schema}}.lock_named(p_ids, p_tokens, p_worker);
    RETURN QUERY
    INSERT INTO {{schema}}.waiting AS w (id, available_at, created_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors)
    SELECT (r.job).id, v_now + make_interval(secs => d.delay), (r.job).created_at, (r.job).attempt, (r.job).max_attempts, (r.job).priority,
           CASE WHEN d.delay > 0 THEN 'scheduled'::{{schema}}.waiting_state ELSE 'pending' END,
           (r.job).queue, (r.job).kind, (r.job).payload, (r.job).last_error, (r.job).errors
    FROM {{schema}}.jobs_of(v.keys, v.masks) r
    CROSS JOIN LATERAL (SELECT p_delay_seconds[{{schema}}.element_of(p_ids, p_tokens, (r.job).id, {{schema}}.run_token(r.key, r.slot))] AS delay OFFSET 0) d
    RETURNING w.id;
    PERFORM {{schema}}.close_runs(v.keys, v.masks);
END $$;
COMMENT ON FUNCTION {{schema}}.snooze(bigint[], uuid[], double precision[], uuid) IS
'Puts runs off, each by its element of delay_seconds, the attempt not counted. Returns the ids accepted. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.fail(
    p_ids bigint[], p_tokens uuid[], p_errors text[], p_permanent boolean[] DEFAULT NULL,
    p_retry_after_seconds double precision[] DEFAULT NULL, p_worker uuid DEFAULT NULL
) RETURNS TABLE (id bigint, dead boolean, retry_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_bad record;
    v     record;
    r     record;
    j     {{schema}}.waiting;
    k     integer;
    q     {{schema}}.queues;
    v_queue  text;
    v_failed integer := 0;
    v_ms     double precision := 0;
BEGIN
    PERFORM {{schema}}.check_refs(p_ids, p_tokens);
    PERFORM {{schema}}.check_array('errors', p_errors, 'an array of messages, one for each id');
    PERFORM {{schema}}.check_for_each('errors', p_errors, p_ids);
    PERFORM {{schema}}.check_for_each('permanent', p_permanent, p_ids);
    PERFORM {{schema}}.check_for_each('retry_after_seconds', p_retry_after_seconds, p_ids);
    SELECT u.delay, u.n INTO v_bad FROM unnest(p_retry_after_seconds) WITH ORDINALITY u (delay, n)
    WHERE u.delay NOT BETWEEN 0 AND 3153600000 LIMIT 1;
    IF FOUND THEN
        PERFORM {{schema}}.bad_argument(format('retry_after_seconds[%s]', v_bad.n), v_bad.delay::text,
            '0 to 3153600000 (a hundred years); 0 or null for the queue''s backoff');
    END IF;

    SELECT * INTO v FROM {{schema}}.lock_named(p_ids, p_tokens, p_worker);
    -- One after the other, in order of id: failures are few, or else the queue has
    -- other worries than these microseconds.
    FOR r IN SELECT x.*, (x.job).queue AS queue FROM {{schema}}.jobs_of(v.keys, v.masks) x ORDER BY (x.job).id LOOP
        j := r.job;
        id := j.id;
        k := {{schema}}.element_of(p_ids, p_tokens, id, {{schema}}.run_token(r.key, r.slot));
        j.attempt := j.attempt + 1;
        dead := j.attempt >= j.max_attempts OR p_permanent[k] IS TRUE;
        retry_at := NULL;
        j.last_error := left(p_errors[k], 4000);
        j.errors := {{schema}}.push_error(j.errors, j.attempt, v_now, j.last_error);
        IF dead THEN
            INSERT INTO {{schema}}.dead (id, created_at, died_at, worker_id, attempt, max_attempts, priority, queue, kind, payload, reason, last_error, errors)
            VALUES (j.id, j.created_at, v_now, r.worker_id, j.attempt, j.max_attempts, j.priority, j.queue, j.kind, j.payload,
                    CASE WHEN p_permanent[k] THEN 'permanent failure' ELSE 'attempts exhausted' END, j.last_error, j.errors);
        ELSE
            IF q.name IS DISTINCT FROM j.queue THEN
                SELECT * INTO q FROM {{schema}}.queues s WHERE s.name = j.queue;
            END IF;
            retry_at := v_now + CASE WHEN p_retry_after_seconds[k] > 0 THEN make_interval(secs => p_retry_after_seconds[k])
                ELSE {{schema}}.backoff(q.backoff_base, q.backoff_max, q.backoff_jitter, j.attempt) END;
            INSERT INTO {{schema}}.waiting (id, available_at, created_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors)
            VALUES (j.id, retry_at, j.created_at, j.attempt, j.max_attempts, j.priority, 'scheduled', j.queue, j.kind, j.payload, j.last_error, j.errors);
        END IF;
        IF v_queue IS DISTINCT FROM j.queue THEN
            INSERT INTO {{schema}}.tallies (queue, failed, execution_ms) SELECT v_queue, v_failed, v_ms WHERE v_failed > 0;
            v_queue := j.queue; v_failed := 0; v_ms := 0;
        END IF;
        v_failed := v_failed + 1;
        v_ms := v_ms + greatest(extract(epoch FROM v_now - r.started_at)::double precision * 1000, 0);
        RETURN NEXT;
    END LOOP;
    INSERT INTO {{schema}}.tallies (queue, failed, execution_ms) SELECT v_queue, v_failed, v_ms WHERE v_failed > 0;
    PERFORM {{schema}}.close_runs(v.keys, v.masks);
END $$;
COMMENT ON FUNCTION {{schema}}.fail(bigint[], uuid[], text[], boolean[], double precision[], uuid) IS
'Records failed attempts. A job with attempts left is scheduled again after retry_after_seconds, or if that is null or 0 after min(backoff_max, backoff_base * 2^(attempt-1)) ± jitter; one without, or whose failure is permanent, goes to the dead letters.
errors: the messages, kept to 4000 characters; permanent and retry_after_seconds: null for none; all as many as ids. Returns a row for each failure accepted: dead, or when the next attempt is due. worker: if not null, the runs must be this worker''s too. Errors: JQ005 bad argument.';

CREATE FUNCTION {{schema}}.cancel(p_ids bigint[], p_reason text DEFAULT NULL) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_gone  bigint[] := '{}';
    v_some  bigint[];
    v_keys  bytea[];
    v_masks varbit[];
BEGIN
    PERFORM {{schema}}.check_array('ids', p_ids, 'an array of job ids, which may be empty');
    -- A job may be claimed while the running ones are looked at, or put back while
    -- the waiting ones are, so both are looked at twice.
    FOR i IN 1 .. 2 LOOP
        WITH found AS (
            DELETE FROM {{schema}}.waiting w WHERE w.id = ANY (p_ids) RETURNING w.*
        ), kept AS (
            INSERT INTO {{schema}}.ended (id, created_at, started_at, finished_at, worker_id, attempt, priority, state, queue, kind, payload, reason)
            SELECT f.id, f.created_at, NULL, v_now, NULL, f.attempt, f.priority, 'cancelled', f.queue, f.kind, f.payload, left(p_reason, 4000)
            FROM found f
        ), counted AS (
            INSERT INTO {{schema}}.tallies (queue, cancelled) SELECT f.queue, count(*) FROM found f GROUP BY f.queue
        )
        SELECT array_agg(f.id) INTO v_some FROM found f;
        v_gone := v_gone || coalesce(v_some, '{}');

        v_keys := ARRAY(
            SELECT DISTINCT b.key
            FROM (SELECT unnest(p_ids) EXCEPT SELECT unnest(v_gone)) x (id) CROSS JOIN LATERAL {{schema}}.batches_around(x.id) b
            WHERE b.finished_at IS NULL AND x.id = ANY (b.ids));
        PERFORM 1 FROM {{schema}}.batches b WHERE b.key = ANY (v_keys) ORDER BY b.key FOR UPDATE;
        SELECT array_agg(m.key), array_agg(m.mask) INTO v_keys, v_masks
        FROM (SELECT b.key, (b.open & (SELECT bit_or(set_bit(b.open & ~b.open, (x.n - 1)::integer, 1))
                                       FROM unnest(b.ids) WITH ORDINALITY x (id, n) WHERE x.id = ANY (p_ids)))::varbit AS mask
              FROM {{schema}}.batches b WHERE b.key = ANY (v_keys)) m
        WHERE bit_count(m.mask) > 0;
        WITH found AS (
            SELECT r.worker_id, r.started_at, (r.job).* FROM {{schema}}.jobs_of(v_keys, v_masks) r
        ), kept AS (
            INSERT INTO {{schema}}.ended (id, created_at, started_at, finished_at, worker_id, attempt, priority, state, queue, kind, payload, reason)
            SELECT f.id, f.created_at, f.started_at, v_now, f.worker_id, f.attempt + 1, f.priority, 'cancelled', f.queue, f.kind, f.payload, left(p_reason, 4000)
            FROM found f
        ), counted AS (
            INSERT INTO {{schema}}.tallies (queue, cancelled) SELECT f.queue, count(*) FROM found f GROUP BY f.queue
        )
        SELECT array_agg(f.id) INTO v_some FROM found f;
        v_gone := v_gone || coalesce(v_some, '{}');
        PERFORM {{schema}}.close_runs(v_keys, v_masks);
        EXIT WHEN cardinality(v_gone) >= cardinality(p_ids);
    END LOOP;
    RETURN QUERY SELECT unnest(v_gone);
END $$;
COMMENT ON FUNCTION {{schema}}.cancel(bigint[], text) IS
'Finishes live jobs as cancelled, scheduled, pending or running, and returns the ids that were live. A worker that runs one learns of it by its next heartbeat, and what it then reports is refused. reason is kept, cut to 4000 characters. It waits half a second for rows that others have locked, and then changes nothing (55P03). Errors: JQ005 bad argument.';
