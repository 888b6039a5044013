package main

import (
	"context"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// envEffectsTable names the table of --effects-table.
const envEffectsTable = "JOBQUEUE_EFFECTS_TABLE"

const workerLong = `Run a worker with handlers for trying and measuring a queue:

  noop        succeeds at once
  sleep       {"milliseconds":N} sleeps, minding its context; with
              "after_milliseconds":N it sleeps again after its side effect
  fail        {"times":N} fails the first N attempts, then succeeds
  permanent   fails for good at once
  panic       panics
  stuck       {"milliseconds":N} sleeps and ignores its context

All settings come from the environment, as the operator sets it; the flags override.
With --effects-table each run that gets that far inserts one row (job_id, token,
attempt, worker, at) in a transaction of its own, over at most two connections more.`

func newWorkerCommand(db *databaseFlags) *cobra.Command {
	var queueName, httpAddr, effects string
	var slots, poolSize int
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run a worker with demonstration handlers",
		Long:  workerLong,
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for name, value := range map[string]string{
				worker.EnvDatabaseURL: db.url, worker.EnvSchema: db.schema, worker.EnvQueue: queueName,
				worker.EnvHTTPAddr: httpAddr, envEffectsTable: effects,
			} {
				if value != "" {
					if err := os.Setenv(name, value); err != nil {
						return usageError("%s: %w", name, err)
					}
				}
			}
			for name, n := range map[string]int{worker.EnvSlots: slots, worker.EnvPoolSize: poolSize} {
				if n != 0 {
					if err := os.Setenv(name, strconv.Itoa(n)); err != nil {
						return usageError("%s: %w", name, err)
					}
				}
			}
			return runWorker(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&queueName, "queue", "", "queue to serve (default $"+worker.EnvQueue+")")
	flags.IntVar(&slots, "slots", 0, "handlers that run at once (default $"+worker.EnvSlots+", else 10)")
	flags.IntVar(&poolSize, "pool-size", 0, "connections of the process (default $"+worker.EnvPoolSize+", else 3)")
	flags.StringVar(&httpAddr, "http-addr", "", "address of /healthz, /readyz and /metrics (default $"+worker.EnvHTTPAddr+", else :8080)")
	flags.StringVar(&effects, "effects-table", "", "table that records side effects, made when missing (default $"+envEffectsTable+")")
	return cmd
}

func runWorker(ctx context.Context) error {
	var demo demoHandlers
	defer demo.close()
	code := worker.MainCode(worker.ConfigFromEnv, func(w *worker.Worker) error {
		if table := os.Getenv(envEffectsTable); table != "" {
			if err := demo.record(ctx, table); err != nil {
				return err
			}
		}
		demo.register(w)
		return nil
	})
	if code != worker.ExitOK {
		return &exitError{code: code} // the log has said why
	}
	return nil
}
