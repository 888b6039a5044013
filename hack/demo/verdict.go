package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	jobqueuev1alpha1 "github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/test/invariants"
)

// budget returns the connections that the operator allows itself and all workers.
func (d *demo) budget(ctx context.Context) (int64, error) {
	qdb := &jobqueuev1alpha1.QueueDatabase{}
	if err := d.kube.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "app"}, qdb); err != nil {
		return 0, fmt.Errorf("reading QueueDatabase app: %w", err)
	}
	if qdb.Status.Connections == nil {
		return 0, nil
	}
	return int64(qdb.Status.Connections.Budget), nil
}

// verdict counts everything in SQL, prints it, and returns an error if anything is wrong.
func (d *demo) verdict(ctx context.Context, mix mix, drained time.Duration, refused int) error {
	report, err := invariants.Count(ctx, d.pool, d.queue.Schema(), queueName, int64(len(mix.jobs)))
	if err != nil {
		return err
	}
	budget, err := d.budget(ctx)
	if err != nil {
		return err
	}
	step("What became of every job, counted in SQL")
	ok := true
	line := func(name string, got, want any, good bool) {
		verdict := "ok"
		if !good {
			verdict, ok = "WRONG", false
		}
		fmt.Printf("  %-34s %10v   %-22v %s\n", name, got, want, verdict)
	}
	exactly := func(name string, got, want int64) { line(name, got, fmt.Sprintf("= %d", want), got == want) }
	exactly("enqueued", report.Expected, int64(len(mix.jobs)))
	exactly("succeeded", report.Succeeded, mix.succeeds)
	exactly("dead letters", report.Dead, mix.dies)
	exactly("still alive", report.Alive, 0)
	exactly("lost", report.Lost, 0)
	exactly("finished twice", report.EndedTwice, 0)
	exactly("alive and ended", report.AliveAndEnded, 0)
	exactly("stale writes refused", int64(refused), 2)
	peak := d.peak.Load()
	line("peak connections", peak, fmt.Sprintf("1 to %d (budget)", budget), peak > 0 && peak <= budget)
	// A dead worker is noticed when its lease ends; the sample's lease is 10 seconds.
	line("recovery after the kill", d.recovery.Round(100*time.Millisecond), "<= 15s (lease 10s)", d.recovery > 0 && d.recovery <= 15*time.Second)
	fmt.Printf("  %-34s %10v\n", "drained in", drained.Round(time.Second))
	if !ok {
		return errors.New("the demonstration FAILED: see the lines marked WRONG")
	}
	down := "make demo-down"
	if name := os.Getenv("JOBQUEUE_CLUSTER"); name != "" {
		down = "JOBQUEUE_CLUSTER=" + name + " " + down
	}
	fmt.Printf("\nEverything holds. `%s` removes the cluster.\n", down)
	return nil
}
