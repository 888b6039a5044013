package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// slowError takes as long to say what it is, as an error may that asks somebody.
type slowError time.Duration

func (e slowError) Error() string { time.Sleep(time.Duration(e)); return "slow" }

// newDrainEngine makes an engine whose database is away, with one slot that runs a handler
// that waits for its context and then returns err, and results that go to the settler.
func newDrainEngine(t *testing.T, err error) (e *engine, f *fakeSettler, begun chan struct{}) {
	t.Helper()
	w := makeAwayWorker(t, Config{Queue: "q", Slots: 1, Grace: 10 * time.Second}, func(context.Context) error { return errors.New("nobody there") })
	begun = make(chan struct{})
	Handle(w, "k", func(ctx context.Context, _ *Job[struct{}]) error {
		close(begun)
		<-ctx.Done()
		return err
	})
	e = newEngine(w, []string{"k"})
	f = &fakeSettler{done: map[int64]string{}}
	e.completer = newCompleter(f, w.log, newMetrics(prometheus.NewRegistry(), "q"), func() {}, func() {})
	e.handlerBase = context.Background()
	job := makeHeld(1, time.Minute, time.Minute)
	job.handler, job.Payload = w.handlers["k"], []byte("{}")
	e.backlog.push([]*held{job})
	return e, f, begun
}

// makeAwayWorker makes a worker whose connections are answered by dial alone.
func makeAwayWorker(t *testing.T, cfg Config, dial func(context.Context) error) *Worker {
	t.Helper()
	pc, err := pgxpool.ParseConfig("postgres://127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	pc.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return nil, dial(ctx) }
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w, err := New(pool, cfg, WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// What a handler returned counts, though its worker had given up waiting for handlers when
// that was being made out, and is reported if it takes too long; and a claim that hangs
// takes no time from handlers (W4, W5).
func TestDrain(t *testing.T) {
	cases := map[string]struct {
		err     error
		claim   time.Duration // how long one hangs
		want    string
		wantErr error
	}{
		"a result in time":           {err: Permanent(slowError(600 * time.Millisecond)), want: "failed"},
		"a result that takes longer": {err: Permanent(slowError(time.Minute)), wantErr: ErrUnwritten},
		"a claim that hangs":         {err: Permanent(errors.New("no")), claim: time.Minute, want: "failed"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, f, begun := newDrainEngine(t, tc.err)
				var loops, claimers sync.WaitGroup
				loops.Go(func() { e.completer.run(context.Background()) })
				claimers.Go(func() { time.Sleep(tc.claim) })
				e.slots.Go(func() { e.slot(0) })
				<-begun
				if err := e.drain(context.Background(), &claimers, time.Now().Add(10*time.Second)); !errors.Is(err, tc.wantErr) {
					t.Errorf("drain returns %v, want %v", err, tc.wantErr)
				}
				loops.Wait()
				if f.done[1] != tc.want {
					t.Errorf("the job is %q, want %q", f.done[1], tc.want)
				}
				e.slots.Wait()
				claimers.Wait()
			})
		})
	}
}

// Where claims fail, notifications come all the same; and once Run is over, no loop counts
// as stalled (W12).
func TestRunWithoutADatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := makeAwayWorker(t, Config{Queue: "q", Grace: time.Second}, func(context.Context) error { return errors.New("nobody there") })
		Handle(w, "k", func(context.Context, *Job[struct{}]) error { return nil })
		e := newEngine(w, []string{"k"})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- e.run(ctx) }()
		const seconds = 20
		for range seconds * 100 {
			e.wake()
			time.Sleep(10 * time.Millisecond)
		}
		if n := counterValue(w.metrics.claims.WithLabelValues("error")); n < seconds/5 || n > seconds*5 {
			t.Errorf("%v claims in %d s", n, seconds)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if err := w.health.alive(time.Now()); err != nil {
			t.Error(err)
		}
	})
}
