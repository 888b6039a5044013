-- Helpers of the public functions. They are private, as are the tables.

CREATE FUNCTION {{schema}}.bad_argument(p_name text, p_value text, p_allowed text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'JQ005',
        MESSAGE = format('%s is %s; allowed: %s', p_name,
            CASE WHEN p_value IS NULL THEN 'null'
                 WHEN length(p_value) > 80 THEN left(p_value, 80) || '… (' || length(p_value) || ' characters)'
                 WHEN p_value = '' THEN 'empty' ELSE p_value END,
            p_allowed);
END $$;

CREATE FUNCTION {{schema}}.no_such_queue(p_queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_queue IS NULL OR p_queue = '' THEN
        PERFORM {{schema}}.bad_argument('queue', p_queue, 'the name of a declared queue');
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'JQ001',
        MESSAGE = format('queue "%s" does not exist', p_queue),
        HINT = format('Apply a JobQueue of that name, or declare the queue in SQL: SELECT %s.set_policy(%L);',
            {{schema_literal}}, p_queue);
END $$;

CREATE FUNCTION {{schema}}.check_queue(p_queue text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM {{schema}}.queues q WHERE q.name = p_queue) THEN
        PERFORM {{schema}}.no_such_queue(p_queue);
    END IF;
END $$;

-- Names are shown in logs, metrics and process lists: bounded, without control
-- characters. Letters of any script are welcome.
CREATE FUNCTION {{schema}}.check_name(p_argument text, p_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_name IS NULL OR length(p_name) NOT BETWEEN 1 AND 128 OR p_name ~ E'[\\x01-\\x1f\\x7f-\\x9f]' THEN
        PERFORM {{schema}}.bad_argument(p_argument, p_name, '1 to 128 characters, none of them a control character');
    END IF;
END $$;

CREATE FUNCTION {{schema}}.check_limit(p_limit integer, p_max integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_limit IS NULL OR p_limit NOT BETWEEN 1 AND p_max THEN
        PERFORM {{schema}}.bad_argument('limit', p_limit::text, '1 to ' || p_max);
    END IF;
END $$;

-- An argument that is an array: one dimension, without nulls, which would silently
-- match nothing. p_allowed says what it is an array of.
CREATE FUNCTION {{schema}}.check_array(p_argument text, p_array anyarray, p_allowed text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_array IS NULL THEN
        PERFORM {{schema}}.bad_argument(p_argument, NULL, p_allowed);
    ELSIF array_ndims(p_array) > 1 THEN
        PERFORM {{schema}}.bad_argument(p_argument, format('an array of %s dimensions', array_ndims(p_array)), p_allowed || ', in one dimension');
    ELSIF array_lower(p_array, 1) <> 1 THEN
        PERFORM {{schema}}.bad_argument(p_argument, format('an array that begins at %s', array_lower(p_array, 1)), p_allowed || ', from 1 on');
    ELSIF array_position(p_array, NULL) IS NOT NULL THEN
        PERFORM {{schema}}.bad_argument(p_argument, 'an array with a null', p_allowed);
    END IF;
END $$;

-- The arrays that name runs, equally long.
CREATE FUNCTION {{schema}}.check_refs(p_ids bigint[], p_tokens uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {{schema}}.check_array('ids', p_ids, 'an array of job ids, which may be empty');
    PERFORM {{schema}}.check_array('tokens', p_tokens, 'an array of run tokens, one for each id');
    IF cardinality(p_ids) <> cardinality(p_tokens) THEN
        PERFORM {{schema}}.bad_argument('tokens', format('an array of %s', cardinality(p_tokens)),
            format('as many as ids, which are %s', cardinality(p_ids)));
    END IF;
END $$;

-- The token of a run is 14 bytes of its batch's key and two of its place there,
-- which counts from 0.
CREATE FUNCTION {{schema}}.run_token(p_key bytea, p_slot bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT encode(p_key || int2send(p_slot::smallint), 'hex')::uuid $$;

CREATE FUNCTION {{schema}}.run_key(p_token uuid) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT substr(uuid_send(p_token), 1, 14) $$;

CREATE FUNCTION {{schema}}.run_slot(p_token uuid) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT get_byte(uuid_send(p_token), 14) * 256 + get_byte(uuid_send(p_token), 15) $$;

CREATE FUNCTION {{schema}}.new_batch_key() RETURNS bytea
LANGUAGE sql VOLATILE AS $$
    SELECT int8send(nextval('{{name}}.batch_keys')) || substr(uuid_send(gen_random_uuid()), 1, 6)
$$;

-- The runs named by ids and tokens, by batch.
CREATE FUNCTION {{schema}}.named(p_ids bigint[], p_tokens uuid[]) RETURNS TABLE (key bytea, ids bigint[], slots integer[])
LANGUAGE sql IMMUTABLE ROWS 10 AS $$
    SELECT {{schema}}.run_key(u.token), array_agg(u.id), array_agg({{schema}}.run_slot(u.token))
    FROM unnest(p_ids, p_tokens) u (id, token) GROUP BY 1
$$;

-- Which element names a run that was accepted: the first with its id and its token. Of
-- others with the same id or the same token, the run was refused.
CREATE FUNCTION {{schema}}.element_of(p_ids bigint[], p_tokens uuid[], p_id bigint, p_token uuid) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_n integer := array_position(p_ids, p_id);
BEGIN
    WHILE p_tokens[v_n] <> p_token LOOP
        v_n := array_position(p_ids, p_id, v_n + 1);
    END LOOP;
    RETURN v_n;
END $$;

-- An array with an element for each of the runs, or null.
CREATE FUNCTION {{schema}}.check_for_each(p_argument text, p_array anyarray, p_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF array_ndims(p_array) > 1 THEN
        PERFORM {{schema}}.bad_argument(p_argument, format('an array of %s dimensions', array_ndims(p_array)), 'an array of one dimension');
    ELSIF array_lower(p_array, 1) <> 1 THEN
        PERFORM {{schema}}.bad_argument(p_argument, format('an array that begins at %s', array_lower(p_array, 1)), 'an array that begins at 1');
    ELSIF cardinality(p_array) <> cardinality(p_ids) THEN
        PERFORM {{schema}}.bad_argument(p_argument, format('an array of %s', cardinality(p_array)), format('as many as ids, which are %s', cardinality(p_ids)));
    END IF;
END $$;

-- Those of the named runs that are open in the batch: what fencing is.
CREATE FUNCTION {{schema}}.open_mask(p_open varbit, p_batch_ids bigint[], p_ids bigint[], p_slots integer[]) RETURNS varbit
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_none varbit := p_open & ~p_open;
    v_mask varbit;
BEGIN
    IF cardinality(p_ids) = 1 THEN
        IF p_slots[1] >= length(p_open) OR p_batch_ids[p_slots[1] + 1] <> p_ids[1] THEN
            RETURN v_none;
        END IF;
        RETURN set_bit(v_none, p_slots[1], 1) & p_open;
    END IF;
    SELECT bit_or(set_bit(v_none, u.slot, 1)) INTO v_mask
    FROM unnest(p_ids, p_slots) u (id, slot) WHERE u.slot < length(p_open) AND p_batch_ids[u.slot + 1] = u.id;
    RETURN coalesce(v_mask, v_none) & p_open;
END $$;

-- The batches of the named runs that are open, locked in the order of their keys,
-- which is the order in which everyone locks them. Here and wherever batches are
-- found by key, finished_at is not named, so that the primary key is the only index
-- that fits (the bits say the same), and OFFSET 0 keeps the planner from turning the
-- lookups round, into a walk over all batches that looks into the arguments.
CREATE FUNCTION {{schema}}.lock_named(p_ids bigint[], p_tokens uuid[], p_worker uuid, OUT keys bytea[], OUT masks varbit[])
LANGUAGE plpgsql AS $$
BEGIN
    keys := ARRAY(SELECT DISTINCT {{schema}}.run_key(t) FROM unnest(p_tokens) t);
    PERFORM 1 FROM {{schema}}.batches b WHERE b.key = ANY (keys) ORDER BY b.key FOR UPDATE;
    SELECT coalesce(array_agg(f.key), '{}'), coalesce(array_agg(f.mask), '{}') INTO keys, masks
    FROM (SELECT n.key, {{schema}}.open_mask(b.open, b.ids, n.ids, n.slots) AS mask
          FROM {{schema}}.named(p_ids, p_tokens) n
          CROSS JOIN LATERAL (SELECT * FROM {{schema}}.batches x WHERE x.key = n.key OFFSET 0) b
          WHERE p_worker IS NULL OR b.worker_id = p_worker) f
    WHERE bit_count(f.mask) > 0;
END $$;

-- The jobs of the runs given, with what their batch says of them.
CREATE FUNCTION {{schema}}.jobs_of(p_keys bytea[], p_masks varbit[])
RETURNS TABLE (key bytea, slot integer, worker_id uuid, started_at timestamptz, deadline timestamptz, job {{schema}}.waiting)
LANGUAGE sql STABLE AS $$
    SELECT b.key, (j.n - 1)::integer, b.worker_id, b.started_at, b.deadline,
           ROW(j.id, j.available_at, j.created_at, j.resume_at, j.attempt, j.max_attempts, j.priority, j.state, j.queue, j.kind, j.payload,
               j.last_error, j.errors)::{{schema}}.waiting
    FROM unnest(p_keys, p_masks) m (key, mask)
    CROSS JOIN LATERAL (SELECT * FROM {{schema}}.batches x WHERE x.key = m.key OFFSET 0) b
    CROSS JOIN LATERAL unnest(b.jobs) WITH ORDINALITY
        j (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors, n)
    WHERE get_bit(m.mask, (j.n - 1)::integer) = 1
$$;

-- Where batches are that the caller has locked, so that they stay there.
CREATE FUNCTION {{schema}}.places(p_keys bytea[], p_masks varbit[]) RETURNS TABLE (place tid, key bytea, mask varbit)
LANGUAGE sql STABLE AS $$
    SELECT b.place, m.key, m.mask
    FROM unnest(p_keys, p_masks) m (key, mask)
    CROSS JOIN LATERAL (SELECT x.ctid AS place FROM {{schema}}.batches x WHERE x.key = m.key OFFSET 0) b
$$;

-- Ends runs otherwise than by success, their batches being locked.
CREATE FUNCTION {{schema}}.close_runs(p_keys bytea[], p_masks varbit[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH m AS MATERIALIZED (SELECT * FROM {{schema}}.places(p_keys, p_masks))
    DELETE FROM {{schema}}.batches b USING m
    WHERE b.ctid = m.place AND bit_count(b.succeeded) = 0 AND bit_count(b.open & ~m.mask) = 0;
    WITH m AS MATERIALIZED (SELECT * FROM {{schema}}.places(p_keys, p_masks))
    UPDATE {{schema}}.batches b
    SET open = b.open & ~m.mask, finished_at = CASE WHEN bit_count(b.open & ~m.mask) = 0 THEN clock_timestamp() END
    FROM m WHERE b.ctid = m.place;
END $$;

-- The spans of batches (column span), and how far apart their first and last id are at
-- most: 0 for a single job, and then eight times as far each.
CREATE FUNCTION {{schema}}.spans() RETURNS TABLE (span smallint, width bigint)
LANGUAGE sql IMMUTABLE ROWS 12 AS $$
    VALUES (0::smallint, 0::bigint), (1, 7), (2, 63), (3, 511), (4, 4095), (5, 32767), (6, 262143), (7, 2097151), (8, 16777215),
           (9, 134217727), (10, 1073741823), (11, 9223372036854775807)
$$;

-- The batches whose first and last id have the one given between them. Among those of
-- one span, the last id is at most the span's width behind it, and there the search
-- ends, however many batches history holds.
CREATE FUNCTION {{schema}}.batches_around(p_id bigint) RETURNS SETOF {{schema}}.batches
LANGUAGE sql STABLE ROWS 2 AS $$
    SELECT b.*
    FROM {{schema}}.spans() s
    CROSS JOIN LATERAL (SELECT * FROM {{schema}}.batches x WHERE x.span = s.span
        AND x.max_id >= p_id AND x.max_id <= least(p_id, 9223372036854775807 - s.width) + s.width OFFSET 0) b
    WHERE b.min_id <= p_id
$$;

-- All live jobs, and all that ended but are not dead: for people. The functions
-- below read the tables.
CREATE VIEW {{schema}}.jobs AS
SELECT w.id, w.available_at, w.created_at, NULL::timestamptz AS started_at, NULL::timestamptz AS deadline, NULL::uuid AS token, NULL::uuid AS worker_id,
       w.attempt, w.max_attempts, w.priority, w.state::text AS state, w.queue, w.kind, w.payload, w.last_error, w.errors
FROM {{schema}}.waiting w
UNION ALL
SELECT j.id, j.available_at, j.created_at, b.started_at, b.deadline, {{schema}}.run_token(b.key, j.n - 1), b.worker_id,
       j.attempt + 1, j.max_attempts, j.priority, 'running', j.queue, j.kind, j.payload, j.last_error, j.errors
FROM {{schema}}.batches b
CROSS JOIN LATERAL unnest(b.jobs) WITH ORDINALITY
    j (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors, n)
WHERE b.finished_at IS NULL AND get_bit(b.open, (j.n - 1)::integer) = 1;

CREATE VIEW {{schema}}.finished AS
SELECT j.id, j.created_at, b.started_at,
       coalesce((SELECT e.ended_at FROM {{schema}}.batch_ends e WHERE e.key = b.key AND get_bit(e.runs, (j.n - 1)::integer) = 1), b.finished_at) AS finished_at,
       b.worker_id, j.attempt + 1 AS attempt, j.priority, 'succeeded' AS state, j.queue, j.kind, j.payload, NULL AS reason
FROM {{schema}}.batches b
CROSS JOIN LATERAL unnest(b.jobs) WITH ORDINALITY
    j (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors, n)
WHERE get_bit(b.succeeded, (j.n - 1)::integer) = 1
UNION ALL
SELECT e.id, e.created_at, e.started_at, e.finished_at, e.worker_id, e.attempt, e.priority, e.state, e.queue, e.kind, e.payload, e.reason
FROM {{schema}}.ended e;

-- A payload's size is that of its text, which is what workers are sent.
CREATE FUNCTION {{schema}}.payload_size(p_payload jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT octet_length(p_payload::text) $$;

-- About how much memory it takes, which is found without making its text: an array holds
-- what was compressed in full.
CREATE FUNCTION {{schema}}.payload_memory(p_payload jsonb) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_column_compression(p_payload) IS NULL THEN pg_column_size(p_payload) ELSE pg_column_size(ARRAY[p_payload]) END
$$;

-- Whether a payload's text is within the limit, and not much larger than its binary form,
-- by which claims bound what they bring. That of strings of control characters is six times
-- as large, that of a number such as 1e131000 thirteen thousand times.
CREATE FUNCTION {{schema}}.payload_fits(p_payload jsonb, p_limit integer) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT octet_length(p_payload::text) <= least(p_limit, 4096 + 8 * pg_column_size(p_payload)::bigint) -- compressed, if it is from a table
        OR octet_length(p_payload::text) <= least(p_limit, 4096 + 8 * {{schema}}.payload_memory(p_payload)::bigint)
$$;

CREATE FUNCTION {{schema}}.payload_too_large(p_argument text, p_queue text, p_kind text, p_payload jsonb, p_limit integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_size integer := {{schema}}.payload_size(p_payload);
BEGIN
    IF v_size <= p_limit THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ003',
            MESSAGE = format('%s of kind "%s" has %s bytes as text, and %s in the database; queue "%s" allows at most 4096 and eight times the latter',
                p_argument, p_kind, v_size, {{schema}}.payload_memory(p_payload), p_queue),
            HINT = 'PostgreSQL writes numbers such as 1e100000 out in full; enqueue them as strings.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'JQ003',
        MESSAGE = format('%s of kind "%s" has %s bytes; queue "%s" allows at most %s', p_argument, p_kind, v_size, p_queue, p_limit),
        HINT = 'Store large data elsewhere and enqueue a reference to it, or raise max_payload_bytes in the queue''s policy.';
END $$;

-- min(max, base·2^(attempt-1)), ± jitter percent. The exponent is held down so
-- that nothing overflows; the ceiling has long been reached there.
CREATE FUNCTION {{schema}}.backoff(p_base interval, p_max interval, p_jitter integer, p_attempt integer) RETURNS interval
LANGUAGE sql VOLATILE AS $$
    SELECT make_interval(secs => least(extract(epoch FROM p_max)::double precision,
               extract(epoch FROM p_base)::double precision * power(2::double precision, least(greatest(p_attempt, 1) - 1, 60)))
           * (1 + p_jitter / 100.0::double precision * (2 * random() - 1)))
$$;

-- The history of errors with one more, at most the last ten.
CREATE FUNCTION {{schema}}.push_error(p_errors jsonb, p_attempt integer, p_at timestamptz, p_error text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT (CASE WHEN p_errors IS NULL THEN '[]'::jsonb
                 WHEN jsonb_array_length(p_errors) >= 10 THEN p_errors - 0
                 ELSE p_errors END)
        || jsonb_build_array(jsonb_build_object('attempt', p_attempt, 'at', p_at, 'error', left(p_error, 1000)))
$$;

-- Registers a worker or renews its lease. The clock is read after the row's
-- lock was had: a wait for the reaper must not shorten the lease.
--
-- A lease that the policy has shortened ends no sooner than was promised: the worker
-- still beats at the former pace. Promised was what lay between heartbeat_at and
-- lease_expires_at, and no more of it can be left: where the clock was set back since,
-- the end itself would be later than anybody was told.
CREATE FUNCTION {{schema}}.renew(p_worker uuid, p_queue text, p_pod text, p_claims boolean, p_kinds text[], p_lease interval,
    OUT now timestamptz, OUT lease_expires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
BEGIN
    INSERT INTO {{schema}}.workers AS w (id, queue, pod, started_at, heartbeat_at, lease_expires_at, kinds)
    VALUES (p_worker, p_queue, coalesce(left(p_pod, 253), ''), clock_timestamp(), clock_timestamp(), clock_timestamp() + p_lease, p_kinds)
    ON CONFLICT (id) DO UPDATE
        SET heartbeat_at = clock_timestamp(),
            lease_expires_at = greatest(clock_timestamp() + p_lease, least(w.lease_expires_at, clock_timestamp() + (w.lease_expires_at - w.heartbeat_at))),
            pod = CASE WHEN excluded.pod = '' THEN w.pod ELSE excluded.pod END,
            kinds = CASE WHEN p_claims THEN excluded.kinds ELSE w.kinds END
    RETURNING w.queue, w.heartbeat_at, w.lease_expires_at INTO v_queue, now, lease_expires_at;
    IF v_queue <> p_queue THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ006',
            MESSAGE = format('worker %s belongs to queue "%s", not "%s"', p_worker, v_queue, p_queue),
            HINT = 'A worker id serves one queue; use a fresh random id for each.';
    END IF;
END $$;

-- Adds the tallies to the totals, unless someone did a moment ago or is at it.
-- At most some 20,000 at once; the rest waits for the next call. What runs took is as
-- workers say: should it ever come to more than a total can hold, the total stays there,
-- for an error would be one of all queues' heartbeats. A moment in the future was before
-- the clock was set back.
CREATE FUNCTION {{schema}}.fold(p_pause interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_floor xid8;
    v_open  xid8[];
    v_cut   xid8;
    v_at    timestamptz;
BEGIN
    SELECT f.folded_at INTO v_at FROM {{schema}}.folded f;
    IF v_at > clock_timestamp() - p_pause AND v_at <= clock_timestamp()
       OR NOT pg_try_advisory_xact_lock(hashtextextended('jobqueue fold ' || {{schema_literal}}, 0)) THEN
        RETURN;
    END IF;
    -- A floor ahead of this server's transactions came with a dump from another.
    SELECT CASE WHEN f.floor > pg_snapshot_xmax(pg_current_snapshot()) THEN '0'::xid8 ELSE f.floor END, f.open
      INTO v_floor, v_open FROM {{schema}}.folded f;
    SELECT t.xid INTO v_cut FROM {{schema}}.tallies t WHERE t.xid >= v_floor ORDER BY t.xid OFFSET 20000 LIMIT 1;
    -- One transaction may have left more than that: it is taken whole.
    IF v_cut IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {{schema}}.tallies t WHERE t.xid >= v_floor AND t.xid < v_cut) THEN
        SELECT (SELECT t.xid FROM {{schema}}.tallies t WHERE t.xid > v_cut ORDER BY t.xid LIMIT 1) INTO v_cut;
    END IF;
    -- All that this statement's snapshot shows is taken, so what remains unseen
    -- belongs to transactions that it shows as running, or that come after the new floor.
    -- A transaction that runs for long must not keep the floor where it began.
    WITH late AS (
        DELETE FROM {{schema}}.tallies t WHERE t.xid = ANY (v_open) AND t.xid < v_floor RETURNING *
    ), now AS (
        DELETE FROM {{schema}}.tallies t WHERE t.xid >= v_floor AND (v_cut IS NULL OR t.xid < v_cut) RETURNING *
    ), gone AS (
        SELECT * FROM late UNION ALL SELECT * FROM now
    ), sums AS (
        SELECT g.queue, sum(g.claimed) AS claimed, sum(g.succeeded) AS succeeded, sum(g.failed) AS failed, sum(g.lost) AS lost, sum(g.overdue) AS overdue,
               sum(g.discarded) AS discarded, sum(g.cancelled) AS cancelled, sum(g.execution_ms) AS execution_ms
        FROM gone g GROUP BY g.queue
    ), added AS (
        UPDATE {{schema}}.totals t
        SET claimed = t.claimed + s.claimed, succeeded = t.succeeded + s.succeeded, failed = t.failed + s.failed, lost = t.lost + s.lost, overdue = t.overdue + s.overdue,
            discarded = t.discarded + s.discarded, cancelled = t.cancelled + s.cancelled, execution_ms = least(t.execution_ms + s.execution_ms, 9223372036854775807)
        FROM sums s WHERE t.queue = s.queue
    )
    UPDATE {{schema}}.folded
    SET floor = least(pg_snapshot_xmax(pg_current_snapshot()), v_cut), folded_at = clock_timestamp(),
        open = ARRAY(SELECT x FROM pg_snapshot_xip(pg_current_snapshot()) x WHERE v_cut IS NULL OR x < v_cut);
END $$;
