package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// claimSize is how many jobs pgbench claims at once, as a worker does by default.
var claimSize = queue.DefaultPolicy().BatchSize

// Scripts for pgbench that claim and finish, and do nothing else. In pgbench a variable
// stands for its text, in quotes too. With byBatchAndPayload, pgbench is sent what a worker
// cannot do without; with the others, payloads stay in the database.
var (
	byBatchAndPayload = strings.Replace(batchByBatch, "\nFROM jobqueue.claim_many",
		",\nstring_agg(ids::text, ' ') AS ids, string_agg(kinds::text, ' ') AS kinds, string_agg(payloads::text, ' ') AS payloads\nFROM jobqueue.claim_many", 1)
	runByRun = fmt.Sprintf(`SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens
FROM jobqueue.claim('bench', '00000000-0000-4000-8000-00000000001:client_id', %d, NULL, 'pgbench', '{}') \gset
SELECT count(*) FROM jobqueue.succeed(':ids', ':tokens');
`, claimSize)
	batchByBatch = fmt.Sprintf(`SELECT coalesce(array_agg(key), '{}') AS keys, coalesce(array_agg(repeat('1', cardinality(ids))::varbit), '{}') AS runs,
coalesce(array_agg((SELECT bit_xor(id) FROM unnest(ids) id)), '{}') AS xors
FROM jobqueue.claim_many('bench', '00000000-0000-4000-8000-00000000001:client_id', %d, NULL, 'pgbench', '{}') \gset
SELECT count(*) FROM jobqueue.succeed_many(':keys', ':runs', ':xors');
`, claimSize)
)

// ceilings are what the worker is compared with.
var ceilings = []struct {
	name, script string
	connections  int
}{
	{"claim_many, succeed_many, 1 connection", batchByBatch, 1},
	{"claim_many, succeed_many, 2 connections", batchByBatch, 2},
	{"the same with ids, kinds and payloads sent, 1 connection", byBatchAndPayload, 1},
	{"the same with ids, kinds and payloads sent, 2 connections", byBatchAndPayload, 2},
	{"claim, succeed, 1 connection", runByRun, 1},
	{"claim, succeed, 2 connections", runByRun, 2},
}

// ceiling compares the worker with pgbench.
func (b *bench) ceiling(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Ceiling of the protocol\n\nClaims of %d and finishes, driven by pgbench, and what the worker, which uses "+
		"claim_many and succeed_many, reaches of it (payload of 64 bytes, median).\n\n", claimSize)
	var workers []float64
	rates := map[string][]float64{}
	for round := range b.opts.rounds {
		r, err := b.drainOnce(ctx, oursOne, 64, nil)
		if err != nil {
			return err
		}
		workers = append(workers, r.rate())
		logf("round %d, the worker: %s/s", round+1, rate(r.rate()))
		for _, c := range ceilings {
			perSecond, err := b.pgbench(ctx, c.script, c.connections)
			if err != nil {
				return err
			}
			rates[c.name] = append(rates[c.name], perSecond)
			logf("round %d, %s: %s/s", round+1, c.name, rate(perSecond))
		}
	}
	t := newTable("", "jobs/s", "the worker's share")
	t.add("the worker, 1 process", rate(median(workers)))
	for _, c := range ceilings {
		mid := median(rates[c.name])
		t.add(c.name, rate(mid), ratio(median(workers), mid))
	}
	t.write(b.out)
	return nil
}

var pgbenchTPS = regexp.MustCompile(`tps = ([0-9.]+) \(without initial connection time\)`)

// pgbench drains a new database and returns jobs per second.
func (b *bench) pgbench(ctx context.Context, script string, connections int) (float64, error) {
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
	program, err := findPgbench()
	if err != nil {
		return 0, err
	}
	transactions := max(b.opts.jobs/claimSize/connections, 1)
	cmd := exec.CommandContext(ctx, program, "--no-vacuum", "--file=-",
		"--client="+strconv.Itoa(connections), "--jobs="+strconv.Itoa(connections),
		"--transactions="+strconv.Itoa(transactions), d.url)
	cmd.Stdin = strings.NewReader(script)
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
	return finished * tps / float64(transactions*connections), nil
}

// findPgbench looks on the path, then beside the server's programs.
func findPgbench() (string, error) {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path, nil
	}
	paths, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(paths) == 0 {
		return "", fmt.Errorf("pgbench is not installed: it comes with PostgreSQL's server")
	}
	return paths[len(paths)-1], nil
}
