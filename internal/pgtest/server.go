package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Mode is how to stop a server.
type Mode string

const (
	// Fast breaks connections off and shuts down cleanly.
	Fast Mode = "fast"
	// Immediate stops as a crash would: the next start recovers.
	Immediate Mode = "immediate"
)

const startTimeout = 60 * time.Second

// Server is a running PostgreSQL.
type Server struct {
	dir, bin string
	port     int
	cred     *syscall.Credential
	env      []string // added to the programs' environment
	process  *exec.Cmd
	exited   chan struct{} // closed when process has been waited for
	guard    *exec.Cmd
	leash    io.Closer // the end of the pipe whose closing wakes the guard
}

// Start initialises and starts a server. Settings are "name=value" pairs for
// postgres -c, and override pgtest's own, which keep fsync off: tests restart
// the server, never the machine.
func Start(settings ...string) (*Server, error) { return StartWithEnv(nil, settings...) }

// StartWithEnv is Start with "NAME=value" pairs added to the environment of the
// server's programs.
func StartWithEnv(env []string, settings ...string) (*Server, error) {
	bin, err := findBin()
	if err != nil {
		return nil, err
	}
	cred, err := credential()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, bin: bin, cred: cred, env: env}
	if err := s.setUp(settings); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) setUp(settings []string) error {
	if s.cred != nil {
		if err := os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return err
		}
	}
	if err := s.watch(); err != nil {
		return fmt.Errorf("start the watchdog: %w", err)
	}
	initdb := s.command("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--locale=C.UTF-8", "--no-sync", "--no-instructions")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	s.port = port
	conf := []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "unix_socket_directories=" + s.dir,
		"fsync=off", "max_connections=200", "shared_buffers=128MB", "max_wal_size=4GB",
		"log_min_messages=warning", "timezone=UTC", "autovacuum_naptime=1min",
	}
	var text strings.Builder
	for _, setting := range append(conf, settings...) {
		name, value, _ := strings.Cut(setting, "=")
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	file, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text.String())
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return s.run()
}

// run starts postgres and waits until it answers.
func (s *Server) run() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	s.process = s.command("postgres", "-D", s.data())
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	exited := make(chan struct{})
	s.exited = exited
	go func(p *exec.Cmd) {
		_ = p.Wait() // how it ended shows in its log
		close(exited)
	}(s.process)

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-exited:
			return fmt.Errorf("postgres did not start:\n%s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("postgres did not answer within %s: %w\n%s", startTimeout, err, s.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Restart stops the server in that mode and starts it again on the same port.
func (s *Server) Restart(mode Mode) error {
	if err := s.Halt(mode); err != nil {
		return err
	}
	return s.Resume()
}

// Halt stops the server and keeps its data; Resume starts it again.
func (s *Server) Halt(mode Mode) error {
	sig := syscall.SIGINT
	if mode == Immediate {
		sig = syscall.SIGQUIT
	}
	if err := s.process.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(startTimeout):
		return fmt.Errorf("postgres did not stop within %s", startTimeout)
	}
}

// Resume starts a server that Halt stopped.
func (s *Server) Resume() error { return s.run() }

// Stop ends the server and removes its files.
func (s *Server) Stop() error {
	var err error
	if s.process != nil && s.process.Process != nil {
		err = s.Halt(Immediate)
	}
	if s.leash != nil {
		err = errors.Join(err, s.leash.Close())
		_ = s.guard.Wait() // it removes the directory
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Log is what the server has written to its log.
func (s *Server) Log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Port is the loopback port the server listens on.
func (s *Server) Port() int { return s.port }

// SocketDir is the directory of the server's Unix socket.
func (s *Server) SocketDir() string { return s.dir }

// pgBouncerPID is the file in the server's directory that names PgBouncer's process.
const pgBouncerPID = "pgbouncer.pid"

// guardScript waits until standard input ends, which it does when the test
// binary is gone for whatever reason. Then it stops the PgBouncer and the postmaster
// that are named in the directory, if any, and removes the files.
const guardScript = `cat >/dev/null
if read -r pid 2>/dev/null <"$1/` + pgBouncerPID + `"; then
  kill -TERM "$pid" 2>/dev/null
fi
if read -r pid 2>/dev/null <"$1/data/postmaster.pid"; then
  kill -QUIT "$pid" 2>/dev/null
  n=0
  while kill -0 "$pid" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
fi
rm -rf "$1"`

func (s *Server) watch() error {
	s.guard = exec.Command("/bin/sh", "-c", guardScript, "pgtest-guard", s.dir)
	// A session of its own: what interrupts the tests must not end the guard.
	s.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	leash, err := s.guard.StdinPipe()
	if err != nil {
		return err
	}
	s.leash = leash
	return s.guard.Start()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// URL connects to a database of the server as a superuser over TCP.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// command is a program of PostgreSQL, run as its user.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "LC_ALL=C.UTF-8"}
	cmd.Env = append(cmd.Env, s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setsid: true}
	return cmd
}

// findBin is the directory of the PostgreSQL programs to use.
func findBin() (string, error) {
	if bin := os.Getenv("JOBQUEUE_TEST_PG_BIN"); bin != "" {
		return bin, nil
	}
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	version := func(dir string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // not a number: the oldest
		return n
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", errors.New("no PostgreSQL server found; install one, or set JOBQUEUE_TEST_PG_BIN to the directory of initdb")
}

// credential is the user to run PostgreSQL as, or nil for the present one.
func credential() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	name := os.Getenv("JOBQUEUE_TEST_PG_USER")
	if name == "" {
		name = "postgres"
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root; set JOBQUEUE_TEST_PG_USER to another user: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// freePort asks the kernel for a port nobody uses now. Another may take it
// before postgres does; then the start fails and says so.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// Alive reports whether the postmaster's process exists.
func (s *Server) Alive() bool {
	pid, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		return false
	}
	line, _, _ := bytes.Cut(pid, []byte("\n"))
	n, err := strconv.Atoi(string(line))
	return err == nil && syscall.Kill(n, 0) == nil
}
