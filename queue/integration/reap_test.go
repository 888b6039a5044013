package integration_test

import (
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("the reaper (R1, R4, Q17)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })

	It("works in bounded batches and says when there is more", func() {
		worker := uuid.New()
		e.enqueue(25)
		e.claim(worker, 25)
		e.expire(worker)
		var total, calls int64
		for more := true; more; calls++ {
			res := e.reap(queue.ReapRequest{Limit: 10})
			Expect(res.Returned).To(BeNumerically("<=", 10))
			total += res.Returned
			more = res.More
		}
		Expect(total).To(BeEquivalentTo(25))
		Expect(calls).To(BeEquivalentTo(3))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.workers`)).To(Equal(0), "removed with the last of its jobs")
	})

	It("gives a job taken back the place in the order that it had", func() {
		worker := uuid.New()
		first := e.one(worker)
		behind := e.enqueue(3)
		e.expire(worker)
		Expect(e.reap(queue.ReapRequest{}).Returned).To(BeEquivalentTo(1))
		e.due()
		runs := e.claim(uuid.New(), 4)
		Expect(runIDs(runs)).To(Equal(append([]int64{first.ID}, behind...)))
		Expect(runs[0].AvailableAt).To(BeTemporally("==", first.AvailableAt))
	})

	It("finds a job that marks hide, in a queue that no worker claims from (Q16)", func() {
		e.enqueue(1)
		e.exec(`INSERT INTO jobqueue.marks (queue, priorities, ats, ids, due_from, walked_at, walk_cost)
			SELECT 'q', '{0}', ARRAY[now() + interval '1 hour'], '{0}', now(), now() - interval '1 minute', 0`)
		Expect(e.sample().Pending).To(BeZero(), "the mark hides nothing, so this proves nothing")
		e.reap(queue.ReapRequest{})
		Expect(e.sample().Pending).To(BeEquivalentTo(1))
	})

	It("adds up the tallies of one huge transaction", func() {
		ids := e.enqueue(10)
		e.exec(`DO $$ BEGIN FOR i IN 1 .. 20010 LOOP INSERT INTO jobqueue.tallies (queue, claimed) VALUES ('q', 1); END LOOP; END $$`)
		Expect(e.c.Cancel(e.ctx, e.pool, ids, "")).To(HaveLen(10))
		for range 3 {
			e.reap(queue.ReapRequest{})
		}
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.tallies`)).To(BeZero())
		sample := e.sample()
		Expect([]int64{sample.Claimed, sample.Cancelled}).To(Equal([]int64{20010, 10}))
	})

	It("adds up the tallies of a transaction that outlasts others, once it is seen", func() {
		e.enqueue(6)
		count := func() []int64 {
			s := e.sample()
			return []int64{s.Claimed, s.Succeeded, query[int64](e, `SELECT count(*) FROM jobqueue.tallies`)}
		}
		slow, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = slow.Rollback(e.ctx) }()
		_, err = slow.Exec(e.ctx, `SELECT FROM jobqueue.claim('q', gen_random_uuid(), 1)`)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.claim(uuid.New(), 1)).To(HaveLen(1))
		e.reap(queue.ReapRequest{}) // the floor is now beyond the slow one
		Expect(count()).To(Equal([]int64{1, 0, 0}))
		worker := uuid.New()
		runs := e.claim(worker, 1)
		Expect(slow.Commit(e.ctx)).To(Succeed())
		Expect(count()).To(Equal([]int64{3, 0, 2}))
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs...))).To(HaveLen(1))
		for range 2 {
			e.reap(queue.ReapRequest{})
			Expect(count()).To(Equal([]int64{3, 1, 0}))
		}
	})

	It("keeps the lease that was promised when the policy shortens it (Q4)", func() {
		worker := uuid.New()
		run := e.one(worker)
		e.policy(func(p *queue.Policy) { p.Lease, p.Heartbeat = 2*time.Second, time.Second })
		hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run))
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.LeaseExpiresAt.Sub(hb.Now)).To(BeNumerically(">", 20*time.Second))
	})

	It("promotes what is due, of one queue or of all", func() {
		Expect(e.c.SetPolicy(e.ctx, e.pool, "other", queue.DefaultPolicy())).To(Succeed())
		for _, name := range []string{"q", "other"} {
			_, err := e.c.Enqueue(e.ctx, e.pool, name, queue.NewJob{Kind: "k", Delay: time.Hour}, queue.NewJob{Kind: "k", Delay: time.Hour})
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(e.reap(queue.ReapRequest{}).Promoted).To(BeZero())
		e.due()
		Expect(e.reap(queue.ReapRequest{Queue: "other"}).Promoted).To(BeEquivalentTo(2))
		Expect(e.reap(queue.ReapRequest{Limit: 1})).To(Equal(queue.ReapResult{Promoted: 1, More: true}))
		Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{Promoted: 1}))
		Expect(e.sample().Pending).To(BeEquivalentTo(2))
		_, err := e.c.Reap(e.ctx, e.pool, queue.ReapRequest{Queue: "nope"})
		Expect(err).To(MatchError(queue.ErrQueueNotFound))
	})

	It("leaves other queues' workers alone when asked for one", func() {
		Expect(e.c.SetPolicy(e.ctx, e.pool, "other", queue.DefaultPolicy())).To(Succeed())
		worker := uuid.New()
		e.one(worker)
		e.expire(worker)
		Expect(e.reap(queue.ReapRequest{Queue: "other"})).To(Equal(queue.ReapResult{}))
		Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{Returned: 1, WorkersRemoved: 1}))
	})

	DescribeTable("takes back the kinds that it is asked for, also of rows that are shared (Q17, W1)",
		func(expire string, workersLeft int) {
			e.enqueue(9, func(i int, j *queue.NewJob) { j.Kind = []string{"known", "unknown", "also known"}[i%3] })
			worker := uuid.New()
			runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 6, Alone: []string{}})
			Expect(err).NotTo(HaveOccurred())
			Expect(runs).To(HaveLen(6))
			_, err = e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 3, Alone: []string{"known", "unknown", "also known"}})
			Expect(err).NotTo(HaveOccurred())
			e.exec(expire)
			Expect(e.reap(queue.ReapRequest{Queue: "q", Kinds: []string{}})).To(Equal(queue.ReapResult{}))
			Expect(e.reap(queue.ReapRequest{Queue: "q", Kinds: []string{"known", "also known"}})).To(Equal(queue.ReapResult{Returned: 6}))
			Expect(query[[]string](e, `SELECT array_agg(kind || ' ' || n ORDER BY kind) FROM (SELECT kind, count(*) AS n FROM jobqueue.jobs WHERE state = 'running' GROUP BY kind) k`)).
				To(Equal([]string{"unknown 3"}))
			Expect(e.reap(queue.ReapRequest{Queue: "q", Kinds: []string{"known"}})).To(Equal(queue.ReapResult{}))
			Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{Returned: 3, WorkersRemoved: int64(1 - workersLeft)}))
		},
		Entry("of a dead worker", `UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() - interval '1 s'`, 0),
		Entry("past their deadline", `UPDATE jobqueue.batches SET deadline = clock_timestamp() - interval '1 s'`, 1),
	)

	It("does not wait for another that is left open, and leaves nothing behind of both (R4, Q16)", func() {
		e.policy(func(p *queue.Policy) { p.RetainSucceeded, p.RetainDead = 0, 0 })
		// As claims and reapers leave them while an old snapshot keeps dead rows.
		e.exec(`INSERT INTO jobqueue.walks (what, walked_at, cost, upto)
			SELECT what || ' of q', clock_timestamp(), 1000000, '2001-01-01' FROM unnest('{batches,ended,dead}'::text[]) what`)
		e.exec(`INSERT INTO jobqueue.marks (queue, priorities, ats, ids, due_from, walked_at, walk_cost)
			SELECT 'q', '{0}', '{2001-01-01}', '{0}', '2001-01-01', clock_timestamp(), 1000000 FROM generate_series(1, 3)`)
		reap := func(db queue.DB) error {
			_, err := e.c.Reap(e.ctx, db, queue.ReapRequest{Queue: "q", Retention: true})
			return err
		}
		open, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = open.Rollback(e.ctx) })
		Expect(reap(open)).To(Succeed())
		second, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = second.Rollback(e.ctx) })
		_, err = second.Exec(e.ctx, `SET LOCAL lock_timeout = '100ms'`)
		Expect(err).NotTo(HaveOccurred())
		Expect(reap(second)).To(Succeed())
		Expect(second.Commit(e.ctx)).To(Succeed())
		Expect(open.Commit(e.ctx)).To(Succeed())
		for range 2 {
			Expect(reap(e.pool)).To(Succeed())
		}
		Expect(query[[]string](e, `SELECT array_agg(what ORDER BY what) FROM jobqueue.walks`)).To(Equal([]string{"batches of q", "dead of q", "ended of q"}))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.walks WHERE upto > '2001-01-01'`)).To(Equal(3), "or none was written, and this proves nothing")
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.marks`)).To(Equal(1))
	})

	It("looks for deadlines again once it is time, however long the last walk was (Q16)", func() {
		for _, of := range []string{"", "q"} {
			live, gone := uuid.New(), uuid.New()
			stuck := e.one(live)
			e.exec(`UPDATE jobqueue.batches SET deadline = clock_timestamp() - interval '1 s'`)
			e.one(gone)
			e.expire(gone)
			e.exec(`INSERT INTO jobqueue.walks (what, walked_at, cost) VALUES ('deadlines', now(), 1000000), ('deadlines of q', now(), 1000000)`)
			Expect(e.reap(queue.ReapRequest{Queue: of})).To(Equal(queue.ReapResult{Returned: 1, WorkersRemoved: 1}), "leases are always looked at")
			Expect(e.job(stuck.ID).State).To(Equal(queue.StateRunning), "it was walked a moment ago, so this proves nothing")
			e.exec(`UPDATE jobqueue.walks SET walked_at = now() - interval '31 s'`)
			Expect(e.reap(queue.ReapRequest{Queue: of})).To(Equal(queue.ReapResult{Returned: 1}))
			Expect(e.job(stuck.ID).LastError).To(Equal("deadline passed"))
		}
	})

	It("counts runs, not the rows that they share, of workers that are gone (Q17)", func() {
		e.enqueue(15)
		worker := uuid.New()
		for range 3 {
			runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 5, Alone: []string{}})
			Expect(err).NotTo(HaveOccurred())
			Expect(runs).To(HaveLen(5))
		}
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.batches`)).To(Equal(3), "they share rows, or this proves nothing")
		e.exec(`DELETE FROM jobqueue.workers`)
		Expect(e.reap(queue.ReapRequest{Limit: 7})).To(Equal(queue.ReapResult{Returned: 10, More: true}), "whole rows, until the limit is reached")
		Expect(e.reap(queue.ReapRequest{Limit: 7})).To(Equal(queue.ReapResult{Returned: 5}))
	})

	It("does not walk the same dead entries in each call for workers that are gone, though nothing runs (Q16)", func() {
		old, err := e.pool.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = old.Rollback(e.ctx) })
		_, err = old.Exec(e.ctx, `SELECT count(*) FROM jobqueue.jobs`)
		Expect(err).NotTo(HaveOccurred())
		worker := uuid.New()
		e.enqueue(2000)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(e.claim(worker, 2000)...))).To(HaveLen(2000))
		Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{}))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.walks WHERE what = 'orphans'`)).To(Equal(1))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.walks WHERE what LIKE 'deadlines%' AND cost > 4000`)).To(BeZero(), "charged once")
	})

	It("begins retention at the beginning again once it is time (Q16, Q17)", func() {
		worker := uuid.New()
		e.enqueue(4)
		runs := e.claim(worker, 4)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[0]))).To(HaveLen(1))
		Expect(e.c.Discard(e.ctx, e.pool, worker, discards("", runs[1].Ref))).To(HaveLen(1))
		Expect(e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: runs[2].Ref, Permanent: true}})).To(HaveLen(1))
		e.policy(func(p *queue.Policy) { p.RetainSucceeded, p.RetainDead = 0, 0 })
		e.exec(`INSERT INTO jobqueue.walks (what, walked_at, cost, upto)
			SELECT what || ' of q', now(), 1000000, clock_timestamp() FROM unnest('{batches,ended,dead}'::text[]) what`)
		Expect(e.reap(queue.ReapRequest{Retention: true})).To(Equal(queue.ReapResult{}), "they are hidden, or this proves nothing")
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[3]))).To(HaveLen(1))
		Expect(e.reap(queue.ReapRequest{Retention: true})).To(Equal(queue.ReapResult{FinishedPurged: 1}), "what finished since is not")
		e.exec(`UPDATE jobqueue.walks SET walked_at = now() - interval '31 s'`)
		Expect(e.reap(queue.ReapRequest{Retention: true})).To(Equal(queue.ReapResult{FinishedPurged: 2, DeadPurged: 1}))
	})

	It("applies retention per queue, in batches, only when asked", func() {
		worker := uuid.New()
		e.enqueue(12)
		runs := e.claim(worker, 12)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[:8]...))).To(HaveLen(8))
		var failures []queue.Failure
		for _, run := range runs[8:] {
			failures = append(failures, queue.Failure{Ref: run.Ref, Permanent: true})
		}
		_, err := e.c.Fail(e.ctx, e.pool, worker, failures)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.reap(queue.ReapRequest{Retention: true})).To(Equal(queue.ReapResult{}))
		e.policy(func(p *queue.Policy) { p.RetainSucceeded, p.RetainDead = 0, 0 })
		Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{}))
		Expect(e.reap(queue.ReapRequest{Retention: true, Limit: 5})).To(Equal(queue.ReapResult{FinishedPurged: 5, DeadPurged: 4, More: true}))
		Expect(e.reap(queue.ReapRequest{Retention: true, Limit: 5})).To(Equal(queue.ReapResult{FinishedPurged: 3}))
		Expect(e.sample().Succeeded).To(BeEquivalentTo(8), "totals outlive history")
	})
})

var _ = Describe("dead letters and views (Q7, O4)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })

	bury := func(n int, kind string) []int64 {
		worker := uuid.New()
		ids := e.enqueue(n, func(_ int, j *queue.NewJob) { j.Kind = kind; j.MaxAttempts = 5 })
		var failures []queue.Failure
		for _, run := range e.claim(worker, n) {
			failures = append(failures, queue.Failure{Ref: run.Ref, Error: "broken", Permanent: true})
		}
		out, err := e.c.Fail(e.ctx, e.pool, worker, failures)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(HaveLen(n))
		return ids
	}

	It("lists by pages, requeues one, some and by kind, and purges", func() {
		a := bury(5, "a")
		b := bury(3, "b")
		page, err := e.c.ListDead(e.ctx, e.pool, "q", 4, 0)
		Expect(err).NotTo(HaveOccurred())
		Expect(page).To(HaveLen(4))
		Expect(page[0].ID).To(Equal(a[0]))
		Expect(page[0].LastError).To(Equal("broken"))
		Expect(page[0].Errors).To(HaveLen(1))
		Expect(page[0].Payload).To(MatchJSON(`{"n":0}`))
		page, err = e.c.ListDead(e.ctx, e.pool, "q", 100, page[3].ID)
		Expect(err).NotTo(HaveOccurred())
		Expect(page).To(HaveLen(4))

		Expect(e.c.Requeue(e.ctx, e.pool, "q", nil)).To(BeEmpty())
		e.exec(`SELECT jobqueue.set_policy('other')`)
		Expect(e.c.Requeue(e.ctx, e.pool, "other", a)).To(BeEmpty())
		Expect(e.c.Requeue(e.ctx, e.pool, "q", []int64{a[1], 1 << 50})).To(Equal(a[1:2]))
		run := e.claim(uuid.New(), 10)
		Expect(runIDs(run)).To(Equal(a[1:2]), "the same id, so the same idempotency key")
		Expect(run[0].Attempt).To(Equal(1))
		Expect(run[0].MaxAttempts).To(Equal(5))
		Expect(e.c.RequeueKind(e.ctx, e.pool, "q", "b", 2)).To(Equal(b[:2]))
		Expect(e.c.RequeueKind(e.ctx, e.pool, "q", "", 1)).To(Equal(a[:1]))

		Expect(e.c.PurgeDead(e.ctx, e.pool, "q", time.Hour, 100)).To(BeZero())
		Expect(e.c.PurgeDead(e.ctx, e.pool, "q", 0, 2)).To(BeEquivalentTo(2))
		Expect(e.c.PurgeDead(e.ctx, e.pool, "q", 0, 100)).To(BeEquivalentTo(2))
		Expect(e.sample().Dead).To(BeZero())
	})

	It("finds jobs in batches however far apart their ids are (O4)", func() {
		// One or two jobs each, whose ids are around the same place.
		var first, all []int64
		for bits := range 40 {
			for _, distance := range []int64{1<<bits - 1, 1 << bits} {
				id := int64(1_000_000)
				for slices.Contains(all, id) || slices.Contains(all, id+distance) {
					id++
				}
				first = append(first, id)
				ids := slices.Compact([]int64{id, id + distance})
				all = append(all, ids...)
				e.exec(`INSERT INTO jobqueue.batches (started_at, deadline, worker_id, min_id, max_id, key, open, succeeded, queue, ids, jobs)
					SELECT now(), now() + interval '1 h', $1, min(i), max(i), jobqueue.new_batch_key(), repeat('1', count(*)::int)::varbit, repeat('0', count(*)::int)::varbit,
						'q', array_agg(i), array_agg(ROW(i, now(), now(), NULL, 0, 5, 0, 'pending', 'q', 'k', '1', NULL, NULL)::jobqueue.waiting)
					FROM unnest($2::bigint[]) i`, uuid.New(), ids)
			}
		}
		for _, id := range all {
			Expect(e.job(id).ID).To(Equal(id))
		}
		for _, id := range []int64{0, -1, 999_999, 1_500_000, math.MaxInt64, math.MinInt64} {
			_, err := e.c.Get(e.ctx, e.pool, id)
			Expect(err).To(MatchError(queue.ErrJobNotFound))
		}
		Expect(e.c.Cancel(e.ctx, e.pool, first, "")).To(ConsistOf(first))
		rest := slices.DeleteFunc(slices.Clone(all), func(id int64) bool { return slices.Contains(first, id) })
		e.exec(`UPDATE jobqueue.batches SET succeeded = open, open = open & ~open, finished_at = now()`)
		slices.Sort(rest)
		slices.Reverse(rest)
		var listed []int64
		for before := int64(0); len(listed) < len(rest); before = listed[len(listed)-1] {
			page, err := e.c.List(e.ctx, e.pool, queue.ListRequest{State: queue.StateSucceeded, Limit: 7, Before: before})
			Expect(err).NotTo(HaveOccurred())
			Expect(page).NotTo(BeEmpty())
			for _, job := range page {
				listed = append(listed, job.ID)
			}
		}
		Expect(listed).To(Equal(rest))
	})

	It("gets and lists jobs of every state", func() {
		worker := uuid.New()
		dead := bury(1, "k")
		e.enqueue(3)
		runs := e.claim(worker, 3)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[0]))).To(HaveLen(1))
		Expect(e.c.Discard(e.ctx, e.pool, worker, discards("", runs[1].Ref))).To(HaveLen(1))
		pending := e.enqueue(2, func(_ int, j *queue.NewJob) { j.Kind = "x" })
		scheduled := e.enqueue(1, func(_ int, j *queue.NewJob) { j.Delay = time.Hour })
		list := func(req queue.ListRequest) []int64 {
			jobs, err := e.c.List(e.ctx, e.pool, req)
			Expect(err).NotTo(HaveOccurred())
			ids := make([]int64, len(jobs))
			for i, job := range jobs {
				ids[i] = job.ID
			}
			return ids
		}
		Expect(list(queue.ListRequest{Queue: "q"})).To(Equal([]int64{scheduled[0], pending[1], pending[0], runs[2].ID}))
		Expect(list(queue.ListRequest{State: queue.StatePending})).To(Equal([]int64{pending[1], pending[0]}))
		Expect(list(queue.ListRequest{State: queue.StatePending, Limit: 1, Before: pending[1]})).To(Equal(pending[:1]))
		Expect(list(queue.ListRequest{Kind: "x"})).To(HaveLen(2))
		Expect(list(queue.ListRequest{State: queue.StateScheduled})).To(Equal(scheduled))
		Expect(list(queue.ListRequest{State: queue.StateRunning})).To(Equal([]int64{runs[2].ID}))
		Expect(list(queue.ListRequest{State: queue.StateSucceeded})).To(Equal([]int64{runs[0].ID}))
		Expect(list(queue.ListRequest{State: queue.StateDiscarded})).To(Equal([]int64{runs[1].ID}))
		Expect(list(queue.ListRequest{State: queue.StateCancelled})).To(BeEmpty())
		Expect(list(queue.ListRequest{State: queue.StateDead})).To(Equal(dead))
		e.exec(`SELECT jobqueue.set_policy('other')`)
		Expect(list(queue.ListRequest{Queue: "other"})).To(BeEmpty())
		_, err := e.c.List(e.ctx, e.pool, queue.ListRequest{State: "done"})
		Expect(err).To(MatchError(queue.ErrInvalidArgument))
		_, err = e.c.Get(e.ctx, e.pool, 1<<60)
		Expect(err).To(MatchError(queue.ErrJobNotFound))
	})
})
