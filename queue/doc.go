// Package queue is a job queue kept in PostgreSQL, and its Go client.
//
// The queue itself is a set of SQL functions in one schema: enqueue, claim,
// heartbeat, succeed, fail and so on. They are the public protocol for every
// language and are described in docs/sql-protocol.md; this package calls them,
// one round trip each, and turns their SQLSTATEs into Go errors. The tables
// behind the functions are private.
//
// # What is promised
//
// A job is run at least once. Every claim gives the job a new run token, and
// every later write must present that token while the job is still running;
// a write that comes too late changes nothing and is reported as refused, so
// a job never has two live owners as far as the database is concerned. What a
// handler does outside the database can still happen twice: make it idempotent
// with the job's id as the key, or finish the job inside the handler's own
// transaction (see [Client.Succeed]).
//
// Jobs run in order of priority (lower first), then available time, then id.
// First in, first out is not promised: claims run concurrently, and a job whose
// transaction commits late is seen late.
//
// # Connections
//
// Every method works on a [DB]: a pool, a connection or a transaction. Nothing
// is kept in a database session, so a transaction-mode pooler may sit between,
// with any pgx.QueryExecMode. [Client.Listen] is the exception: it needs a
// connection of its own, and is never necessary for correctness.
//
// All times are the database's (clock_timestamp()), never the client's.
package queue
