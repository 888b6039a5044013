package integration

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var _ = Describe("The jobqueue commands", func() {
	run := func(url string, args ...string) (stdout, stderr string, code int) {
		GinkgoHelper()
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "JOBQUEUE_DATABASE_URL="+url)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return string(out), string(exit.Stderr), exit.ExitCode()
		}
		Expect(err).NotTo(HaveOccurred())
		return string(out), "", 0
	}

	It("migrate makes the schema, once, under any name", func() {
		db := pgtest.Database(GinkgoT())
		_, stderr, code := run(db.URL, "status")
		Expect(code).To(Equal(1))
		Expect(stderr).To(And(ContainSubstring("queue schema is missing"), ContainSubstring("Hint: create the schema with jobqueue migrate")))

		out, _, code := run(db.URL, "migrate", "--schema", "other")
		Expect(code).To(BeZero())
		Expect(out).To(Equal("schema other: migrated, from version 0 to 1\n"))
		out, _, _ = run(db.URL, "migrate", "--schema", "other")
		Expect(out).To(Equal("schema other: up to date, from version 1 to 1\n"))
		out, _, _ = run(db.URL, "status", "--schema", "other")
		Expect(out).To(Equal("no queues\n"))
	})

	It("enqueue adds jobs, all or none, and status shows them", func(ctx context.Context) {
		f := setUp(ctx)
		out, _, code := run(f.url, "enqueue", queueName, "--kind", "noop", "--count", "6000", "--priority", "3")
		Expect(code).To(BeZero())
		Expect(out).To(Equal("enqueued 6000 job(s) of kind noop in queue work, ids 1 to 6000\n"))
		out, _, code = run(f.url, "enqueue", queueName, "--kind", "noop", "--delay", "1h")
		Expect(code).To(BeZero(), out)
		Expect(f.number(ctx, "SELECT count(*) FROM jobqueue.jobs WHERE priority = 3 AND state = 'pending'")()).To(Equal(6000))

		_, stderr, code := run(f.url, "enqueue", "nowhere", "--kind", "noop")
		Expect(code).To(Equal(1))
		Expect(stderr).To(And(ContainSubstring(`queue "nowhere" does not exist`), ContainSubstring("Hint: ")))
		f.setPolicy(ctx, func(p *queue.Policy) { p.MaxPayloadBytes = 1000 })
		_, stderr, code = run(f.url, "enqueue", queueName, "--kind", "noop", "--payload", `"`+strings.Repeat("x", 1000)+`"`)
		Expect(code).To(Equal(1))
		Expect(stderr).To(ContainSubstring("payload is too large"))

		out, _, code = run(f.url, "status", "-o", "json")
		Expect(code).To(BeZero())
		var report struct {
			Queues []struct {
				Name               string
				Pending, Scheduled int
			}
		}
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		Expect(report.Queues).To(HaveLen(1))
		Expect(report.Queues[0].Pending).To(Equal(6000))
		Expect(report.Queues[0].Scheduled).To(Equal(1))
		out, _, _ = run(f.url, "status", queueName)
		Expect(out).To(MatchRegexp(`(?m)^work +6000 +0 +1 +0 +\S+ +0 +no$`))
	})

	It("reap works until nothing is left, and applies retention when asked (R1)", func(ctx context.Context) {
		f := setUp(ctx, func(p *queue.Policy) {
			p.Lease, p.Heartbeat, p.MaxAttempts = 100*time.Millisecond, 50*time.Millisecond, 1
			p.RetainDead = 0
		})
		f.enqueue(ctx, "k", struct{}{}, 250)
		_, err := f.client.Claim(ctx, f.db, queue.ClaimRequest{Queue: queueName, Worker: uuid.New(), Limit: 250})
		Expect(err).NotTo(HaveOccurred())
		Eventually(f.number(ctx, "SELECT count(*) FROM jobqueue.workers WHERE lease_expires_at < clock_timestamp()")).Should(Equal(1))
		By("at READ COMMITTED, whatever the role's default")
		f.exec(ctx, "ALTER DATABASE "+f.db.Config().ConnConfig.Database+" SET default_transaction_isolation = serializable")
		f.exec(ctx, `CREATE FUNCTION level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE EXCEPTION 'at %', current_setting('transaction_isolation'); END IF;
			RETURN coalesce(NEW, OLD); END $$`)
		f.exec(ctx, `CREATE TRIGGER level BEFORE INSERT OR DELETE ON jobqueue.dead FOR EACH ROW EXECUTE FUNCTION level()`)
		var report struct{ Returned, Buried, WorkersRemoved, FinishedPurged, DeadPurged, Batches int }
		out, _, code := run(f.url, "reap", "--batch", "100")
		Expect(code).To(BeZero())
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		Expect(report.Buried).To(Equal(250))
		Expect(report.WorkersRemoved).To(Equal(1))
		Expect(report.DeadPurged).To(BeZero())
		Expect(report.Batches).To(BeNumerically(">=", 3))
		out, _, code = run(f.url, "reap", "--retention", "--batch", "100")
		Expect(code).To(BeZero())
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		Expect(report.DeadPurged).To(Equal(250))
		Expect(f.number(ctx, deadJobs)()).To(BeZero())
	})
})
