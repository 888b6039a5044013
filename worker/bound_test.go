package worker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A claim that does not come back in time is not asked for again as it was: payloads may
// be large and the network slow.
func TestBoundHalvesWhatIsTooMuch(t *testing.T) {
	c := bound{timeout: claimTimeout, ceiling: maxClaim}
	var got []int
	note := func() { got = append(got, c.limit(maxClaim)) }
	note()
	c.late(100)
	note()
	c.late(50)
	note()
	c.inTime(claimTimeout/2, 25) // in time, but not for more
	note()
	c.inTime(time.Millisecond, 0) // nothing there: no proof
	note()
	c.inTime(time.Millisecond, 25)
	note()
	c.late(1)
	note()
	for range 13 {
		c.inTime(time.Millisecond, c.most)
	}
	note()
	c.inTime(time.Millisecond, c.most)
	note()
	if diff := cmp.Diff([]int{maxClaim, 50, 25, 25, 25, 50, 1, 8192, maxClaim}, got); diff != "" {
		t.Error("limits (-want +got):\n" + diff)
	}
}
