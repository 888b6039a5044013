package sampler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestProblemOf(t *testing.T) {
	config, err := ParseURL("postgres://u:p%40ss@h/d")
	if err != nil {
		t.Fatal(err)
	}
	server := func(code, message string) error { return &pgconn.PgError{Code: code, Message: message} }
	dial := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5432},
		Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	read := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: 54321}, Addr: &net.TCPAddr{Port: 5432},
		Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	cases := map[string]struct {
		err  error
		want Problem
	}{
		"wrong password":                 {server("28P01", "password authentication failed"), Problem{v1alpha1.ReasonAuthenticationFailed, "password authentication failed (SQLSTATE 28P01)"}},
		"too many connections":           {server("53300", "sorry, too many clients already"), Problem{v1alpha1.ReasonTooManyConnections, "sorry, too many clients already (SQLSTATE 53300)"}},
		"standby":                        {server("25006", "cannot execute"), Problem{ReasonReadOnly, "cannot execute (SQLSTATE 25006)"}},
		"no such database":               {server("3D000", "database \"d\" does not exist"), Problem{v1alpha1.ReasonConnectionFailed, "database \"d\" does not exist (SQLSTATE 3D000)"}},
		"refused":                        {fmt.Errorf("connect: %w", dial), Problem{v1alpha1.ReasonConnectionFailed, "cannot connect to 10.0.0.1:5432: connection refused"}},
		"broken, without the local port": {read, Problem{v1alpha1.ReasonConnectionFailed, "the connection broke: connection reset by peer"}},
		"unknown host":                   {&net.DNSError{Name: "db.example", Err: "no such host"}, Problem{v1alpha1.ReasonConnectionFailed, `host "db.example" was not found`}},
		"slow":                           {context.DeadlineExceeded, Problem{v1alpha1.ReasonConnectionFailed, "the database did not answer in time"}},
		"owned":                          {fmt.Errorf("%w: %w", queue.ErrQueueOwned, server("JQ002", "owned by x")), Problem{v1alpha1.ReasonQueueOwned, "owned by x (SQLSTATE JQ002)"}},
		"schema":                         {&schemaError{v1alpha1.ReasonSchemaMissing, "m"}, Problem{v1alpha1.ReasonSchemaMissing, "m"}},
		"no password":                    {errors.New("with p@ss and p%40ss in it"), Problem{v1alpha1.ReasonConnectionFailed, "with xxxxx and xxxxx in it"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, problemOf(tc.err, config)); diff != "" {
				t.Errorf("problem (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseURLQuotesNothing(t *testing.T) {
	for _, text := range []string{"", "hunter2", "postgres://u:hunter2@h:port/d", "postgres://u:hunter2@[::1/d"} {
		if _, err := ParseURL(text); !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseURL(%q): %v", text, err)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{first: time.Second, longest: 30 * time.Second}
	for failures, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: 30 * time.Second, 1000: 30 * time.Second} {
		for range 200 {
			if got := b.after(failures); got < want/2 || got > want*3/2 {
				t.Fatalf("after %d failures: %s, want about %s", failures, got, want)
			}
		}
	}
}

func TestFresh(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sample := &queue.Sample{}
	cases := map[string]struct {
		state  State
		reason string
	}{
		"fresh":     {state: State{Sample: sample, ReadAt: now.Add(-15 * time.Second), Interval: 5 * time.Second}},
		"never":     {state: State{Interval: 5 * time.Second}, reason: ReasonStarting},
		"too old":   {state: State{Sample: sample, ReadAt: now.Add(-21 * time.Second), Interval: 5 * time.Second}, reason: ReasonStale},
		"a problem": {state: State{Sample: sample, ReadAt: now, Interval: 5 * time.Second, Problem: &Problem{Reason: "x"}}, reason: "x"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			fresh, p := tc.state.Fresh(now)
			if fresh != (tc.reason == "") || p.Reason != tc.reason {
				t.Errorf("fresh %v, problem %+v", fresh, p)
			}
		})
	}
}
