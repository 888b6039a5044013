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

func TestServersThatDoNotSuitAreRefused(t *testing.T) {
	type server struct {
		version  int
		encoding string
	}
	for s, want := range map[server]string{
		{140000, "UTF8"}:   "",
		{150018, "UTF8"}:   "",
		{180000, "UTF8"}:   "",
		{130022, "UTF8"}:   "the server is PostgreSQL 13; the queue needs 14 or newer",
		{150018, "LATIN1"}: "the database's encoding is LATIN1; allowed is UTF8, which CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0 gives",
	} {
		got := ""
		if err := supportedServer(s.version, s.encoding); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
