package worker

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// identity is a worker row in the database, this process's view of its lease, and
// what is held under it.
//
// A process normally has one for its life. It takes a new one in two cases, so
// that the old row can run out or be unregistered by itself. When the answer to a
// claim is lost, rows may run under the old identity that nobody here knows of, and
// extending its lease would keep them: with each heartbeat they are given back. When
// the lease has run out by this process's own clock, everything under it is given up,
// and must not be revived by a late heartbeat; nor is anything claimed under it.
type identity struct {
	id uuid.UUID

	// Statements that write the row take the token from row, one at a time; gone is
	// closed with the row's end. A heartbeat that came after it would make it anew.
	row  chan struct{}
	gone chan struct{}

	mu         sync.Mutex
	renewedAt  time.Time     // local, before the last successful renewal was sent
	lease      time.Duration // what that renewal was good for
	beatAt     time.Time     // local, before the last successful heartbeat was sent
	registered bool          // a claim has been answered, so the row is there
	jobs       map[*held]struct{}
	claiming   int  // claims under way
	retired    bool // no more claims
	expired    bool // given up
}

func newIdentity() *identity {
	i := &identity{id: uuid.New(), jobs: map[*held]struct{}{}, row: make(chan struct{}, 1), gone: make(chan struct{})}
	i.freeRow()
	return i
}

// holdRow waits for the right to write the identity's row. It is false when ctx is
// done or the row is gone.
func (i *identity) holdRow(ctx context.Context) bool {
	select {
	case <-i.row:
		return true
	case <-i.gone:
		return false
	case <-ctx.Done():
		return false
	}
}

func (i *identity) freeRow() { i.row <- struct{}{} }

// unheld is why holdRow was false: no error when the row is gone.
func (i *identity) unheld(ctx context.Context) error {
	if i.isGone() {
		return nil
	}
	return ctx.Err()
}

// isGone is true once the row has been removed.
func (i *identity) isGone() bool {
	select {
	case <-i.gone:
		return true
	default:
		return false
	}
}

// renew notes a lease extended by a heartbeat that was sent at sentAt. A claim may have
// been sent later and answered sooner: then the lease that ends last counts.
func (i *identity) renew(sentAt time.Time, lease time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if lease <= 0 || !sentAt.After(i.beatAt) {
		return
	}
	i.beatAt = sentAt
	if sentAt.After(i.renewedAt) || sentAt.Add(lease).After(i.renewedAt.Add(i.lease)) {
		i.renewedAt, i.lease = sentAt, lease
	}
}

// claimed notes the lease that comes with the jobs of a claim that was sent at sentAt and
// answered at now; 0 when it brought none, and so does not say. The first one registers
// the identity, with all of its lease. A later one need not extend a lease that is fresh
// enough, but leaves more than a quarter of it (see claim_many). It does not count for
// what was held when the lease ran out, which the database may have taken back.
func (i *identity) claimed(sentAt, now time.Time, lease time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	first := !i.registered && i.renewedAt.IsZero()
	i.registered = true
	switch {
	case lease <= 0:
	case first:
		i.renewedAt, i.lease = sentAt, lease
	case len(i.jobs) > 0 && i.isOver(now):
	case sentAt.Add(lease / 4).After(i.renewedAt.Add(i.lease)):
		i.renewedAt, i.lease = sentAt, lease/4
	}
}

// isOver is true when the lease has run out by this process's own clock. i.mu is held.
func (i *identity) isOver(now time.Time) bool {
	return !i.renewedAt.IsZero() && now.Sub(i.renewedAt) >= i.lease
}

// over is isOver for those who do not hold i.mu.
func (i *identity) over(now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.isOver(now)
}

// expire reports, once, that the lease has run out by this process's own clock
// while something was held under it, and retires the identity.
func (i *identity) expire(now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.expired || len(i.jobs) == 0 || !i.isOver(now) {
		return false
	}
	i.expired, i.retired = true, true
	return true
}

func (i *identity) add(jobs []*held) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, h := range jobs {
		i.jobs[h] = struct{}{}
	}
}

func (i *identity) remove(h *held) {
	i.mu.Lock()
	delete(i.jobs, h)
	i.mu.Unlock()
}

// active lists the jobs whose lease matters: those that wait in memory or run.
func (i *identity) active() []*held {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := make([]*held, 0, len(i.jobs))
	for h := range i.jobs {
		if h.active() {
			list = append(list, h)
		}
	}
	return list
}

// beginClaim is false when the identity must not claim any more: it is retired, or its
// lease has run out by this process's own clock, and what a claim brought might be given
// up before a heartbeat could extend it.
func (i *identity) beginClaim(now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.retired = i.retired || i.isOver(now)
	if i.retired {
		return false
	}
	i.claiming++
	return true
}

// endClaim ends what beginClaim began; it is false when the identity has been
// given up in the meantime, and with it whatever the claim brought.
func (i *identity) endClaim() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.claiming--
	return !i.expired
}

func (i *identity) retire() {
	i.mu.Lock()
	i.retired = true
	i.mu.Unlock()
}

// known lists all that is held, written or not; ok when the identity is retired and no
// claim is under way, so that whatever else runs under it is unknown here for good.
func (i *identity) known() (refs []queue.Ref, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.retired || i.expired || i.claiming > 0 {
		return nil, false
	}
	for h := range i.jobs {
		refs = append(refs, h.Ref)
	}
	return refs, true
}

// state says whether the identity still needs heartbeats, and whether it can be
// unregistered because nothing hangs on it any more.
func (i *identity) state() (beating, done bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	empty := len(i.jobs) == 0 && i.claiming == 0
	return !i.expired, i.retired && empty
}

// identities are the current identity and the retired ones that still matter.
type identities struct {
	mu      sync.Mutex
	current *identity
	retired []*identity
}

func newIdentities() *identities { return &identities{current: newIdentity()} }

// take returns an identity that may claim, a fresh one when the current one is
// retired or its lease is over.
func (s *identities) take(now time.Time) *identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.current.beginClaim(now) {
		s.retired = append(s.retired, s.current)
		s.current = newIdentity()
	}
	return s.current
}

func (s *identities) all() []*identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*identity{s.current}, s.retired...)
}

// forget drops a retired identity that is over and done with.
func (s *identities) forget(id *identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.retired[:0]
	for _, r := range s.retired {
		if r != id {
			kept = append(kept, r)
		}
	}
	s.retired = kept
}
