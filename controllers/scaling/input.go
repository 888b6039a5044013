package scaling

import "time"

// Policy is what the user asked for, with defaults filled in.
type Policy struct {
	// MinReplicas and MaxReplicas bound the number of pods.
	MinReplicas, MaxReplicas int32
	// Manual, if not nil, is the number to use instead of following the queue.
	Manual *int32
	// Suspended queues claim nothing, so that pending jobs need no workers.
	Suspended bool
	// Slots is how many jobs one pod runs at once; below 1 counts as 1.
	Slots int32
	// TargetAge is how old the oldest ready job may become.
	TargetAge time.Duration
	// StartUp is how long a new pod takes until it claims.
	StartUp time.Duration
	// Stabilization is how far back a decision keeps replicas up.
	Stabilization time.Duration
}

// Queue is the state of the queue at the latest sample.
type Queue struct {
	// Pending counts ready jobs; with PendingCapped it is a lower bound.
	Pending       int64
	PendingCapped bool
	// Running counts claimed jobs, also those that wait in a worker's memory for a slot.
	Running int64
	// DueSoon counts jobs that become ready within about a start-up time.
	DueSoon int64
	// OldestAge is how long the oldest ready job has been ready; 0 when none is.
	OldestAge time.Duration
}

// Fleet is the worker pods as they are.
type Fleet struct {
	// Replicas is the number the Deployment asks for now.
	Replicas int32
	// Ready is how many pods can claim.
	Ready int32
}

// starting is how many of the pods asked for cannot claim yet.
func (f Fleet) starting() int32 { return max(0, f.Replicas-f.Ready) }

// Allowance is what the connection budget leaves for the queue.
type Allowance struct {
	// Replicas is the most that the queue may ask for now.
	Replicas int32
	// Message says in a sentence where the number comes from.
	Message string
}

// Input is everything that a decision follows from. It is never changed.
type Input struct {
	// Now is the time of the decision, on the clock of Past.
	Now    time.Time
	Policy Policy
	// Queue is nil when there is no fresh sample; Stale then says why.
	Queue *Queue
	Stale string
	Rates Rates
	Fleet Fleet
	// Past holds what was recommended before, see [Memory].
	Past []Recommendation
	// Budget is nil when no budget applies (yet): see [Decision.Demand].
	Budget *Allowance
}

// Recommendation is what one decision asked for before stabilization.
type Recommendation struct {
	At       time.Time
	Replicas int32
}
