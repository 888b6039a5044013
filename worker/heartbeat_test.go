package worker

import (
	"testing"
	"time"
)

func TestBeatTimeoutLeavesRoomForOtherTries(t *testing.T) {
	cases := map[string]struct{ lease, want time.Duration }{
		"shortest of a JobQueue": {4 * time.Second, time.Second},
		"short":                  {12 * time.Second, 2 * time.Second},
		"default":                {30 * time.Second, 5 * time.Second},
		"long":                   {time.Hour, 5 * time.Second},
		"shorter than supported": {100 * time.Millisecond, time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := beatTimeout(tc.lease); got != tc.want {
				t.Errorf("beatTimeout(%s) = %s, want %s", tc.lease, got, tc.want)
			}
		})
	}
}
