package queue

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that callers can test for with errors.Is. Each stands for one SQLSTATE
// of the protocol (in parentheses); the returned error also wraps the
// *pgconn.PgError, whose Message and Hint are written for people.
var (
	// ErrQueueNotFound (JQ001): the named queue has no row in the database.
	// Declare it with SetPolicy, or by applying a JobQueue.
	ErrQueueNotFound = errors.New("queue does not exist")
	// ErrQueueOwned (JQ002): the queue's policy belongs to another owner.
	ErrQueueOwned = errors.New("queue is owned by another")
	// ErrPayloadTooLarge (JQ003): a payload is larger than its queue allows.
	ErrPayloadTooLarge = errors.New("payload is too large")
	// ErrPolicyStale (JQ004): the stored policy is of a later generation.
	ErrPolicyStale = errors.New("policy is stale")
	// ErrInvalidArgument (JQ005): an argument is null, out of range or
	// malformed; the message names it, its value, and what is allowed.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrWorkerQueue (JQ006): a worker id was used with a second queue. A
	// worker id serves one queue; take a fresh id for each.
	ErrWorkerQueue = errors.New("worker id belongs to another queue")
	// ErrInvalidPayload: a payload is not JSON that PostgreSQL can store as
	// jsonb (malformed, with \u0000 in a string, a number beyond numeric's range,
	// or nested too deeply).
	ErrInvalidPayload = errors.New("invalid payload")
	// ErrSchemaMissing: the schema, or a function of it, is not there. Run
	// Migrate, or check the schema's name.
	ErrSchemaMissing = errors.New("queue schema is missing")
	// ErrSchemaTooNew: the schema was migrated by a later version of this
	// package. Nothing was changed.
	ErrSchemaTooNew = errors.New("queue schema is newer than this program")
	// ErrJobNotFound: no job of that id is live, finished or dead.
	ErrJobNotFound = errors.New("job does not exist")
)

// sentinels maps the protocol's SQLSTATEs, and those of PostgreSQL that mean
// something definite here, to the errors above.
var sentinels = map[string]error{
	"JQ001": ErrQueueNotFound,
	"JQ002": ErrQueueOwned,
	"JQ003": ErrPayloadTooLarge,
	"JQ004": ErrPolicyStale,
	"JQ005": ErrInvalidArgument,
	"JQ006": ErrWorkerQueue,
	"22021": ErrInvalidArgument, // character_not_in_repertoire: text that is not UTF-8
	"22008": ErrInvalidArgument, // datetime_field_overflow: a time beyond PostgreSQL's range
	"3F000": ErrSchemaMissing,   // invalid_schema_name
	"42883": ErrSchemaMissing,   // undefined_function
	"42P01": ErrSchemaMissing,   // undefined_table
}

// payloadStates are the SQLSTATEs with which PostgreSQL refuses a payload as jsonb.
// They mean that where payloads are sent only.
var payloadStates = map[string]bool{
	"22P02": true, // invalid_text_representation
	"22P05": true, // untranslatable_character: \u0000 in jsonb
	"22003": true, // numeric_value_out_of_range
	"54001": true, // statement_too_complex: nested too deeply
}

// wrap names the operation and adds the sentinel that the SQLSTATE stands for.
// A nil err stays nil.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		if sentinel, ok := sentinels[pg.Code]; ok {
			return fmt.Errorf("queue: %s: %w: %w", op, sentinel, err)
		}
	}
	return fmt.Errorf("queue: %s: %w", op, err)
}

// wrapEnqueue is wrap for the statements that send payloads.
func wrapEnqueue(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && payloadStates[pg.Code] {
		err = fmt.Errorf("%w: %w", ErrInvalidPayload, err)
	}
	return wrap("enqueue", err)
}
