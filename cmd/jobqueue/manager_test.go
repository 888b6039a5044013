package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestManagerFlags(t *testing.T) {
	cases := map[string]struct {
		args []string
		want string
	}{
		"an unknown pull policy": {[]string{"--reaper-image-pull-policy", "Sometimes"}, "--reaper-image-pull-policy is \"Sometimes\": allowed are Always, IfNotPresent and Never"},
		"an unknown log level":   {[]string{"--log-level", "loud"}, "--log-level is \"loud\": allowed are debug, info, warn and error"},
		"an unknown log format":  {[]string{"--log-format", "xml"}, "--log-format is \"xml\": allowed are json and text"},
		"an argument":            {[]string{"now"}, "unknown command \"now\""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cmd := newManagerCommand()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(tc.args)
			if err := cmd.ExecuteContext(context.Background()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestManagerTakesItsImageAndNamespacesFromWhereItRuns(t *testing.T) {
	t.Setenv("OPERATOR_IMAGE", "registry.example/jobqueue:1")
	t.Setenv("POD_NAMESPACE", "jobqueue-system")
	cmd := newManagerCommand()
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
	cmd.SetArgs([]string{"--watch-namespaces", "a,b", "--namespace", "c"})
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"operator-image": "registry.example/jobqueue:1", "leader-election-namespace": "jobqueue-system",
		"watch-namespaces": "[a,b]", "namespace": "[c]",
	} {
		if got := cmd.Flag(flag).Value.String(); got != want {
			t.Errorf("--%s is %q, want %q", flag, got, want)
		}
	}
}

func TestManagerLogger(t *testing.T) {
	var out bytes.Buffer
	f := &managerFlags{logLevel: "info", logFormat: "json"}
	log := f.logger(&out)
	log.Info("seen", "key", "value")
	log.V(1).Info("unseen")
	if text := out.String(); !strings.Contains(text, `"msg":"seen","key":"value"`) || strings.Contains(text, "unseen") {
		t.Errorf("log: %s", text)
	}
}
