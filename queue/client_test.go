package queue

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestValidateSchema(t *testing.T) {
	cases := map[string]struct {
		name    string
		wantErr string // "" when the name is allowed
	}{
		"default":          {name: "jobqueue"},
		"one letter":       {name: "q"},
		"underscore first": {name: "_q"},
		"digits":           {name: "q2_3"},
		"keyword":          {name: "select"},
		"longest":          {name: strings.Repeat("a", 63)},
		"empty":            {name: "", wantErr: "schema is empty"},
		"too long":         {name: strings.Repeat("a", 64), wantErr: "has 64 bytes; allowed are at most 63"},
		"digit first":      {name: "2q", wantErr: `has '2' at byte 0`},
		"upper case":       {name: "Jobs", wantErr: `has 'J' at byte 0`},
		"quote":            {name: `a"b`, wantErr: `at byte 1`},
		"apostrophe":       {name: "a'b", wantErr: `at byte 1`},
		"dot":              {name: "a.b", wantErr: `at byte 1`},
		"unicode":          {name: "größe", wantErr: `has 'ö' at byte 2`},
		"bad utf-8":        {name: "a\xff", wantErr: `at byte 1`},
		"nul":              {name: "a\x00", wantErr: `at byte 1`},
		"reserved prefix":  {name: "pg_jobs", wantErr: "reserved by PostgreSQL"},
		"reserved name":    {name: "information_schema", wantErr: "reserved by PostgreSQL"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := ValidateSchema(tc.name)
			switch {
			case tc.wantErr == "" && err != nil:
				t.Fatalf("ValidateSchema(%q) = %v, want nil", tc.name, err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)):
				t.Fatalf("ValidateSchema(%q) = %v, want an error with %q", tc.name, err, tc.wantErr)
			case err != nil && !errors.Is(err, ErrInvalidArgument):
				t.Fatalf("ValidateSchema(%q) = %v, want ErrInvalidArgument", tc.name, err)
			}
		})
	}
}

func TestNew(t *testing.T) {
	c, err := New("")
	if err != nil || c.Schema() != DefaultSchema {
		t.Fatalf("New(\"\") = %v, %v; want the schema %s", c, err, DefaultSchema)
	}
	if _, err := New("no good"); !errors.Is(err, ErrInvalidArgument) {
		t.Fatalf("New(%q): %v, want ErrInvalidArgument", "no good", err)
	}
}

// FuzzSchema (T5): whatever is accepted is safe to put into the migrations, as
// an identifier, within a literal, and bare.
func FuzzSchema(f *testing.F) {
	for _, seed := range []string{"", "jobqueue", "a'b", `a"b`, "pg_x", "x;y", "ü", "a\x00", "{{name}}", strings.Repeat("z", 70)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		c, err := New(name)
		if err != nil {
			if !errors.Is(err, ErrInvalidArgument) {
				t.Fatalf("New(%q): %v, want ErrInvalidArgument", name, err)
			}
			return
		}
		schema := c.Schema()
		if strings.ContainsAny(schema, "'\"\\{};-. \t\r\n\x00") || len(schema) > 63 || schema != strings.ToLower(schema) {
			t.Fatalf("New(%q) accepted the schema %q", name, schema)
		}
		if quoted := (pgx.Identifier{schema}).Sanitize(); quoted != `"`+schema+`"` {
			t.Fatalf("schema %q needs quoting: %s", schema, quoted)
		}
	})
}
