package sampler

import (
	"testing"
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestServerSince(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var s State
	for i, step := range []struct {
		started time.Time
		since   int // the sample, of those below, that showed this server first
	}{
		{began, 0}, {began.In(time.FixedZone("", 3600)), 0}, {began.Add(time.Microsecond), 2}, {began.Add(time.Microsecond), 2}, {began, 4},
	} {
		now := began.Add(time.Duration(i) * time.Second)
		s.see(queue.Sample{ServerStartedAt: step.started}, now)
		if want := began.Add(time.Duration(step.since) * time.Second); !s.ServerSince.Equal(want) || !s.ReadAt.Equal(now) {
			t.Errorf("sample %d: read at %s, server since %s; want %s, %s", i, s.ReadAt, s.ServerSince, now, want)
		}
	}
}
