package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverProgram is River: 100 workers in one queue as its documentation begins, or many
// workers that fetch as often as it allows.
type riverProgram struct{}

const (
	riverDefaultWorkers = 100
	// riverFastWorkers was as good as any of 500, 1000, 2000 and 10000, on two cores.
	riverFastWorkers = 2000
)

// riverArgs are a job's arguments in River's terms.
type riverArgs struct{ Payload }

func (riverArgs) Kind() string { return jobKind }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	ran func(Payload)
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.ran(job.Args.Payload)
	return nil
}

func (riverProgram) setup(ctx context.Context, spec Spec) error {
	pool, err := connect(ctx, spec.URL, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: riverLog()})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// riverLog keeps what River says in good times off the terminal.
func riverLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func (riverProgram) producer(ctx context.Context, spec Spec) (func(context.Context, int, func() Payload) error, error) {
	pool, err := connect(ctx, spec.URL, spec.Connections)
	if err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: riverLog()})
	if err != nil {
		return nil, err
	}
	opts := &river.InsertOpts{Queue: spec.Queues[0]}
	return func(ctx context.Context, n int, payload func() Payload) error {
		if n > 1 {
			jobs := make([]river.InsertManyParams, n)
			for i := range jobs {
				jobs[i] = river.InsertManyParams{Args: riverArgs{payload()}, InsertOpts: opts}
			}
			_, err := client.InsertManyFast(ctx, jobs)
			return err
		}
		return inTransaction(ctx, pool, spec, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, riverArgs{payload()}, opts)
			return err
		})
	}, nil
}

func (riverProgram) worker(ctx context.Context, spec Spec, ran func(Payload)) (start, stop func() error, err error) {
	pool, err := pgxpool.New(ctx, spec.URL) // with pgx's default size, which River's documentation uses
	if err != nil {
		return nil, nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{ran: ran})
	cfg := &river.Config{Queues: map[string]river.QueueConfig{}, Workers: workers, Logger: riverLog()}
	slots := riverDefaultWorkers
	if spec.Mode == modeFast {
		slots = riverFastWorkers
		cfg.FetchCooldown = river.FetchCooldownMin
		cfg.FetchPollInterval = 10 * time.Millisecond
	}
	if spec.Workers > 0 {
		slots = spec.Workers
	}
	for _, name := range spec.Queues {
		cfg.Queues[name] = river.QueueConfig{MaxWorkers: slots}
	}
	client, err := river.NewClient(riverpgxv5.New(pool), cfg)
	if err != nil {
		return nil, nil, err
	}
	start = func() error { return client.Start(ctx) }
	stop = func() error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		err := client.Stop(ctx)
		pool.Close()
		return err
	}
	return start, stop, pool.Ping(ctx)
}
