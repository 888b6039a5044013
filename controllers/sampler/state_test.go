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

func TestHorizonSince(t *testing.T) {
	first := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := first.Add(time.Minute)
	session := func(pid int, xmin uint32) *queue.HorizonHolder {
		return &queue.HorizonHolder{Kind: queue.HolderSession, PID: pid, Xmin: xmin}
	}
	slot := func(name string, pid int) *queue.HorizonHolder {
		return &queue.HorizonHolder{Kind: queue.HolderSlot, Name: name, PID: pid, Xmin: 1}
	}
	cases := map[string]struct {
		was, now *queue.HorizonHolder
		want     time.Time
	}{
		"nobody":               {nil, nil, time.Time{}},
		"let go":               {session(7, 1), nil, time.Time{}},
		"the first":            {nil, session(7, 1), now},
		"the same":             {session(7, 1), session(7, 1), first},
		"the same moved on":    {session(7, 1), session(7, 2), now},
		"another session":      {session(7, 1), session(8, 1), now},
		"a slot in use again":  {slot("s", 0), slot("s", 9), first},
		"another slot":         {slot("s", 0), slot("t", 0), now},
		"a slot after session": {session(9, 1), slot("s", 9), now},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := State{Sample: &queue.Sample{TakenAt: first, Horizon: tc.was}, HorizonSince: first}
			s.see(queue.Sample{TakenAt: now, Horizon: tc.now}, now)
			if !s.HorizonSince.Equal(tc.want) {
				t.Errorf("since %s, want %s", s.HorizonSince, tc.want)
			}
		})
	}
	var s State
	s.see(queue.Sample{TakenAt: now, Horizon: session(7, 1)}, now)
	if !s.HorizonSince.Equal(now) {
		t.Errorf("in the first sample since %s, want %s", s.HorizonSince, now)
	}
}
