package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"
)

// execute1 runs one job of kind "k" through a slot and returns its result.
func execute1[T any](t *testing.T, payload string, timeout time.Duration, h func(context.Context, *Job[T]) error) *result {
	t.Helper()
	w := makeWorker(t, Config{Slots: 1}, WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	Handle(w, "k", h)
	kinds, err := w.start()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(w, kinds)
	e.handlerBase = context.Background()
	job := makeHeld(42, timeout, time.Minute)
	job.handler, job.Payload = w.handlers["k"], json.RawMessage(payload)
	e.slots.Go(func() { e.slot(0) })
	e.backlog.push([]*held{job})
	e.backlog.close()
	e.slots.Wait()
	if n := e.backlog.taken(); n != 0 {
		t.Errorf("%d slots are taken at the end", n)
	}
	if len(e.completer.pending) != 1 {
		t.Fatalf("%d results, want one", len(e.completer.pending))
	}
	return e.completer.pending[0]
}

// executeAll runs jobs of kind "k" one after the other through one slot.
func executeAll(t *testing.T, jobs []*held, h func(context.Context, *Job[struct{}]) error) {
	t.Helper()
	w := makeWorker(t, Config{Slots: 1}, WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	Handle(w, "k", h)
	kinds, err := w.start()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(w, kinds)
	e.handlerBase = context.Background()
	for _, job := range jobs {
		job.handler, job.Payload = w.handlers["k"], json.RawMessage(`{}`)
	}
	e.slots.Go(func() { e.slot(0) })
	e.backlog.push(jobs)
	e.backlog.close()
	e.slots.Wait()
}

func TestSlotCancelsTheContextOfTheJobThatIsLostOnly(t *testing.T) { // Q4
	jobs := []*held{makeHeld(1, time.Minute, time.Minute), makeHeld(2, time.Minute, time.Minute), makeHeld(3, time.Minute, time.Minute)}
	var last context.Context
	ran := 0
	executeAll(t, jobs, func(ctx context.Context, j *Job[struct{}]) error {
		ran++
		if ctx.Err() != nil {
			t.Errorf("job %d begins with a context that has ended: %v", j.ID, context.Cause(ctx))
		}
		switch j.ID {
		case 1:
			last = ctx
		case 2:
			if !errors.Is(context.Cause(last), context.Canceled) {
				t.Errorf("the context of a job that has ended has the cause %v", context.Cause(last))
			}
			if jobs[0].lose() || jobs[0].interrupt() || ctx.Err() != nil {
				t.Errorf("a job that has ended is lost, or the next one for it: %v", context.Cause(ctx))
			}
			if !jobs[1].lose() || !errors.Is(context.Cause(ctx), ErrLeaseLost) {
				t.Errorf("the cause of a lost job's context is %v", context.Cause(ctx))
			}
		}
		return nil
	})
	if ran != 3 {
		t.Errorf("%d jobs ran, want 3", ran)
	}
}

func TestSlotDecodesThePayload(t *testing.T) {
	type args struct{ To string }
	var got Job[args]
	r := execute1(t, `{"To":"a@example.org"}`, time.Minute, func(_ context.Context, j *Job[args]) error {
		got = *j
		return nil
	})
	if r.action != actSucceed || got.Args.To != "a@example.org" || got.ID != 42 || got.Attempt != 1 || got.IdempotencyKey() != "q/42" {
		t.Errorf("result %+v of job %+v", r, got)
	}
}

func TestSlotFailsAPayloadThatCannotBeDecodedForGood(t *testing.T) {
	r := execute1(t, `{"To":"secret@example.org"}`, time.Minute, func(context.Context, *Job[[]int]) error { return nil })
	if r.action != actFail || !r.permanent || !strings.Contains(r.text, `decode the payload of kind "k"`) {
		t.Errorf("result is %+v", r)
	}
	if strings.Contains(r.text, "secret") {
		t.Errorf("the error quotes the payload: %s", r.text)
	}
}

func TestSlotTurnsAPanicIntoAFailureWithItsStack(t *testing.T) { // W7
	r := execute1(t, `{}`, time.Minute, func(context.Context, *Job[struct{}]) error {
		zero := len("")
		return fmt.Errorf("%d", 1/zero)
	})
	if r.action != actFail || r.permanent || !strings.HasPrefix(r.text, "panic: runtime error: integer divide by zero") || !strings.Contains(r.text, "slot_test.go") {
		t.Errorf("result is %+v", r)
	}
}

// brokenError is an error with a pointer that is nil.
type brokenError struct{ text string }

func (b *brokenError) Error() string { return b.text }

// brokenChain can say what it is, and not why.
type brokenChain struct{}

func (brokenChain) Error() string { return "broken" }
func (brokenChain) Unwrap() error { panic("no cause") }

func TestSlotTurnsAnErrorThatPanicsIntoAFailure(t *testing.T) { // W7
	var none *brokenError
	cases := map[string]struct {
		err  error
		want string
	}{
		"nil pointer":             {err: none, want: "panic: runtime error: invalid memory address"},
		"nil pointer, for good":   {err: Permanent(none), want: "panic: runtime error: invalid memory address"},
		"nil pointer, in between": {err: errors.Join(errors.New("first"), none), want: "panic: runtime error: invalid memory address"},
		"cause":                   {err: brokenChain{}, want: "panic: no cause"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := execute1(t, `{}`, time.Minute, func(context.Context, *Job[struct{}]) error { return tc.err })
			if r.action != actFail || r.permanent || !strings.HasPrefix(r.text, tc.want) || !strings.Contains(r.text, "slot_test.go") {
				t.Errorf("result is %+v", r)
			}
		})
	}
}

func TestSlotSurvivesAHandlerThatEndsItsGoroutine(t *testing.T) {
	r := execute1(t, `{}`, time.Minute, func(context.Context, *Job[struct{}]) error {
		runtime.Goexit()
		return nil
	})
	if r.action != actFail || r.text != errGoexit.Error() {
		t.Errorf("result is %+v", r)
	}
}

func TestSlotEndsTheContextAtTheTimeout(t *testing.T) { // W6
	r := execute1(t, `{}`, 20*time.Millisecond, func(ctx context.Context, _ *Job[struct{}]) error {
		<-ctx.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(ctx), ErrTimeout) {
			t.Errorf("err %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		return ctx.Err()
	})
	if r.action != actFail || !strings.HasPrefix(r.text, ErrTimeout.Error()+" after ") {
		t.Errorf("result is %+v", r)
	}
}

func TestSlotAcceptsSuccessAfterTheTimeout(t *testing.T) {
	r := execute1(t, `{}`, 10*time.Millisecond, func(ctx context.Context, _ *Job[struct{}]) error {
		<-ctx.Done()
		return nil
	})
	if r.action != actSucceed {
		t.Errorf("result is %+v, want success: the token decides", r)
	}
}

func TestSlotGivesBackWhatHasTooLittleTimeLeft(t *testing.T) { // W6
	w := makeWorker(t, Config{Slots: 1}, WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	ran := 0
	Handle(w, "k", func(context.Context, *Job[struct{}]) error {
		ran++
		return nil
	})
	kinds, err := w.start()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(w, kinds)
	e.handlerBase = context.Background()
	late := makeHeld(42, time.Minute, time.Minute)
	late.hardLimit = time.Now().Add(time.Minute - time.Millisecond)
	late.handler, late.Payload = w.handlers["k"], json.RawMessage(`{}`)
	e.slots.Go(func() { e.slot(0) })
	e.backlog.push([]*held{late})
	e.backlog.close()
	e.slots.Wait()
	if len(e.completer.pending) != 1 || e.completer.pending[0].action != actRelease || ran != 0 || e.begun.Load() != 0 {
		t.Errorf("%d handlers ran, results %+v, want the job released unrun", ran, e.completer.pending)
	}
	if n := e.backlog.taken(); n != 0 {
		t.Errorf("%d slots are taken at the end", n)
	}
}
