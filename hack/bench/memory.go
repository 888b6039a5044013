package main

import (
	"context"
	"fmt"
)

// memorySlots is how many jobs the measured worker runs at once.
const memorySlots = 100

// memory measures the most that a worker process takes while it works off a large backlog.
func (b *bench) memory(ctx context.Context) error {
	d, err := b.prepare(ctx, oursOne)
	if err != nil {
		return err
	}
	defer d.drop()
	jobs := b.opts.memoryJobs
	logf("enqueueing %s jobs", count(int64(jobs)))
	if err := b.fill(ctx, oursOne, d, jobs, 64); err != nil {
		return err
	}
	if err := d.settle(ctx); err != nil {
		return err
	}
	spec := b.spec(oursOne, d, roleWork)
	spec.Workers = memorySlots
	w, err := b.hire(ctx, oursOne, spec)
	if err != nil {
		return err
	}
	defer w.kill()
	r, err := b.run(ctx, oursOne, d, w, jobs, b.opts.limit)
	if err != nil {
		return err
	}
	peak, err := w.processes[0].peakMemory()
	if err != nil {
		return err
	}
	if _, err := b.dismiss(ctx, w, r); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "## Memory\n\nOne worker process of ours with %d slots, %s jobs (payload of 64 bytes) in %.1f s, %s/s: "+
		"at most %.1f MiB resident.\n\n", memorySlots, count(r.jobs), r.elapsed.Seconds(), rate(r.rate()), float64(peak)/(1<<20))
	return nil
}
