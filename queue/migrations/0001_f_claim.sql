-- Taking jobs.
--
-- How the plans are held: every statement on waiting either names a literal state,
-- so that exactly one partial index fits, or looks rows up by id and names no
-- state, so that only the primary key does. With sequential and bitmap scans,
-- sorts, and joins that read a whole table priced out, there is one plan, whatever
-- the statistics say.

-- Makes due scheduled jobs pending, at most p_limit, the longest due first. A job
-- that was taken back from a dead worker goes to the place that it had, not
-- behind the backlog that came after it.
CREATE FUNCTION {{schema}}.promote(p_queue text, p_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now  timestamptz := clock_timestamp(); -- a variable can bound an index scan, the function cannot
    v_ids  bigint[];
    v_from timestamptz;
BEGIN
    SELECT k.due_from INTO v_from FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1;
    v_ids := ARRAY(
        SELECT j.id FROM {{schema}}.waiting j
        WHERE j.queue = p_queue AND j.state = 'scheduled'
          AND j.available_at <= v_now AND j.available_at >= coalesce(v_from, '-infinity')
        ORDER BY j.available_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    IF cardinality(v_ids) = 0 THEN
        RETURN 0;
    END IF;
    UPDATE {{schema}}.waiting j
    SET state = 'pending', available_at = coalesce(j.resume_at, j.available_at), resume_at = NULL
    WHERE j.id = ANY (v_ids);
    PERFORM {{schema}}.lower_marks(p_queue, v_ids);
    RETURN cardinality(v_ids);
END $$;

-- Large claims of a queue take turns: two at a time would each walk over the rows that
-- the other has locked, eight over those of seven. Small ones do not, for they would
-- wait for each other's commit longer than they walk. A turn ends with its transaction;
-- one that takes too long is not waited for, so that a claim left open in a transaction
-- holds nobody up.
CREATE FUNCTION {{schema}}.take_turn(p_queue text) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('jobqueue claim ' || {{schema_literal}} || ' ' || p_queue, 0));
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    NULL;
END $$;

-- Has this session keep the memory of its large claims. GNU's C library gives memory at
-- the end of its heap back to the system, unless it has seen pieces come and go of half
-- that size (mallopt(3), M_MMAP_THRESHOLD): a claim of thousands would touch a thousand
-- pages anew each time. So it is shown one, once: rpad asks for four bytes for each
-- character of UTF-8, 8 MB here, of which it touches a quarter.
CREATE FUNCTION {{schema}}.keep_memory() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_characters integer := 2000000; -- a variable, lest the plan keep the result
BEGIN
    IF current_setting('jobqueue.memory', true) IS DISTINCT FROM 'kept' THEN
        PERFORM length(rpad('', v_characters)), set_config('jobqueue.memory', 'kept', false);
    END IF;
END $$;

-- The work of claim, with one row per batch: its cost per job is smaller by far.
CREATE FUNCTION {{schema}}.claim_many(
    p_queue  text,
    p_worker uuid,
    p_limit  integer DEFAULT 1,
    p_kinds  text[]  DEFAULT NULL,
    p_pod    text    DEFAULT NULL,
    p_alone  text[]  DEFAULT NULL
) RETURNS TABLE (
    key bytea, ids bigint[], kinds text[], payloads jsonb[], priorities smallint[], attempts integer[], max_attempts integer[],
    created_ats timestamptz[], available_ats timestamptz[], started_at timestamptz, deadline timestamptz,
    timeout_ms bigint, lease_ms bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    q          record;
    v_marked   boolean;
    v_now      timestamptz := clock_timestamp();
    v_walk     bigint;
    v_most     integer; -- how many jobs to take at once
    v_got      integer; -- how many there were
    v_n        integer := 0;
    v_size     bigint;  -- of their payloads, as payload_memory
    v_bytes    bigint := 0;
    v_jobs     {{schema}}.waiting[]; -- of these, the ones that share a batch
    v_places   tid[];
    v_alone    tid[];                -- and those that do not
    v_priorities smallint[];
    v_ats      timestamptz[];
    v_ids      bigint[];
    v_min      bigint;
    v_max      bigint;
    v_priority smallint := -32768;   -- where in the order to go on
    v_at       timestamptz := '-infinity';
    v_id       bigint := -9223372036854775808;
BEGIN
    SELECT s.lease, s.timeout, s.suspended,
           w.queue AS worker_queue, w.pod AS worker_pod, w.kinds AS worker_kinds, w.lease_expires_at,
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
    IF p_kinds IS NOT NULL THEN
        PERFORM {{schema}}.check_array('kinds', p_kinds, 'null for all, or an array of kinds');
    END IF;
    IF p_alone IS NOT NULL THEN
        PERFORM {{schema}}.check_array('alone', p_alone, 'null for all, or an array of kinds');
    END IF;

    -- The worker's row is written only when its heartbeats are late, with less than half
    -- of the lease left: who writes it keeps it locked until the claim is committed, and a
    -- large claim over a slow network would make the heartbeats wait that keep what runs.
    -- A row that a heartbeat made does not name the pod and the kinds yet.
    IF q.worker_queue IS NULL OR q.worker_queue <> p_queue OR q.lease_expires_at < v_now + q.lease / 2 OR (q.worker_pod = '' AND p_pod <> '')
       OR q.worker_kinds IS DISTINCT FROM p_kinds THEN
        PERFORM {{schema}}.renew(p_worker, p_queue, p_pod, true, p_kinds, q.lease);
    END IF;
    IF q.suspended OR cardinality(p_kinds) = 0 THEN
        RETURN;
    END IF;

    v_marked := q.due_from > '-infinity';
    IF v_marked AND {{schema}}.is_stale(q.walked_at, q.walk_cost)
       AND pg_try_advisory_xact_lock(hashtextextended('jobqueue marks ' || {{schema_literal}} || ' ' || p_queue, 0)) THEN
        PERFORM {{schema}}.set_marks(p_queue, true);
        q.due_from := '-infinity';
    END IF;

    IF p_limit >= 200 THEN
        PERFORM {{schema}}.keep_memory();
        PERFORM {{schema}}.take_turn(p_queue);
    END IF;
    v_walk := {{schema}}.walked('{{name}}.waiting_ready') + {{schema}}.walked('{{name}}.waiting_scheduled');
    IF EXISTS (SELECT 1 FROM {{schema}}.waiting j
               WHERE j.queue = p_queue AND j.state = 'scheduled' AND j.available_at <= v_now
                 AND j.available_at >= q.due_from) THEN
        PERFORM {{schema}}.promote(p_queue, greatest(p_limit, 100));
    END IF;

    -- A job has a batch to itself if its kind is to, or if it is large (only what is
    -- large is compressed) or may be, with the errors it has had: a batch is one value,
    -- whose size is bounded thereby.
    --
    -- Jobs are taken some hundred at a time, fewer when they are large, each time from
    -- where the last one ended: memory that is used in small pieces is used again, while
    -- the C library gives pieces of 128 KiB and more back to the system each time.
    started_at := v_now;
    deadline := v_now + q.timeout + q.lease;
    timeout_ms := (extract(epoch FROM q.timeout) * 1000)::bigint;
    lease_ms := (extract(epoch FROM q.lease) * 1000)::bigint;
    v_most := least(p_limit, 200);
    LOOP
        IF v_marked THEN
            SELECT array_agg(f.job) FILTER (WHERE NOT f.alone), array_agg(f.place) FILTER (WHERE NOT f.alone),
                   array_agg(f.place) FILTER (WHERE f.alone), array_agg(f.priority), array_agg(f.available_at), array_agg(f.id), sum(f.size)
              INTO v_jobs, v_places, v_alone, v_priorities, v_ats, v_ids, v_size
            FROM (
                SELECT first.*
                FROM {{schema}}.ready_ranges(p_queue) r
                CROSS JOIN LATERAL (SELECT (r.lo_priority, r.lo_at, r.lo_id) < (v_priority, v_at, v_id) AS passed) been
                CROSS JOIN LATERAL (
                    SELECT w.priority, w.available_at, w.id, w.ctid AS place, big.size, big.alone, CASE WHEN NOT big.alone THEN w END AS job
                    FROM {{schema}}.waiting w
                    CROSS JOIN LATERAL (SELECT {{schema}}.payload_memory(w.payload) AS size, p_alone IS NULL OR w.kind = ANY (p_alone)
                        OR pg_column_size(w.payload) > 2000 OR pg_column_compression(w.payload) IS NOT NULL OR w.errors IS NOT NULL AS alone) big
                    WHERE w.queue = p_queue AND w.state = 'pending'
                      AND (w.priority, w.available_at, w.id) >= (CASE WHEN been.passed THEN v_priority ELSE r.lo_priority END,
                           CASE WHEN been.passed THEN v_at ELSE r.lo_at END, CASE WHEN been.passed THEN v_id ELSE r.lo_id END)
                      AND w.priority < r.hi_priority AND (p_kinds IS NULL OR w.kind = ANY (p_kinds))
                    ORDER BY w.priority, w.available_at, w.id LIMIT v_most FOR UPDATE OF w SKIP LOCKED) first
                LIMIT v_most) f;
        ELSE
            SELECT array_agg(f.job) FILTER (WHERE NOT f.alone), array_agg(f.place) FILTER (WHERE NOT f.alone),
                   array_agg(f.place) FILTER (WHERE f.alone), array_agg(f.priority), array_agg(f.available_at), array_agg(f.id), sum(f.size)
              INTO v_jobs, v_places, v_alone, v_priorities, v_ats, v_ids, v_size
            FROM (
                SELECT w.priority, w.available_at, w.id, w.ctid AS place, big.size, big.alone, CASE WHEN NOT big.alone THEN w END AS job
                FROM {{schema}}.waiting w
                CROSS JOIN LATERAL (SELECT {{schema}}.payload_memory(w.payload) AS size, p_alone IS NULL OR w.kind = ANY (p_alone)
                    OR pg_column_size(w.payload) > 2000 OR pg_column_compression(w.payload) IS NOT NULL OR w.errors IS NOT NULL AS alone) big
                WHERE w.queue = p_queue AND w.state = 'pending' AND (p_kinds IS NULL OR w.kind = ANY (p_kinds))
                  AND (w.priority, w.available_at, w.id) >= (v_priority, v_at, v_id)
                ORDER BY w.priority, w.available_at, w.id LIMIT v_most FOR UPDATE OF w SKIP LOCKED) f;
        END IF;
        v_got := coalesce(cardinality(v_ids), 0);
        v_n := v_n + v_got;
        v_bytes := v_bytes + coalesce(v_size, 0);
        IF v_bytes > 8388608 AND v_alone IS NOT NULL THEN
            -- More than a worker may have the memory for. What is large is alone and not taken
            -- yet, so it goes on waiting, but for what makes the 8 MiB full.
            v_n := v_n - cardinality(v_alone);
            v_alone := ARRAY(
                SELECT s.place
                FROM (SELECT w.ctid AS place, {{schema}}.payload_memory(w.payload) AS size,
                             sum({{schema}}.payload_memory(w.payload)) OVER (ORDER BY w.priority, w.available_at, w.id) AS upto
                      FROM {{schema}}.waiting w WHERE w.ctid = ANY (v_alone)) s
                WHERE s.upto - s.size <= 8388608 - (v_bytes - v_size));
            v_n := v_n + cardinality(v_alone);
        END IF;
        IF v_alone IS NOT NULL THEN
            RETURN QUERY
            WITH gone AS (
                DELETE FROM {{schema}}.waiting w WHERE w.ctid = ANY (v_alone) RETURNING w AS job, w.id
            ), taken AS (
                INSERT INTO {{schema}}.batches AS b (started_at, deadline, worker_id, min_id, max_id, key, open, succeeded, queue, ids, jobs)
                SELECT started_at, deadline, p_worker, g.id, g.id, {{schema}}.new_batch_key(), B'1', B'0', p_queue, ARRAY[g.id], ARRAY[g.job]
                FROM gone g
                RETURNING b.key, b.ids, b.jobs
            )
            SELECT t.key, t.ids, ARRAY[j.kind], ARRAY[j.payload], ARRAY[j.priority], ARRAY[j.attempt + 1], ARRAY[j.max_attempts],
                   ARRAY[j.created_at], ARRAY[j.available_at], started_at, deadline, timeout_ms, lease_ms
            FROM taken t CROSS JOIN LATERAL unnest(t.jobs) j;
        END IF;
        IF v_places IS NOT NULL THEN
            DELETE FROM {{schema}}.waiting w WHERE w.ctid = ANY (v_places);
            SELECT array_agg(j.id), array_agg(j.kind), array_agg(j.payload), array_agg(j.priority), array_agg(j.attempt + 1), array_agg(j.max_attempts),
                   array_agg(j.created_at), array_agg(j.available_at), min(j.id), max(j.id)
              INTO ids, kinds, payloads, priorities, attempts, max_attempts, created_ats, available_ats, v_min, v_max
            FROM unnest(v_jobs) j;
            key := {{schema}}.new_batch_key();
            INSERT INTO {{schema}}.batches (started_at, deadline, worker_id, min_id, max_id, key, open, succeeded, queue, ids, jobs)
            VALUES (started_at, deadline, p_worker, v_min, v_max, key, repeat('1', cardinality(ids))::varbit, repeat('0', cardinality(ids))::varbit,
                    p_queue, ids, v_jobs);
            RETURN NEXT;
        END IF;
        EXIT WHEN v_got < v_most OR v_n >= p_limit OR v_bytes >= 8388608;
        v_priority := v_priorities[v_got]; v_at := v_ats[v_got]; v_id := v_ids[v_got] + 1;
        v_most := least(p_limit - v_n, 1 + (8388608 - v_bytes) * v_n / v_bytes, CASE WHEN v_jobs IS NULL THEN 200
            ELSE least(1000, greatest(50, 98304 / (pg_column_size(v_jobs) / cardinality(v_jobs)))) END);
    END LOOP;
    v_walk := {{schema}}.walked('{{name}}.waiting_ready') + {{schema}}.walked('{{name}}.waiting_scheduled') - v_walk;
    IF v_walk > 1000 + 4 * p_limit
       AND pg_try_advisory_xact_lock(hashtextextended('jobqueue marks ' || {{schema_literal}} || ' ' || p_queue, 0)) THEN
        PERFORM {{schema}}.set_marks(p_queue, false);
    END IF;
    IF v_n > 0 THEN
        INSERT INTO {{schema}}.tallies (queue, claimed) VALUES (p_queue, v_n);
    END IF;
END $$;
COMMENT ON FUNCTION {{schema}}.claim_many(text, uuid, integer, text[], text, text[]) IS
'The same as claim, with a row per batch and an array per column, for clients that claim thousands in a second. The token of the run at place i of its arrays, counted from 0, is key followed by i as a two-byte big-endian number. The rows are in no order; in each, jobs are in order of priority, available_at and id. Errors: as claim.';

CREATE FUNCTION {{schema}}.claim(
    p_queue  text,
    p_worker uuid,
    p_limit  integer DEFAULT 1,
    p_kinds  text[]  DEFAULT NULL,
    p_pod    text    DEFAULT NULL,
    p_alone  text[]  DEFAULT NULL
) RETURNS TABLE (
    id bigint, token uuid, kind text, payload jsonb, priority smallint, attempt integer, max_attempts integer,
    created_at timestamptz, available_at timestamptz, started_at timestamptz, deadline timestamptz,
    timeout_ms bigint, lease_ms bigint
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
    SELECT j.id, {{schema}}.run_token(c.key, j.n - 1), j.kind, j.payload, j.priority, j.attempt, j.max_attempts, j.created_at, j.available_at,
           c.started_at, c.deadline, c.timeout_ms, c.lease_ms
    FROM {{schema}}.claim_many(p_queue, p_worker, p_limit, p_kinds, p_pod, p_alone) c
    CROSS JOIN LATERAL unnest(c.ids, c.kinds, c.payloads, c.priorities, c.attempts, c.max_attempts, c.created_ats, c.available_ats) WITH ORDINALITY
        j (id, kind, payload, priority, attempt, max_attempts, created_at, available_at, n)
    ORDER BY j.priority, j.available_at, j.id
$$;
COMMENT ON FUNCTION {{schema}}.claim(text, uuid, integer, text[], text, text[]) IS
'Claims up to limit ready jobs for a worker, the first by priority, available_at and id, and returns them in that order. Call it outside a transaction, so that it commits at once; a transaction that stays open keeps the rows locked.
queue: a declared queue; a suspended one yields none. worker: a random UUID made when the worker process started, which serves one queue; it is registered, and its lease renewed when less than half of it is left. limit: 1 to 10000, and no more than make 8 MiB of payloads full, as they are stored. Claims of 200 and more take turns in their queue, waiting 0.2 s at most. kinds: null for all. pod: a name shown to people. alone: kinds whose jobs are stored in a row each; null for all, an empty array for none. The others of one claim share rows, which is several times faster. Whoever finishes one of them in a transaction that stays open holds up those that share its row.
Each job returned is running under a new token. Finish it with succeed, fail, snooze, discard or release before the lease of the worker (renewed by heartbeat) or the deadline passes. timeout_ms is how long the handler may run.
Errors: JQ001 no such queue; JQ005 bad argument; JQ006 the worker id serves another queue.';
