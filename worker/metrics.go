package worker

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Outcomes of results, as they are counted and logged.
const (
	outcomeSucceeded = "succeeded"
	outcomeRetried   = "retried" // a failed attempt with others left
	outcomeDead      = "dead"    // a failed attempt that was the last
	outcomeSnoozed   = "snoozed"
	outcomeDiscarded = "discarded"
	outcomeReleased  = "released" // given back, the attempt not counted
	outcomeRefused   = "refused"  // stale: the lease was lost
	// outcomeUnconfirmed: refused when tried again after a write without an answer,
	// which may have been accepted.
	outcomeUnconfirmed = "unconfirmed"
)

var outcomes = []string{
	outcomeSucceeded, outcomeRetried, outcomeDead, outcomeSnoozed,
	outcomeDiscarded, outcomeReleased, outcomeRefused, outcomeUnconfirmed,
}

// metrics are a worker's Prometheus metrics; all carry the queue's name as a
// constant label.
type metrics struct {
	claims          *prometheus.CounterVec
	claimRows       prometheus.Histogram
	claimSeconds    prometheus.Histogram
	completions     map[string]prometheus.Counter
	writeRows       prometheus.Histogram
	writeSeconds    prometheus.Histogram
	writeErrors     prometheus.Counter
	executionBy     *prometheus.HistogramVec
	queueWaitBy     *prometheus.HistogramVec
	staleByDatabase prometheus.Counter
	staleByWorker   prometheus.Counter
	lostByHeartbeat prometheus.Counter
	lostByClock     prometheus.Counter
	heartbeats      *prometheus.CounterVec
	running         prometheus.Gauge
	panics          prometheus.Counter
	timeouts        prometheus.Counter
	stuck           prometheus.Counter
	rescued         *prometheus.CounterVec
	listening       prometheus.Gauge
}

// gauges are read when metrics are scraped.
type gauges struct {
	slots, waiting, unwritten func() int
	pool                      *pgxpool.Pool
}

func newMetrics(reg prometheus.Registerer, queueName string) *metrics {
	factory := factory{prometheus.WrapRegistererWith(prometheus.Labels{"queue": queueName}, reg)}
	m := &metrics{
		claims:       factory.counters("claims_total", "Claim statements, by what they brought: full, partial, empty, error.", "result"),
		claimRows:    factory.histogram("claim_rows", "Jobs brought by one claim.", rowBuckets),
		claimSeconds: factory.histogram("claim_duration_seconds", "Round trip of one claim.", statementBuckets),
		writeRows:    factory.histogram("completion_rows", "Results written by one statement.", rowBuckets),
		writeSeconds: factory.histogram("completion_duration_seconds", "Round trip of one statement that writes results.", statementBuckets),
		writeErrors:  factory.counter("completion_errors_total", "Statements that failed to write results, which are tried again."),
		executionBy:  factory.histograms("execution_seconds", "Time that handlers took.", workBuckets, "kind"),
		queueWaitBy:  factory.histograms("queue_wait_seconds", "Time between a job's becoming ready and its claim.", workBuckets, "kind"),
		heartbeats:   factory.counters("heartbeats_total", "Heartbeats, by result: ok, error.", "result"),
		running:      factory.gauge("running", "Handlers that run now."),
		panics:       factory.counter("panics_total", "Handlers that panicked."),
		timeouts:     factory.counter("timeouts_total", "Handlers whose timeout was over before they returned."),
		stuck:        factory.counter("stuck_handlers_total", "Handlers that ignored their context past the hard limit."),
		rescued:      factory.counters("rescued_jobs_total", "Jobs of dead or expired runs that this worker returned to the queue or buried.", "to"),
		listening:    factory.gauge("listening", "1 while a connection listens for new jobs; 0 means polling alone."),
	}
	stale := factory.counters("stale_results_total", "Results of runs whose lease was lost: refused by the database, or dropped by the worker that knew.", "by")
	m.staleByDatabase, m.staleByWorker = stale.WithLabelValues("database"), stale.WithLabelValues("worker")
	lost := factory.counters("leases_lost_total", "Jobs lost while they were held, by how the worker learnt of it.", "by")
	m.lostByHeartbeat, m.lostByClock = lost.WithLabelValues("heartbeat"), lost.WithLabelValues("clock")
	completions := factory.counters("completions_total", "Results answered by the database, by outcome.", "outcome")
	m.completions = map[string]prometheus.Counter{}
	for _, outcome := range outcomes {
		m.completions[outcome] = completions.WithLabelValues(outcome)
	}
	for _, result := range []string{"full", "partial", "empty", "error"} {
		m.claims.WithLabelValues(result)
	}
	for _, result := range []string{"ok", "error"} {
		m.heartbeats.WithLabelValues(result)
	}
	for _, to := range []string{"queue", "dead"} {
		m.rescued.WithLabelValues(to)
	}
	return m
}

