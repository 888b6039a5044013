-- The policy of a queue, as jsonb with units in the names of its keys.

CREATE FUNCTION {{schema}}.policy_json(q {{schema}}.queues) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'lease_seconds', extract(epoch FROM q.lease),
        'heartbeat_seconds', extract(epoch FROM q.heartbeat),
        'timeout_seconds', extract(epoch FROM q.timeout),
        'max_attempts', q.max_attempts,
        'backoff_base_seconds', extract(epoch FROM q.backoff_base),
        'backoff_max_seconds', extract(epoch FROM q.backoff_max),
        'backoff_jitter_percent', q.backoff_jitter,
        'batch_size', q.batch_size,
        'max_payload_bytes', q.max_payload_bytes,
        'retain_finished_seconds', extract(epoch FROM q.retain_finished),
        'retain_dead_seconds', extract(epoch FROM q.retain_dead),
        'suspended', q.suspended,
        'generation', q.generation,
        'owner', q.owner)
$$;

-- One number of a policy: the given one within its bounds, else the fallback.
CREATE FUNCTION {{schema}}.policy_number(p_policy jsonb, p_key text, p_fallback numeric, p_min numeric, p_max numeric, p_whole boolean)
RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
    v_value numeric;
BEGIN
    IF NOT p_policy ? p_key THEN
        RETURN p_fallback;
    END IF;
    IF jsonb_typeof(p_policy -> p_key) = 'number' THEN
        v_value := (p_policy ->> p_key)::numeric;
        IF v_value BETWEEN p_min AND p_max AND (NOT p_whole OR v_value = trunc(v_value)) THEN
            RETURN v_value;
        END IF;
    END IF;
    PERFORM {{schema}}.bad_argument('policy.' || p_key, (p_policy -> p_key)::text,
        format('a %snumber from %s to %s', CASE WHEN p_whole THEN 'whole ' ELSE '' END, p_min, p_max));
END $$;

CREATE FUNCTION {{schema}}.policy_seconds(p_policy jsonb, p_key text, p_fallback interval, p_min numeric, p_max numeric)
RETURNS interval
LANGUAGE sql AS $$
    SELECT make_interval(secs => {{schema}}.policy_number(p_policy, p_key, extract(epoch FROM p_fallback), p_min, p_max, false)::double precision)
$$;

CREATE FUNCTION {{schema}}.set_policy(p_queue text, p_policy jsonb DEFAULT '{}') RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    q         {{schema}}.queues;
    v_owner   text;
    v_key     text;
    v_allowed text[];
