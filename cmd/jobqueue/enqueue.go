package main

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// enqueueBatch is the number of jobs in one statement.
const enqueueBatch = 5000

type enqueueFlags struct {
	kind, payload string
	count         int
	priority      int
	delay         time.Duration
	maxAttempts   int
}

func newEnqueueCommand(db *databaseFlags) *cobra.Command {
	var f enqueueFlags
	cmd := &cobra.Command{
		Use:   "enqueue QUEUE",
		Short: "Add jobs to a queue",
		Long: "Add one job, or --count equal ones, to a queue in one transaction: all or none.\n" +
			"Prints how many, and their first and last id.",
		Example: `  jobqueue enqueue emails --kind email --payload '{"to":"a@example.org"}'
  jobqueue enqueue demo --kind sleep --payload '{"milliseconds":200}' --count 1000`,
		Args: exactly("QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			return db.with(cmd.Context(), nameCLI, func(client *queue.Client, conn *pgx.Conn) error {
				return f.enqueue(cmd, client, conn, args[0])
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.kind, "kind", "", "kind of the job (required)")
	flags.StringVar(&f.payload, "payload", "{}", "payload, a JSON value")
	flags.IntVar(&f.count, "count", 1, "number of jobs")
	flags.IntVar(&f.priority, "priority", 0, "priority; lower runs first")
	flags.DurationVar(&f.delay, "delay", 0, "time until the job is ready, such as 90s")
	flags.IntVar(&f.maxAttempts, "max-attempts", 0, "runs that may begin (default: the queue's policy)")
	return cmd
}

func (f *enqueueFlags) validate() error {
	switch {
	case f.kind == "":
		return usageError("--kind is not set: it names the handler of the job")
	case !json.Valid([]byte(f.payload)):
		return usageError("--payload is not valid JSON")
	case f.count < 1 || f.count > 10_000_000:
		return usageError("--count is %d; allowed are 1 to 10000000", f.count)
	case f.priority < math.MinInt16 || f.priority > math.MaxInt16:
		return usageError("--priority is %d; allowed are %d to %d", f.priority, math.MinInt16, math.MaxInt16)
	case f.delay < 0:
		return usageError("--delay is %s; it must not be negative", f.delay)
	}
	return nil
}

func (f *enqueueFlags) enqueue(cmd *cobra.Command, client *queue.Client, conn *pgx.Conn, name string) error {
	job := queue.NewJob{
		Kind: f.kind, Payload: json.RawMessage(f.payload), Priority: int16(f.priority),
		Delay: f.delay, MaxAttempts: f.maxAttempts,
	}
	jobs := make([]queue.NewJob, min(f.count, enqueueBatch))
	for i := range jobs {
		jobs[i] = job
	}
	var first, last int64
	err := pgx.BeginFunc(cmd.Context(), conn, func(tx pgx.Tx) error {
		for left := f.count; left > 0; {
			n := min(left, len(jobs))
			ids, err := client.Enqueue(cmd.Context(), tx, name, jobs[:n]...)
			if err != nil {
				return err
			}
			if first == 0 {
				first = ids[0]
			}
			last = ids[len(ids)-1]
			left -= n
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "enqueued %d job(s) of kind %s in queue %s, ids %d to %d\n", f.count, f.kind, name, first, last)
	return nil
}
