package pgtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childEnv makes the test binary a program that starts a server and is killed.
const childEnv = "PGTEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	server, err := Start()
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	if HasPgBouncer() {
		if _, _, err := server.startPgBouncer("postgres", 1); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	fmt.Println(server.dir)
	select {} // until killed, with no chance to clean up
}

// waitFor polls a condition: another process is to bring it about.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s did not happen", what)
}

func TestServerIsGoneWhenTheTestBinaryIsKilled(t *testing.T) {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	dir := strings.TrimSpace(line)
	if err != nil || !strings.HasPrefix(dir, os.TempDir()) {
		t.Fatalf("the child said %q: %v", line, err)
	}
	server := &Server{dir: dir}
	if !server.Alive() {
		t.Fatal("the child's server does not run")
	}
	bouncer := 0
	if HasPgBouncer() {
		text, err := os.ReadFile(filepath.Join(dir, pgBouncerPID))
		if err != nil {
			t.Fatal(err)
		}
		if bouncer, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			t.Fatal(err)
		}
	}
	if err := child.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed, as asked
	waitFor(t, "the removal of the server and its files", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
	if bouncer != 0 {
		waitFor(t, "the end of PgBouncer", func() bool { return syscall.Kill(bouncer, 0) != nil })
	}
}

func TestServer(t *testing.T) {
	server, err := Start("work_mem=7MB")
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			_ = server.Stop()
		}
	}()
	ctx := context.Background()
	show := func() string {
		t.Helper()
		conn, err := pgx.Connect(ctx, server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		var value string
		if err := conn.QueryRow(ctx, "SHOW work_mem").Scan(&value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	if got := show(); got != "7MB" {
		t.Errorf("work_mem is %s, want the setting given", got)
	}
	for _, mode := range []Mode{Fast, Immediate} {
		if err := server.Restart(mode); err != nil {
			t.Fatalf("restart %s: %v", mode, err)
		}
		show()
	}

	shared = server
	defer func() { shared = nil }()
	err = server.Template("filled", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE TABLE things (n int); INSERT INTO things VALUES (42)")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for range 2 {
		t.Run("database", func(t *testing.T) {
			db := DatabaseFrom(t, "filled")
			if names[db.Name] {
				t.Fatalf("database %s twice", db.Name)
			}
			names[db.Name] = true
			conn, err := pgx.Connect(ctx, db.URL)
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := conn.QueryRow(ctx, "DELETE FROM things RETURNING n").Scan(&n); err != nil || n != 42 {
				t.Fatalf("n = %d, %v; want what the template holds", n, err)
			}
			// Left open: dropping the database must not mind.
		})
	}
	stopped = true
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}
