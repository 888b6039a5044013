package integration_test

import (
	. "github.com/onsi/gomega"
)

// call is a call of a public function, and how many buffers it may touch.
type call struct {
	function string
	with     string // which call of the function this is
	// prepare makes what the call works on, in the same transaction, and returns the
	// call's arguments; nil for none.
	prepare func(s *session) []any
	sql     string
	kept    bool // committed, because what it learns is for the next call; else rolled back

	clean int // buffers among few rows
	// most is how many buffers in any shape, where that may be more than one and a
	// half times of what was measured among few rows.
	most int
	// perQueue is how many more for each queue that is declared, and behindDead how
	// many more while an old snapshot keeps dead rows; 0 means 150, as marks allow it
	// everyone who looks for a ready job.
	perQueue, behindDead int
	// amidMixed is how many more where batches mix old jobs with new ones: whoever looks
	// for an id among batches then looks at all that have it between theirs.
	amidMixed int
}

func (c call) String() string {
	if c.with == "" {
		return c.function
	}
	return c.function + ", " + c.with
}

// calls has every public function at least once. Where one takes a number of jobs, its
// budget is for that number.
var calls = []call{
	{function: "enqueue", sql: `SELECT jobqueue.enqueue('q', 'k', '{"n": 1}')`, clean: 20},
	{function: "enqueue", with: "to an idle queue", sql: `SELECT jobqueue.enqueue('idle', 'k', '{"n": 1}')`, clean: 20},
	{function: "enqueue", with: "for later", sql: `SELECT jobqueue.enqueue('q', 'k', p_delay_seconds => 60)`, clean: 20},
	{function: "enqueue", with: "into the past", sql: `SELECT jobqueue.enqueue('q', 'k', p_run_at => now() - interval '1 h')`, clean: 25},
	{function: "enqueue_many", with: "100 into the past", sql: `SELECT jobqueue.enqueue_many('q', array_fill('k'::text, '{100}'),
		array_fill('1'::jsonb, '{100}'), p_run_ats => array_fill(now() - interval '1 h', '{100}'))`, clean: 800, behindDead: 600},

	// One that has had to pass over more than 1,000 dead index entries says where the
	// next is to begin, so that some may have to be passed over every time.
	{function: "claim", with: "50 into a row each", prepare: byWorker, kept: true, sql: `SELECT jobqueue.claim('q', $1, 50)`, clean: 750, behindDead: 1500},
	{function: "claim", with: "200 into one row", prepare: byWorker, kept: true, sql: `SELECT jobqueue.claim('q', $1, 200, p_alone => '{}')`, clean: 850, behindDead: 1500},
	{function: "claim", with: "50 of a kind", prepare: byWorker, kept: true, sql: `SELECT jobqueue.claim('q', $1, 50, '{k}')`, clean: 750, behindDead: 1500},
	{function: "claim", with: "20 that were scheduled", prepare: due(20), kept: true, sql: `SELECT jobqueue.claim('q', $1, 20)`, clean: 600, behindDead: 1500},
	{function: "claim", with: "from an idle queue", prepare: values(idler), kept: true, sql: `SELECT jobqueue.claim('idle', $1, 200)`, clean: 20},
	{function: "claim_many", with: "200 into one row", prepare: byWorker, kept: true, sql: `SELECT jobqueue.claim_many('q', $1, 200, p_alone => '{}')`, clean: 850, behindDead: 1500},

	{function: "heartbeat", with: "of a new worker", kept: true, sql: `SELECT jobqueue.heartbeat(gen_random_uuid(), 'q')`, clean: 20}, // the first adds up the tallies
	{function: "heartbeat", with: "20 runs", prepare: running(20, false), clean: 180,
		sql: `SELECT jobqueue.heartbeat((SELECT worker_id FROM jobqueue.batches WHERE key = jobqueue.run_key(($2::text[]::uuid[])[1])), 'q', $1, $2::text[]::uuid[])`},
	{function: "release", with: "20", prepare: running(20, false), sql: `SELECT jobqueue.release($1, $2::text[]::uuid[])`, clean: 750},
	{function: "release", with: "20 of a row", prepare: running(20, true), sql: `SELECT jobqueue.release($1, $2::text[]::uuid[])`, clean: 330, most: 450},
	{function: "disown", with: "20 runs", prepare: otherRuns(20), sql: `SELECT jobqueue.disown($1, '{}', '{}')`, clean: 700},
	{function: "disown", with: "none of 20 runs", prepare: held(20), sql: `SELECT jobqueue.disown($1, $2, $3::text[]::uuid[])`, clean: 30},
	{function: "disown", with: "nobody", sql: `SELECT jobqueue.disown(gen_random_uuid(), '{}', '{}')`, clean: 5},
	{function: "unregister", with: "20 runs", prepare: otherRuns(20), sql: `SELECT jobqueue.unregister($1)`, clean: 700},
	{function: "unregister", with: "nobody", kept: true, sql: `SELECT jobqueue.unregister(gen_random_uuid())`, clean: 20},

	{function: "succeed", with: "20", prepare: running(20, false), sql: `SELECT jobqueue.succeed($1, $2::text[]::uuid[])`, clean: 570},
	{function: "succeed", with: "20 of a row", prepare: running(20, true), sql: `SELECT jobqueue.succeed($1, $2::text[]::uuid[])`, clean: 35},
	{function: "succeed_many", with: "20 rows", prepare: whole(20, false), sql: `SELECT jobqueue.succeed_many($1, $2::text[]::varbit[], $3)`, clean: 500},
	{function: "succeed_many", with: "20 rows unless locked", prepare: whole(20, false), sql: `SELECT jobqueue.succeed_many($1, $2::text[]::varbit[], $3, p_skip_locked => true)`, clean: 500},
	{function: "succeed_many", with: "a row of 200", prepare: whole(200, true), sql: `SELECT jobqueue.succeed_many($1, $2::text[]::varbit[], $3)`, clean: 30},
	{function: "fail", with: "20", prepare: running(20, false), sql: `SELECT jobqueue.fail($1, $2::text[]::uuid[], array_fill('boom'::text, '{20}'))`, clean: 640},
	{function: "fail", with: "20 for good", prepare: running(20, false), sql: `SELECT jobqueue.fail($1, $2::text[]::uuid[], array_fill('boom'::text, '{20}'), array_fill(true, '{20}'))`, clean: 600},
	{function: "snooze", with: "20", prepare: running(20, false), sql: `SELECT jobqueue.snooze($1, $2::text[]::uuid[], array_fill(60::double precision, ARRAY[20]))`, clean: 640},
	{function: "discard", with: "20", prepare: running(20, false), sql: `SELECT jobqueue.discard($1, $2::text[]::uuid[])`, clean: 560},

	// A job that does not wait is looked for among the batches by their spans, twice:
	// 12 descents of an index each time.
	{function: "cancel", with: "20 that wait", prepare: twenty(`SELECT id FROM jobqueue.waiting WHERE queue = 'q' AND state = 'pending'`), sql: `SELECT jobqueue.cancel($1)`, clean: 220},
	{function: "cancel", with: "20 that run", prepare: twenty(oldest + `finished_at IS NULL AND cardinality(ids) = 1 ORDER BY min_id`), sql: `SELECT jobqueue.cancel($1)`, clean: 1200, most: 1600, amidMixed: 7000},
	{function: "cancel", with: "20 that run in one row", prepare: twenty(`SELECT unnest(ids) FROM jobqueue.batches WHERE finished_at IS NULL AND cardinality(ids) > 1`), sql: `SELECT jobqueue.cancel($1)`, clean: 800, most: 1200, amidMixed: 7000},
	{function: "cancel", with: "20 that finished long ago", prepare: twenty(oldest + `finished_at IS NOT NULL ORDER BY min_id`), sql: `SELECT jobqueue.cancel($1)`, clean: 1400, most: 2000, amidMixed: 14000},
	{function: "cancel", with: "one that never was", sql: `SELECT jobqueue.cancel('{-10000000}')`, clean: 70, most: 100},

	{function: "reap", with: "nothing in a queue", kept: true, sql: `SELECT jobqueue.reap('q', p_retention => false)`, clean: 60, most: 120},
	{function: "reap", with: "nothing", kept: true, sql: `SELECT jobqueue.reap()`, clean: 120, perQueue: 40, behindDead: 400}, // two workers in each queue
	{function: "reap", with: "20 of each", prepare: overdue, sql: `SELECT jobqueue.reap()`, clean: 1500, perQueue: 40, behindDead: 20000},
	{function: "horizon_holder", sql: `SELECT * FROM jobqueue.horizon_holder()`, clean: 60},
	// It counts up to 10,000 rows of each state.
	{function: "sample", sql: `SELECT jobqueue.sample()`, clean: 260, most: 1000, perQueue: 45, behindDead: 9000},

	{function: "get_policy", sql: `SELECT jobqueue.get_policy('q')`, clean: 5},
	{function: "set_policy", sql: `SELECT jobqueue.set_policy('q', '{"batch_size": 7}')`, clean: 20},
	{function: "release_owner", sql: `SELECT jobqueue.release_owner('q', 'nobody')`, clean: 5},
	{function: "grant_access", prepare: role, sql: `SELECT jobqueue.grant_access('granted', 'all')`, clean: 1000},

	{function: "list_dead", with: "100", sql: `SELECT jobqueue.list_dead('q')`, clean: 10, behindDead: 9000},
	{function: "list_dead", with: "the next 100", prepare: one(`SELECT id FROM jobqueue.dead WHERE queue = 'q' ORDER BY id OFFSET 2`), sql: `SELECT jobqueue.list_dead('q', 100, $1)`, clean: 10, behindDead: 400},
	{function: "requeue", with: "20", prepare: twenty(`SELECT id FROM jobqueue.dead WHERE queue = 'q'`), sql: `SELECT jobqueue.requeue('q', $1)`, clean: 260},
	{function: "requeue_kind", with: "20", sql: `SELECT jobqueue.requeue_kind('q', 'k', 20)`, clean: 280},
	{function: "purge_dead", with: "20", sql: `SELECT jobqueue.purge_dead('q', 0, 20)`, clean: 100, behindDead: 400},

	{function: "get_job", with: "that waits", prepare: one(`SELECT id FROM jobqueue.waiting WHERE queue = 'q' AND state = 'pending'`), sql: `SELECT jobqueue.get_job($1)`, clean: 45, amidMixed: 400},
	{function: "get_job", with: "that runs", prepare: one(`SELECT ids[7] FROM jobqueue.batches WHERE finished_at IS NULL AND cardinality(ids) > 7`), sql: `SELECT jobqueue.get_job($1)`, clean: 45, amidMixed: 400},
	{function: "get_job", with: "that finished long ago", prepare: one(oldest + `finished_at IS NOT NULL ORDER BY min_id`), sql: `SELECT jobqueue.get_job($1)`, clean: 45, amidMixed: 400},
	{function: "get_job", with: "that never was", sql: `SELECT jobqueue.get_job(-10000000)`, clean: 45},
	// For people: it passes over what its filter leaves out, and looks at all that runs.
	{function: "list_jobs", with: "100", sql: `SELECT jobqueue.list_jobs()`, clean: 110, most: 3500, behindDead: 2000},
	{function: "list_jobs", with: "100 of a queue", sql: `SELECT jobqueue.list_jobs('q')`, clean: 110, most: 6000, behindDead: 2000},
	{function: "list_jobs", with: "100 pending", sql: `SELECT jobqueue.list_jobs('q', 'pending')`, clean: 30, most: 6000},
	{function: "list_jobs", with: "100 scheduled", sql: `SELECT jobqueue.list_jobs('q', 'scheduled')`, clean: 30, most: 3000},
	{function: "list_jobs", with: "100 running", sql: `SELECT jobqueue.list_jobs('q', 'running')`, clean: 90, most: 3500, behindDead: 2000},
	{function: "list_jobs", with: "100 succeeded", sql: `SELECT jobqueue.list_jobs('q', 'succeeded')`, clean: 750, most: 1200, behindDead: 70000},
	{function: "list_jobs", with: "the first 100 succeeded", prepare: one(`SELECT max_id + 1 FROM (` + oldest + `finished_at IS NOT NULL ORDER BY min_id OFFSET 150) o (max_id)`),
		sql: `SELECT jobqueue.list_jobs('q', 'succeeded', p_before => $1)`, clean: 750, most: 1200, behindDead: 70000},
	{function: "list_jobs", with: "100 discarded", sql: `SELECT jobqueue.list_jobs('q', 'discarded')`, clean: 20, most: 700, behindDead: 30000},
	{function: "list_jobs", with: "100 dead", sql: `SELECT jobqueue.list_jobs('q', 'dead')`, clean: 20, behindDead: 9000},

	// Client.Version, which the operator asks before it samples.
	{function: "", with: "the schema's version", sql: `SELECT coalesce(max(version), 0) FROM jobqueue.schema_migrations`, clean: 5},
}

