package faults

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/test/history"
)

// defect replaces text in a function of the schema; all of it is found, or the test fails.
type defect struct{ function, text, by string }

// install breaks the protocol in this test's database.
func (d defect) install(ctx context.Context, w *world) {
	GinkgoHelper()
	var source string
	Expect(w.db.QueryRow(ctx, `SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'jobqueue'::regnamespace AND p.proname = $1`,
		d.function).Scan(&source)).To(Succeed())
	Expect(strings.Contains(source, d.text)).To(BeTrue(), "%s does not contain %q any more", d.function, d.text)
	_, err := w.db.Exec(ctx, strings.ReplaceAll(source, d.text, d.by))
	Expect(err).NotTo(HaveOccurred())
}

// told notes what a worker was told, just now, of a result of each of the runs.
func (w *world) told(ctx context.Context, runs []queue.Run, accepted []int64, outcome string) {
	GinkgoHelper()
	answer := map[int64]string{}
	for _, id := range accepted {
		answer[id] = outcome
	}
	var j history.Journal
	for _, run := range runs {
		t := history.Told{ID: run.ID, Token: run.Token, Outcome: answer[run.ID], At: time.Now()}
		if t.Outcome == "" {
			t.Outcome = "refused"
		}
		j.Told = append(j.Told, t)
	}
	Expect(j.Store(ctx, w.db)).To(Succeed())
}

func (w *world) claim(ctx context.Context, limit int) []queue.Run {
	GinkgoHelper()
	runs, err := w.client.Claim(ctx, w.db, queue.ClaimRequest{Queue: queueName, Worker: uuid.New(), Limit: limit, Alone: []string{}})
	Expect(err).NotTo(HaveOccurred())
	return runs
}

func (w *world) succeed(ctx context.Context, runs []queue.Run) {
	GinkgoHelper()
	refs := make([]queue.Ref, len(runs))
	for i, run := range runs {
		refs[i] = run.Ref
	}
	ids, err := w.client.Succeed(ctx, w.db, uuid.Nil, refs)
	Expect(err).NotTo(HaveOccurred())
	w.told(ctx, runs, ids, "succeeded")
}

func (w *world) fail(ctx context.Context, runs []queue.Run) {
	GinkgoHelper()
	failures := make([]queue.Failure, len(runs))
	for i, run := range runs {
		failures[i] = queue.Failure{Ref: run.Ref, Error: "late"}
	}
	outcomes, err := w.client.Fail(ctx, w.db, uuid.Nil, failures)
	Expect(err).NotTo(HaveOccurred())
	var ids []int64
	for _, o := range outcomes {
		ids = append(ids, o.ID)
	}
	w.told(ctx, runs, ids, "retried")
}

// loseLease takes back all that runs, as when no heartbeat had come for long.
func (w *world) loseLease(ctx context.Context) {
	GinkgoHelper()
	_, err := w.db.Exec(ctx, `UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() - interval '1 second'`)
	Expect(err).NotTo(HaveOccurred())
	_, err = w.client.Reap(ctx, w.db, queue.ReapRequest{Queue: queueName})
	Expect(err).NotTo(HaveOccurred())
	_, err = w.db.Exec(ctx, `UPDATE jobqueue.waiting SET available_at = clock_timestamp()`)
	Expect(err).NotTo(HaveOccurred())
}

// reapAndFail has the reaper look at those that live, twice: once it may remove who it should
// not, and then take what has no worker. Then it fails the runs.
func (w *world) reapAndFail(ctx context.Context, runs []queue.Run) {
	GinkgoHelper()
	for range 2 {
		_, err := w.client.Reap(ctx, w.db, queue.ReapRequest{}) // in all queues it looks for those at once
		Expect(err).NotTo(HaveOccurred())
	}
	w.fail(ctx, runs)
}

