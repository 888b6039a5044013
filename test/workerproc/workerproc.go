// Package workerproc runs worker processes for Ginkgo specs: to be signalled, to be
// killed, and to be asked for their metrics. Its functions fail the spec that calls
// them when the operating system says no.
package workerproc

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// Process is a worker process. It is killed when the spec that started it ends.
type Process struct {
	// Exited is closed when the process has ended.
	Exited chan struct{}

	cmd  *exec.Cmd
	addr string // of its metrics
}

// Start runs a command with this process's environment, that of env ("NAME=value"),
// and a free address for its HTTP endpoints. Output goes to out.
func Start(out io.Writer, command, env []string) *Process {
	GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	addr := l.Addr().String()
	Expect(l.Close()).To(Succeed())
	p := &Process{cmd: exec.Command(command[0], command[1:]...), addr: addr, Exited: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), worker.EnvHTTPAddr+"="+addr), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	Expect(p.cmd.Start()).To(Succeed())
	go func() {
		_ = p.cmd.Wait() // the exit code is read from ProcessState
		close(p.Exited)
	}()
	DeferCleanup(func() {
		_ = p.cmd.Process.Kill()
		Eventually(p.Exited).Should(BeClosed())
	})
	return p
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal to a process that is known to live.
func (p *Process) Signal(sig syscall.Signal) {
	GinkgoHelper()
	Expect(p.cmd.Process.Signal(sig)).To(Succeed())
}

// ExitCode waits for the end; 128 + n stands for a death by signal n.
func (p *Process) ExitCode() int {
	GinkgoHelper()
	Eventually(p.Exited).Should(BeClosed())
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Metric returns a function, to be polled, that reads the worker's metric of that
// name over HTTP, summed over those series whose text has label in it ("" for all).
func (p *Process) Metric(name, label string) func() (float64, error) {
	return func() (sum float64, err error) {
		response, err := http.Get("http://" + p.addr + "/metrics")
		if err != nil {
			return 0, err
		}
		defer func() { _ = response.Body.Close() }()
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			if !strings.HasPrefix(lines.Text(), "jobqueue_worker_"+name+"{") || !strings.Contains(lines.Text(), label) {
				continue
			}
			fields := strings.Fields(lines.Text())
			value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				return 0, err
			}
			sum += value
		}
		return sum, lines.Err()
	}
}
