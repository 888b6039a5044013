package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestDatabaseErrors(t *testing.T) {
	server := func(severity, code string) error {
		return fmt.Errorf("queue: claim: %w", &pgconn.PgError{Severity: "ERREUR", SeverityUnlocalized: severity, Code: code})
	}
	cases := map[string]struct {
		err                     error
		wantCommitted, wantData bool
		wantLate                bool
	}{
		"none":                    {},
		"statement failed":        {err: server("ERROR", "40001")},
		"bad data":                {err: server("ERROR", "22021"), wantData: true},
		"refused by the protocol": {err: server("ERROR", "JQ005"), wantData: true},
		"row locked":              {err: server("ERROR", "55P03"), wantData: true},
		"session ended":           {err: server("FATAL", "57P01"), wantCommitted: true},
		"connection broken":       {err: fmt.Errorf("read: %w", io.ErrUnexpectedEOF), wantCommitted: true},
		"timed out":               {err: context.DeadlineExceeded, wantCommitted: true, wantLate: true},
		"statement_timeout":       {err: server("ERROR", "57014"), wantLate: true},
		"no connection in time":   {err: fmt.Errorf("claim: %w", &notSentError{context.DeadlineExceeded})},
		"never connected":         {err: fmt.Errorf("claim: %w", &pgconn.ConnectError{Config: &pgconn.Config{}})},
		"something else":          {err: errors.New("?"), wantCommitted: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := mayHaveCommitted(tc.err); got != tc.wantCommitted {
				t.Errorf("mayHaveCommitted is %t, want %t", got, tc.wantCommitted)
			}
			if got := concernsData(tc.err); got != tc.wantData {
				t.Errorf("concernsData is %t, want %t", got, tc.wantData)
			}
			if got := tookTooLong(tc.err); got != tc.wantLate {
				t.Errorf("tookTooLong is %t, want %t", got, tc.wantLate)
			}
		})
	}
}

func TestSameTrouble(t *testing.T) {
	server := func(statement, code string) error {
		return fmt.Errorf("queue: %s: %w", statement, &pgconn.PgError{Code: code})
	}
	cases := map[string]struct {
		a, b error
		want bool
	}{
		"one code, two statements": {server("claim", "JQ001"), server("heartbeat", "JQ001"), true},
		"two codes":                {server("claim", "JQ001"), server("claim", "57P03"), false},
		"the same text":            {io.EOF, io.EOF, true},
		"another text":             {io.EOF, io.ErrUnexpectedEOF, false},
		"server and connection":    {server("claim", "57P03"), io.EOF, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := sameTrouble(tc.a, tc.b); got != tc.want {
				t.Errorf("sameTrouble(%v, %v) = %t", tc.a, tc.b, got)
			}
		})
	}
}
