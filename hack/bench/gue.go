package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
)

// gueProgram is gue: a pool of 100 workers, which ask every five seconds by default, or
// every ten milliseconds and in the order that its index has.
type gueProgram struct{}

const gueWorkers = 100

func (gueProgram) setup(ctx context.Context, spec Spec) error {
	schema, err := os.ReadFile(spec.SchemaFile)
	if err != nil {
		return fmt.Errorf("gue's tables: %w", err)
	}
	pool, err := connect(ctx, spec.URL, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, string(schema))
	return err
}

func (gueProgram) producer(ctx context.Context, spec Spec) (func(context.Context, int, func() Payload) error, error) {
	pool, err := connect(ctx, spec.URL, spec.Connections)
	if err != nil {
		return nil, err
	}
	client, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, n int, payload func() Payload) error {
		return inTransaction(ctx, pool, spec, func(tx pgx.Tx) error {
			jobs := make([]*gue.Job, n)
			for i := range jobs {
				args, err := json.Marshal(payload())
				if err != nil {
					return err
				}
				jobs[i] = &gue.Job{Queue: spec.Queues[0], Type: jobKind, Args: args}
			}
			if n == 1 {
				return client.EnqueueTx(ctx, jobs[0], pgxv5.NewTx(tx))
			}
			return client.EnqueueBatchTx(ctx, jobs, pgxv5.NewTx(tx))
		})
	}, nil
}

func (gueProgram) worker(ctx context.Context, spec Spec, ran func(Payload)) (start, stop func() error, err error) {
	// Each worker holds a transaction while its job runs.
	pool, err := connect(ctx, spec.URL, gueWorkers)
	if err != nil {
		return nil, nil, err
	}
	client, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		return nil, nil, err
	}
	options := []gue.WorkerPoolOption{gue.WithPoolQueue(spec.Queues[0])}
	if spec.Mode == modeFast {
		options = append(options, gue.WithPoolPollInterval(10*time.Millisecond), gue.WithPoolPollStrategy(gue.RunAtPollStrategy))
	}
	workers, err := gue.NewWorkerPool(client, gue.WorkMap{
		jobKind: func(_ context.Context, job *gue.Job) error {
			var payload Payload
			if err := json.Unmarshal(job.Args, &payload); err != nil {
				return err
			}
			ran(payload)
			return nil
		},
	}, gueWorkers, options...)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var ended error
	start = func() error {
		running.Go(func() { ended = workers.Run(ctx) })
		return nil
	}
	stop = func() error {
		cancel()
		running.Wait()
		return ended
	}
	return start, stop, nil
}
