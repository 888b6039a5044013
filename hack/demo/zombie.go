package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// claimAsZombie claims a job and then says nothing more, as a worker does that hangs for
// longer than its lease.
func (d *demo) claimAsZombie(ctx context.Context) (queue.Run, error) {
	runs, err := d.queue.Claim(ctx, d.pool, queue.ClaimRequest{Queue: queueName, Worker: uuid.New(), Pod: "zombie", Limit: 1})
	if err != nil {
		return queue.Run{}, fmt.Errorf("claiming as a worker that hangs: %w", err)
	}
	if len(runs) == 0 {
		return queue.Run{}, errors.New("claiming as a worker that hangs: no job was there")
	}
	return runs[0], nil
}

// wakeZombie has the hung worker try, after its job ran elsewhere, to succeed and to fail
// with its old token. It returns how many of these writes were refused.
func (d *demo) wakeZombie(ctx context.Context, run queue.Run) (int, error) {
	schema := pgx.Identifier{d.queue.Schema()}.Sanitize()
	err := await(ctx, time.Minute, "the hung worker's job to end elsewhere", func(ctx context.Context) (bool, error) {
		var alive bool
		err := d.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+schema+`.jobs WHERE id = $1)`, run.ID).Scan(&alive)
		return !alive, err
	})
	if err != nil {
		return 0, err
	}
	refused := 0
	done, err := d.queue.Succeed(ctx, d.pool, uuid.Nil, []queue.Ref{run.Ref})
	if err != nil {
		return 0, fmt.Errorf("a stale success: %w", err)
	}
	if len(done) == 0 {
		refused++
	}
	failed, err := d.queue.Fail(ctx, d.pool, uuid.Nil, []queue.Failure{{Ref: run.Ref, Error: "stale"}})
	if err != nil {
		return 0, fmt.Errorf("a stale failure: %w", err)
	}
	if len(failed) == 0 {
		refused++
	}
	return refused, nil
}
