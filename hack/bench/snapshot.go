package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// paced is what a run at half of the peak was like.
type paced struct {
	produced, finished float64 // jobs per second
	behind             time.Duration
	limited            bool // the time was up, with jobs left
	claimsMicros       []int64
	after              float64 // jobs per second of the drain that follows, unless limited
}

// snapshotHeld measures what a snapshot does that is held open, as by a long report or
// a forgotten transaction: no dead row can be removed while it is. Jobs come at half of
// the peak, which is what producers and a worker do side by side when nobody waits;
// then a backlog is drained, with the snapshot open still. clean is the drain of such
// a backlog without any of that, in jobs per second.
func (b *bench) snapshotHeld(ctx context.Context, clean float64) error {
	peak, err := b.peak(ctx)
	if err != nil {
		return err
	}
	logf("peak of producers and a worker together: %s/s", rate(peak))
	fmt.Fprintf(b.out, "### A snapshot held open\n\nProducers and a worker together make at most %s jobs/s. Half of that comes for %s, while a REPEATABLE READ "+
		"transaction is open or is not; then, with it open still, a backlog of %s is drained.\n\n", rate(peak), b.opts.held, count(int64(b.opts.jobs)))
	t := newTable("", "enqueued/s", "finished/s", "behind at the end", "claim p50", "claim p99", "drain after, jobs/s", "× clean")
	for _, held := range []bool{false, true} {
		p, err := b.pacedOnce(ctx, peak/2, held)
		if err != nil {
			return err
		}
		name := "without"
		if held {
			name = "with the snapshot"
		}
		if p.limited {
			t.add(name, "could not keep up")
			continue
		}
		logf("%s: %s/s, claim p99 %s, drain after %s/s", name, rate(p.finished), millis(percentile(p.claimsMicros, 99)), rate(p.after))
		t.add(name, rate(p.produced), rate(p.finished), p.behind.Round(10*time.Millisecond).String(),
			millis(percentile(p.claimsMicros, 50)), millis(percentile(p.claimsMicros, 99)), rate(p.after), ratio(p.after, clean))
	}
	t.write(b.out)
	return nil
}

// peak is how many jobs per second are enqueued and finished when both are done as fast
// as they can be.
func (b *bench) peak(ctx context.Context) (float64, error) {
	d, err := b.prepare(ctx, oursOne)
	if err != nil {
		return 0, err
	}
	defer d.drop()
	p, err := b.pace(ctx, d, 5*b.opts.jobs, 0)
	if err == nil && p.limited {
		err = fmt.Errorf("%d jobs were not finished within %s", 5*b.opts.jobs, b.opts.held+b.opts.limit)
	}
	return p.finished, err
}

func (b *bench) pacedOnce(ctx context.Context, perSecond float64, held bool) (paced, error) {
	d, err := b.prepare(ctx, oursOne)
	if err != nil {
		return paced{}, err
	}
	defer d.drop()
	if held {
		release, err := hold(ctx, d.url)
		if err != nil {
			return paced{}, err
		}
		defer release()
	}
	p, err := b.pace(ctx, d, max(int(perSecond*b.opts.held.Seconds()), 1), perSecond)
	if err != nil || p.limited {
		return p, err
	}
	if err := b.fill(ctx, oursOne, d, b.opts.jobs, 64); err != nil {
		return p, err
	}
	if err := d.checkpoint(ctx); err != nil {
		return p, err
	}
	r, err := b.drainFilled(ctx, oursOne, d, b.opts.jobs)
	p.after = r.rate()
	return p, err
}

// hold opens a transaction with a snapshot.
func hold(ctx context.Context, url string) (release func(), err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	release = func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	for _, sql := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_class"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// pace enqueues jobs at a rate beside a worker; at a rate of 0, as fast as it can.
func (b *bench) pace(ctx context.Context, d *database, jobs int, perSecond float64) (paced, error) {
	spec := b.spec(oursOne, d, roleWork)
	spec.Claims = true
	w, err := b.hire(ctx, oursOne, spec)
	if err != nil {
		return paced{}, err
	}
	defer w.kill()

	produce := b.spec(oursOne, d, roleProduce)
	produce.Jobs, produce.Rate, produce.Bulk, produce.Connections = jobs, perSecond, 500, 2
	type production struct {
		seconds float64
		ended   time.Time
		err     error
	}
	produced := make(chan production, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		seconds, err := b.produce(ctx, produce)
		if err != nil {
			cancel() // there is nothing to wait for
		}
		produced <- production{seconds, time.Now(), err}
	}()
	r, err := b.run(ctx, oursOne, d, w, jobs, b.opts.held+b.opts.limit)
	if err != nil {
		cancel()
		if p := <-produced; p.err != nil {
			err = fmt.Errorf("%w; the producer: %w", err, p.err)
		}
		return paced{}, err
	}
	if r.limited {
		cancel()
	}
	p := <-produced
	noted, err := b.dismiss(context.WithoutCancel(ctx), w, r)
	return paced{
		produced: float64(jobs) / p.seconds, finished: r.rate(), limited: r.limited, claimsMicros: noted.ClaimsMicros,
		behind: max(r.started.Add(r.elapsed).Sub(p.ended), 0),
	}, err
}
