// Command jobqueue is the one binary of the JobQueue operator: the operator
// itself, a worker to try it with, the reaper, the migrator, and commands for
// people.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes the command line and returns the exit code.
func run(args []string) int {
	root := newRootCommand()
	root.SetArgs(args)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(root.ErrOrStderr(), "Error:", text)
		}
		if hint := hintOf(err); hint != "" {
			fmt.Fprintln(root.ErrOrStderr(), "Hint:", hint)
		}
		return exitCodeOf(err)
	}
	return exitOK
}

// hintOf says how to mend an error, when that is known. PostgreSQL's own hint is
// not part of its error's text.
func hintOf(err error) string {
	var server *pgconn.PgError
	switch {
	case errors.Is(err, queue.ErrSchemaMissing):
		return "create the schema with jobqueue migrate, or check --schema."
	case errors.As(err, &server):
		return server.Hint
	}
	return ""
}
