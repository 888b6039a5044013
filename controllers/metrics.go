package controllers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

var queueLabels = []string{"namespace", "jobqueue"}
var databaseLabels = []string{"namespace", "queuedatabase"}

func gauge(name, help string, labels []string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "jobqueue", Subsystem: "operator", Name: name, Help: help}, labels)
}

// Metrics of the leader. Gauges of a queue are those of its latest sample.
var (
	metricOldest    = gauge("oldest_pending_age_seconds", "Age of the oldest ready job.", queueLabels)
	metricTarget    = gauge("target_age_seconds", "The age that the oldest ready job is to stay below.", queueLabels)
	metricPending   = gauge("pending_jobs", "Ready jobs, counted up to a bound.", queueLabels)
	metricScheduled = gauge("scheduled_jobs", "Jobs that wait for their time, counted up to a bound.", queueLabels)
	metricRunning   = gauge("running_jobs", "Jobs that run.", queueLabels)
	metricDead      = gauge("dead_jobs", "Dead letters, counted up to a bound.", queueLabels)
	metricUnhandled = gauge("unhandled_jobs", "Jobs among the first hundred whose kind no worker handles.", queueLabels)
	metricNeeded    = gauge("needed_replicas", "Replicas that the queue needs, before any limit.", queueLabels)
	metricDesired   = gauge("desired_replicas", "Replicas decided on.", queueLabels)
	metricReady     = gauge("ready_replicas", "Worker pods that are ready to claim.", queueLabels)
	metricDecisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "jobqueue", Subsystem: "operator", Name: "scaling_decisions_total",
		Help: "Changes of the number of replicas, by the reason that decided.",
	}, append([]string{"reason", "direction"}, queueLabels...))

	metricBudget    = gauge("connection_budget", "The most connections that workers, reapers and the operator may hold.", databaseLabels)
	metricAllocated = gauge("connections_allocated", "Connections promised to workers, the reaper and the operator.", databaseLabels)
	metricInUse     = gauge("connections_in_use", "Connections that workers, reapers and the operator hold.", databaseLabels)
	metricOthers    = gauge("connections_of_others", "Connections that other clients hold.", databaseLabels)
	metricMax       = gauge("connections_max", "The server's max_connections.", databaseLabels)
	metricReachable = gauge("database_reachable", "1 when the latest sample was read, else 0.", databaseLabels)
	metricHorizon   = gauge("horizon_age_seconds", "Time for which the oldest snapshot or transaction has kept dead rows from being removed; 0 when there is none.", databaseLabels)
	metricHorizonTx = gauge("horizon_age_transactions", "Transactions since the oldest one that a snapshot still needs; 0 when there is none.", databaseLabels)
	metricHolder    = gauge("horizon_holder_info", "1 for what has held the horizon for too long. There is no series when nothing has.",
		append([]string{"kind", "name", "pid", "application", "user"}, databaseLabels...))
	metricSamples = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "jobqueue", Subsystem: "operator", Name: "sample_duration_seconds",
		Help: "Time to sample a database.", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10),
	}, databaseLabels)
	metricErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "jobqueue", Subsystem: "operator", Name: "sample_errors_total", Help: "Failed samples, by reason.",
	}, append([]string{"reason"}, databaseLabels...))

	queueGauges    = []*prometheus.GaugeVec{metricOldest, metricTarget, metricPending, metricScheduled, metricRunning, metricDead, metricUnhandled, metricNeeded, metricDesired, metricReady}
	databaseGauges = []*prometheus.GaugeVec{metricBudget, metricAllocated, metricInUse, metricOthers, metricMax, metricReachable, metricHorizon, metricHorizonTx, metricHolder}
)

func init() {
	for _, g := range queueGauges {
		ctrlmetrics.Registry.MustRegister(g)
	}
	for _, g := range databaseGauges {
		ctrlmetrics.Registry.MustRegister(g)
	}
	ctrlmetrics.Registry.MustRegister(metricDecisions, metricSamples, metricErrors)
}

func queueMetrics(o *observation, out outcome, s v1alpha1.JobQueueStatus) {
	at := []string{o.queue.Namespace, o.queue.Name}
	set := func(g *prometheus.GaugeVec, v float64) { g.WithLabelValues(at...).Set(v) }
	set(metricTarget, float64(positive(o.queue.Spec.Scaling.TargetAgeSeconds, defaultTargetAge)))
	set(metricReady, float64(s.ReadyReplicas))
	if q := s.Sample; q != nil && o.fresh {
		set(metricOldest, float64(q.OldestAgeSeconds))
		set(metricPending, float64(q.Pending))
		set(metricScheduled, float64(q.Scheduled))
		set(metricRunning, float64(q.Running))
		set(metricDead, float64(q.Dead))
		set(metricUnhandled, float64(o.state.Sample.Queues[queueName(o.queue)].Unhandled))
	}
	if o.obstacle == nil {
		set(metricNeeded, float64(out.plan.decision.Needed))
		set(metricDesired, float64(out.plan.decision.Replicas))
	}
	if out.changed {
		direction := "up"
		if out.plan.decision.Replicas < out.from {
			direction = "down"
		}
		metricDecisions.WithLabelValues(out.plan.decision.Reason, direction, o.queue.Namespace, o.queue.Name).Inc()
	}
}

func forgetQueueMetrics(key types.NamespacedName) {
	for _, g := range queueGauges {
		g.DeleteLabelValues(key.Namespace, key.Name)
	}
	metricDecisions.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "jobqueue": key.Name})
}

func databaseMetrics(db *v1alpha1.QueueDatabase, f databaseFindings, s v1alpha1.QueueDatabaseStatus) {
	at := []string{db.Namespace, db.Name}
	set := func(g *prometheus.GaugeVec, v float64) { g.WithLabelValues(at...).Set(v) }
	set(metricReachable, 0)
	if f.problem() == nil {
		set(metricReachable, 1)
	}
	if c := s.Connections; c != nil {
		set(metricBudget, float64(c.Budget))
		set(metricAllocated, float64(c.Allocated))
		set(metricInUse, float64(c.InUse))
		set(metricOthers, float64(c.Others))
		set(metricMax, float64(c.Max))
	}
}

// sampleMetrics counts what samplers do.
type sampleMetrics struct{}

// Sampled notes one try.
func (sampleMetrics) Sampled(key sampler.Key, took time.Duration, problem *sampler.Problem) {
	metricSamples.WithLabelValues(key.Namespace, key.Name).Observe(took.Seconds())
	if problem != nil {
		metricErrors.WithLabelValues(problem.Reason, key.Namespace, key.Name).Inc()
	}
}

// Forgotten removes a database's metrics.
func (sampleMetrics) Forgotten(key sampler.Key) { forgetDatabaseMetrics(key) }

func forgetDatabaseMetrics(key types.NamespacedName) {
	match := prometheus.Labels{"namespace": key.Namespace, "queuedatabase": key.Name}
	for _, g := range databaseGauges {
		g.DeletePartialMatch(match)
	}
	metricSamples.DeletePartialMatch(match)
	metricErrors.DeletePartialMatch(match)
}
