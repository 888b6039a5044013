package e2e

import (
	"cmp"
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/test/invariants"
)

// want is a condition that a spec waits for. An empty reason means any.
type want struct {
	condition string
	status    metav1.ConditionStatus
	reason    string
}

var ready = want{v1alpha1.ConditionReady, metav1.ConditionTrue, ""}

func notReady(reason string) want {
	return want{v1alpha1.ConditionReady, metav1.ConditionFalse, reason}
}

// in looks the condition up; the error says what was found instead.
func (w want) in(conditions []metav1.Condition) (metav1.Condition, error) {
	c := meta.FindStatusCondition(conditions, w.condition)
	switch {
	case c == nil:
		return metav1.Condition{}, fmt.Errorf("condition %s is not there, in %v", w.condition, conditions)
	case c.Status != w.status || w.reason != "" && c.Reason != w.reason:
		return *c, fmt.Errorf("condition %s is %s (%s: %s), wanted %s (%s)", c.Type, c.Status, c.Reason, c.Message, w.status, w.reason)
	}
	return *c, nil
}

// awaitQueue waits until a JobQueue's status speaks of its present spec and has a condition.
func (p *place) awaitQueue(ctx context.Context, name string, w want, within time.Duration) metav1.Condition {
	GinkgoHelper()
	var found metav1.Condition
	Eventually(func() error {
		jq, err := p.jobQueue(ctx, name)
		if err != nil {
			return err
		}
		if jq.Status.ObservedGeneration != jq.Generation {
			return fmt.Errorf("status speaks of generation %d, not %d", jq.Status.ObservedGeneration, jq.Generation)
		}
		found, err = w.in(jq.Status.Conditions)
		return err
	}).WithContext(ctx).WithTimeout(within).Should(Succeed(), "JobQueue %s", name)
	return found
}

// awaitDatabase is the same for the QueueDatabase.
func (p *place) awaitDatabase(ctx context.Context, w want, within time.Duration) metav1.Condition {
	GinkgoHelper()
	var found metav1.Condition
	Eventually(func() error {
		qdb, err := p.queueDatabase(ctx)
		if err != nil {
			return err
		}
		if qdb.Status.ObservedGeneration != qdb.Generation {
			return fmt.Errorf("status speaks of generation %d, not %d", qdb.Status.ObservedGeneration, qdb.Generation)
		}
		found, err = w.in(qdb.Status.Conditions)
		return err
	}).WithContext(ctx).WithTimeout(within).Should(Succeed(), "QueueDatabase")
	return found
}

// setUp creates a database and queues in it, waits until jobs can be enqueued, and begins to
// record every end of a job.
func (p *place) setUp(ctx context.Context, db DatabaseBuilder, queues ...JobQueueBuilder) {
	GinkgoHelper()
	p.create(ctx, db.Obj())
	p.awaitDatabase(ctx, ready, 30*time.Second)
	p.record(ctx)
	for _, q := range queues {
		p.create(ctx, q.Obj())
	}
	for _, q := range queues {
		p.awaitPolicy(ctx, q.Obj().Name)
	}
}

// record begins to record every end of a job.
func (p *place) record(ctx context.Context) {
	GinkgoHelper()
	Expect(invariants.Watch(ctx, p.pool, p.queue.Schema())).To(Succeed())
}

// awaitPolicy waits until the JobQueue's spec is in force in the database, and says so. The
// status alone may still speak of a schema that has since been dropped.
func (p *place) awaitPolicy(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		jq, err := p.jobQueue(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(jq.Status.PolicyGeneration).To(Equal(jq.Generation), "conditions: %v", jq.Status.Conditions)
		policy, err := p.queue.GetPolicy(ctx, p.pool, cmp.Or(jq.Spec.QueueName, name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(policy.Generation).To(Equal(jq.Generation))
	}).WithContext(ctx).WithTimeout(20*time.Second).Should(Succeed(), "the policy of JobQueue %s is not in the database", name)
}

// awaitDesired waits until the decision is a number of replicas and the Deployment asks for it.
func (p *place) awaitDesired(ctx context.Context, name string, n int32, within time.Duration) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		jq, err := p.jobQueue(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(jq.Status.Decision).NotTo(BeNil())
		g.Expect(jq.Status.Decision.Replicas).To(Equal(n), "%+v", jq.Status.Decision)
		d, err := p.deployment(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.Spec.Replicas).To(HaveValue(Equal(n)))
	}).WithContext(ctx).WithTimeout(within).Should(Succeed(), "JobQueue %s is not at %d replicas", name, n)
}

// awaitFreshSample waits for a sample of the queue that was taken after now.
func (p *place) awaitFreshSample(ctx context.Context, name string, within time.Duration) {
	GinkgoHelper()
	// The database's clock, as TakenAt is; and TakenAt has whole seconds only.
	begun := must[time.Time](ctx, p, `SELECT clock_timestamp()`)
	Eventually(func(g Gomega) {
		jq, err := p.jobQueue(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(jq.Status.Sample).NotTo(BeNil())
		g.Expect(jq.Status.Sample.TakenAt.Time).To(BeTemporally(">", begun))
	}).WithContext(ctx).WithTimeout(within).Should(Succeed(), "JobQueue %s is not sampled any more", name)
}
