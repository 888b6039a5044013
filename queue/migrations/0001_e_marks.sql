-- Marks: a bounded claim while dead rows pile up (Q16).
--
-- Claimed jobs leave dead entries at the head of waiting_ready. Normally the next
-- claim that meets them has them removed. While any session holds an old
-- snapshot open they must stay, and a claim that began at the head would walk
-- all of them, again and again. A claim that had to walk too far therefore
-- writes marks: for each priority, the key where live rows begin. Claims,
-- samples and producers then skip what lies before.
--
-- A mark is a belief, not a truth: a transaction that was slow to commit may add
-- a job behind it. So marks are never later than a second ago, putting a job
-- back moves them back (lower_marks), and the whole index is walked again
-- (rewalk) after a pause that keeps such walks to a few per cent of the time.
-- When the walk is short again, the marks are dropped.
--
-- All of this is silent at normal times: a probe of an empty table.

-- The parts of the queue's ready index to look at, in order: from (lo_priority,
-- lo_at, lo_id) to before hi_priority.
CREATE FUNCTION {{schema}}.ready_ranges(p_queue text)
RETURNS TABLE (lo_priority smallint, lo_at timestamptz, lo_id bigint, hi_priority integer)
LANGUAGE plpgsql STABLE ROWS 2 AS $$
DECLARE
    m  {{schema}}.marks;
    i  integer;
BEGIN
    SELECT * INTO m FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1;
    lo_priority := -32768; lo_at := '-infinity'; lo_id := -9223372036854775808;
    FOR i IN 1 .. coalesce(cardinality(m.priorities), 0) LOOP
        hi_priority := m.priorities[i];
        RETURN NEXT;
        lo_priority := m.priorities[i]; lo_at := m.ats[i]; lo_id := m.ids[i];
    END LOOP;
    hi_priority := 32768;
    RETURN NEXT;
END $$;

