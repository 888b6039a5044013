-- The horizon: rows deleted by transactions from there on must stay, because some
-- snapshot may still see them. What PostgreSQL reckons with for a table that is
-- not a catalog (ComputeXidHorizons in procarray.c):
--
-- - the snapshots (xmin) and transactions (xid) of this database's sessions, and
--   of processes without a database, which are standbys' walsenders;
-- - the xmin of replication slots, of whatever database, but not catalog_xmin;
-- - not sessions that vacuum, nor walsenders that decode: neither looks at old rows.
--
-- Transactions of other databases, prepared ones included, are in the snapshots
-- taken here as long as they run, so those that write hold the horizon as well;
-- the snapshots of other databases do not.
--
-- Snapshots inherit the oldest transaction, so that many sessions may have the same
-- xmin: the transaction that has that number comes first, then the longest one.
CREATE FUNCTION {{schema}}.horizon_holder()
RETURNS TABLE (kind text, name text, database text, pid integer, application_name text, usename text, state text,
               xact_start timestamptz, age_seconds double precision, xmin xid, xmin_age integer, hidden boolean)
LANGUAGE plpgsql STABLE ROWS 1 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.kind, h.name, h.database, h.pid, h.application_name, h.usename, h.state, h.xact_start,
           greatest(extract(epoch FROM clock_timestamp() - h.xact_start), 0)::double precision,
           h.xmin, greatest(age(h.xmin), 0), h.hidden
    FROM (
        SELECT CASE WHEN w.pid IS NOT NULL AND a.datid IS NULL THEN 'standby' ELSE 'session' END AS kind, NULL::text AS name,
               a.datname::text AS database, a.pid, a.application_name, a.usename::text AS usename,
               CASE WHEN a.datid IS NULL AND w.pid IS NOT NULL THEN w.state ELSE a.state END AS state,
               -- A walsender's transaction is not that of the standby.
               CASE WHEN a.datid IS NOT NULL OR w.pid IS NULL THEN a.xact_start END AS xact_start,
               x.xid AS xmin, x.own, a.backend_type IS NULL AS hidden
        FROM pg_stat_activity a
        LEFT JOIN pg_stat_replication w ON w.pid = a.pid
        CROSS JOIN LATERAL (VALUES (a.backend_xid, true), (a.backend_xmin, false)) x (xid, own)
        WHERE x.xid IS NOT NULL AND (x.own OR a.datid IS NULL OR a.datname = current_database())
          AND a.pid <> pg_backend_pid()
          -- Background processes without a user are PostgreSQL's own: autovacuum, whose
          -- workers see to themselves. A parallel worker is a part of its leader.
          AND a.usesysid IS NOT NULL AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
          AND a.backend_type IS DISTINCT FROM 'parallel worker'
          AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
          -- Before it decodes, a walsender may have exported its snapshot.
          AND NOT (w.pid IS NOT NULL AND w.state IS DISTINCT FROM 'startup' AND EXISTS (SELECT 1 FROM pg_replication_slots l WHERE l.active_pid = a.pid AND l.slot_type = 'logical'))
        UNION ALL
        SELECT 'prepared transaction', p.gid, p.database::text, NULL, NULL, p.owner::text, 'prepared', p.prepared, p.transaction, true, false
        FROM pg_prepared_xacts p
        UNION ALL
        SELECT 'replication slot', s.slot_name::text, s.database::text, s.active_pid, a.application_name, a.usename::text,
               CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, s.xmin, false, false
        FROM pg_replication_slots s
        LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
        WHERE s.xmin IS NOT NULL AND s.wal_status IS DISTINCT FROM 'lost') h
    ORDER BY age(h.xmin) DESC, h.own DESC, h.xact_start, h.pid
    LIMIT 1;
END $$;
COMMENT ON FUNCTION {{schema}}.horizon_holder() IS
'Returns what keeps dead rows of the queues'' tables from being removed: of all that vacuum in this database has to mind, what has the oldest snapshot or transaction; no row when there is nothing. The caller itself, autovacuum and sessions that vacuum are not counted. Cheap: it reads no table.
kind: session, prepared transaction, replication slot or standby (hot_standby_feedback without a slot). name: of the prepared transaction or the slot. database: that of the session or the prepared transaction; a transaction of another database counts once it has written. pid, application_name, usename: of the session or walsender. state: as in pg_stat_activity or pg_stat_replication; prepared; active or inactive. xact_start and age_seconds: of the session''s transaction, which may be older than its snapshot, or of the PREPARE; null for slots and standbys, of which PostgreSQL keeps no time. xmin and xmin_age: the oldest transaction that it still needs, and the number of transactions since.
hidden: the schema''s owner may not see the state and the time of that session, which are null then; GRANT pg_read_all_stats to the owner.';
