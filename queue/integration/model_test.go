package integration_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// modelJob is a job as the model knows it. The time it became available is only
// an order: the number of the step that set it.
type modelJob struct {
	id           int64
	state        queue.State
	kind         string
	priority     int16
	available    int
	resumes      bool // taken back from a dead worker: keeps its place
	attempt, max int
	ref          queue.Ref
	worker       int
}

// model is the queue, as plainly as it can be put: a map, and no concurrency.
type model struct {
	e         *env
	rng       *rand.Rand
	step      int
	jobs      map[int64]*modelJob
	workers   []uuid.UUID
	suspended bool
	old       []modelRef // every run there ever was, to be presented again
	claimed, succeeded, failed, lost,
	discarded, cancelled int64
}

type modelRef struct {
	ref    queue.Ref
	worker int
}

func newModel(e *env, seed uint64) *model {
	return &model{
		e: e, rng: rand.New(rand.NewPCG(seed, 0)), jobs: map[int64]*modelJob{},
		workers: []uuid.UUID{uuid.New(), uuid.New(), uuid.New()},
	}
}

// where returns the jobs that satisfy a condition, by id.
func (m *model) where(ok func(j *modelJob) bool) []*modelJob {
	var found []*modelJob
	for _, j := range m.jobs {
		if ok(j) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(a, b *modelJob) int { return cmp.Compare(a.id, b.id) })
	return found
}

func (m *model) inState(state queue.State) []*modelJob {
	return m.where(func(j *modelJob) bool { return j.state == state })
}

func (m *model) enqueue() {
	jobs := make([]queue.NewJob, 1+m.rng.IntN(5))
	for i := range jobs {
		jobs[i] = queue.NewJob{Kind: []string{"a", "b"}[m.rng.IntN(2)], Priority: int16(m.rng.IntN(4) - 2), MaxAttempts: m.rng.IntN(4)}
		if m.rng.IntN(3) == 0 {
			jobs[i].Delay = time.Hour
		}
	}
	ids, err := m.e.c.Enqueue(m.e.ctx, m.e.pool, "q", jobs...)
	Expect(err).NotTo(HaveOccurred())
	for i, id := range ids {
		j := &modelJob{id: id, state: queue.StatePending, kind: jobs[i].Kind, priority: jobs[i].Priority, available: m.step, max: jobs[i].MaxAttempts}
		if jobs[i].Delay > 0 {
			j.state = queue.StateScheduled
		}
		if j.max == 0 {
			j.max = 3 // the policy's
		}
		m.jobs[id] = j
	}
}

func (m *model) claim() {
	w, limit := m.rng.IntN(len(m.workers)), 1+m.rng.IntN(6)
	var kinds []string
	if m.rng.IntN(3) == 0 {
		kinds = []string{"a"}
	}
	ready := m.where(func(j *modelJob) bool {
		return j.state == queue.StatePending && (kinds == nil || j.kind == "a") && !m.suspended
	})
	slices.SortFunc(ready, func(a, b *modelJob) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.available, b.available), cmp.Compare(a.id, b.id))
	})
	ready = ready[:min(limit, len(ready))]
	var want []int64
	for _, j := range ready {
		want = append(want, j.id)
	}
	// Alone, or sharing rows all or some of them: nothing of what follows differs.
	alone := [][]string{nil, {}, {"a"}}[m.rng.IntN(3)]
	runs, err := m.e.c.Claim(m.e.ctx, m.e.pool, queue.ClaimRequest{Queue: "q", Worker: m.workers[w], Limit: limit, Kinds: kinds, Alone: alone})
	Expect(err).NotTo(HaveOccurred())
	if len(want) == 0 {
		Expect(runs).To(BeEmpty())
		return
	}
	Expect(runIDs(runs)).To(Equal(want))
	for i, j := range ready {
		j.state, j.worker, j.ref = queue.StateRunning, w, runs[i].Ref
		j.attempt++
		Expect(runs[i].Attempt).To(Equal(j.attempt))
		m.old = append(m.old, modelRef{j.ref, w})
	}
	m.claimed += int64(len(ready))
}

// pick chooses a worker and some runs to present: current ones and, now and
// then, stale ones. accepted are the jobs among them that the worker does own.
func (m *model) pick() (worker uuid.UUID, refs []queue.Ref, accepted []*modelJob) {
	w := m.rng.IntN(len(m.workers))
	for _, j := range m.inState(queue.StateRunning) {
		if j.worker == w && m.rng.IntN(2) == 0 {
			refs = append(refs, j.ref)
			accepted = append(accepted, j)
		}
	}
	for range m.rng.IntN(3) {
		if len(m.old) == 0 {
			break
		}
		stale := m.old[m.rng.IntN(len(m.old))]
		if j := m.jobs[stale.ref.ID]; j != nil && j.state == queue.StateRunning && j.ref == stale.ref && j.worker == w {
			continue
		}
		refs = append(refs, stale.ref)
	}
	m.rng.Shuffle(len(refs), func(i, k int) { refs[i], refs[k] = refs[k], refs[i] })
	return m.workers[w], refs, accepted
}

// same asserts that exactly the given jobs were accepted.
func same(got []int64, err error, want []*modelJob) {
	GinkgoHelper()
	Expect(err).NotTo(HaveOccurred())
	var ids []int64
	for _, j := range want {
		ids = append(ids, j.id)
	}
	Expect(got).To(ConsistOf(ids))
}

