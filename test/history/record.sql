-- What happens to jobs, written down by triggers. {{schema}} is the queue's schema, quoted.

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
    at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS history.told (id bigint NOT NULL, token uuid NOT NULL, outcome text NOT NULL, at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS history.began (id bigint NOT NULL, token uuid NOT NULL, at timestamptz NOT NULL);

-- The function that the client has called: the first of the queue's schema in its query.
CREATE OR REPLACE FUNCTION history.caller(p_schema text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(substring(current_query() FROM '"?' || p_schema || '"?\.(\w+)\s*\('), 'none')
$$;

CREATE OR REPLACE FUNCTION history.record_runs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v      record;
    v_open varbit; -- before
    v_good varbit; -- before
    v_now  varbit; -- open, after
BEGIN
    IF TG_OP = 'DELETE' THEN
        v := OLD; v_open := OLD.open; v_good := OLD.succeeded; v_now := OLD.open & ~OLD.open;
    ELSIF TG_OP = 'INSERT' THEN
        v := NEW; v_open := NEW.open & ~NEW.open; v_good := v_open; v_now := NEW.open;
    ELSE
        v := NEW; v_open := OLD.open; v_good := OLD.succeeded; v_now := NEW.open;
    END IF;
    INSERT INTO history.events (what, id, token, by)
    SELECT c.what, i.id, encode(v.key || int2send((i.n - 1)::smallint), 'hex')::uuid, history.caller(TG_TABLE_SCHEMA)
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
CREATE OR REPLACE TRIGGER history_record AFTER INSERT ON {{schema}}.waiting
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION history.record_arrivals();
CREATE OR REPLACE TRIGGER history_record AFTER INSERT ON {{schema}}.dead
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION history.record_arrivals();
CREATE OR REPLACE TRIGGER history_record AFTER INSERT ON {{schema}}.ended
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION history.record_arrivals();
