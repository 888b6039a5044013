package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// HolderKind says what a HorizonHolder is.
type HolderKind string

// Kinds of holders of the horizon.
const (
	HolderSession  HolderKind = "session"
	HolderPrepared HolderKind = "prepared transaction"
	HolderSlot     HolderKind = "replication slot"
	HolderStandby  HolderKind = "standby"
)

// HorizonHolder is what keeps dead rows of the queues' tables from being removed:
// it has the oldest snapshot or transaction of all that vacuum has to mind.
type HorizonHolder struct {
	Kind HolderKind
	// Name is that of the prepared transaction or of the slot, else empty.
	Name string
	// Database is that of the session or of the prepared transaction. One of another
	// database counts once it has written.
	Database string
	// PID, Application and User are those of the session, or of the walsender of a
	// standby or an active slot. PID is 0 where there is no process.
	PID               int
	Application, User string
	// State is that of the session or the walsender, "prepared", "active" or
	// "inactive"; empty when it is hidden.
	State string
	// Started is when the session's transaction began, which may be before its
	// snapshot was taken, or when the transaction was prepared, and Age the time
	// since, both on the database's clock. They are zero when that is hidden, and for
	// slots and standbys, of which PostgreSQL keeps no time.
	Started time.Time
	Age     time.Duration
	// Xmin is the oldest transaction that the holder still needs, and XminAge the
	// number of transactions since. As long as Xmin stays, the horizon does.
	Xmin    uint32
	XminAge int64
	// Hidden is true when the schema's owner may not see the session's state and
	// time. It may once it is granted pg_read_all_stats.
	Hidden bool
}

// HorizonHolder returns what holds the horizon at this moment, or nil when nothing
// does. On a busy database that is mostly a short transaction: only one whose Xmin
// stays for minutes does harm. It reads no table, writes nothing, and does not
// count db's own session.
func (c *Client) HorizonHolder(ctx context.Context, db DB) (*HorizonHolder, error) {
	var raw []byte
	err := db.QueryRow(ctx, c.stmt.horizon).Scan(&raw)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil // nobody holds it
	}
	if err != nil {
		return nil, wrap("horizon holder", err)
	}
	var wire horizonWire
	if err := json.Unmarshal(raw, &wire); err != nil {
		return nil, wrap("horizon holder", fmt.Errorf("decode: %w", err))
	}
	return wire.holder(), nil
}

// horizonWire is the row of horizon_holder() as JSON.
type horizonWire struct {
	Kind        HolderKind `json:"kind"`
	Name        string     `json:"name"`
	Database    string     `json:"database"`
	PID         int        `json:"pid"`
	Application string     `json:"application_name"`
	User        string     `json:"usename"`
	State       string     `json:"state"`
	Started     time.Time  `json:"xact_start"`
	AgeSeconds  float64    `json:"age_seconds"`
	Xmin        uint32     `json:"xmin,string"`
	XminAge     int64      `json:"xmin_age"`
	Hidden      bool       `json:"hidden"`
}

func (w *horizonWire) holder() *HorizonHolder {
	if w == nil {
		return nil
	}
	return &HorizonHolder{
		Kind: w.Kind, Name: w.Name, Database: w.Database, PID: w.PID, Application: w.Application, User: w.User, State: w.State,
		Started: w.Started, Age: seconds(w.AgeSeconds), Xmin: w.Xmin, XminAge: w.XminAge, Hidden: w.Hidden,
	}
}

// Same reports whether two looks saw the same holder. That it has held the horizon
// from one to the other takes the same Xmin, too.
func (h HorizonHolder) Same(other HorizonHolder) bool {
	// A slot is one whichever process uses it.
	return h.Kind == other.Kind && h.Name == other.Name && (h.Kind == HolderSlot || h.PID == other.PID)
}

// String names the holder for people, such as
//
//	session 4711 (application "psql", user "ada", database "shop", idle in transaction)
func (h HorizonHolder) String() string {
	var who string
	switch h.Kind {
	case HolderSession, HolderStandby:
		who = fmt.Sprintf("%s %d", h.Kind, h.PID)
	default:
		who = fmt.Sprintf("%s %q", h.Kind, h.Name)
	}
	var parts []string
	add := func(present bool, format string, value any) {
		if present {
			parts = append(parts, fmt.Sprintf(format, value))
		}
	}
	add(h.Kind == HolderSlot && h.PID != 0, "pid %d", h.PID)
	add(h.PID != 0, "application %q", h.Application)
	add(h.User != "", "user %q", h.User)
	add(h.Database != "", "database %q", h.Database)
	add(h.State != "" && h.Kind != HolderPrepared, "%s", h.State)
	add(h.Hidden, "%s", "state and age hidden until the schema's owner is granted pg_read_all_stats")
	if len(parts) == 0 {
		return who
	}
	return who + " (" + strings.Join(parts, ", ") + ")"
}

// Remedy says how to make the holder let go.
func (h HorizonHolder) Remedy() string {
	switch h.Kind {
	case HolderPrepared:
		return fmt.Sprintf("COMMIT PREPARED or ROLLBACK PREPARED it in database %q", h.Database)
	case HolderSlot:
		if h.PID == 0 {
			return fmt.Sprintf("bring its standby back, or drop it: SELECT pg_drop_replication_slot('%s')", h.Name)
		}
		return "end the long query on that standby, or set hot_standby_feedback = off there"
	case HolderStandby:
		return "end the long query on that standby, or set hot_standby_feedback = off there"
	}
	return fmt.Sprintf("end its transaction, or the session: SELECT pg_terminate_backend(%d)", h.PID)
}
