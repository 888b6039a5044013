package queue

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestWrap(t *testing.T) {
	cases := map[string]struct {
		err  error
		want error // nil: no sentinel
	}{
		"queue not found": {err: &pgconn.PgError{Code: "JQ001"}, want: ErrQueueNotFound},
		"owned":           {err: &pgconn.PgError{Code: "JQ002"}, want: ErrQueueOwned},
		"payload":         {err: &pgconn.PgError{Code: "JQ003"}, want: ErrPayloadTooLarge},
		"stale":           {err: &pgconn.PgError{Code: "JQ004"}, want: ErrPolicyStale},
		"argument":        {err: &pgconn.PgError{Code: "JQ005"}, want: ErrInvalidArgument},
		"worker":          {err: &pgconn.PgError{Code: "JQ006"}, want: ErrWorkerQueue},
		"no schema":       {err: &pgconn.PgError{Code: "3F000"}, want: ErrSchemaMissing},
		"no function":     {err: &pgconn.PgError{Code: "42883"}, want: ErrSchemaMissing},
		"wrapped":         {err: fmt.Errorf("outer: %w", &pgconn.PgError{Code: "JQ001"}), want: ErrQueueNotFound},
		"deadlock":        {err: &pgconn.PgError{Code: "40P01"}},
		"other":           {err: errors.New("broken pipe")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := wrap("claim", tc.err)
			if !errors.Is(got, tc.err) {
				t.Errorf("wrap lost %v: %v", tc.err, got)
			}
			for _, sentinel := range sentinels {
				if want := errors.Is(tc.want, sentinel); errors.Is(got, sentinel) != want {
					t.Errorf("errors.Is(%v, %v) = %t, want %t", got, sentinel, !want, want)
				}
			}
		})
	}
	if wrap("claim", nil) != nil {
		t.Error("wrap(nil) is not nil")
	}
}

func TestWrapEnqueue(t *testing.T) {
	cases := map[string]struct {
		code string
		want error // nil: no sentinel
	}{
		"not JSON":          {code: "22P02", want: ErrInvalidPayload},
		"no character":      {code: "22P05", want: ErrInvalidPayload},
		"number too large":  {code: "22003", want: ErrInvalidPayload},
		"nested too deeply": {code: "54001", want: ErrInvalidPayload},
		"queue not found":   {code: "JQ001", want: ErrQueueNotFound},
		"deadlock":          {code: "40P01"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := &pgconn.PgError{Code: tc.code}
			got := wrapEnqueue(err)
			if !errors.Is(got, err) {
				t.Errorf("wrapEnqueue lost %v: %v", err, got)
			}
			for _, sentinel := range []error{ErrInvalidPayload, ErrQueueNotFound} {
				if want := errors.Is(tc.want, sentinel); errors.Is(got, sentinel) != want {
					t.Errorf("errors.Is(%v, %v) = %t, want %t", got, sentinel, !want, want)
				}
			}
			if payloadStates[tc.code] && errors.Is(wrap("claim", err), ErrInvalidPayload) {
				t.Errorf("%s is of a payload where none was sent", tc.code)
			}
		})
	}
	if wrapEnqueue(nil) != nil {
		t.Error("wrapEnqueue(nil) is not nil")
	}
}
