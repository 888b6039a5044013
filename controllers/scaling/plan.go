package scaling

// Decision is a number of replicas with its reasons.
type Decision struct {
	// Replicas is the number to apply.
	Replicas int32
	// Needed is what the queue needs before any limit.
	Needed int32
	// Recommended is what stabilization remembers of this decision.
	Recommended int32
	// Demand is what the connection budget is asked for: the number after every
	// limit but the budget.
	Demand int32
	// Reason is the name of the last limit that changed the number, or else what
	// the need follows from; Message is the same as a sentence.
	Reason, Message string
	// Limits are those that changed the number, in the order they were applied.
	Limits []Limit
}

// Limit is one limit that changed a decision.
type Limit struct {
	Name     string
	From, To int32
	Message  string
}

// Plan decides. It is deterministic, and holds whatever numbers come in: the
// result is never negative, never above MaxReplicas unless the number is manual
// or held for want of a sample, and never above the budget.
func Plan(in Input) Decision {
	p := &planning{in: in}
	p.begin()
	for _, l := range p.chain() {
		p.apply(l)
	}
	p.decision.Replicas = p.replicas
	return p.decision
}

// planning is a decision being made.
type planning struct {
	in       Input
	need     need
	replicas int32
	decision Decision
}

// begin sets out from the need, or without a sample from what is in place.
func (p *planning) begin() {
	if p.in.Queue == nil {
		p.replicas = max(0, p.in.Fleet.Replicas)
		p.explain(LimitSampleStale, p.in.Stale)
		p.decision.Needed = p.replicas
		return
	}
	p.need = needOf(p.in, timeLeft(p.in.Policy, p.in.Queue.OldestAge))
	p.replicas = p.need.replicas(p.in.Policy.Slots, 1)
	p.decision.Needed = p.replicas
	p.explain(p.need.reason, p.need.message)
}

// chain is the limits that apply, in order. A manual number replaces all that
// follows the queue; without a sample nothing may raise the number.
func (p *planning) chain() []limit {
	switch {
	case p.in.Policy.Manual != nil:
		return []limit{manualReplicas, recommend, demand, connectionBudget}
	case p.in.Queue == nil:
		return []limit{recommend, maxReplicas, demand, connectionBudget}
	}
	return []limit{
		suspended,
		toZero,
		hysteresis,
		startingPodsCount,
		failuresDominate,
		scaleUpStep,
		recommend,
		minReplicas,
		scaleDownStabilization,
		maxReplicas,
		demand,
		connectionBudget,
	}
}

// apply runs one limit and writes down what it changed.
func (p *planning) apply(l limit) {
	name, to, message := l(p)
	if to == p.replicas {
		return
	}
	p.decision.Limits = append(p.decision.Limits, Limit{Name: name, From: p.replicas, To: to, Message: message})
	p.replicas = to
	p.explain(name, message)
}

func (p *planning) explain(reason, message string) {
	p.decision.Reason, p.decision.Message = reason, message
}
