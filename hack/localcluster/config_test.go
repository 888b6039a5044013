package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testCluster(t *testing.T) *Cluster {
	t.Helper()
	c, err := NewCluster("jobqueue", "/state")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRenderContainerd(t *testing.T) {
	got, err := renderContainerd(containerdValues{
		State: "/state/x", Socket: "/state/x/c.sock", PauseImage: pauseImage, CNIPlugins: "/plugins", RestrictOOMScore: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"root = \"/state/x/containerd\"\n", "address = \"/state/x/c.sock\"\n", "sandbox_image = \"" + pauseImage + "\"\n",
		"restrict_oom_score_adj = true\n", "bin_dir = \"/plugins\"\n", "SystemdCgroup = false\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, got)
		}
	}
}

func TestRenderCNI(t *testing.T) {
	text, err := renderCNI("x", addressesFor("x"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Name    string
		Plugins []struct {
			Type   string
			IPMasq bool `json:"ipMasq"`
			IPAM   struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Plugins) != 1 || got.Plugins[0].IPMasq || got.Plugins[0].IPAM.Ranges[0][0].Subnet != addressesFor("x").Pods.String() {
		t.Errorf("unexpected network: %s", text)
	}
}

func TestRenderKubelet(t *testing.T) {
	c := testCluster(t)
	text, err := renderKubelet(c)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]any{
		"cgroupRoot":               "/jobqueue-localcluster-jobqueue",
		"containerRuntimeEndpoint": "unix:///state/jobqueue/containerd.sock",
		"failCgroupV1":             false,
		"podLogsDir":               "/state/jobqueue/pod-logs",
		"enforceNodeAllocatable":   []any{},
	} {
		if diff := cmp.Diff(want, got[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
}

func TestRenderPostgres(t *testing.T) {
	c := testCluster(t)
	got := renderPostgres(c, 42)
	for _, want := range []string{"max_connections = 42\n", "listen_addresses = '" + c.Addresses.Node.String() + ",127.0.0.1'\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, got)
		}
	}
	for _, unsafe := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if strings.Contains(got, unsafe) {
			t.Errorf("the configuration touches %s, which decides about durability", unsafe)
		}
	}
	for line := range strings.Lines(renderHBA(c.Addresses)) {
		if !strings.HasSuffix(line, " scram-sha-256\n") {
			t.Errorf("%q lets somebody in without a password", line)
		}
	}
}

func TestNewestPostgres(t *testing.T) {
	got := newestPostgres([]string{"/usr/lib/postgresql/9.6/bin/postgres", "/usr/lib/postgresql/15/bin/postgres", "/usr/lib/postgresql/8/bin/postgres"})
	if want := "/usr/lib/postgresql/15/bin/postgres"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLastLines(t *testing.T) {
	cases := map[string]struct {
		text string
		n    int
		want string
	}{
		"fewer":        {text: "a\nb\n", n: 5, want: "a\nb"},
		"more":         {text: "a\nb\nc\n", n: 2, want: "b\nc"},
		"all":          {text: "a\nb\nc\n", n: 0, want: "a\nb\nc"},
		"empty":        {text: "", n: 3, want: ""},
		"no last line": {text: "a\nb", n: 1, want: "b"},
	}
	for title, test := range cases {
		t.Run(title, func(t *testing.T) {
			if got := lastLines(test.text, test.n); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
