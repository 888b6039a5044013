package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// claimSize is how many jobs pgbench claims at once, as a worker does by default.
const claimSize = 500

// ceilingScript claims and finishes, and does nothing else: no process that uses the
// protocol can be faster on this machine.
var ceilingScript = fmt.Sprintf(`SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens
FROM jobqueue.claim('bench', '00000000-0000-4000-8000-00000000001:client_id', %d, NULL, 'pgbench', '{}') \gset
SELECT count(*) FROM jobqueue.succeed(':ids', ':tokens');
`, claimSize)

// ceiling compares the worker with pgbench.
func (b *bench) ceiling(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Ceiling of the protocol\n\n`claim` of %d and `succeed`, driven by pgbench, and what the worker reaches of it "+
		"(payload of 64 bytes, median).\n\n", claimSize)
	t := newTable("", "jobs/s", "the worker's share")
	var workers []float64
	rates := map[int][]float64{}
	for range b.opts.rounds {
		r, err := b.drainOnce(ctx, oursOne, 64, nil)
		if err != nil {
			return err
		}
		workers = append(workers, r.rate())
		for _, connections := range []int{1, 2} {
			perSecond, err := b.pgbench(ctx, connections)
			if err != nil {
				return err
			}
			rates[connections] = append(rates[connections], perSecond)
		}
	}
	for _, connections := range []int{1, 2} {
		mid := median(rates[connections])
		t.add(fmt.Sprintf("pgbench, %d connection(s)", connections), rate(mid), ratio(median(workers), mid))
	}
	t.add("the worker", rate(median(workers)), "")
	t.write(b.out)
	return nil
}

var pgbenchTPS = regexp.MustCompile(`tps = ([0-9.]+) \(without initial connection time\)`)

// pgbench drains a new database and returns jobs per second.
func (b *bench) pgbench(ctx context.Context, connections int) (float64, error) {
	d, err := b.prepare(ctx, oursOne)
	if err != nil {
		return 0, err
	}
	defer d.drop()
	if err := b.fill(ctx, oursOne, d, b.opts.jobs, 64); err != nil {
		return 0, err
	}
	if err := d.settle(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.opts.limit)
	defer cancel()
	transactions := max(b.opts.jobs/claimSize/connections, 1)
	cmd := exec.CommandContext(ctx, "pgbench", "--no-vacuum", "--file=-",
		"--client="+strconv.Itoa(connections), "--jobs="+strconv.Itoa(connections),
		"--transactions="+strconv.Itoa(transactions), d.url)
	cmd.Stdin = strings.NewReader(ceilingScript)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("pgbench: %w\n%s", err, errs.String())
	}
	match := pgbenchTPS.FindStringSubmatch(out.String())
	if match == nil {
		return 0, fmt.Errorf("pgbench did not say its rate:\n%s", out.String())
	}
	tps, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		return 0, err
	}
	// Not every claim of two at once is full.
	var finished float64
	if err := d.conn.QueryRow(ctx, states["ours"].finished, b.opts.jobs).Scan(&finished); err != nil {
		return 0, err
	}
	seconds := float64(transactions*connections) / tps
	return finished / seconds, nil
}
