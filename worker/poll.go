package worker

import "time"

const (
	// After a claim that brought jobs the worker looks again, for one enqueued while that
	// claim ran was not announced: its producer still saw others pending. It looks after
	// soon, since most such jobs are there at once, and each time that it finds nothing
	// after lookGrowth as long, up to late, since a commit can take longer. After more
	// than a few jobs it only looks after late: more are likely to come, and many are
	// cheaper to take at once.
	soon       = 3 * time.Millisecond
	late       = 27 * time.Millisecond
	lookGrowth = 3
	few        = 8
	// pollGrowth is how much longer an idle worker waits after each empty claim.
	pollGrowth = 1.5
)

// polling says when to look for jobs that nothing announces. All that it says is to be
// jittered.
type polling struct {
	base    time.Duration // the first wait of an idle worker
	ceiling time.Duration // its longest
	look    time.Duration // the next wait for jobs that were not announced; 0: none
	idle    time.Duration // the next wait after that
}

func newPolling(base, ceiling time.Duration) *polling {
	return &polling{base: base, ceiling: ceiling, idle: base}
}

// after returns how long to wait after a claim that brought so many jobs, unless something
// else gives a reason to claim.
func (p *polling) after(got int) time.Duration {
	switch {
	case got > few:
		p.look, p.idle = late, p.base
	case got > 0:
		p.look, p.idle = soon, p.base
	}
	if wait := p.look; wait > 0 {
		if p.look *= lookGrowth; p.look > late {
			p.look = 0
		}
		return wait
	}
	wait := p.idle
	p.idle = min(time.Duration(float64(p.idle)*pollGrowth), p.ceiling)
	return wait
}
