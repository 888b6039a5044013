package integration_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("claims (Q1, Q2)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })

	It("end with a client that has stopped reading, as docs/sql-protocol.md has it (Q3, Q14)", func() {
		const jobs = 48 // of 256 KB, all different: more than the sockets between take
		e.exec(`SELECT FROM generate_series(1, $1) i, LATERAL jobqueue.enqueue('q', 'k', (
			SELECT to_jsonb(string_agg(md5(i || ' ' || n), '')) FROM generate_series(1, 8000) n))`, jobs)
		config, err := pgx.ParseConfig(e.db.URL)
		Expect(err).NotTo(HaveOccurred())
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(1 << 16)
			}
			return conn, err
		}
		frozen, err := pgx.ConnectConfig(e.ctx, config)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = frozen.Close(context.Background()) })
		_, err = frozen.Exec(e.ctx, `SET tcp_user_timeout = '1s'`)
		Expect(err).NotTo(HaveOccurred())
		frozen.PgConn().Exec(e.ctx, `SELECT * FROM jobqueue.claim('q', gen_random_uuid(), 100)`) // sent; nobody reads the answer
		Eventually(func() string {
			return query[string](e, `SELECT coalesce(string_agg(wait_event, ''), '') FROM pg_stat_activity WHERE pid = $1`, frozen.PgConn().PID())
		}).Should(Equal("ClientWrite"))
		claimed := len(e.claim(uuid.New(), 100))
		Expect(claimed).To(BeNumerically("<", 20), "little is held, so this proves nothing")
		Eventually(func() int {
			claimed += len(e.claim(uuid.New(), 100))
			return claimed
		}).WithTimeout(30 * time.Second).Should(Equal(jobs))
	})

	It("returns everything a handler needs", func() {
		e.policy(func(p *queue.Policy) { p.Timeout = 90 * time.Second; p.Lease = 40 * time.Second })
		ids := e.enqueue(1, func(_ int, j *queue.NewJob) { j.Priority = 7; j.MaxAttempts = 3 })
		worker := uuid.New()
		run := e.claim(worker, 5)[0]
		Expect(run.ID).To(Equal(ids[0]))
		Expect(run.Token).NotTo(Equal(uuid.Nil))
		Expect(run.Queue).To(Equal("q"))
		Expect(run.Kind).To(Equal("k"))
		Expect(run.Payload).To(MatchJSON(`{"n":0}`))
		Expect(run.Priority).To(BeEquivalentTo(7))
		Expect(run.Attempt).To(Equal(1))
		Expect(run.MaxAttempts).To(Equal(3))
		Expect(run.Timeout).To(Equal(90 * time.Second))
		Expect(run.Lease).To(Equal(40 * time.Second))
		Expect(run.Deadline.Sub(run.StartedAt)).To(Equal(130 * time.Second))
		Expect(run.CreatedAt).To(Equal(run.AvailableAt))
		Expect(run.StartedAt).To(BeTemporally(">=", run.AvailableAt))
		job := e.job(run.ID)
		Expect(job.State).To(Equal(queue.StateRunning))
		Expect(job.Worker).To(Equal(worker))
	})

	It("leaves the worker's row to its heartbeats while they are in time, however long it takes (Q4)", func() {
		e.enqueue(2)
		worker := uuid.New()
		e.claim(worker, 1)
		// Well over half a heartbeat ago, and more than half of the lease is left.
		e.exec(`UPDATE jobqueue.workers SET heartbeat_at = now() - interval '9 s', lease_expires_at = now() + interval '21 s'`)
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = tx.Rollback(e.ctx) })
		runs, err := e.c.Claim(e.ctx, tx, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 1})
		Expect(err).NotTo(HaveOccurred())
		Expect(runs).To(HaveLen(1))
		beats, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = beats.Rollback(e.ctx) })
		_, err = beats.Exec(e.ctx, `SET LOCAL lock_timeout = '100ms'`)
		Expect(err).NotTo(HaveOccurred())
		_, err = e.c.Heartbeat(e.ctx, beats, worker, "q", nil)
		Expect(err).NotTo(HaveOccurred(), "the heartbeat waits for the claim")
	})

	It("renews a lease of which less than half is left, whose heartbeats are late (Q4)", func() {
		worker := uuid.New()
		e.claim(worker, 1)
		e.exec(`UPDATE jobqueue.workers SET lease_expires_at = now() + interval '14 s'`)
		e.claim(worker, 1)
		Expect(query[bool](e, `SELECT lease_expires_at > now() + interval '29 s' FROM jobqueue.workers`)).To(BeTrue())
	})

	It("orders by priority, available time, id", func() {
		a := e.enqueue(3)
		b := e.enqueue(2, func(_ int, j *queue.NewJob) { j.Priority = -5 })
		c := e.enqueue(1, func(_ int, j *queue.NewJob) { j.RunAt = time.Now().Add(-time.Minute) })
		d := e.enqueue(1, func(_ int, j *queue.NewJob) { j.Priority = 32767 })
		want := append(append(append(append([]int64{}, b...), c...), a...), d...)
		Expect(runIDs(e.claim(uuid.New(), 100))).To(Equal(want))
	})

	DescribeTable("takes the first of a large backlog, whatever number it takes at once (Q1, Q2)",
		func(alone []string, marked bool) {
			const jobs, limit = 3000, 2500
			base := time.Now().Add(-time.Hour)
			e.enqueue(jobs, func(i int, j *queue.NewJob) {
				j.Priority = int16(i*7919%5 - 2)
				j.RunAt = base.Add(time.Duration(i*104_729%40) * time.Second) // many at the same time
				if i%50 == 0 {
					j.Payload = strings.Repeat("long ", 1000) // a row of its own, and fewer at once
				}
			})
			// Some are being claimed by another: they are passed over.
			tx, err := e.pool.Begin(e.ctx)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { _ = tx.Rollback(e.ctx) })
			_, err = tx.Exec(e.ctx, `SELECT id FROM jobqueue.waiting WHERE id % 11 = 0 FOR UPDATE`)
			Expect(err).NotTo(HaveOccurred())
			if marked {
				// As a claim leaves them that walked over dead rows of the priorities -2 and 0.
				e.exec(`INSERT INTO jobqueue.marks (queue, priorities, ats, ids, due_from, walked_at, walk_cost)
					VALUES ('q', '{-2,0}', ARRAY[$1::timestamptz, $1], '{0,0}', now() - interval '1 day', now(), 1000000)`, base.Add(-time.Second))
			}
			want := query[[]int64](e, `SELECT array_agg(id ORDER BY priority, available_at, id)
				FROM (SELECT * FROM jobqueue.waiting WHERE id % 11 <> 0 ORDER BY priority, available_at, id LIMIT $1) w`, limit)
			runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: limit, Alone: alone})
			Expect(err).NotTo(HaveOccurred())
			Expect(runIDs(runs)).To(Equal(want))
			Expect(query[int](e, `SELECT count(*) FROM jobqueue.waiting`)).To(Equal(jobs - limit))
		},
		Entry("a row each", nil, false), Entry("shared rows", []string{}, false),
		Entry("a row each, skipping dead ones", nil, true), Entry("shared rows, skipping dead ones", []string{}, true),
	)

	It("passes over rows that others have locked", func() {
		ids := e.enqueue(4)
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		held, err := e.c.Claim(e.ctx, tx, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 2})
		Expect(err).NotTo(HaveOccurred())
		Expect(runIDs(held)).To(Equal(ids[:2]))
		Expect(runIDs(e.claim(uuid.New(), 10))).To(Equal(ids[2:]))
		Expect(tx.Rollback(e.ctx)).To(Succeed())
		Expect(runIDs(e.claim(uuid.New(), 10))).To(Equal(ids[:2]), "what was rolled back is ready again")
	})

	It("has large claims take turns, and waits for none for long (Q1)", func() {
		ids := e.enqueue(600)
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = tx.Rollback(e.ctx) })
		held, err := e.c.Claim(e.ctx, tx, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 200})
		Expect(err).NotTo(HaveOccurred())
		Expect(runIDs(held)).To(Equal(ids[:200]))
		Expect(runIDs(e.claim(uuid.New(), 199))).To(Equal(ids[200:399]), "small ones do not wait")

		claimed := make(chan []queue.Run, 1)
		go func() {
			defer GinkgoRecover()
			claimed <- e.claim(uuid.New(), 200)
		}()
		waits := func() int {
			return query[int](e, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		}
		Eventually(waits).WithPolling(time.Millisecond).Should(Equal(1))
		var runs []queue.Run
		Eventually(claimed).WithTimeout(10 * time.Second).Should(Receive(&runs))
		Expect(runIDs(runs)).To(Equal(ids[399:599]))
	})

	It("claims only the kinds asked for", func() {
		e.enqueue(2, func(_ int, j *queue.NewJob) { j.Kind = "a" })
		b := e.enqueue(2, func(_ int, j *queue.NewJob) { j.Kind = "b" })
		claim := func(kinds []string) []queue.Run {
			runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 1, Kinds: kinds})
			Expect(err).NotTo(HaveOccurred())
			return runs
		}
		Expect(claim([]string{})).To(BeEmpty())
		Expect(claim([]string{"x"})).To(BeEmpty())
		Expect(runIDs(claim([]string{"x", "b"}))).To(Equal(b[:1]))
		Expect(claim(nil)[0].Kind).To(Equal("a"))
	})

	It("yields nothing while suspended, and running jobs finish (P4)", func() {
		worker := uuid.New()
		run := e.one(worker)
		e.enqueue(3)
		e.policy(func(p *queue.Policy) { p.Suspended = true })
		Expect(e.claim(worker, 10)).To(BeEmpty())
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(run))).To(HaveLen(1))
		Expect(e.sample().Suspended).To(BeTrue())
		e.policy(func(p *queue.Policy) { p.Suspended = false })
		Expect(e.claim(worker, 10)).To(HaveLen(3))
	})

	It("refuses bad arguments", func() {
		worker := uuid.New()
		e.claim(worker, 1)
		Expect(e.c.SetPolicy(e.ctx, e.pool, "other", queue.DefaultPolicy())).To(Succeed())
		for _, tc := range []struct {
			req  queue.ClaimRequest
			want error
		}{
			{queue.ClaimRequest{Queue: "nope", Worker: worker, Limit: 1}, queue.ErrQueueNotFound},
			{queue.ClaimRequest{Queue: "", Worker: worker, Limit: 1}, queue.ErrInvalidArgument},
			{queue.ClaimRequest{Queue: "q", Limit: 1}, queue.ErrInvalidArgument},
			{queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 0}, queue.ErrInvalidArgument},
			{queue.ClaimRequest{Queue: "q", Worker: worker, Limit: -1}, queue.ErrInvalidArgument},
			{queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 10_001}, queue.ErrInvalidArgument},
			{queue.ClaimRequest{Queue: "other", Worker: worker, Limit: 1}, queue.ErrWorkerQueue},
		} {
			_, err := e.c.Claim(e.ctx, e.pool, tc.req)
			Expect(err).To(MatchError(tc.want), "%+v", tc.req)
		}
		_, err := e.pool.Exec(e.ctx, `SELECT jobqueue.claim('q', gen_random_uuid(), NULL)`)
		Expect(err).To(MatchError(ContainSubstring("limit is null; allowed: 1 to 10000")))
	})
})

