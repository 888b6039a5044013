-- Nobody but the owner may call anything until it is granted.

CREATE FUNCTION {{schema}}.grant_access(p_role name, p_access text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_producer text[] := ARRAY['enqueue', 'enqueue_many', 'get_policy'];
    v_worker   text[] := ARRAY['claim', 'claim_many', 'heartbeat', 'release', 'disown', 'unregister', 'succeed', 'succeed_many', 'fail', 'snooze', 'discard', 'get_policy', 'reap'];
    v_operator text[] := ARRAY['set_policy', 'get_policy', 'release_owner', 'sample', 'horizon_holder', 'reap', 'cancel', 'list_dead', 'requeue', 'requeue_kind', 'purge_dead', 'get_job', 'list_jobs'];
    v_names    text[];
    r          record;
BEGIN
    v_names := CASE p_access WHEN 'producer' THEN v_producer WHEN 'worker' THEN v_worker
                             WHEN 'operator' THEN v_operator WHEN 'all' THEN v_producer || v_worker || v_operator END;
    IF v_names IS NULL THEN
        PERFORM {{schema}}.bad_argument('access', p_access, 'producer, worker, operator or all');
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', {{schema_literal}}, p_role);
    EXECUTE format('GRANT SELECT ON %I.schema_migrations TO %I', {{schema_literal}}, p_role);
    FOR r IN SELECT p.oid::regprocedure AS f FROM pg_proc p
             WHERE p.pronamespace = {{schema_literal}}::regnamespace AND p.proname = ANY (v_names) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', r.f, p_role);
    END LOOP;
END $$;
COMMENT ON FUNCTION {{schema}}.grant_access(name, text) IS
'Lets a role call the functions of a producer, of a worker, of the operator, or all of them; call it as the schema''s owner. The tables stay private: the functions run with the owner''s rights.';

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {{schema}} FROM PUBLIC;
COMMENT ON SCHEMA {{schema}} IS 'A job queue. Its functions with a comment are the public protocol; the tables and the other functions are private.';
