package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Sample is one look at every queue of the schema and at the server's
// connections, all at one time of the database's clock.
type Sample struct {
	// TakenAt is the database's time of the sample.
	TakenAt time.Time
	// MaxConnections is the server's max_connections, ReservedConnections what
	// of it is kept for superusers and for roles with pg_use_reserved_connections.
	MaxConnections, ReservedConnections int
	// OurConnections are client connections whose application_name begins with
	// "jobqueue:" and that are to this database, the sampling one included when it
	// is named so; ElsewhereConnections are those named so to other databases of the
	// server. OtherConnections are all the others, of any database.
	OurConnections, ElsewhereConnections, OtherConnections int
	// Database is the database's name.
	Database string
	// ServerStartedAt is when the server was started, to the microsecond. Samples
	// that share it are of one server.
	ServerStartedAt time.Time
	// InRecovery is true on a standby, where nothing can be claimed.
	InRecovery bool
	// Horizon is what HorizonHolder returns.
	Horizon *HorizonHolder
	// Queues holds every declared queue by name, empty ones too.
	Queues map[string]QueueSample
}

// QueueSample is the state of one queue. Counts of rows stop at a cap of 10,000
// each, so that a sample costs the same whatever the backlog.
type QueueSample struct {
	// Pending counts the jobs ready to run, those included that have just come
	// due; PendingCapped is true when there may be more.
	Pending       int64
	PendingCapped bool
	// Scheduled counts the jobs waiting for their time.
	Scheduled       int64
	ScheduledCapped bool
	// DueSoon counts the jobs that come due within the next 60 seconds.
	DueSoon int64
	// Running counts the claimed jobs.
	Running int64
	// Dead counts the dead letters.
	Dead int64
	// OldestAge is how long the oldest ready job has been ready, over all
	// priorities; 0 when none is.
	OldestAge time.Duration
	// Unhandled counts, among the first 100 ready jobs, those that have waited for a
	// minute and whose kind none of the live workers asks for, though at least one has
	// been up as long. UnhandledKind is the first such kind by name, or empty.
	Unhandled     int64
	UnhandledKind string
	// Workers counts the registered workers, those included whose lease has
	// run out but which have not been reaped yet.
	Workers int
	// Claimed, Succeeded, Failed, Lost, Discarded and Cancelled are totals
	// since the queue was declared; they never decrease. Lost counts runs
	// taken back because a lease or a deadline passed. Overdue counts those of
	// them whose deadline passed while their worker was alive: stuck handlers,
	// not dead processes.
	Claimed, Succeeded, Failed, Lost, Overdue, Discarded, Cancelled int64
	// ExecutionMillis is the time from claim to finish, summed over all
	// succeeded, failed and discarded runs.
	ExecutionMillis int64
	// PolicyGeneration is the generation of the stored policy.
	PolicyGeneration int64
	// Suspended is true while the queue yields no jobs.
	Suspended bool
}

// Sample takes a sample in one statement of bounded cost. It writes nothing and
// so works on a standby. Numbers of connections are as complete as the
// database lets the functions' owner see: other roles' parallel workers cannot
// be told from clients unless it is a member of pg_read_all_stats.
func (c *Client) Sample(ctx context.Context, db DB) (Sample, error) {
	var raw []byte
	if err := db.QueryRow(ctx, c.stmt.sample).Scan(&raw); err != nil {
		return Sample{}, wrap("sample", err)
	}
	sample, err := parseSample(raw)
	return sample, wrap("sample", err)
}

// parseSample decodes the JSON that the function sample returns.
func parseSample(raw []byte) (Sample, error) {
	var wire struct {
		TakenAt              time.Time    `json:"taken_at"`
		MaxConnections       int          `json:"max_connections"`
		ReservedConnections  int          `json:"reserved_connections"`
		OurConnections       int          `json:"our_connections"`
		ElsewhereConnections int          `json:"elsewhere_connections"`
		OtherConnections     int          `json:"other_connections"`
		Database             string       `json:"database"`
		ServerStartedAt      time.Time    `json:"server_started_at"`
		InRecovery           bool         `json:"in_recovery"`
		Horizon              *horizonWire `json:"horizon"`
		Queues               map[string]struct {
			Pending          int64   `json:"pending"`
			PendingCapped    bool    `json:"pending_capped"`
			Scheduled        int64   `json:"scheduled"`
			ScheduledCapped  bool    `json:"scheduled_capped"`
			DueSoon          int64   `json:"due_soon"`
			Running          int64   `json:"running"`
			Dead             int64   `json:"dead"`
			OldestAgeSeconds float64 `json:"oldest_age_seconds"`
			Unhandled        int64   `json:"unhandled"`
			UnhandledKind    string  `json:"unhandled_kind"`
			Workers          int     `json:"workers"`
			Claimed          int64   `json:"claimed"`
			Succeeded        int64   `json:"succeeded"`
			Failed           int64   `json:"failed"`
			Lost             int64   `json:"lost"`
			Overdue          int64   `json:"overdue"`
			Discarded        int64   `json:"discarded"`
			Cancelled        int64   `json:"cancelled"`
			ExecutionMillis  int64   `json:"execution_ms"`
			Generation       int64   `json:"generation"`
			Suspended        bool    `json:"suspended"`
		} `json:"queues"`
	}
	if err := json.Unmarshal(raw, &wire); err != nil {
		return Sample{}, fmt.Errorf("decode the sample: %w", err)
	}
	sample := Sample{
		TakenAt:              wire.TakenAt,
		MaxConnections:       wire.MaxConnections,
		ReservedConnections:  wire.ReservedConnections,
		OurConnections:       wire.OurConnections,
		ElsewhereConnections: wire.ElsewhereConnections,
		OtherConnections:     wire.OtherConnections,
		Database:             wire.Database,
		ServerStartedAt:      wire.ServerStartedAt,
		InRecovery:           wire.InRecovery,
		Horizon:              wire.Horizon.holder(),
		Queues:               make(map[string]QueueSample, len(wire.Queues)),
	}
	for name, q := range wire.Queues {
		sample.Queues[name] = QueueSample{
			Pending: q.Pending, PendingCapped: q.PendingCapped,
			Scheduled: q.Scheduled, ScheduledCapped: q.ScheduledCapped,
			DueSoon: q.DueSoon, Running: q.Running, Dead: q.Dead,
			OldestAge: seconds(q.OldestAgeSeconds), Workers: q.Workers,
			Unhandled: q.Unhandled, UnhandledKind: q.UnhandledKind,
			Claimed: q.Claimed, Succeeded: q.Succeeded, Failed: q.Failed, Lost: q.Lost, Overdue: q.Overdue,
			Discarded: q.Discarded, Cancelled: q.Cancelled, ExecutionMillis: q.ExecutionMillis,
			PolicyGeneration: q.Generation, Suspended: q.Suspended,
		}
	}
	return sample, nil
}
