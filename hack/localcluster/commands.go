package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// Environment variables that stand in for flags, so that a command run through
// "exec" can call this program again and mean the same cluster.
const (
	nameVariable  = "JOBQUEUE_LOCALCLUSTER"
	stateVariable = "JOBQUEUE_LOCALCLUSTER_STATE"
)

// newRootCommand builds the command line.
func newRootCommand() *cobra.Command {
	var name, state string
	root := &cobra.Command{
		Use:   "localcluster",
		Short: "A one-node Kubernetes and a PostgreSQL on a bare Linux machine",
		Long: `A one-node Kubernetes and a PostgreSQL on a bare Linux machine, without a
container engine or an image registry.

  localcluster up                                start the cluster
  localcluster load out.tar                      load an image
  localcluster kubectl get pods -A               talk to it
  localcluster postgres up                       start a PostgreSQL that pods can reach
  localcluster exec -- go test ./test/e2e/...    run anything inside its network
  localcluster down                              remove all of it

The cluster's network has no way in or out: reach the API server, pods and
PostgreSQL through "exec" or "kubectl" only.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		// With this, "localcluster --name b kubectl get pods" hands only what
		// follows "kubectl" to kubectl.
		TraverseChildren: true,
		// Without these a command that does not exist would be help that was asked for.
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&name, "name", envOr(nameVariable, "jobqueue"), "name of the cluster; clusters of different names do not meet")
	root.PersistentFlags().StringVar(&state, "state", envOr(stateVariable, defaultStateRoot), "directory that holds the state of all clusters")
	cluster := func() (*Cluster, error) { return NewCluster(name, state) }

	root.AddCommand(
		newUpCommand(cluster), newDownCommand(cluster), newStatusCommand(cluster), newLogsCommand(cluster),
		newBuildCommand(), newAssetsCommand(), newLoadCommand(cluster),
		newKubeconfigCommand(cluster), newExecCommand(cluster), newKubectlCommand(cluster),
		newPostgresCommand(cluster),
	)
	return root
}

// clusterFunc returns the cluster that the flags name.
type clusterFunc func() (*Cluster, error)

func envOr(variable, fallback string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return fallback
}

func newUpCommand(cluster clusterFunc) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or do nothing when it runs and is healthy",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.Up(cmd.Context(), wait)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the node is Ready and pods can be created")
	return cmd
}

func newDownCommand(cluster clusterFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and its PostgreSQL and remove every trace of them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.Down(cmd.Context())
		},
	}
}

func newStatusCommand(cluster clusterFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the components, the node and the addresses; fails when something does not run",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.PrintStatus(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func newLogsCommand(cluster clusterFunc) *cobra.Command {
	var lines int
	cmd := &cobra.Command{
		Use:   "logs COMPONENT",
		Short: "Print the end of a component's log",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.PrintLog(cmd.OutOrStdout(), args[0], lines)
		},
	}
	cmd.Flags().IntVarP(&lines, "lines", "n", 200, "how many lines; 0 means all")
	return cmd
}

func newBuildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the Kubernetes components into the cache, once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			assets, err := BuildAssets(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := BuildPauseImage(cmd.Context()); err != nil {
				return err
			}
			progress("components are in %s (%s)", assets, time.Since(started).Round(time.Millisecond))
			return nil
		},
	}
}

func newAssetsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "assets",
		Short: "Print the directory with etcd, kube-apiserver and kubectl (KUBEBUILDER_ASSETS), building it when missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			assets, err := BuildAssets(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), assets)
			return err
		},
	}
}

func newLoadCommand(cluster clusterFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "load IMAGE.tar...",
		Short: "Load docker-archive tars into the cluster's container runtime",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.LoadImages(cmd.Context(), args)
		},
	}
}

func newKubeconfigCommand(cluster clusterFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the administrator's kubeconfig (usable inside the cluster's network only)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			if _, err := os.Stat(c.kubeconfig("admin")); err != nil {
				return c.notRunning()
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), c.kubeconfig("admin"))
			return err
		},
	}
}

func newExecCommand(cluster clusterFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "exec -- COMMAND [ARGUMENT...]",
		Short: "Run a command inside the cluster's network, with KUBECONFIG and kubectl at hand",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no command to run: localcluster exec -- COMMAND [ARGUMENT...]")
			}
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.Exec(args)
		},
	}
}

func newKubectlCommand(cluster clusterFunc) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [ARGUMENT...]",
		Short:              "Run kubectl against the cluster",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := cluster()
			if err != nil {
				return err
			}
			return c.Exec(append([]string{"kubectl"}, args...))
		},
	}
}
