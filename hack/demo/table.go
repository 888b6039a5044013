package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// row is one line of the live table.
type row struct {
	pending, running, ended   int64
	oldest                    time.Duration
	target                    int32
	desired, ready            int32
	connections, peak, budget int64
	reason                    string
}

func step(format string, args ...any) { fmt.Printf("\n==> "+format+"\n", args...) }

// look reads a row: the queue from the database, the decision from the JobQueue's status.
func (d *demo) look(ctx context.Context) (row, error) {
	var r row
	var oldest int64
	schema := pgx.Identifier{d.queue.Schema()}.Sanitize()
	err := d.pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM `+schema+`.jobs WHERE queue = $1 AND state <> 'running'),
		       (SELECT count(*) FROM `+schema+`.jobs WHERE queue = $1 AND state = 'running'),
		       (SELECT count(*) FROM `+schema+`.finished WHERE queue = $1) + (SELECT count(*) FROM `+schema+`.dead WHERE queue = $1),
		       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(available_at)) FROM `+schema+`.jobs
		                 WHERE queue = $1 AND state = 'pending'), 0)::bigint,
		       (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'jobqueue:%')`, queueName).
		Scan(&r.pending, &r.running, &r.ended, &oldest, &r.connections)
	if err != nil {
		return row{}, fmt.Errorf("looking at the queue: %w", err)
	}
	r.oldest = time.Duration(oldest) * time.Second
	jq, err := d.jobQueue(ctx)
	if err != nil {
		return row{}, err
	}
	r.target, r.ready, r.peak = jq.Spec.Scaling.TargetAgeSeconds, jq.Status.ReadyReplicas, d.peak.Load()
	if decision := jq.Status.Decision; decision != nil {
		r.desired, r.reason = decision.Replicas, decision.Reason
	}
	r.budget, err = d.budget(ctx)
	return r, err
}

func printHeader() {
	fmt.Printf("%6s %8s %8s %7s %7s %8s %6s %12s  %-22s %s\n",
		"time", "pending", "running", "oldest", "target", "desired", "ready", "connections", "ended", "why")
}

func (r row) print(elapsed time.Duration, total int64) {
	const width = 12
	filled := int(r.ended * width / max(total, 1))
	bar := strings.Repeat("#", filled) + strings.Repeat(".", width-filled)
	fmt.Printf("%5.0fs %8d %8d %6.0fs %6ds %8d %6d %7d of %d  %s %4d/%d  %s\n",
		elapsed.Seconds(), r.pending, r.running, r.oldest.Seconds(), r.target, r.desired, r.ready,
		r.connections, r.budget, bar, r.ended, total, r.reason)
}

// watchConnections keeps the highest number of the product's connections that it sees.
func (d *demo) watchConnections(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var n int64
		err := d.pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'jobqueue:%'`).Scan(&n)
		if err == nil && n > d.peak.Load() {
			d.peak.Store(n)
		}
	}
}
