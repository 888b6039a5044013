package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// reapReport is the line that reap prints.
type reapReport struct {
	Returned       int64   `json:"returned"`
	Buried         int64   `json:"buried"`
	Promoted       int64   `json:"promoted"`
	WorkersRemoved int64   `json:"workersRemoved"`
	FinishedPurged int64   `json:"finishedPurged"`
	DeadPurged     int64   `json:"deadPurged"`
	Batches        int     `json:"batches"`
	Seconds        float64 `json:"seconds"`
}

func (r *reapReport) add(b queue.ReapResult) {
	r.Returned += b.Returned
	r.Buried += b.Buried
	r.Promoted += b.Promoted
	r.WorkersRemoved += b.WorkersRemoved
	r.FinishedPurged += b.FinishedPurged
	r.DeadPurged += b.DeadPurged
	r.Batches++
}

func newReapCommand(db *databaseFlags) *cobra.Command {
	var request queue.ReapRequest
	cmd := &cobra.Command{
		Use:   "reap",
		Short: "Take back expired runs and apply retention, once",
		Long: "Take back the runs of workers whose lease is over, promote scheduled jobs that are\n" +
			"due, and, with --retention, delete finished jobs and dead letters that are older than\n" +
			"their queue keeps them. It works in bounded batches until nothing is left, and prints\n" +
			"what it did as one line of JSON. Any number of reapers may run at once.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if request.Limit < 1 || request.Limit > 100_000 {
				return usageError("--batch is %d; allowed are 1 to 100000", request.Limit)
			}
			return db.with(cmd.Context(), nameReaper, func(client *queue.Client, conn *pgx.Conn) error {
				return reap(cmd, client, conn, request)
			})
		},
	}
	cmd.Flags().StringVar(&request.Queue, "queue", "", "reap this queue only (default all)")
	cmd.Flags().BoolVar(&request.Retention, "retention", false, "also delete what is past its retention")
	cmd.Flags().IntVar(&request.Limit, "batch", 1000, "rows of each kind of work in one transaction")
	return cmd
}

func reap(cmd *cobra.Command, client *queue.Client, conn *pgx.Conn, request queue.ReapRequest) error {
	begun := time.Now()
	var report reapReport
	var err error
	for more := true; more && err == nil; {
		var batch queue.ReapResult
		// Reapers that meet wait for each other, which at another level, such as a role may
		// have by default, would be an error.
		err = pgx.BeginTxFunc(cmd.Context(), conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			batch, err = client.Reap(cmd.Context(), tx, request)
			return err
		})
		if err == nil {
			report.add(batch)
			more = batch.More
		}
	}
	report.Seconds = time.Since(begun).Seconds()
	// What was done before an error is done, and said.
	line, encodeErr := json.Marshal(report)
	if encodeErr != nil {
		return encodeErr
	}
	fmt.Fprintln(cmd.OutOrStdout(), string(line))
	return err
}
