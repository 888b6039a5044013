package worker

import (
	"testing"
	"time"
)

func TestBackoffGrowsWithinItsBounds(t *testing.T) {
	b := backoff{base: 100 * time.Millisecond, ceiling: time.Second}
	for i := range 100 {
		span := min(100*time.Millisecond<<min(i, 10), time.Second)
		if d := b.next(); d < span/2 || d > span {
			t.Fatalf("delay %d is %s, want %s to %s", i, d, span/2, span)
		}
	}
	b.reset()
	if d := b.next(); d > 100*time.Millisecond {
		t.Errorf("after a reset the delay is %s", d)
	}
}

func TestJitterStaysInItsPart(t *testing.T) {
	for range 1000 {
		if d := jitter(time.Second, 0.2); d < 800*time.Millisecond || d > 1200*time.Millisecond {
			t.Fatalf("%s is out of bounds", d)
		}
	}
}
