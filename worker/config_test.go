package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfigFromEnv(t *testing.T) {
	minimal := map[string]string{EnvDatabaseURL: "postgres://db", EnvQueue: "emails"}
	with := func(pairs ...string) map[string]string {
		env := map[string]string{}
		for k, v := range minimal {
			env[k] = v
		}
		for i := 0; i < len(pairs); i += 2 {
			env[pairs[i]] = pairs[i+1]
		}
		return env
	}
	defaults := Config{
		DatabaseURL: "postgres://db", Schema: "jobqueue", Queue: "emails", Slots: 10, PoolSize: 3,
		Grace: 90 * time.Second, HTTPAddr: ":8080", PollInterval: time.Second, PollMax: 2 * time.Second,
	}
	all := defaults
	all.Schema, all.Slots, all.PoolSize = "other", 1000, 2
	all.PodName, all.PodNamespace = "emails-1", "shop"
	all.Grace, all.HTTPAddr, all.DisableListen = 5*time.Second, "127.0.0.1:0", true
	all.RecycleJobs, all.RecycleAge = 1000, time.Hour
	all.PollInterval, all.PollMax = 200*time.Millisecond, 400*time.Millisecond

	cases := map[string]struct {
		env        map[string]string
		want       Config
		wantErrors []string
	}{
		"defaults":       {env: minimal, want: defaults},
		"empty is unset": {env: with(EnvSlots, "", EnvSchema, ""), want: defaults},
		"everything": {
			env: with(EnvSchema, "other", EnvSlots, "1000", EnvPoolSize, "2", EnvPodName, "emails-1",
				EnvPodNamespace, "shop", EnvGraceSeconds, "5", EnvHTTPAddr, "127.0.0.1:0", EnvListen, "false",
				EnvRecycleJobs, "1000", EnvRecycleSeconds, "3600", EnvPollMillis, "200"),
			want: all,
		},
		"all that is missing at once": {
			env: map[string]string{},
			wantErrors: []string{
				"JOBQUEUE_DATABASE_URL: allowed is a PostgreSQL connection string; it is not set",
				"JOBQUEUE_QUEUE: allowed is the name of the queue to serve; it is not set",
			},
		},
		"too many slots": {
			env: with(EnvSlots, "1001"), wantErrors: []string{`JOBQUEUE_SLOTS is "1001": allowed is a whole number from 1 to 1000`},
		},
		"no slots": {
			env: with(EnvSlots, "0"), wantErrors: []string{`JOBQUEUE_SLOTS is "0": allowed`},
		},
		"a listener alone is no pool": {
			env: with(EnvPoolSize, "1"), wantErrors: []string{`JOBQUEUE_POOL_SIZE is "1": allowed is a whole number from 2`},
		},
		"not a number": {
			env: with(EnvGraceSeconds, "90s"), wantErrors: []string{`JOBQUEUE_GRACE_SECONDS is "90s": allowed is a whole number from 1 to 172800`},
		},
		"not a truth value": {
			env: with(EnvListen, "nope"), wantErrors: []string{`JOBQUEUE_LISTEN is "nope": allowed is true or false`},
		},
		"not an address": {
			env: with(EnvHTTPAddr, "8080"), wantErrors: []string{`JOBQUEUE_HTTP_ADDR is "8080": allowed is host:port, such as ":8080"`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := configFrom(func(key string) (string, bool) { v, ok := tc.env[key]; return v, ok })
			for _, want := range tc.wantErrors {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error is %v, want it to contain %q", err, want)
				}
			}
			if len(tc.wantErrors) > 0 {
				var config *ConfigError
				if !errors.As(err, &config) {
					t.Errorf("error is %T, want a *ConfigError in it", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfigWithDefaults(t *testing.T) {
	cases := map[string]struct {
		cfg       Config
		wantError string
	}{
		"minimal":        {cfg: Config{Queue: "q"}},
		"no queue":       {cfg: Config{}, wantError: "Queue: allowed is the name of the queue"},
		"negative slots": {cfg: Config{Queue: "q", Slots: -1}, wantError: `Slots is "-1": allowed is a whole number from 1 to 1000`},
		"short grace":    {cfg: Config{Queue: "q", Grace: time.Millisecond}, wantError: `Grace is "1ms": allowed is a duration from 1s to 48h0m0s`},
		"max below poll": {cfg: Config{Queue: "q", PollInterval: time.Second, PollMax: time.Millisecond}, wantError: `PollMax is "1ms"`},
		"negative age":   {cfg: Config{Queue: "q", RecycleAge: -1}, wantError: `RecycleAge is "-1ns"`},
		"slow poll only": {cfg: Config{Queue: "q", PollInterval: time.Minute}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := tc.cfg.withDefaults()
			switch {
			case tc.wantError == "" && err != nil:
				t.Fatal(err)
			case tc.wantError == "" && (got.Slots != DefaultSlots || got.PollMax < got.PollInterval):
				t.Errorf("config is %+v, want defaults filled in", got)
			case tc.wantError != "" && (err == nil || !strings.Contains(err.Error(), tc.wantError)):
				t.Errorf("error is %v, want it to contain %q", err, tc.wantError)
			}
		})
	}
}
