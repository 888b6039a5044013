package scaling

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRates(t *testing.T) {
	at := func(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }
	cases := map[string]struct {
		points []Point
		want   Rates
	}{
		"nothing": {},
		"a second is no span to measure over": {
			points: []Point{{At: at(0), Pending: 3}, {At: at(1), Pending: 900}},
		},
		"arrivals are the claimed and the newly pending": {
			points: []Point{
				{At: at(0), Pending: 10, Claimed: 100, Succeeded: 100, ExecutionMillis: 50_000},
				{At: at(10), Pending: 15, Claimed: 120, Succeeded: 110, ExecutionMillis: 60_000},
			},
			want: Rates{Measured: true, Arrivals: 2.5, FastArrivals: 2.5, Completions: 1, Service: time.Second, ServiceRecent: true, Ended: 10},
		},
		"fewer pending than before is no arrival rate below zero": {
			points: []Point{{At: at(0), Pending: 100}, {At: at(10)}},
			want:   Rates{Measured: true},
		},
		"a capped count says nothing of arrivals but the claims": {
			points: []Point{
				{At: at(0), Pending: 10000, PendingCapped: true, Claimed: 0},
				{At: at(10), Pending: 500, Claimed: 50},
			},
			want: Rates{Measured: true, Arrivals: 5, FastArrivals: 5},
		},
		"counting that began anew is left out": {
			points: []Point{
				{At: at(0), Claimed: 1000, Succeeded: 1000, ExecutionMillis: 9000},
				{At: at(10), Claimed: 1100, Succeeded: 1100, ExecutionMillis: 10_000},
				{At: at(20), Claimed: 3, Succeeded: 3, ExecutionMillis: 30},
				{At: at(30), Claimed: 103, Succeeded: 103, ExecutionMillis: 1030},
			},
			want: Rates{Measured: true, Arrivals: 10, FastArrivals: 10, Completions: 10, Service: 10 * time.Millisecond, ServiceRecent: true, Ended: 200},
		},
		"the fast rate sees a rise first": {
			points: []Point{
				{At: at(0)}, {At: at(50)},
				{At: at(55), Claimed: 50}, {At: at(60), Claimed: 100},
			},
			want: Rates{Measured: true, Arrivals: 100. / 60, FastArrivals: 10},
		},
		"wakes in quick succession make no flood": {
			points: []Point{{At: at(0)}, {At: at(5)}, {At: at(5.1), Pending: 500}, {At: at(5.2), Pending: 500}},
			want:   Rates{Measured: true, Arrivals: 500 / 5.2, FastArrivals: 500 / 5.2},
		},
		"runs without end are at least as long as they were seen": {
			points: []Point{{At: at(0), Running: 2}, {At: at(20), Running: 2}, {At: at(40), Running: 3}},
			want:   Rates{Measured: true, ServiceAtLeast: 40 * time.Second},
		},
		"an ended run ends what is known of the others": {
			points: []Point{{At: at(0), Running: 2}, {At: at(20), Running: 1, Succeeded: 1, ExecutionMillis: 20_000}, {At: at(40), Running: 1, Succeeded: 1, ExecutionMillis: 20_000}},
			want:   Rates{Measured: true, ServiceAtLeast: 20 * time.Second, Service: 20 * time.Second, ServiceRecent: true, Ended: 1, Completions: 1. / 40},
		},
		"totals from before the first point give a service time": {
			points: []Point{{At: at(0), Succeeded: 50, Failed: 50, ExecutionMillis: 20_000}},
			want:   Rates{Service: 200 * time.Millisecond},
		},
		"lost and failed runs are failures": {
			points: []Point{{At: at(0)}, {At: at(10), Failed: 3, Lost: 2, Succeeded: 5, ExecutionMillis: 8}},
			want:   Rates{Measured: true, Ended: 10, Failed: 5, Completions: .8, Service: time.Millisecond, ServiceRecent: true},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := &History{}
			for _, p := range tc.points {
				h.Add(p)
			}
			if diff := cmp.Diff(tc.want, h.Rates(), cmpopts.EquateApprox(0, 1e-6)); diff != "" {
				t.Errorf("rates (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHistoryStaysSmall(t *testing.T) {
	h := &History{}
	for i := range 20000 {
		h.Add(Point{At: t0.Add(time.Duration(i) * 100 * time.Millisecond), Claimed: int64(i)})
	}
	if n := len(h.points); n > 700 {
		t.Errorf("%d points kept", n)
	}
	if got := h.Rates().Arrivals; math.Abs(got-10) > 0.2 {
		t.Errorf("arrivals %v, want about 10", got)
	}
}

// S10: what was measured before a restart counts until there is something newer.
func TestOrSeed(t *testing.T) {
	seed := Rates{Arrivals: 2, Completions: 1, Service: 100 * time.Millisecond}
	lifetime := Rates{Service: 10 * time.Second}
	if diff := cmp.Diff(seed, lifetime.OrSeed(seed)); diff != "" {
		t.Errorf("nothing measured (-want +got):\n%s", diff)
	}
	measured := Rates{Arrivals: 5, Service: time.Second, Measured: true, ServiceRecent: true}
	if diff := cmp.Diff(measured, measured.OrSeed(seed)); diff != "" {
		t.Errorf("all measured (-want +got):\n%s", diff)
	}
}
