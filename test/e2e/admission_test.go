package e2e

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// rejected is a spec that must not be admitted, with words that the message must have.
type rejected struct {
	change func(*v1alpha1.JobQueueSpec)
	says   string
}

var _ = Describe("Admission", func() {
	It("refuses combinations that cannot work, in words (P2)", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		for name, r := range map[string]rejected{
			"heartbeat against lease": {
				func(s *v1alpha1.JobQueueSpec) { s.Lease = v1alpha1.LeaseSpec{DurationSeconds: 10, HeartbeatSeconds: 6} },
				"lease.heartbeatSeconds must be at most half of lease.durationSeconds",
			},
			"batch against slots": {
				func(s *v1alpha1.JobQueueSpec) { s.Worker.Slots, s.Batch.Size = 10, new(int32(9)) },
				"batch.size must not be below worker.slots",
			},
			"grace against timeout": {
				func(s *v1alpha1.JobQueueSpec) { s.Worker.Template.Spec.TerminationGracePeriodSeconds = new(int64(12)) },
				"terminationGracePeriodSeconds must be greater than timeoutSeconds",
			},
			"min against max": {
				func(s *v1alpha1.JobQueueSpec) { s.Scaling.MinReplicas, s.Scaling.MaxReplicas = new(int32(5)), 4 },
				"scaling.minReplicas must not exceed scaling.maxReplicas",
			},
			"backoff": {
				func(s *v1alpha1.JobQueueSpec) { s.Retry.BackoffSeconds, s.Retry.BackoffMaxSeconds = 60, 30 },
				"retry.backoffSeconds must not exceed retry.backoffMaxSeconds",
			},
			"name of the queue": {
				func(s *v1alpha1.JobQueueSpec) { s.QueueName = "No Such Name" },
				"queueName must consist of lower-case letters",
			},
			"a pool without a connection to listen": {
				func(s *v1alpha1.JobQueueSpec) { s.Connections.PerReplica = 1 },
				"should be greater than or equal to 2",
			},
			"a lease too short to keep": {
				func(s *v1alpha1.JobQueueSpec) { s.Lease = v1alpha1.LeaseSpec{DurationSeconds: 3, HeartbeatSeconds: 1} },
				"should be greater than or equal to 4",
			},
		} {
			err := kube.Create(ctx, MakeJobQueue("emails", p.namespace).Change(r.change).Obj())
			Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%s: %v", name, err)
			Expect(err).To(MatchError(ContainSubstring(r.says)), name)
		}

		err := kube.Create(ctx, MakeJobQueue(strings.Repeat("x", 53), p.namespace).Obj())
		Expect(err).To(MatchError(ContainSubstring("metadata.name must be at most 52 characters")))
		err = kube.Create(ctx, MakeDatabase(strings.Repeat("x", 41), p.namespace).Obj())
		Expect(err).To(MatchError(ContainSubstring("metadata.name must be at most 40 characters")))
	})

	It("refuses changes that would leave jobs behind", SpecTimeout(specTime), func(ctx SpecContext) {
		p := newPlace(ctx)
		q := MakeJobQueue("emails", p.namespace).Change(func(s *v1alpha1.JobQueueSpec) { s.QueueName = "emails" })
		p.setUp(ctx, MakeDatabase(databaseName, p.namespace).Budget(20), q)
		p.awaitQueue(ctx, "emails", ready, 10*time.Second)
		for says, change := range map[string]func(*v1alpha1.JobQueueSpec){
			"databaseRef cannot be changed": func(s *v1alpha1.JobQueueSpec) { s.DatabaseRef.Name = "other" },
			"queueName cannot be changed":   func(s *v1alpha1.JobQueueSpec) { s.QueueName = "other" },
		} {
			Eventually(func() error {
				jq, err := p.jobQueue(ctx, "emails")
				if err != nil {
					return err
				}
				change(&jq.Spec)
				return kube.Update(ctx, jq)
			}).WithContext(ctx).WithTimeout(10 * time.Second).Should(MatchError(ContainSubstring(says)))
		}
	})
})
