package controllers

import (
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/scaling"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Defaults of the API, for objects that were stored without them.
const (
	defaultSlots         = 10
	defaultPerReplica    = 3
	defaultTimeout       = 60
	defaultMaxReplicas   = 10
	defaultTargetAge     = 30
	defaultStabilization = 60
	defaultBatch         = 2000
	defaultBudgetPercent = 80
	// graceMargin is how many seconds a pod has beyond its jobs' timeout.
	graceMargin = 30
)

// policyOf is what the database is told of a JobQueue.
func policyOf(q *v1alpha1.JobQueue) queue.Policy {
	s := q.Spec
	return queue.Policy{
		Lease:           seconds(positive(s.Lease.DurationSeconds, 30)),
		Heartbeat:       seconds(positive(s.Lease.HeartbeatSeconds, 10)),
		Timeout:         seconds(positive(s.TimeoutSeconds, defaultTimeout)),
		MaxAttempts:     int(positive(s.Retry.MaxAttempts, 5)),
		BackoffBase:     seconds(positive(s.Retry.BackoffSeconds, 5)),
		BackoffMax:      seconds(positive(s.Retry.BackoffMaxSeconds, 3600)),
		BackoffJitter:   int(orDefault(s.Retry.JitterPercent, 20)),
		BatchSize:       int(orDefault(s.Batch.Size, max(defaultBatch, slotsOf(q)))),
		MaxPayloadBytes: int(positive(s.MaxPayloadBytes, 256*1024)),
		RetainSucceeded: time.Duration(orDefault(s.Retention.FinishedSeconds, 86400)) * time.Second,
		RetainDead:      time.Duration(orDefault(s.Retention.DeadSeconds, 14*86400)) * time.Second,
		Suspended:       s.Suspend,
		Generation:      q.Generation,
		Owner:           ownerOf(q),
	}
}

// scalingPolicyOf is what the planner is told of a JobQueue.
func scalingPolicyOf(q *v1alpha1.JobQueue, startUp time.Duration) scaling.Policy {
	s := q.Spec.Scaling
	return scaling.Policy{
		MinReplicas:   orDefault(s.MinReplicas, 0),
		MaxReplicas:   positive(s.MaxReplicas, defaultMaxReplicas),
		Manual:        q.Spec.Replicas,
		Suspended:     q.Spec.Suspend,
		Slots:         slotsOf(q),
		TargetAge:     seconds(positive(s.TargetAgeSeconds, defaultTargetAge)),
		StartUp:       startUp,
		Stabilization: stabilizationOf(q),
	}
}

func stabilizationOf(q *v1alpha1.JobQueue) time.Duration {
	return seconds(orDefault(q.Spec.Scaling.ScaleDownStabilizationSeconds, defaultStabilization))
}

func slotsOf(q *v1alpha1.JobQueue) int32 { return positive(q.Spec.Worker.Slots, defaultSlots) }

func perReplicaOf(q *v1alpha1.JobQueue) int32 {
	return positive(q.Spec.Connections.PerReplica, defaultPerReplica)
}

// graceOf is the pods' terminationGracePeriodSeconds: long enough for a job that
// has just begun.
func graceOf(q *v1alpha1.JobQueue) int64 {
	return orDefault(q.Spec.Worker.Template.Spec.TerminationGracePeriodSeconds,
		int64(positive(q.Spec.TimeoutSeconds, defaultTimeout))+graceMargin)
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }
