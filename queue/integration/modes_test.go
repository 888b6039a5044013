package integration_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// everyCall makes every call of the client once, with arguments of all kinds.
func everyCall(e *env, db queue.DB) {
	GinkgoHelper()
	c, worker := e.c, uuid.New()
	policy := queue.DefaultPolicy()
	policy.Owner, policy.BackoffJitter = `it's "quoted" \ grüße`, 0
	Expect(c.SetPolicy(e.ctx, db, "m", policy)).To(Succeed())
	Expect(c.GetPolicy(e.ctx, db, "m")).To(Equal(policy))

	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	jobs := []queue.NewJob{{Kind: `o'k, {a} "b" \c`, Payload: `x'y\z "q" {1,2} NULL`}, {Kind: "k", Payload: 1, RunAt: at, Priority: -3, MaxAttempts: 2}}
	for range 10 {
		jobs = append(jobs, queue.NewJob{Kind: "k"})
	}
	jobs = append(jobs, queue.NewJob{Kind: "later", Delay: time.Hour})
	ids, err := c.Enqueue(e.ctx, db, "m", jobs...)
	Expect(err).NotTo(HaveOccurred())
	Expect(ids).To(HaveLen(13))

	runs, err := c.Claim(e.ctx, db, queue.ClaimRequest{Queue: "m", Worker: worker, Pod: `p'\`, Limit: 100, Kinds: []string{"k", jobs[0].Kind}})
	Expect(err).NotTo(HaveOccurred())
	Expect(runs).To(HaveLen(12))
	Expect(runs[0].ID).To(Equal(ids[1]))
	Expect(runs[0].AvailableAt).To(BeTemporally("==", at))
	Expect(runs[0].MaxAttempts).To(Equal(2))
	Expect(runs[1].Kind).To(Equal(jobs[0].Kind))
	Expect(runs[1].Payload).To(MatchJSON(`"x'y\\z \"q\" {1,2} NULL"`))
	Expect(runs[1].Timeout).To(Equal(policy.Timeout))

	unknown := queue.Ref{ID: 1 << 40, Token: uuid.New()}
	hb, err := c.Heartbeat(e.ctx, db, worker, "m", append(refs(runs...), unknown))
	Expect(err).NotTo(HaveOccurred())
	Expect(hb.Lost).To(Equal([]uuid.UUID{unknown.Token}))
	Expect(hb.Policy).To(Equal(policy))
	Expect(c.Succeed(e.ctx, db, worker, refs(runs[:2]...))).To(HaveLen(2))
	out, err := c.Fail(e.ctx, db, worker, []queue.Failure{
		{Ref: runs[2].Ref, Error: `it's {a,"b"} \ NULL`}, {Ref: runs[3].Ref, Error: "", Permanent: true}, {Ref: runs[4].Ref, RetryAfter: time.Minute},
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(out).To(HaveLen(3))
	Expect(out[0].RetryAt.Sub(hb.Now)).To(BeNumerically("~", queue.DefaultPolicy().BackoffBase, 2*time.Second))
	Expect(out[1].Dead).To(BeTrue())
	Expect(c.Snooze(e.ctx, db, worker, snoozes(1500*time.Millisecond, runs[5].Ref))).To(HaveLen(1))
	Expect(c.Discard(e.ctx, db, worker, discards("it's", runs[6].Ref))).To(HaveLen(1))
	Expect(c.Release(e.ctx, db, worker, refs(runs[7]))).To(HaveLen(1))
	Expect(c.Cancel(e.ctx, db, []int64{runs[8].ID}, "")).To(HaveLen(1))
	job, err := c.Get(e.ctx, db, runs[2].ID)
	Expect(err).NotTo(HaveOccurred())
	Expect(job.LastError).To(Equal(`it's {a,"b"} \ NULL`))
	Expect(job.Errors).To(HaveLen(1))
	list, err := c.List(e.ctx, db, queue.ListRequest{Queue: "m", State: queue.StateRunning})
	Expect(err).NotTo(HaveOccurred())
	Expect(list).To(HaveLen(3))
	Expect(list[0].Worker).To(Equal(worker))
	dead, err := c.ListDead(e.ctx, db, "m", 10, 0)
	Expect(err).NotTo(HaveOccurred())
	Expect(dead).To(HaveLen(1))
	Expect(c.Requeue(e.ctx, db, "m", []int64{dead[0].ID})).To(HaveLen(1))
	Expect(c.RequeueKind(e.ctx, db, "m", "x", 5)).To(BeEmpty())
	Expect(c.PurgeDead(e.ctx, db, "m", time.Hour, 5)).To(BeZero())
	Expect(c.Disown(e.ctx, db, worker, refs(runs...))).To(BeEmpty())
	Expect(c.Unregister(e.ctx, db, worker)).To(Succeed())
	res, err := c.Reap(e.ctx, db, queue.ReapRequest{Queue: "m", Retention: true})
	Expect(err).NotTo(HaveOccurred())
	Expect(res).To(Equal(queue.ReapResult{}))
	s, err := c.Sample(e.ctx, db)
	Expect(err).NotTo(HaveOccurred())
	q := s.Queues["m"]
	Expect(q.Pending).To(BeEquivalentTo(5))
	Expect(q.Scheduled).To(BeEquivalentTo(4))
	Expect([]int64{q.Claimed, q.Succeeded, q.Failed, q.Discarded, q.Cancelled}).To(Equal([]int64{12, 2, 3, 1, 1}))
	Expect(c.ReleaseOwner(e.ctx, db, "m", policy.Owner)).To(Succeed())
	Expect(c.Version(e.ctx, db)).To(Equal(queue.LatestVersion))
	_, err = c.Claim(e.ctx, db, queue.ClaimRequest{Queue: "nope", Worker: worker, Limit: 1})
	Expect(err).To(MatchError(queue.ErrQueueNotFound))
	_, err = c.Enqueue(e.ctx, db, "m", queue.NewJob{})
	Expect(err).To(MatchError(queue.ErrInvalidArgument))
}

// rotating is what a transaction-mode pooler looks like at its worst: every
// statement lands on another session, and whatever the last one left there
// (prepared statements, settings, plans) is gone.
type rotating struct {
	conns []*pgx.Conn
	next  atomic.Int64
}

func (r *rotating) conn(ctx context.Context) *pgx.Conn {
	c := r.conns[r.next.Add(1)%int64(len(r.conns))]
	if _, err := c.Exec(ctx, "DISCARD ALL", pgx.QueryExecModeSimpleProtocol); err != nil {
		panic(err)
	}
	return c
}

func (r *rotating) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return r.conn(ctx).Exec(ctx, sql, args...)
}

func (r *rotating) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return r.conn(ctx).Query(ctx, sql, args...)
}

