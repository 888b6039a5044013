package worker

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type embedded struct {
	Inner string `json:"inner"`
}

// shout has a decoder of its own.
type shout string

func (s *shout) UnmarshalJSON(data []byte) error {
	*s = shout(data) + "!"
	return nil
}

type everything struct {
	embedded
	Text    string            `json:"text"`
	Number  json.Number       `json:"number"`
	Raw     json.RawMessage   `json:"raw"`
	Quoted  int               `json:"quoted,string"`
	Bytes   []byte            `json:"bytes"`
	At      time.Time         `json:"at"`
	Pointer *int              `json:"pointer"`
	Map     map[string]any    `json:"map"`
	Keys    map[int]string    `json:"keys"`
	Array   [2]int            `json:"array"`
	Shout   shout             `json:"shout"`
	Labels  map[string]string `json:"labels"`
	Small   int8              `json:"small"`
}

// What a handler is given is what encoding/json makes of its payload, and so is the
// error when that makes nothing of it.
func TestDecodeIsEncodingJSON(t *testing.T) {
	cases := map[string]string{
		"null":          `null`,
		"empty":         `{}`,
		"text":          `{"text": "an \u00e4 and a \n, \"quoted\" \ud83d\ude00"}`,
		"case":          `{"TEXT": "names match in any case", "Inner": "embedded too"}`,
		"unknown":       `{"text": "a", "nobody": {"asked": ["for", 1]}}`,
		"number":        `{"number": 12345678901234567890.5, "text": "beside it"}`,
		"raw":           `{"raw": {"b": [1, 2], "a": null}}`,
		"quoted":        `{"quoted": "7"}`,
		"bytes":         `{"bytes": "aGVsbG8="}`,
		"time":          `{"at": "2026-01-02T03:04:05.000006+07:00"}`,
		"nulls":         `{"text": null, "pointer": null, "map": null, "array": null}`,
		"pointer":       `{"pointer": 5}`,
		"nested":        `{"map": {"x": [1.5, true, null, {"y": "z"}]}, "keys": {"1": "one"}}`,
		"short array":   `{"array": [1]}`,
		"long array":    `{"array": [1, 2, 3]}`,
		"own decoder":   `{"shout": {"loud": 1}}`,
		"wrong type":    `{"text": "set before", "small": "text", "labels": {"set": "after"}}`,
		"out of range":  `{"small": 1000}`,
		"not an object": `[1, 2]`,
		"bad time":      `{"at": "yesterday"}`,
		"not JSON":      `{"text": `,
	}
	for name, payload := range cases {
		t.Run(name, func(t *testing.T) {
			var got, want everything
			gotErr, wantErr := decode([]byte(payload), &got), json.Unmarshal([]byte(payload), &want)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(everything{}, embedded{})); diff != "" {
				t.Errorf("decoded differently (-encoding/json +decode):\n%s", diff)
			}
			if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
				t.Errorf("error %v, want %v", gotErr, wantErr)
			}
			var wanted, had *json.UnmarshalTypeError
			if errors.As(wantErr, &wanted) != errors.As(gotErr, &had) {
				t.Errorf("error %T, want %T", gotErr, wantErr)
			}
		})
	}
}
