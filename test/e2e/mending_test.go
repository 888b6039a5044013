package e2e

import (
	"net/url"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/test/invariants"
)

// altered returns the place's URI with something changed.
func (p *place) altered(f func(*url.URL)) string {
	GinkgoHelper()
	u, err := url.Parse(p.url)
	Expect(err).NotTo(HaveOccurred())
	f(u)
	return u.String()
}

func withPassword(u *url.URL, password string) {
	u.User = url.UserPassword(u.User.Username(), password)
}

var _ = Describe("A mistake is named and, once mended, forgotten", func() {
	// wrongThenRight applies a database whose Secret is wrong and a queue in it, waits until
	// both say what is wrong, mends the Secret, and has a job done.
	wrongThenRight := func(ctx SpecContext, reason string, wrong func(*place) string) {
		GinkgoHelper()
		p := newBarePlace(ctx)
		if wrong != nil {
			p.putSecret(ctx, secretName, wrong(p))
		}
		p.create(ctx, MakeDatabase(databaseName, p.namespace).Budget(20).Obj(), MakeJobQueue("emails", p.namespace).Obj())
		c := p.awaitDatabase(ctx, notReady(reason), 30*time.Second)
		Expect(c.Message).NotTo(BeEmpty())
		Expect(c.Message).NotTo(ContainSubstring("a-secret-word"), "a condition shows a password")
		p.awaitQueue(ctx, "emails", notReady(v1alpha1.ReasonDatabaseNotReady), 10*time.Second)

		p.putSecret(ctx, secretName, p.url)
		mended := time.Now()
		p.awaitDatabase(ctx, ready, 20*time.Second)
		p.awaitPolicy(ctx, "emails")
		note(reason, "%q; ready %.1f s after it was mended", c.Message, time.Since(mended).Seconds())
		p.record(ctx)
		p.enqueue(ctx, "emails", noop())
		p.awaitDrained(ctx, "emails", 30*time.Second)
	}
	It("when the Secret is missing", SpecTimeout(specTime), func(ctx SpecContext) {
		wrongThenRight(ctx, v1alpha1.ReasonSecretNotFound, nil)
	})
	It("when the Secret's URI is none", SpecTimeout(specTime), func(ctx SpecContext) {
		wrongThenRight(ctx, v1alpha1.ReasonSecretInvalid, func(*place) string { return "not a URI, but a-secret-word" })
	})
	It("when the password is wrong", SpecTimeout(specTime), func(ctx SpecContext) {
		wrongThenRight(ctx, v1alpha1.ReasonAuthenticationFailed, func(p *place) string {
			return p.altered(func(u *url.URL) { withPassword(u, "a-secret-word") })
		})
	})
	It("when the server cannot be reached", SpecTimeout(specTime), func(ctx SpecContext) {
		wrongThenRight(ctx, v1alpha1.ReasonConnectionFailed, func(p *place) string {
			return p.altered(func(u *url.URL) {
				u.Host = u.Hostname() + ":9"
				withPassword(u, "a-secret-word")
			})
		})
	})

	It("when a JobQueue is deleted while its database cannot be reached: it goes, and its successor takes the jobs", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		q := MakeJobQueue("emails", p.namespace)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), q)
		later := noop()
		later.Delay = 2 * time.Second
		p.putSecret(ctx, secretName, p.altered(func(u *url.URL) { u.Host = u.Hostname() + ":9" }))
		p.awaitDatabase(ctx, notReady(v1alpha1.ReasonConnectionFailed), 30*time.Second)
		p.enqueue(ctx, "emails", later)

		Expect(kube.Delete(ctx, q.Obj())).To(Succeed())
		// The operator waits a while for the database, but not for ever.
		p.awaitNone(ctx, &v1alpha1.JobQueueList{})
		p.putSecret(ctx, secretName, p.url)
		p.create(ctx, MakeJobQueue("emails", p.namespace).Obj())
		p.awaitDrained(ctx, "emails", podTime)
	})

	It("when the credentials are rotated, without losing a job", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), MakeJobQueue("emails", p.namespace).Replicas(1))
		old := p.awaitPods(ctx, "emails", 1, podTime)[0]
		p.enqueue(ctx, "emails", times(4, sleep(2000))...)
		// The same role, by another URI: whoever still used the old one would go on unnoticed,
		// so the pods must be seen to change.
		p.putSecret(ctx, secretName, p.altered(func(u *url.URL) {
			q := u.Query()
			q.Set("connect_timeout", "7")
			u.RawQuery = q.Encode()
		}))
		Eventually(findPod).WithContext(ctx).WithArguments(p, old.Name).WithTimeout(40*time.Second).
			Should(BeFalse(), "the pod with the old credentials is left")
		p.awaitDrained(ctx, "emails", 20*time.Second)
		p.awaitPods(ctx, "emails", 1, podTime)
	})

	It("when the schema is to be migrated by hand, and when it is dropped", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.create(ctx, MakeDatabase(databaseName, p.namespace).Budget(20).Migrations(v1alpha1.MigrationManual).Obj(),
			MakeJobQueue("emails", p.namespace).Obj())
		c := p.awaitDatabase(ctx, notReady(v1alpha1.ReasonSchemaMissing), 30*time.Second)
		Expect(c.Message).To(ContainSubstring("migrate"), "the message does not say what to do")
		migrate := func() {
			tool("jobqueue", "JOBQUEUE_DATABASE_URL="+p.url).mustRun(ctx, "migrate")
			p.awaitDatabase(ctx, ready, 60*time.Second)
			p.awaitPolicy(ctx, "emails")
			p.record(ctx)
			p.enqueue(ctx, "emails", noop())
			p.awaitDrained(ctx, "emails", 30*time.Second)
		}
		migrate()

		_, err := p.pool.Exec(ctx, `DROP SCHEMA jobqueue CASCADE; DROP SCHEMA `+invariants.Schema+` CASCADE; TRUNCATE orders`)
		Expect(err).NotTo(HaveOccurred())
		p.awaitDatabase(ctx, notReady(v1alpha1.ReasonSchemaMissing), 30*time.Second)
		migrate()
	})

	It("when the JobQueue names a database that is not there", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.create(ctx, MakeJobQueue("emails", p.namespace).Obj())
		p.awaitQueue(ctx, "emails", notReady(v1alpha1.ReasonDatabaseNotFound), 10*time.Second)
		p.create(ctx, MakeDatabase(databaseName, p.namespace).Budget(20).Obj())
		p.awaitQueue(ctx, "emails", ready, 30*time.Second)
	})

	It("when two JobQueues name one queue", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		same := func(s *v1alpha1.JobQueueSpec) { s.QueueName = "letters" }
		first := MakeJobQueue("first", p.namespace).Change(same)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), first)
		p.create(ctx, MakeJobQueue("second", p.namespace).Change(same).Obj())
		c := p.awaitQueue(ctx, "second", notReady(v1alpha1.ReasonQueueOwned), 15*time.Second)
		Expect(c.Message).To(ContainSubstring("first"), "the message does not name the owner")
		p.awaitQueue(ctx, "first", ready, 10*time.Second)

		Expect(kube.Delete(ctx, first.Obj())).To(Succeed())
		p.awaitQueue(ctx, "second", ready, 30*time.Second)
		p.enqueue(ctx, "letters", noop())
		p.awaitDrained(ctx, "letters", 30*time.Second)
	})

	It("when the worker's image does not exist", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20),
			MakeJobQueue("emails", p.namespace).Between(1, 1).Image("registry.invalid/no/such/image:1"))
		// Workers are wanted and none gets ready: the status must not say that all is well,
		// and must name what the kubelet says.
		Eventually(func(g Gomega) {
			jq, err := p.jobQueue(ctx, "emails")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(jq.Status.ReadyReplicas).To(BeZero())
			c, err := notReady("").in(jq.Status.Conditions)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.Message).To(MatchRegexp("ErrImagePull|ImagePullBackOff|ErrImageNeverPull"))
		}).WithContext(ctx).WithTimeout(40*time.Second).Should(Succeed(), "a missing image is not to be seen")

		p.enqueue(ctx, "emails", noop())
		p.change(ctx, "emails", func(s *v1alpha1.JobQueueSpec) { s.Worker.Template.Spec.Containers[0].Image = image })
		p.awaitDrained(ctx, "emails", 40*time.Second)
		p.awaitQueue(ctx, "emails", want{v1alpha1.ConditionReady, metav1.ConditionTrue, ""}, 40*time.Second)
	})
})
