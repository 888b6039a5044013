package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/test/history"
	"github.com/jobqueue-dev/jobqueue-operator/test/workerproc"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// process is a worker process with a journal.
type process struct {
	*workerproc.Process
	log    string // a file
	killed bool
}

// spawn starts a worker. env are further settings, "NAME=value".
func (w *world) spawn(slots int, env ...string) *process {
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), fmt.Sprintf("worker-%d.log", len(w.workers)))
	file, err := os.Create(path)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }() // the child has its own descriptor
	settings := append([]string{envWorker + "=1", worker.EnvDatabaseURL + "=" + w.url, worker.EnvQueue + "=" + queueName,
		worker.EnvSlots + "=" + strconv.Itoa(slots), worker.EnvGraceSeconds + "=20", worker.EnvLogLevel + "=debug"}, env...)
	DeferCleanup(func() { // registered first, so run once the process has ended
		if CurrentSpecReport().Failed() {
			AddReportEntry(filepath.Base(path), tail(path))
		}
	})
	p := &process{Process: workerproc.Start(file, os.Args[:1], settings), log: path}
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

func (p *process) kill() {
	GinkgoHelper()
	p.killed = true
	p.Signal(syscall.SIGKILL)
	Eventually(p.Exited).Should(BeClosed())
}

// stop asks a worker that lives to drain.
func (p *process) stop() {
	GinkgoHelper()
	select {
	case <-p.Exited:
	default:
		p.Signal(syscall.SIGTERM)
	}
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
