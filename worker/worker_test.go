package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestRunRefusesBadRegistrations(t *testing.T) {
	ok := func(context.Context, *Job[struct{}]) error { return nil }
	cases := map[string]struct {
		setup func(w *Worker)
		want  string
	}{
		"none":       {setup: func(*Worker) {}, want: "no handler is registered"},
		"control":    {setup: func(w *Worker) { Handle(w, "a\nb", ok) }, want: "none of them a control character"},
		"not UTF-8":  {setup: func(w *Worker) { Handle(w, "a\xff", ok) }, want: `kind "a\xff": a kind is text in UTF-8`},
		"twice":      {setup: func(w *Worker) { Handle(w, "a", ok); Handle(w, "a", ok) }, want: `kind "a": registered twice`},
		"empty kind": {setup: func(w *Worker) { Handle(w, "", ok) }, want: `kind "": the kind is empty`},
		"nil":        {setup: func(w *Worker) { Handle[struct{}](w, "a", nil) }, want: `kind "a": the handler is nil`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := makeWorker(t, Config{})
			tc.setup(w)
			if err := w.Run(context.Background()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Run returned %v, want %q", err, tc.want)
			}
			if err := w.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "Run was called before") {
				t.Errorf("the second Run returned %v", err)
			}
		})
	}
}

func TestNewRefusesBadConfiguration(t *testing.T) {
	w := makeWorker(t, Config{})
	cases := map[string]struct {
		cfg  Config
		want string
	}{
		"queue":  {cfg: Config{}, want: "Queue"},
		"schema": {cfg: Config{Queue: "q", Schema: `x"; drop`}, want: "schema"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := New(w.pool, tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New returned %v, want %q in it", err, tc.want)
			}
		})
	}
	if _, err := New(nil, Config{Queue: "q"}); err == nil {
		t.Error("New takes a nil pool")
	}
}

func TestRunWithoutADatabaseWaitsAndStopsWhenAsked(t *testing.T) { // W9, W12
	w := makeWorker(t, Config{Grace: time.Second})
	Handle(w, "a", func(context.Context, *Job[struct{}]) error { return nil })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	deadline := time.Now().Add(10 * time.Second)
	for w.health.contactErr() == nil && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if err := w.health.alive(time.Now()); err != nil {
		t.Errorf("not alive without a database: %v", err)
	}
	if w.health.ready() == nil {
		t.Error("ready without a database")
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run does not end")
	}
}

func (h *health) contactErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.contact
}

func TestMargin(t *testing.T) {
	cases := map[time.Duration]time.Duration{
		time.Second:      500 * time.Millisecond,
		5 * time.Second:  500 * time.Millisecond,
		30 * time.Second: 3 * time.Second,
		90 * time.Second: 5 * time.Second,
		time.Hour:        5 * time.Second,
	}
	for grace, want := range cases {
		if got := margin(grace); got != want {
			t.Errorf("margin of %s is %s, want %s", grace, got, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	cases := map[string]struct {
		err  error
		want int
	}{
		"clean":         {want: 0},
		"failure":       {err: errors.New("x"), want: 1},
		"unwritten":     {err: ErrUnwritten, want: 1},
		"configuration": {err: &ConfigError{Field: "x"}, want: 2},
		"stuck":         {err: errors.Join(ErrStuckHandler, ErrUnwritten), want: 3},
	}
	for name, tc := range cases {
		if got := exitCode(tc.err); got != tc.want {
			t.Errorf("%s: exit code %d, want %d", name, got, tc.want)
		}
	}
}
