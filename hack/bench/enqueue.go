package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// enqueueWay is a column of enqueue.
type enqueueWay struct {
	name              string
	bulk, connections int
	order             bool // with a row of the producer's own in each transaction
}

// oneByOneShare is how many jobs are enqueued in bulk for each that is enqueued alone.
const oneByOneShare = 5

// enqueue measures how fast jobs are added. Contenders take turns.
func (b *bench) enqueue(ctx context.Context) error {
	fmt.Fprintf(b.out, "## Enqueue\n\nJobs per second (payload of 64 bytes, median of %d round(s)): in a transaction each, with begin and commit for the "+
		"clients in Go and one call for the others; and by the thousand with the call that each has for it.\n\n", b.opts.rounds)
	err := b.enqueueTable(ctx, b.those(oursOne, riverFast, gueFast, graphileFast, bossFast),
		enqueueWay{name: "one by one", bulk: 1, connections: 1},
		enqueueWay{name: "one by one, 8 connections", bulk: 1, connections: 8},
		enqueueWay{name: "1,000 at once", bulk: 1000, connections: 1})
	if err != nil {
		return err
	}
	fmt.Fprint(b.out, "\nOne by one, with a row in a table of the producer's own in the same transaction: with begin, insert, enqueue and commit, "+
		"or, where the client can, all of it in a batch.\n\n")
	return b.enqueueTable(ctx, b.those(oursOne, oursBatch, riverFast, gueFast),
		enqueueWay{name: "1 connection", bulk: 1, connections: 1, order: true},
		enqueueWay{name: "8 connections", bulk: 1, connections: 8, order: true})
}

// enqueueTable measures contenders, ours first, in each way.
func (b *bench) enqueueTable(ctx context.Context, contenders []contender, ways ...enqueueWay) error {
	rates := map[string][]float64{}
	for range b.opts.rounds {
		for _, way := range ways {
			for _, c := range contenders {
				perSecond, err := b.enqueueOnce(ctx, c, way)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, way.name, err)
				}
				logf("%s, %s: %s/s", c.name, way.name, rate(perSecond))
				rates[c.name+way.name] = append(rates[c.name+way.name], perSecond)
			}
		}
	}
	heads := []string{"contender"}
	for _, way := range ways {
		heads = append(heads, way.name, "× ours")
	}
	t := newTable(heads...)
	for _, c := range contenders {
		row := []string{c.enqueuerName()}
		for _, way := range ways {
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
	if c.mode == modeBatch {
		return "ours: EnqueueInBatch"
	}
	return map[string]string{
		"ours": "ours: Enqueue", "river": "River: InsertTx, InsertManyFast", "gue": "gue: EnqueueTx, EnqueueBatchTx",
		"graphile": "Graphile Worker: addJob, addJobs", "pgboss": "pg-boss: send, insert",
	}[c.program]
}

func (b *bench) enqueueOnce(ctx context.Context, c contender, way enqueueWay) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.limit)
	defer cancel()
	d, err := b.prepare(ctx, c)
	if err != nil {
		return 0, err
	}
	defer d.drop()
	if way.order {
		if _, err := d.conn.Exec(ctx, `CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), note text NOT NULL)`); err != nil {
			return 0, err
		}
	}
	if err := d.checkpoint(ctx); err != nil {
		return 0, err
	}
	spec := b.spec(c, d, roleProduce)
	spec.Bulk, spec.Connections, spec.Order, spec.Jobs = way.bulk, way.connections, way.order, b.opts.enqueueJobs
	if way.bulk == 1 {
		spec.Jobs = max(b.opts.enqueueJobs/oneByOneShare, 1)
	}
	seconds, err := b.produce(ctx, spec)
	return float64(spec.Jobs) / seconds, err
}

// placeOrder is what a transaction does besides enqueueing.
const placeOrder = `INSERT INTO orders (note) VALUES ($1)`

// inTransaction runs do in a transaction, after the order if spec asks for one.
func inTransaction(ctx context.Context, pool *pgxpool.Pool, spec Spec, do func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if spec.Order {
			if _, err := tx.Exec(ctx, placeOrder, "an order"); err != nil {
				return err
			}
		}
		return do(tx)
	})
}
