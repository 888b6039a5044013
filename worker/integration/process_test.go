package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
	"github.com/jobqueue-dev/jobqueue-operator/test/workerproc"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// spawn runs "jobqueue worker" with side effects recorded.
func (f *fixture) spawn(env ...string) *workerproc.Process {
	GinkgoHelper()
	settings := append([]string{worker.EnvDatabaseURL + "=" + f.url, worker.EnvQueue + "=" + queueName,
		worker.EnvSlots + "=4", worker.EnvGraceSeconds + "=10"}, env...)
	return workerproc.Start(GinkgoWriter, []string{binary, "worker", "--effects-table", "demo.effects"}, settings)
}

var _ = Describe("A worker process", func() {
	short := func(p *queue.Policy) { p.Lease, p.Heartbeat = 2*time.Second, 300*time.Millisecond }
	sleep := func(ms, after int) map[string]int {
		return map[string]int{"milliseconds": ms, "after_milliseconds": after}
	}

	It("drains at SIGTERM and exits 0, no attempt spent (W5)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "sleep", sleep(1500, 0), 20)
		p := f.spawn()
		Eventually(p.Metric("running", "")).Should(BeEquivalentTo(4))
		p.Signal(syscall.SIGTERM)
		Expect(p.ExitCode()).To(BeZero())
		Expect(f.number(ctx, succeededJobs)()).To(Equal(4))
		Expect(f.number(ctx, effectRows)()).To(Equal(4))
		Expect(f.number(ctx, "SELECT count(*) FROM jobqueue.jobs WHERE state = 'pending' AND attempt = 0")()).To(Equal(16))
		Expect(f.number(ctx, workerRows)()).To(BeZero())
		// The server notices a moment after the process has closed them.
		Eventually(f.number(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'jobqueue:worker:%'")).Should(BeZero())
	})

	It("exits at once at a second signal (W5)", func(ctx context.Context) {
		f := setUp(ctx)
		f.enqueue(ctx, "sleep", sleep(60_000, 0), 1)
		p := f.spawn()
		Eventually(p.Metric("running", "")).Should(BeEquivalentTo(1))
		p.Signal(syscall.SIGTERM)
		Consistently(p.Exited, "300ms").ShouldNot(BeClosed())
		p.Signal(syscall.SIGTERM)
		Expect(p.ExitCode()).To(Equal(128 + int(syscall.SIGTERM)))
		Expect(f.number(ctx, runningJobs)()).To(Equal(1), "what it held waits for the lease's end")
	})

	It("killed before the side effect: the job runs again, the effect happens once (T2)", func(ctx context.Context) {
		f := setUp(ctx, short)
		f.enqueue(ctx, "sleep", sleep(1500, 0), 4)
		victim := f.spawn()
		Eventually(victim.Metric("running", "")).Should(BeEquivalentTo(4))
		victim.Signal(syscall.SIGKILL)
		Expect(victim.ExitCode()).To(Equal(128 + int(syscall.SIGKILL)))
		killed := time.Now()
		f.spawn()
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(4))
		Expect(time.Since(killed)).To(BeNumerically("<", 10*time.Second), "lease, a few seconds, and the job itself")
		Expect(f.number(ctx, effectRows)()).To(Equal(4))
		Expect(f.number(ctx, "SELECT count(*) FROM demo.effects WHERE attempt = 2")()).To(Equal(4))
	})

	It("killed after the side effect: at least once means twice here, told apart by token and attempt (T2, Q8)", func(ctx context.Context) {
		f := setUp(ctx, short)
		f.enqueue(ctx, "sleep", sleep(0, 2000), 1)
		victim := f.spawn()
		Eventually(f.number(ctx, effectRows)).Should(Equal(1))
		victim.Signal(syscall.SIGKILL)
		f.spawn()
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(1))
		Expect(f.number(ctx, "SELECT count(DISTINCT (token, attempt, worker)) FROM demo.effects GROUP BY job_id")()).To(Equal(2))
	})

	It("exhausts a job that kills its process: it is buried (T2)", func(ctx context.Context) {
		f := setUp(ctx, short, func(p *queue.Policy) { p.MaxAttempts = 1 })
		f.enqueue(ctx, "sleep", sleep(60_000, 0), 1)
		victim := f.spawn()
		Eventually(victim.Metric("running", "")).Should(BeEquivalentTo(1))
		victim.Signal(syscall.SIGKILL)
		f.spawn()
		Eventually(f.number(ctx, deadJobs)).Should(Equal(1))
	})

	It("stopped for longer than its lease loses the job, and its late result (T2, W3)", func(ctx context.Context) {
		f := setUp(ctx, short)
		f.enqueue(ctx, "sleep", sleep(2500, 0), 1)
		frozen := f.spawn()
		Eventually(frozen.Metric("running", "")).Should(BeEquivalentTo(1))
		frozen.Signal(syscall.SIGSTOP)
		other := f.spawn()
		Eventually(f.number(ctx, "SELECT count(*) FROM jobqueue.jobs WHERE state = 'running' AND attempt = 2")).Should(Equal(1))
		frozen.Signal(syscall.SIGCONT)
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(1))
		Eventually(frozen.Metric("stale_results_total", "")).Should(BeEquivalentTo(1))
		Expect(other.Metric("completions_total", "")()).To(BeEquivalentTo(1))
		Expect(f.number(ctx, "SELECT attempt FROM jobqueue.finished")()).To(Equal(2))
		// The frozen one goes on as a good worker.
		other.Signal(syscall.SIGTERM)
		Expect(other.ExitCode()).To(BeZero())
		f.enqueue(ctx, "noop", struct{}{}, 10)
		Eventually(f.number(ctx, succeededJobs)).Should(Equal(11))
		frozen.Signal(syscall.SIGTERM)
		Expect(frozen.ExitCode()).To(BeZero())
	})

	It("with a stuck handler exits with a code of its own, the others' work done (W6)", func(ctx context.Context) {
		f := setUp(ctx, short, func(p *queue.Policy) { p.Timeout = 500 * time.Millisecond })
		f.enqueue(ctx, "stuck", sleep(60_000, 0), 1)
		f.enqueue(ctx, "sleep", sleep(100, 0), 8)
		p := f.spawn()
		Expect(p.ExitCode()).To(Equal(3))
		Expect(f.number(ctx, succeededJobs)()).To(Equal(8))
		Expect(f.number(ctx, "SELECT attempt FROM jobqueue.jobs WHERE kind = 'stuck' AND state = 'scheduled'")()).To(Equal(1))
	})

	It("exits with a code for wrong configuration, naming what is wrong and no password", func(ctx context.Context) {
		for _, tc := range []struct{ env, want string }{
			{"JOBQUEUE_SLOTS=many", `JOBQUEUE_SLOTS is \"many\": allowed is a whole number from 1 to 1000`},
			{"JOBQUEUE_DATABASE_URL=postgres://bob:geheim@[", "JOBQUEUE_DATABASE_URL: allowed is a PostgreSQL connection string"},
		} {
			cmd := exec.Command(binary, "worker")
			cmd.Env = append(os.Environ(), "JOBQUEUE_DATABASE_URL=postgres://x", "JOBQUEUE_QUEUE=q", tc.env)
			out, err := cmd.CombinedOutput()
			Expect(err).To(HaveOccurred())
			Expect(cmd.ProcessState.ExitCode()).To(Equal(2))
			Expect(string(out)).To(And(ContainSubstring(tc.want), Not(ContainSubstring("geheim"))), fmt.Sprintf("output: %s", out))
		}
	})
})
