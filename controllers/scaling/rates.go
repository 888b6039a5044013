package scaling

import (
	"math"
	"time"
)

// Spans over which rates are measured.
const (
	// rateSpan is the span of the steady arrival rate.
	rateSpan = time.Minute
	// fastSamples and fastSpan bound the fast arrival rate from below: at least
	// two intervals and five seconds, so that two samples in quick succession (the
	// operator was woken) do not turn one bulk insert into a flood without end.
	fastSamples = 2
	fastSpan    = 5 * time.Second
	// minSpan is the shortest history that gives a rate at all.
	minSpan = fastSpan
	// keepSpan is how long points are kept, for queues where runs end rarely.
	keepSpan = 5 * time.Minute
	// enoughRuns is how many ended runs make a mean service time.
	enoughRuns = 20
	// thinning drops points that are closer together than this.
	thinning = time.Second
)

// Rates is how the queue has moved lately. The zero value means nothing is known.
type Rates struct {
	// Arrivals and FastArrivals are jobs that became ready per second, over about
	// a minute and over about the latest two samples.
	Arrivals, FastArrivals float64
	// Completions are runs that ended per second, over about a minute.
	Completions float64
	// Service is the mean length of a run; 0 when no run has ended yet.
	Service time.Duration
	// ServiceAtLeast is how long jobs have been running without any ending: a
	// lower bound for their service time.
	ServiceAtLeast time.Duration
	// Measured is true when there were points enough for the rates of arrivals and
	// completions, and ServiceRecent when Service is of runs that ended of late.
	Measured, ServiceRecent bool
	// Ended and Failed count the runs that ended within about a minute, and those
	// of them that failed or were lost.
	Ended, Failed int64
}

// Point is what one sample contributes to rates. The totals only grow; a smaller
// value than before means that counting started anew.
type Point struct {
	At                               time.Time
	Pending, Running                 int64
	PendingCapped                    bool
	Claimed, Succeeded, Failed       int64
	Lost, Discarded, ExecutionMillis int64
}

// ended counts runs whose length is part of ExecutionMillis.
func (p Point) ended() int64 { return p.Succeeded + p.Failed + p.Discarded }

// reset reports whether totals went backwards from p to next, or time did.
func (p Point) reset(next Point) bool {
	return next.Claimed < p.Claimed || next.ended() < p.ended() || next.Lost < p.Lost ||
		next.ExecutionMillis < p.ExecutionMillis || !next.At.After(p.At)
}

// arrivals counts jobs that became ready between p and next: those that are
// pending now and were not, and those that were claimed meanwhile. Where a count
// of pending jobs stopped at its cap, only the claims are known.
func (p Point) arrivals(next Point) float64 {
	claimed := float64(next.Claimed - p.Claimed)
	if p.PendingCapped || next.PendingCapped {
		return claimed
	}
	return claimed + float64(next.Pending-p.Pending)
}

// History collects the points of one queue. Its zero value is ready for use. It is not safe for concurrent use.
type History struct {
	points []Point
	busy   time.Time // since when jobs run and none has ended; zero when none run
}

// OrSeed puts rates known from before (an earlier operator process left them in
// the status) in the place of those that could not be measured yet.
func (r Rates) OrSeed(seed Rates) Rates {
	if !r.Measured {
		r.Arrivals, r.FastArrivals, r.Completions = seed.Arrivals, seed.FastArrivals, seed.Completions
	}
	if !r.ServiceRecent && seed.Service > 0 {
		r.Service = seed.Service
	}
	return r
}

// Add appends a point. A point that is not later than the last is ignored.
func (h *History) Add(p Point) {
	n := len(h.points)
	if n > 0 && !p.At.After(h.points[n-1].At) {
		return
	}
	h.trackBusy(p)
	if n > 1 && p.At.Sub(h.points[n-2].At) < thinning {
		h.points = h.points[:n-1]
	}
	h.points = append(h.points, p)
	for len(h.points) > 2 && p.At.Sub(h.points[1].At) >= keepSpan {
		h.points = h.points[1:]
	}
}

func (h *History) trackBusy(p Point) {
	n := len(h.points)
	ended := n == 0 || h.points[n-1].ended() != p.ended() || h.points[n-1].Lost != p.Lost
	switch {
	case p.Running == 0:
		h.busy = time.Time{}
	case ended || h.busy.IsZero():
		h.busy = p.At
	}
}

// Rates measures the rates at the latest point.
func (h *History) Rates() Rates {
	n := len(h.points)
	if n == 0 {
		return Rates{}
	}
	last := h.points[n-1]
	var r Rates
	r.Service, r.ServiceRecent = h.service()
	if !h.busy.IsZero() {
		r.ServiceAtLeast = last.At.Sub(h.busy)
	}
	if last.At.Sub(h.points[0].At) < minSpan {
		return r
	}
	steady := h.sum(func(_ int, span time.Duration) bool { return span >= rateSpan })
	fast := h.sum(func(n int, span time.Duration) bool { return n >= fastSamples && span >= fastSpan })
	r.Measured = true
	r.Arrivals, r.FastArrivals = steady.arrivalRate(), fast.arrivalRate()
	r.Completions = perSecond(float64(steady.ended), steady.span)
	r.Ended, r.Failed = steady.ended+steady.lost, steady.failed+steady.lost
	return r
}

// service is the mean length of a run over the latest runs: as far back as it
// takes for enough of them, else over all there have ever been.
func (h *History) service() (mean time.Duration, recent bool) {
	late := h.sum(func(_ int, span time.Duration) bool { return span >= rateSpan })
	if late.ended < enoughRuns {
		late = h.sum(func(int, time.Duration) bool { return false })
	}
	if late.ended > 0 {
		return meanRun(late.millis, late.ended), true
	}
	last := h.points[len(h.points)-1]
	return meanRun(last.ExecutionMillis, last.ended()), false
}

// meanRun is at least a millisecond where runs have ended, so that 0 stays "unknown".
func meanRun(millis, runs int64) time.Duration {
	if runs <= 0 {
		return 0
	}
	mean := time.Duration(float64(millis) / float64(runs) * float64(time.Millisecond))
	return max(time.Millisecond, mean)
}

type sums struct {
	arrived             float64
	ended, failed, lost int64
	millis              int64
	span                time.Duration
}

func (s sums) arrivalRate() float64 { return perSecond(s.arrived, s.span) }

func perSecond(n float64, span time.Duration) float64 {
	if span <= 0 {
		return 0
	}
	return math.Max(0, n/span.Seconds())
}

// sum adds up the intervals between points from the latest backwards, until
// enough says so. An interval over which counting started anew is left out.
func (h *History) sum(enough func(intervals int, span time.Duration) bool) sums {
	var s sums
	count := 0
	for i := len(h.points) - 1; i > 0 && !enough(count, s.span); i-- {
		from, to := h.points[i-1], h.points[i]
		if from.reset(to) {
			continue
		}
		count++
		s.span += to.At.Sub(from.At)
		s.arrived += from.arrivals(to)
		s.ended += to.ended() - from.ended()
		s.failed += to.Failed - from.Failed
		s.lost += to.Lost - from.Lost
		s.millis += to.ExecutionMillis - from.ExecutionMillis
	}
	return s
}
