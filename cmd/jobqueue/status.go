package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// statusReport is what status prints with -o json.
type statusReport struct {
	TakenAt     time.Time         `json:"takenAt"`
	Connections connectionsReport `json:"connections"`
	Horizon     *horizonReport    `json:"horizon,omitempty"`
	Queues      []queueReport     `json:"queues"`
}

// horizonReport is what keeps dead rows from being removed at this moment. AgeSeconds
// is absent where PostgreSQL keeps no time, or hides it.
type horizonReport struct {
	Kind            queue.HolderKind `json:"kind"`
	Name            string           `json:"name,omitempty"`
	Database        string           `json:"database,omitempty"`
	PID             int              `json:"pid,omitempty"`
	Application     string           `json:"applicationName,omitempty"`
	User            string           `json:"user,omitempty"`
	State           string           `json:"state,omitempty"`
	AgeSeconds      *float64         `json:"ageSeconds,omitempty"`
	AgeTransactions int64            `json:"ageTransactions"`
	Hidden          bool             `json:"hidden,omitempty"`
	words           string
}

// horizonShown is the least age of a transaction that the table shows: on a busy
// database there always is one.
const horizonShown = time.Minute

func newHorizonReport(h *queue.HorizonHolder) *horizonReport {
	if h == nil {
		return nil
	}
	r := &horizonReport{
		Kind: h.Kind, Name: h.Name, Database: h.Database, PID: h.PID, Application: h.Application, User: h.User, State: h.State,
		AgeTransactions: h.XminAge, Hidden: h.Hidden,
	}
	since := "for an unknown time"
	if !h.Started.IsZero() {
		s := h.Age.Seconds()
		r.AgeSeconds, since = &s, "for "+age(s)
	}
	if h.Started.IsZero() || h.Age >= horizonShown {
		r.words = fmt.Sprintf("dead rows are kept by %s\n%s, %d transactions; %s", h, since, h.XminAge, h.Remedy())
	}
	return r
}

type connectionsReport struct {
	Max      int `json:"max"`
	Reserved int `json:"reserved"`
	Ours     int `json:"ours"`
	Others   int `json:"others"`
}

// queueReport is one queue. Counts stop at a cap; those that did say so.
type queueReport struct {
	Name             string  `json:"name"`
	Pending          int64   `json:"pending"`
	PendingCapped    bool    `json:"pendingCapped,omitempty"`
	Running          int64   `json:"running"`
	Scheduled        int64   `json:"scheduled"`
	ScheduledCapped  bool    `json:"scheduledCapped,omitempty"`
	Dead             int64   `json:"dead"`
	Unhandled        int64   `json:"unhandled,omitempty"`
	UnhandledKind    string  `json:"unhandledKind,omitempty"`
	OldestAgeSeconds float64 `json:"oldestAgeSeconds"`
	Workers          int     `json:"workers"`
	Suspended        bool    `json:"suspended"`
	Claimed          int64   `json:"claimedTotal"`
	Succeeded        int64   `json:"succeededTotal"`
	Failed           int64   `json:"failedTotal"`
	Lost             int64   `json:"lostTotal"`
	Overdue          int64   `json:"overdueTotal"`
	PolicyGeneration int64   `json:"policyGeneration"`
}

func newStatusCommand(db *databaseFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status [QUEUE...]",
		Short: "Show the queues: what waits, runs and is dead",
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "json" {
				return usageError("--output is %q; allowed are table and json", output)
			}
			return db.with(cmd.Context(), nameCLI, func(client *queue.Client, conn *pgx.Conn) error {
				sample, err := client.Sample(cmd.Context(), conn)
				if err != nil {
					return err
				}
				report, err := newStatusReport(sample, args)
				if err != nil {
					return err
				}
				if output == "json" {
					encoder := json.NewEncoder(cmd.OutOrStdout())
					encoder.SetIndent("", "  ")
					return encoder.Encode(report)
				}
				return report.table(cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// newStatusReport picks the named queues out of a sample, all if none is named.
func newStatusReport(s queue.Sample, names []string) (statusReport, error) {
	for _, name := range names {
		if _, ok := s.Queues[name]; !ok {
			return statusReport{}, fmt.Errorf("queue %q is not in the database", name)
		}
	}
	report := statusReport{
		TakenAt: s.TakenAt,
		Connections: connectionsReport{
			Max: s.MaxConnections, Reserved: s.ReservedConnections, Ours: s.OurConnections,
			Others: s.ElsewhereConnections + s.OtherConnections,
		},
		Horizon: newHorizonReport(s.Horizon),
		Queues:  []queueReport{},
	}
	for name, q := range s.Queues {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		report.Queues = append(report.Queues, queueReport{
			Name: name, Pending: q.Pending, PendingCapped: q.PendingCapped, Running: q.Running,
			Scheduled: q.Scheduled, ScheduledCapped: q.ScheduledCapped, Dead: q.Dead,
			OldestAgeSeconds: q.OldestAge.Seconds(), Workers: q.Workers, Suspended: q.Suspended,
			Claimed: q.Claimed, Succeeded: q.Succeeded, Failed: q.Failed, Lost: q.Lost, Overdue: q.Overdue,
			Unhandled: q.Unhandled, UnhandledKind: q.UnhandledKind,
			PolicyGeneration: q.PolicyGeneration,
		})
	}
	slices.SortFunc(report.Queues, func(a, b queueReport) int { return cmp.Compare(a.Name, b.Name) })
	return report, nil
}

func (r statusReport) table(out io.Writer) error {
	if err := r.queues(out); err != nil {
		return err
	}
	for _, q := range r.Queues {
		if q.Unhandled > 0 {
			if _, err := fmt.Fprintf(out, "\nqueue %s: of its first 100 ready jobs, %d have waited for a minute and are of kinds that no worker asks for, such as %q\n",
				q.Name, q.Unhandled, q.UnhandledKind); err != nil {
				return err
			}
		}
	}
	if r.Horizon == nil || r.Horizon.words == "" {
		return nil
	}
	_, err := fmt.Fprintln(out, "\n"+r.Horizon.words)
	return err
}

func (r statusReport) queues(out io.Writer) error {
	if len(r.Queues) == 0 {
		_, err := fmt.Fprintln(out, "no queues")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "QUEUE\tPENDING\tRUNNING\tSCHEDULED\tDEAD\tOLDEST\tWORKERS\tSUSPENDED")
	for _, q := range r.Queues {
		suspended := "no"
		if q.Suspended {
			suspended = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%d\t%s\n", q.Name, count(q.Pending, q.PendingCapped), q.Running,
			count(q.Scheduled, q.ScheduledCapped), q.Dead, age(q.OldestAgeSeconds), q.Workers, suspended)
	}
	return w.Flush()
}

// count marks a number that counting stopped at.
func count(n int64, capped bool) string {
	if capped {
		return strconv.FormatInt(n, 10) + "+"
	}
	return strconv.FormatInt(n, 10)
}

// age is a time span for people.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d <= 0:
		return "-"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", seconds)
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
