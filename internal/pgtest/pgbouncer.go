package pgtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// HasPgBouncer reports whether PgBouncer is installed.
func HasPgBouncer() bool {
	_, err := findPgBouncer()
	return err == nil
}

// findPgBouncer looks where Debian puts it too, which is not in everyone's PATH.
func findPgBouncer() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/pgbouncer")
}

// PgBouncer runs PgBouncer in transaction mode in front of the server until the test
// ends, and returns the URL of one of its databases, without a password. It opens at
// most pool connections to the server for each database; all else is as it comes.
// Call it once per server at a time.
func (s *Server) PgBouncer(t T, database string, pool int) string {
	t.Helper()
	url, stop, err := s.startPgBouncer(database, pool)
	if err != nil {
		t.Fatalf("pgtest: PgBouncer: %v", err)
		return ""
	}
	t.Cleanup(stop)
	return url
}

func (s *Server) startPgBouncer(database string, pool int) (url string, stop func(), err error) {
	program, err := findPgBouncer()
	if err != nil {
		return "", nil, err
	}
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	// auth_type any takes every user for the one that is named here.
	conf := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
pidfile = %s
`, s.port, port, pool, filepath.Join(s.dir, pgBouncerPID))
	file := filepath.Join(s.dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		return "", nil, err
	}
	log := new(strings.Builder)
	cmd := exec.Command(program, file)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setsid: true}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended shows in its log
		close(exited)
	}()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-exited
	}
	url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", port, database)
	if err := awaitAnswer(url, exited); err != nil {
		stop()
		return "", nil, fmt.Errorf("%w\n%s", err, log)
	}
	return url, stop, nil
}

// awaitAnswer waits until the URL can be connected to.
func awaitAnswer(url string, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-exited:
			return fmt.Errorf("it ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("no answer within %s: %w", startTimeout, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