var _ = Describe("The history of a worker that comes back after its jobs were taken from it", func() {
	// One worker claims four jobs, finishes one, and loses the others. Another claims
	// them and finishes one; then the first writes what it has. One is left running.
	play := func(ctx context.Context, lateWrite func(*world, context.Context, []queue.Run), defects ...defect) history.Report {
		GinkgoHelper()
		w := newWorld(ctx)
		for _, d := range defects {
			d.install(ctx, w)
		}
		w.enqueue(ctx, work{}, 4)
		first := w.claim(ctx, 4)
		Expect(first).To(HaveLen(4))
		w.succeed(ctx, first[:1])
		w.loseLease(ctx)
		second := w.claim(ctx, 4)
		if len(second) > 0 {
			w.succeed(ctx, second[:1])
		}
		lateWrite(w, ctx, first[2:])
		h, err := history.Read(ctx, w.db, w.client.Schema(), w.enqueued)
		Expect(err).NotTo(HaveOccurred())
		return history.Check(h)
	}

	DescribeTable("is flawless under the protocol", func(ctx context.Context, lateWrite func(*world, context.Context, []queue.Run)) {
		report := play(ctx, lateWrite)
		Expect(report.Err()).NotTo(HaveOccurred())
		Expect(report.Ended).To(HaveKeyWithValue("reap", 3))
		report.Ended = nil
		Expect(report).To(Equal(history.Report{Jobs: 4, Runs: 7, Accepted: 2, Refused: 2}))
	},
		Entry("with late successes", (*world).succeed),
		Entry("with late failures", (*world).fail),
		Entry("with a reaper that looks at the other worker", (*world).reapAndFail),
	)

	DescribeTable("shows each way to break it, and nothing else",
		func(ctx context.Context, rules []history.Rule, violations int, lateWrite func(*world, context.Context, []queue.Run), d defect) {
			report := play(ctx, lateWrite, d)
			Expect(report.Rules()).To(Equal(rules), "%v", report.Err())
			Expect(report.Violations).To(HaveLen(violations), "%v", report.Err())
		},
		Entry("successes that need no open run", []history.Rule{history.StaleWrite}, 2, (*world).succeed,
			defect{"succeed_many", "f.mask & f.open", "f.mask"}),
		Entry("failures that need no open run", []history.Rule{history.StaleWrite}, 4, (*world).fail,
			defect{"open_mask", "& p_open;", ";"}),
		Entry("a reaper that does not end the runs that it returns", []history.Rule{history.TwoOwners}, 3, (*world).fail,
			defect{"reap", `PERFORM "jobqueue".close_runs(v_keys, v_masks);`, ""}),
		Entry("a reaper that ends runs and does not return their jobs", []history.Rule{history.Lost}, 3, (*world).succeed,
			defect{"reap", "FROM runs r WHERE r.attempt + 1 < r.max_attempts", "FROM runs r WHERE false"}),
		Entry("successes that do not end their run", []history.Rule{history.Revived, history.FinishedTwice}, 2, (*world).fail,
			defect{"mark_succeeded", "open = b.open & ~m.mask, succeeded", "succeeded"}),
		// One of the two is taken back by the reaper, and looks stale then.
		Entry("successes that are accepted and not written", []history.Rule{history.ResultLost, history.StaleWrite}, 2, (*world).fail,
			defect{"succeed_many", `PERFORM "jobqueue".mark_succeeded(v_keys, v_masks, v_ms);`, ""}),
		// One of the two is taken back by the reaper, but later.
		Entry("successes that are refused of runs that go on", []history.Rule{history.Causeless}, 2, (*world).fail,
			defect{"succeed_many", "WHERE bit_count(f.mask & f.open) > 0", "WHERE false"}),
		Entry("successes that end their run and are refused", []history.Rule{history.Causeless}, 2, (*world).fail,
			defect{"succeed_many", "RETURN QUERY SELECT m.key, m.runs", "RETURN QUERY SELECT m.key, (m.runs & ~m.runs)::varbit"}),
		Entry("a reaper that counts leases as over an hour early", []history.Rule{history.Robbed}, 2, (*world).reapAndFail,
			defect{"reap", "w.lease_expires_at < v_now", "w.lease_expires_at < v_now + interval '1 hour'"}),
		Entry("a reaper that does not wait for deadlines", []history.Rule{history.Robbed}, 2, (*world).reapAndFail,
			defect{"reap", "AND b.deadline < v_now", ""}),
		Entry("a reaper that takes workers for removed", []history.Rule{history.Robbed}, 2, (*world).reapAndFail,
			defect{"reap", `WHERE NOT EXISTS (SELECT 1 FROM "jobqueue".workers w WHERE w.id = s.worker)`, "WHERE true"}),
		Entry("a reaper that removes workers whose leases last", []history.Rule{history.Robbed}, 2, (*world).reapAndFail,
			defect{"reap", "WHERE w.id = ANY (v_expired)", "WHERE true OR w.id = ANY (v_expired)"}),
	)

	It("is written down whatever a backslash means in the session", func(ctx context.Context) {
		w := newWorld(ctx)
		conn, err := pgx.Connect(ctx, w.url)
		Expect(err).NotTo(HaveOccurred())
		defer func() { Expect(conn.Close(ctx)).To(Succeed()) }()
		_, err = conn.Exec(ctx, "SET standard_conforming_strings = off")
		Expect(err).NotTo(HaveOccurred())
		_, err = w.client.Enqueue(ctx, conn, queueName, queue.NewJob{Kind: kind, Payload: work{}})
		Expect(err).NotTo(HaveOccurred())
		_, err = w.client.Claim(ctx, conn, queue.ClaimRequest{Queue: queueName, Worker: uuid.New(), Limit: 1})
		Expect(err).NotTo(HaveOccurred())
		h, err := history.Read(ctx, w.db, w.client.Schema(), nil)
		Expect(err).NotTo(HaveOccurred())
		var by []string
		for _, e := range h.Events {
			by = append(by, e.By)
		}
		Expect(by).To(HaveExactElements(HavePrefix("enqueue"), HavePrefix("claim")))
	})
})
