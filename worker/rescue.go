package worker

import (
	"context"
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Bounds of the time between two looks for expired runs. A dead worker's jobs run
// again after its lease and at most about this long; with many workers, the first
// to look finds them.
const (
	minRescue   = 500 * time.Millisecond
	maxRescue   = 5 * time.Second
	rescueBatch = 500
	rescueLoops = 20
)

// rescueLoop returns the runs of dead workers to the queue until ctx is done, so
// that recovery does not wait for the reaper: those of the kinds that this worker knows,
// and so can judge as well as it can run.
func (e *engine) rescueLoop(ctx context.Context) {
	for {
		every := min(max(e.policy.Load().Lease/6, minRescue), maxRescue)
		sleep(ctx, jitter(every, 0.25))
		if ctx.Err() != nil {
			return
		}
		e.rescue(ctx)
	}
}

func (e *engine) rescue(ctx context.Context) {
	var returned, buried, workers int64
	for range rescueLoops {
		call, cancel := context.WithTimeout(ctx, reapTimeout)
		r, err := with(call, e.conns, func(db queue.DB) (queue.ReapResult, error) {
			return e.client.Reap(call, db, queue.ReapRequest{Queue: e.cfg.Queue, Kinds: e.kinds, Limit: rescueBatch})
		})
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				e.log.Debug("no look for expired runs", "error", err)
			}
			break
		}
		returned, buried, workers = returned+r.Returned, buried+r.Buried, workers+r.WorkersRemoved
		if r.Returned+r.Promoted > 0 {
			e.wake()
		}
		if !r.More {
			break
		}
	}
	e.metrics.rescued.WithLabelValues("queue").Add(float64(returned))
	e.metrics.rescued.WithLabelValues("dead").Add(float64(buried))
	if returned+buried > 0 {
		e.log.Warn("expired runs taken back", "returned", returned, "buried", buried, "dead_workers", workers)
	}
}
