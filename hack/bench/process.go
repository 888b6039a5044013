package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// endTimeout is how long a contender's process may take to stop and to end.
const endTimeout = 30 * time.Second

// process is a contender's process as the bench sees it.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *tail
	events chan Event
	ran    atomic.Int64
}

// lifetime is the most that any process may take, whatever it does: enqueueing is not
// bounded otherwise.
func (o options) lifetime() time.Duration {
	return 10*time.Minute + o.limit + o.held + o.idle + time.Duration(o.latencySeconds)*time.Second
}

// startProcess starts a contender's process. It is killed when ctx or its lifetime ends.
func (b *bench) startProcess(ctx context.Context, spec Spec) (*process, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	p := &process{name: spec.Program + " " + spec.Role, stderr: &tail{}, events: make(chan Event, 16)}
	if programs[spec.Program] != nil {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		p.cmd = exec.CommandContext(ctx, self, childCommand, string(text))
	} else {
		p.cmd = exec.CommandContext(ctx, "node", filepath.Join(b.opts.rivals, "program.mjs"), string(text))
	}
	p.cmd.WaitDelay = time.Second
	p.cmd.Stderr = p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	bound := time.AfterFunc(b.opts.lifetime(), func() { _ = p.cmd.Process.Kill() }) // it may have just ended
	go func() {
		defer bound.Stop()
		p.read(stdout)
	}()
	return p, nil
}

// read passes events on; of what has run it keeps the newest count only.
func (p *process) read(stdout io.Reader) {
	defer close(p.events)
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		var e Event
		if json.Unmarshal(line, &e) == nil {
			if e.Event == "ran" {
				p.ran.Store(e.Ran)
			} else {
				p.events <- e
			}
		}
		if err != nil {
			return
		}
	}
}

// await waits for an event of that name.
func (p *process) await(ctx context.Context, name string) (Event, error) {
	select {
	case <-ctx.Done():
		return Event{}, fmt.Errorf("%s: waiting for %q: %w", p.name, name, ctx.Err())
	case e, ok := <-p.events:
		if ok && e.Event == name {
			return e, nil
		}
		return e, p.failure(name, e)
	}
}

func (p *process) failure(name string, e Event) error {
	said := e.Error
	if said == "" {
		said = fmt.Sprintf("it said %q", e.Event)
	}
	return fmt.Errorf("%s: instead of %q: %s\n%s", p.name, name, said, p.stderr)
}

func (p *process) tell(order string) error {
	_, err := io.WriteString(p.stdin, order+"\n")
	return err
}

// stop asks a worker to stop and returns what it had noted.
func (p *process) stop(ctx context.Context) (Event, error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := p.tell("stop"); err != nil {
		return Event{}, fmt.Errorf("%s: %w\n%s", p.name, err, p.stderr)
	}
	e, err := p.await(ctx, "end")
	return e, errors.Join(err, p.end(ctx))
}

// end waits for the process's end, and ends it if it takes long.
func (p *process) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, err, p.stderr)
		}
		return nil
	case <-ctx.Done():
		_ = p.cmd.Process.Kill() // it may have just ended
		return fmt.Errorf("%s did not end within %s, and was killed: %w", p.name, endTimeout, <-done)
	}
}

// kill ends a process that is of no more use. It may have ended.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// peakMemory is the most memory that the process has had resident, in bytes.
func (p *process) peakMemory() (int64, error) {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("%s: no VmHWM in its status", p.name)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const keep = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-keep):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
