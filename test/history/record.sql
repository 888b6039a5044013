-- What happens to jobs, written down by triggers. {{schema}} is the queue's schema, quoted.
-- No literal here has a backslash: a function's body is read at each call anew, and what
-- one means depends on the caller's standard_conforming_strings.

CREATE SCHEMA IF NOT EXISTS history;

-- No key: what must not happen twice would be refused, and is to be seen.
CREATE TABLE IF NOT EXISTS history.events (
    seq   bigint GENERATED ALWAYS AS IDENTITY,
    xid   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    what  text NOT NULL,
    id    bigint NOT NULL,
    token uuid,
    place text NOT NULL DEFAULT '',
    by    text NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of runs only: their deadline, and the last of their worker's leases.
    deadline   timestamptz,
    registered xid8,
    lease      timestamptz
);
-- Leases of workers. registered is the transaction that made the worker's row; it and lease
-- are null when the row was removed.
CREATE TABLE IF NOT EXISTS history.leases (
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    worker     uuid NOT NULL,
    registered xid8,
    lease      timestamptz,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS leases_last ON history.leases (worker, seq);
CREATE TABLE IF NOT EXISTS history.told (id bigint NOT NULL, token uuid NOT NULL, outcome text NOT NULL, at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS history.began (id bigint NOT NULL, token uuid NOT NULL, at timestamptz NOT NULL);

-- The function that the client has called: the first of the queue's schema in its query.
CREATE OR REPLACE FUNCTION history.caller(p_schema text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(substring(current_query() FROM '"?' || p_schema || '"?[.]([[:alnum:]_]+)[[:space:]]*[(]'), 'none')
$$;

-- What is known of the worker's lease. Whoever writes a worker's row has it locked until the
-- commit, so that a lease with a higher seq is a later one.
CREATE OR REPLACE FUNCTION history.last_lease(p_worker uuid) RETURNS history.leases LANGUAGE sql STABLE AS $$
    SELECT l FROM history.leases l WHERE l.worker = p_worker ORDER BY l.seq DESC LIMIT 1
$$;

-- A reaper that removes a worker before its lease is over does not end the lease by that.
CREATE OR REPLACE FUNCTION history.record_leases() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO history.leases (worker, registered, lease)
        VALUES (NEW.id, coalesce((history.last_lease(NEW.id)).registered, pg_current_xact_id()), NEW.lease_expires_at);
    ELSIF history.caller(TG_TABLE_SCHEMA) <> 'reap' OR OLD.lease_expires_at < clock_timestamp() THEN
        INSERT INTO history.leases (worker) VALUES (OLD.id);
    END IF;
    RETURN NULL;
END $$;

-- The lease is looked up here, and not put together from the times of leases and runs: a
-- heartbeat is noted before it commits, and until then the reaper rightly does not see it.
-- What can be seen here is what holds: the row of a worker whose lease ran out is locked by
-- the reaper that takes its runs.
CREATE OR REPLACE FUNCTION history.record_runs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v      record;
    v_open varbit; -- before
    v_good varbit; -- before
    v_now  varbit; -- open, after
    v_last history.leases;
BEGIN
    IF TG_OP = 'DELETE' THEN
        v := OLD; v_open := OLD.open; v_good := OLD.succeeded; v_now := OLD.open & ~OLD.open;
    ELSIF TG_OP = 'INSERT' THEN
        v := NEW; v_open := NEW.open & ~NEW.open; v_good := v_open; v_now := NEW.open;
    ELSE
        v := NEW; v_open := OLD.open; v_good := OLD.succeeded; v_now := NEW.open;
    END IF;
    v_last := history.last_lease(v.worker_id);
    INSERT INTO history.events (what, id, token, by, deadline, registered, lease)
    SELECT c.what, i.id, encode(v.key || int2send((i.n - 1)::smallint), 'hex')::uuid, history.caller(TG_TABLE_SCHEMA),
           v.deadline, v_last.registered, v_last.lease
    FROM unnest(v.ids) WITH ORDINALITY i (id, n)
    CROSS JOIN (VALUES (1, 'claimed', v_now & ~v_open), (2, 'closed', v_open & ~v_now), (3, 'succeeded', v.succeeded & ~v_good)) c (o, what, bits)
    WHERE get_bit(c.bits, (i.n - 1)::integer) = 1
    ORDER BY i.n, c.o;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION history.record_arrivals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO history.events (what, id, place, by)
    SELECT 'arrived', n.id, TG_TABLE_NAME, history.caller(TG_TABLE_SCHEMA) FROM new_rows n;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER history_record AFTER INSERT OR UPDATE OR DELETE ON {{schema}}.batches
    FOR EACH ROW EXECUTE FUNCTION history.record_runs();
CREATE OR REPLACE TRIGGER history_record AFTER INSERT OR UPDATE OR DELETE ON {{schema}}.workers
    FOR EACH ROW EXECUTE FUNCTION history.record_leases();
CREATE OR REPLACE TRIGGER history_record AFTER INSERT ON {{schema}}.waiting
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION history.record_arrivals();
CREATE OR REPLACE TRIGGER history_record AFTER INSERT ON {{schema}}.dead
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION history.record_arrivals();
CREATE OR REPLACE TRIGGER history_record AFTER INSERT ON {{schema}}.ended
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION history.record_arrivals();
