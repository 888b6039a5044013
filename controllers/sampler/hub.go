package sampler

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Key names a QueueDatabase.
type Key = types.NamespacedName

// Observer is told of every try to sample, for metrics.
type Observer interface {
	Sampled(key Key, took time.Duration, problem *Problem)
	Forgotten(key Key)
}

// Option changes how a Hub works.
type Option func(*Hub)

// WithClock replaces the clock that State.ReadAt is read from.
func WithClock(now func() time.Time) Option { return func(h *Hub) { h.now = now } }

// WithLogger sets the logger.
func WithLogger(log logr.Logger) Option { return func(h *Hub) { h.log = log } }

// WithObserver sets who is told of every try.
func WithObserver(o Observer) Option { return func(h *Hub) { h.observer = o } }

// WithBackoff sets the first and the longest wait after failures.
func WithBackoff(first, longest time.Duration) Option {
	return func(h *Hub) { h.backoff = backoff{first: first, longest: longest} }
}

// Hub runs a sampler for each database. It is a Runnable for a manager, and runs
// on the leader only. It is safe for concurrent use.
type Hub struct {
	now      func() time.Time
	log      logr.Logger
	observer Observer
	backoff  backoff

	mu          sync.Mutex
	ctx         context.Context // set by Start
	running     sync.WaitGroup
	samplers    map[Key]*sampler
	subscribers []func(Key)
}

// NewHub returns a Hub without databases.
func NewHub(opts ...Option) *Hub {
	h := &Hub{
		now: time.Now, log: logr.Discard(), observer: silent{},
		backoff:  backoff{first: time.Second, longest: 30 * time.Second},
		samplers: map[Key]*sampler{},
	}
	for _, o := range opts {
		o(h)
	}
	return h
}

// NeedLeaderElection makes a manager start the Hub on the leader only.
func (h *Hub) NeedLeaderElection() bool { return true }

// Start runs the samplers, those configured already and those to come, until ctx
// is done and all of them have closed their connections.
func (h *Hub) Start(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	for _, s := range h.samplers {
		h.launch(s)
	}
	h.mu.Unlock()
	<-ctx.Done()
	h.running.Wait()
	return nil
}

// launch starts a sampler's goroutines. h.mu is held.
func (h *Hub) launch(s *sampler) {
	if h.ctx == nil || h.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(h.ctx)
	s.cancel, s.launched = cancel, true
	h.running.Go(func() { s.run(ctx) })
}

// Configure starts sampling a database, or goes on with another configuration:
// then connections are made anew, and what was measured is kept.
func (h *Hub) Configure(key Key, config Config) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.samplers[key]
	if old != nil && old.config == config {
		return nil
	}
	s, err := newSampler(h, key, config)
	if err != nil {
		return err
	}
	if old != nil {
		old.stop()
		s.inherit(old)
	}
	h.samplers[key] = s
	h.launch(s)
	return nil
}

// Remove ends the sampling of a database.
func (h *Hub) Remove(key Key) {
	h.mu.Lock()
	s := h.samplers[key]
	delete(h.samplers, key)
	h.mu.Unlock()
	if s != nil {
		s.stop()
		h.observer.Forgotten(key)
	}
}

// State returns what is known of a database; false when it is not configured.
func (h *Hub) State(key Key) (State, bool) {
	if s := h.sampler(key); s != nil {
		return *s.state.Load(), true
	}
	return State{}, false
}

// SetPolicy asks for a queue's policy to be written, and to be written again
// whenever a sample shows another generation. The outcome is in State.Policies.
func (h *Hub) SetPolicy(key Key, queueName string, p queue.Policy) {
	if s := h.sampler(key); s != nil && s.wishes.setPolicy(queueName, p) {
		s.poke()
	}
}

// ForgetPolicy stops writing a queue's policy, unless another owner asked for it.
func (h *Hub) ForgetPolicy(key Key, queueName, owner string) {
	if s := h.sampler(key); s != nil {
		s.wishes.forgetPolicy(queueName, owner)
	}
}

// Release asks for the owner of a queue to be cleared, and forgets its policy.
// State.Released tells when that is done.
func (h *Hub) Release(key Key, queueName, owner string) {
	if s := h.sampler(key); s != nil && s.wishes.release(queueName, owner) {
		s.poke()
	}
}

// Subscribe calls f after each try to sample a database. f must not block.
func (h *Hub) Subscribe(f func(Key)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribers = append(h.subscribers, f)
}

func (h *Hub) sampler(key Key) *sampler {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.samplers[key]
}

// Announce calls the subscribers as after a try: something else than a sample is
// new about the database, such as its credentials.
func (h *Hub) Announce(key Key) {
	h.mu.Lock()
	subscribers := h.subscribers
	h.mu.Unlock()
	for _, f := range subscribers {
		f(key)
	}
}

type silent struct{}

func (silent) Sampled(Key, time.Duration, *Problem) {}
func (silent) Forgotten(Key)                        {}
