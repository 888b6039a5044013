package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Worker runs handlers for the jobs of one queue. Make it with [New], give it
// handlers with [Handle], and call [Worker.Run] once.
type Worker struct {
	pool     *pgxpool.Pool
	cfg      Config
	client   *queue.Client
	log      *slog.Logger
	registry *prometheus.Registry
	metrics  *metrics
	health   *health

	mu       sync.Mutex
	handlers map[string]*registration
	faults   []error // registrations that make Run fail
	started  bool
}

// registration is a handler with its kind's metrics.
type registration struct {
	run       handler
	execution prometheus.Observer
	queueWait prometheus.Observer
	sharing   sharing
}

// Option changes what [New] makes.
type Option func(*Worker)

// WithLogger sets the logger. Default: JSON on standard error, from level info.
func WithLogger(log *slog.Logger) Option { return func(w *Worker) { w.log = log } }

// New makes a worker of cfg.Queue on pool. The pool stays the caller's: it must
// outlive Run, and have at least two connections, for the worker keeps one for its
// heartbeats and to listen. Workers that share a pool need two each. cfg.DatabaseURL, PoolSize and HTTPAddr are not used.
func New(pool *pgxpool.Pool, cfg Config, opts ...Option) (*Worker, error) {
	if pool == nil {
		return nil, errors.New("worker: New needs a pool")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := queue.New(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w := &Worker{
		pool: pool, cfg: cfg, client: client, handlers: map[string]*registration{},
		log:      slog.New(slog.NewJSONHandler(os.Stderr, nil)),
		registry: prometheus.NewRegistry(),
		health:   newHealth(),
	}
	for _, opt := range opts {
		opt(w)
	}
	w.log = w.log.With("queue", cfg.Queue)
	w.metrics = newMetrics(w.registry, cfg.Queue)
	w.registry.MustRegister(processCollectors()...)
	return w, nil
}

// Registry holds the worker's metrics, for programs that serve them themselves or
// add their own.
func (w *Worker) Registry() *prometheus.Registry { return w.registry }

// Client is the queue's client in the worker's schema, for handlers that enqueue.
func (w *Worker) Client() *queue.Client { return w.client }

// Pool is the pool that the worker was made with. It is sized for the worker's own
// loops, of which claims and results wait while handlers have its connections: a handler
// that holds one for long needs a pool of its own.
func (w *Worker) Pool() *pgxpool.Pool { return w.pool }

// Config is the configuration in force, defaults filled in.
func (w *Worker) Config() Config { return w.cfg }

func (w *Worker) register(kind string, run handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fault := ""
	switch {
	case w.started:
		fault = "registered after the start"
	case kind == "":
		fault = "the kind is empty"
	case !utf8.ValidString(kind):
		fault = "a kind is text in UTF-8: no job can have this one"
	case utf8.RuneCountInString(kind) > 128 || strings.ContainsFunc(kind, unicode.IsControl):
		fault = "a kind is 1 to 128 characters, none of them a control character: no job can have this one"
	case run == nil:
		fault = "the handler is nil"
	case w.handlers[kind] != nil:
		fault = "registered twice"
	}
	if fault != "" {
		w.faults = append(w.faults, fmt.Errorf("worker: handler of kind %q: %s", kind, fault))
		return
	}
	w.handlers[kind] = &registration{
		run:       run,
		execution: w.metrics.executionBy.WithLabelValues(kind),
		queueWait: w.metrics.queueWaitBy.WithLabelValues(kind),
	}
}

// start checks the registrations and closes them.
func (w *Worker) start() (kinds []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return nil, errors.New("worker: Run was called before; a Worker runs once")
	}
	w.started = true
	if err := errors.Join(w.faults...); err != nil {
		return nil, err
	}
	if len(w.handlers) == 0 {
		return nil, errors.New("worker: no handler is registered")
	}
	for kind := range w.handlers {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds, nil
}

// Run claims and runs jobs until ctx is cancelled, and then drains: it claims no
// more, gives back at once what no handler has seen, lets handlers finish within
// the grace period less a margin, then cancels their contexts with [ErrShutdown]
// and gives their jobs back without counting the attempt, writes all results, and
// removes the worker from the database.
//
// An outage of the database does not end it; it waits, and goes on. It returns nil
// after a clean drain, whatever started it; [ErrStuckHandler] when a handler had to
// be written off; [ErrUnwritten] when results could not be written in time.
func (w *Worker) Run(ctx context.Context) error {
	kinds, err := w.start()
	if err != nil {
		return err
	}
	return newEngine(w, kinds).run(ctx)
}
