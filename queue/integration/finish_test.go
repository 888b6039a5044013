package integration_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("finishing (Q5, Q6)", func() {
	var (
		e      *env
		worker uuid.UUID
	)
	BeforeEach(func() {
		e = newEnv(nil)
		worker = uuid.New()
	})

	It("keeps succeeded, discarded and cancelled apart, with history", func() {
		e.enqueue(4)
		runs := e.claim(worker, 3)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[0]))).To(HaveLen(1))
		Expect(e.c.Discard(e.ctx, e.pool, worker, discards("no such customer", runs[1].Ref))).To(HaveLen(1))
		pending := runs[2].ID + 1
		Expect(e.c.Cancel(e.ctx, e.pool, []int64{runs[2].ID, pending, 1 << 60}, "by hand")).To(ConsistOf(runs[2].ID, pending))

		first := e.job(runs[0].ID)
		Expect(first.State).To(Equal(queue.StateSucceeded))
		Expect(first.Worker).To(Equal(worker))
		Expect(first.Payload).To(MatchJSON(`{"n":0}`))
		Expect(first.FinishedAt).To(BeTemporally(">=", first.StartedAt))
		Expect(e.job(runs[1].ID).State).To(Equal(queue.StateDiscarded))
		Expect(e.job(runs[1].ID).Reason).To(Equal("no such customer"))
		Expect(e.job(runs[2].ID).State).To(Equal(queue.StateCancelled))
		Expect(e.job(pending).State).To(Equal(queue.StateCancelled))
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[2]))).To(BeEmpty(), "a cancelled job's result")

		s := e.sample()
		Expect([]int64{s.Claimed, s.Succeeded, s.Discarded, s.Cancelled, s.Failed}).To(Equal([]int64{3, 1, 1, 2, 0}))
	})

	It("cancels nothing rather than wait for a row that another session has locked", func() {
		ids := e.enqueue(3)
		run := e.claim(worker, 1)[0]
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(e.c.Succeed(e.ctx, tx, worker, refs(run))).To(HaveLen(1))
		_, err = e.c.Cancel(e.ctx, e.pool, ids, "")
		var locked *pgconn.PgError
		Expect(errors.As(err, &locked)).To(BeTrue())
		Expect(locked.Code).To(Equal("55P03"))
		Expect(tx.Rollback(e.ctx)).To(Succeed())
		Expect(e.sample().Pending).To(BeEquivalentTo(2))
		Expect(e.c.Cancel(e.ctx, e.pool, ids, "")).To(ConsistOf(ids))
	})

	It("takes no work and doubled work in stride", func() {
		for _, f := range []func() (int, error){
			func() (int, error) { a, err := e.c.Succeed(e.ctx, e.pool, worker, nil); return len(a), err },
			func() (int, error) { a, err := e.c.Fail(e.ctx, e.pool, worker, nil); return len(a), err },
			func() (int, error) { a, err := e.c.Snooze(e.ctx, e.pool, worker, nil); return len(a), err },
			func() (int, error) { a, err := e.c.Release(e.ctx, e.pool, worker, nil); return len(a), err },
			func() (int, error) { a, err := e.c.Cancel(e.ctx, e.pool, nil, ""); return len(a), err },
		} {
			Expect(f()).To(BeZero())
		}
		Expect(e.exec(`SELECT * FROM jobqueue.succeed('{}', '{}')`)).To(BeZero())
		run := e.one(worker)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(run, run))).To(Equal([]int64{run.ID}))
		run = e.one(worker)
		Expect(e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: run.Ref}, {Ref: run.Ref}})).To(HaveLen(1))
	})

	It("retries with backoff until the attempts are spent, then buries", func() {
		e.policy(func(p *queue.Policy) {
			p.MaxAttempts, p.BackoffJitter, p.BackoffBase, p.BackoffMax = 4, 0, 10*time.Second, 25*time.Second
		})
		ids := e.enqueue(1)
		for attempt, want := range []time.Duration{10 * time.Second, 20 * time.Second, 25 * time.Second} {
			e.due()
			run := e.claim(worker, 1)[0]
			Expect(run.Attempt).To(Equal(attempt + 1))
			before := query[time.Time](e, `SELECT clock_timestamp()`)
			out, err := e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: run.Ref, Error: "boom"}})
			Expect(err).NotTo(HaveOccurred())
			Expect(out).To(HaveLen(1))
			Expect(out[0].Dead).To(BeFalse())
			Expect(out[0].RetryAt.Sub(before)).To(BeNumerically("~", want, 2*time.Second))
			Expect(e.job(ids[0]).State).To(Equal(queue.StateScheduled))
			Expect(e.job(ids[0]).LastError).To(Equal("boom"))
		}
		e.due()
		out, err := e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: e.claim(worker, 1)[0].Ref, Error: "last"}})
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(Equal([]queue.FailOutcome{{ID: ids[0], Dead: true}}))
		job := e.job(ids[0])
		Expect(job.State).To(Equal(queue.StateDead))
		Expect(job.Reason).To(Equal("attempts exhausted"))
		Expect(job.Errors).To(HaveLen(4))
		Expect(job.Errors[3].Error).To(Equal("last"))
		Expect(e.sample().Failed).To(BeEquivalentTo(4))
	})

	It("honours permanent and retry-after", func() {
		e.enqueue(2)
		runs := e.claim(worker, 2)
		now := query[time.Time](e, `SELECT clock_timestamp()`)
		out, err := e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{
			{Ref: runs[0].Ref, Error: "hopeless", Permanent: true},
			{Ref: runs[1].Ref, Error: "busy", RetryAfter: 42 * time.Minute},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(out[0].Dead).To(BeTrue())
		Expect(e.job(runs[0].ID).Reason).To(Equal("permanent failure"))
		Expect(out[1].RetryAt.Sub(now)).To(BeNumerically("~", 42*time.Minute, 2*time.Second))
		_, err = e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: runs[0].Ref, RetryAfter: -1}})
		Expect(err).To(MatchError(queue.ErrInvalidArgument))
	})

	It("takes nothing from an element whose id is not its token's, for the run that has the token", func() {
		run := e.one(worker)
		out, err := e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{
			{Ref: queue.Ref{ID: run.ID + 1, Token: run.Token}, Error: "of another", Permanent: true},
			{Ref: run.Ref, Error: "its own"},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(HaveLen(1))
		Expect(out[0].Dead).To(BeFalse())
		Expect(e.job(run.ID).LastError).To(Equal("its own"))
	})

	It("bounds messages and history, and stores what is not text", func() {
		e.policy(func(p *queue.Policy) { p.MaxAttempts = 100 })
		ids := e.enqueue(1)
		message := strings.Repeat("ü", 5000) + "\x00\xff"
		for range 12 {
			e.due()
			run := e.claim(worker, 1)[0]
			_, err := e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: run.Ref, Error: message}})
			Expect(err).NotTo(HaveOccurred())
		}
		job := e.job(ids[0])
		Expect([]rune(job.LastError)).To(HaveLen(4000))
		Expect(job.Errors).To(HaveLen(10))
		Expect(job.Errors[9].Attempt).To(Equal(12))
		Expect([]rune(job.Errors[0].Error)).To(HaveLen(1000))
		e.due()
		run := e.claim(worker, 1)[0]
		_, err := e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: run.Ref, Error: "a\x00b\xffc"}})
		Expect(err).NotTo(HaveOccurred())
		Expect(e.job(ids[0]).LastError).To(Equal("a\uFFFDb\uFFFDc"))
	})

	It("snoozes without spending an attempt", func() {
		ids := e.enqueue(2)
		runs := e.claim(worker, 2)
		Expect(e.c.Snooze(e.ctx, e.pool, worker, snoozes(time.Hour, runs[0].Ref))).To(Equal(ids[:1]))
		Expect(e.c.Snooze(e.ctx, e.pool, worker, snoozes(0, runs[1].Ref))).To(Equal(ids[1:]))
		Expect(e.job(ids[0]).State).To(Equal(queue.StateScheduled))
		Expect(e.job(ids[1]).State).To(Equal(queue.StatePending))
		e.due()
		for _, run := range e.claim(worker, 2) {
			Expect(run.Attempt).To(Equal(1))
		}
		_, err := e.c.Snooze(e.ctx, e.pool, worker, snoozes(-time.Second, runs[0].Ref))
		Expect(err).To(MatchError(queue.ErrInvalidArgument))
	})

	It("gives each of many runs its own delay or reason, whatever else names its job or its token", func() {
		ids := e.enqueue(4)
		runs := e.claim(worker, 4)
		swapped := queue.Ref{ID: runs[1].ID, Token: runs[0].Token}
		forged := queue.Ref{ID: runs[1].ID, Token: uuid.New()}
		put := []queue.Snooze{{Ref: swapped, Delay: time.Second}, {Ref: forged, Delay: 2 * time.Second},
			{Ref: runs[1].Ref, Delay: time.Hour}, {Ref: runs[0].Ref, Delay: time.Minute}, {Ref: runs[0].Ref, Delay: time.Second}}
		Expect(e.c.Snooze(e.ctx, e.pool, worker, put)).To(ConsistOf(ids[:2]))
		in := func(id int64) float64 {
			return query[float64](e, `SELECT extract(epoch FROM available_at - clock_timestamp())::double precision FROM jobqueue.waiting WHERE id = $1`, id)
		}
		Expect(in(ids[0])).To(BeNumerically("~", 60, 5))
		Expect(in(ids[1])).To(BeNumerically("~", 3600, 5))

		Expect(e.c.Discard(e.ctx, e.pool, worker, []queue.Discard{{Ref: runs[3].Ref, Reason: "fourth"}, {Ref: runs[2].Ref, Reason: "third"}})).To(ConsistOf(ids[2:]))
		Expect([]string{e.job(ids[2]).Reason, e.job(ids[3]).Reason}).To(Equal([]string{"third", "fourth"}))
	})

	It("does not overflow the backoff, and spreads it by the jitter", func() {
		row := e.pool.QueryRow(e.ctx, `
			SELECT min(b), max(b), count(DISTINCT b) FROM (
				SELECT extract(epoch FROM jobqueue.backoff('30 days', '30 days', 100, a)) AS b FROM generate_series(1, 1000) a
				UNION ALL SELECT extract(epoch FROM jobqueue.backoff('1 microsecond', '30 days', 0, 2147483647))) x`)
		var low, high float64
		var distinct int
		Expect(row.Scan(&low, &high, &distinct)).To(Succeed())
		Expect(low).To(BeNumerically(">=", 0))
		Expect(high).To(BeNumerically("<=", 2*30*86400))
		Expect(distinct).To(BeNumerically(">", 900))
		Expect(query[bool](e, `
			SELECT bool_and(jobqueue.backoff('10 s', '1 h', 20, 1) BETWEEN '8 s' AND '12 s') FROM generate_series(1, 1000)`)).To(BeTrue())
		Expect(query[bool](e, `
			SELECT bool_and(jobqueue.backoff('2 s', '1 h', 0, a) = least('1 h', make_interval(secs => 2 * power(2, a - 1)))) FROM generate_series(1, 20) a`)).To(BeTrue())
	})

	It("keeps a large payload, whatever became of the job", func() {
		e.policy(func(p *queue.Policy) { p.MaxPayloadBytes = 1 << 20 })
		random := strings.Builder{}
		for range 20_000 {
			random.WriteString(uuid.NewString()[:4])
		}
		e.enqueue(2, func(_ int, j *queue.NewJob) { j.Payload = random.String() })
		runs := e.claim(worker, 2)
		Expect(e.c.Succeed(e.ctx, e.pool, worker, refs(runs[0]))).To(HaveLen(1))
		Expect(e.c.Discard(e.ctx, e.pool, worker, discards("r", runs[1].Ref))).To(HaveLen(1))
		Expect(e.job(runs[0].ID).Payload).To(MatchJSON(runs[0].Payload))
		Expect(e.job(runs[1].ID).Payload).To(MatchJSON(runs[1].Payload))
	})

	It("gives large jobs and retried ones a row each, whatever is asked for", func() {
		e.enqueue(5, func(i int, j *queue.NewJob) {
			if i == 1 {
				j.Payload = strings.Repeat("compressible ", 10_000)
			}
		})
		sharing := func() []queue.Run {
			GinkgoHelper()
			runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 5, Alone: []string{}})
			Expect(err).NotTo(HaveOccurred())
			Expect(runs).To(HaveLen(5))
			return runs
		}
		runs := sharing()
		Expect(query[[]int](e, `SELECT array_agg(length(open) ORDER BY length(open)) FROM jobqueue.batches`)).To(Equal([]int{1, 4}))
		_, err := e.c.Fail(e.ctx, e.pool, worker, []queue.Failure{{Ref: runs[0].Ref, Error: "once"}})
		Expect(err).NotTo(HaveOccurred())
		Expect(e.c.Release(e.ctx, e.pool, worker, refs(runs[1:]...))).To(HaveLen(4))
		e.due()
		sharing()
		Expect(query[[]int](e, `SELECT array_agg(length(open) ORDER BY length(open)) FROM jobqueue.batches`)).To(Equal([]int{1, 1, 3}))
	})

	for _, shared := range []bool{false, true} {
		It(fmt.Sprintf("accepts exactly the runs that are named right and still open, sharing rows: %t (Q3)", shared), func() {
			e.enqueue(6)
			alone := []string{}
			if !shared {
				alone = nil
			}
			runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: worker, Limit: 6, Alone: alone})
			Expect(err).NotTo(HaveOccurred())
			Expect(query[int](e, `SELECT count(*) FROM jobqueue.batches`)).To(Equal(map[bool]int{true: 1, false: 6}[shared]))
			other := uuid.New()
			succeed := func(worker uuid.UUID, refs ...queue.Ref) []int64 {
				GinkgoHelper()
				ids, err := e.c.Succeed(e.ctx, e.pool, worker, refs)
				Expect(err).NotTo(HaveOccurred())
				return ids
			}
			bySQL := func(id int64, token uuid.UUID) int {
				GinkgoHelper()
				return query[int](e, `SELECT count(*) FROM jobqueue.succeed(ARRAY[$1::bigint], ARRAY[$2::uuid])`, id, token)
			}
			Expect(succeed(other, runs[0].Ref)).To(BeEmpty(), "another worker's")
			Expect(succeed(worker, queue.Ref{ID: runs[1].ID, Token: runs[0].Token})).To(BeEmpty(), "the id of another run")
			Expect(bySQL(runs[1].ID, runs[0].Token)).To(BeZero(), "the id of another run")
			Expect(bySQL(runs[0].ID, uuid.New())).To(BeZero(), "a token that never was")
			past := runs[0].Token
			past[14], past[15] = 0xff, 0xff
			Expect(bySQL(runs[0].ID, past)).To(BeZero(), "a place past the batch's end")
			Expect(succeed(worker, queue.Ref{ID: runs[0].ID, Token: past})).To(BeEmpty(), "a place past the batch's end")

			Expect(succeed(worker, runs[4].Ref, runs[0].Ref)).To(ConsistOf(runs[0].ID, runs[4].ID))
			Expect(succeed(worker, runs[4].Ref, runs[2].Ref)).To(ConsistOf(runs[2].ID), "one of them again")
			Expect(bySQL(runs[1].ID, runs[1].Token)).To(Equal(1))
			Expect(bySQL(runs[1].ID, runs[1].Token)).To(BeZero(), "again")
			Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs WHERE state = 'running'`)).To(Equal(2))
			Expect(e.c.Release(e.ctx, e.pool, worker, refs(runs[3]))).To(ConsistOf(runs[3].ID))
			Expect(succeed(worker, runs[3].Ref, runs[5].Ref)).To(ConsistOf(runs[5].ID), "one of them given back")

			Expect(query[int](e, `SELECT count(*) FROM jobqueue.finished`)).To(Equal(5))
			Expect(query[int](e, `SELECT count(*) FROM jobqueue.batches WHERE finished_at IS NULL`)).To(BeZero())
			Expect(query[int](e, `SELECT count(DISTINCT finished_at) FROM jobqueue.finished`)).To(Equal(4), "each has the time of its own end")
			listed, err := e.c.List(e.ctx, e.pool, queue.ListRequest{State: queue.StateSucceeded, Limit: 2})
			Expect(err).NotTo(HaveOccurred())
			Expect([]int64{listed[0].ID, listed[1].ID}).To(Equal([]int64{runs[5].ID, runs[4].ID}))
			Expect(e.job(runs[4].ID).FinishedAt).To(BeTemporally("<", e.job(runs[5].ID).FinishedAt))
		})
	}

	DescribeTable("refuses bad arguments, naming argument, value and what is allowed",
		func(sql, message string) {
			_, err := e.pool.Exec(e.ctx, sql)
			Expect(err).To(MatchError(And(ContainSubstring(message), ContainSubstring("JQ005"))))
		},
		Entry(nil, `SELECT jobqueue.succeed(NULL, '{}')`, "ids is null; allowed: an array of job ids"),
		Entry(nil, `SELECT jobqueue.succeed('{1}', NULL)`, "tokens is null; allowed: an array of run tokens"),
		Entry(nil, `SELECT jobqueue.succeed('{1,2}', '{}')`, "tokens is an array of 0; allowed: as many as ids, which are 2"),
		Entry(nil, `SELECT jobqueue.succeed_many(NULL, '{}', '{}')`, "keys is null; allowed: an array of batch keys"),
		Entry(nil, `SELECT jobqueue.succeed_many('{a}', '{}', '{1}')`, "runs is an array of 0; allowed: as many as keys, which are 1"),
		Entry(nil, `SELECT jobqueue.succeed_many('{a}', '{1}', NULL)`, "id_xors is null; allowed: an array of numbers, one for each key"),
		Entry(nil, `SELECT jobqueue.succeed_many('{a,a}', '{1,1}', '{1,1}')`, "keys is an array with a key twice; allowed: each key once"),
		Entry(nil, `SELECT jobqueue.succeed('{{1},{2}}', '{}')`, "ids is an array of 2 dimensions; allowed: an array of job ids, which may be empty, in one dimension"),
		Entry(nil, `SELECT jobqueue.claim('q', gen_random_uuid(), 1, p_alone => ARRAY[NULL])`, "alone is an array with a null; allowed: null for all, or an array of kinds"),
		Entry(nil, `SELECT jobqueue.claim('q', gen_random_uuid(), 1, p_kinds => ARRAY[['a']])`, "kinds is an array of 2 dimensions"),
		Entry(nil, `SELECT jobqueue.release('{1,NULL}', '{}')`, "ids is an array with a null"),
		Entry(nil, `SELECT jobqueue.discard('{1}', '{NULL}')`, "tokens is an array with a null"),
		Entry(nil, `SELECT jobqueue.snooze('{}', '{}', NULL)`, "delay_seconds is null; allowed: an array of numbers"),
		Entry(nil, `SELECT jobqueue.snooze('{1}', ARRAY[gen_random_uuid()], '{NaN}')`, "delay_seconds[1] is NaN; allowed: 0 to"),
		Entry(nil, `SELECT jobqueue.snooze('{1}', ARRAY[gen_random_uuid()], '{NULL}')`, "delay_seconds is an array with a null"),
		Entry(nil, `SELECT jobqueue.snooze('{1}', ARRAY[gen_random_uuid()], '{1,2}')`, "delay_seconds is an array of 2; allowed: as many as ids, which are 1"),
		Entry(nil, `SELECT jobqueue.discard('{1}', ARRAY[gen_random_uuid()], '{}')`, "reasons is an array of 0; allowed: as many as ids, which are 1"),
		Entry(nil, `SELECT jobqueue.fail('{}', '{}', NULL)`, "errors is null; allowed: an array of messages"),
		Entry(nil, `SELECT jobqueue.fail('{1}', ARRAY[gen_random_uuid()], '{}')`, "errors is an array of 0; allowed: as many as ids, which are 1"),
		Entry(nil, `SELECT jobqueue.fail('{1}', ARRAY[gen_random_uuid()], '{e}', '{}')`, "permanent is an array of 0"),
		Entry(nil, `SELECT jobqueue.fail('{1}', ARRAY[gen_random_uuid()], '{e}', NULL, '{-3}')`, "retry_after_seconds[1] is -3; allowed: 0 to"),
		Entry(nil, `SELECT jobqueue.cancel(NULL)`, "ids is null"),
		Entry(nil, `SELECT jobqueue.fail('{1}', ARRAY[gen_random_uuid()], '{{no}}')`, "errors is an array of 2 dimensions"),
		Entry(nil, `SELECT jobqueue.fail('{1}', ARRAY[gen_random_uuid()], '{no}', '{{t}}')`, "permanent is an array of 2 dimensions"),
		Entry(nil, `SELECT jobqueue.heartbeat(NULL, 'q')`, "worker is null"),
		Entry(nil, `SELECT jobqueue.heartbeat(gen_random_uuid(), 'q', '{1}')`, "tokens is an array of 0"),
		Entry(nil, `SELECT jobqueue.reap(NULL, 0)`, "limit is 0; allowed: 1 to 100000"),
		Entry(nil, `SELECT jobqueue.reap(NULL, NULL)`, "limit is null; allowed: 1 to 100000"),
		Entry(nil, `SELECT jobqueue.sample(0)`, "cap is 0; allowed: 1 to 1000000"),
		Entry(nil, `SELECT jobqueue.list_dead('q', -1)`, "limit is -1; allowed: 1 to 10000"),
		Entry(nil, `SELECT jobqueue.snooze('[5:6]={1,2}', ARRAY[gen_random_uuid(), gen_random_uuid()], '{1,2}')`, "ids is an array that begins at 5; allowed: an array of job ids"),
		Entry(nil, `SELECT jobqueue.discard('{1,2}', ARRAY[gen_random_uuid(), gen_random_uuid()], '[0:1]={a,b}')`, "reasons is an array that begins at 0"),
		Entry(nil, `SELECT jobqueue.list_dead(NULL)`, "queue is null; allowed: the name of a declared queue"),
		Entry(nil, `SELECT jobqueue.requeue(NULL, '{}')`, "queue is null"),
		Entry(nil, `SELECT jobqueue.reap(NULL, 1, NULL)`, "retention is null; allowed: true or false"),
		Entry(nil, `SELECT jobqueue.disown(NULL, '{}', '{}')`, "worker is null"),
		Entry(nil, `SELECT jobqueue.unregister(NULL)`, "worker is null"),
		Entry(nil, `SELECT jobqueue.fail('{1}', ARRAY[gen_random_uuid()], '{NULL}')`, "errors is an array with a null"),
		Entry(nil, `SELECT jobqueue.purge_dead('q', -1)`, "older_than_seconds is -1"),
		Entry(nil, `SELECT jobqueue.list_jobs(p_state => 'done')`, "state is done; allowed: scheduled, pending"),
		Entry(nil, `SELECT jobqueue.grant_access('postgres', 'god')`, "access is god; allowed: producer, worker"),
	)

	It("says of a queue that is misspelt that there is none", func() {
		for _, call := range []string{`list_dead('nope')`, `requeue('nope', '{}')`, `requeue_kind('nope')`, `purge_dead('nope')`, `list_jobs('nope')`, `reap('nope')`} {
			_, err := e.pool.Exec(e.ctx, `SELECT jobqueue.`+call)
			Expect(err).To(MatchError(ContainSubstring(`queue "nope" does not exist (SQLSTATE JQ001)`)), call)
		}
	})
})

var _ = Describe("successes that wait for nobody (Q5)", func() {
	It("are those of the rows that nobody has locked", func() {
		e := newEnv(nil)
		worker := uuid.New()
		e.enqueue(3)
		runs := e.claim(worker, 3)
		open, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = open.Rollback(e.ctx) })
		Expect(e.c.Succeed(e.ctx, open, worker, refs(runs[1]))).To(HaveLen(1))
		gone := queue.Ref{ID: 1, Token: uuid.New()}
		accepted, locked, err := e.c.TrySucceed(e.ctx, e.pool, worker, append(refs(runs...), gone), nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(accepted).To(ConsistOf(runs[0].ID, runs[2].ID))
		Expect(locked).To(ConsistOf(runs[1].ID))
		Expect(open.Rollback(e.ctx)).To(Succeed())
		accepted, locked, err = e.c.TrySucceed(e.ctx, e.pool, worker, refs(runs...), nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(accepted).To(ConsistOf(runs[1].ID))
		Expect(locked).To(BeEmpty())
	})
})

var _ = Describe("what runs took (S1)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })

	executed := func() int {
		return query[int](e, `SELECT (jobqueue.sample() -> 'queues' -> 'q' ->> 'execution_ms')::integer`)
	}

	It("is what the worker says of those accepted, not the time since their claim", func() {
		e.enqueue(4)
		runs, err := e.c.Claim(e.ctx, e.pool, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 4, Alone: []string{}})
		Expect(err).NotTo(HaveOccurred())
		e.exec(`UPDATE jobqueue.batches SET started_at = started_at - interval '1 minute'`)
		accepted, _, err := e.c.TrySucceed(e.ctx, e.pool, uuid.Nil, []queue.Ref{runs[0].Ref, runs[1].Ref}, []time.Duration{20 * time.Millisecond, 30 * time.Millisecond})
		Expect(err).NotTo(HaveOccurred())
		Expect(accepted).To(HaveLen(2))
		Expect(executed()).To(Equal(50))
		By("half of them refused")
		_, _, err = e.c.TrySucceed(e.ctx, e.pool, uuid.Nil, []queue.Ref{runs[1].Ref, runs[2].Ref}, []time.Duration{40 * time.Millisecond, 40 * time.Millisecond})
		Expect(err).NotTo(HaveOccurred())
		Expect(executed()).To(Equal(90))
		By("nothing said")
		_, _, err = e.c.TrySucceed(e.ctx, e.pool, uuid.Nil, []queue.Ref{runs[3].Ref}, nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(executed()).To(BeNumerically(">=", 60_090))
	})

	It("counts for a millisecond at least, so that its mean is known", func() {
		run := e.one(uuid.New())
		_, _, err := e.c.TrySucceed(e.ctx, e.pool, uuid.Nil, []queue.Ref{run.Ref}, []time.Duration{time.Microsecond})
		Expect(err).NotTo(HaveOccurred())
		Expect(executed()).To(Equal(1))
	})

	It("is refused when it is no time, with nothing changed", func() {
		run := e.one(uuid.New())
		for _, took := range [][]time.Duration{{-time.Second}, {1, 2}, {}} {
			_, _, err := e.c.TrySucceed(e.ctx, e.pool, uuid.Nil, []queue.Ref{run.Ref}, took)
			Expect(err).To(MatchError(queue.ErrInvalidArgument), "%v", took)
		}
		for _, ms := range []string{"{NaN}", "{Infinity}", "{NULL}", "{1,2}", "{{1}}"} {
			_, err := e.pool.Exec(e.ctx, `SELECT * FROM jobqueue.succeed_many('{abc}', '{1}', '{1}', p_execution_ms => $1::text::double precision[])`, ms)
			Expect(err).To(MatchError(ContainSubstring("execution_ms")), ms)
		}
		_, err := e.pool.Exec(e.ctx, `SELECT * FROM jobqueue.succeed_many('{abc,def}', '{1,1}', '{1,1}', p_execution_ms => '{1e15,1.1e15}')`)
		Expect(err).To(MatchError(ContainSubstring("execution_ms[2] is 1.1e+15; allowed: 0 to 1e15")))
		Expect(e.job(run.ID).State).To(Equal(queue.StateRunning))
	})

	It("counts for the longest timeout at most, for each run, whatever the worker says", func() {
		const longest = 30 * 24 * time.Hour
		e.enqueue(4)
		claim := queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 3, Alone: []string{}}
		runs, err := e.c.Claim(e.ctx, e.pool, claim)
		Expect(err).NotTo(HaveOccurred())
		forever := []time.Duration{math.MaxInt64 / 2, math.MaxInt64 / 2}
		Expect(e.c.Succeed(e.ctx, e.pool, uuid.Nil, refs(runs[2]))).To(HaveLen(1))
		before := e.sample().ExecutionMillis
		By("one of two refused")
		accepted, _, err := e.c.TrySucceed(e.ctx, e.pool, uuid.Nil, refs(runs[1:]...), forever)
		Expect(err).NotTo(HaveOccurred())
		Expect(accepted).To(HaveLen(1))
		Expect(e.sample().ExecutionMillis - before).To(Equal(longest.Milliseconds()))
	})

	It("stops at what its total can hold, and holds up nothing (R4)", func() {
		worker := uuid.New()
		run := e.one(worker)
		huge := func() {
			e.exec(`INSERT INTO jobqueue.tallies (queue, succeeded, execution_ms) SELECT 'q', 1, 9000000000000000000 FROM generate_series(1, 3)`)
		}
		huge()
		Expect(e.sample().ExecutionMillis).To(BeEquivalentTo(math.MaxInt64), "not added to the totals yet")
		_, err := e.c.Heartbeat(e.ctx, e.pool, worker, "q", refs(run))
		Expect(err).NotTo(HaveOccurred())
		Expect(query[int64](e, `SELECT execution_ms FROM jobqueue.totals WHERE queue = 'q'`)).To(BeEquivalentTo(math.MaxInt64))
		huge()
		e.reap(queue.ReapRequest{})
		huge()
		Expect(e.c.Unregister(e.ctx, e.pool, worker)).To(Succeed())
		s := e.sample()
		Expect(s.ExecutionMillis).To(BeEquivalentTo(math.MaxInt64))
		Expect(s.Succeeded).To(BeEquivalentTo(9), "the others are counted on")
	})
})
