package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// bench is what the parts share.
type bench struct {
	opts    options
	cluster *cluster
	out     io.Writer // the report
}

// logf says on standard error what goes on: standard output is the report's.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

// spec is what all processes of a contender on that database have in common.
func (b *bench) spec(c contender, d *database, role string) Spec {
	spec := Spec{
		Program: c.program, Mode: c.mode, Role: role, URL: d.url, Queues: []string{defaultQueue},
		SchemaFile: b.opts.gueSchema, PayloadBytes: 64, Bulk: 1000, Connections: 1, HandlerMillis: c.handlerMillis,
	}
	if c.program == riverFast.program {
		spec.Workers = b.opts.riverWorkers
	}
	return spec
}

// prepare makes a database with the contender's tables and queues.
func (b *bench) prepare(ctx context.Context, c contender, queues ...string) (*database, error) {
	d, err := b.cluster.create(ctx)
	if err != nil {
		return nil, err
	}
	spec := b.spec(c, d, roleSetup)
	if len(queues) > 0 {
		spec.Queues = queues
	}
	p, err := b.startProcess(ctx, spec)
	if err == nil {
		err = p.setUp(ctx)
	}
	if err != nil {
		d.drop()
		return nil, err
	}
	return d, nil
}

// setUp waits for a process that says nothing unless it fails.
func (p *process) setUp(ctx context.Context) error {
	var failed error
	for e := range p.events {
		failed = errors.Join(failed, p.failure("the end", e))
	}
	return errors.Join(failed, p.end(ctx))
}

// produce enqueues as spec says and returns how many seconds it took.
func (b *bench) produce(ctx context.Context, spec Spec) (float64, error) {
	p, err := b.startProcess(ctx, spec)
	if err != nil {
		return 0, err
	}
	defer p.kill()
	if _, err := p.await(ctx, "ready"); err != nil {
		return 0, err
	}
	if err := p.tell("go"); err != nil {
		return 0, err
	}
	done, err := p.await(ctx, "done")
	if err != nil {
		return 0, err
	}
	return done.Seconds, p.end(ctx)
}

// fill enqueues jobs by the thousand.
func (b *bench) fill(ctx context.Context, c contender, d *database, jobs, payloadBytes int) error {
	spec := b.spec(c, d, roleProduce)
	spec.Jobs, spec.PayloadBytes = jobs, payloadBytes
	if _, err := b.produce(ctx, spec); err != nil {
		return fmt.Errorf("enqueue %d jobs of %s: %w", jobs, c.name, err)
	}
	return nil
}

// crew is a contender's workers.
type crew struct {
	processes []*process
}

// hire starts a contender's workers, connected, and waiting for go.
func (b *bench) hire(ctx context.Context, c contender, spec Spec) (*crew, error) {
	w := &crew{}
	for range c.processes {
		p, err := b.startProcess(ctx, spec)
		if err != nil {
			w.kill()
			return nil, err
		}
		w.processes = append(w.processes, p)
	}
	for _, p := range w.processes {
		if _, err := p.await(ctx, "ready"); err != nil {
			w.kill()
			return nil, err
		}
	}
	return w, nil
}

func (w *crew) tell(order string) error {
	for _, p := range w.processes {
		if err := p.tell(order); err != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, err, p.stderr)
		}
	}
	return nil
}

// ran is how many handlers have returned.
func (w *crew) ran() int64 {
	var n int64
	for _, p := range w.processes {
		n += p.ran.Load()
	}
	return n
}

// failed is an error if a worker has ended on its own.
func (w *crew) failed() error {
	for _, p := range w.processes {
		select {
		case e := <-p.events:
			return p.failure("work", e)
		default:
		}
	}
	return nil
}

// stop ends the workers and returns what they had noted, together.
func (w *crew) stop(ctx context.Context) (Event, error) {
	var all Event
	var errs error
	for _, p := range w.processes {
		e, err := p.stop(ctx)
		errs = errors.Join(errs, err)
		all.Ran += e.Ran
		all.LatenciesMicros = append(all.LatenciesMicros, e.LatenciesMicros...)
		all.ClaimsMicros = append(all.ClaimsMicros, e.ClaimsMicros...)
	}
	return all, errs
}

func (w *crew) kill() {
	for _, p := range w.processes {
		p.kill()
	}
}

// finishPoll is how often the database is asked whether jobs are left, once all
// handlers have returned; it is not asked before, so as not to disturb.
const finishPoll = 5 * time.Millisecond

// drained is the outcome of a drain.
type drained struct {
	jobs    int64         // finished in the database
	started time.Time     // when the workers were told to go
	elapsed time.Duration // from then until the last was finished
	limited bool          // the time was up before
}

func (r drained) rate() float64 { return float64(r.jobs) / r.elapsed.Seconds() }

// run tells waiting workers to go, and waits until that many jobs, and all that there
// are, are finished in the database, or the limit is reached.
func (b *bench) run(ctx context.Context, c contender, d *database, w *crew, jobs int, limit time.Duration) (drained, error) {
	state := states[c.program]
	var before, after int64
	if err := d.conn.QueryRow(ctx, state.finished, jobs).Scan(&before); err != nil {
		return drained{}, err
	}
	start := time.Now()
	if err := w.tell("go"); err != nil {
		return drained{}, err
	}
	r, err := b.await(ctx, state, d, w, jobs, start, limit)
	if err != nil {
		return r, fmt.Errorf("%s: %w", c.name, err)
	}
	if err := d.conn.QueryRow(ctx, state.finished, jobs).Scan(&after); err != nil {
		return r, err
	}
	r.jobs = after - before
	if !r.limited && r.jobs != int64(jobs) {
		return r, fmt.Errorf("%s: of %d jobs %d are finished in the database, and no other is left", c.name, jobs, r.jobs)
	}
	return r, nil
}

func (b *bench) await(ctx context.Context, state state, d *database, w *crew, jobs int, start time.Time, limit time.Duration) (drained, error) {
	for {
		if err := w.failed(); err != nil {
			return drained{}, err
		}
		asked := time.Now()
		live := w.ran() < int64(jobs)
		if !live {
			// What the answer says was so when it was asked for.
			if err := d.conn.QueryRow(ctx, state.live).Scan(&live); err != nil {
				return drained{}, err
			}
		}
		if !live {
			return drained{started: start, elapsed: asked.Sub(start)}, nil
		}
		if asked.Sub(start) > limit {
			return drained{started: start, elapsed: asked.Sub(start), limited: true}, nil
		}
		select {
		case <-ctx.Done():
			return drained{}, ctx.Err()
		case <-time.After(finishPoll):
		}
	}
}

// dismiss stops workers after a drain. Those that were interrupted in it need not
// end well.
func (b *bench) dismiss(ctx context.Context, w *crew, r drained) (Event, error) {
	if r.limited {
		w.kill()
		return Event{}, nil
	}
	return w.stop(ctx)
}
