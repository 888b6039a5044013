package integration_test

import (
	"strings"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("policies (P3, P5)", func() {
	var e *env
	BeforeEach(func() { e = newEnv(nil) })

	It("stores what is set, to the microsecond, and the Go and SQL defaults agree", func() {
		e.exec(`SELECT jobqueue.set_policy('by sql')`)
		Expect(e.c.GetPolicy(e.ctx, e.pool, "by sql")).To(Equal(queue.DefaultPolicy()))
		want := queue.Policy{
			Lease: 12*time.Second + 345678*time.Microsecond, Heartbeat: time.Millisecond, Timeout: 36 * time.Hour,
			MaxAttempts: 3, BackoffBase: 0, BackoffMax: 7 * time.Second, BackoffJitter: 100, BatchSize: 10_000,
			MaxPayloadBytes: 1, RetainSucceeded: 0, RetainDead: 3650 * 24 * time.Hour, Suspended: true, Generation: 1 << 62, Owner: "ns/queue",
		}
		Expect(e.c.SetPolicy(e.ctx, e.pool, "größe", want)).To(Succeed())
		Expect(e.c.GetPolicy(e.ctx, e.pool, "größe")).To(Equal(want))
	})

	It("keeps what a partial policy in SQL does not name", func() {
		e.exec(`SELECT jobqueue.set_policy('q', '{"max_attempts": 3}')`)
		e.exec(`SELECT jobqueue.set_policy('q', '{"suspended": true}')`)
		p, err := e.c.GetPolicy(e.ctx, e.pool, "q")
		Expect(err).NotTo(HaveOccurred())
		Expect(p.MaxAttempts).To(Equal(3))
		Expect(p.Suspended).To(BeTrue())
		Expect(p.Lease).To(Equal(30 * time.Second))
	})

	It("guards owner and generation", func() {
		p := queue.DefaultPolicy()
		p.Owner, p.Generation = "a/q", 5
		Expect(e.c.SetPolicy(e.ctx, e.pool, "q", p)).To(Succeed())
		Expect(e.c.SetPolicy(e.ctx, e.pool, "q", p)).To(Succeed(), "the same generation again")
		p.Generation = 4
		Expect(e.c.SetPolicy(e.ctx, e.pool, "q", p)).To(MatchError(queue.ErrPolicyStale))
		for _, owner := range []string{"", "b/q"} {
			p.Owner, p.Generation = owner, 9
			Expect(e.c.SetPolicy(e.ctx, e.pool, "q", p)).To(MatchError(queue.ErrQueueOwned))
		}
		Expect(e.c.ReleaseOwner(e.ctx, e.pool, "q", "b/q")).To(Succeed(), "not the owner: left alone")
		Expect(e.c.SetPolicy(e.ctx, e.pool, "q", p)).To(MatchError(queue.ErrQueueOwned))
		e.enqueue(1)
		Expect(e.c.ReleaseOwner(e.ctx, e.pool, "q", "a/q")).To(Succeed())
		p.Owner, p.Generation = "b/q", 1
		Expect(e.c.SetPolicy(e.ctx, e.pool, "q", p)).To(Succeed(), "a new owner begins at its own generation")
		Expect(e.sample().Pending).To(BeEquivalentTo(1), "jobs stay")
		Expect(e.sample().PolicyGeneration).To(BeEquivalentTo(1))
		Expect(e.c.ReleaseOwner(e.ctx, e.pool, "missing", "b/q")).To(Succeed())
	})

	It("is gone with its queue, which can be declared again (docs/operations.md)", func() {
		drop := func() int64 {
			return e.exec(`DELETE FROM jobqueue.queues WHERE name = 'q'
				AND NOT EXISTS (SELECT FROM jobqueue.list_jobs('q')) AND NOT EXISTS (SELECT FROM jobqueue.list_dead('q'))`)
		}
		ids := e.enqueue(1)
		Expect(drop()).To(BeZero(), "it has a job")
		Expect(e.c.Cancel(e.ctx, e.pool, ids, "")).To(Equal(ids))
		Expect(drop()).To(BeEquivalentTo(1))
		sample, err := e.c.Sample(e.ctx, e.pool)
		Expect(err).NotTo(HaveOccurred())
		Expect(sample.Queues).NotTo(HaveKey("q"))
		e.reap(queue.ReapRequest{Queue: ""})
		Expect(e.c.SetPolicy(e.ctx, e.pool, "q", queue.DefaultPolicy())).To(Succeed())
		e.one(uuid.New())
		Expect(e.sample().Running).To(BeEquivalentTo(1))
	})

	It("reports a queue that is not there", func() {
		_, err := e.c.GetPolicy(e.ctx, e.pool, "nope")
		Expect(err).To(MatchError(queue.ErrQueueNotFound))
	})

	DescribeTable("refuses values out of range, naming field, value and what is allowed",
		func(policy, message string) {
			_, err := e.pool.Exec(e.ctx, `SELECT jobqueue.set_policy('q', $1::jsonb)`, policy)
			Expect(err).To(MatchError(And(ContainSubstring(message), ContainSubstring("JQ005"))))
			Expect(e.c.GetPolicy(e.ctx, e.pool, "q")).To(Equal(queue.DefaultPolicy()))
		},
		Entry(nil, `[]`, "policy is []; allowed: a JSON object"),
		Entry(nil, `{"leaseSeconds": 3}`, `policy is an object with the key "leaseSeconds"; allowed: `),
		Entry(nil, `{"lease_seconds": 0}`, "policy.lease_seconds is 0; allowed: a number from 0.001 to 86400"),
		Entry(nil, `{"lease_seconds": "30"}`, `policy.lease_seconds is "30"; allowed: a number`),
		Entry(nil, `{"lease_seconds": null}`, `policy.lease_seconds is null; allowed: a number`),
		Entry(nil, `{"heartbeat_seconds": 15.1}`, "policy.heartbeat_seconds is 15.100000; allowed: at most half of lease_seconds, which is 30"),
		Entry(nil, `{"max_attempts": 0}`, "policy.max_attempts is 0; allowed: a whole number from 1 to 1000"),
		Entry(nil, `{"max_attempts": 1.5}`, "policy.max_attempts is 1.5; allowed: a whole number"),
		Entry(nil, `{"backoff_base_seconds": 4000}`, "allowed: at most backoff_max_seconds, which is 3600"),
		Entry(nil, `{"backoff_jitter_percent": 101}`, "policy.backoff_jitter_percent is 101"),
		Entry(nil, `{"batch_size": 10001}`, "policy.batch_size is 10001"),
		Entry(nil, `{"max_payload_bytes": 0}`, "policy.max_payload_bytes is 0"),
		Entry(nil, `{"retain_dead_seconds": -1}`, "policy.retain_dead_seconds is -1"),
		Entry(nil, `{"suspended": "yes"}`, `policy.suspended is "yes"; allowed: true or false`),
		Entry(nil, `{"owner": 1}`, `policy.owner is 1; allowed: a string`),
		Entry(nil, `{"generation": -1}`, `policy.generation is -1`),
	)

	DescribeTable("refuses bad queue names",
		func(name string) {
			Expect(e.c.SetPolicy(e.ctx, e.pool, name, queue.DefaultPolicy())).To(MatchError(queue.ErrInvalidArgument))
		},
		Entry("empty", ""),
		Entry("control characters", "a\nb"),
		Entry("too long", strings.Repeat("ü", 129)),
	)
})
