// Command localcluster runs a real one-node Kubernetes, and a PostgreSQL beside
// it, on a bare Linux machine: no container engine, no virtual machine, no image
// registry. It builds Kubernetes' own components from source through the Go
// module proxy, takes containerd from the distribution, and keeps everything
// inside namespaces from which nothing gets out.
//
// The cluster lives in the namespaces of one small process, its init (see
// sandbox.go). Ending that process ends everything, mounts and networks
// included, so that nothing can be left behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	// PID 1 of the cluster must not go through flag parsing: it is started
	// with nothing but its instructions.
	if len(os.Args) > 1 && os.Args[1] == initCommand {
		os.Exit(runInit(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "localcluster: %v\n", err)
	// A command run on the user's behalf keeps its exit code.
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		os.Exit(exit.ExitCode())
	}
	os.Exit(1)
}
