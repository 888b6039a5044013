package queue

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DefaultSchema is the schema used when New is given an empty name.
const DefaultSchema = "jobqueue"

// maxIdentifierBytes is PostgreSQL's limit for identifiers (NAMEDATALEN - 1).
// The schema's name is also the NOTIFY channel, which has the same limit.
const maxIdentifierBytes = 63

// DB is what the client needs of a database handle. *pgxpool.Pool, *pgx.Conn
// and pgx.Tx all satisfy it. The client never begins, commits or rolls back a
// transaction through it, except in Migrate.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Client calls the queue's SQL functions in one schema. It holds no connection
// and no state but the text of its statements, and is safe for concurrent use.
type Client struct {
	schema string // as given, unquoted
	quoted string // as an SQL identifier
	stmt   statements
}

// New returns a client for the queue in the named schema; "" means
// DefaultSchema. It does not touch the database. The name must be what
// ValidateSchema accepts, else an error that is ErrInvalidArgument is returned.
func New(schema string) (*Client, error) {
	if schema == "" {
		schema = DefaultSchema
	}
	if err := ValidateSchema(schema); err != nil {
		return nil, err
	}
	quoted := pgx.Identifier{schema}.Sanitize()
	return &Client{schema: schema, quoted: quoted, stmt: newStatements(quoted)}, nil
}

// Schema returns the name of the schema, unquoted. It is also the name of the
// NOTIFY channel that Listen listens on.
func (c *Client) Schema() string { return c.schema }

// ValidateSchema reports whether name may be used as the queue's schema: 1 to
// 63 of the characters a-z, 0-9 and underscore, not starting with a digit, and
// neither "information_schema" nor starting with "pg_", which belong to
// PostgreSQL. Such names need no quoting anywhere, so that what is typed in
// psql, in a URL and in a manifest is the same. The error is an
// ErrInvalidArgument.
func ValidateSchema(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: schema is empty; allowed are 1 to %d characters of a-z, 0-9 and _",
			ErrInvalidArgument, maxIdentifierBytes)
	case len(name) > maxIdentifierBytes:
		return fmt.Errorf("%w: schema %q has %d bytes; allowed are at most %d",
			ErrInvalidArgument, name, len(name), maxIdentifierBytes)
	case strings.HasPrefix(name, "pg_") || name == "information_schema":
		return fmt.Errorf("%w: schema %q is reserved by PostgreSQL; choose a name without the prefix pg_",
			ErrInvalidArgument, name)
	}
	for i, r := range name {
		letter := r == '_' || (r >= 'a' && r <= 'z')
		digit := r >= '0' && r <= '9'
		if !letter && (!digit || i == 0) {
			return fmt.Errorf("%w: schema %q has %q at byte %d; allowed are a-z, 0-9 and _, not starting with a digit",
				ErrInvalidArgument, name, r, i)
		}
	}
	return nil
}
