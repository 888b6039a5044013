package main

import (
	"fmt"
	"syscall"

	"github.com/spf13/cobra"
)

// newPostgresCommand builds the commands for the PostgreSQL beside the cluster.
func newPostgresCommand(cluster clusterFunc) *cobra.Command {
	postgres := &cobra.Command{
		Use:   "postgres",
		Short: "A PostgreSQL that the cluster's pods can reach",
	}
	fast, immediate := syscall.SIGINT, syscall.SIGQUIT
	var mode string
	modeSignal := func() (*syscall.Signal, error) {
		switch mode {
		case "fast":
			return &fast, nil
		case "immediate":
			return &immediate, nil
		}
		return nil, fmt.Errorf("there is no mode %q: take fast (finish what is begun) or immediate (as a crash)", mode)
	}
	control := func(use, short string, stop, start bool) *cobra.Command {
		cmd := &cobra.Command{
			Use:   use,
			Short: short,
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				c, err := cluster()
				if err != nil {
					return err
				}
				var signal *syscall.Signal
				if stop {
					if signal, err = modeSignal(); err != nil {
						return err
					}
				}
				return c.PostgresControl(cmd.Context(), signal, start)
			},
		}
		if stop {
			cmd.Flags().StringVar(&mode, "mode", "fast", "how to stop: fast, or immediate (as a crash)")
		}
		return cmd
	}
	postgres.AddCommand(
		newPostgresUpCommand(cluster), newPostgresDownCommand(cluster), newPostgresURLCommand(cluster),
		control("start", "Start the server after a stop", false, true),
		control("stop", "Stop the server and keep its data", true, false),
		control("restart", "Stop the server and start it again", true, true),
	)
	return postgres
}

func newPostgresUpCommand(cluster clusterFunc) *cobra.Command {
	var maxConnections int
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make a server with a database \"app\" and start it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.PostgresUp(cmd.Context(), maxConnections)
		},
	}
	cmd.Flags().IntVar(&maxConnections, "max-connections", 0, "max_connections of the server; a running one is restarted when it differs (default 100 for a new server)")
	return cmd
}

func newPostgresDownCommand(cluster clusterFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the server and remove its data",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.PostgresDown(cmd.Context())
		},
	}
}

func newPostgresURLCommand(cluster clusterFunc) *cobra.Command {
	var superuser bool
	cmd := &cobra.Command{
		Use:   "url",
		Short: "Print the address of the database, good for pods and for \"localcluster exec\"",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			address, err := c.PostgresURL(superuser)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), address)
			return err
		},
	}
	cmd.Flags().BoolVar(&superuser, "superuser", false, "connect as the server's superuser instead of the database's owner")
	return cmd
}
