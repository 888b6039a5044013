package main

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func newMigrateCommand(db *databaseFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Create the queue's schema, or bring it up to date",
		Long: "Create the queue's schema, or bring it up to date. Running workers of the previous\n" +
			"version keep working, and two migrations at once are harmless. Prints the versions\n" +
			"before and after.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return db.with(cmd.Context(), nameCLI, func(client *queue.Client, conn *pgx.Conn) error {
				result, err := client.Migrate(cmd.Context(), conn)
				if err != nil {
					return err
				}
				what := "migrated"
				if result.From == result.To {
					what = "up to date"
				}
				fmt.Fprintf(cmd.OutOrStdout(), "schema %s: %s, from version %d to %d\n",
					client.Schema(), what, result.From, result.To)
				return nil
			})
		},
	}
}
