package worker

import (
	"math"
	"sync"
	"time"
)

// backlog holds the claimed jobs that wait for a slot, and knows how many more
// are wanted.
//
// With slow handlers it is empty: what is wanted are the idle slots. With fast ones
// it reaches ahead by as much as the slots are expected to start during one
// horizon, so that they never wait for a claim's round trip, and no job is expected
// to wait here longer than that.
type backlog struct {
	wake chan struct{} // one token when enough room has come free

	mu     sync.Mutex
	filled sync.Cond
	items  []*held
	head   int
	idle   int // slots that wait in pop
	busy   int // slots between pop and done
	ahead  int // jobs wanted beyond the idle slots
	popped time.Time
	closed bool
}

func newBacklog() *backlog {
	b := &backlog{wake: make(chan struct{}, 1)}
	b.filled.L = &b.mu
	return b
}

// push appends claimed jobs.
func (b *backlog) push(jobs []*held) {
	b.mu.Lock()
	if b.head > len(b.items)/2 {
		// Reuse the array instead of growing it for ever.
		n := copy(b.items, b.items[b.head:])
		clear(b.items[n:])
		b.items, b.head = b.items[:n], 0
	}
	b.items = append(b.items, jobs...)
	idle := b.idle
	b.mu.Unlock()
	for range min(idle, len(jobs)) {
		b.filled.Signal()
	}
}

// pop returns the next job, waiting for one; nil once the backlog is closed.
func (b *backlog) pop() *held {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle++
	b.signal()
	for b.head == len(b.items) {
		if b.closed {
			b.idle--
			return nil
		}
		b.filled.Wait()
	}
	b.idle--
	b.busy++
	b.popped = time.Now()
	h := b.items[b.head]
	b.items[b.head] = nil
	b.head++
	return h
}

// moving is false while every slot has been at its job for longer than any horizon. What
// is claimed ahead then would wait here for nobody knows how long, whatever the estimate.
func (b *backlog) moving(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.idle > 0 || now.Sub(b.popped) < maxHorizon
}

// done ends what pop began.
func (b *backlog) done() {
	b.mu.Lock()
	b.busy--
	b.mu.Unlock()
}

// taken is the number of slots that have a job.
func (b *backlog) taken() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy
}

// signal leaves a token when there is room enough to be worth a claim.
func (b *backlog) signal() {
	if b.roomLocked() >= b.worthLocked() {
		b.nudge()
	}
}

func (b *backlog) nudge() { leave(b.wake) }

func (b *backlog) roomLocked() int { return b.idle + b.ahead - (len(b.items) - b.head) }

// worthLocked is the least room worth a statement: half of what is kept ahead,
// so that a claim brings many jobs when jobs are short.
func (b *backlog) worthLocked() int { return max(1, b.ahead/2) }

// room is how many jobs to claim now, 0 when it is not yet worth a statement.
func (b *backlog) room() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.roomLocked()
	if room < b.worthLocked() {
		return 0
	}
	return room
}

func (b *backlog) setAhead(n int) {
	b.mu.Lock()
	b.ahead = n
	b.mu.Unlock()
}

func (b *backlog) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items) - b.head
}

// withdraw takes out the jobs that keep says no to and returns them.
func (b *backlog) withdraw(keep func(*held) bool) []*held {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out, stay []*held
	for _, h := range b.items[b.head:] {
		if keep(h) {
			stay = append(stay, h)
		} else {
			out = append(out, h)
		}
	}
	if len(out) > 0 {
		b.items, b.head = stay, 0
		b.signal()
	}
	return out
}

// close lets pop return nil once the backlog is empty.
func (b *backlog) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.filled.Broadcast()
}

// Bounds of the horizon, the time by which claims reach ahead of the slots. The
// lower one keeps statements few with handlers of some milliseconds; the upper one
// bounds how long a job that another worker could run waits here.
const (
	minHorizon = 50 * time.Millisecond
	maxHorizon = 500 * time.Millisecond
	// A job that has waited this long was overtaken by slower ones than expected,
	// and is given back.
	maxBacklogWait = 2 * time.Second
	// maxAheadBytes bounds the payloads that wait here, whatever the horizon.
	maxAheadBytes = 8 << 20
)

// pace estimates how long handlers and claims take, as moving averages.
type pace struct {
	mu      sync.Mutex
	handler time.Duration // 0 until a handler has returned
	claim   time.Duration
	payload float64 // bytes of a job

	sum   time.Duration // since the last estimate
	count int
}

// ran notes one handler's time.
func (p *pace) ran(d time.Duration) {
	p.mu.Lock()
	p.sum += d
	p.count++
	p.mu.Unlock()
}

// overtaken notes that jobs had to wait for d although the estimate said they
// would not.
func (p *pace) overtaken(d time.Duration) {
	p.mu.Lock()
	p.handler = max(p.handler, d)
	p.sum, p.count = 0, 0
	p.mu.Unlock()
}

// claimed notes one claim's round trip, and what it brought.
func (p *pace) claimed(d time.Duration, jobs, payloadBytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claim = average(p.claim, d)
	if jobs == 0 {
		return
	}
	mean := float64(payloadBytes) / float64(jobs)
	if p.payload == 0 {
		p.payload = mean
	}
	p.payload = (7*p.payload + 3*mean) / 10
}

// ahead is how many jobs slots are expected to start within the horizon, at most
// limit, and not more than fit maxAheadBytes.
func (p *pace) ahead(slots, limit int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count > 0 {
		p.handler = max(average(p.handler, p.sum/time.Duration(p.count)), 1)
		p.sum, p.count = 0, 0
	}
	if p.handler == 0 {
		return 0
	}
	horizon := min(max(3*p.claim, minHorizon), maxHorizon)
	n := float64(slots) * float64(horizon) / float64(p.handler)
	if p.payload > 0 {
		n = min(n, maxAheadBytes/p.payload)
	}
	return int(min(math.Floor(n), float64(limit)))
}

func average(old, sample time.Duration) time.Duration {
	if old == 0 {
		return sample
	}
	return (7*old + 3*sample) / 10
}
