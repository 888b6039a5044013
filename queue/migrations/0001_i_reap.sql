-- The reaper: leases that ran out, deadlines, due jobs, retention. Everything
-- is bounded by p_limit and passes over what others have locked, so any number
-- may run at once and none waits.
--
-- While an old snapshot is held open, what was claimed, finished and deleted since
-- stays in the indexes. Where the reaper has to walk over it to find the little that
-- is left, it writes down how far that was (table walks). Runs past their deadline are
-- then looked for only as often as takes a few per cent of the time, and retention goes
-- on where it was, until it is time to begin at the beginning again. All of this is
-- silent at normal times, as marks are.

-- The last long walk of that name, if the next one is not due yet, else a row of nulls.
-- One in the future was made before the clock was set back, nobody knows how long ago.
CREATE FUNCTION {{schema}}.recent_walk(p_what text) RETURNS {{schema}}.walks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    k {{schema}}.walks;
BEGIN
    SELECT * INTO k FROM {{schema}}.walks w WHERE w.what = p_what ORDER BY w.seq DESC LIMIT 1;
    IF k.walked_at < clock_timestamp() - least(k.cost * interval '100 microseconds', interval '30 seconds') OR k.walked_at > clock_timestamp() THEN
        RETURN NULL;
    END IF;
    RETURN k;
END $$;

-- Rows are added, and the last one counts, so that the table does not suffer itself
-- from what it cures. Two at a time would delete the same row, the second waiting for the
-- first, and would not see each other's new ones, which stayed for ever. So while one has
-- not committed, no other writes anything down.
CREATE FUNCTION {{schema}}.note_walk(p_what text, p_walked_at timestamptz, p_cost bigint, p_upto timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_last bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('jobqueue ' || {{schema_literal}} || ' ' || p_what, 0)) THEN
        RETURN;
    END IF;
    SELECT w.seq INTO v_last FROM {{schema}}.walks w WHERE w.what = p_what ORDER BY w.seq DESC LIMIT 1;
    INSERT INTO {{schema}}.walks (what, walked_at, cost, upto) VALUES (p_what, p_walked_at, p_cost, p_upto);
    DELETE FROM {{schema}}.walks w WHERE w.what = p_what AND w.seq = v_last;
END $$;

