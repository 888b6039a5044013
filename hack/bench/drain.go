package main

import (
	"context"
	"fmt"
)

// drainContenders in the order in which they are shown.
var drainContenders = []contender{
	oursOne, oursTwo, oursWith(4),
	riverDefault, riverFast, gueDefault, gueFast, graphileDefault, graphileFast, bossDefault, bossFast,
}

// drain measures how fast a backlog of no-op jobs is worked off.
func (b *bench) drain(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Drain\n\nNo-op jobs per second, from the start of the workers, whose processes run and are connected, "+
		"until the last job is finished in the database. Contenders take turns.\n\n")
	for _, payload := range b.opts.payloads {
		fmt.Fprintf(b.out, "### Payload of %d bytes, up to %s jobs\n\n", payload, count(int64(b.opts.jobs)))
		if err := b.drainRounds(ctx, b.those(drainContenders...), payload); err != nil {
			return err
		}
	}
	return nil
}

// drainRounds takes turns, so that what else the machine does hits all alike, and
// writes a table.
func (b *bench) drainRounds(ctx context.Context, contenders []contender, payload int) error {
	rates := map[string][]float64{}
	failed := map[string]error{}
	limited := map[string]bool{}
	for round := range b.opts.rounds {
		for _, c := range contenders {
			if failed[c.name] != nil {
				continue
			}
			r, err := b.drainOnce(ctx, c, payload, nil)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				logf("%s: %v", c.name, err)
				failed[c.name] = err
				continue
			}
			limited[c.name] = limited[c.name] || r.limited
			logf("round %d, %s: %s jobs in %.2f s, %s/s", round+1, c.name, count(r.jobs), r.elapsed.Seconds(), rate(r.rate()))
			rates[c.name] = append(rates[c.name], r.rate())
		}
	}
	b.writeRates(contenders, rates, limited)
	for _, c := range contenders {
		if err := failed[c.name]; err != nil {
			return err
		}
	}
	return nil
}

// writeRates writes all rounds and medians, and what the medians are as multiples of
// ours and, where there are rivals, of the fastest one's.
func (b *bench) writeRates(contenders []contender, rates map[string][]float64, limited map[string]bool) {
	var best float64
	for _, c := range contenders {
		if c.program != oursOne.program {
			best = max(best, median(rates[c.name]))
		}
	}
	heads := []string{"contender", "jobs/s, median", "× ours"}
	if best > 0 {
		heads = append(heads, "× the fastest rival")
	}
	for round := range b.opts.rounds {
		heads = append(heads, fmt.Sprintf("round %d", round+1))
	}
	t := newTable(heads...)
	for _, c := range contenders {
		name, mid := c.name, median(rates[c.name])
		if limited[c.name] {
			name += " (stopped at the limit)"
		}
		if len(rates[c.name]) == 0 {
			t.add(name, "failed")
			continue
		}
		row := []string{name, rate(mid), ratio(mid, median(rates[ourName]))}
		if best > 0 {
			row = append(row, ratio(mid, best))
		}
		for _, r := range rates[c.name] {
			row = append(row, rate(r))
		}
		t.add(row...)
	}
	t.write(b.out)
}

// jobsOf is how many jobs a contender is given.
func (b *bench) jobsOf(c contender) int {
	if c.most > 0 {
		return min(b.opts.jobs, c.most)
	}
	return b.opts.jobs
}

// drainOnce fills a new database and drains it. adverse, if not nil, makes it harder
// before the jobs come.
func (b *bench) drainOnce(ctx context.Context, c contender, payload int, adverse func(context.Context, *database) error) (drained, error) {
	d, err := b.prepare(ctx, c)
	if err != nil {
		return drained{}, err
	}
	defer d.drop()
	if adverse != nil {
		if err := adverse(ctx, d); err != nil {
			return drained{}, err
		}
	}
	jobs := b.jobsOf(c)
	if err := b.fill(ctx, c, d, jobs, payload); err != nil {
		return drained{}, err
	}
	if err := d.settle(ctx); err != nil {
		return drained{}, err
	}
	return b.drainFilled(ctx, c, d, jobs)
}

// drainFilled drains the jobs of a database.
func (b *bench) drainFilled(ctx context.Context, c contender, d *database, jobs int) (drained, error) {
	w, err := b.hire(ctx, c, b.spec(c, d, roleWork))
	if err != nil {
		return drained{}, err
	}
	defer w.kill()
	r, err := b.run(ctx, c, d, w, jobs, b.opts.limit)
	if err != nil {
		return r, err
	}
	_, err = b.dismiss(ctx, w, r)
	return r, err
}
