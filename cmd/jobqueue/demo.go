package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// demoHandlers are the handlers of the worker command.
type demoHandlers struct {
	pool   *pgxpool.Pool // of side effects; nil when they are not recorded
	insert string
}

// sleepArgs are the arguments of the kinds sleep and stuck.
type sleepArgs struct {
	Milliseconds      int `json:"milliseconds"`
	AfterMilliseconds int `json:"after_milliseconds"`
}

// failArgs are the arguments of the kind fail.
type failArgs struct {
	Times        int    `json:"times"`
	Milliseconds int    `json:"milliseconds"`
	Message      string `json:"message"`
}

// runID names one run of a job in the table of side effects.
type runID struct {
	job     int64
	token   uuid.UUID
	attempt int
	worker  uuid.UUID
}

func idOf[T any](j *worker.Job[T]) runID { return runID{j.ID, j.Token, j.Attempt, j.Worker} }

func (d *demoHandlers) register(w *worker.Worker) {
	worker.Handle(w, "noop", func(ctx context.Context, job *worker.Job[struct{}]) error {
		return d.effect(ctx, idOf(job))
	})
	worker.Handle(w, "sleep", func(ctx context.Context, job *worker.Job[sleepArgs]) error {
		if err := nap(ctx, job.Args.Milliseconds); err != nil {
			return err
		}
		if err := d.effect(ctx, idOf(job)); err != nil {
			return err
		}
		return nap(ctx, job.Args.AfterMilliseconds)
	})
	worker.Handle(w, "fail", func(ctx context.Context, job *worker.Job[failArgs]) error {
		if err := nap(ctx, job.Args.Milliseconds); err != nil {
			return err
		}
		if job.Attempt <= job.Args.Times {
			message := job.Args.Message
			if message == "" {
				message = "failing as asked"
			}
			return fmt.Errorf("%s: attempt %d of %d to fail", message, job.Attempt, job.Args.Times)
		}
		return d.effect(ctx, idOf(job))
	})
	worker.Handle(w, "permanent", func(context.Context, *worker.Job[struct{}]) error {
		return worker.Permanent(errors.New("failing for good as asked"))
	})
	worker.Handle(w, "panic", func(context.Context, *worker.Job[struct{}]) error {
		panic("panicking as asked")
	})
	worker.Handle(w, "stuck", func(_ context.Context, job *worker.Job[sleepArgs]) error {
		time.Sleep(time.Duration(job.Args.Milliseconds) * time.Millisecond)
		return nil
	})
}

// nap sleeps unless the context ends, and then says why it did.
func nap(ctx context.Context, milliseconds int) error {
	if milliseconds <= 0 {
		return nil
	}
	timer := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// record makes the table of side effects when it is missing.
func (d *demoHandlers) record(ctx context.Context, table string) error {
	name := pgx.Identifier(strings.Split(table, ".")).Sanitize()
	cfg, err := pgxpool.ParseConfig(os.Getenv(worker.EnvDatabaseURL))
	if err != nil {
		return fmt.Errorf("the connection string in %s cannot be read", worker.EnvDatabaseURL)
	}
	cfg.MaxConns = 2
	cfg.ConnConfig.RuntimeParams["application_name"] = nameCLI
	if d.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	d.insert = "INSERT INTO " + name + " (job_id, token, attempt, worker) VALUES ($1, $2, $3, $4)"
	_, err = d.pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+name+` (
		job_id bigint NOT NULL, token uuid NOT NULL, attempt integer NOT NULL, worker uuid NOT NULL,
		at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	if err != nil {
		return fmt.Errorf("make the table of side effects %s: %w", table, err)
	}
	return nil
}

// effect is the side effect of a run: one row in a transaction of its own.
func (d *demoHandlers) effect(ctx context.Context, id runID) error {
	if d.pool == nil {
		return nil
	}
	if _, err := d.pool.Exec(ctx, d.insert, id.job, id.token.String(), id.attempt, id.worker.String()); err != nil {
		return fmt.Errorf("record the side effect: %w", err)
	}
	return nil
}

func (d *demoHandlers) close() {
	if d.pool != nil {
		d.pool.Close()
	}
}