const oldest = `SELECT min_id FROM jobqueue.batches WHERE `

// idler is a worker of the queue "idle".
const idler = "00000000-0000-0000-0000-00000000001d"

// values prepares nothing.
func values(args ...any) func(*session) []any {
	return func(*session) []any { return args }
}

func byWorker(s *session) []any { return []any{s.worker} }

// running claims n jobs, into a row each or sharing one, for their ids and tokens.
func running(n int, shared bool) func(*session) []any {
	return func(s *session) []any {
		ids, tokens := s.claim(s.worker, n, shared)
		return []any{ids, tokens}
	}
}

// whole claims n jobs, for what succeed_many takes to end them all.
func whole(n int, shared bool) func(*session) []any {
	return func(s *session) []any {
		ids, _ := s.claim(s.worker, n, shared)
		var keys [][]byte
		var runs []string
		var xors []int64
		Expect(s.conn.QueryRow(s.ctx, `SELECT array_agg(key), array_agg(open::text), array_agg((SELECT bit_xor(i) FROM unnest(ids) i))
			FROM jobqueue.batches WHERE worker_id = $1 AND finished_at IS NULL AND ids && $2`, s.worker, ids).Scan(&keys, &runs, &xors)).To(Succeed())
		return []any{keys, runs, xors}
	}
}

