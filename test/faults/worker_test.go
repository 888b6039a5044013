package faults

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/test/history"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// envWorker makes the test binary a worker program.
const envWorker = "FAULTS_WORKER"

const kind = "work"

// work is the payload of all jobs: what the handler does.
type work struct {
	// Milliseconds that each run takes, minding its context.
	Milliseconds int
	// FirstMilliseconds, if not 0, is what the first run takes instead.
	FirstMilliseconds int
	// Failures is how many attempts fail before one succeeds.
	Failures int
	// SnoozeMilliseconds, if not 0, puts the job off once.
	SnoozeMilliseconds int
	// Insist makes a handler whose context has ended finish its job all the same, in a
	// transaction of its own.
	Insist bool
}

// workerMain is a worker program: the real one, with a handler that does what the
// payload says and leaves its traces in the log.
func workerMain() int {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	return worker.MainCode(configFromEnv, func(w *worker.Worker) error {
		worker.Handle(w, kind, func(ctx context.Context, job *worker.Job[work]) error {
			history.LogBegan(log, job.ID, job.Token)
			err := perform(ctx, log, job)
			if ctx.Err() != nil && job.Args.Insist {
				insist(w.Pool(), log, job)
			}
			return err
		})
		return nil
	})
}

// configFromEnv polls more often than a worker does by itself: the tests are to be quick.
func configFromEnv() (worker.Config, error) {
	cfg, err := worker.ConfigFromEnv()
	cfg.PollInterval, cfg.PollMax = 200*time.Millisecond, 400*time.Millisecond
	return cfg, err
}

func perform(ctx context.Context, log *slog.Logger, job *worker.Job[work]) error {
	took := job.Args.Milliseconds
	if job.Attempt == 1 && job.Args.FirstMilliseconds > 0 {
		took = job.Args.FirstMilliseconds
	}
	select {
	case <-time.After(time.Duration(took) * time.Millisecond):
	case <-ctx.Done():
		history.LogCancelled(log, job.ID, job.Token, context.Cause(ctx))
		return context.Cause(ctx)
	}
	snooze := time.Duration(job.Args.SnoozeMilliseconds) * time.Millisecond
	// A job that has been put off is available that much later than it was made.
	if snooze > 0 && job.AvailableAt.Sub(job.CreatedAt) < snooze {
		return worker.Snooze(snooze)
	}
	if job.Attempt <= job.Args.Failures {
		return errors.New("fails as it was told")
	}
	return nil
}

// insist writes a result however late it is, and notes what became of it.
func insist(pool *pgxpool.Pool, log *slog.Logger, job *worker.Job[work]) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return job.Succeed(ctx, tx) })
	told := history.Told{ID: job.ID, Token: job.Token}
	switch {
	case err == nil:
		told.Outcome = "succeeded"
	case errors.Is(err, worker.ErrLeaseLost):
		told.Outcome = "refused"
	default:
		told.Outcome = "unconfirmed"
	}
	history.LogTold(log, told)
}
