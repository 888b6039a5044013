package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Exec replaces this process by a command inside the cluster's network. As it
// stays the same process, signals, terminal and exit code need no forwarding.
func (c *Cluster) Exec(command []string) error {
	sandbox := c.sandbox()
	if !sandbox.Alive() {
		return c.notRunning()
	}
	assets, err := BuildAssets(context.Background())
	if err != nil {
		return err
	}
	for name, value := range c.execEnvironment(assets) {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("cannot run the command: %w", err)
	}
	runtime.LockOSThread()
	if err := sandbox.join([]string{"net"}); err != nil {
		return err
	}
	if err := syscall.Exec(program, command, os.Environ()); err != nil {
		return fmt.Errorf("cannot run %s: %w", program, err)
	}
	return nil
}

// execEnvironment is what a command in the cluster's network finds set.
func (c *Cluster) execEnvironment(assets string) map[string]string {
	environment := map[string]string{
		"KUBECONFIG":         c.kubeconfig("admin"),
		"KUBEBUILDER_ASSETS": assets,
		// What kubectl learns about this cluster ends with it.
		"KUBECACHEDIR": c.path("kubectl-cache"),
		"PATH":         assets + string(os.PathListSeparator) + os.Getenv("PATH"),
		nameVariable:   c.Name,
		stateVariable:  filepath.Dir(c.Dir),
	}
	// A proxy of the machine cannot be reached from in there, and must not be
	// tried for the cluster's own addresses.
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		except := []string{c.Addresses.All().String(), "127.0.0.1", "localhost"}
		if value := os.Getenv(name); value != "" {
			except = append([]string{value}, except...)
		}
		environment[name] = strings.Join(except, ",")
	}
	return environment
}
