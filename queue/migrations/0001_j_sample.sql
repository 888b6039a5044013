-- The sample: everything a scaler wants to know, read and not written. Counts
-- stop at a cap, ages come from the first row of each priority, and what old
-- snapshots keep of dead rows is skipped by marks and floors: the cost does not
-- follow the backlog.

CREATE FUNCTION {{schema}}.sample_queue(p_queue text, p_now timestamptz, p_cap integer,
    OUT pending bigint, OUT scheduled bigint, OUT due_soon bigint, OUT running bigint, OUT dead bigint, OUT workers bigint, OUT oldest timestamptz,
    OUT unhandled bigint, OUT unhandled_kind text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_due    bigint;
    v_from   timestamptz;
    v_first  timestamptz;
    r        record;
    v_prio   integer;
    v_at     timestamptz;
    v_seen   integer := 0;
BEGIN
    SELECT k.due_from INTO v_from FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1;
    v_from := coalesce(v_from, '-infinity');

    SELECT count(*) INTO pending FROM (
        SELECT 1 FROM {{schema}}.ready_ranges(p_queue) r
        CROSS JOIN LATERAL (
            SELECT 1 FROM {{schema}}.waiting j
            WHERE j.queue = p_queue AND j.state = 'pending'
              AND (j.priority, j.available_at, j.id) >= (r.lo_priority, r.lo_at, r.lo_id) AND j.priority < r.hi_priority
            LIMIT p_cap) one
        LIMIT p_cap) capped;
    -- Scheduled jobs that are due are ready, though nobody has promoted them.
    SELECT count(*), min(capped.available_at) INTO v_due, oldest FROM (
        SELECT j.available_at FROM {{schema}}.waiting j
        WHERE j.queue = p_queue AND j.state = 'scheduled' AND j.available_at <= p_now AND j.available_at >= v_from
        ORDER BY j.available_at LIMIT p_cap) capped;
    pending := least(pending + v_due, p_cap);
    SELECT count(*) INTO scheduled FROM (
        SELECT 1 FROM {{schema}}.waiting j WHERE j.queue = p_queue AND j.state = 'scheduled' AND j.available_at > p_now LIMIT p_cap) capped;
    SELECT count(*) INTO due_soon FROM (
        SELECT 1 FROM {{schema}}.waiting j
        WHERE j.queue = p_queue AND j.state = 'scheduled' AND j.available_at > p_now AND j.available_at <= p_now + interval '60 seconds' LIMIT p_cap) capped;
    SELECT count(*) INTO dead FROM (SELECT 1 FROM {{schema}}.dead d WHERE d.queue = p_queue LIMIT p_cap) capped;
    -- Runs long past their deadline are left out: with them would come the dead
    -- entries of all that ran before.
    SELECT count(*), coalesce(sum(n.runs), 0) INTO workers, running
    FROM {{schema}}.workers w
    CROSS JOIN LATERAL (
        SELECT sum(capped.runs) AS runs FROM (
            SELECT bit_count(b.open) AS runs FROM {{schema}}.batches b
            WHERE b.finished_at IS NULL AND b.worker_id = w.id AND b.deadline > p_now - interval '10 minutes' LIMIT p_cap) capped) n
    WHERE w.queue = p_queue;

    -- The oldest ready job is the first of some priority. 1,000 priorities are
    -- looked at; who uses more has an age that may be too low.
    FOR r IN SELECT * FROM {{schema}}.ready_ranges(p_queue) LOOP
        v_prio := NULL;
        LOOP
            IF v_prio IS NULL THEN
                SELECT j.priority, j.available_at INTO v_prio, v_at FROM {{schema}}.waiting j
                WHERE j.queue = p_queue AND j.state = 'pending'
                  AND (j.priority, j.available_at, j.id) >= (r.lo_priority, r.lo_at, r.lo_id) AND j.priority < r.hi_priority
                ORDER BY j.priority, j.available_at, j.id LIMIT 1;
            ELSE
                SELECT j.priority, j.available_at INTO v_prio, v_at FROM {{schema}}.waiting j
                WHERE j.queue = p_queue AND j.state = 'pending' AND j.priority > v_prio AND j.priority < r.hi_priority
                ORDER BY j.priority, j.available_at, j.id LIMIT 1;
            END IF;
            EXIT WHEN NOT FOUND OR v_seen >= 1000;
            v_seen := v_seen + 1;
            oldest := least(oldest, v_at);
        END LOOP;
    END LOOP;

    -- Jobs of kinds that nobody claims gather at the head. A minute is enough for
    -- those that somebody does to be claimed, or for a new worker to come up.
    unhandled := 0;
    IF oldest < p_now - interval '1 minute'
       AND EXISTS (SELECT 1 FROM {{schema}}.workers w WHERE w.queue = p_queue AND w.lease_expires_at > p_now AND w.started_at < p_now - interval '1 minute') THEN
        SELECT count(*), min(head.kind) INTO unhandled, unhandled_kind
        FROM (
            SELECT first.* FROM {{schema}}.ready_ranges(p_queue) r
            CROSS JOIN LATERAL (
                SELECT j.kind, j.available_at FROM {{schema}}.waiting j
                WHERE j.queue = p_queue AND j.state = 'pending'
                  AND (j.priority, j.available_at, j.id) >= (r.lo_priority, r.lo_at, r.lo_id) AND j.priority < r.hi_priority
                ORDER BY j.priority, j.available_at, j.id LIMIT 100) first
            LIMIT 100) head
        WHERE head.available_at < p_now - interval '1 minute' AND NOT EXISTS (
            SELECT 1 FROM {{schema}}.workers w
            WHERE w.queue = p_queue AND w.lease_expires_at > p_now AND (w.kinds IS NULL OR head.kind = ANY (w.kinds)));
    END IF;
END $$;

CREATE FUNCTION {{schema}}.sample(p_cap integer DEFAULT 10000) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_result jsonb;
    v_floor  xid8;
BEGIN
    IF p_cap IS NULL OR p_cap NOT BETWEEN 1 AND 1000000 THEN
        PERFORM {{schema}}.bad_argument('cap', p_cap::text, '1 to 1000000');
    END IF;
    -- Other roles' rows of pg_stat_activity have most columns hidden, but not
    -- the name and the user, which background processes lack.
    SELECT jsonb_build_object(
        'taken_at', v_now,
        'in_recovery', pg_is_in_recovery(),
        'database', current_database(),
        'server_started_at', pg_postmaster_start_time(),
        'horizon', (SELECT to_jsonb(h) FROM {{schema}}.horizon_holder() h),
        'max_connections', current_setting('max_connections')::integer,
        'reserved_connections', current_setting('superuser_reserved_connections')::integer
            + coalesce(current_setting('reserved_connections', true)::integer, 0),
        'our_connections', count(*) FILTER (WHERE a.queues AND a.here),
        'elsewhere_connections', count(*) FILTER (WHERE a.queues AND NOT a.here),
        'other_connections', count(*) FILTER (WHERE NOT a.queues))
      INTO v_result
    FROM (SELECT s.*, coalesce(s.application_name LIKE 'jobqueue:%', false) AS queues, s.datname = current_database() AS here
          FROM pg_stat_activity s) a
    WHERE a.usesysid IS NOT NULL AND a.datid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend';

    -- The floor and the tallies must be of one snapshot, or a fold between them
    -- would make totals go back; so they are read in one statement.
    RETURN v_result || jsonb_build_object('queues', coalesce((
        SELECT jsonb_object_agg(q.name, jsonb_build_object(
            'pending', s.pending, 'pending_capped', s.pending >= p_cap,
            'scheduled', s.scheduled, 'scheduled_capped', s.scheduled >= p_cap, 'due_soon', s.due_soon,
            'running', s.running, 'dead', s.dead, 'workers', s.workers,
            'unhandled', s.unhandled, 'unhandled_kind', coalesce(s.unhandled_kind, ''),
            'oldest_age_seconds', coalesce(greatest(extract(epoch FROM v_now - s.oldest), 0), 0),
            'claimed', t.claimed + coalesce(u.claimed, 0), 'succeeded', t.succeeded + coalesce(u.succeeded, 0),
            'failed', t.failed + coalesce(u.failed, 0), 'lost', t.lost + coalesce(u.lost, 0), 'overdue', t.overdue + coalesce(u.overdue, 0),
            'discarded', t.discarded + coalesce(u.discarded, 0), 'cancelled', t.cancelled + coalesce(u.cancelled, 0),
            'execution_ms', least(t.execution_ms + coalesce(u.execution_ms, 0), 9223372036854775807),
            'generation', q.generation, 'suspended', q.suspended))
        FROM {{schema}}.queues q
        JOIN {{schema}}.totals t ON t.queue = q.name
        CROSS JOIN LATERAL {{schema}}.sample_queue(q.name, v_now, p_cap) s
        LEFT JOIN (
            SELECT y.queue, sum(y.claimed) AS claimed, sum(y.succeeded) AS succeeded, sum(y.failed) AS failed, sum(y.lost) AS lost, sum(y.overdue) AS overdue,
                   sum(y.discarded) AS discarded, sum(y.cancelled) AS cancelled, sum(y.execution_ms) AS execution_ms
            FROM (SELECT CASE WHEN pg_is_in_recovery() OR f.floor <= pg_snapshot_xmax(pg_current_snapshot()) THEN f.floor ELSE '0'::xid8 END AS floor, f.open
                  FROM {{schema}}.folded f OFFSET 0) f
            CROSS JOIN LATERAL (
                SELECT late.* FROM {{schema}}.tallies late WHERE late.xid = ANY (f.open) AND late.xid < f.floor
                UNION ALL
                SELECT now.* FROM {{schema}}.tallies now WHERE now.xid >= f.floor) y
            GROUP BY y.queue) u ON u.queue = q.name), '{}'));
END $$;
COMMENT ON FUNCTION {{schema}}.sample(integer) IS
'Returns a look at all queues and at the server''s connections as one JSON object, at a cost bounded by cap (1 to 1000000) rows counted per queue and state, and writes nothing, so it works on a standby.
taken_at, in_recovery, database, server_started_at, max_connections, reserved_connections, our_connections (application_name jobqueue:…, to this database), elsewhere_connections (the same, to other databases of the server), other_connections, horizon (what horizon_holder() returns, or null), and queues by name: pending (ready, due ones included), scheduled, each with _capped; due_soon (within 60 s), running, dead, workers, oldest_age_seconds (0 when nothing is ready), unhandled and unhandled_kind (of the first 100 ready jobs those that have waited for a minute and whose kind none of the live workers asks for, though one has been up as long; and the first of the kinds, or empty), the totals claimed, succeeded, failed, lost (taken back by reap), overdue (of these, the ones whose own deadline had passed while their worker still renewed its lease), discarded, cancelled and execution_ms, which never decrease; generation and suspended of the policy.
Errors: JQ005 bad argument.';
