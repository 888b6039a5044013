package worker

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	nextjson "github.com/go-json-experiment/json"
	fastjson "github.com/go-json-experiment/json/v1"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Job is one run of a job, as its handler sees it.
type Job[T any] struct {
	ID       int64
	Queue    string
	Kind     string
	Priority int16
	// Attempt counts the runs begun, this one included: 1 in the first.
	Attempt     int
	MaxAttempts int
	// Token is this run's own; the next run of the same job has another.
	Token uuid.UUID
	// Worker identifies the process that runs it.
	Worker      uuid.UUID
	CreatedAt   time.Time
	AvailableAt time.Time
	// Args is the payload, decoded from JSON.
	Args T

	held   *held
	client *queue.Client
}

// IdempotencyKey names the job, not the run: it is the same in every attempt, and
// unique among the queues of one schema.
func (j *Job[T]) IdempotencyKey() string { return fmt.Sprintf("%s/%d", j.Queue, j.ID) }

// Succeed finishes the job inside the handler's own transaction, so that its
// effects and its end are committed together or not at all. It returns
// [ErrLeaseLost] when the job is another worker's by now; the handler must then
// roll back.
//
// The handler commits tx itself and then returns nil; it returns an error when it
// has not committed. The worker does not take its word for it: after the handler
// has returned it writes what the job comes to without the transaction (a failed attempt,
// [ErrNotCommitted] or the handler's error; or what [Snooze] and [Discard] say), which the
// database refuses if the transaction was committed, and accepts if it was rolled back
// or its commit failed. So a commit whose answer was lost counts as what it was. tx must be
// over when the handler returns. Once Succeed has returned nil, the handler's context does
// not end any more for a lost lease, which looks like a commit: return soon after a rollback.
//
// The first job of a kind that is finished so may share its row with others, and hold
// them up until its transaction is over. A Succeed that waits for half a second returns
// an error then; the handler returns it, or another one, and the job runs again a
// second later, in a row of its own, the attempt not counted.
func (j *Job[T]) Succeed(ctx context.Context, tx pgx.Tx) error {
	j.held.handler.sharing.finishedInTx()
	ids, err := j.client.Succeed(ctx, tx, uuid.Nil, []queue.Ref{j.held.Ref})
	if err != nil {
		if isLocked(err) {
			j.held.markLocked()
		}
		return fmt.Errorf("worker: finish job %d in its own transaction: %w", j.ID, err)
	}
	if len(ids) == 0 {
		return ErrLeaseLost
	}
	j.held.markSucceeded()
	return nil
}

// handler runs one held job and returns its handler's error.
type handler func(ctx context.Context, h *held) error

// Handle registers h for jobs of the given kind; their payload is decoded from
// JSON into T. It never panics: an empty, repeated or malformed kind, a nil handler,
// and a registration after the start make [Worker.Run] return an error.
//
// The context ends at the job's timeout ([ErrTimeout]), when its lease is lost
// ([ErrLeaseLost]), and when a stopping worker can wait no longer ([ErrShutdown]);
// context.Cause says which. A payload that cannot be decoded is a permanent failure.
func Handle[T any](w *Worker, kind string, h func(ctx context.Context, job *Job[T]) error) {
	if h == nil {
		w.register(kind, nil)
		return
	}
	client := w.client
	decode := decoder[T]()
	w.register(kind, func(ctx context.Context, held *held) error {
		job := Job[T]{
			ID: held.ID, Queue: held.Queue, Kind: held.Kind, Priority: held.Priority,
			Attempt: held.Attempt, MaxAttempts: held.MaxAttempts, Token: held.Token,
			Worker: held.identity.id, CreatedAt: held.CreatedAt, AvailableAt: held.AvailableAt,
			held: held, client: client,
		}
		if err := decode(held.Payload, &job.Args); err != nil {
			return Permanent(fmt.Errorf("worker: decode the payload of kind %q: %w", held.Kind, err))
		}
		// Results may wait for the database for long, and in thousands.
		held.Payload = nil
		return h(ctx, &job)
	})
}

// decoder is json.Unmarshal into a zero value. Until the toolchain is Go 1.27, whose
// encoding/json fastjson is a mirror of, that is two to four times as fast where payloads
// are mostly text, which is much of what a small job costs a worker. Its errors are its
// own, so what it refuses is decoded again; what it would take otherwise than
// encoding/json does, it is not given.
func decoder[T any]() func(payload []byte, args *T) error {
	if !decodesAlike(reflect.TypeFor[T](), map[reflect.Type]bool{}) {
		return func(payload []byte, args *T) error { return json.Unmarshal(payload, args) }
	}
	return func(payload []byte, args *T) error {
		if fastjson.Unmarshal(payload, args) == nil {
			return nil
		}
		var zero T
		*args = zero
		return json.Unmarshal(payload, args)
	}
}

var (
	numberType          = reflect.TypeFor[json.Number]()
	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
	nextUnmarshalerType = reflect.TypeFor[nextjson.UnmarshalerFrom]()
)

// decodesAlike is false for a type in which fastjson may see something else than
// encoding/json does: a json.Number, which is any string to it, a decoder of its own
// kind, and names and options of fields that one of the two does not know. seen are the
// types that have been looked at.
func decodesAlike(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return true
	}
	seen[t] = true
	switch to := reflect.PointerTo(t); {
	case t == numberType || to.Implements(nextUnmarshalerType):
		return false
	case to.Implements(unmarshalerType) || to.Implements(textUnmarshalerType):
		return true // both leave it to the type
	}
	switch t.Kind() {
	case reflect.Map:
		return decodesAlike(t.Key(), seen) && decodesAlike(t.Elem(), seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return decodesAlike(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if tag := f.Tag.Get("json"); tag != "-" && !(plainTag(tag) && decodesAlike(f.Type, seen)) {
				return false
			}
		}
	}
	return true
}

// plainTag is true for a field's json tag that means the same to both.
func plainTag(tag string) bool {
	name, options, more := strings.Cut(tag, ",")
	if name == "-" {
		return false
	}
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) {
			return false
		}
	}
	for more {
		var option string
		option, options, more = strings.Cut(options, ",")
		if option != "omitempty" && option != "omitzero" && option != "string" {
			return false
		}
	}
	return true
}
