package worker

import (
	"sync"
	"testing"
	"time"
)

func jobs(from, to int64) (list []*held) {
	for id := from; id <= to; id++ {
		list = append(list, makeHeld(id, time.Minute, time.Minute))
	}
	return list
}

func TestBacklogRoom(t *testing.T) {
	cases := map[string]struct {
		idle, ahead, waiting int
		want                 int
	}{
		"idle slots":                           {idle: 3, want: 3},
		"no slot idle, slow handlers":          {},
		"fast handlers, empty":                 {idle: 2, ahead: 100, want: 102},
		"fast handlers, half full":             {ahead: 100, waiting: 50, want: 50},
		"fast handlers, not worth a statement": {ahead: 100, waiting: 51, want: 0},
		"full":                                 {ahead: 100, waiting: 100, want: 0},
		"overfull after a smaller policy":      {ahead: 1, waiting: 100, want: 0},
		"one ahead":                            {ahead: 1, want: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBacklog()
			b.idle, b.ahead = tc.idle, tc.ahead
			b.items = jobs(1, int64(tc.waiting))
			if got := b.room(); got != tc.want {
				t.Errorf("room is %d, want %d", got, tc.want)
			}
		})
	}
}

func TestBacklogMoves(t *testing.T) {
	now := time.Now()
	cases := map[string]struct {
		idle   int
		popped time.Time
		want   bool
	}{
		"a slot waits":                 {idle: 1, popped: now.Add(-time.Hour), want: true},
		"a slot took a job just now":   {popped: now.Add(-maxHorizon / 2), want: true},
		"all at their jobs for longer": {popped: now.Add(-maxHorizon)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBacklog()
			b.idle, b.popped = tc.idle, tc.popped
			if got := b.moving(now); got != tc.want {
				t.Errorf("moving is %t, want %t", got, tc.want)
			}
		})
	}
	b := newBacklog()
	b.push(jobs(1, 1))
	b.pop()
	if !b.moving(time.Now()) {
		t.Error("not moving right after a job was taken")
	}
}

func TestBacklogKeepsOrderAndLosesNothing(t *testing.T) {
	b := newBacklog()
	const total = 5000
	var mu sync.Mutex
	seen := map[int64]int{}
	var slots sync.WaitGroup
	for range 8 {
		slots.Go(func() {
			for h := b.pop(); h != nil; h = b.pop() {
				mu.Lock()
				seen[h.ID]++
				mu.Unlock()
				b.done()
			}
		})
	}
	for from := int64(1); from <= total; from += 50 {
		b.push(jobs(from, from+49))
	}
	b.close()
	slots.Wait()
	for id := int64(1); id <= total; id++ {
		if seen[id] != 1 {
			t.Fatalf("job %d came %d times", id, seen[id])
		}
	}
	if b.taken() != 0 || b.len() != 0 {
		t.Errorf("taken=%d len=%d at the end", b.taken(), b.len())
	}

	b = newBacklog()
	b.push(jobs(1, 3))
	b.push(jobs(4, 5))
	for want := int64(1); want <= 5; want++ {
		if h := b.pop(); h.ID != want {
			t.Errorf("job %d came, want %d", h.ID, want)
		}
	}
}

func TestBacklogWithdraw(t *testing.T) {
	b := newBacklog()
	b.push(jobs(1, 6))
	b.pop()
	out := b.withdraw(func(h *held) bool { return h.ID%2 == 0 })
	if len(out) != 2 || out[0].ID != 3 || out[1].ID != 5 {
		t.Errorf("withdrew %d jobs, want 3 and 5", len(out))
	}
	for _, want := range []int64{2, 4, 6} {
		if h := b.pop(); h.ID != want {
			t.Errorf("job %d is left, want %d", h.ID, want)
		}
	}
}

func TestBacklogReusesItsArray(t *testing.T) {
	b := newBacklog()
	for id := int64(1); id < 10_000; id += 2 {
		b.push(jobs(id, id+1))
		b.pop()
		if id > 100 {
			b.pop()
		}
	}
	if c := cap(b.items); c > 1000 {
		t.Errorf("the array has grown to %d for about 50 jobs", c)
	}
}

func TestBacklogWakesForRoom(t *testing.T) {
	b := newBacklog()
	b.setAhead(10)
	b.push(jobs(1, 10))
	for range 4 {
		b.pop()
	}
	select {
	case <-b.wake:
		t.Error("woken with room for 4 or 5 of 10")
	default:
	}
	b.pop()
	b.pop()
	select {
	case <-b.wake:
	default:
		t.Error("not woken with half of the backlog gone")
	}
}

func TestPaceAhead(t *testing.T) {
	cases := map[string]struct {
		handler, claim time.Duration
		slots, limit   int
		payload        int
		want           int
	}{
		"large payloads":                   {handler: time.Microsecond, claim: 5 * time.Millisecond, slots: 10, limit: 2000, payload: 1 << 18, want: 32},
		"small payloads":                   {handler: time.Microsecond, claim: 5 * time.Millisecond, slots: 10, limit: 2000, payload: 64, want: 2000},
		"nothing known":                    {slots: 10, limit: 100, want: 0},
		"no-op handlers":                   {handler: time.Microsecond, claim: 5 * time.Millisecond, slots: 10, limit: 100, want: 100},
		"5 ms":                             {handler: 5 * time.Millisecond, claim: 5 * time.Millisecond, slots: 10, limit: 500, want: 100},
		"100 ms":                           {handler: 100 * time.Millisecond, claim: 5 * time.Millisecond, slots: 10, limit: 500, want: 5},
		"1 s, nothing waits":               {handler: time.Second, claim: 5 * time.Millisecond, slots: 10, limit: 500, want: 0},
		"1 s, many slots":                  {handler: time.Second, claim: 5 * time.Millisecond, slots: 100, limit: 500, want: 5},
		"far database reaches further":     {handler: 100 * time.Millisecond, claim: 100 * time.Millisecond, slots: 10, limit: 500, want: 30},
		"a slow database has a limit, too": {handler: 100 * time.Millisecond, claim: time.Minute, slots: 10, limit: 500, want: 50},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := &pace{}
			if tc.handler > 0 {
				p.ran(tc.handler)
			}
			if tc.claim > 0 {
				p.claimed(tc.claim, 10, 10*tc.payload)
			}
			if got := p.ahead(tc.slots, tc.limit); got != tc.want {
				t.Errorf("ahead is %d, want %d", got, tc.want)
			}
		})
	}
}

func TestPaceForgetsHasteWhenOvertaken(t *testing.T) {
	p := &pace{}
	p.ran(time.Millisecond)
	if p.ahead(10, 100) != 100 {
		t.Fatal("fast handlers want no backlog")
	}
	p.overtaken(2 * time.Second)
	if got := p.ahead(10, 100); got != 0 {
		t.Errorf("ahead is %d after jobs had to wait for seconds", got)
	}
}
