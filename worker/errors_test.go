package worker

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"
)

func TestClassify(t *testing.T) {
	base := errors.New("smtp says no")
	cases := map[string]struct {
		err         error
		wantVerdict verdict
		wantDelay   time.Duration
		wantReason  string
		wantText    string
	}{
		"plain":                 {err: base, wantVerdict: verdictRetry, wantText: "smtp says no"},
		"permanent":             {err: Permanent(base), wantVerdict: verdictPermanent, wantText: "smtp says no"},
		"permanent, wrapped":    {err: fmt.Errorf("send: %w", Permanent(base)), wantVerdict: verdictPermanent, wantText: "send: smtp says no"},
		"joined":                {err: errors.Join(base, Permanent(base)), wantVerdict: verdictPermanent, wantText: "smtp says no\nsmtp says no"},
		"retry after":           {err: RetryAfter(time.Minute, base), wantVerdict: verdictRetryAfter, wantDelay: time.Minute, wantText: "smtp says no"},
		"retry after, no error": {err: RetryAfter(time.Minute, nil), wantVerdict: verdictRetryAfter, wantDelay: time.Minute, wantText: "worker: retry after 1m0s"},
		"retry after, negative": {err: RetryAfter(-time.Minute, base), wantVerdict: verdictRetryAfter, wantText: "smtp says no"},
		"snooze":                {err: Snooze(time.Hour), wantVerdict: verdictSnooze, wantDelay: time.Hour, wantText: "worker: snoozed for 1h0m0s"},
		"snooze, negative":      {err: Snooze(-time.Hour), wantVerdict: verdictSnooze, wantText: "worker: snoozed for 0s"},
		"snooze, too long":      {err: Snooze(math.MaxInt64), wantVerdict: verdictSnooze, wantDelay: 3153600000 * time.Second, wantText: "worker: snoozed for 876000h0m0s"},
		"retry after, too long": {err: RetryAfter(math.MaxInt64, base), wantVerdict: verdictRetryAfter, wantDelay: 3153600000 * time.Second, wantText: "smtp says no"},
		"discard":               {err: Discard("unsubscribed"), wantVerdict: verdictDiscard, wantReason: "unsubscribed", wantText: "worker: discarded: unsubscribed"},
		"outermost wins":        {err: RetryAfter(time.Second, Permanent(base)), wantVerdict: verdictRetryAfter, wantDelay: time.Second, wantText: "smtp says no"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := classify(tc.err)
			if got.verdict != tc.wantVerdict || got.delay != tc.wantDelay || got.reason != tc.wantReason {
				t.Errorf("classified as %+v, want verdict %d, delay %s, reason %q", got, tc.wantVerdict, tc.wantDelay, tc.wantReason)
			}
			if text := tc.err.Error(); text != tc.wantText {
				t.Errorf("text is %q, want %q", text, tc.wantText)
			}
		})
	}
	if Permanent(nil) != nil {
		t.Error("Permanent(nil) is an error")
	}
	if !errors.Is(Permanent(base), base) {
		t.Error("Permanent hides its cause")
	}
}
