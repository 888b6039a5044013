package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

// stormWorkers is how many worker processes live through the storm at any time.
const stormWorkers = 4

var _ = Describe("All faults at once", func() {
	It("at random, for CHAOS_SECONDS: nothing is lost or done twice", func(ctx context.Context) {
		if os.Getenv(envChaos) == "" {
			Skip("a matter of minutes: make chaos")
		}
		w := newWorld(ctx)
		source := random(0)
		c := newCutter(net.JoinHostPort("127.0.0.1", strconv.Itoa(w.server.Port())), random(1))
		w.url = c.through(w.url)
		s := &storm{world: w, random: source, count: map[string]int{}}
		for range stormWorkers {
			s.alive = append(s.alive, w.spawn(10))
		}
		load := w.produce(ctx, w.url, random(2))
		for end := time.Now().Add(seconds(envChaos, 0)); time.Now().Before(end); {
			s.strike(ctx)
			pause(ctx, time.Duration(500+source.IntN(2000))*time.Millisecond)
		}
		load.end()
		c.harmless.Store(true)
		w.drained(ctx)
		report := w.judge(ctx)
		w.ordersMatch(ctx)
		AddReportEntry("storm", fmt.Sprintf("seed %d: %v, %d jobs in %d runs, %d results accepted, %d refused",
			GinkgoRandomSeed(), s.count, report.Jobs, report.Runs, report.Accepted, report.Refused))
	})
})

// storm does something to somebody.
type storm struct {
	*world
	random *rand.Rand
	alive  []*process
	count  map[string]int
}

func (s *storm) strike(ctx context.Context) {
	GinkgoHelper()
	n := s.random.IntN(len(s.alive))
	victim := s.alive[n]
	switch kind := s.random.IntN(6); kind {
	case 0:
		s.count["killed"]++
		victim.kill()
		s.alive[n] = s.spawn(10)
	case 1:
		s.count["asked to stop"]++
		victim.killed = true // it may have no database to say goodbye to
		victim.stop()
		s.alive[n] = s.spawn(10)
	case 2:
		s.count["stopped"]++
		victim.Signal(syscall.SIGSTOP)
		pause(ctx, time.Duration(1000+s.random.IntN(6000))*time.Millisecond)
		victim.Signal(syscall.SIGCONT)
	case 3:
		s.count["fast restarts"]++
		Expect(s.server.Restart(pgtest.Fast)).To(Succeed())
	case 4:
		s.count["immediate restarts"]++
		Expect(s.server.Restart(pgtest.Immediate)).To(Succeed())
	default:
		s.count["sessions ended"]++
		// A restart may have cut the test's own connections off: then nobody else has any.
		_, _ = s.db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'jobqueue:worker:%'`)
	}
}
