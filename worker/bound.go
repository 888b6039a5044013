package worker

import "time"

// bound limits the size of claims, or of batches of results, while larger ones are not
// answered within the time limit of a statement, as with large payloads over a slow network:
// sent again as they were, they never would be. One goroutine uses it.
type bound struct {
	timeout time.Duration // of a statement
	ceiling int           // no batch is larger anyway
	most    int           // 0: no bound
}

// limit is how large the next batch may be, of the size wanted.
func (b *bound) limit(want int) int {
	if b.most == 0 {
		return want
	}
	return min(want, b.most)
}

// late notes that a statement was cut off in a batch of this size.
func (b *bound) late(size int) { b.most = max(size/2, 1) }

// inTime notes that a batch of this size was answered. One that was smaller than the
// bound says nothing of it. The bound grows while batches are far from the limit.
func (b *bound) inTime(took time.Duration, size int) {
	if b.most == 0 || size < b.most || took > b.timeout/4 {
		return
	}
	if b.most *= 2; b.most >= b.ceiling {
		b.most = 0
	}
}
