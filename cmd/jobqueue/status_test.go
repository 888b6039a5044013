package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestStatusTable(t *testing.T) {
	sample := queue.Sample{Queues: map[string]queue.QueueSample{
		"mails":  {Pending: 12, Running: 3, Scheduled: 10_000, ScheduledCapped: true, Dead: 1, OldestAge: 90 * time.Second, Workers: 2},
		"emails": {Suspended: true},
	}}
	cases := map[string]struct {
		sample  queue.Sample
		names   []string
		want    string
		wantErr string
	}{
		"all, by name": {sample: sample, want: "" +
			"QUEUE    PENDING   RUNNING   SCHEDULED   DEAD   OLDEST   WORKERS   SUSPENDED\n" +
			"emails   0         0         0           0      -        0         yes\n" +
			"mails    12        3         10000+      1      1m30s    2         no\n"},
		"one": {sample: sample, names: []string{"emails"}, want: "" +
			"QUEUE    PENDING   RUNNING   SCHEDULED   DEAD   OLDEST   WORKERS   SUSPENDED\n" +
			"emails   0         0         0           0      -        0         yes\n"},
		"kinds that nobody asks for": {sample: queue.Sample{Queues: map[string]queue.QueueSample{
			"mails": {Pending: 2, OldestAge: 90 * time.Second, Workers: 1, Unhandled: 2, UnhandledKind: "mail.send"},
		}}, want: "" +
			"QUEUE   PENDING   RUNNING   SCHEDULED   DEAD   OLDEST   WORKERS   SUSPENDED\n" +
			"mails   2         0         0           0      1m30s    1         no\n\n" +
			"queue mails: of its first 100 ready jobs, 2 have waited for a minute and are of kinds that no worker asks for, such as \"mail.send\"\n"},
		"an old session": {sample: queue.Sample{Horizon: &queue.HorizonHolder{
			Kind: queue.HolderSession, PID: 7, Application: "psql", User: "ada", Database: "shop", State: "active",
			Started: time.Unix(1, 0), Age: 754 * time.Second, XminAge: 48_211,
		}}, want: "" +
			"no queues\n\n" +
			"dead rows are kept by session 7 (application \"psql\", user \"ada\", database \"shop\", active)\n" +
			"for 12m34s, 48211 transactions; end its transaction, or the session: SELECT pg_terminate_backend(7)\n"},
		"a session whose age is hidden": {sample: queue.Sample{Horizon: &queue.HorizonHolder{Kind: queue.HolderSession, PID: 7, User: "ada", XminAge: 9, Hidden: true}}, want: "" +
			"no queues\n\n" +
			"dead rows are kept by session 7 (application \"\", user \"ada\", state and age hidden until the schema's owner is granted pg_read_all_stats)\n" +
			"for an unknown time, 9 transactions; end its transaction, or the session: SELECT pg_terminate_backend(7)\n"},
		"a short transaction": {sample: queue.Sample{Horizon: &queue.HorizonHolder{Kind: queue.HolderSession, PID: 7, Started: time.Unix(1, 0), Age: time.Second}}, want: "no queues\n"},
		"none":                {want: "no queues\n"},
		"unknown":             {sample: sample, names: []string{"x"}, wantErr: `queue "x" is not in the database`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			report, err := newStatusReport(tc.sample, tc.names)
			if tc.wantErr != "" {
				if err == nil || err.Error() != tc.wantErr {
					t.Errorf("error is %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := report.table(&out); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAge(t *testing.T) {
	cases := map[float64]string{0: "-", 0.25: "0.2s", 9.94: "9.9s", 61: "1m1s", 86_400: "24h0m0s", 200_000: "2d7h"}
	for seconds, want := range cases {
		if got := age(seconds); got != want {
			t.Errorf("age of %v s is %q, want %q", seconds, got, want)
		}
	}
}
