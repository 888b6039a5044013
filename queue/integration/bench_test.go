package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// BenchmarkDrain claims and succeeds jobs in batches of 500 with durable
// commits, from one and from two connections, with and without another
// session's snapshot held open. One iteration is one job.
func BenchmarkDrain(b *testing.B) {
	server, err := pgtest.Start("fsync=on", "synchronous_commit=on", "shared_buffers=512MB")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	for _, held := range []bool{false, true} {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("workers=%d/snapshot=%t", workers, held), func(b *testing.B) {
				drain(b, server, workers, held)
			})
		}
	}
}

func drain(b *testing.B, server *pgtest.Server, workers int, held bool) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	c, err := queue.New(fmt.Sprintf("bench_%d_%t", workers, held))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+c.Schema()+" CASCADE"); err != nil {
		b.Fatal(err)
	}
	if err := pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		_, err := c.Migrate(ctx, conn.Conn())
		return err
	}); err != nil {
		b.Fatal(err)
	}
	if err := c.SetPolicy(ctx, pool, "q", queue.DefaultPolicy()); err != nil {
		b.Fatal(err)
	}
	jobs := make([]queue.NewJob, 5000)
	for i := range jobs {
		jobs[i] = queue.NewJob{Kind: "noop", Payload: json.RawMessage(`{"n": 1, "text": "some payload of a usual size"}`)}
	}
	for left := b.N; left > 0; left -= len(jobs) {
		if _, err := c.Enqueue(ctx, pool, "q", jobs[:min(left, len(jobs))]...); err != nil {
			b.Fatal(err)
		}
	}
	if held {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "SELECT count(*) FROM pg_class"); err != nil {
			b.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }()
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			worker := uuid.New()
			for {
				runs, err := c.Claim(ctx, pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 500, Alone: []string{}})
				if err != nil {
					b.Error(err)
					return
				}
				if len(runs) == 0 {
					return
				}
				refs := make([]queue.Ref, len(runs))
				for i, run := range runs {
					refs[i] = run.Ref
				}
				if done, err := c.Succeed(ctx, pool, worker, refs); err != nil || len(done) != len(refs) {
					b.Errorf("succeeded %d of %d: %v", len(done), len(refs), err)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
