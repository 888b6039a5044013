package sampler

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is how long to wait after failures.
type backoff struct {
	first, longest time.Duration
}

// after doubles the wait with each failure in a row, and spreads it by half to
// either side so that many samplers do not come back at once.
func (b backoff) after(failures int) time.Duration {
	wait := b.longest
	if shift := failures - 1; shift < 16 {
		wait = min(b.longest, b.first<<max(0, shift))
	}
	return wait/2 + rand.N(wait+1)
}

// wait returns when it is time for the next try: after the interval, or as soon
// as the sampler is woken, but not sooner than minGap. While tries fail, nothing
// but the backoff counts.
func (s *sampler) wait(ctx context.Context) {
	if s.failures > 0 {
		sleep(ctx, s.hub.backoff.after(s.failures))
		return
	}
	sleep(ctx, minGap)
	timer := time.NewTimer(max(0, s.config.Interval-minGap))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.wake:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// listen keeps a listening connection and wakes the sampler on notifications. It
// connects only after a sample was read, so that wrong credentials are tried by
// one connection and not by two.
func (s *sampler) listen(ctx context.Context) {
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.usable:
		}
		began := time.Now()
		err := s.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > s.hub.backoff.longest {
			failures = 0
		}
		failures++
		s.log.V(1).Info("listening ended", "message", scrub(messageOf(err), s.conf.Password))
		sleep(ctx, s.hub.backoff.after(failures))
	}
}

func (s *sampler) listenOnce(ctx context.Context) error {
	conn, err := connect(ctx, s.conf)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	return s.client.Listen(ctx, conn, func(string) { s.poke() })
}
