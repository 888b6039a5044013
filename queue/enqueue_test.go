package queue

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMarshalPayload(t *testing.T) {
	cases := map[string]struct {
		payload any
		want    string
		wantErr bool
	}{
		"nil":              {payload: nil, want: "null"},
		"struct":           {payload: struct{ A int }{1}, want: `{"A":1}`},
		"raw":              {payload: json.RawMessage(`{"a" : 1}`), want: `{"a" : 1}`},
		"empty raw":        {payload: json.RawMessage(nil), want: "null"},
		"bad raw":          {payload: json.RawMessage(`{`), wantErr: true},
		"unmarshallable":   {payload: make(chan int), wantErr: true},
		"nul":              {payload: "a\x00", wantErr: true},
		"nul in a key":     {payload: map[string]int{"\x00": 1}, wantErr: true},
		"escaped escape":   {payload: `\u0000`, want: `"\\u0000"`},
		"both":             {payload: json.RawMessage(`"\\u0000 \u0000"`), wantErr: true},
		"three slashes":    {payload: json.RawMessage(`"\\\u0000"`), wantErr: true},
		"other low escape": {payload: "\x01", want: `"\u0001"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := marshalPayload(tc.payload)
			if (err != nil) != tc.wantErr || got != tc.want {
				t.Fatalf("marshalPayload(%v) = %q, %v; want %q, error %t", tc.payload, got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestEnqueueArgs(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678901234, time.FixedZone("", 3600))
	text := "2030-01-02T02:04:05.678901Z"
	cases := map[string]struct {
		jobs    []NewJob
		want    []any
		wantErr error
	}{
		"defaults are sent as NULL": {
			jobs: []NewJob{{Kind: "a"}, {Kind: "b", Payload: 1}},
			want: []any{"q", []string{"a", "b"}, []string{"null", "1"}, nil, nil, nil, nil},
		},
		"everything": {
			jobs: []NewJob{{Kind: "a", Priority: -1, Delay: 1500 * time.Millisecond, MaxAttempts: 3}, {Kind: "b", RunAt: at}},
			want: []any{"q", []string{"a", "b"}, []string{"null", "null"}, []int16{-1, 0}, []float64{1.5, 0}, []*string{nil, &text}, []int32{3, 0}},
		},
		"delay and time": {
			jobs:    []NewJob{{Kind: "a", Delay: 1, RunAt: at}},
			wantErr: ErrInvalidArgument,
		},
		"attempts beyond an integer": {
			jobs:    []NewJob{{Kind: "a", MaxAttempts: 1 << 32}},
			wantErr: ErrInvalidArgument,
		},
		"kind that is no UTF-8": {jobs: []NewJob{{Kind: "\xff"}}, wantErr: ErrInvalidArgument},
		"kind with NUL":         {jobs: []NewJob{{Kind: "a\x00"}}, wantErr: ErrInvalidArgument},
		"payload": {
			jobs:    []NewJob{{Kind: "a", Payload: func() {}}},
			wantErr: ErrInvalidPayload,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := enqueueArgs("q", tc.jobs)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzPayload: what is accepted as a payload is JSON without a NUL in it, and
// what encoding/json decodes to a string with one is refused.
func FuzzPayload(f *testing.F) {
	for _, seed := range []string{`{}`, `"\u0000"`, `"\\u0000"`, `{"\\\u0000":1}`, "", "nul", "\"\\"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, err := marshalPayload(json.RawMessage(raw))
		if err != nil {
			return
		}
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatalf("accepted %q: %v", text, err)
		}
		if hasNUL(value) {
			t.Fatalf("accepted %q, which holds a NUL", text)
		}
	})
}

func hasNUL(value any) bool {
	switch v := value.(type) {
	case string:
		for _, r := range v {
			if r == 0 {
				return true
			}
		}
	case []any:
		for _, e := range v {
			if hasNUL(e) {
				return true
			}
		}
	case map[string]any:
		for k, e := range v {
			if hasNUL(k) || hasNUL(e) {
				return true
			}
		}
	}
	return false
}
