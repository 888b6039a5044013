package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	mountsV1 = `30 20 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
`
	mountPids    = "34 30 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
	mountUnified = "35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n"
	mountV2      = "36 30 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestUsedCgroups(t *testing.T) {
	v1 := []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"}
	cases := map[string]struct {
		mountinfo string
		want      []string
		wantError string
	}{
		"version 1":               {mountinfo: mountsV1 + mountPids, want: v1},
		"both versions":           {mountinfo: mountUnified + mountsV1 + mountPids, want: v1},
		"version 2":               {mountinfo: mountV2, want: []string{"/sys/fs/cgroup"}},
		"a controller too few":    {mountinfo: mountsV1, wantError: "pids"},
		"none":                    {mountinfo: "1 2 0:1 / / rw - ext4 /dev/vda rw\n", wantError: "no control groups"},
		"version 2 but elsewhere": {mountinfo: mountUnified, wantError: "no control groups"},
	}
	for title, test := range cases {
		t.Run(title, func(t *testing.T) {
			used, err := usedCgroups(parseCgroupMounts(test.mountinfo))
			if test.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantError) {
					t.Fatalf("got error %v, want one with %q", err, test.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, mount := range used {
				got = append(got, mount.Path)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("hierarchies (-want +got):\n%s", diff)
			}
		})
	}
}
