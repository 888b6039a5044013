package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/test/invariants"
)

const (
	namespace = "jobqueue-demo"
	queueName = "emails"
	// schemaName is not the default one: the database may be in use.
	schemaName = "jobqueue_demo"
	// progressEvery is how often a row of the table is printed.
	progressEvery = 2 * time.Second
)

// demo holds the two ends that the demonstration looks at: the cluster and the database.
type demo struct {
	kube  client.Client
	pool  *pgxpool.Pool
	queue *queue.Client
	url   string
	image string

	peak     atomic.Int64 // most connections of the product seen at once
	recovery time.Duration
}

func newDemo(ctx context.Context, url, image string) (*demo, error) {
	kube, err := newKubeClient()
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	// Not one of the product's own names: these connections are another client's.
	cfg.ConnConfig.RuntimeParams["application_name"] = "demo"
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	client, err := queue.New(schemaName)
	if err != nil {
		return nil, err
	}
	return &demo{kube: kube, pool: pool, queue: client, url: url, image: image}, nil
}

func (d *demo) close() { d.pool.Close() }

func (d *demo) run(ctx context.Context, total int) error {
	step("Removing what an earlier demo left")
	if err := d.reset(ctx); err != nil {
		return err
	}
	step("Applying the Secret, the QueueDatabase and the JobQueue (hack/demo/manifests.yaml)")
	if err := d.apply(ctx); err != nil {
		return err
	}
	if err := d.awaitReady(ctx); err != nil {
		return err
	}
	if err := invariants.Watch(ctx, d.pool, d.queue.Schema()); err != nil {
		return err
	}
	go d.watchConnections(ctx)

	step("Enqueueing %d jobs: most sleep 50 to 350 ms, 5 %% fail once or twice, 1 %% can never succeed", total)
	mix := makeMix(total)
	start := time.Now()
	if err := d.enqueue(ctx, mix); err != nil {
		return err
	}
	zombie, err := d.claimAsZombie(ctx)
	if err != nil {
		return err
	}
	if err := d.drain(ctx, start, int64(total)); err != nil {
		return err
	}
	drained := time.Since(start)
	refused, err := d.wakeZombie(ctx, zombie)
	if err != nil {
		return err
	}
	step("The queue is empty; waiting for the workers to go and for the reaper CronJob's run")
	if err := d.awaitIdle(ctx); err != nil {
		return err
	}
	return d.verdict(ctx, mix, drained, refused)
}

// enqueue adds all jobs in one transaction, as a business transaction would.
func (d *demo) enqueue(ctx context.Context, mix mix) error {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("enqueueing: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // a no-op once committed
	if _, err := d.queue.Enqueue(ctx, tx, queueName, mix.jobs...); err != nil {
		return fmt.Errorf("enqueueing: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("enqueueing: %w", err)
	}
	return nil
}

// drain prints a row of the table every now and then until every job has ended, and kills a
// worker once a quarter of them has.
func (d *demo) drain(ctx context.Context, start time.Time, total int64) error {
	killed := make(chan error, 1)
	var kill bool
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	printHeader()
	for {
		row, err := d.look(ctx)
		if err != nil {
			return err
		}
		row.print(time.Since(start), total)
		if !kill && row.ended*4 >= total && row.ready > 1 {
			kill = true
			go func() { killed <- d.killWorker(ctx) }()
		}
		select {
		case err := <-killed:
			if err != nil {
				return err
			}
		default:
		}
		if row.ended >= total {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %s with %d of %d jobs ended: %w", time.Since(start).Round(time.Second), row.ended, total, context.Cause(ctx))
		case <-tick.C:
		}
	}
	if !kill {
		return errors.New("the queue was empty before a worker could be killed; try more -jobs")
	}
	if d.recovery == 0 {
		select {
		case err := <-killed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
