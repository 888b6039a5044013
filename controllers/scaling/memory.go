package scaling

import (
	"slices"
	"time"
)

// Memory holds the recommendations of the past window of one queue.
//
// It begins with the replicas that are in place: an operator that has just
// started knows of no earlier decision, and so keeps for one window what it
// found. Only a lower maximum, a manual number and the connection budget, which
// all come after stabilization, go below that.
type Memory struct {
	entries []Recommendation
}

// NewMemory starts at a time with the number of replicas in place.
func NewMemory(now time.Time, replicas int32) *Memory {
	return &Memory{entries: []Recommendation{{At: now, Replicas: replicas}}}
}

// Remember adds a recommendation and forgets those older than window.
//
// It keeps only what a maximum over any later window can depend on: an entry is
// dropped when a newer one is at least as high. So it stays a few entries long.
func (m *Memory) Remember(r Recommendation, window time.Duration) {
	m.entries = slices.DeleteFunc(m.entries, func(e Recommendation) bool {
		return e.Replicas <= r.Replicas || r.At.Sub(e.At) > window
	})
	m.entries = append(m.entries, r)
}

// Past returns a copy, oldest first.
func (m *Memory) Past() []Recommendation { return slices.Clone(m.entries) }
