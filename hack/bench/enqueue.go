package main

import (
	"context"
	"fmt"
)

var enqueueContenders = []contender{oursOne, riverFast, gueFast, graphileFast, bossFast}

// enqueueWays are the columns of enqueue.
var enqueueWays = []struct {
	name              string
	bulk, connections int
}{
	{"one by one", 1, 1},
	{"one by one, 8 connections", 1, 8},
	{"1,000 at once", 1000, 1},
}

// oneByOneShare is how many jobs are enqueued in bulk for each that is enqueued alone.
const oneByOneShare = 5

// enqueue measures how fast jobs are added. Contenders take turns.
func (b *bench) enqueue(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Enqueue\n\nJobs per second (payload of 64 bytes, median of %d round(s)): in a transaction each, with begin and commit for the "+
		"clients in Go and one call for the others; and by the thousand with the call that each has for it.\n\n", b.opts.rounds)
	contenders := b.those(enqueueContenders...)
	rates := map[string][]float64{}
	for range b.opts.rounds {
		for _, way := range enqueueWays {
			for _, c := range contenders {
				perSecond, err := b.enqueueOnce(ctx, c, way.bulk, way.connections)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, way.name, err)
				}
				logf("%s, %s: %s/s", c.name, way.name, rate(perSecond))
				rates[c.name+way.name] = append(rates[c.name+way.name], perSecond)
			}
		}
	}
	heads := []string{"contender"}
	for _, way := range enqueueWays {
		heads = append(heads, way.name, "× ours")
	}
	t := newTable(heads...)
	for _, c := range contenders {
		row := []string{c.enqueuerName()}
		for _, way := range enqueueWays {
			mid := median(rates[c.name+way.name])
			row = append(row, rate(mid), ratio(mid, median(rates[ourName+way.name])))
		}
		t.add(row...)
	}
	t.write(b.out)
	return nil
}

// enqueuerName leaves out how the contender's workers are set.
func (c contender) enqueuerName() string {
	return map[string]string{
		"ours": "ours: Enqueue", "river": "River: InsertTx, InsertManyFast", "gue": "gue: EnqueueTx, EnqueueBatchTx",
		"graphile": "Graphile Worker: addJob, addJobs", "pgboss": "pg-boss: send, insert",
	}[c.program]
}

func (b *bench) enqueueOnce(ctx context.Context, c contender, bulk, connections int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.limit)
	defer cancel()
	d, err := b.prepare(ctx, c)
	if err != nil {
		return 0, err
	}
	defer d.drop()
	if err := d.checkpoint(ctx); err != nil {
		return 0, err
	}
	spec := b.spec(c, d, roleProduce)
	spec.Bulk, spec.Connections, spec.Jobs = bulk, connections, b.opts.enqueueJobs
	if bulk == 1 {
		spec.Jobs = max(b.opts.enqueueJobs/oneByOneShare, 1)
	}
	seconds, err := b.produce(ctx, spec)
	return float64(spec.Jobs) / seconds, err
}