var _ = Describe("leases and fencing (Q3, Q4)", func() {
	var (
		e      *env
		worker uuid.UUID
	)
	BeforeEach(func() {
		e = newEnv(nil)
		worker = uuid.New()
	})

	It("writes one worker row per heartbeat, and reports what is lost", func() {
		e.enqueue(3)
		runs := e.claim(worker, 3)
		hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(runs...))
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(BeEmpty())
		Expect(hb.LeaseExpiresAt.Sub(hb.Now)).To(BeNumerically("~", 30*time.Second, time.Millisecond))
		Expect(hb.Policy).To(Equal(queue.DefaultPolicy()))

		Expect(e.c.Cancel(e.ctx, e.pool, []int64{runs[1].ID}, "not wanted")).To(Equal([]int64{runs[1].ID}))
		stale := queue.Ref{ID: runs[2].ID, Token: uuid.New()}
		hb, err = e.c.Heartbeat(e.ctx, e.pool, worker, "q", []queue.Ref{runs[0].Ref, runs[1].Ref, stale})
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(ConsistOf(runs[1].Token, stale.Token))
		hb, err = e.c.Heartbeat(e.ctx, e.pool, worker, "q", nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(BeEmpty())
	})

	It("tells a worker that the runs of another are not its own, for its heartbeat does not keep them", func() {
		e.enqueue(2)
		runs, other := e.claim(worker, 2), uuid.New()
		hb, err := e.c.Heartbeat(e.ctx, e.pool, other, "q", refs(runs...))
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(ConsistOf(runs[0].Token, runs[1].Token))
	})

	It("names the worker's pod from its first claim on, also where a heartbeat came first", func() {
		_, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", nil)
		Expect(err).NotTo(HaveOccurred())
		e.enqueue(1)
		e.one(worker)
		var pod string
		Expect(e.pool.QueryRow(e.ctx, `SELECT pod FROM jobqueue.workers WHERE id = $1`, worker.String()).Scan(&pod)).To(Succeed())
		Expect(pod).To(Equal("pod-0"))
	})

	It("brings a changed policy to running workers (W10)", func() {
		e.claim(worker, 1)
		e.policy(func(p *queue.Policy) { p.BatchSize = 7; p.Generation = 3; p.Timeout = 1500 * time.Millisecond })
		hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Policy.BatchSize).To(Equal(7))
		Expect(hb.Policy.Generation).To(BeEquivalentTo(3))
		Expect(hb.Policy.Timeout).To(Equal(1500 * time.Millisecond))
	})

	It("refuses every write with a stale token after the lease was lost", func() {
		run := e.one(worker)
		e.expire(worker)
		Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{Returned: 1, WorkersRemoved: 1}))
		e.due()
		second := uuid.New()
		again := e.claim(second, 1)
		Expect(again).To(HaveLen(1))
		Expect(again[0].Token).NotTo(Equal(run.Token))
		Expect(again[0].Attempt).To(Equal(2))

		for _, w := range []uuid.UUID{worker, uuid.Nil} {
			stale := refs(run)
			Expect(e.c.Succeed(e.ctx, e.pool, w, stale)).To(BeEmpty())
			Expect(e.c.Fail(e.ctx, e.pool, w, []queue.Failure{{Ref: run.Ref, Error: "late"}})).To(BeEmpty())
			Expect(e.c.Fail(e.ctx, e.pool, w, []queue.Failure{{Ref: run.Ref, Permanent: true}})).To(BeEmpty())
			Expect(e.c.Snooze(e.ctx, e.pool, w, snoozes(time.Second, stale...))).To(BeEmpty())
			Expect(e.c.Discard(e.ctx, e.pool, w, discards("late", stale...))).To(BeEmpty())
			Expect(e.c.Release(e.ctx, e.pool, w, stale)).To(BeEmpty())
		}
		hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run))
		Expect(err).NotTo(HaveOccurred(), "a worker that was removed is registered anew")
		Expect(hb.Lost).To(Equal([]uuid.UUID{run.Token}))
		Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())

		Expect(e.job(run.ID).Worker).To(Equal(second), "the second owner is undisturbed")
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(again...))).To(BeEmpty(), "another worker's run")
		Expect(e.c.Succeed(e.ctx, e.pool, second, refs(again...))).To(Equal([]int64{run.ID}))
		Expect(e.c.Succeed(e.ctx, e.pool, second, refs(again...))).To(BeEmpty(), "finished once")
	})

	It("tells the lost one of two runs of a job that a worker had twice", func() {
		run := e.one(worker)
		e.exec(`UPDATE jobqueue.batches SET deadline = clock_timestamp() - interval '1 s'`)
		Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{Returned: 1}))
		e.due()
		again := e.claim(worker, 1)[0]
		Expect(again.ID).To(Equal(run.ID))
		hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run, again))
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(Equal([]uuid.UUID{run.Token}))
	})

	It("lets a late heartbeat save what the reaper has not taken yet", func() {
		run := e.one(worker)
		e.expire(worker)
		hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run))
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(BeEmpty())
		Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{}))
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(run))).To(HaveLen(1))
	})

	It("takes a run back at its hard deadline, whatever its worker says (W6)", func() {
		run := e.one(worker)
		e.exec(`UPDATE jobqueue.batches SET deadline = clock_timestamp() - interval '1 s'`)
		hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run))
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(BeEmpty())
		Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{Returned: 1}))
		Expect(e.job(run.ID).LastError).To(Equal("deadline passed"))
		Expect(e.sample().Overdue).To(BeEquivalentTo(1))
		hb, err = e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run))
		Expect(err).NotTo(HaveOccurred())
		Expect(hb.Lost).To(Equal([]uuid.UUID{run.Token}))
	})

	It("expires a real lease by the database's clock", func() {
		e.policy(func(p *queue.Policy) { p.Lease = 60 * time.Millisecond; p.Heartbeat = 20 * time.Millisecond })
		e.one(worker)
		end := query[time.Time](e, `SELECT lease_expires_at FROM jobqueue.workers`)
		var by time.Time
		Eventually(func() int64 {
			returned := e.reap(queue.ReapRequest{}).Returned
			by = query[time.Time](e, `SELECT clock_timestamp()`)
			return returned
		}).Should(BeEquivalentTo(1))
		Expect(by).To(BeTemporally(">", end), "not before")
	})

	It("tells a stuck handler from a dead process, however late the reaper comes (W6)", func() {
		e.policy(func(p *queue.Policy) { p.MaxAttempts = 1 })
		ids := e.enqueue(2)
		first, second := uuid.New(), uuid.New()
		Expect(runIDs(e.claim(first, 1))).To(Equal(ids[:1]))
		Expect(runIDs(e.claim(second, 1))).To(Equal(ids[1:]))
		// The first process went on beating after its job's deadline, and then died; the
		// second one died before it. An hour later both are long overdue.
		e.exec(`UPDATE jobqueue.batches SET deadline = clock_timestamp() - interval '1 h'`)
		e.exec(`UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() - CASE id WHEN $1 THEN interval '1 min' ELSE interval '2 h' END`, first)
		Expect(e.reap(queue.ReapRequest{Queue: "q"}).Buried).To(BeEquivalentTo(2))
		for id, why := range map[int64]string{ids[0]: "deadline passed", ids[1]: "lease expired"} {
			job := e.job(id)
			Expect(job.Reason).To(Equal(why))
			Expect(job.LastError).To(Equal(why))
		}
		s := e.sample()
		Expect(s.Lost).To(BeEquivalentTo(2))
		Expect(s.Overdue).To(BeEquivalentTo(1))
	})

	Context("after the database's clock was set back by an hour (Q4, R1)", func() {
		setBack := func() {
			e.exec(`UPDATE jobqueue.workers SET heartbeat_at = heartbeat_at + interval '1 h', lease_expires_at = lease_expires_at + interval '1 h'`)
			e.exec(`UPDATE jobqueue.batches SET started_at = started_at + interval '1 h', deadline = deadline + interval '1 h'`)
			e.exec(`UPDATE jobqueue.walks SET walked_at = walked_at + interval '1 h'`)
			e.exec(`UPDATE jobqueue.folded SET folded_at = clock_timestamp() + interval '1 h'`)
		}

		It("gives no worker a longer lease than its policy's, nor a shorter one than it was promised", func() {
			beat := func() time.Duration {
				hb, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", nil)
				Expect(err).NotTo(HaveOccurred())
				return hb.LeaseExpiresAt.Sub(hb.Now)
			}
			beat()
			setBack()
			Expect(beat()).To(BeNumerically("~", 30*time.Second, 10*time.Millisecond))
			By("shortening the lease")
			e.policy(func(p *queue.Policy) { p.Lease, p.Heartbeat = 15*time.Second, 5*time.Second })
			setBack()
			Expect(beat()).To(BeNumerically("~", 30*time.Second, 10*time.Millisecond), "the promise, of which nobody knows what is left")
		})

		It("takes back what a dead worker ran once the lease that it was promised has passed, also where it ran under no lease", func() {
			run, other := e.one(worker), uuid.New()
			orphan := e.one(other)
			e.exec(`DELETE FROM jobqueue.workers WHERE id = $1`, other)
			setBack()
			Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{Returned: 1}))
			Expect(e.job(orphan.ID).State).To(Equal(queue.StatePending))
			Expect(query[float64](e, `SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM jobqueue.workers`)).To(BeNumerically("~", 30, 1))
			e.expire(worker)
			Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{Returned: 1, WorkersRemoved: 1}))
			Expect(e.job(run.ID).LastError).To(Equal("lease expired"))
		})

		It("looks for deadlines, and adds up the totals, as if nobody just had", func() {
			e.one(worker)
			e.exec(`INSERT INTO jobqueue.walks (what, walked_at, cost) VALUES ('deadlines of q', now(), 1000000)`)
			setBack()
			e.exec(`UPDATE jobqueue.batches SET started_at = started_at - interval '2 h', deadline = clock_timestamp() - interval '1 s'`)
			Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{Returned: 1}))
			Expect(query[int](e, `SELECT lost FROM jobqueue.totals`)).To(Equal(1))
		})

		It("finds what has come since where claims skipped dead rows", func() {
			hide := func() {
				e.exec(`INSERT INTO jobqueue.marks (queue, priorities, ats, ids, due_from, walked_at, walk_cost)
					VALUES ('q', '{0}', ARRAY[now() + interval '1 h'], '{0}', now() + interval '1 h', now() + interval '1 h', 1000000)`)
			}
			ids := e.enqueue(2)
			hide()
			Expect(runIDs(e.claim(worker, 1))).To(Equal(ids[:1]))
			By("with no worker to look")
			hide()
			Expect(e.sample().Pending).To(BeZero(), "it is hidden, or this proves nothing")
			e.reap(queue.ReapRequest{})
			Expect(e.sample().Pending).To(BeEquivalentTo(1))
		})
	})

	It("buries a job whose lease ran out on its last attempt (Q7)", func() {
		e.policy(func(p *queue.Policy) { p.MaxAttempts = 2 })
		ids := e.enqueue(1)
		for attempt := 1; attempt <= 2; attempt++ {
			e.due()
			Expect(e.claim(worker, 1)).To(HaveLen(1))
			e.expire(worker)
			e.reap(queue.ReapRequest{})
		}
		job := e.job(ids[0])
		Expect(job.State).To(Equal(queue.StateDead))
		Expect(job.Reason).To(Equal("lease expired"))
		Expect(job.Errors).To(HaveLen(2))
		s := e.sample()
		Expect(s.Dead).To(BeEquivalentTo(1))
		Expect(s.Lost).To(BeEquivalentTo(2))
		Expect(s.Overdue).To(BeZero())
	})

	It("gives back on release and unregister without spending an attempt, in the old place", func() {
		ids := e.enqueue(3)
		runs := e.claim(worker, 2)
		Expect(e.c.Release(e.ctx, e.pool, worker, refs(runs[0]))).To(Equal(ids[:1]))
		job := e.job(ids[0])
		Expect(job.State).To(Equal(queue.StatePending))
		Expect(job.Attempt).To(Equal(0))
		Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.workers`)).To(Equal(0))
		again := e.claim(uuid.New(), 10)
		Expect(runIDs(again)).To(Equal(ids))
		Expect(again[0].Attempt).To(Equal(1))
		Expect(e.c.Unregister(e.ctx, e.pool, uuid.New())).To(Succeed(), "an unknown worker")
	})

	It("gives back what its worker does not know of, without spending an attempt, and nothing else (W3)", func() {
		ids := e.enqueue(6)
		claim := queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 3, Alone: []string{}}
		known, err := e.c.Claim(e.ctx, e.pool, claim)
		Expect(err).NotTo(HaveOccurred())
		other := e.one(uuid.New())
		// The claim whose answer is lost goes on in the database.
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		claim.Limit = 2
		lost, err := e.c.Claim(e.ctx, tx, claim)
		Expect(err).NotTo(HaveOccurred())
		Expect(lost).To(HaveLen(2))
		Expect(e.c.Disown(e.ctx, e.pool, worker, refs(known...))).To(BeEmpty())
		Expect(tx.Commit(e.ctx)).To(Succeed())
		Expect(e.c.Disown(e.ctx, e.pool, worker, refs(known...))).To(ConsistOf(runIDs(lost)))
		Expect(e.c.Disown(e.ctx, e.pool, worker, refs(known...))).To(BeEmpty())
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(lost...))).To(BeEmpty(), "they are nobody's now")
		for _, run := range lost {
			Expect(e.job(run.ID).State).To(Equal(queue.StatePending))
			Expect(e.job(run.ID).Attempt).To(Equal(0))
		}

		By("naming some that share a row, one of them under a token that is not its own")
		wrong := refs(known[:2]...)
		wrong[1].Token = lost[0].Token
		Expect(e.c.Disown(e.ctx, e.pool, worker, wrong)).To(ConsistOf(known[1].ID, known[2].ID))
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(known...))).To(Equal(ids[:1]))
		Expect(e.job(other.ID).State).To(Equal(queue.StateRunning), "another worker's")

		By("passing over what is locked")
		last := e.claim(worker, 1)
		tx, err = e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.c.Succeed(e.ctx, tx, worker, refs(last...))).To(HaveLen(1))
		Expect(e.c.Disown(e.ctx, e.pool, worker, nil)).To(BeEmpty())
		Expect(tx.Rollback(e.ctx)).To(Succeed())
		Expect(e.c.Disown(e.ctx, e.pool, worker, nil)).To(Equal(runIDs(last)))
		Expect(e.c.Disown(e.ctx, e.pool, uuid.New(), nil)).To(BeEmpty(), "an unknown worker")
	})

	It("costs as much per run however many runs the worker names, a row each (W3)", func() {
		e.enqueue(800)
		s := newSession(e)
		met := func(n int) int {
			return s.rows(call{function: "disown", prepare: held(n), sql: `SELECT jobqueue.disown($1, $2, $3::text[]::uuid[])`})
		}
		few, many := met(100), met(800)
		Expect(few).To(BeNumerically(">", 100), "or the plans were not read")
		Expect(many).To(BeNumerically("<", 10*few))
	})

	It("finishes within the handler's own transaction, or not at all (Q8)", func() {
		e.exec(`CREATE TABLE business (job bigint PRIMARY KEY)`)
		DeferCleanup(func() { e.exec(`DROP TABLE business`) })
		run := e.one(worker)
		finish := func(tx pgx.Tx) {
			_, err := tx.Exec(e.ctx, `INSERT INTO business VALUES ($1)`, run.ID)
			Expect(err).NotTo(HaveOccurred())
			Expect(e.c.Succeed(e.ctx, tx, uuid.Nil, refs(run))).To(HaveLen(1))
		}
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		finish(tx)
		// A long handler's transaction holds up neither heartbeats nor reapers.
		_, err = e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run))
		Expect(err).NotTo(HaveOccurred())
		e.expire(worker)
		Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{}))
		Expect(tx.Rollback(e.ctx)).To(Succeed())
		Expect(e.job(run.ID).State).To(Equal(queue.StateRunning))

		tx, err = e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		finish(tx)
		Expect(tx.Commit(e.ctx)).To(Succeed())
		Expect(e.job(run.ID).State).To(Equal(queue.StateSucceeded))
		Expect(query[int64](e, `SELECT job FROM business`)).To(Equal(run.ID))
	})

	It("has one winner when the reaper and a finish race, and two reapers are harmless (R4)", func() {
		e.policy(func(p *queue.Policy) { p.BackoffJitter = 0 })
		for range 30 {
			e.enqueue(20)
			w := uuid.New()
			runs := e.claim(w, 20)
			e.expire(w)
			var (
				wg   sync.WaitGroup
				mu   sync.Mutex
				done int
				back int64
			)
			for i := range 2 {
				wg.Go(func() {
					defer GinkgoRecover()
					accepted, err := e.c.Succeed(e.ctx, e.pool, w, refs(runs[i*10:i*10+10]...))
					Expect(err).NotTo(HaveOccurred())
					mu.Lock()
					defer mu.Unlock()
					done += len(accepted)
				})
				wg.Go(func() {
					defer GinkgoRecover()
					res, err := e.c.Reap(e.ctx, e.pool, queue.ReapRequest{Limit: 7})
					Expect(err).NotTo(HaveOccurred())
					mu.Lock()
					defer mu.Unlock()
					back += res.Returned + res.Buried
				})
			}
			wg.Wait()
			for more := true; more; {
				res := e.reap(queue.ReapRequest{Limit: 7})
				back += res.Returned + res.Buried
				more = res.More
			}
			Expect(int64(done)+back).To(BeEquivalentTo(20), "each is finished or returned, and only one of them")
			Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'running'`)).To(Equal(0))
			Expect(query[int](e, `SELECT count(*) FROM jobqueue.workers`)).To(Equal(0))
			e.run(`DELETE FROM jobqueue.waiting; DELETE FROM jobqueue.batches`)
		}
	})

	It("releases later what was locked when its worker unregistered, with no attempt counted", func() {
		e.policy(func(p *queue.Policy) { p.MaxAttempts = 1 })
		ids := e.enqueue(5)
		_, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 5, Alone: []string{}})
		Expect(err).NotTo(HaveOccurred())
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.c.Cancel(e.ctx, tx, ids[:1], "")).To(HaveLen(1))
		Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())
		Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{}), "it is still locked")
		Expect(tx.Commit(e.ctx)).To(Succeed())
		Expect(e.reap(queue.ReapRequest{})).To(Equal(queue.ReapResult{Returned: 4}))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND attempt = 0`)).To(Equal(4))
	})

	It("releases what a claim took that ended after its worker unregistered: by any worker, at most every ten seconds (W3, R1)", func() {
		e.policy(func(p *queue.Policy) { p.MaxAttempts = 1 })
		e.run(`SELECT jobqueue.set_policy('other')`)
		orphan := func() {
			e.enqueue(6)
			claim := queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 1, Alone: []string{}}
			first, err := e.c.Claim(e.ctx, e.pool, claim) // makes the worker's row, so that the next one need not
			Expect(err).NotTo(HaveOccurred())
			Expect(e.c.Release(e.ctx, e.pool, worker, []queue.Ref{first[0].Ref})).To(HaveLen(1))
			tx, err := e.pool.Begin(e.ctx)
			Expect(err).NotTo(HaveOccurred())
			claim.Limit = 5
			Expect(e.c.Claim(e.ctx, tx, claim)).To(HaveLen(5))
			Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())
			Expect(tx.Commit(e.ctx)).To(Succeed())
			Expect(query[int](e, `SELECT count(*) FROM jobqueue.workers`)).To(Equal(0))
		}
		orphan()
		Expect(e.reap(queue.ReapRequest{Queue: "other"})).To(Equal(queue.ReapResult{Returned: 5}))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND attempt = 0`)).To(Equal(6))

		orphan()
		e.run(`UPDATE jobqueue.walks SET walked_at = clock_timestamp() - interval '1 s' WHERE what = 'orphans'`)
		Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{}), "it is not time yet")
		e.run(`UPDATE jobqueue.walks SET walked_at = clock_timestamp() - interval '10.1 s' WHERE what = 'orphans'`)
		Expect(e.reap(queue.ReapRequest{Queue: "q"})).To(Equal(queue.ReapResult{Returned: 5}))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND attempt = 0`)).To(Equal(12))
	})
})
