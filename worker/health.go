package worker

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

const (
	// maxQuiet is the longest that a loop waits without a sign of life.
	maxQuiet = 5 * time.Second
	// stalledAfter is how long a loop may show none before the process counts as
	// hung. It is above the time limit of any statement, so that an outage of the
	// database does not restart workers.
	stalledAfter = time.Minute
	// warnEvery is how often the log names a trouble that goes on, for whoever comes
	// when its first lines have been rotated away.
	warnEvery = time.Minute
)

// health answers the probes. Alive means that the loops turn, whatever the
// database does; ready means that the worker can claim.
type health struct {
	mu       sync.Mutex
	turns    map[string]time.Time
	contact  error     // of the last claim or heartbeat
	warned   time.Time // when the log last named it
	since    time.Time // when there was contact last, if it is lost
	reached  bool      // the database has answered once
	stopping bool
}

func newHealth() *health { return &health{turns: map[string]time.Time{}} }

// turn notes that the named loop turns.
func (h *health) turn(loop string) {
	now := time.Now()
	h.mu.Lock()
	h.turns[loop] = now
	h.mu.Unlock()
}

// ended notes that the named loop has ended on purpose.
func (h *health) ended(loop string) {
	h.mu.Lock()
	delete(h.turns, loop)
	h.mu.Unlock()
}

// contacted notes the outcome of a claim or heartbeat. It returns whether the one before was
// an error, when outcomes began to be errors, and whether the log is to name this one: a
// new trouble at once, one that goes on again each warnEvery.
func (h *health) contacted(err error, now time.Time) (lost bool, since time.Time, warn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.contact
	h.contact = err
	h.reached = h.reached || err == nil
	if err == nil {
		return before != nil, h.since, false
	}
	if before == nil {
		h.since = now
	}
	if before == nil || !sameTrouble(before, err) || now.Sub(h.warned) >= warnEvery {
		h.warned, warn = now, true
	}
	return before != nil, h.since, warn
}

func (h *health) stop() {
	h.mu.Lock()
	h.stopping = true
	h.mu.Unlock()
}

// alive is an error when a loop has stalled.
func (h *health) alive(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for loop, turned := range h.turns {
		if quiet := now.Sub(turned); quiet > stalledAfter {
			return fmt.Errorf("the %s loop has not turned for %s", loop, quiet.Round(time.Second))
		}
	}
	return nil
}

// ready is an error when the worker cannot claim. It does not quote the database's
// error, which may name hosts and users, to whoever asks.
func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stopping:
		return fmt.Errorf("stopping")
	case errors.Is(h.contact, queue.ErrQueueNotFound):
		return fmt.Errorf("the queue does not exist in the database: no JobQueue has declared it; the log has its name")
	case errors.Is(h.contact, queue.ErrSchemaMissing):
		return fmt.Errorf("the database has no queue schema; the log names the one looked for")
	case h.contact != nil:
		return fmt.Errorf("the database cannot be used now; the log says why")
	case !h.reached:
		return fmt.Errorf("starting")
	}
	return nil
}

// Handler serves /healthz (the loops turn), /readyz (the worker can claim) and
// /metrics. [Main] serves it by itself.
func (w *Worker) Handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(check func() error) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
			if err := check(); err != nil {
				rw.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprintln(rw, err)
				return
			}
			fmt.Fprintln(rw, "ok")
		}
	}
	mux.Handle("GET /healthz", answer(func() error { return w.health.alive(time.Now()) }))
	mux.Handle("GET /readyz", answer(w.health.ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{}))
	return mux
}
