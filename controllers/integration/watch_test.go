package integration

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers"
)

var _ = Describe("a namespace that is not watched any more", func() {
	var kept, left *world
	var emails *v1alpha1.JobQueue
	BeforeEach(func() {
		kept, left = makeWorld(postgres), makeWorld(postgres)
		kept.watch = []string{kept.ns, left.ns}
		kept.start()
		DeferCleanup(func() { kept.stop(); kept.player.stop(); left.player.stop() })
		left.database(budgetOf(20))
		emails = left.jobQueue("emails", minReplicas(2))
		Eventually(condition(emails, v1alpha1.ConditionReady)).Should(Equal("True/Ready"))

		kept.stop()
		kept.watch = []string{kept.ns}
		kept.start()
		kept.database(budgetOf(20))
		Eventually(condition(kept.jobQueue("reports"), v1alpha1.ConditionReady)).Should(Equal("True/Ready"))
		Expect(get(emails).Finalizers).To(ContainElement(controllers.Finalizer))
		Expect(left.replicas("emails")()).To(BeNumerically("==", 2), "its workers go on")
		Expect(k8s.Delete(within(5*time.Second), emails)).To(Succeed())
		Consistently(func() error {
			return k8s.Get(within(5*time.Second), client.ObjectKeyFromObject(emails), emails)
		}).WithTimeout(2*time.Second).Should(Succeed(), "nobody serves its finalizer")
	})
	gone := func() {
		GinkgoHelper()
		Eventually(func() error {
			return k8s.Get(within(5*time.Second), client.ObjectKeyFromObject(emails), emails)
		}).Should(MatchError(ContainSubstring("not found")))
	}
	owner := func() (name string) {
		left.sql(func(ctx context.Context, conn *pgx.Conn) {
			p, err := left.queue.GetPolicy(ctx, conn, "emails")
			Expect(err).NotTo(HaveOccurred())
			name = p.Owner
		})
		return name
	}

	It("lets a JobQueue go when the finalizer is removed as docs/operations.md says", func() {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		Expect(k8s.Patch(within(5*time.Second), emails, patch)).To(Succeed())
		gone()
		Expect(owner()).To(Equal(left.ns+"/emails"), "the queue in the database still has it as its owner")
		left.sql(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, `SELECT jobqueue.release_owner('emails', $1)`, left.ns+"/emails")
			Expect(err).NotTo(HaveOccurred())
		})
		Expect(owner()).To(BeEmpty())
	})

	It("lets it go by itself when it is watched again", func() {
		kept.stop()
		kept.watch = []string{kept.ns, left.ns}
		kept.start()
		gone()
		Expect(owner()).To(BeEmpty())
	})
})
