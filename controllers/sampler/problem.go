package sampler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Reasons of problems that are not those of a condition in the API.
const (
	// ReasonStarting: no try has ended yet.
	ReasonStarting = v1alpha1.ReasonProgressing
	// ReasonStale: the sampler has not reported for too long.
	ReasonStale = v1alpha1.ReasonSampleStale
	// ReasonReadOnly: the server is a standby.
	ReasonReadOnly = "DatabaseReadOnly"
)

// schemaError is a finding about the schema, which no retry mends.
type schemaError struct{ reason, message string }

func (e *schemaError) Error() string { return e.message }

// problemOf puts an error into words for users. Messages hold neither secrets nor
// what differs from one try to the next, such as a local port, so that a lasting
// problem is one event and one status write.
func problemOf(err error, config *pgx.ConnConfig) Problem {
	password := ""
	if config != nil {
		password = config.Password
	}
	return Problem{Reason: reasonOf(err), Message: scrub(messageOf(err), password)}
}

func reasonOf(err error) string {
	var schema *schemaError
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &schema):
		return schema.reason
	case errors.Is(err, queue.ErrSchemaTooNew):
		return v1alpha1.ReasonSchemaTooNew
	case errors.Is(err, queue.ErrSchemaMissing):
		return v1alpha1.ReasonSchemaMissing
	case errors.Is(err, queue.ErrQueueOwned):
		return v1alpha1.ReasonQueueOwned
	case errors.As(err, &pg):
		return reasonOfCode(pg.Code)
	}
	return v1alpha1.ReasonConnectionFailed
}

// reasonOfCode maps SQLSTATEs (PostgreSQL documentation, appendix A).
func reasonOfCode(code string) string {
	switch {
	case strings.HasPrefix(code, "28"):
		return v1alpha1.ReasonAuthenticationFailed
	case code == "53300":
		return v1alpha1.ReasonTooManyConnections
	case code == "25006":
		return ReasonReadOnly
	}
	return v1alpha1.ReasonConnectionFailed
}

// messageOf takes from an error what helps and stays the same between tries.
func messageOf(err error) string {
	var schema *schemaError
	var pg *pgconn.PgError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &schema):
		return schema.message
	case errors.As(err, &pg):
		return pgMessage(pg)
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "the database did not answer in time"
	case errors.As(err, &dns):
		return fmt.Sprintf("host %q was not found", dns.Name)
	case errors.As(err, &op) && op.Op == "dial" && op.Addr != nil:
		return fmt.Sprintf("cannot connect to %s: %s", op.Addr, bare(op.Err))
	case errors.As(err, &op):
		return "the connection broke: " + bare(op.Err)
	}
	return err.Error()
}

func pgMessage(pg *pgconn.PgError) string {
	text := fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	if pg.Hint != "" {
		text += ". " + pg.Hint
	}
	return text
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// bare is the system's word for an error, without addresses.
func bare(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// scrub takes a password out of a text, also as it looks inside a URL, and then
// cuts it: cut first, part of a password could remain at the end.
func scrub(text, password string) string {
	if password != "" {
		for _, secret := range []string{password, url.QueryEscape(password), url.PathEscape(password)} {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	return cut(text)
}

const maxMessage = 500

func cut(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "..."
}