-- Whether somebody is awake for the queue's jobs, to judge by the first of them: it has
-- come in the last second, or one of the live workers asks for its kind. One that
-- nobody asks for says nothing of the others. Without workers there is nobody to wake;
-- who starts some looks at the queue anyway. (wake has the same in its statement.)
CREATE FUNCTION {{schema}}.is_attended(p_queue text, p_kind text, p_available_at timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN p_available_at > v_now - interval '1 second' OR coalesce(
        (SELECT bool_or(w.kinds IS NULL OR p_kind = ANY (w.kinds)) FROM {{schema}}.workers w WHERE w.queue = p_queue AND w.lease_expires_at > v_now), true);
END $$;

-- Whether the queue has pending jobs, besides the one given, that somebody is awake for.
CREATE FUNCTION {{schema}}.has_ready(p_queue text, p_besides bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_first record;
BEGIN
    SELECT first.* INTO v_first
    FROM {{schema}}.ready_ranges(p_queue) r
    CROSS JOIN LATERAL (
        SELECT j.kind, j.available_at FROM {{schema}}.waiting j
        WHERE j.queue = p_queue AND j.state = 'pending' AND j.id IS DISTINCT FROM p_besides
          AND (j.priority, j.available_at, j.id) >= (r.lo_priority, r.lo_at, r.lo_id) AND j.priority < r.hi_priority
        ORDER BY j.priority, j.available_at, j.id LIMIT 1) first
    LIMIT 1;
    RETURN FOUND AND {{schema}}.is_attended(p_queue, v_first.kind, v_first.available_at);
END $$;

-- Index entries read by this transaction, dead ones included. The difference
-- between two readings is the length of the walk between them.
CREATE FUNCTION {{schema}}.walked(p_index regclass) RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT coalesce(pg_stat_get_xact_tuples_returned(p_index), 0) $$;

-- Looks where live rows begin now and writes it down. p_rewalk begins at the
-- head of the index; otherwise the present marks are believed and advanced, unless
-- they are near: what the claim walked over then was alive, but of no kind that it
-- asked for. Rows that others are claiming count as live, for they may roll back.
CREATE FUNCTION {{schema}}.set_marks(p_queue text, p_rewalk boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    m        {{schema}}.marks;
    r        record;
    v_first  record;
    v_from   integer;
    v_safe   timestamptz := clock_timestamp() - interval '1 second';
    v_cost   bigint := {{schema}}.walked('{{name}}.waiting_ready') + {{schema}}.walked('{{name}}.waiting_scheduled');
    v_prios  smallint[] := '{}';
    v_ats    timestamptz[] := '{}';
    v_ids    bigint[] := '{}';
    v_due    timestamptz;
    v_known  smallint;
BEGIN
    SELECT * INTO m FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1;
    FOR r IN
        SELECT * FROM {{schema}}.ready_ranges(p_queue) a WHERE NOT p_rewalk
        UNION ALL SELECT -32768, '-infinity', -9223372036854775808, 32768 WHERE p_rewalk
    LOOP
        v_from := r.lo_priority;
        LOOP
            EXIT WHEN v_from >= r.hi_priority OR cardinality(v_prios) >= 64;
            IF v_from = r.lo_priority THEN
                SELECT j.priority, j.available_at, j.id INTO v_first FROM {{schema}}.waiting j
                WHERE j.queue = p_queue AND j.state = 'pending'
                  AND (j.priority, j.available_at, j.id) >= (r.lo_priority, r.lo_at, r.lo_id) AND j.priority < r.hi_priority
                ORDER BY j.priority, j.available_at, j.id LIMIT 1;
            ELSE
                SELECT j.priority, j.available_at, j.id INTO v_first FROM {{schema}}.waiting j
                WHERE j.queue = p_queue AND j.state = 'pending' AND j.priority >= v_from AND j.priority < r.hi_priority
                ORDER BY j.priority, j.available_at, j.id LIMIT 1;
            END IF;
            EXIT WHEN NOT FOUND;
            v_prios := v_prios || v_first.priority;
            IF v_first.available_at < v_safe THEN
                v_ats := v_ats || v_first.available_at; v_ids := v_ids || v_first.id;
            ELSE
                v_ats := v_ats || v_safe; v_ids := v_ids || 0::bigint;
            END IF;
            v_from := v_first.priority + 1;
        END LOOP;
    END LOOP;
    -- A priority that was known and has nothing live keeps a mark, or the dead
    -- entries it left would be walked before every better-off one's rows.
    FOREACH v_known IN ARRAY coalesce(m.priorities, '{}') LOOP
        IF v_known <> ALL (v_prios) AND cardinality(v_prios) < 64 THEN
            v_prios := v_prios || v_known; v_ats := v_ats || v_safe; v_ids := v_ids || 0::bigint;
        END IF;
    END LOOP;
    SELECT coalesce(array_agg(a.p ORDER BY a.p), '{}'), coalesce(array_agg(a.t ORDER BY a.p), '{}'), coalesce(array_agg(a.i ORDER BY a.p), '{}')
      INTO v_prios, v_ats, v_ids FROM unnest(v_prios, v_ats, v_ids) a (p, t, i);

    SELECT j.available_at INTO v_due FROM {{schema}}.waiting j
    WHERE j.queue = p_queue AND j.state = 'scheduled'
      AND j.available_at >= CASE WHEN p_rewalk THEN '-infinity' ELSE coalesce(m.due_from, '-infinity') END
    ORDER BY j.available_at LIMIT 1;
    v_due := least(v_due, v_safe);

    v_cost := {{schema}}.walked('{{name}}.waiting_ready') + {{schema}}.walked('{{name}}.waiting_scheduled') - v_cost;
    IF p_rewalk AND v_cost < 1000 THEN -- clean again
        INSERT INTO {{schema}}.marks (queue, priorities, ats, ids, due_from, walked_at, walk_cost)
        VALUES (p_queue, '{}', '{}', '{}', '-infinity', clock_timestamp(), 0);
    ELSIF p_rewalk OR v_cost >= 1000 THEN
        INSERT INTO {{schema}}.marks (queue, priorities, ats, ids, due_from, walked_at, walk_cost)
        VALUES (p_queue, v_prios, v_ats, v_ids, v_due,
                CASE WHEN p_rewalk OR m.priorities IS NULL OR m.due_from = '-infinity' THEN clock_timestamp() ELSE m.walked_at END,
                CASE WHEN p_rewalk OR m.priorities IS NULL OR m.due_from = '-infinity' THEN v_cost ELSE m.walk_cost END);
    END IF;
END $$;

-- Whether a walk over the queue's whole index is to be made again. One in the future was
-- made before the clock was set back, and its marks may hide what has come since.
CREATE FUNCTION {{schema}}.is_stale(p_walked_at timestamptz, p_walk_cost bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT clock_timestamp() > p_walked_at + least(interval '1 second' + p_walk_cost * interval '10 microseconds', interval '30 seconds')
        OR clock_timestamp() < p_walked_at
$$;

-- Walks the queue's whole index again, unless that is not due or somebody else is
-- at it. Claims do so themselves; the reaper does it for queues that no worker
-- claims from, whose hidden jobs would otherwise never bring one.
CREATE FUNCTION {{schema}}.rewalk(p_queue text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    m {{schema}}.marks;
BEGIN
    SELECT * INTO m FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1;
    IF NOT FOUND OR m.due_from = '-infinity'
       OR NOT {{schema}}.is_stale(m.walked_at, m.walk_cost)
       OR NOT pg_try_advisory_xact_lock(hashtextextended('jobqueue marks ' || {{schema_literal}} || ' ' || p_queue, 0)) THEN
        RETURN false;
    END IF;
    PERFORM {{schema}}.set_marks(p_queue, true);
    RETURN true;
END $$;

-- Moves marks back before jobs that have just become pending with an old place
-- in the order.
CREATE FUNCTION {{schema}}.lower_marks(p_queue text, p_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    m     {{schema}}.marks;
    r     record;
    i     integer;
    moved boolean := false;
BEGIN
    SELECT * INTO m FROM {{schema}}.marks k WHERE k.queue = p_queue ORDER BY k.seq DESC LIMIT 1;
    IF NOT FOUND OR cardinality(m.priorities) = 0 THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT DISTINCT ON (j.priority) j.priority, j.available_at, j.id
        FROM {{schema}}.waiting j WHERE j.id = ANY (p_ids) AND j.queue = p_queue
        ORDER BY j.priority, j.available_at, j.id
    LOOP
        i := array_position(m.priorities, r.priority);
        IF i IS NOT NULL AND (m.ats[i], m.ids[i]) > (r.available_at, r.id) THEN
            m.ats[i] := r.available_at; m.ids[i] := r.id; moved := true;
        END IF;
    END LOOP;
    IF moved THEN
        INSERT INTO {{schema}}.marks (queue, priorities, ats, ids, due_from, walked_at, walk_cost)
        VALUES (p_queue, m.priorities, m.ats, m.ids, m.due_from, m.walked_at, m.walk_cost);
    END IF;
END $$;
