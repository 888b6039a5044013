package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// PrintStatus prints what runs and where. It fails when something that should
// run does not.
func (c *Cluster) PrintStatus(_ context.Context, w io.Writer) error {
	sandbox := c.sandbox()
	if !sandbox.Alive() {
		return c.notRunning()
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "COMPONENT\tSTATE\tPID\tLOG\n")
	row := func(name string, identity Identity) {
		state := "running"
		if !identity.Alive() {
			state = "stopped"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", name, state, identity.PID, c.logFile(name))
	}
	row("init", sandbox.Init)
	for _, name := range c.componentNames() {
		row(name, loadJSON[Identity](c.pidFile(name)))
	}
	if _, err := os.Stat(c.postgresDir()); err == nil {
		row(postgresName, loadJSON[Identity](c.pidFile(postgresName)))
	}
	problem := c.problem()
	node := "Ready"
	if problem != nil {
		node = problem.Error()
	}
	fmt.Fprintf(table, "\nNode\t%s\t%s\n", c.nodeName(), node)
	fmt.Fprintf(table, "API server\t%s\n", c.apiServer())
	fmt.Fprintf(table, "Pods\t%s\n", c.Addresses.Pods)
	fmt.Fprintf(table, "Services\t%s\n", c.Addresses.Services)
	fmt.Fprintf(table, "State\t%s\n", c.Dir)
	fmt.Fprintf(table, "Kubeconfig\t%s\n", c.kubeconfig("admin"))
	if err := table.Flush(); err != nil {
		return err
	}
	if problem != nil {
		return fmt.Errorf("the cluster %q is not healthy: %w", c.Name, problem)
	}
	return nil
}

// PrintLog prints the end of a component's log.
func (c *Cluster) PrintLog(w io.Writer, name string, lines int) error {
	content, err := os.ReadFile(c.logFile(filepath.Base(name)))
	if errors.Is(err, os.ErrNotExist) {
		var known []string
		logs, _ := filepath.Glob(c.logFile("*"))
		for _, log := range logs {
			known = append(known, strings.TrimSuffix(filepath.Base(log), ".log"))
		}
		return fmt.Errorf("there is no log of %q; there are: %s", name, strings.Join(known, ", "))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, lastLines(string(content), lines))
	return err
}
