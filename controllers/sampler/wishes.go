package sampler

import (
	"sync"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// wishes is what reconcilers want written to a database. It outlives a change of
// configuration.
type wishes struct {
	mu       sync.Mutex
	policies map[string]*policyWish
	releases map[release]bool // true once done
}

type policyWish struct {
	policy  queue.Policy
	written bool
	outcome PolicyState
}

func newWishes() *wishes {
	return &wishes{policies: map[string]*policyWish{}, releases: map[release]bool{}}
}

// setPolicy reports whether the wish is new.
func (w *wishes) setPolicy(name string, p queue.Policy) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.releases, release{name, p.Owner})
	wish := w.policies[name]
	if wish != nil && wish.policy == p {
		return false
	}
	fresh := &policyWish{policy: p}
	if wish != nil && wish.policy.Owner == p.Owner {
		fresh.outcome.Generation = wish.outcome.Generation
	}
	w.policies[name] = fresh
	return true
}

func (w *wishes) forgetPolicy(name, owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if wish := w.policies[name]; wish != nil && wish.policy.Owner == owner {
		delete(w.policies, name)
	}
}

// release reports whether the wish is new.
func (w *wishes) release(name, owner string) bool {
	w.forgetPolicy(name, owner)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.releases[release{name, owner}]; known {
		return false
	}
	w.releases[release{name, owner}] = false
	return true
}

// unwritten returns the policies yet to be written.
func (w *wishes) unwritten() map[string]queue.Policy {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]queue.Policy{}
	for name, wish := range w.policies {
		if !wish.written {
			out[name] = wish.policy
		}
	}
	return out
}

// settle notes the outcome of writing a policy, unless another is wanted by now.
func (w *wishes) settle(name string, p queue.Policy, problem *Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wish := w.policies[name]
	if wish == nil || wish.policy != p {
		return
	}
	wish.written = problem == nil
	wish.outcome.Problem = problem
	if problem == nil {
		wish.outcome.Generation = p.Generation
	}
}

// compare has policies written again that a sample shows to be another generation:
// somebody restored a backup, or a deposed leader was late.
func (w *wishes) compare(s queue.Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, wish := range w.policies {
		if found, ok := s.Queues[name]; wish.written && (!ok || found.PolicyGeneration != wish.policy.Generation) {
			wish.written = false
		}
	}
}

func (w *wishes) unreleased() []release {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []release
	for r, done := range w.releases {
		if !done {
			out = append(out, r)
		}
	}
	return out
}

func (w *wishes) settleRelease(r release) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, wanted := w.releases[r]; wanted {
		w.releases[r] = true
	}
}

// outcomes returns copies for a State.
func (w *wishes) outcomes() (map[string]PolicyState, map[release]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	policies := make(map[string]PolicyState, len(w.policies))
	for name, wish := range w.policies {
		policies[name] = wish.outcome
	}
	released := map[release]bool{}
	for r, done := range w.releases {
		released[r] = done
	}
	return policies, released
}
