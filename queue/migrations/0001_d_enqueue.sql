-- Adding jobs. Nothing here updates a row or waits for one, so it is at home in
-- a caller's transaction of any isolation level and any length.

-- Whether this transaction is to announce a ready job in a queue that had no other.
-- Among transactions that overlap one in ten milliseconds is enough: the server
-- commits those that notify one after the other, and the rest should not queue up
-- behind them. A job that was not announced because another was, which then was rolled
-- back, is found by a worker's poll. One whose announced neighbour committed first, by
-- the second look after that one's claim (worker/claim.go).
--
-- The lock is kept until the transaction ends, so a transaction that has announced a
-- queue remembers it and takes no other one, however long it goes on: a setting, unlike a
-- row, writes nothing, and is forgotten where the notification is, at a ROLLBACK TO
-- SAVEPOINT too. A SERIALIZABLE transaction does not look at all, so it needs no lock: of
-- equal notifications a transaction sends one anyway.
CREATE FUNCTION {{schema}}.announces(p_queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_lock text := 'jobqueue wake ' || {{schema_literal}} || ' ' || p_queue;
    v_done text := current_setting('jobqueue.announced', true);
    v_this text := ' ' || hashtextextended(v_lock, 0) || ' ';
BEGIN
    IF current_setting('transaction_isolation') = 'serializable' THEN
        RETURN true;
    ELSIF strpos(v_done, v_this) > 0 OR NOT pg_try_advisory_xact_lock(hashtextextended(v_lock, (extract(epoch FROM clock_timestamp()) * 100)::bigint)) THEN
        RETURN false;
    END IF;
    PERFORM set_config('jobqueue.announced', coalesce(v_done, '') || v_this, true);
    RETURN true;
END $$;

-- The queue and the hundredth of a second, as wake remembers them.
CREATE FUNCTION {{schema}}.moment(p_queue text, p_at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$ SELECT {{schema_literal}} || ' ' || p_queue || ' ' || (date_part('epoch', p_at) * 100)::bigint::text $$;

-- Wakes idle workers, unless the queue has pending jobs already, besides the one given,
-- that somebody asks for: then nobody is idle, or someone has been woken. A SERIALIZABLE
-- transaction does not look, for looking would make it conflict with every other producer.
--
-- Where the first of them has waited for a tenth of a second, so that workers are behind, the
-- session need not look again until the next hundredth of a second (jobqueue.attended):
-- who takes all of them meanwhile looks again later than that (worker/poll.go).
CREATE FUNCTION {{schema}}.wake(p_queue text, p_besides bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_others integer; -- null or 0: none that somebody is awake for; 2: they have waited
BEGIN
    IF current_setting('transaction_isolation') <> 'serializable' THEN
        -- As has_ready() and is_attended() look, whose calls would cost more than this.
        v_others := CASE
            WHEN EXISTS (SELECT 1 FROM {{schema}}.marks k WHERE k.queue = p_queue) THEN {{schema}}.has_ready(p_queue, p_besides)::integer
            ELSE (SELECT CASE WHEN f.available_at > v_now - interval '1 second' OR coalesce(
                      (SELECT bool_or(w.kinds IS NULL OR f.kind = ANY (w.kinds)) FROM {{schema}}.workers w WHERE w.queue = p_queue AND w.lease_expires_at > v_now), true)
                      THEN CASE WHEN f.available_at < v_now - interval '100 milliseconds' THEN 2 ELSE 1 END END
                  FROM (SELECT w.kind, w.available_at FROM {{schema}}.waiting w WHERE w.queue = p_queue AND w.state = 'pending' AND w.id IS DISTINCT FROM p_besides
                        ORDER BY w.priority, w.available_at, w.id LIMIT 1) f) END;
    END IF;
    IF v_others > 0 THEN
        IF v_others = 2 AND current_setting('transaction_isolation') = 'read committed' THEN -- not by an old snapshot
            PERFORM set_config('jobqueue.attended', {{schema}}.moment(p_queue, v_now), false);
        END IF;
    ELSIF {{schema}}.announces(p_queue) THEN
        PERFORM pg_notify({{schema_literal}}, p_queue);
    END IF;
END $$;

-- Lets claims find jobs whose time lies in the past, should they be skipping
-- what was there (0001_e_marks.sql). Not worth a serialization failure.
CREATE FUNCTION {{schema}}.place_behind(p_queue text, p_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'serializable' THEN
        PERFORM {{schema}}.lower_marks(p_queue, p_ids);
    END IF;
END $$;

-- Says what is wrong with a job that enqueue did not take.
CREATE FUNCTION {{schema}}.refuse_job(
    p_queue text, p_kind text, p_payload jsonb, p_priority smallint, p_delay_seconds double precision, p_run_at timestamptz, p_max_attempts integer
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_max integer;
BEGIN
    SELECT q.max_payload_bytes INTO v_max FROM {{schema}}.queues q WHERE q.name = p_queue;
    IF NOT FOUND THEN
        PERFORM {{schema}}.no_such_queue(p_queue);
    END IF;
    PERFORM {{schema}}.check_name('kind', p_kind);
    IF p_payload IS NULL THEN
        PERFORM {{schema}}.bad_argument('payload', NULL, 'a jsonb value; JSON null is written ''null''::jsonb');
    ELSIF NOT {{schema}}.payload_fits(p_payload, v_max) THEN
        PERFORM {{schema}}.payload_too_large('payload', p_queue, p_kind, p_payload, v_max);
    ELSIF p_priority IS NULL THEN
        PERFORM {{schema}}.bad_argument('priority', NULL, '-32768 to 32767; lower runs first');
    ELSIF p_delay_seconds <> 0 AND p_run_at IS NOT NULL THEN
        PERFORM {{schema}}.bad_argument('run_at', p_run_at::text, 'null when the job has a delay');
    ELSIF p_delay_seconds NOT BETWEEN 0 AND 3153600000 THEN
        PERFORM {{schema}}.bad_argument('delay_seconds', p_delay_seconds::text, '0 to 3153600000 (a hundred years), or null');
    ELSIF p_run_at IN ('infinity', '-infinity') THEN
        PERFORM {{schema}}.bad_argument('run_at', p_run_at::text, 'a finite time, or null');
    END IF;
    PERFORM {{schema}}.bad_argument('max_attempts', p_max_attempts::text, '1 to 1000, or 0 or null for the queue''s');
END $$;

CREATE FUNCTION {{schema}}.enqueue(
    p_queue         text,
    p_kind          text,
    p_payload       jsonb            DEFAULT 'null',
    p_priority      smallint         DEFAULT 0::smallint,
    p_delay_seconds double precision DEFAULT NULL,
    p_run_at        timestamptz      DEFAULT NULL,
    p_max_attempts  integer          DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_id    bigint;
    v_ready boolean;
BEGIN
    -- This is the hot path, and what costs here is each statement and each expression, not
    -- what it works on: so everything is checked at once, and who failed is asked who it was.
    INSERT INTO {{schema}}.waiting AS j (available_at, created_at, max_attempts, priority, state, queue, kind, payload)
    SELECT t.at, v_now, CASE WHEN p_max_attempts > 0 THEN p_max_attempts ELSE q.max_attempts END, p_priority,
           CASE WHEN t.at <= v_now THEN 'pending'::{{schema}}.waiting_state ELSE 'scheduled' END, p_queue, p_kind, p_payload
    FROM {{schema}}.queues q
    CROSS JOIN LATERAL (SELECT coalesce(p_run_at, v_now + make_interval(secs => coalesce(p_delay_seconds, 0))) AS at) t
    WHERE q.name = p_queue
      AND length(p_kind) BETWEEN 1 AND 128 AND p_kind !~ E'[\\x01-\\x1f\\x7f-\\x9f]'
      AND {{schema}}.payload_fits(p_payload, q.max_payload_bytes) AND p_priority IS NOT NULL
      AND (p_delay_seconds IS NULL OR p_delay_seconds = 0 OR p_run_at IS NULL AND p_delay_seconds BETWEEN 0 AND 3153600000)
      AND (p_run_at IS NULL OR isfinite(p_run_at)) AND (p_max_attempts IS NULL OR p_max_attempts BETWEEN 0 AND 1000)
    RETURNING j.id, j.state = 'pending' INTO v_id, v_ready;
    IF v_id IS NULL THEN
        PERFORM {{schema}}.refuse_job(p_queue, p_kind, p_payload, p_priority, p_delay_seconds, p_run_at, p_max_attempts);
    ELSIF v_ready AND (current_setting('jobqueue.attended', true) IS DISTINCT FROM {{schema}}.moment(p_queue, v_now)
                       OR current_setting('transaction_isolation') = 'serializable') THEN
        PERFORM {{schema}}.wake(p_queue, v_id);
    END IF;
    IF p_run_at < v_now THEN
        PERFORM {{schema}}.place_behind(p_queue, ARRAY[v_id]);
    END IF;
    RETURN v_id;
END $$;
COMMENT ON FUNCTION {{schema}}.enqueue(text, text, jsonb, smallint, double precision, timestamptz, integer) IS
'Adds a job in the caller''s transaction and returns its id.
queue: a declared queue. kind: names the handler, 1 to 128 characters, none of them a control character. payload: its argument, within the queue''s max_payload_bytes as text. priority: lower runs first. delay_seconds or run_at: when it becomes ready; at most one of them (a delay of 0 is none), now by default; a run_at in the past is kept and orders the job. max_attempts: 1 to 1000; null or 0 for the queue''s.
Errors: JQ001 no such queue; JQ003 payload too large; JQ005 bad argument.';

CREATE FUNCTION {{schema}}.enqueue_many(
    p_queue         text,
    p_kinds         text[],
    p_payloads      jsonb[],
    p_priorities    smallint[]         DEFAULT NULL,
    p_delay_seconds double precision[] DEFAULT NULL,
    p_run_ats       timestamptz[]      DEFAULT NULL,
    p_max_attempts  integer[]          DEFAULT NULL
) RETURNS TABLE (id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_attempts integer;
    v_max      integer;
    v_n        integer := cardinality(p_kinds);
    v_bad      record;
    v_ids      bigint[];
BEGIN
    SELECT q.max_payload_bytes, q.max_attempts INTO v_max, v_attempts FROM {{schema}}.queues q WHERE q.name = p_queue;
    IF NOT FOUND THEN
        PERFORM {{schema}}.no_such_queue(p_queue);
    END IF;
    IF p_kinds IS NULL THEN
        PERFORM {{schema}}.bad_argument('kinds', NULL, 'an array, which may be empty');
    ELSIF p_payloads IS NULL THEN
        PERFORM {{schema}}.bad_argument('payloads', NULL, 'an array, which may be empty');
    END IF;
    SELECT a.name, a.n INTO v_bad
    FROM (VALUES ('kinds', array_ndims(p_kinds)), ('payloads', array_ndims(p_payloads)), ('priorities', array_ndims(p_priorities)),
                 ('delay_seconds', array_ndims(p_delay_seconds)), ('run_ats', array_ndims(p_run_ats)), ('max_attempts', array_ndims(p_max_attempts))) AS a (name, n)
    WHERE a.n > 1 LIMIT 1;
    IF FOUND THEN
        PERFORM {{schema}}.bad_argument(v_bad.name, format('an array of %s dimensions', v_bad.n), 'an array of one dimension');
    END IF;
    SELECT a.name, a.n INTO v_bad
    FROM (VALUES ('payloads', cardinality(p_payloads)), ('priorities', cardinality(p_priorities)), ('delay_seconds', cardinality(p_delay_seconds)),
                 ('run_ats', cardinality(p_run_ats)), ('max_attempts', cardinality(p_max_attempts))) AS a (name, n)
    WHERE a.n <> v_n LIMIT 1;
    IF FOUND THEN
        PERFORM {{schema}}.bad_argument(v_bad.name, format('an array of %s', v_bad.n), format('as many as kinds, which are %s', v_n));
    END IF;
    IF v_n = 0 THEN
        RETURN;
    END IF;

    SELECT u.* INTO v_bad
    FROM unnest(p_kinds, p_payloads, p_priorities, p_delay_seconds, p_run_ats, p_max_attempts)
         WITH ORDINALITY AS u (kind, payload, priority, delay, run_at, attempts, n)
    WHERE u.kind IS NULL OR length(u.kind) NOT BETWEEN 1 AND 128 OR u.kind ~ E'[\\x01-\\x1f\\x7f-\\x9f]' OR u.payload IS NULL
       OR NOT {{schema}}.payload_fits(u.payload, v_max)
       OR (u.priority IS NULL AND p_priorities IS NOT NULL)
       OR u.delay NOT BETWEEN 0 AND 3153600000 OR (u.delay <> 0 AND u.run_at IS NOT NULL)
       OR u.run_at IN ('infinity', '-infinity') OR u.attempts NOT BETWEEN 0 AND 1000
    LIMIT 1;
    IF FOUND THEN
        PERFORM {{schema}}.check_name(format('kinds[%s]', v_bad.n), v_bad.kind);
        IF v_bad.payload IS NULL THEN
            PERFORM {{schema}}.bad_argument(format('payloads[%s]', v_bad.n), NULL, 'a jsonb value; JSON null is written ''null''::jsonb');
        ELSIF NOT {{schema}}.payload_fits(v_bad.payload, v_max) THEN
            PERFORM {{schema}}.payload_too_large(format('payloads[%s]', v_bad.n), p_queue, v_bad.kind, v_bad.payload, v_max);
        ELSIF v_bad.priority IS NULL AND p_priorities IS NOT NULL THEN
            PERFORM {{schema}}.bad_argument(format('priorities[%s]', v_bad.n), NULL, '-32768 to 32767; lower runs first');
        ELSIF v_bad.delay NOT BETWEEN 0 AND 3153600000 THEN
            PERFORM {{schema}}.bad_argument(format('delay_seconds[%s]', v_bad.n), v_bad.delay::text, '0 to 3153600000 (a hundred years), or null');
        ELSIF v_bad.attempts NOT BETWEEN 0 AND 1000 THEN
            PERFORM {{schema}}.bad_argument(format('max_attempts[%s]', v_bad.n), v_bad.attempts::text, '1 to 1000, or 0 or null for the queue''s');
        ELSE
            PERFORM {{schema}}.bad_argument(format('run_ats[%s]', v_bad.n), v_bad.run_at::text, 'a finite time, or null; null when the job has a delay');
        END IF;
    END IF;

    IF (p_delay_seconds IS NULL AND p_run_ats IS NULL)
       OR EXISTS (SELECT 1 FROM unnest(p_kinds, p_delay_seconds, p_run_ats) AS u (kind, delay, run_at)
                  WHERE coalesce(u.delay, 0) = 0 AND (u.run_at IS NULL OR u.run_at <= v_now)) THEN
        PERFORM {{schema}}.wake(p_queue);
    END IF;
    WITH added AS (
        INSERT INTO {{schema}}.waiting AS j (available_at, created_at, max_attempts, priority, state, queue, kind, payload)
        SELECT n.at, v_now, coalesce(nullif(n.attempts, 0), v_attempts), coalesce(n.priority, 0::smallint),
               CASE WHEN n.at <= v_now THEN 'pending'::{{schema}}.waiting_state ELSE 'scheduled' END, p_queue, n.kind, n.payload
        FROM (SELECT u.*, CASE WHEN u.run_at IS NOT NULL THEN u.run_at
                               WHEN u.delay > 0 THEN v_now + make_interval(secs => u.delay) ELSE v_now END AS at
              FROM unnest(p_kinds, p_payloads, p_priorities, p_delay_seconds, p_run_ats, p_max_attempts)
                   AS u (kind, payload, priority, delay, run_at, attempts)) n
        RETURNING j.id
    )
    SELECT array_agg(a.id) INTO v_ids FROM added a;
    IF p_run_ats IS NOT NULL THEN
        PERFORM {{schema}}.place_behind(p_queue, v_ids);
    END IF;
    RETURN QUERY SELECT unnest(v_ids);
END $$;
COMMENT ON FUNCTION {{schema}}.enqueue_many(text, text[], jsonb[], smallint[], double precision[], timestamptz[], integer[]) IS
'Adds any number of jobs to one queue in the caller''s transaction, all or none, and returns their ids in the order given.
kinds and payloads are equally long, and so is each other array that is not null; a null array or element means the default, except that kinds, payloads and priorities have no null elements. Values are as for enqueue.
Errors: JQ001 no such queue; JQ003 a payload too large; JQ005 bad argument; the last two with the number of the job in brackets, counted from 1.';
