package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// connectionWatch samples how many connections the product holds to the place's database.
type connectionWatch struct {
	end func()

	mu      sync.Mutex
	samples int
	peak    int
	atPeak  string // who held them
}

// sampleEvery is how often a connectionWatch looks. No connection of the product, which are
// kept for seconds at least, goes unseen.
const sampleEvery = 100 * time.Millisecond

// watchConnections looks every 100 ms, over a connection of its own, until the spec ends.
func (p *place) watchConnections(ctx context.Context) *connectionWatch {
	GinkgoHelper()
	cfg, err := pgx.ParseConfig(p.url)
	Expect(err).NotTo(HaveOccurred())
	cfg.RuntimeParams["application_name"] = "e2e"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	Expect(err).NotTo(HaveOccurred())

	ctx, cancel := context.WithCancel(ctx)
	w := &connectionWatch{}
	var done sync.WaitGroup
	done.Go(func() {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.look(ctx, conn)
			}
		}
	})
	w.end = func() {
		cancel()
		done.Wait()
	}
	DeferCleanup(w.end)
	return w
}

func (w *connectionWatch) look(ctx context.Context, conn *pgx.Conn) {
	var n int
	var who string
	err := conn.QueryRow(ctx, `
		SELECT coalesce(sum(n), 0), coalesce(string_agg(application_name || ': ' || n, ', ' ORDER BY application_name), '')
		FROM (SELECT application_name, count(*) AS n FROM pg_stat_activity
		      WHERE datname = current_database() AND application_name LIKE 'jobqueue:%' AND backend_type = 'client backend'
		      GROUP BY 1) AS by_name`).Scan(&n, &who)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples++
	if n > w.peak {
		w.peak, w.atPeak = n, fmt.Sprintf("%s at %s", who, time.Now().Format("15:04:05.000"))
	}
}

// enough samples to judge from: those of two seconds.
const enough = 20

func (w *connectionWatch) looks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.samples
}

// expectWithin ends the watch, once there is enough to judge from, and fails if any sample
// exceeded the budget.
func (w *connectionWatch) expectWithin(budget int) {
	GinkgoHelper()
	Eventually(w.looks).WithTimeout(10*time.Second).Should(BeNumerically(">", enough), "too few samples to judge from")
	w.end()
	note("connections", "at most %d of %d in %d samples (%s)", w.peak, budget, w.samples, w.atPeak)
	Expect(w.peak).To(BeNumerically("<=", budget), "the budget was exceeded (%s)", w.atPeak)
}