BEGIN
    PERFORM {{schema}}.check_name('queue', p_queue);
    IF p_policy IS NULL OR jsonb_typeof(p_policy) <> 'object' THEN
        PERFORM {{schema}}.bad_argument('policy', p_policy::text, 'a JSON object');
    END IF;
    -- A new queue gets the defaults first, so that there is a row to lock.
    INSERT INTO {{schema}}.queues (name, lease, heartbeat, timeout, max_attempts, backoff_base, backoff_max, backoff_jitter,
        batch_size, max_payload_bytes, retain_finished, retain_dead, suspended, generation, owner)
    VALUES (p_queue, '30 s', '10 s', '60 s', 5, '5 s', '3600 s', 20, 2000, 262144, '86400 s', '1209600 s', false, 0, '')
    ON CONFLICT (name) DO NOTHING;
    INSERT INTO {{schema}}.totals (queue) VALUES (p_queue) ON CONFLICT (queue) DO NOTHING;
    SELECT * INTO q FROM {{schema}}.queues WHERE name = p_queue FOR UPDATE;

    SELECT array_agg(k) INTO v_allowed FROM jsonb_object_keys({{schema}}.policy_json(q)) k;
    SELECT k INTO v_key FROM jsonb_object_keys(p_policy) k WHERE k <> ALL (v_allowed) LIMIT 1;
    IF v_key IS NOT NULL THEN
        PERFORM {{schema}}.bad_argument('policy', format('an object with the key "%s"', v_key), array_to_string(v_allowed, ', '));
    END IF;
    IF p_policy ? 'suspended' AND jsonb_typeof(p_policy -> 'suspended') <> 'boolean' THEN
        PERFORM {{schema}}.bad_argument('policy.suspended', (p_policy -> 'suspended')::text, 'true or false');
    END IF;
    IF p_policy ? 'owner' AND (jsonb_typeof(p_policy -> 'owner') <> 'string' OR length(p_policy ->> 'owner') > 512) THEN
        PERFORM {{schema}}.bad_argument('policy.owner', (p_policy -> 'owner')::text, 'a string of at most 512 characters');
    END IF;

    v_owner := coalesce(p_policy ->> 'owner', '');
    IF q.owner <> '' AND q.owner <> v_owner THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ002',
            MESSAGE = format('queue "%s" is owned by "%s"; its policy cannot be set by "%s"', p_queue, q.owner, v_owner),
            HINT = format('Change the JobQueue that owns it, or delete that JobQueue first: the jobs stay. If it is gone, run SELECT %I.release_owner(%L, %L).',
                {{schema_literal}}, p_queue, q.owner);
    END IF;
    IF q.owner <> '' AND jsonb_typeof(p_policy -> 'generation') = 'number' AND (p_policy ->> 'generation')::numeric < q.generation THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ004',
            MESSAGE = format('policy of generation %s for queue "%s" is older than the stored generation %s',
                p_policy ->> 'generation', p_queue, q.generation);
    END IF;

    q.lease          := {{schema}}.policy_seconds(p_policy, 'lease_seconds', q.lease, 0.001, 86400);
    q.heartbeat      := {{schema}}.policy_seconds(p_policy, 'heartbeat_seconds', q.heartbeat, 0.0001, 86400);
    q.timeout        := {{schema}}.policy_seconds(p_policy, 'timeout_seconds', q.timeout, 0.001, 2592000);
    q.backoff_base   := {{schema}}.policy_seconds(p_policy, 'backoff_base_seconds', q.backoff_base, 0, 2592000);
    q.backoff_max    := {{schema}}.policy_seconds(p_policy, 'backoff_max_seconds', q.backoff_max, 0, 2592000);
    q.retain_finished := {{schema}}.policy_seconds(p_policy, 'retain_finished_seconds', q.retain_finished, 0, 315360000);
    q.retain_dead    := {{schema}}.policy_seconds(p_policy, 'retain_dead_seconds', q.retain_dead, 0, 315360000);
    q.max_attempts   := {{schema}}.policy_number(p_policy, 'max_attempts', q.max_attempts, 1, 1000, true);
    q.backoff_jitter := {{schema}}.policy_number(p_policy, 'backoff_jitter_percent', q.backoff_jitter, 0, 100, true);
    q.batch_size     := {{schema}}.policy_number(p_policy, 'batch_size', q.batch_size, 1, 10000, true);
    q.max_payload_bytes := {{schema}}.policy_number(p_policy, 'max_payload_bytes', q.max_payload_bytes, 1, 67108864, true);
    q.generation     := {{schema}}.policy_number(p_policy, 'generation', q.generation, 0, 9223372036854775807, true);
    q.suspended      := coalesce((p_policy ->> 'suspended')::boolean, q.suspended);
    IF q.heartbeat > q.lease / 2 THEN
        PERFORM {{schema}}.bad_argument('policy.heartbeat_seconds', extract(epoch FROM q.heartbeat)::text,
            'at most half of lease_seconds, which is ' || extract(epoch FROM q.lease));
    END IF;
    IF q.backoff_base > q.backoff_max THEN
        PERFORM {{schema}}.bad_argument('policy.backoff_base_seconds', extract(epoch FROM q.backoff_base)::text,
            'at most backoff_max_seconds, which is ' || extract(epoch FROM q.backoff_max));
    END IF;

    UPDATE {{schema}}.queues
    SET lease = q.lease, heartbeat = q.heartbeat, timeout = q.timeout, max_attempts = q.max_attempts,
        backoff_base = q.backoff_base, backoff_max = q.backoff_max, backoff_jitter = q.backoff_jitter,
        batch_size = q.batch_size, max_payload_bytes = q.max_payload_bytes, retain_finished = q.retain_finished,
        retain_dead = q.retain_dead, suspended = q.suspended, generation = q.generation, owner = v_owner,
        updated_at = clock_timestamp()
    WHERE name = p_queue
    RETURNING * INTO q;
    RETURN {{schema}}.policy_json(q);
END $$;
COMMENT ON FUNCTION {{schema}}.set_policy(text, jsonb) IS
'Declares a queue or changes its policy, and returns the policy in force.
queue: its name, 1 to 128 characters. policy: a JSON object with any of lease_seconds (30), heartbeat_seconds (10, at most half of the lease), timeout_seconds (60), max_attempts (5), backoff_base_seconds (5), backoff_max_seconds (3600), backoff_jitter_percent (20), batch_size (2000), max_payload_bytes (262144), retain_finished_seconds (86400), retain_dead_seconds (1209600), suspended (false), generation (0), owner (empty); in parentheses the values of a new queue. A missing key keeps the stored value, except that a missing owner is the empty one.
Errors: JQ002 the queue has another owner; JQ004 same owner, older generation; JQ005 a value out of range or an unknown key.';

CREATE FUNCTION {{schema}}.get_policy(p_queue text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    q {{schema}}.queues;
BEGIN
    SELECT * INTO q FROM {{schema}}.queues WHERE name = p_queue;
    IF NOT FOUND THEN
        PERFORM {{schema}}.no_such_queue(p_queue);
    END IF;
    RETURN {{schema}}.policy_json(q);
END $$;
COMMENT ON FUNCTION {{schema}}.get_policy(text) IS
'Returns the policy of a queue as set_policy takes it. Errors: JQ001 no such queue.';

CREATE FUNCTION {{schema}}.release_owner(p_queue text, p_owner text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE {{schema}}.queues SET owner = '', updated_at = clock_timestamp()
    WHERE name = p_queue AND owner = p_owner AND owner <> ''
$$;
COMMENT ON FUNCTION {{schema}}.release_owner(text, text) IS
'Clears the queue''s owner if it is the given one, so that another may set its policy. Jobs and policy stay. Anything else is left alone without an error.';
