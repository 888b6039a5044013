package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Time limits of single statements. They bound how long a loop can hang on a
// database that accepts and does not answer.
const (
	claimTimeout     = 10 * time.Second
	heartbeatTimeout = 5 * time.Second
	reapTimeout      = 15 * time.Second
)

// engine is one Run of a Worker: its loops and what they share.
type engine struct {
	cfg      Config
	pool     *pgxpool.Pool
	conns    *conns
	client   *queue.Client
	log      *slog.Logger
	metrics  *metrics
	health   *health
	handlers map[string]*registration
	kinds    []string

	policy     atomic.Pointer[queue.Policy]
	identities *identities
	backlog    *backlog
	pace       *pace
	claimable  bound // the size of claims
	completer  *completer
	current    []atomic.Pointer[held] // the run in each slot
	begun      atomic.Int64           // handlers started so far
	deciding   atomic.Int64           // handlers back whose results are not handed over yet

	woken    chan struct{} // one token: there may be new jobs
	beatNow  chan struct{} // one token: an identity was retired
	tidyNow  chan struct{} // one token: heartbeats have been sent
	stuck    chan struct{} // closed when a handler was written off
	recycle  chan struct{} // closed when the worker has run its number of jobs
	stuckOne sync.Once
	oldOne   sync.Once

	handlerBase context.Context // parent of all handlers' contexts
	slots       sync.WaitGroup
}

func newEngine(w *Worker, kinds []string) *engine {
	e := &engine{
		cfg: w.cfg, pool: w.pool, conns: newConns(w.pool), client: w.client, log: w.log, metrics: w.metrics, health: w.health,
		handlers: w.handlers, kinds: kinds,
		identities: newIdentities(), backlog: newBacklog(), pace: &pace{}, claimable: bound{timeout: claimTimeout, ceiling: maxClaim},
		current: make([]atomic.Pointer[held], w.cfg.Slots),
		woken:   make(chan struct{}, 1), beatNow: make(chan struct{}, 1), tidyNow: make(chan struct{}, 1),
		stuck: make(chan struct{}), recycle: make(chan struct{}),
	}
	policy := queue.DefaultPolicy()
	e.policy.Store(&policy)
	e.completer = newCompleter(clientSettler{w.client, e.conns}, w.log, w.metrics,
		e.backlog.nudge, func() { w.health.turn("completion") })
	w.metrics.watch(w.registry, w.cfg.Queue, gauges{
		slots:   func() int { return w.cfg.Slots },
		waiting: e.backlog.len, unwritten: e.completer.unwritten, pool: w.pool,
	})
	return e
}

// run is the worker's life from start to end.
func (e *engine) run(ctx context.Context) error {
	values := context.WithoutCancel(ctx)
	base, cancelHandlers := context.WithCancel(values)
	defer cancelHandlers()
	e.handlerBase = base

	// Claiming ends at the first request to stop; what keeps and ends the jobs that
	// are held goes on until they are written.
	claiming, stopClaiming := context.WithCancel(ctx)
	defer stopClaiming()
	keeping, stopKeeping := context.WithCancel(values)
	defer stopKeeping()

	var claimers, keepers sync.WaitGroup
	keepers.Go(func() {
		defer e.health.ended("completion")
		e.completer.run(keeping)
	})
	keepers.Go(func() { e.keepLoop(keeping) })
	keepers.Go(func() { e.heartbeatLoop(keeping) })
	keepers.Go(func() { e.tidyLoop(keeping) })
	keepers.Go(func() { e.watch(keeping) })
	for i := range e.current {
		e.slots.Go(func() { e.slot(i) })
	}
	claimers.Go(func() { e.claimLoop(claiming) })
	claimers.Go(func() { e.rescueLoop(claiming) })
	e.log.Info("worker started", "slots", e.cfg.Slots, "kinds", e.kinds, "pod", e.pod(), "listens", e.listens())

	reason, cause := e.untilStop(ctx)
	begun := time.Now()
	e.log.Info("worker stops", "reason", reason, "grace", e.cfg.Grace.String())
	e.health.stop()
	stopClaiming()
	err := e.drain(values, &claimers, begun.Add(e.cfg.Grace))
	stopKeeping()
	keepers.Wait()
	e.log.Info("worker stopped", "seconds", time.Since(begun).Seconds(), "jobs_begun", e.begun.Load(), "clean", err == nil && cause == nil)
	return errors.Join(cause, err)
}

