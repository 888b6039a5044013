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

// What a handler returned counts, though its worker had given up waiting for handlers
// when that was being made out; and is missed if it takes too long (W4, W5).
func TestDrainWaitsForWhatIsBeingDecided(t *testing.T) {
	cases := map[string]struct {
		takes   time.Duration
		want    string
		wantErr error
	}{
		"in time":  {takes: 600 * time.Millisecond, want: "failed"},
		"too late": {takes: time.Minute, wantErr: ErrUnwritten},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, err := pgxpool.ParseConfig("postgres://127.0.0.1:1/none?sslmode=disable")
				if err != nil {
					t.Fatal(err)
				}
				cfg.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nobody there") }
				pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				log := slog.New(slog.NewTextHandler(io.Discard, nil))
				w, err := New(pool, Config{Queue: "q", Slots: 1, Grace: 10 * time.Second}, WithLogger(log))
				if err != nil {
					t.Fatal(err)
				}
				begun := make(chan struct{})
				Handle(w, "k", func(ctx context.Context, _ *Job[struct{}]) error {
					close(begun)
					<-ctx.Done()
					return Permanent(slowError(tc.takes))
				})
				e := newEngine(w, []string{"k"})
				f := &fakeSettler{done: map[int64]string{}}
				e.completer = newCompleter(f, log, newMetrics(prometheus.NewRegistry(), "q"), func() {}, func() {})
				e.handlerBase = context.Background()
				job := makeHeld(1, time.Minute, time.Minute)
				job.handler, job.Payload = w.handlers["k"], []byte("{}")
				e.backlog.push([]*held{job})
				var loops sync.WaitGroup
				loops.Go(func() { e.completer.run(context.Background()) })
				e.slots.Go(func() { e.slot(0) })
				<-begun
				if err := e.drain(context.Background(), &sync.WaitGroup{}, time.Now().Add(10*time.Second)); !errors.Is(err, tc.wantErr) {
					t.Errorf("drain returns %v, want %v", err, tc.wantErr)
				}
				loops.Wait()
				e.slots.Wait()
				if f.done[1] != tc.want {
					t.Errorf("the job is %q, want %q", f.done[1], tc.want)
				}
			})
		})
	}
}
