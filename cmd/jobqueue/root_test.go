package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestCommandLine(t *testing.T) {
	cases := map[string]struct {
		args     []string
		env      map[string]string
		wantCode int
		want     string
	}{
		"version":         {args: []string{"version"}, want: fmt.Sprintf("schema version %d", queue.LatestVersion)},
		"help":            {args: []string{}, want: "Exit codes"},
		"unknown command": {args: []string{"frobnicate"}, wantCode: exitUsage, want: `unknown command "frobnicate"`},
		"unknown flag":    {args: []string{"reap", "--wat"}, wantCode: exitUsage, want: "unknown flag: --wat; see jobqueue reap --help"},
		"no database":     {args: []string{"migrate"}, wantCode: exitUsage, want: "no database: set JOBQUEUE_DATABASE_URL or --database-url"},
		"bad database": {args: []string{"migrate", "--database-url", "postgres://bob:geheim@["}, wantCode: exitUsage,
			want: "it should look like postgres://"},
		"bad schema":     {args: []string{"status", "--schema", "Bad Schema"}, wantCode: exitUsage, want: `--schema: invalid argument: schema "Bad Schema"`},
		"no queue":       {args: []string{"enqueue"}, wantCode: exitUsage, want: "jobqueue enqueue needs 1 argument(s) [QUEUE] and got 0"},
		"no kind":        {args: []string{"enqueue", "q"}, wantCode: exitUsage, want: "--kind is not set"},
		"bad payload":    {args: []string{"enqueue", "q", "--kind", "k", "--payload", "{"}, wantCode: exitUsage, want: "--payload is not valid JSON"},
		"bad count":      {args: []string{"enqueue", "q", "--kind", "k", "--count", "0"}, wantCode: exitUsage, want: "--count is 0; allowed are 1 to"},
		"bad priority":   {args: []string{"enqueue", "q", "--kind", "k", "--priority", "40000"}, wantCode: exitUsage, want: "--priority is 40000"},
		"bad delay":      {args: []string{"enqueue", "q", "--kind", "k", "--delay", "-1s"}, wantCode: exitUsage, want: "--delay is -1s"},
		"bad batch":      {args: []string{"reap", "--batch", "0"}, wantCode: exitUsage, want: "--batch is 0; allowed are 1 to 100000"},
		"bad output":     {args: []string{"status", "-o", "xml"}, wantCode: exitUsage, want: `--output is "xml"; allowed are table and json`},
		"no such server": {args: []string{"status", "--database-url", "postgres://bob:geheim@127.0.0.1:1/db"}, wantCode: exitFailed, want: "connect to the database"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, name := range []string{"JOBQUEUE_DATABASE_URL", "JOBQUEUE_SCHEMA"} {
				t.Setenv(name, tc.env[name])
			}
			var out bytes.Buffer
			root := newRootCommand()
			root.SetArgs(tc.args)
			root.SetOut(&out)
			root.SetErr(&out)
			err := root.ExecuteContext(t.Context())
			code := exitOK
			if err != nil {
				code = exitCodeOf(err)
				fmt.Fprintln(&out, err)
			}
			if code != tc.wantCode || !strings.Contains(out.String(), tc.want) {
				t.Errorf("code %d, output:\n%s\nwant code %d and %q", code, out.String(), tc.wantCode, tc.want)
			}
			if strings.Contains(out.String(), "geheim") {
				t.Errorf("the output shows the password:\n%s", out.String())
			}
		})
	}
}

func TestHintOf(t *testing.T) {
	server := &pgconn.PgError{Hint: "declare the queue"}
	cases := map[string]struct {
		err  error
		want string
	}{
		"none":           {err: errors.New("x")},
		"of PostgreSQL":  {err: fmt.Errorf("enqueue: %w", server), want: "declare the queue"},
		"schema missing": {err: fmt.Errorf("%w: %w", queue.ErrSchemaMissing, server), want: "create the schema with jobqueue migrate, or check --schema."},
	}
	for name, tc := range cases {
		if got := hintOf(tc.err); got != tc.want {
			t.Errorf("%s: hint is %q, want %q", name, got, tc.want)
		}
	}
}