// untilStop waits for a reason to stop; cause is not nil when it is an error.
func (e *engine) untilStop(ctx context.Context) (reason string, cause error) {
	var old <-chan time.Time
	if e.cfg.RecycleAge > 0 {
		timer := time.NewTimer(jitter(e.cfg.RecycleAge, 0.1))
		defer timer.Stop()
		old = timer.C
	}
	select {
	case <-ctx.Done():
		return "asked to stop", nil
	case <-e.stuck:
		return "a handler is stuck", ErrStuckHandler
	case <-e.recycle:
		return "recycled after its number of jobs", nil
	case <-old:
		return "recycled at its age", nil
	}
}

func (e *engine) pod() string {
	if e.cfg.PodNamespace == "" || e.cfg.PodName == "" {
		return e.cfg.PodName
	}
	return e.cfg.PodNamespace + "/" + e.cfg.PodName
}

// contact notes the outcome of a statement for the readiness probe and logs when
// the database goes away and comes back.
func (e *engine) contact(what string, err error) {
	now := time.Now()
	lost, since, warn := e.health.contacted(err, now)
	lasted := now.Sub(since).Round(time.Second).String()
	switch {
	case warn:
		e.log.Warn("the queue cannot be worked on, trying again", "at", what, "error", err, "for", lasted)
	case err == nil && lost:
		e.log.Info("the queue can be worked on again", "after", lasted)
	}
}

// adopt puts a policy into force.
func (e *engine) adopt(p queue.Policy) {
	old := e.policy.Swap(&p)
	if old.Generation != p.Generation || old.Suspended != p.Suspended {
		e.log.Info("policy in force", "generation", p.Generation, "suspended", p.Suspended,
			"lease", p.Lease.String(), "heartbeat", p.Heartbeat.String(), "timeout", p.Timeout.String(), "batch", p.BatchSize)
		e.wake()
	}
}

// wake tells the claim loop that there may be jobs.
func (e *engine) wake() { leave(e.woken) }

// leave puts a token there, unless there is one.
func leave(tokens chan<- struct{}) {
	select {
	case tokens <- struct{}{}:
	default:
	}
}

// clientSettler binds the queue's client to the connections.
type clientSettler struct {
	client *queue.Client
	conns  *conns
}

func (s clientSettler) Succeed(ctx context.Context, worker uuid.UUID, refs []queue.Ref, took []time.Duration) (accepted, locked []int64, err error) {
	err = s.conns.do(ctx, func(db queue.DB) error {
		accepted, locked, err = s.client.TrySucceed(ctx, db, worker, refs, took)
		return err
	})
	return accepted, locked, err
}

func (s clientSettler) Fail(ctx context.Context, worker uuid.UUID, failures []queue.Failure) ([]queue.FailOutcome, error) {
	return with(ctx, s.conns, func(db queue.DB) ([]queue.FailOutcome, error) { return s.client.Fail(ctx, db, worker, failures) })
}

func (s clientSettler) Snooze(ctx context.Context, worker uuid.UUID, snoozes []queue.Snooze) ([]int64, error) {
	return with(ctx, s.conns, func(db queue.DB) ([]int64, error) { return s.client.Snooze(ctx, db, worker, snoozes) })
}

func (s clientSettler) Discard(ctx context.Context, worker uuid.UUID, discards []queue.Discard) ([]int64, error) {
	return with(ctx, s.conns, func(db queue.DB) ([]int64, error) { return s.client.Discard(ctx, db, worker, discards) })
}

func (s clientSettler) Release(ctx context.Context, worker uuid.UUID, refs []queue.Ref) ([]int64, error) {
	return with(ctx, s.conns, func(db queue.DB) ([]int64, error) { return s.client.Release(ctx, db, worker, refs) })
}
