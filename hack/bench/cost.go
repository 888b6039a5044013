package main

import (
	"context"
	"fmt"
)

// cost measures what a job's run takes of the server, beside time.
func (b *bench) cost(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Cost of a run\n\nPer job of a drain (payload of 64 bytes), enqueueing not included: log written, transactions, "+
		"buffers touched, and dead rows left for vacuum right after.\n\n")
	t := newTable("contender", "jobs", "WAL bytes", "commits", "buffers", "dead rows")
	for _, c := range b.those(oursOne, riverFast) {
		if err := b.costOf(ctx, c, t); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	t.write(b.out)
	return nil
}

func (b *bench) costOf(ctx context.Context, c contender, t *table) error {
	d, err := b.prepare(ctx, c)
	if err != nil {
		return err
	}
	defer d.drop()
	jobs := b.jobsOf(c)
	if err := b.fill(ctx, c, d, jobs, 64); err != nil {
		return err
	}
	if err := d.settle(ctx); err != nil {
		return err
	}
	before, err := d.usage(ctx)
	if err != nil {
		return err
	}
	r, err := b.drainFilled(ctx, c, d, jobs)
	if err != nil {
		return err
	}
	// The workers' sessions have ended, and reported.
	after, err := d.usage(ctx)
	if err != nil {
		return err
	}
	dead, err := d.deadTuples(ctx)
	if err != nil {
		return err
	}
	used := after.since(before)
	per := func(n int64) string { return fmt.Sprintf("%.3g", float64(n)/float64(r.jobs)) }
	t.add(c.name, count(r.jobs), per(used.walBytes), per(used.commits), per(used.buffers), per(dead))
	return nil
}
