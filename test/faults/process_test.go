package faults

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/test/history"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// process is a worker process.
type process struct {
	cmd    *exec.Cmd
	addr   string // of its metrics
	log    string // a file
	exited chan struct{}
	killed bool
}

// spawn starts a worker. env are further settings, "NAME=value".
func (w *world) spawn(slots int, env ...string) *process {
	GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	addr := l.Addr().String()
	Expect(l.Close()).To(Succeed())
	p := &process{
		cmd: exec.Command(os.Args[0]), addr: addr, exited: make(chan struct{}),
		log: filepath.Join(GinkgoT().TempDir(), fmt.Sprintf("worker-%d.log", len(w.workers))),
	}
	file, err := os.Create(p.log)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }() // the child has its own descriptor
	p.cmd.Env = append(os.Environ(), envWorker+"=1", worker.EnvDatabaseURL+"="+w.url, worker.EnvQueue+"="+queueName,
		worker.EnvHTTPAddr+"="+addr, worker.EnvSlots+"="+strconv.Itoa(slots), worker.EnvGraceSeconds+"=20",
		worker.EnvLogLevel+"=debug")
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = file, file
	Expect(p.cmd.Start()).To(Succeed())
	go func() {
		_ = p.cmd.Wait() // the exit code is read from ProcessState
		close(p.exited)
	}()
	DeferCleanup(func() {
		_ = p.cmd.Process.Kill()
		Eventually(p.exited).Should(BeClosed())
		if CurrentSpecReport().Failed() {
			AddReportEntry("log of worker "+strconv.Itoa(p.cmd.Process.Pid), tail(p.log))
		}
	})
	w.workers = append(w.workers, p)
	return p
}

// tail is the end of a log, without what is written for each job.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, `"level":"DEBUG"`) && !strings.Contains(line, "handler began") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-50):], "")
}

func (p *process) signal(sig syscall.Signal) {
	GinkgoHelper()
	Expect(p.cmd.Process.Signal(sig)).To(Succeed())
}

func (p *process) kill() {
	GinkgoHelper()
	p.killed = true
	p.signal(syscall.SIGKILL)
	Eventually(p.exited).Should(BeClosed())
}

// stop asks a worker that lives to drain.
func (p *process) stop() {
	GinkgoHelper()
	select {
	case <-p.exited:
	default:
		p.signal(syscall.SIGTERM)
	}
}

// exitCode waits for the end; 128 + n stands for a death by signal n.
func (p *process) exitCode() int {
	GinkgoHelper()
	Eventually(p.exited).Should(BeClosed())
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

func (p *process) journal() history.Journal {
	GinkgoHelper()
	file, err := os.Open(p.log)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }() // it was only read
	j, err := history.ReadJournal(file)
	Expect(err).NotTo(HaveOccurred())
	return j
}

// metric reads a metric over HTTP, summed over those labels that contain label.
func (p *process) metric(name, label string) func() (float64, error) {
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
