// Package worker runs job handlers against a queue in PostgreSQL.
//
// A program registers one handler for each kind of job and calls [Main], or
// [Worker.Run] when it brings its own pool and signal handling:
//
//	worker.Main(func(w *worker.Worker) error {
//		worker.Handle(w, "email", func(ctx context.Context, job *worker.Job[Email]) error {
//			return send(ctx, job.Args)
//		})
//		return nil
//	})
//
// # What is promised
//
// A job runs at least once. It runs more than once when a process dies, is
// paused past its lease, or loses the database for longer than that; the
// result of the run that lost its lease is refused by the database and its
// handler's context is cancelled with [ErrLeaseLost]. A handler that must not
// repeat its effects uses [Job.IdempotencyKey], or finishes the job inside its
// own transaction with [Job.Succeed].
//
// # How it runs
//
// One loop claims for all slots with one statement, and a little ahead of them
// when handlers are fast. One loop extends the lease of everything this process
// holds with one statement. One loop writes results, as many at a time as have
// gathered while the previous write was under way. None of these costs grows
// with the number of statements a job would otherwise need.
package worker
