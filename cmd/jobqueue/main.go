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
		// PostgreSQL's hint says how to mend it; the error's text leaves it out.
		var server *pgconn.PgError
		if errors.As(err, &server) && server.Hint != "" {
			fmt.Fprintln(root.ErrOrStderr(), "Hint:", server.Hint)
		}
		return exitCodeOf(err)
	}
	return exitOK
}
