package worker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestEnding(t *testing.T) {
	base := errors.New("no")
	cases := map[string]struct {
		err                    error
		succeeded, interrupted bool
		locked                 bool
		want                   result
	}{
		"success":                     {want: result{action: actSucceed}},
		"success while stopping":      {interrupted: true, want: result{action: actSucceed}},
		"failure":                     {err: base, want: result{action: actFail, text: "no"}},
		"failure while stopping":      {err: base, interrupted: true, want: result{action: actRelease, text: "no"}},
		"permanent":                   {err: Permanent(base), want: result{action: actFail, text: "no", permanent: true}},
		"permanent while stopping":    {err: Permanent(base), interrupted: true, want: result{action: actFail, text: "no", permanent: true}},
		"permanent keeps its context": {err: fmt.Errorf("send: %w", Permanent(base)), want: result{action: actFail, text: "send: no", permanent: true}},
		"retry after":                 {err: RetryAfter(time.Minute, base), want: result{action: actFail, text: "no", delay: time.Minute}},
		"snooze":                      {err: Snooze(time.Minute), want: result{action: actSnooze, text: "worker: snoozed for 1m0s", delay: time.Minute}},
		"discard":                     {err: Discard("opted out"), want: result{action: actDiscard, text: "opted out"}},
		"finished in its transaction": {succeeded: true, want: result{action: actFail, text: ErrNotCommitted.Error(), verify: true}},
		"finished while stopping": {succeeded: true, interrupted: true,
			want: result{action: actFail, text: ErrNotCommitted.Error(), verify: true}},
		"commit failed": {succeeded: true, err: base, want: result{action: actFail, text: "no", verify: true, handlerFailed: true}},
		"commit failed while stopping": {succeeded: true, err: base, interrupted: true,
			want: result{action: actRelease, text: "no", verify: true, handlerFailed: true}},
		"rolled back and snoozed": {succeeded: true, err: Snooze(time.Minute),
			want: result{action: actSnooze, text: "worker: snoozed for 1m0s", delay: time.Minute, verify: true, handlerFailed: true}},
		"rolled back and discarded": {succeeded: true, err: Discard("opted out"),
			want: result{action: actDiscard, text: "opted out", verify: true, handlerFailed: true}},
		"its row was locked":           {err: base, locked: true, want: result{action: actSnooze, text: "no", delay: lockedOut}},
		"its row was locked, stopping": {err: base, locked: true, interrupted: true, want: result{action: actRelease, text: "no"}},
		"its row was locked, and worse": {err: Permanent(base), locked: true,
			want: result{action: actFail, text: "no", permanent: true}},
		"text that PostgreSQL refuses": {err: errors.New("a\x00b\xff"), want: result{action: actFail, text: "a\uFFFDb\uFFFD"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := makeHeld(1, time.Minute, time.Minute)
			if tc.locked {
				h.markLocked()
			}
			tc.want.held = h
			got := ending(h, tc.err, tc.succeeded, tc.interrupted)
			if got != tc.want {
				t.Errorf("ending is %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestCleanTextBoundsWhatIsSent(t *testing.T) {
	if n := len(cleanText(strings.Repeat("é", maxErrorText))); n > maxErrorText+len("\uFFFD") {
		t.Errorf("%d bytes are left", n)
	}
}

func TestGrouped(t *testing.T) {
	one, other := makeHeld(1, time.Minute, time.Minute), makeHeld(2, time.Minute, time.Minute)
	results := []*result{
		{held: one, action: actSucceed},
		{held: one, action: actSnooze, delay: time.Second},
		{held: one, action: actSucceed},
		{held: other, action: actSucceed}, // another identity
		{held: one, action: actSnooze, delay: time.Minute},
		{held: one, action: actSnooze, delay: time.Second},
		{held: one, action: actDiscard, text: "a"},
		{held: one, action: actDiscard, text: "b"},
		{held: one, action: actFail, text: "a", delay: time.Second},
		{held: one, action: actFail, text: "b", permanent: true},
		{held: one, action: actFail, text: "c", unsure: true}, // may meet a later run of its job
	}
	var sizes []int
	for _, g := range grouped(results) {
		sizes = append(sizes, len(g))
	}
	if got, want := fmt.Sprint(sizes), "[2 3 1 2 2 1]"; got != want {
		t.Errorf("groups have sizes %s, want %s", got, want)
	}
}