func (m *model) finish() {
	c, e := m.e.c, m.e
	worker, refs, accepted := m.pick()
	switch m.rng.IntN(6) {
	case 0, 1:
		got, err := c.Succeed(e.ctx, e.pool, worker, refs)
		same(got, err, accepted)
		m.move(accepted, queue.StateSucceeded, &m.succeeded)
	case 2:
		got, err := c.Discard(e.ctx, e.pool, worker, discards("no", refs...))
		same(got, err, accepted)
		m.move(accepted, queue.StateDiscarded, &m.discarded)
	case 3:
		got, err := c.Release(e.ctx, e.pool, worker, refs)
		same(got, err, accepted)
		m.putBack(accepted)
	case 4:
		later := m.rng.IntN(2) == 0
		delay := time.Duration(0)
		if later {
			delay = time.Hour
		}
		got, err := c.Snooze(e.ctx, e.pool, worker, snoozes(delay, refs...))
		same(got, err, accepted)
		m.putBack(accepted)
		for _, j := range accepted {
			if j.available = m.step; later {
				j.state = queue.StateScheduled
			}
		}
	case 5:
		permanent := m.rng.IntN(4) == 0
		var failures []queue.Failure
		for _, ref := range refs {
			failures = append(failures, queue.Failure{Ref: ref, Error: "e", Permanent: permanent, RetryAfter: time.Hour})
		}
		out, err := c.Fail(e.ctx, e.pool, worker, failures)
		var got []int64
		for _, o := range out {
			got = append(got, o.ID)
		}
		same(got, err, accepted)
		m.failed += int64(len(accepted))
		for _, j := range accepted {
			m.retry(j, permanent)
		}
		for _, o := range out {
			Expect(o.Dead).To(Equal(m.jobs[o.ID].state == queue.StateDead))
		}
	}
}

func (m *model) move(jobs []*modelJob, to queue.State, counter *int64) {
	for _, j := range jobs {
		j.state = to
	}
	*counter += int64(len(jobs))
}

func (m *model) putBack(jobs []*modelJob) {
	for _, j := range jobs {
		j.state = queue.StatePending
		j.attempt--
	}
}

func (m *model) retry(j *modelJob, permanent bool) {
	if j.state = queue.StateScheduled; permanent || j.attempt >= j.max {
		j.state = queue.StateDead
	}
}

func (m *model) heartbeat() {
	w := m.rng.IntN(len(m.workers))
	var held []queue.Ref
	var lost []uuid.UUID
	seen := map[uuid.UUID]bool{}
	for range m.rng.IntN(5) {
		if len(m.old) == 0 {
			break
		}
		ref := m.old[m.rng.IntN(len(m.old))].ref
		if seen[ref.Token] {
			continue
		}
		seen[ref.Token] = true
		held = append(held, ref)
		if j := m.jobs[ref.ID]; j.state != queue.StateRunning || j.ref != ref || j.worker != w {
			lost = append(lost, ref.Token)
		}
	}
	hb, err := m.e.c.Heartbeat(m.e.ctx, m.e.pool, m.workers[w], "q", held)
	Expect(err).NotTo(HaveOccurred())
	Expect(hb.Lost).To(ConsistOf(lost))
}

func (m *model) expire() {
	w := m.rng.IntN(len(m.workers))
	known := m.e.exec(`UPDATE jobqueue.workers SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE id = $1`, m.workers[w])
	var returned, buried int64
	for _, j := range m.inState(queue.StateRunning) {
		if j.worker == w {
			if m.retry(j, false); j.state == queue.StateDead {
				buried++
			} else {
				returned++
				j.resumes = true
			}
			m.lost++
		}
	}
	res := m.e.reap(queue.ReapRequest{Retention: true})
	Expect([]int64{res.Returned, res.Buried, res.WorkersRemoved}).To(Equal([]int64{returned, buried, known}))
	m.later() // "in a second" is too soon for a model without a clock
}

// later puts scheduled jobs out of reach, and tick makes them due.
func (m *model) later() {
	m.e.exec(`UPDATE jobqueue.waiting SET available_at = available_at + interval '1 h' WHERE state = 'scheduled' AND available_at > clock_timestamp()`)
}

func (m *model) tick() {
	m.e.due()
	for _, j := range m.inState(queue.StateScheduled) {
		if !j.resumes {
			j.available = m.step
		}
		j.state, j.resumes = queue.StatePending, false
	}
	if m.rng.IntN(2) == 0 {
		m.e.reap(queue.ReapRequest{})
	}
}

func (m *model) cancel() {
	live := m.where(func(j *modelJob) bool {
		return j.state == queue.StatePending || j.state == queue.StateScheduled || j.state == queue.StateRunning
	})
	var ids []int64
	var chosen []*modelJob
	for _, j := range live {
		if m.rng.IntN(5) == 0 {
			chosen = append(chosen, j)
			ids = append(ids, j.id)
		}
	}
	got, err := m.e.c.Cancel(m.e.ctx, m.e.pool, ids, "enough")
	same(got, err, chosen)
	m.move(chosen, queue.StateCancelled, &m.cancelled)
}

func (m *model) requeue() {
	dead := m.inState(queue.StateDead)
	limit := 1 + m.rng.IntN(3)
	got, err := m.e.c.RequeueKind(m.e.ctx, m.e.pool, "q", "", limit)
	dead = dead[:min(limit, len(dead))]
	same(got, err, dead)
	for _, j := range dead {
		j.state, j.attempt, j.available = queue.StatePending, 0, m.step
	}
}

func (m *model) unregister() {
	w := m.rng.IntN(len(m.workers))
	Expect(m.e.c.Unregister(m.e.ctx, m.e.pool, m.workers[w])).To(Succeed())
	m.putBack(m.where(func(j *modelJob) bool { return j.state == queue.StateRunning && j.worker == w }))
	m.workers[w] = uuid.New()
}

func (m *model) suspend() {
	m.suspended = !m.suspended
	m.e.policy(func(p *queue.Policy) { p.Suspended = m.suspended })
}