// otherRuns claims n jobs for the other worker.
func otherRuns(n int) func(*session) []any {
	return func(s *session) []any {
		s.claim(s.other, n, false)
		return []any{s.other}
	}
}

// held claims n jobs for the other worker, which knows of them.
func held(n int) func(*session) []any {
	return func(s *session) []any {
		ids, tokens := s.claim(s.other, n, false)
		return []any{s.other, ids, tokens}
	}
}

// due makes scheduled jobs that are due.
func due(n int) func(*session) []any {
	return func(s *session) []any {
		s.exec(waitingJobs, []string{"q"}, n, "scheduled", 0, "0")
		return byWorker(s)
	}
}

// overdue makes twenty of everything that the reaper looks for.
func overdue(s *session) []any {
	s.claim(s.other, 20, false)
	s.exec(`UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() WHERE id = $1`, s.other)
	s.exec(waitingJobs, []string{"q"}, 20, "scheduled", 0, "0")
	s.exec(`UPDATE jobqueue.ended SET finished_at = '2001-01-01' WHERE id IN (SELECT id FROM jobqueue.ended WHERE queue = 'q' LIMIT 20)`)
	s.exec(`UPDATE jobqueue.dead SET died_at = '2001-01-01' WHERE id IN (SELECT id FROM jobqueue.dead WHERE queue = 'q' LIMIT 20)`)
	s.exec(`UPDATE jobqueue.batches SET finished_at = '2001-01-01' WHERE key IN (
		SELECT key FROM jobqueue.batches WHERE queue = 'q' AND finished_at IS NOT NULL AND cardinality(ids) = 1 LIMIT 20)`)
	return nil
}

func role(s *session) []any {
	s.exec(`CREATE ROLE granted`)
	return nil
}

// twenty are the first ids of a query.
func twenty(query string) func(*session) []any {
	return func(s *session) []any { return []any{column[int64](s, query+` LIMIT 20`)} }
}

// one is the first id of a query, or 0.
func one(query string) func(*session) []any {
	return func(s *session) []any { return []any{append(column[int64](s, query+` LIMIT 1`), 0)[0]} }
}
