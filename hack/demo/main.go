// Command demo shows the operator's main job end to end: it applies a QueueDatabase and a
// JobQueue, enqueues jobs in PostgreSQL, watches replicas rise with the age of the oldest
// job, kills a worker with SIGKILL on the way, and counts in SQL what became of every job.
//
// It needs a cluster with the operator installed (KUBECONFIG) and a PostgreSQL that this
// process and the cluster's pods reach (DATABASE_URL). It exits non-zero if any invariant
// is broken.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	image := flag.String("image", "docker.io/jobqueue/jobqueue:dev", "image of the worker")
	jobs := flag.Int("jobs", 5000, "jobs to enqueue, at least 100")
	limit := flag.Duration("limit", 8*time.Minute, "give up after this long")
	flag.Parse()
	url := os.Getenv("DATABASE_URL")
	if url == "" || *jobs < 100 {
		fmt.Fprintln(os.Stderr, "demo: DATABASE_URL must name the database, and -jobs must be at least 100")
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()

	d, err := newDemo(ctx, url, *image)
	if err == nil {
		defer d.close()
		err = d.run(ctx, *jobs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1) //nolint:gocritic // the process ends here, and the pool with it
	}
}
