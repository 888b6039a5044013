package scaling

import (
	"fmt"
	"math"
	"time"
)

// Constants of the formula for need.
const (
	// AgeShare is the share of the target age within which a backlog is to be
	// worked off; the rest is slack for what the formula does not know.
	AgeShare = 0.7
	// Spread is the number of standard deviations of the load (a Poisson stream's
	// is the square root of its mean) that are kept free above it.
	Spread = 1.0
	// AssumedService is the service time of a queue in which no run has ended yet.
	AssumedService = time.Second
	// minDrainShare and minDrain bound from below the time in which a backlog is
	// to be worked off once it is late: a tenth of the target, and a second.
	minDrainShare = 0.1
	minDrain      = time.Second
	// maxSlots bounds the arithmetic, far above what any limit lets through.
	maxSlots = 1e8
)

// What a need can follow from: the reasons of decisions that no limit changed.
const (
	NeedIdle     = "Idle"
	NeedArrivals = "ArrivalRate"
	NeedBurst    = "ArrivalBurst"
	NeedBacklog  = "Backlog"
	NeedRunning  = "RunningJobs"
	NeedFirstJob = "FirstJob"
)

// need is how many slots the queue needs and the term that says so.
type need struct {
	slots   float64
	reason  string
	message string
}

// needOf evaluates
//
//	max(λS + β√(λS), fast-λ·S, λS + min(D, D·S/T), min(running, replicas·slots))
//
// in slots, where λ is the rate of arrivals, S the service time, D the ready
// jobs and T = f·target − age − start-up the time left to work them off, or its
// floor when that has passed. A backlog never needs more slots than it has jobs.
// Jobs that run are load whatever the rates say, but no more of them than there are
// slots: workers claim ahead, and what waits in their memory counts as running, so that
// every new pod would be the reason for the next ones.
func needOf(in Input, drain time.Duration) need {
	q := *in.Queue
	s := service(in.Rates).Seconds()
	load := finite(in.Rates.Arrivals * s)
	ready := math.Max(0, float64(q.Pending))
	steady := load
	if load > 0 {
		steady += Spread * math.Sqrt(load)
	}
	backlog := 0.0
	if ready > 0 {
		backlog = load + math.Min(ready, finite(ready*s/drain.Seconds()))
	}
	best := need{reason: NeedIdle, message: "nothing is pending or running"}
	best.raise(steady, NeedArrivals, "%.3g arrivals/s of %s each need %.3g slots", in.Rates.Arrivals, rounded(s), steady)
	best.raise(finite(in.Rates.FastArrivals*s), NeedBurst, "%.3g arrivals/s of late, of %s each", in.Rates.FastArrivals, rounded(s))
	best.raise(backlog, NeedBacklog, "%s pending jobs, the oldest for %s, to be worked off in %s at %s each",
		pending(q), q.OldestAge.Round(time.Second), drain.Round(100*time.Millisecond), rounded(s))
	best.raise(inSlots(in), NeedRunning, "%d jobs run or wait in workers' memory", q.Running)
	if q.Pending > 0 && best.slots <= 0 {
		best.raise(1, NeedFirstJob, "a job is pending")
	}
	best.slots = math.Min(best.slots, maxSlots)
	return best
}

// inSlots is how many of the claimed jobs can have a slot of the pods asked for.
func inSlots(in Input) float64 {
	slots := float64(max(0, in.Fleet.Replicas)) * float64(max(1, in.Policy.Slots))
	return math.Min(math.Max(0, float64(in.Queue.Running)), slots)
}

// raise takes a term that is higher than what was found so far.
func (n *need) raise(slots float64, reason, format string, args ...any) {
	if slots > n.slots {
		*n = need{slots: slots, reason: reason, message: fmt.Sprintf(format, args...)}
	}
}

// service is the service time to plan with: measured, or at least as long as the
// jobs that run have been at it, or assumed.
func service(r Rates) time.Duration {
	if r.Service > 0 {
		return max(r.Service, r.ServiceAtLeast)
	}
	return max(AssumedService, r.ServiceAtLeast)
}

// timeLeft is the time in which the backlog is to be worked off by workers that
// are yet to start.
func timeLeft(p Policy, age time.Duration) time.Duration {
	left := share(AgeShare, p.TargetAge) - max(0, age) - max(0, p.StartUp)
	return max(left, share(minDrainShare, p.TargetAge), minDrain)
}

// timeAtStart is the same for a backlog that is not late, by workers that run.
func timeAtStart(p Policy) time.Duration { return max(share(AgeShare, p.TargetAge), minDrain) }

func share(part float64, d time.Duration) time.Duration { return time.Duration(part * float64(d)) }

// replicas is the number of pods that have so many slots.
func (n need) replicas(slotsPerPod int32, margin float64) int32 {
	// The epsilon keeps 30.000000001/10 from becoming 4 pods.
	pods := math.Ceil(n.slots*margin/float64(max(1, slotsPerPod)) - 1e-9)
	return int32(math.Max(0, math.Min(pods, math.MaxInt32/4)))
}

// finite makes a number usable whatever came in: NaN and negatives count as
// nothing, infinity as the largest number of slots.
func finite(x float64) float64 {
	switch {
	case math.IsNaN(x) || x < 0:
		return 0
	case x > maxSlots:
		return maxSlots
	}
	return x
}

func pending(q Queue) string {
	if q.PendingCapped {
		return fmt.Sprintf("%d or more", q.Pending)
	}
	return fmt.Sprint(q.Pending)
}

func rounded(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
}
