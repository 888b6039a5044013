package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// version is set by the release build: -ldflags "-X main.version=v1.2.3".
var version = ""

// buildVersion is the release's version, or what Go knows of the build.
func buildVersion() (name, commit string) {
	name, commit = version, ""
	info, ok := debug.ReadBuildInfo()
	if ok {
		if name == "" {
			name = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	if name == "" {
		name = "(devel)"
	}
	return name, commit
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, commit := buildVersion()
			if len(commit) > 12 {
				commit = commit[:12]
			}
			if commit != "" {
				commit = ", commit " + commit
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "jobqueue %s (schema version %d%s, %s %s/%s)\n",
				name, queue.LatestVersion, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
