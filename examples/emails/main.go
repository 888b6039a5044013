// Command emails is a whole worker: it handles one kind of job, and enqueues another
// in the same transaction as its own rows.
package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// Email is the payload of kind "email".
type Email struct {
	To string `json:"to"`
}

func main() {
	worker.Main(func(w *worker.Worker) error {
		worker.Handle(w, "email", func(ctx context.Context, job *worker.Job[Email]) error {
			if job.Args.To == "" {
				return worker.Permanent(fmt.Errorf("no recipient")) // to the dead letters at once
			}
			fmt.Println("sending to", job.Args.To, "once per", job.IdempotencyKey())
			return nil // any other error is retried by the queue's policy
		})
		worker.Handle(w, "signup", func(ctx context.Context, job *worker.Job[Email]) error {
			// The user's row, the welcome mail's job and the end of this job are
			// committed together or not at all.
			return pgx.BeginFunc(ctx, w.Pool(), func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "INSERT INTO users (email) VALUES ($1)", job.Args.To); err != nil {
					return err
				}
				if _, err := w.Client().Enqueue(ctx, tx, job.Queue, queue.NewJob{Kind: "email", Payload: job.Args}); err != nil {
					return err
				}
				return job.Succeed(ctx, tx)
			})
		})
		return nil
	})
}
