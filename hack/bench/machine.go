package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/jackc/pgx/v5"
)

// load is the load average of the last 1, 5 and 15 minutes.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// memory is the machine's, in GiB.
func memory() string {
	text, err := os.ReadFile("/proc/meminfo")
	var kib int64
	if err == nil {
		_, err = fmt.Sscanf(string(text), "MemTotal: %d kB", &kib)
	}
	if err != nil {
		return "unknown memory"
	}
	return fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
}

// describe writes the report's head: what was measured on, and what was measured.
func (b *bench) describe(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.cluster.server.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var version string
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "# Benchmark\n\n")
	fmt.Fprintf(b.out, "- Machine: %d cores, %s, %s. Database, workers and producers share it.\n", runtime.NumCPU(), memory(), runtime.Version())
	fmt.Fprintf(b.out, "- PostgreSQL %s, defaults but for %s; a database of its own for each measurement.\n", version, strings.Join(serverSettings, ", "))
	fmt.Fprintf(b.out, "- Rivals: %s.\n", strings.Join(b.versions(), ", "))
	fmt.Fprintf(b.out, "- Load average before: %s\n\n", load())
	return nil
}

// versions names the rivals as they were built or installed.
func (b *bench) versions() []string {
	var all []string
	if info, ok := debug.ReadBuildInfo(); ok {
		names := map[string]string{"github.com/riverqueue/river": "River", "github.com/vgarvardt/gue/v5": "gue"}
		for _, dep := range info.Deps {
			if name := names[dep.Path]; name != "" {
				all = append(all, name+" "+dep.Version)
			}
		}
	}
	if b.nodeMissing() == nil {
		all = append(all, "Graphile Worker "+b.installed("graphile-worker"), "pg-boss "+b.installed("pg-boss"))
		if out, err := exec.Command("node", "--version").Output(); err == nil {
			all = append(all, "Node.js "+strings.TrimSpace(string(out)))
		}
	}
	return all
}
