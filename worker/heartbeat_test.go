package worker

import (
	"context"
	"testing"
	"testing/synctest"
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

// Each of many identities may hang, and a round is over after two time limits all the same
// (W9, W12).
func TestHeartbeatsOfManyIdentitiesThroughAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := makeAwayWorker(t, Config{Queue: "q"}, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		e := newEngine(w, nil)
		const beating, over = 15, 15
		for i := range beating + over {
			id := e.identities.take(time.Now())
			id.endClaim()
			if i%2 == 0 {
				id.add([]*held{makeHeld(int64(i), time.Hour, time.Hour)})
			}
			id.retire()
		}
		e.identities.take(time.Now()).endClaim()
		ended := make(chan bool)
		go func() { ended <- e.beatAll(context.Background()) }()
		begun := time.Now()
		if <-ended {
			t.Error("all is well")
		}
		if took := time.Since(begun); took != 2*heartbeatTimeout {
			t.Errorf("a round takes %s, want a timeout for the current identity and one for the others", took)
		}
	})
}
