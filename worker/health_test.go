package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// makeWorker is a worker whose pool never connects.
func makeWorker(t *testing.T, cfg Config, opts ...Option) *Worker {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if cfg.Queue == "" {
		cfg.Queue = "q"
	}
	w, err := New(pool, cfg, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestProbes(t *testing.T) {
	contact := func(h *health, err error) { h.contacted(err, time.Now()) }
	long := time.Now().Add(-2 * stalledAfter)
	cases := map[string]struct {
		prepare              func(*health)
		wantAlive, wantReady int
		wantBody             string // of healthz
		wantReason           string // of readyz
	}{
		"starting":      {prepare: func(h *health) {}, wantAlive: 200, wantReady: 503},
		"working":       {prepare: func(h *health) { contact(h, nil); h.turn("claim") }, wantAlive: 200, wantReady: 200},
		"database lost": {prepare: func(h *health) { contact(h, nil); contact(h, errors.New("user bob, host db7")) }, wantAlive: 200, wantReady: 503},
		"not declared": {prepare: func(h *health) { contact(h, fmt.Errorf("db7: %w", queue.ErrQueueNotFound)) }, wantAlive: 200, wantReady: 503,
			wantReason: "the queue does not exist"},
		"no schema": {prepare: func(h *health) { contact(h, fmt.Errorf("db7: %w", queue.ErrSchemaMissing)) }, wantAlive: 200, wantReady: 503,
			wantReason: "no queue schema"},
		"and back": {prepare: func(h *health) { contact(h, errors.New("x")); contact(h, nil) }, wantAlive: 200, wantReady: 200},
		"stopping": {prepare: func(h *health) { contact(h, nil); h.stop() }, wantAlive: 200, wantReady: 503},
		"a loop hangs": {prepare: func(h *health) { contact(h, nil); h.turns["claim"] = long }, wantAlive: 503, wantReady: 200,
			wantBody: "the claim loop has not turned for 2m0s"},
		"a loop has ended on purpose": {prepare: func(h *health) { h.turns["claim"] = long; h.ended("claim") }, wantAlive: 200, wantReady: 503},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := makeWorker(t, Config{})
			tc.prepare(w.health)
			get := func(path string) *httptest.ResponseRecorder {
				rec := httptest.NewRecorder()
				w.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
				return rec
			}
			alive, ready := get("/healthz"), get("/readyz")
			if alive.Code != tc.wantAlive || ready.Code != tc.wantReady {
				t.Errorf("healthz %d, readyz %d, want %d and %d", alive.Code, ready.Code, tc.wantAlive, tc.wantReady)
			}
			if !strings.Contains(alive.Body.String(), tc.wantBody) {
				t.Errorf("healthz says %q, want %q in it", alive.Body, tc.wantBody)
			}
			if !strings.Contains(ready.Body.String(), tc.wantReason) {
				t.Errorf("readyz says %q, want %q in it", ready.Body, tc.wantReason)
			}
			if strings.Contains(ready.Body.String(), "db7") {
				t.Errorf("readyz tells strangers about the database: %q", ready.Body)
			}
		})
	}
}

func TestTroubleIsNamedAgain(t *testing.T) {
	down, refused := errors.New("connection refused"), &pgconn.PgError{Code: "JQ001"}
	steps := []struct {
		at        time.Duration
		err       error
		wantWarn  bool
		wantSince time.Duration
	}{
		{at: 0, err: nil},
		{at: 1 * time.Second, err: down, wantWarn: true, wantSince: 1 * time.Second},
		{at: 2 * time.Second, err: down, wantSince: 1 * time.Second},
		{at: 30 * time.Second, err: refused, wantWarn: true, wantSince: 1 * time.Second},
		{at: 89 * time.Second, err: refused, wantSince: 1 * time.Second},
		{at: 90 * time.Second, err: refused, wantWarn: true, wantSince: 1 * time.Second},
		{at: 100 * time.Second, err: nil, wantSince: 1 * time.Second},
		{at: 101 * time.Second, err: refused, wantWarn: true, wantSince: 101 * time.Second},
	}
	start, h := time.Now(), newHealth()
	for _, step := range steps {
		_, since, warn := h.contacted(step.err, start.Add(step.at))
		var lasting time.Duration
		if !since.IsZero() {
			lasting = since.Sub(start)
		}
		if warn != step.wantWarn || lasting != step.wantSince {
			t.Errorf("at %s: warns %t, since %s; want %t and %s", step.at, warn, lasting, step.wantWarn, step.wantSince)
		}
	}
}

func TestMetricsAreServed(t *testing.T) {
	w := makeWorker(t, Config{Queue: "emails"})
	w.metrics.claimed(10, 3, time.Millisecond, nil)
	rec := httptest.NewRecorder()
	w.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`jobqueue_worker_claims_total{queue="emails",result="partial"} 1`,
		`jobqueue_worker_claim_rows_sum{queue="emails"} 3`,
		`jobqueue_worker_stale_results_total{by="database",queue="emails"} 0`,
		`go_goroutines`,
	} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("metrics lack %q", want)
		}
	}
}
