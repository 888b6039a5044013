package main

import (
	"context"
	"fmt"
	"time"
)

// latencyRate is how many jobs per second are enqueued, one by one.
const latencyRate = 100

var latencyContenders = []contender{oursOne, riverDefault, riverFast, gueFast, graphileDefault, graphilePrompt, bossFast, bossPrompt}

// latency measures how soon a job runs whose workers have little to do.
func (b *bench) latency(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Latency\n\n%d jobs per second for %d s, one transaction each (payload of 64 bytes): from just before the statement "+
		"that enqueues, whose transaction is open already, to the handler's start.\n\n", latencyRate, b.opts.latencySeconds)
	t := newTable("contender", "jobs", "p50", "p99", "most")
	for _, c := range b.those(latencyContenders...) {
		micros, err := b.latencyOf(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		jobs := latencyRate * b.opts.latencySeconds
		name := c.name
		if len(micros) < jobs {
			name += fmt.Sprintf(" (%s jobs had not run in time)", count(int64(jobs-len(micros))))
		}
		logf("%s: p50 %s, p99 %s", name, millis(percentile(micros, 50)), millis(percentile(micros, 99)))
		t.add(name, count(int64(len(micros))), millis(percentile(micros, 50)), millis(percentile(micros, 99)), millis(percentile(micros, 100)))
	}
	t.write(b.out)
	return nil
}

// latencyOf returns the latencies of the jobs that ran, at the latest 20 s after the
// last was enqueued.
func (b *bench) latencyOf(ctx context.Context, c contender) ([]int64, error) {
	const patience = 20 * time.Second
	d, err := b.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	defer d.drop()
	spec := b.spec(c, d, roleWork)
	spec.Latencies = true
	w, err := b.hire(ctx, c, spec)
	if err != nil {
		return nil, err
	}
	defer w.kill()
	if err := w.tell("go"); err != nil {
		return nil, err
	}
	// Workers that have found nothing for a while are as most of them are.
	if err := sleep(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	if err := d.checkpoint(ctx); err != nil {
		return nil, err
	}
	jobs := latencyRate * b.opts.latencySeconds
	produce := b.spec(c, d, roleProduce)
	produce.Jobs, produce.Bulk, produce.Rate = jobs, 1, latencyRate
	if _, err := b.produce(ctx, produce); err != nil {
		return nil, err
	}
	for start := time.Now(); w.ran() < int64(jobs) && time.Since(start) < patience; {
		if err := sleep(ctx, ranEvery); err != nil {
			return nil, err
		}
	}
	noted, err := w.stop(ctx)
	return noted.LatenciesMicros, err
}

// sleep returns early, with an error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
