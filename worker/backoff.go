package worker

import (
	"math/rand/v2"
	"time"
)

// backoff gives growing, jittered delays: each is drawn from the upper half of a
// span that doubles from base to ceiling, so that a fleet that failed together
// does not come back together.
type backoff struct {
	base, ceiling time.Duration
	failures      int
}

func (b *backoff) next() time.Duration {
	span := b.base << min(b.failures, 30)
	if span > b.ceiling || span <= 0 {
		span = b.ceiling
	}
	b.failures++
	return span/2 + rand.N(span/2+1)
}

func (b *backoff) reset() { b.failures = 0 }

// jitter spreads d evenly over part of itself around it: 0.2 gives 0.8 d to 1.2 d.
func jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*rand.Float64()-1)))
}
