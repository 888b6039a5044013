package main

import (
	"context"
	"fmt"
	"time"
)

// idleWarmUp is how long workers that find nothing take to ask as seldom as they do.
const idleWarmUp = 15 * time.Second

// idle measures what workers cost that have nothing to do.
func (b *bench) idle(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Idle\n\n%d empty queues, each with a worker, all in one process, watched for %s after %s: transactions per second of the whole database.\n\n",
		b.opts.idleQueues, b.opts.idle, idleWarmUp)
	t := newTable("contender", "transactions/s", "per queue")
	for _, c := range b.those(oursOne, riverDefault, bossDefault) {
		perSecond, err := b.idleOnce(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		logf("%s: %.1f/s", c.name, perSecond)
		t.add(c.name, fmt.Sprintf("%.1f", perSecond), fmt.Sprintf("%.2f", perSecond/float64(b.opts.idleQueues)))
	}
	t.write(b.out)
	return nil
}

func (b *bench) idleOnce(ctx context.Context, c contender) (float64, error) {
	queues := make([]string, b.opts.idleQueues)
	for i := range queues {
		queues[i] = fmt.Sprintf("idle_%d", i+1)
	}
	d, err := b.prepare(ctx, c, queues...)
	if err != nil {
		return 0, err
	}
	defer d.drop()
	spec := b.spec(c, d, roleWork)
	spec.Queues = queues
	w, err := b.hire(ctx, c, spec)
	if err != nil {
		return 0, err
	}
	defer w.kill()
	if err := w.tell("go"); err != nil {
		return 0, err
	}
	if err := sleep(ctx, idleWarmUp); err != nil {
		return 0, err
	}
	before, err := d.usage(ctx)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := sleep(ctx, b.opts.idle); err != nil {
		return 0, err
	}
	after, err := d.usage(ctx)
	if err != nil {
		return 0, err
	}
	seconds := time.Since(start).Seconds()
	if err := w.failed(); err != nil {
		return 0, err
	}
	if _, err := w.stop(ctx); err != nil {
		return 0, err
	}
	return float64(after.since(before).commits) / seconds, nil
}