// watch registers what is read at each scrape.
func (m *metrics) watch(reg prometheus.Registerer, queueName string, g gauges) {
	factory := factory{prometheus.WrapRegistererWith(prometheus.Labels{"queue": queueName}, reg)}
	factory.read("slots", "Handlers that may run at once.", nil, func() float64 { return float64(g.slots()) })
	factory.read("waiting", "Claimed jobs that wait in memory for a slot.", nil, func() float64 { return float64(g.waiting()) })
	factory.read("unwritten", "Results that the database has not answered for.", nil, func() float64 { return float64(g.unwritten()) })
	for state, read := range map[string]func(*pgxpool.Stat) int32{
		"acquired": (*pgxpool.Stat).AcquiredConns,
		"idle":     (*pgxpool.Stat).IdleConns,
		"max":      (*pgxpool.Stat).MaxConns,
	} {
		factory.read("pool_connections", "Connections of the pool, by state.", prometheus.Labels{"state": state},
			func() float64 { return float64(read(g.pool.Stat())) })
	}
	waits := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: namespace, Name: "pool_wait_seconds_total", Help: "Time spent on getting a connection of the pool, opening it included.",
	}, func() float64 { return g.pool.Stat().AcquireDuration().Seconds() })
	factory.MustRegister(waits)
}

func (m *metrics) claimed(asked, got int, d time.Duration, err error) {
	result := "full"
	switch {
	case err != nil:
		result = "error"
	case got == 0:
		result = "empty"
	case got < asked:
		result = "partial"
	}
	m.claims.WithLabelValues(result).Inc()
	if err == nil {
		m.claimRows.Observe(float64(got))
		m.claimSeconds.Observe(d.Seconds())
	}
}

func (m *metrics) wrote(rows int, d time.Duration, err error) {
	if err != nil {
		m.writeErrors.Inc()
		return
	}
	m.writeRows.Observe(float64(rows))
	m.writeSeconds.Observe(d.Seconds())
}

func (m *metrics) completed(outcome string) { m.completions[outcome].Inc() }

const namespace = "jobqueue_worker"

var (
	rowBuckets       = []float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}
	statementBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	workBuckets      = []float64{.001, .005, .01, .05, .1, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400}
)

// factory makes and registers metrics of this package's namespace.
type factory struct{ prometheus.Registerer }

func (f factory) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	f.MustRegister(c)
	return c
}

func (f factory) counters(name, help, label string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
	f.MustRegister(c)
	return c
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	f.MustRegister(g)
	return g
}

func (f factory) read(name, help string, labels prometheus.Labels, value func() float64) {
	f.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: name, Help: help, ConstLabels: labels,
	}, value))
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	f.MustRegister(h)
	return h
}

func (f factory) histograms(name, help string, buckets []float64, label string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, []string{label})
	f.MustRegister(h)
	return h
}

// processCollectors are the Go runtime's and the process's own metrics.
func processCollectors() []prometheus.Collector {
	return []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
}
