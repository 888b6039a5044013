package integration_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// compare holds the whole database against the model. Promotion is lazy, so a
// job that is due counts as pending.
func (m *model) compare() {
	GinkgoHelper()
	rows, err := m.e.pool.Query(m.e.ctx, `
		SELECT id, CASE WHEN state = 'scheduled' AND available_at <= clock_timestamp() THEN 'pending' ELSE state END, attempt, max_attempts,
			coalesce(worker_id::text, '') FROM jobqueue.jobs
		UNION ALL SELECT id, state, attempt, 0, '' FROM jobqueue.finished
		UNION ALL SELECT id, 'dead', attempt, max_attempts, '' FROM jobqueue.dead ORDER BY 1`)
	Expect(err).NotTo(HaveOccurred())
	var got, want []string
	for rows.Next() {
		var id int64
		var attempt, limit int
		var state, worker string
		Expect(rows.Scan(&id, &state, &attempt, &limit, &worker)).To(Succeed())
		got = append(got, fmt.Sprintf("%d %s attempt %d/%d %s", id, state, attempt, limit, worker))
	}
	Expect(rows.Err()).NotTo(HaveOccurred())
	for _, j := range m.where(func(*modelJob) bool { return true }) {
		limit, worker := j.max, ""
		switch j.state {
		case queue.StateRunning:
			worker = m.workers[j.worker].String()
		case queue.StateSucceeded, queue.StateDiscarded, queue.StateCancelled:
			limit = 0
		}
		want = append(want, fmt.Sprintf("%d %s attempt %d/%d %s", j.id, j.state, j.attempt, limit, worker))
	}
	Expect(got).To(Equal(want))
}

func (m *model) compareSample() {
	GinkgoHelper()
	s := m.e.sample()
	count := func(state queue.State) int64 { return int64(len(m.inState(state))) }
	Expect([]int64{s.Pending, s.Scheduled, s.Running, s.Dead}).To(Equal([]int64{
		count(queue.StatePending), count(queue.StateScheduled), count(queue.StateRunning), count(queue.StateDead)}))
	Expect([]int64{s.Claimed, s.Succeeded, s.Failed, s.Lost, s.Discarded, s.Cancelled}).To(Equal([]int64{
		m.claimed, m.succeeded, m.failed, m.lost, m.discarded, m.cancelled}))
	waits := s.OldestAge > 0
	Expect(waits).To(Equal(s.Pending > 0))
	Expect(s.Suspended).To(Equal(m.suspended))
}

var _ = Describe("random operations against a model (T5)", func() {
	for i := range 6 {
		It(fmt.Sprintf("agrees, round %d", i), func() {
			seed := uint64(GinkgoRandomSeed())<<8 + uint64(i)
			GinkgoWriter.Printf("seed %d\n", seed)
			e := newEnv(nil)
			e.policy(func(p *queue.Policy) { p.MaxAttempts = 3 })
			m := newModel(e, seed)
			operations := []func(){
				m.enqueue, m.enqueue, m.enqueue, m.claim, m.claim, m.claim, m.claim, m.finish, m.finish, m.finish, m.finish,
				m.heartbeat, m.expire, m.tick, m.cancel, m.requeue, m.unregister, m.suspend,
			}
			for m.step = range 150 {
				operations[m.rng.IntN(len(operations))]()
				if m.suspended && m.rng.IntN(2) == 0 {
					m.suspend()
				}
				m.compare()
				if m.step%10 == 0 {
					m.compareSample()
				}
			}
			m.compareSample()
		})
	}
})
