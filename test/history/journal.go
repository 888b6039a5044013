package history

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Journal is a worker's side of the history, read from its log. A log in a file outlives
// the worker's death by any signal, and the database's; a table would not get the last
// words of either.
type Journal struct {
	Told  []Told
	Began []Began
	// Cancelled are the causes with which handlers' contexts ended, by run.
	Cancelled map[uuid.UUID]string
}

// Messages that a journal is made of. The first is the worker's, at the level debug; the
// others are those of LogBegan and LogCancelled. LogTold writes the first as well.
const (
	msgEnded     = "job ended"
	msgBegan     = "handler began"
	msgCancelled = "handler cancelled"
)

// LogBegan notes the start of a handler; handlers call it first.
func LogBegan(log *slog.Logger, id int64, token uuid.UUID) {
	log.Info(msgBegan, "job", id, "token", token.String())
}

// LogCancelled notes that a handler's context ended, and why.
func LogCancelled(log *slog.Logger, id int64, token uuid.UUID, cause error) {
	log.Info(msgCancelled, "job", id, "token", token.String(), "cause", cause.Error())
}

// LogTold notes what a handler was told of a result that it wrote itself.
func LogTold(log *slog.Logger, t Told) {
	log.Info(msgEnded, "job", t.ID, "token", t.Token.String(), "outcome", t.Outcome)
}

// ReadJournal reads the log of a worker that wrote JSON at the level debug. What is not
// such a line, or was cut off by the worker's death, is passed over.
func ReadJournal(r io.Reader) (Journal, error) {
	j := Journal{Cancelled: map[uuid.UUID]string{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Time                time.Time
			Msg, Outcome, Cause string
			Job                 int64
			Token               uuid.UUID
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Token == uuid.Nil {
			continue
		}
		switch line.Msg {
		case msgEnded:
			j.Told = append(j.Told, Told{ID: line.Job, Token: line.Token, Outcome: line.Outcome, At: line.Time})
		case msgBegan:
			j.Began = append(j.Began, Began{ID: line.Job, Token: line.Token, At: line.Time})
		case msgCancelled:
			j.Cancelled[line.Token] = line.Cause
		}
	}
	if err := lines.Err(); err != nil {
		return Journal{}, fmt.Errorf("reading a worker's log: %w", err)
	}
	return j, nil
}

// Store adds the journal to the history in the database. The worker must have run on this
// machine: the database's clock, which may be off, is compared with the one here.
func (j Journal) Store(ctx context.Context, db DB) error {
	ahead, err := clockAhead(ctx, db)
	if err != nil {
		return err
	}
	var ids []int64
	var tokens, outcomes []string
	var times []time.Time
	for _, t := range j.Told {
		ids, tokens, outcomes = append(ids, t.ID), append(tokens, t.Token.String()), append(outcomes, t.Outcome)
		times = append(times, t.At.Add(ahead))
	}
	if _, err := db.Exec(ctx, `INSERT INTO history.told SELECT * FROM unnest($1::bigint[], $2::text[]::uuid[], $3::text[], $4::timestamptz[])`,
		ids, tokens, outcomes, times); err != nil {
		return fmt.Errorf("storing what a worker was told: %w", err)
	}
	ids, tokens, times = nil, nil, nil
	for _, b := range j.Began {
		ids, tokens, times = append(ids, b.ID), append(tokens, b.Token.String()), append(times, b.At)
	}
	if _, err := db.Exec(ctx, `INSERT INTO history.began SELECT * FROM unnest($1::bigint[], $2::text[]::uuid[], $3::timestamptz[])`,
		ids, tokens, times); err != nil {
		return fmt.Errorf("storing the handlers that began: %w", err)
	}
	return nil
}

// clockAhead is how far the database's clock is ahead of the one here: at most, because it
// is read later.
func clockAhead(ctx context.Context, db DB) (time.Duration, error) {
	here := time.Now()
	var there []time.Time
	if err := collect(ctx, db, &there, pgx.RowTo[time.Time], `SELECT clock_timestamp()`); err != nil {
		return 0, err
	}
	return there[0].Sub(here), nil
}
