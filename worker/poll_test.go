package worker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPolling(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		got  []int
		want []time.Duration
	}{
		"idle":                         {[]int{0, 0, 0, 0, 0}, []time.Duration{1000 * ms, 1500 * ms, 2250 * ms, 3000 * ms, 3000 * ms}},
		"one job, then none":           {[]int{1, 0, 0, 0, 0}, []time.Duration{3 * ms, 9 * ms, 27 * ms, 1000 * ms, 1500 * ms}},
		"one job after the other":      {[]int{1, 8, 1, 0}, []time.Duration{3 * ms, 3 * ms, 3 * ms, 9 * ms}},
		"a job at the second look":     {[]int{1, 0, 1, 0, 0, 0}, []time.Duration{3 * ms, 9 * ms, 3 * ms, 9 * ms, 27 * ms, 1000 * ms}},
		"many jobs, then none":         {[]int{9, 0, 0}, []time.Duration{27 * ms, 1000 * ms, 1500 * ms}},
		"many jobs, then one":          {[]int{9, 1, 0}, []time.Duration{27 * ms, 3 * ms, 9 * ms}},
		"idle for long, then a job":    {[]int{0, 0, 0, 1, 0, 0, 0}, []time.Duration{1000 * ms, 1500 * ms, 2250 * ms, 3 * ms, 9 * ms, 27 * ms, 1000 * ms}},
		"idle, then as many as wanted": {[]int{0, 2000, 0}, []time.Duration{1000 * ms, 27 * ms, 1000 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolling(1000*ms, 3000*ms)
			var waits []time.Duration
			for _, got := range test.got {
				waits = append(waits, p.after(got))
			}
			if diff := cmp.Diff(test.want, waits); diff != "" {
				t.Errorf("waits after claims of %v (-want +got):\n%s", test.got, diff)
			}
		})
	}
}
