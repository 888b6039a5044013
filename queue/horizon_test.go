package queue

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSampleHorizon(t *testing.T) {
	started := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	cases := map[string]struct {
		raw  string
		want *HorizonHolder
	}{
		"an older schema": {`{}`, nil},
		"nobody":          {`{"horizon": null}`, nil},
		"a session": {`{"horizon": {"kind": "session", "name": null, "database": "shop", "pid": 7, "application_name": "psql", "usename": "ada",
			"state": "active", "xact_start": "2026-03-01T12:00:00+00:00", "age_seconds": 1.5, "xmin": "4294967295", "xmin_age": 3, "hidden": false}}`,
			&HorizonHolder{Kind: HolderSession, Database: "shop", PID: 7, Application: "psql", User: "ada", State: "active",
				Started: started, Age: 1500 * time.Millisecond, Xmin: 4294967295, XminAge: 3}},
		"a hidden one": {`{"horizon": {"kind": "session", "pid": 7, "state": null, "xact_start": null, "age_seconds": null, "xmin": "9", "hidden": true}}`,
			&HorizonHolder{Kind: HolderSession, PID: 7, Xmin: 9, Hidden: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseSample([]byte(tc.raw))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Horizon); diff != "" {
				t.Errorf("holder (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHorizonHolderWords(t *testing.T) {
	cases := map[string]struct {
		holder           HorizonHolder
		wantWho, wantEnd string
	}{
		"a session": {
			HorizonHolder{Kind: HolderSession, PID: 7, Application: "psql", User: "ada", Database: "shop", State: "idle in transaction"},
			`session 7 (application "psql", user "ada", database "shop", idle in transaction)`,
			`end its transaction, or the session: SELECT pg_terminate_backend(7)`,
		},
		"a hidden session": {
			HorizonHolder{Kind: HolderSession, PID: 7, User: "ada", Database: "shop", Hidden: true},
			`session 7 (application "", user "ada", database "shop", state and age hidden until the schema's owner is granted pg_read_all_stats)`,
			`end its transaction, or the session: SELECT pg_terminate_backend(7)`,
		},
		"a prepared transaction": {
			HorizonHolder{Kind: HolderPrepared, Name: "it's", User: "ada", Database: "shop", State: "prepared"},
			`prepared transaction "it's" (user "ada", database "shop")`,
			`COMMIT PREPARED or ROLLBACK PREPARED it in database "shop"`,
		},
		"a slot in use": {
			HorizonHolder{Kind: HolderSlot, Name: "replica1", PID: 9, Application: "walreceiver", User: "repl", State: "active"},
			`replication slot "replica1" (pid 9, application "walreceiver", user "repl", active)`,
			`end the long query on that standby, or set hot_standby_feedback = off there`,
		},
		"a slot left behind": {
			HorizonHolder{Kind: HolderSlot, Name: "replica1", State: "inactive"},
			`replication slot "replica1" (inactive)`,
			`bring its standby back, or drop it: SELECT pg_drop_replication_slot('replica1')`,
		},
		"a standby": {
			HorizonHolder{Kind: HolderStandby, PID: 9, Application: "walreceiver", User: "repl", State: "streaming"},
			`standby 9 (application "walreceiver", user "repl", streaming)`,
			`end the long query on that standby, or set hot_standby_feedback = off there`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.holder.String(); got != tc.wantWho {
				t.Errorf("it is called %s\nwant %s", got, tc.wantWho)
			}
			if got := tc.holder.Remedy(); got != tc.wantEnd {
				t.Errorf("remedy: %s\nwant %s", got, tc.wantEnd)
			}
		})
	}
}
