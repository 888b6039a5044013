package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNewCluster(t *testing.T) {
	cases := map[string]struct {
		name, root, wantError string
	}{
		"default":           {name: "jobqueue", root: defaultStateRoot},
		"longest name":      {name: strings.Repeat("a", 20), root: defaultStateRoot},
		"empty name":        {name: "", root: defaultStateRoot, wantError: "not usable"},
		"long name":         {name: strings.Repeat("a", 21), root: defaultStateRoot, wantError: "not usable"},
		"path as name":      {name: "../x", root: defaultStateRoot, wantError: "not usable"},
		"capital letters":   {name: "Jobs", root: defaultStateRoot, wantError: "not usable"},
		"ends with a dash":  {name: "jobs-", root: defaultStateRoot, wantError: "not usable"},
		"deep state":        {name: "a", root: "/" + strings.Repeat("deep/", 20), wantError: "shorter --state"},
		"starts with digit": {name: "1a", root: defaultStateRoot, wantError: "not usable"},
	}
	for title, test := range cases {
		t.Run(title, func(t *testing.T) {
			c, err := NewCluster(test.name, test.root)
			switch {
			case test.wantError == "" && err != nil:
				t.Fatal(err)
			case test.wantError == "":
				if want := filepath.Join(test.root, test.name); c.Dir != want {
					t.Errorf("state is %s, want %s", c.Dir, want)
				}
			case err == nil || !strings.Contains(err.Error(), test.wantError):
				t.Errorf("got error %v, want one with %q", err, test.wantError)
			}
		})
	}
}

func TestLock(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("clusters are for root only")
	}
	c, err := NewCluster("locked", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error)
	go func() {
		unlock, err := c.lock(t.Context())
		if err == nil {
			// A file that the first holder removed must not count as a lock.
			_, err = os.Stat(c.Dir + ".lock")
			unlock()
		}
		second <- err
	}()
	if err := os.Remove(c.Dir + ".lock"); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-second; err != nil {
		t.Errorf("the second holder: %v", err)
	}
}
