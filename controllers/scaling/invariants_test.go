package scaling

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// randomInput draws inputs from the plausible and from the absurd.
func randomInput(r *rand.Rand) Input {
	extreme := []float64{0, 1, math.NaN(), math.Inf(1), math.Inf(-1), -5, 1e300}
	rate := func() float64 {
		if r.IntN(4) == 0 {
			return extreme[r.IntN(len(extreme))]
		}
		return r.Float64() * 100
	}
	count := func() int64 {
		switch r.IntN(5) {
		case 0:
			return 0
		case 1:
			return math.MaxInt64 - r.Int64N(10)
		}
		return r.Int64N(20000)
	}
	span := func() time.Duration { return time.Duration(r.Int64N(int64(2 * time.Hour))) }
	least := r.Int32N(20)
	in := Input{
		Now: t0,
		Policy: Policy{
			MinReplicas: least, MaxReplicas: least + r.Int32N(100), Slots: r.Int32N(30), TargetAge: span(),
			StartUp: span(), Stabilization: span(), Suspended: r.IntN(8) == 0,
		},
		Rates: Rates{Arrivals: rate(), FastArrivals: rate(), Service: span() * time.Duration(r.IntN(2)), ServiceAtLeast: span(), Ended: count(), Failed: count()},
		Fleet: Fleet{Replicas: r.Int32N(120), Ready: r.Int32N(120)},
	}
	if r.IntN(8) == 0 {
		in.Policy.Manual = ptr(r.Int32N(200))
	}
	if r.IntN(8) != 0 {
		in.Queue = &Queue{Pending: count(), PendingCapped: r.IntN(2) == 0, Running: count(), DueSoon: count(), OldestAge: span()}
	}
	for range r.IntN(4) {
		in.Past = append(in.Past, Recommendation{At: t0.Add(-span()), Replicas: r.Int32N(150)})
	}
	if r.IntN(2) == 0 {
		in.Budget = &Allowance{Replicas: r.Int32N(100)}
	}
	return in
}

func TestInvariants(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 50000 {
		in := randomInput(r)
		d := Plan(in)
		fail := func(what string) {
			t.Fatalf("case %d: %s\ninput: %+v\nqueue: %+v\ndecision: %+v", i, what, in, in.Queue, d)
		}
		if d.Replicas < 0 || d.Needed < 0 || d.Demand < 0 || d.Recommended < 0 {
			fail("a number is negative")
		}
		if in.Budget != nil && d.Replicas > in.Budget.Replicas {
			fail("above the budget")
		}
		if in.Policy.Manual == nil && d.Replicas > in.Policy.MaxReplicas {
			fail("above the maximum")
		}
		if in.Policy.Manual == nil && in.Queue == nil && d.Replicas > in.Fleet.Replicas {
			fail("without a sample, pods were added")
		}
		if in.Policy.Manual == nil && in.Queue != nil && d.Demand < in.Policy.MinReplicas {
			fail("below the minimum")
		}
		if q := in.Queue; q != nil && in.Policy.Manual == nil && !in.Policy.Suspended &&
			q.Pending > 0 && in.Policy.MaxReplicas > 0 && d.Demand == 0 {
			fail("a pending job asks for no pod")
		}
		if d.Reason == "" || len(d.Limits) > 12 {
			fail("not explained")
		}
		if again := Plan(in); !reflect.DeepEqual(again, d) {
			fail("not deterministic")
		}
	}
}

// More pending jobs, older jobs and more running ones never need fewer pods.
func TestNeedIsMonotone(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		in := randomInput(r)
		if in.Queue == nil {
			continue
		}
		before := Plan(in).Needed
		more := *in.Queue
		switch r.IntN(3) {
		case 0:
			more.Pending += min(1000, math.MaxInt64-more.Pending)
		case 1:
			more.Running += min(1000, math.MaxInt64-more.Running)
		case 2:
			more.OldestAge += time.Minute
		}
		in.Queue = &more
		if after := Plan(in).Needed; after < before {
			t.Fatalf("need fell from %d to %d\n%+v\n%+v", before, after, in, more)
		}
	}
}
