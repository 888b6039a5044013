package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit codes. The worker command adds those of worker.Main.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const rootLong = `jobqueue runs job queues that live in PostgreSQL.

The database is named by --database-url or JOBQUEUE_DATABASE_URL, a connection
string such as postgres://user@host:5432/database?sslmode=verify-full. Prefer the
variable for strings with a password: a command line can be read by other users of
the machine. The usual PG variables (PGPASSWORD, PGSSLMODE, ...) count too.

Exit codes: 0 done; 1 failed; 2 the command line or the configuration is wrong;
worker only: 3 a handler was stuck; 128 + n ended at once by a second signal n.`

// exitError carries an exit code; its text is what the user reads.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "" // already said
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

func exitCodeOf(err error) int {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "jobqueue",
		Short:         "Job queues in PostgreSQL: operator, worker, reaper and tools",
		Long:          rootLong,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError("unknown command %q; see jobqueue --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError("%w; see %s --help", err, cmd.CommandPath())
	})
	db := &databaseFlags{}
	db.register(root.PersistentFlags())
	root.AddCommand(
		newManagerCommand(),
		newWorkerCommand(db),
		newReapCommand(db),
		newMigrateCommand(db),
		newEnqueueCommand(db),
		newStatusCommand(db),
		newVersionCommand(),
	)
	return root
}

// exactly is cobra.ExactArgs with an error that names what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usageError("%s needs %d argument(s) %v and got %d; see %s --help",
				cmd.CommandPath(), len(names), names, len(args), cmd.CommandPath())
		}
		return nil
	}
}
