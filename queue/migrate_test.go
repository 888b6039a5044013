package queue

import (
	"strings"
	"testing"
)

func TestMigrations(t *testing.T) {
	c, err := New("some_schema")
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.migrations()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != LatestVersion {
		t.Fatalf("%d versions, want LatestVersion = %d", len(all), LatestVersion)
	}
	for i, m := range all {
		if m.version != i+1 {
			t.Errorf("version %d at place %d: a number is missing or doubled", m.version, i)
		}
		if strings.Contains(m.sql, "{{") {
			t.Errorf("version %d has a placeholder left", m.version)
		}
		// Migrations must not name a schema of their own but the system's.
		if strings.Contains(m.sql, " jobqueue.") || strings.Contains(m.sql, `"jobqueue"`) {
			t.Errorf("version %d names the default schema", m.version)
		}
	}
	other, err := New("other")
	if err != nil {
		t.Fatal(err)
	}
	if c.lockKey() == other.lockKey() {
		t.Error("two schemas share a lock")
	}
}

func TestServersThatAreTooOldAreRefused(t *testing.T) {
	for version, want := range map[int]string{
		140000: "", 150018: "", 180000: "", 130022: "the server is PostgreSQL 13; the queue needs 14 or newer",
	} {
		got := ""
		if err := supportedServer(version); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("version %d: %q, want %q", version, got, want)
		}
	}
}
