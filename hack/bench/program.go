package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// program is a contender written in Go, as its process sees it.
type program interface {
	// setup makes the tables and the queues.
	setup(ctx context.Context, spec Spec) error
	// producer connects and returns what enqueues: one job in a transaction of its
	// own, or several with one call. The payload's time is to be taken by calling
	// payload, as late as can be.
	producer(ctx context.Context, spec Spec) (func(ctx context.Context, n int, payload func() Payload) error, error)
	// worker connects and returns what starts the workers, which call ran from each
	// handler, and what stops them.
	worker(ctx context.Context, spec Spec, ran func(Payload)) (start func() error, stop func() error, err error)
}

var programs = map[string]program{"ours": ours{}, "river": riverProgram{}, "gue": gueProgram{}}

// ranEvery is how often a worker says how many jobs it has run.
const ranEvery = 20 * time.Millisecond

// runProgram is the main function of a contender's process.
func runProgram(text string) error {
	var spec Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return fmt.Errorf("the spec: %w", err)
	}
	p := programs[spec.Program]
	if p == nil {
		return fmt.Errorf("there is no program %q", spec.Program)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	child := newChild(cancel)
	switch spec.Role {
	case roleSetup:
		return p.setup(ctx, spec)
	case roleProduce:
		return child.produce(ctx, p, spec)
	case roleWork:
		return child.work(ctx, p, spec)
	}
	return fmt.Errorf("there is no role %q", spec.Role)
}

// child is the contender's end of the protocol.
type child struct {
	orders chan string
	out    sync.Mutex
}

// newChild reads orders. When the bench is gone it ends the process: nobody is left
// to measure for.
func newChild(cancel func()) *child {
	c := &child{orders: make(chan string, 2)}
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			c.orders <- lines.Text()
		}
		cancel()
		os.Exit(1)
	}()
	return c
}

func (c *child) say(e Event) {
	c.out.Lock()
	defer c.out.Unlock()
	line, err := json.Marshal(e)
	if err == nil {
		fmt.Println(string(line))
	}
}

func (c *child) await(order string) error {
	if got := <-c.orders; got != order {
		return fmt.Errorf("got the order %q instead of %q", got, order)
	}
	return nil
}

func (c *child) produce(ctx context.Context, p program, spec Spec) error {
	enqueue, err := p.producer(ctx, spec)
	if err != nil {
		return err
	}
	c.say(Event{Event: "ready"})
	if err := c.await("go"); err != nil {
		return err
	}
	start := time.Now()
	if err := produceAll(ctx, spec, start, enqueue); err != nil {
		return err
	}
	c.say(Event{Event: "done", Seconds: time.Since(start).Seconds()})
	return nil
}

// produceAll enqueues all jobs over all connections, each at its time if there is a rate.
func produceAll(ctx context.Context, spec Spec, start time.Time, enqueue func(context.Context, int, func() Payload) error) error {
	var next atomic.Int64
	pad := padding(spec.PayloadBytes)
	payload := func() Payload { return Payload{At: time.Now().UnixMicro(), Pad: pad} }
	group, ctx := errgroup.WithContext(ctx)
	for range spec.Connections {
		group.Go(func() error {
			for {
				first := int(next.Add(int64(spec.Bulk))) - spec.Bulk
				if first >= spec.Jobs {
					return nil
				}
				if spec.Rate > 0 {
					time.Sleep(time.Until(start.Add(time.Duration(float64(first) / spec.Rate * float64(time.Second)))))
				}
				if err := enqueue(ctx, min(spec.Bulk, spec.Jobs-first), payload); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// padding makes a payload's JSON that many bytes long; the time has sixteen digits.
func padding(payloadBytes int) string {
	const rest = len(`{"at":1234567890123456,"pad":""}`)
	return strings.Repeat("x", max(payloadBytes-rest, 0))
}

func (c *child) work(ctx context.Context, p program, spec Spec) error {
	var count atomic.Int64
	var latencies recorder
	start, stop, err := p.worker(ctx, spec, func(payload Payload) {
		if spec.Latencies {
			latencies.add(time.Now().UnixMicro() - payload.At)
		}
		count.Add(1)
	})
	if err != nil {
		return err
	}
	c.say(Event{Event: "ready"})
	if err := c.await("go"); err != nil {
		return err
	}
	if err := start(); err != nil {
		return err
	}
	told := int64(math.MinInt64)
	ticker := time.NewTicker(ranEvery)
	defer ticker.Stop()
	for {
		select {
		case order := <-c.orders:
			if order != "stop" {
				return fmt.Errorf("got the order %q instead of stop", order)
			}
			err := stop()
			c.say(Event{Event: "end", Ran: count.Load(), LatenciesMicros: latencies.all(), ClaimsMicros: claims.all()})
			return err
		case <-ticker.C:
			if n := count.Load(); n != told {
				told = n
				c.say(Event{Event: "ran", Ran: n})
			}
		}
	}
}

// recorder keeps durations in microseconds.
type recorder struct {
	mu     sync.Mutex
	micros []int64
}

func (r *recorder) add(micros int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.micros = append(r.micros, micros)
}

func (r *recorder) all() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.micros
}

// childMain runs a contender's process and returns its exit code.
func childMain(spec string) int {
	err := runProgram(spec)
	if err == nil || errors.Is(err, io.EOF) {
		return 0
	}
	(&child{}).say(Event{Event: "error", Error: err.Error()})
	return 1
}