-- After a purge that met p_walk entries, and with p_last to go by, got to p_upto.
CREATE FUNCTION {{schema}}.note_purge(p_what text, p_last {{schema}}.walks, p_walk bigint, p_limit integer, p_upto timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_upto > p_last.upto THEN
        PERFORM {{schema}}.note_walk(p_what, p_last.walked_at, p_last.cost, p_upto);
    ELSIF p_last.seq IS NULL AND p_walk > 1000 + 2 * p_limit THEN
        PERFORM {{schema}}.note_walk(p_what, clock_timestamp(), p_walk, p_upto);
    END IF;
END $$;

-- Those of a batch's open runs whose jobs are of the kinds given; null for all.
CREATE FUNCTION {{schema}}.open_of_kinds(p_open varbit, p_jobs {{schema}}.waiting[], p_kinds text[]) RETURNS varbit
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_none varbit := p_open & ~p_open;
BEGIN
    IF p_kinds IS NULL THEN
        RETURN p_open;
    END IF;
    RETURN p_open & coalesce((SELECT bit_or(set_bit(v_none, (j.n - 1)::integer, 1)) FROM unnest(p_jobs) WITH ORDINALITY
        j (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors, n)
        WHERE j.kind = ANY (p_kinds)), v_none);
END $$;

CREATE FUNCTION {{schema}}.reap(p_queue text DEFAULT NULL, p_limit integer DEFAULT 1000, p_retention boolean DEFAULT true, p_kinds text[] DEFAULT NULL)
RETURNS TABLE (returned bigint, buried bigint, promoted bigint, workers_removed bigint, finished_purged bigint, dead_purged bigint, more boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_expired uuid[];
    v_ahead   uuid[]; -- renewed in the future
    v_live    uuid[];
    v_orphans uuid[];
    v_what    text;
    v_look    boolean;
    v_last    {{schema}}.walks;
    v_walk    bigint;
    v_upto    timestamptz;
    v_ids     bigint[];
    v_places  tid[];
    v_keys    bytea[];
    v_masks   varbit[];
    v_overdue bytea[]; -- of v_keys, those whose deadline passed before their worker's lease did
    v_overdue_masks varbit[];
    v_expiry  bytea[]; -- and the others
    v_expiry_masks varbit[];
    v_n       bigint;
    r         record;
    b         record;
BEGIN
    PERFORM {{schema}}.check_limit(p_limit, 100000);
    IF p_kinds IS NOT NULL THEN
        PERFORM {{schema}}.check_array('kinds', p_kinds, 'null for all, or an array of kinds');
    END IF;
    IF p_queue IS NOT NULL THEN
        PERFORM {{schema}}.check_queue(p_queue);
    END IF;
    IF p_retention IS NULL THEN
        PERFORM {{schema}}.bad_argument('retention', NULL, 'true or false');
    END IF;
    returned := 0; buried := 0; promoted := 0; workers_removed := 0; finished_purged := 0; dead_purged := 0; more := false;

    -- Workers whose lease has run out. Their rows are locked before their jobs
    -- are, as a heartbeat does it, so a heartbeat is either before all of this
    -- or after. And the others, when it is time to look at their deadlines.
    --
    -- A lease that was renewed before the clock was set back, as by a failover to a server
    -- whose clock is behind, would last longer by that: it begins anew now, so that its worker
    -- has all that it was promised, and no more than that. Runs that began in the future are
    -- of that time too, and not among those that began while this looked on.
    v_what := coalesce('deadlines of ' || p_queue, 'deadlines');
    v_look := {{schema}}.recent_walk(v_what) IS NULL
        AND pg_try_advisory_xact_lock(hashtextextended('jobqueue ' || {{schema_literal}} || ' ' || v_what, 0));
    IF p_queue IS NULL THEN
        SELECT array_agg(f.id) FILTER (WHERE f.expired), array_agg(f.id) FILTER (WHERE NOT f.expired) INTO v_expired, v_ahead
        FROM (SELECT w.id, w.lease_expires_at < v_now AS expired FROM {{schema}}.workers w
              WHERE w.lease_expires_at < v_now OR w.heartbeat_at > clock_timestamp() LIMIT p_limit FOR UPDATE SKIP LOCKED) f;
        v_live := ARRAY(SELECT w.id FROM {{schema}}.workers w WHERE v_look AND w.lease_expires_at >= v_now);
    ELSE
        SELECT array_agg(f.id) FILTER (WHERE f.expired), array_agg(f.id) FILTER (WHERE NOT f.expired) INTO v_expired, v_ahead
        FROM (SELECT w.id, w.lease_expires_at < v_now AS expired FROM {{schema}}.workers w
              WHERE w.queue = p_queue AND (w.lease_expires_at < v_now OR w.heartbeat_at > clock_timestamp()) LIMIT p_limit FOR UPDATE SKIP LOCKED) f;
        v_live := ARRAY(SELECT w.id FROM {{schema}}.workers w WHERE v_look AND w.queue = p_queue AND w.lease_expires_at >= v_now);
    END IF;

    IF v_ahead IS NOT NULL THEN
        UPDATE {{schema}}.workers w SET heartbeat_at = v_now, lease_expires_at = v_now + (w.lease_expires_at - w.heartbeat_at)
        WHERE w.id = ANY (v_ahead);
    END IF;

    -- Who runs something and has no row, by hopping from worker to worker in the index:
    -- in all queues, by whoever comes first, ten seconds after the last time.
    IF (p_queue IS NULL AND v_look OR p_queue IS NOT NULL AND {{schema}}.recent_walk('orphans') IS NULL)
       AND pg_try_advisory_xact_lock(hashtextextended('jobqueue ' || {{schema_literal}} || ' orphans', 0)) THEN
        v_walk := {{schema}}.walked('{{name}}.batches_open');
        WITH RECURSIVE seen (worker) AS (
            (SELECT b.worker_id FROM {{schema}}.batches b WHERE b.finished_at IS NULL ORDER BY b.worker_id LIMIT 1)
            UNION ALL
            SELECT (SELECT b.worker_id FROM {{schema}}.batches b WHERE b.finished_at IS NULL AND b.worker_id > s.worker ORDER BY b.worker_id LIMIT 1)
            FROM seen s WHERE s.worker IS NOT NULL
        )
        SELECT array_agg(s.worker) FILTER (WHERE NOT EXISTS (SELECT 1 FROM {{schema}}.workers w WHERE w.id = s.worker)), count(*)
          INTO v_orphans, v_n
        FROM seen s WHERE s.worker IS NOT NULL;
        -- Where nothing ran and nothing dead was in the way, the next one may look at once.
        v_walk := {{schema}}.walked('{{name}}.batches_open') - v_walk;
        IF v_n > 0 OR v_walk > 1000 THEN
            PERFORM {{schema}}.note_walk('orphans', clock_timestamp(), greatest(v_walk, 100000), NULL);
        END IF;
    END IF;
    v_walk := {{schema}}.walked('{{name}}.batches_open');

    -- Whole batches, until the limit is reached. What came first, the deadline or the end
    -- of the lease, tells a stuck handler from a dead process, however late this is.
    SELECT array_agg(c.key), array_agg(c.open), array_agg(c.key) FILTER (WHERE c.overdue), array_agg(c.open) FILTER (WHERE c.overdue),
           array_agg(c.key) FILTER (WHERE NOT c.overdue), array_agg(c.open) FILTER (WHERE NOT c.overdue)
      INTO v_keys, v_masks, v_overdue, v_overdue_masks, v_expiry, v_expiry_masks
    FROM (SELECT o.key, o.open, o.overdue, sum(bit_count(o.open)) OVER (ROWS UNBOUNDED PRECEDING) - bit_count(o.open) AS before
          FROM (
              SELECT one.key, one.open, one.deadline < w.lease_expires_at AS overdue
              FROM unnest(v_expired) g (worker)
              CROSS JOIN LATERAL (SELECT x.lease_expires_at FROM {{schema}}.workers x WHERE x.id = g.worker OFFSET 0) w
              CROSS JOIN LATERAL (
                  SELECT b.key, {{schema}}.open_of_kinds(b.open, b.jobs, p_kinds) AS open, b.deadline FROM {{schema}}.batches b
                  WHERE b.finished_at IS NULL AND b.worker_id = g.worker AND (b.started_at <= v_now OR b.started_at > clock_timestamp()) AND (p_queue IS NULL OR b.queue = p_queue)
                    AND (p_kinds IS NULL OR bit_count({{schema}}.open_of_kinds(b.open, b.jobs, p_kinds)) > 0)
                  LIMIT p_limit FOR UPDATE SKIP LOCKED) one
              UNION ALL
              SELECT one.key, one.open, true FROM unnest(v_live) g (worker)
              CROSS JOIN LATERAL (
                  SELECT b.key, {{schema}}.open_of_kinds(b.open, b.jobs, p_kinds) AS open FROM {{schema}}.batches b
                  WHERE b.finished_at IS NULL AND b.worker_id = g.worker AND b.deadline < v_now AND b.started_at <= v_now
                    AND (p_queue IS NULL OR b.queue = p_queue)
                    AND (p_kinds IS NULL OR bit_count({{schema}}.open_of_kinds(b.open, b.jobs, p_kinds)) > 0)
                  LIMIT p_limit FOR UPDATE SKIP LOCKED) one
          ) o) c
    WHERE c.before < p_limit;
    v_walk := {{schema}}.walked('{{name}}.batches_open') - v_walk - coalesce(cardinality(v_keys), 0);
    IF v_look AND v_walk > 200 THEN
        PERFORM {{schema}}.note_walk(v_what, clock_timestamp(), v_walk, NULL);
    END IF;

    IF v_keys IS NOT NULL THEN
        WITH runs AS (
            SELECT r.worker_id, (r.job).*, 'deadline passed' AS why FROM {{schema}}.jobs_of(v_overdue, v_overdue_masks) r
            UNION ALL
            SELECT r.worker_id, (r.job).*, 'lease expired' FROM {{schema}}.jobs_of(v_expiry, v_expiry_masks) r
        ), kept AS (
            INSERT INTO {{schema}}.dead (id, created_at, died_at, worker_id, attempt, max_attempts, priority, queue, kind, payload, reason, last_error, errors)
            SELECT r.id, r.created_at, v_now, r.worker_id, r.attempt + 1, r.max_attempts, r.priority, r.queue, r.kind, r.payload, r.why,
                   r.why, {{schema}}.push_error(r.errors, r.attempt + 1, v_now, r.why)
            FROM runs r WHERE r.attempt + 1 >= r.max_attempts
            RETURNING 1
        ), back AS (
            INSERT INTO {{schema}}.waiting (id, available_at, created_at, resume_at, attempt, max_attempts, priority, state, queue, kind, payload, last_error, errors)
            SELECT r.id, v_now + interval '1 second', r.created_at, r.available_at, r.attempt + 1, r.max_attempts, r.priority, 'scheduled',
                   r.queue, r.kind, r.payload, r.why, {{schema}}.push_error(r.errors, r.attempt + 1, v_now, r.why)
            FROM runs r WHERE r.attempt + 1 < r.max_attempts
            RETURNING 1
        ), counted AS (
            INSERT INTO {{schema}}.tallies (queue, lost, overdue)
            SELECT r.queue, count(*), count(*) FILTER (WHERE r.why = 'deadline passed') FROM runs r GROUP BY r.queue
        )
        SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM back) INTO buried, returned;
        PERFORM {{schema}}.close_runs(v_keys, v_masks);
    END IF;

    -- Who has no row has unregistered, and could not release what was locked then, or what
    -- a claim took that ended after it, its connection cut: that is done now, and no attempt
    -- is counted for it.
    SELECT array_agg(c.key), array_agg(c.open) INTO v_keys, v_masks
    FROM (SELECT o.key, o.open, sum(bit_count(o.open)) OVER (ROWS UNBOUNDED PRECEDING) - bit_count(o.open) AS before
          FROM (SELECT one.* FROM unnest(v_orphans) g (worker)
                CROSS JOIN LATERAL (
                    SELECT b.key, b.open FROM {{schema}}.batches b
                    WHERE b.finished_at IS NULL AND b.worker_id = g.worker AND (b.started_at <= v_now OR b.started_at > clock_timestamp())
                    LIMIT p_limit FOR UPDATE SKIP LOCKED) one) o) c
    WHERE c.before < p_limit - returned - buried;
    IF v_keys IS NOT NULL THEN
        SELECT returned + count(*) INTO returned FROM {{schema}}.put_back(v_keys, v_masks);
    END IF;

    WITH removed AS (
        DELETE FROM {{schema}}.workers w
        WHERE w.id = ANY (v_expired)
          AND NOT EXISTS (SELECT 1 FROM {{schema}}.batches b WHERE b.finished_at IS NULL AND b.worker_id = w.id)
        RETURNING 1
    )
    SELECT count(*) INTO workers_removed FROM removed;

    FOR r IN
        SELECT q.name, q.retain_finished, q.retain_dead FROM {{schema}}.queues q WHERE p_queue IS NULL
        UNION ALL SELECT q.name, q.retain_finished, q.retain_dead FROM {{schema}}.queues q WHERE q.name = p_queue
        ORDER BY name
    LOOP
        PERFORM {{schema}}.rewalk(r.name);
        IF promoted < p_limit THEN
            v_n := {{schema}}.promote(r.name, (p_limit - promoted)::integer);
            promoted := promoted + v_n;
            IF v_n > 0 THEN
                PERFORM pg_notify({{schema_literal}}, r.name);
            END IF;
        END IF;
        IF p_retention AND finished_purged < p_limit THEN
            v_what := 'ended of ' || r.name;
            v_last := {{schema}}.recent_walk(v_what);
            v_walk := {{schema}}.walked('{{name}}.ended_retention');
            SELECT coalesce(array_agg(f.id), '{}'), max(f.finished_at) INTO v_ids, v_upto
            FROM (SELECT f.id, f.finished_at FROM {{schema}}.ended f
                  WHERE f.queue = r.name AND f.finished_at < v_now - r.retain_finished AND f.finished_at >= coalesce(v_last.upto, '-infinity')
                  ORDER BY f.finished_at LIMIT p_limit - finished_purged FOR UPDATE SKIP LOCKED) f;
            DELETE FROM {{schema}}.ended f WHERE f.id = ANY (v_ids);
            finished_purged := finished_purged + cardinality(v_ids);
            PERFORM {{schema}}.note_purge(v_what, v_last, {{schema}}.walked('{{name}}.ended_retention') - v_walk, p_limit,
                coalesce(v_upto, v_now - r.retain_finished));
        END IF;
        IF p_retention AND finished_purged < p_limit THEN
            v_what := 'batches of ' || r.name;
            v_last := {{schema}}.recent_walk(v_what);
            v_walk := {{schema}}.walked('{{name}}.batches_retention');
            v_keys := '{}'; v_n := 0; v_upto := NULL;
            FOR b IN -- which fetches few at a time, and so locks few that are not taken
                SELECT x.key, x.finished_at, bit_count(x.succeeded) AS jobs FROM {{schema}}.batches x
                WHERE x.finished_at IS NOT NULL AND x.queue = r.name
                  AND x.finished_at < v_now - r.retain_finished AND x.finished_at >= coalesce(v_last.upto, '-infinity')
                ORDER BY x.finished_at LIMIT p_limit - finished_purged FOR UPDATE SKIP LOCKED
            LOOP
                v_keys := v_keys || b.key; v_n := v_n + b.jobs; v_upto := b.finished_at;
                EXIT WHEN finished_purged + v_n >= p_limit;
            END LOOP;
            DELETE FROM {{schema}}.batch_ends e WHERE e.key = ANY (v_keys);
            DELETE FROM {{schema}}.batches b WHERE b.key = ANY (v_keys);
            finished_purged := finished_purged + v_n;
            PERFORM {{schema}}.note_purge(v_what, v_last, {{schema}}.walked('{{name}}.batches_retention') - v_walk, p_limit,
                coalesce(v_upto, v_now - r.retain_finished));
        END IF;
        IF p_retention AND dead_purged < p_limit THEN
            v_what := 'dead of ' || r.name;
            v_last := {{schema}}.recent_walk(v_what);
            v_walk := {{schema}}.walked('{{name}}.dead_retention');
            SELECT coalesce(array_agg(f.id), '{}'), max(f.died_at) INTO v_ids, v_upto
            FROM (SELECT d.id, d.died_at FROM {{schema}}.dead d
                  WHERE d.queue = r.name AND d.died_at < v_now - r.retain_dead AND d.died_at >= coalesce(v_last.upto, '-infinity')
                  ORDER BY d.died_at LIMIT p_limit - dead_purged FOR UPDATE SKIP LOCKED) f;
            DELETE FROM {{schema}}.dead d WHERE d.id = ANY (v_ids);
            dead_purged := dead_purged + cardinality(v_ids);
            PERFORM {{schema}}.note_purge(v_what, v_last, {{schema}}.walked('{{name}}.dead_retention') - v_walk, p_limit,
                coalesce(v_upto, v_now - r.retain_dead));
        END IF;
        SELECT max(k.seq) INTO v_n FROM {{schema}}.marks k WHERE k.queue = r.name;
        IF v_n IS NOT NULL THEN
            v_places := ARRAY(
                SELECT k.ctid FROM {{schema}}.marks k
                WHERE k.queue = r.name AND k.seq <= v_n AND (k.seq < v_n OR k.due_from = '-infinity') FOR UPDATE SKIP LOCKED);
            DELETE FROM {{schema}}.marks k WHERE k.ctid = ANY (v_places);
        END IF;
    END LOOP;
    PERFORM {{schema}}.fold('0 s');

    more := returned + buried >= p_limit OR workers_removed >= p_limit OR promoted >= p_limit OR finished_purged >= p_limit OR dead_purged >= p_limit;
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION {{schema}}.reap(text, integer, boolean, text[]) IS
'Takes back runs whose worker''s lease or whose own deadline has passed: scheduled again in a second, in the place in the order that they had, while attempts remain, else dead. Releases, in all queues, what workers that have unregistered still had. Makes due scheduled jobs pending. With retention, deletes finished jobs and dead letters older than their queue keeps them. Passes over locked rows; any number may run at once. Call it outside a transaction: one that stays open keeps others from looking for runs that are past their deadline.
queue: null for all. kinds: takes back runs of these kinds only, as a worker does with those that it knows; null for all. limit: 1 to 100000, for each kind of work; runs that share a row, and finished jobs that do, are taken together, so that it may be passed by 999. more: a limit was reached; call again.
Errors: JQ001 no such queue; JQ005 bad argument.';
