package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// ours is this repository's queue, with the defaults of queue and worker.
type ours struct{}

// jobKind is the kind, type or task of every job, for those that want one.
const jobKind = "noop"

func (ours) setup(ctx context.Context, spec Spec) error {
	conn, err := pgx.Connect(ctx, spec.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	client, err := queue.New("")
	if err != nil {
		return err
	}
	if _, err := client.Migrate(ctx, conn); err != nil {
		return err
	}
	for _, name := range spec.Queues {
		if err := client.SetPolicy(ctx, conn, name, queue.DefaultPolicy()); err != nil {
			return err
		}
	}
	return nil
}

func (ours) producer(ctx context.Context, spec Spec) (func(context.Context, int, func() Payload) error, error) {
	pool, err := connect(ctx, spec.URL, spec.Connections)
	if err != nil {
		return nil, err
	}
	client, err := queue.New("")
	if err != nil {
		return nil, err
	}
	if spec.Mode == modeBatch {
		return func(ctx context.Context, _ int, payload func() Payload) error {
			batch := &pgx.Batch{}
			batch.Queue(placeOrder, "an order")
			if err := client.EnqueueInBatch(batch, spec.Queues[0], nil, queue.NewJob{Kind: jobKind, Payload: payload()}); err != nil {
				return err
			}
			return pool.SendBatch(ctx, batch).Close()
		}, nil
	}
	return func(ctx context.Context, n int, payload func() Payload) error {
		return inTransaction(ctx, pool, spec, func(tx pgx.Tx) error {
			jobs := make([]queue.NewJob, n)
			for i := range jobs {
				jobs[i] = queue.NewJob{Kind: jobKind, Payload: payload()}
			}
			_, err := client.Enqueue(ctx, tx, spec.Queues[0], jobs...)
			return err
		})
	}, nil
}

func (ours) worker(ctx context.Context, spec Spec, ran func(Payload)) (start, stop func() error, err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	workers := make([]*worker.Worker, len(spec.Queues))
	for i, name := range spec.Queues {
		cfg := worker.Config{DatabaseURL: spec.URL, Queue: name, Slots: spec.Workers}
		pool, err := workerPool(ctx, cfg, spec.Claims)
		if err != nil {
			return nil, nil, err
		}
		if workers[i], err = worker.New(pool, cfg, worker.WithLogger(log)); err != nil {
			return nil, nil, err
		}
		worker.Handle(workers[i], jobKind, func(_ context.Context, job *worker.Job[Payload]) error {
			ran(job.Args)
			time.Sleep(time.Duration(spec.HandlerMillis) * time.Millisecond)
			return nil
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	errs := make(chan error, len(workers))
	start = func() error {
		for _, w := range workers {
			running.Go(func() { errs <- w.Run(ctx) })
		}
		return nil
	}
	stop = func() error {
		cancel()
		running.Wait()
		for range workers {
			if err := <-errs; err != nil {
				return err
			}
		}
		return nil
	}
	return start, stop, nil
}

// workerPool is the worker package's own pool, connected; with a watch on claims if
// that is asked for.
func workerPool(ctx context.Context, cfg worker.Config, watchClaims bool) (*pgxpool.Pool, error) {
	pool, err := worker.NewPool(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if watchClaims {
		watched := pool.Config()
		watched.ConnConfig.Tracer = claimTracer{}
		pool.Close()
		if pool, err = pgxpool.NewWithConfig(ctx, watched); err != nil {
			return nil, err
		}
	}
	return pool, pool.Ping(ctx)
}

// claims are the round trips of this process's claims.
var claims recorder

// claimTracer notes how long claims take.
type claimTracer struct{}

type claimStarted struct{}

func (claimTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, ".claim") {
		return context.WithValue(ctx, claimStarted{}, time.Now())
	}
	return ctx
}

func (claimTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if start, ok := ctx.Value(claimStarted{}).(time.Time); ok {
		claims.add(time.Since(start).Microseconds())
	}
}

// connect makes a pool whose connections are open.
func connect(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if connections > 0 {
		cfg.MaxConns = int32(connections)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	var held []*pgxpool.Conn
	for range cfg.MaxConns {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		conn.Release()
	}
	return pool, nil
}
