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
