package scaling

import (
	"fmt"
	"time"
)

// Names of the limits, as they appear in a JobQueue's status.
const (
	LimitManualReplicas   = "ManualReplicas"
	LimitSampleStale      = "SampleStale"
	LimitSuspended        = "Suspended"
	LimitToZero           = "JobsDueSoon"
	LimitHysteresis       = "Hysteresis"
	LimitStartingPods     = "StartingPodsCount"
	LimitFailuresDominate = "FailuresDominate"
	LimitScaleUpStep      = "ScaleUpStep"
	LimitStabilization    = "ScaleDownStabilization"
	LimitMinReplicas      = "MinReplicas"
	LimitMaxReplicas      = "MaxReplicas"
	LimitBudget           = "ConnectionBudget"
)

const (
	// slack is the part of the slots that stays free when pods are taken away, so
	// that a load near a pod's edge does not make it come and go.
	slack = 1.1
	// firstStep is how many pods may start before any has become ready, and with
	// an unmeasured service time firstStepBlind.
	firstStep, firstStepBlind = 4, 1
	// enoughToJudge is how many ended runs it takes to say that failures dominate.
	enoughToJudge = 20
)

// limit looks at a decision in the making and returns its own name, the number of
// replicas it lets through, and why. Returning p.replicas means it has no objection.
type limit func(p *planning) (name string, replicas int32, message string)

// manualReplicas: the user named a number; the queue is not followed.
func manualReplicas(p *planning) (string, int32, string) {
	n := max(0, *p.in.Policy.Manual)
	message := fmt.Sprintf("spec.replicas is %d", n)
	p.explain(LimitManualReplicas, message)
	return LimitManualReplicas, n, message
}

// suspended: nothing is claimed, so nothing new is needed. While jobs still run
// the pods stay, because a Deployment cannot be told which pod to keep; when none
// runs any more, they go as slowly as they always do, down to the minimum.
func suspended(p *planning) (string, int32, string) {
	switch {
	case !p.in.Policy.Suspended:
		return LimitSuspended, p.replicas, ""
	case p.in.Queue.Running > 0:
		return LimitSuspended, p.in.Fleet.Replicas, fmt.Sprintf("suspended: nothing is claimed, %d jobs still run", p.in.Queue.Running)
	}
	p.need.slots = 0
	return LimitSuspended, 0, "suspended: nothing is claimed and nothing runs"
}

// toZero: the last pod stays while a job is to become ready within the time it
// would take to bring it back.
func toZero(p *planning) (string, int32, string) {
	if p.replicas > 0 || p.in.Fleet.Replicas == 0 || p.in.Queue.DueSoon == 0 || p.in.Policy.Suspended {
		return LimitToZero, p.replicas, ""
	}
	return LimitToZero, 1, fmt.Sprintf("%d jobs become ready soon", p.in.Queue.DueSoon)
}

// hysteresis: pods go only when the rest has slots to spare.
func hysteresis(p *planning) (string, int32, string) {
	if p.replicas >= p.in.Fleet.Replicas {
		return LimitHysteresis, p.replicas, ""
	}
	roomy := min(p.in.Fleet.Replicas, p.need.replicas(p.in.Policy.Slots, slack))
	return LimitHysteresis, max(p.replicas, roomy), fmt.Sprintf("%d pods would leave fewer than %.0f %% of the slots free",
		p.replicas, (slack-1)*100)
}

// startingPodsCount: pods that start are capacity. A backlog that ages while they
// do is not a reason for more of them; more jobs are.
func startingPodsCount(p *planning) (string, int32, string) {
	starting := p.in.Fleet.starting()
	if starting == 0 || p.replicas <= p.in.Fleet.Replicas {
		return LimitStartingPods, p.replicas, ""
	}
	fresh := needOf(p.in, timeAtStart(p.in.Policy)).replicas(p.in.Policy.Slots, 1)
	return LimitStartingPods, min(p.replicas, max(p.in.Fleet.Replicas, fresh)),
		fmt.Sprintf("%d pods are starting", starting)
}

// failuresDominate: when most runs fail, more workers mean more failures, and
// more load on whatever the handlers fail at.
func failuresDominate(p *planning) (string, int32, string) {
	r := p.in.Rates
	if r.Ended < enoughToJudge || r.Failed*2 <= r.Ended {
		return LimitFailuresDominate, p.replicas, ""
	}
	return LimitFailuresDominate, min(p.replicas, max(1, p.in.Fleet.Replicas)),
		fmt.Sprintf("%d of the latest %d runs failed: no pods are added", r.Failed, r.Ended)
}

// scaleUpStep: pods that have become ready are the evidence that more of them will
// help. Up to twice their number may be added at a time, and a few to begin with.
// With a service time that is only assumed, a single one to begin with.
func scaleUpStep(p *planning) (string, int32, string) {
	first, why := int32(firstStep), ""
	if p.in.Rates.Service <= 0 {
		first, why = firstStepBlind, ", as long as no run has ended"
	}
	ready := max(0, min(p.in.Fleet.Ready, p.in.Fleet.Replicas))
	top := max(p.in.Fleet.Replicas, first+2*min(ready, 1<<28))
	return LimitScaleUpStep, min(p.replicas, top),
		fmt.Sprintf("%d pods are ready: at most %d until more are%s", ready, top, why)
}

// recommend notes the number that stabilization is to remember.
func recommend(p *planning) (string, int32, string) {
	p.decision.Recommended = p.replicas
	if p.in.Queue == nil || p.in.Policy.Manual != nil {
		p.decision.Recommended = p.in.Fleet.Replicas
	}
	return "", p.replicas, ""
}

// scaleDownStabilization: replicas fall only to the most that any decision within
// the window asked for.
func scaleDownStabilization(p *planning) (string, int32, string) {
	if p.replicas >= p.in.Fleet.Replicas {
		return LimitStabilization, p.replicas, ""
	}
	most, at := p.replicas, p.in.Now
	for _, r := range p.in.Past {
		if p.in.Now.Sub(r.At) <= p.in.Policy.Stabilization && r.Replicas > most {
			most, at = r.Replicas, r.At
		}
	}
	most = min(most, p.in.Fleet.Replicas)
	wait := (p.in.Policy.Stabilization - p.in.Now.Sub(at)).Round(time.Second)
	return LimitStabilization, max(p.replicas, most),
		fmt.Sprintf("%d were needed within the past %s; lower in %s at the earliest", most, p.in.Policy.Stabilization, wait)
}

// minReplicas: never fewer than the user's minimum.
func minReplicas(p *planning) (string, int32, string) {
	return LimitMinReplicas, max(p.replicas, p.in.Policy.MinReplicas, 0),
		fmt.Sprintf("scaling.minReplicas is %d", p.in.Policy.MinReplicas)
}

// maxReplicas: never more than the user's maximum, not even to hold.
func maxReplicas(p *planning) (string, int32, string) {
	return LimitMaxReplicas, min(p.replicas, max(0, p.in.Policy.MaxReplicas)),
		fmt.Sprintf("scaling.maxReplicas is %d", p.in.Policy.MaxReplicas)
}

// demand notes the number that the connection budget is asked for.
func demand(p *planning) (string, int32, string) {
	p.decision.Demand = p.replicas
	return "", p.replicas, ""
}

// connectionBudget comes last: nothing exceeds it.
func connectionBudget(p *planning) (string, int32, string) {
	if p.in.Budget == nil {
		return LimitBudget, p.replicas, ""
	}
	return LimitBudget, min(p.replicas, max(0, p.in.Budget.Replicas)), p.in.Budget.Message
}
