package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// adversity measures whether ours stays fast where others become slow.
func (b *bench) adversity(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Adversity\n\nOurs, one process, payload of 64 bytes, as a multiple of the clean figure of the same run; median of %d round(s), which take turns.\n\n",
		b.opts.adverseRounds)
	cases := []struct {
		name    string
		adverse func(context.Context, *database) error
		stale   bool
	}{
		{name: "clean"},
		{name: count(int64(b.opts.future)) + " future jobs of better priority", adverse: b.addFuture},
		{name: count(int64(b.opts.history)) + " finished jobs in history", adverse: b.addHistory},
		{name: count(int64(b.opts.queues)) + " other queues with 100 jobs each", adverse: b.addQueues},
		{name: "statistics of empty tables, no autovacuum", adverse: b.freezeStatistics, stale: true},
	}
	rates := map[string][]float64{}
	for round := range b.opts.adverseRounds {
		for _, c := range cases {
			r, err := b.adverseOnce(ctx, c.adverse, c.stale)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			logf("round %d, %s: %s/s", round+1, c.name, rate(r.rate()))
			rates[c.name] = append(rates[c.name], r.rate())
		}
	}
	t := newTable("with", "jobs/s", "× clean")
	for _, c := range cases {
		mid := median(rates[c.name])
		t.add(c.name, rate(mid), ratio(mid, median(rates["clean"])))
	}
	t.write(b.out)
	return b.snapshotHeld(ctx, median(rates["clean"]))
}

// adverseOnce is drainOnce, but may leave the statistics alone.
func (b *bench) adverseOnce(ctx context.Context, adverse func(context.Context, *database) error, stale bool) (drained, error) {
	if !stale {
		return b.drainOnce(ctx, oursOne, 64, adverse)
	}
	d, err := b.prepare(ctx, oursOne)
	if err != nil {
		return drained{}, err
	}
	defer d.drop()
	if err := adverse(ctx, d); err != nil {
		return drained{}, err
	}
	if err := b.fill(ctx, oursOne, d, b.opts.jobs, 64); err != nil {
		return drained{}, err
	}
	if err := d.checkpoint(ctx); err != nil {
		return drained{}, err
	}
	return b.drainFilled(ctx, oursOne, d, b.opts.jobs)
}

// addFuture adds jobs that are due tomorrow and will then go before all others.
func (b *bench) addFuture(ctx context.Context, d *database) error {
	const at = 10_000
	for left := b.opts.future; left > 0; left -= at {
		_, err := d.conn.Exec(ctx, `SELECT count(*) FROM jobqueue.enqueue_many('bench', array_fill('noop'::text, ARRAY[$1::int]),
			array_fill('{"at": 0, "pad": "future"}'::jsonb, ARRAY[$1::int]), array_fill((-10)::smallint, ARRAY[$1::int]),
			array_fill(86400::float8, ARRAY[$1::int]))`, min(left, at))
		if err != nil {
			return err
		}
	}
	return nil
}

// addHistory adds jobs and finishes them. What they leave is what a worker's leave.
func (b *bench) addHistory(ctx context.Context, d *database) error {
	const at = 5000
	client, err := queue.New("")
	if err != nil {
		return err
	}
	worker := uuid.New()
	jobs := make([]queue.NewJob, at)
	for i := range jobs {
		jobs[i] = queue.NewJob{Kind: jobKind, Payload: Payload{Pad: padding(64)}}
	}
	for left := b.opts.history; left > 0; left -= at {
		if _, err := client.Enqueue(ctx, d.conn, defaultQueue, jobs[:min(left, at)]...); err != nil {
			return err
		}
		for taken := 0; taken < min(left, at); {
			runs, err := client.Claim(ctx, d.conn, queue.ClaimRequest{Queue: defaultQueue, Worker: worker, Limit: claimSize, Alone: []string{}})
			if err != nil {
				return err
			}
			refs := make([]queue.Ref, len(runs))
			for i, run := range runs {
				refs[i] = run.Ref
			}
			if _, err := client.Succeed(ctx, d.conn, worker, refs); err != nil {
				return err
			}
			taken += len(runs)
		}
	}
	return client.Unregister(ctx, d.conn, worker)
}

// addQueues declares more queues and gives them jobs that nobody works off.
func (b *bench) addQueues(ctx context.Context, d *database) error {
	_, err := d.conn.Exec(ctx, `SELECT jobqueue.set_policy('other_' || n) FROM generate_series(1, $1) n`, b.opts.queues)
	if err != nil {
		return err
	}
	_, err = d.conn.Exec(ctx, `SELECT count(e.id) FROM generate_series(1, $1) n, jobqueue.enqueue_many('other_' || n,
		array_fill('noop'::text, ARRAY[100]), array_fill('{"at": 0, "pad": "other"}'::jsonb, ARRAY[100])) e`, b.opts.queues)
	return err
}

// freezeStatistics makes the planner believe for good that the tables are empty.
func (b *bench) freezeStatistics(ctx context.Context, d *database) error {
	if _, err := d.conn.Exec(ctx, "ANALYZE"); err != nil {
		return err
	}
	_, err := d.conn.Exec(ctx, `DO $$
		DECLARE t regclass;
		BEGIN
			FOR t IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'jobqueue'::regnamespace AND c.relkind = 'r' LOOP
				EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', t);
			END LOOP;
		END $$`)
	return err
}
