package main

// contender is one row of a table: a program, with settings, in some processes.
type contender struct {
	name      string
	program   string
	mode      string
	processes int
	// most is how many jobs it is given at most, so that a slow one does not take
	// the whole time; 0 is no bound.
	most int
	// handlerMillis is how long each handler of ours waits.
	handlerMillis int
}

const ourName = "ours"

var (
	oursOne = contender{name: ourName, program: "ours", processes: 1}
	oursTwo = contender{name: "ours, 2 processes", program: "ours", processes: 2}
	// oursBatch sends a transaction as a batch.
	oursBatch = contender{name: "ours, in a batch", program: "ours", mode: modeBatch, processes: 1}

	riverDefault    = contender{name: "River, defaults", program: "river", processes: 1, most: 10_000}
	riverFast       = contender{name: "River, fastest", program: "river", mode: modeFast, processes: 1}
	gueDefault      = contender{name: "gue, defaults", program: "gue", processes: 1, most: 5_000}
	gueFast         = contender{name: "gue, fastest", program: "gue", mode: modeFast, processes: 1, most: 20_000}
	graphileDefault = contender{name: "Graphile Worker, defaults", program: "graphile", processes: 1, most: 5_000}
	graphileFast    = contender{name: "Graphile Worker, fastest", program: "graphile", mode: modeFast, processes: 2}
	graphilePrompt  = contender{name: "Graphile Worker, 24 at once", program: "graphile", mode: modePrompt, processes: 1}
	bossDefault     = contender{name: "pg-boss, defaults", program: "pgboss", processes: 1, most: 5}
	bossFast        = contender{name: "pg-boss, fastest", program: "pgboss", mode: modeFast, processes: 1}
	bossPrompt      = contender{name: "pg-boss, listening", program: "pgboss", mode: modePrompt, processes: 1}
)

// ours with more processes; oursOne's figure is what ratios refer to.
func oursWith(processes int) contender {
	switch processes {
	case 1:
		return oursOne
	case 2:
		return oursTwo
	}
	return contender{name: "ours, " + count(int64(processes)) + " processes", program: "ours", processes: processes}
}

// state says in SQL how far a program is with the jobs of the queue "bench".
type state struct {
	// live is true while a job waits or runs.
	live string
	// finished counts jobs that succeeded, of the $1 that there were: who deletes
	// them at the end has finished those that are gone.
	finished string
}

var states = map[string]state{
	"ours": {
		live: `SELECT (s->>'pending')::bigint + (s->>'running')::bigint > 0
			FROM (SELECT jobqueue.sample(1) #> '{queues,bench}' AS s) one`,
		finished: `SELECT (jobqueue.sample(1) #>> '{queues,bench,succeeded}')::bigint + 0 * $1::bigint`,
	},
	"river": {
		live:     `SELECT EXISTS (SELECT 1 FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))`,
		finished: `SELECT count(*) + 0 * $1::bigint FROM river_job WHERE state = 'completed'`,
	},
	"gue": {
		live:     `SELECT EXISTS (SELECT 1 FROM gue_jobs)`,
		finished: `SELECT $1::bigint - count(*) FROM gue_jobs`,
	},
	"graphile": {
		live:     `SELECT EXISTS (SELECT 1 FROM graphile_worker.jobs)`,
		finished: `SELECT $1::bigint - count(*) FROM graphile_worker.jobs`,
	},
	"pgboss": {
		live:     `SELECT EXISTS (SELECT 1 FROM pgboss.job WHERE name = 'bench' AND state < 'completed')`,
		finished: `SELECT count(*) + 0 * $1::bigint FROM pgboss.job WHERE name = 'bench' AND state = 'completed'`,
	},
}
