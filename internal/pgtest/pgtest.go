// Package pgtest runs a real PostgreSQL for the tests of one test binary.
//
// Call [Main] from TestMain, or [Start] and [Server.Stop] around something
// else, and [Database] in each test. The server listens on a loopback port and a
// socket of its own, keeps its files in a temporary directory, and is gone when
// the test binary is, even if that panics or is killed: a watchdog process waits
// on a pipe that only the test binary holds open.
//
// Environment: JOBQUEUE_TEST_PG_BIN is the directory of initdb and postgres; by
// default the newest of /usr/lib/postgresql/*/bin, then PATH. PostgreSQL refuses
// to run as root, so under root it runs as the user in JOBQUEUE_TEST_PG_USER, by
// default "postgres".
package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// shared is the server of the test binary, set by Main.
var shared *Server

// Main starts a server, runs the tests, stops the server and exits. It is what
// TestMain should call:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
func Main(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	server, err := Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 1
	}
	shared = server
	defer func() {
		if err := server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
		}
	}()
	return m.Run()
}

// T is what pgtest needs of a test; *testing.T, *testing.B and Ginkgo's
// GinkgoT() satisfy it.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// DB is a database made for one test and dropped at its end.
type DB struct {
	// URL connects to it as a superuser over TCP without a password.
	URL string
	// Name is the database's name.
	Name string
	// Server is the server it is on.
	Server *Server
}

var databases atomic.Int64

// Database makes an empty database on the server that Main started and drops it
// when the test ends, whoever is still connected.
func Database(t T) *DB {
	t.Helper()
	return DatabaseFrom(t, "template1")
}

// DatabaseFrom is Database for a copy of another database, which nobody may be
// connected to meanwhile. Making a template once, with Server.Template, and
// copying it is faster than migrating in every test.
func DatabaseFrom(t T, template string) *DB {
	t.Helper()
	if shared == nil {
		t.Fatalf("pgtest: no server; call pgtest.Main from TestMain")
		return nil
	}
	return shared.DatabaseFrom(t, template)
}

// DatabaseFrom is the function of that name on a server of the test's own.
func (s *Server) DatabaseFrom(t T, template string) *DB {
	t.Helper()
	db, err := s.create(fmt.Sprintf("test_%d", databases.Add(1)), template)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
		return nil
	}
	t.Cleanup(func() {
		if err := s.drop(db.Name); err != nil {
			t.Logf("pgtest: %v", err)
		}
	})
	return db
}

// Shared is the server that Main started, or nil.
func Shared() *Server { return shared }

// Template makes a database of that name on the server and fills it, for use
// with DatabaseFrom. Call it once per name.
func (s *Server) Template(name string, fill func(ctx context.Context, conn *pgx.Conn) error) error {
	db, err := s.create(name, "template1")
	if err != nil {
		return err
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return fmt.Errorf("connect to the template %s: %w", name, err)
	}
	err = fill(ctx, conn)
	if closeErr := conn.Close(ctx); err == nil {
		err = closeErr
	}
	return err
}

func (s *Server) create(name, template string) (*DB, error) {
	err := s.admin(fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s",
		pgx.Identifier{name}.Sanitize(), pgx.Identifier{template}.Sanitize()))
	if err != nil {
		return nil, fmt.Errorf("create database %s: %w", name, err)
	}
	return &DB{URL: s.URL(name), Name: name, Server: s}, nil
}

func (s *Server) drop(name string) error {
	if err := s.admin("DROP DATABASE IF EXISTS " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// admin runs a statement in the database postgres, on a connection of its own
// so that it survives restarts.
func (s *Server) admin(sql string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // nothing depends on how it ends
	_, err = conn.Exec(ctx, sql)
	return err
}