func (r *rotating) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return r.conn(ctx).QueryRow(ctx, sql, args...)
}

var _ = Describe("behind a pooler (Q14)", func() {
	modes := []TableEntry{
		Entry("cached statements", pgx.QueryExecModeCacheStatement),
		Entry("cached descriptions", pgx.QueryExecModeCacheDescribe),
		Entry("describe, then exec", pgx.QueryExecModeDescribeExec),
		Entry("exec", pgx.QueryExecModeExec),
		Entry("simple protocol", pgx.QueryExecModeSimpleProtocol),
	}
	connect := func(e *env, mode pgx.QueryExecMode) *pgx.Conn {
		cfg, err := pgx.ParseConfig(e.db.URL)
		Expect(err).NotTo(HaveOccurred())
		cfg.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(e.ctx, cfg)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = conn.Close(e.ctx) })
		return conn
	}

	DescribeTable("every call works with", func(mode pgx.QueryExecMode) {
		e := newEnv(nil)
		everyCall(e, connect(e, mode))
	}, modes)

	DescribeTable("every call works when each lands on another session, with",
		func(mode pgx.QueryExecMode) {
			e := newEnv(nil)
			everyCall(e, &rotating{conns: []*pgx.Conn{connect(e, mode), connect(e, mode), connect(e, mode)}})
		},
		Entry("exec", pgx.QueryExecModeExec),
		Entry("simple protocol", pgx.QueryExecModeSimpleProtocol),
	)

	DescribeTable("enqueues in a batch with the caller's rows, all or none (Q1, Q9), with", func(mode pgx.QueryExecMode) {
		e := newEnv(nil)
		conn := connect(e, mode)
		_, err := conn.Exec(e.ctx, `CREATE TEMP TABLE orders (id text PRIMARY KEY)`)
		Expect(err).NotTo(HaveOccurred())
		var one, more []int64
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO orders VALUES ($1)`, "a")
		Expect(e.c.EnqueueInBatch(batch, "q", func(ids []int64) { one = ids }, queue.NewJob{Kind: "k", Payload: `it's`})).To(Succeed())
		Expect(e.c.EnqueueInBatch(batch, "q", func(ids []int64) { more = ids }, queue.NewJob{Kind: "k"}, queue.NewJob{Kind: "later", Delay: time.Hour})).To(Succeed())
		Expect(e.c.EnqueueInBatch(batch, "q", nil, queue.NewJob{Kind: "k"})).To(Succeed())
		Expect(conn.SendBatch(e.ctx, batch).Close()).To(Succeed())
		Expect(one).To(HaveLen(1))
		Expect(more).To(HaveLen(2))
		Expect(e.job(one[0]).Payload).To(MatchJSON(`"it's"`))
		Expect(e.job(more[1]).State).To(Equal(queue.StateScheduled))

		for _, refused := range []struct {
			queue string
			job   queue.NewJob
			err   error
		}{
			{"nope", queue.NewJob{Kind: "k"}, queue.ErrQueueNotFound},
			{"q", queue.NewJob{}, queue.ErrInvalidArgument},
			{"q", queue.NewJob{Kind: "k", Payload: strings.Repeat("x", 300_000)}, queue.ErrPayloadTooLarge},
			{"q", queue.NewJob{Kind: "k", Payload: json.RawMessage(`"\ud800"`)}, queue.ErrInvalidPayload},
		} {
			batch = &pgx.Batch{}
			batch.Queue(`INSERT INTO orders VALUES ($1)`, "b")
			Expect(e.c.EnqueueInBatch(batch, "q", nil, queue.NewJob{Kind: "k"})).To(Succeed())
			Expect(e.c.EnqueueInBatch(batch, refused.queue, func([]int64) { Fail("ids of a refused job") }, refused.job)).To(Succeed())
			batch.Queue(`INSERT INTO orders VALUES ($1)`, "c")
			Expect(conn.SendBatch(e.ctx, batch).Close()).To(MatchError(refused.err))
		}
		batch = &pgx.Batch{}
		Expect(e.c.EnqueueInBatch(batch, "q", nil)).To(Succeed())
		Expect(e.c.EnqueueInBatch(batch, "q", nil, queue.NewJob{Kind: "k", Payload: func() {}})).To(MatchError(queue.ErrInvalidPayload))
		Expect(e.c.EnqueueInBatch(batch, "q\x00", nil, queue.NewJob{Kind: "k"})).To(MatchError(queue.ErrInvalidArgument))
		Expect(batch.Len()).To(BeZero())
		var orders int
		Expect(conn.QueryRow(e.ctx, `SELECT count(*) FROM orders`).Scan(&orders)).To(Succeed())
		Expect(orders).To(Equal(1))
		Expect(query[int](e, `SELECT count(*) FROM jobqueue.jobs`)).To(Equal(4))
	}, modes)

	It("and inside one transaction", func() {
		e := newEnv(nil)
		// Errors abort a transaction, so the calls that must fail are left out.
		tx, err := e.pool.Begin(e.ctx)
		Expect(err).NotTo(HaveOccurred())
		ids, err := e.c.Enqueue(e.ctx, tx, "q", queue.NewJob{Kind: "k"})
		Expect(err).NotTo(HaveOccurred())
		runs, err := e.c.Claim(e.ctx, tx, queue.ClaimRequest{Queue: "q", Worker: uuid.New(), Limit: 1})
		Expect(err).NotTo(HaveOccurred())
		Expect(runIDs(runs)).To(Equal(ids))
		Expect(e.c.Succeed(e.ctx, tx, uuid.Nil, refs(runs...))).To(Equal(ids))
		Expect(tx.Commit(e.ctx)).To(Succeed())
		Expect(e.job(ids[0]).State).To(Equal(queue.StateSucceeded))
	})
})
