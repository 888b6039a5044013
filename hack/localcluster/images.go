package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ctr runs containerd's client against the cluster, in the namespace that the
// kubelet uses.
func (c *Cluster) ctr(ctx context.Context, args ...string) error {
	program, err := findProgram("ctr")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"--address", c.containerdSocket(), "--namespace", "k8s.io"}, args...)...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, lastLines(string(output), 10))
	}
	return nil
}

// LoadImages imports docker-archive tars.
func (c *Cluster) LoadImages(ctx context.Context, archives []string) error {
	if !c.sandbox().Alive() {
		return c.notRunning()
	}
	for _, archive := range archives {
		if _, err := os.Stat(archive); err != nil {
			return fmt.Errorf("cannot load an image: %w", err)
		}
		if err := c.ctr(ctx, "images", "import", archive); err != nil {
			return fmt.Errorf("cannot load %s (is it a docker-archive tar?): %w", archive, err)
		}
		progress("loaded %s", filepath.Base(archive))
	}
	return nil
}
