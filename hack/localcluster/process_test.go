package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 98765 1000 200 18446744073709551615"
	cases := map[string]struct {
		stat      string
		wantState byte
		wantTicks uint64
		wantError bool
	}{
		"plain":               {stat: "42 (etcd)" + rest, wantState: 'S', wantTicks: 98765},
		"name with spaces":    {stat: "42 (tmux: server)" + rest, wantState: 'S', wantTicks: 98765},
		"name with brackets":  {stat: "42 (a) R 1 (b)" + rest, wantState: 'S', wantTicks: 98765},
		"zombie":              {stat: "42 (x) Z 1 2 3 4 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0", wantState: 'Z', wantTicks: 5},
		"empty":               {stat: "", wantError: true},
		"short":               {stat: "42 (etcd) S 1 2", wantError: true},
		"start is no number":  {stat: "42 (x) S 1 2 3 4 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 soon 0 0", wantError: true},
		"name is not closed":  {stat: "42 (etcd S 1 2 3", wantError: true},
		"ends after the name": {stat: "42 (etcd)", wantError: true},
	}
	for title, test := range cases {
		t.Run(title, func(t *testing.T) {
			state, ticks, err := parseStat([]byte(test.stat))
			if (err != nil) != test.wantError {
				t.Fatalf("got error %v, want one: %v", err, test.wantError)
			}
			if err == nil && (state != test.wantState || ticks != test.wantTicks) {
				t.Errorf("got state %c started at %d, want %c at %d", state, ticks, test.wantState, test.wantTicks)
			}
		})
	}
}

func TestIdentityOfAnotherProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	identity, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !identity.Alive() {
		t.Error("a living process does not count as alive")
	}
	// The same id, given to a process that started at another time or boot.
	later, reboot := identity, identity
	later.StartTicks++
	reboot.BootID = "another"
	for what, other := range map[string]Identity{"a later process": later, "a process before a reboot": reboot, "no process": {}} {
		if other.Alive() {
			t.Errorf("%s counts as alive", what)
		}
		if err := other.Signal(syscall.SIGKILL); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !identity.Alive() {
		t.Fatal("a signal meant for another process has ended this one")
	}
	if err := identity.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Nobody has collected it yet: a process that has ended is not alive.
	if !identity.Wait(10 * time.Second) {
		t.Error("the process still counts as alive")
	}
	_ = cmd.Wait()
}

func TestIdentityFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run", "x.json")
	if got := loadJSON[Identity](file); got != (Identity{}) {
		t.Errorf("a missing file gave %v", got)
	}
	want := Identity{PID: 1, StartTicks: 2, BootID: "3"}
	if err := saveJSON(file, want); err != nil {
		t.Fatal(err)
	}
	if got := loadJSON[Identity](file); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	// What a crash in the middle of writing leaves.
	if err := os.WriteFile(file, []byte(`{"pid": 1, "startTi`), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := loadJSON[Identity](file); got != (Identity{}) {
		t.Errorf("a damaged file gave %v", got)
	}
}
