package integration_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// ledger records who owns what, as the workers see it.
type ledger struct {
	mu       sync.Mutex
	owner    map[int64]uuid.UUID // the token of the live run
	tokens   map[uuid.UUID]bool  // every token ever given out
	finished map[int64]int       // accepted terminal writes
	errs     []string
}

func newLedger() *ledger {
	return &ledger{owner: map[int64]uuid.UUID{}, tokens: map[uuid.UUID]bool{}, finished: map[int64]int{}}
}

// claimed notes new runs. A job whose owner has neither begun to give it up nor
// lost its lease must not be among them.
func (l *ledger) claimed(runs []queue.Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, run := range runs {
		if l.tokens[run.Token] {
			l.errs = append(l.errs, fmt.Sprintf("token %s was given out twice", run.Token))
		}
		l.tokens[run.Token] = true
		if other, ok := l.owner[run.ID]; ok {
			l.errs = append(l.errs, fmt.Sprintf("job %d has two live owners, %s and %s", run.ID, other, run.Token))
		}
		l.owner[run.ID] = run.Token
	}
}

// giveUp notes that the owner is about to write, or has stopped.
func (l *ledger) giveUp(refs []queue.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ref := range refs {
		if l.owner[ref.ID] == ref.Token {
			delete(l.owner, ref.ID)
		}
	}
}

func (l *ledger) done(ids []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.finished[id]++
	}
}

func (l *ledger) check(ids []int64) {
	GinkgoHelper()
	Expect(l.errs).To(BeEmpty())
	Expect(l.finished).To(HaveLen(len(ids)), "none is lost")
	for _, id := range ids {
		if l.finished[id] != 1 {
			Fail(fmt.Sprintf("job %d was finished %d times", id, l.finished[id]))
		}
	}
}

// sometimes is a list of kinds that are alone: all, or none.
func sometimes(all bool) []string {
	if all {
		return nil
	}
	return []string{}
}

var _ = Describe("many workers at once (T1, T2)", func() {
	It("gives 10,000 jobs to 32 connections, each once", func() {
		const jobs, workers = 10_000, 32
		e := newEnv(func(c *pgxpool.Config) { c.MaxConns = workers; c.MinConns = workers })
		ids := e.enqueue(jobs, func(i int, j *queue.NewJob) { j.Priority = int16(i % 5); j.Payload = nil })
		l := newLedger()
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				defer GinkgoRecover()
				worker := uuid.New()
				for {
					runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 1 + 7*(i%5), Alone: sometimes(i%2 == 0)})
					Expect(err).NotTo(HaveOccurred())
					l.claimed(runs)
					if len(runs) == 0 {
						break
					}
					l.giveUp(refs(runs...))
					done, err := e.c.Succeed(e.ctx, e.pool, worker, refs(runs...))
					Expect(err).NotTo(HaveOccurred())
					Expect(done).To(ConsistOf(runIDs(runs)))
					l.done(done)
				}
				Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())
			})
		}
		wg.Wait()
		l.check(ids)
		Expect(l.tokens).To(HaveLen(jobs))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs`)).To(Equal(0))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.finished WHERE state = 'succeeded' AND attempt = 1`)).To(Equal(jobs))
		s := e.sample()
		Expect([]int64{s.Claimed, s.Succeeded, s.Lost}).To(Equal([]int64{jobs, jobs, 0}))
	})

	It("survives workers that die, stall, fail, snooze and release, with reapers about", func() {
		const jobs, workers = 1_500, 16
		e := newEnv(func(c *pgxpool.Config) { c.MaxConns = workers + 4 })
		e.policy(func(p *queue.Policy) {
			p.MaxAttempts, p.BackoffBase, p.BackoffMax = 1000, 0, 0
			p.Lease, p.Heartbeat = 20*time.Second, 10*time.Second
		})
		ids := e.enqueue(jobs, func(i int, j *queue.NewJob) { j.Priority = int16(i % 3) })
		l := newLedger()
		stop := make(chan struct{})
		var reapers, wg sync.WaitGroup
		for range 2 {
			reapers.Go(func() {
				defer GinkgoRecover()
				for {
					select {
					case <-stop:
						return
					default:
						_, err := e.c.Reap(e.ctx, e.pool, queue.ReapRequest{Limit: 50})
						Expect(err).NotTo(HaveOccurred())
						e.exec(`UPDATE jobqueue.waiting SET available_at = clock_timestamp() WHERE id IN (
							SELECT id FROM jobqueue.waiting WHERE state = 'scheduled' AND available_at > clock_timestamp() FOR UPDATE SKIP LOCKED)`)
					}
				}
			})
		}
		for i := range workers {
			wg.Go(func() {
				defer GinkgoRecover()
				rng := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), uint64(i)))
				worker := uuid.New()
				for {
					runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 1 + rng.IntN(8), Alone: sometimes(rng.IntN(2) == 0)})
					Expect(err).NotTo(HaveOccurred())
					l.claimed(runs)
					if len(runs) == 0 {
						if query[int](e, `SELECT count(*) FROM jobqueue.jobs`) == 0 {
							return
						}
						continue
					}
					all := refs(runs...)
					l.giveUp(all)
					switch rng.IntN(8) {
					case 0: // dies: a new process comes, and the old one's results come late
						e.exec(`UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE id = $1`, worker)
						old := worker
						worker = uuid.New()
						late, err := e.c.Succeed(e.ctx, e.pool, old, all)
						Expect(err).NotTo(HaveOccurred())
						l.done(late) // what the reaper had not taken yet counts
					case 1:
						var failures []queue.Failure
						for _, ref := range all {
							failures = append(failures, queue.Failure{Ref: ref, Error: "no luck"})
						}
						_, err := e.c.Fail(e.ctx, e.pool, worker, failures)
						Expect(err).NotTo(HaveOccurred())
					case 2:
						_, err := e.c.Snooze(e.ctx, e.pool, worker, snoozes(time.Duration(rng.IntN(2))*time.Second, all...))
						Expect(err).NotTo(HaveOccurred())
					case 3:
						_, err := e.c.Release(e.ctx, e.pool, worker, all)
						Expect(err).NotTo(HaveOccurred())
					case 4:
						Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())
						stale, err := e.c.Succeed(e.ctx, e.pool, worker, all)
						Expect(err).NotTo(HaveOccurred())
						Expect(stale).To(BeEmpty(), "unregistering gave them back")
					default:
						done, err := e.c.Succeed(e.ctx, e.pool, worker, all)
						Expect(err).NotTo(HaveOccurred())
						Expect(done).To(HaveLen(len(all)))
						l.done(done)
					}
				}
			})
		}
		wg.Wait()
		close(stop)
		reapers.Wait()
		l.check(ids)
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.finished`)).To(Equal(jobs))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs`)).To(Equal(0))
		s := e.sample()
		Expect(s.Succeeded).To(BeEquivalentTo(jobs))
		Expect(s.Claimed).To(BeEquivalentTo(len(l.tokens)))
	})
})
