package worker

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// mayHaveCommitted is true when a statement that failed with err may have taken
// effect all the same. PostgreSQL rolls back a statement that it answers with an
// ERROR; a FATAL may end the session between the commit and its answer, as a
// severed connection and a timeout may. One that found no connection has done nothing.
func mayHaveCommitted(err error) bool {
	var connect *pgconn.ConnectError
	return err != nil && !isUnsent(err) && !errors.As(err, &connect) && !pgconn.SafeToRetry(err) && !isAnswer(err)
}

// isUnsent is true for a statement for which there was no connection.
func isUnsent(err error) bool {
	var unsent *notSentError
	return errors.As(err, &unsent)
}

// tookTooLong is true for a statement that was cut off while it ran, by our time limit or
// by the server's (statement_timeout).
func tookTooLong(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code == "57014"
	}
	return errors.Is(err, context.DeadlineExceeded) && !isUnsent(err)
}

// isAnswer is true for an error that the database has answered with, and went on.
func isAnswer(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.SeverityUnlocalized == "ERROR"
}

// concernsData is true for an error that one row of a batch can cause, so that
// the others should be tried without it.
func concernsData(err error) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) || len(server.Code) != 5 {
		return false
	}
	if isLocked(err) {
		return true
	}
	switch server.Code[:2] {
	case "21", "22", "23", "P0", "JQ":
		return true
	}
	return false
}

// sameTrouble is true for two errors that say the same of the database, whichever
// statements met it.
func sameTrouble(a, b error) bool {
	var x, y *pgconn.PgError
	if errors.As(a, &x) && errors.As(b, &y) {
		return x.Code == y.Code
	}
	return a.Error() == b.Error()
}

// isLocked is true when another session held a lock on a row for longer than the
// finishing functions wait, as an open transaction that has cancelled a job does.
func isLocked(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == "55P03"
}
