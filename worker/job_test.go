package worker

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
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

// loud has a decoder that encoding/json does not know.
type loud string

func (l *loud) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*l = "LOUD"
	return d.SkipValue()
}

type everything struct {
	embedded
	Text    string            `json:"text"`
	Raw     json.RawMessage   `json:"raw"`
	Quoted  int               `json:"quoted,string"`
	Twice   string            `json:"twice,omitempty,string"`
	Perhaps *bool             `json:"perhaps,string,omitzero"`
	Bytes   []byte            `json:"bytes"`
	Sum     [4]byte           `json:"sum"`
	At      time.Time         `json:"at"`
	For     time.Duration     `json:"for"`
	Pointer *int              `json:"pointer"`
	Map     map[string]any    `json:"map"`
	Keys    map[int]string    `json:"keys"`
	Array   [2]int            `json:"array"`
	Shout   shout             `json:"shout"`
	Labels  map[string]string `json:"labels"`
	Small   int8              `json:"small"`
	Dashed  string            `json:"da-sh.ed:x y"`
	Hidden  string            `json:"-"`
	Next    *everything       `json:"next"`
	Many    []everything      `json:"many"`
}

// peculiar has what a mirror may take otherwise.
type peculiar[T any] struct {
	Text  string `json:"text"`
	Thing T
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
		"raw":           `{"raw": {"b": [1, 2], "a": null}}`,
		"quoted":        `{"quoted": "7"}`,
		"quoted text":   `{"twice": "\"so\""}`,
		"not quoted":    `{"twice": "so"}`,
		"quoted bool":   `{"perhaps": "true"}`,
		"bare bool":     `{"perhaps": true}`,
		"sum":           `{"sum": [1, 2, 3, 4]}`,
		"sum as text":   `{"sum": "AQIDBA=="}`,
		"duration":      `{"for": 1500000000}`,
		"as text":       `{"for": "1.5s"}`,
		"odd name":      `{"da-sh.ed:x y": "a", "dashed": "b", "hidden": "c", "-": "d"}`,
		"in itself":     `{"next": {"text": "a", "many": [{"text": "b"}, {"next": {}}]}}`,
		"twice":         `{"text": "a", "text": "b", "map": {"x": {"y": 1}}, "map": {"x": {"z": 2}}}`,
		"not UTF-8":     "{\"text\": \"a\xffb\"}",
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
			sameDecoded[everything](t, payload)
		})
	}
}

func TestDecodeIsEncodingJSONForPeculiarTypes(t *testing.T) {
	type strict struct {
		N int `json:"n,case:strict"`
	}
	type ignore struct {
		LongName int `json:"longname,case:ignore"`
	}
	type formatted struct {
		At time.Time `json:"at,format:DateOnly"`
	}
	type inner struct{ A int }
	type embeds struct {
		In inner `json:",embed"`
	}
	type inlines struct {
		In inner `json:",inline"`
	}
	type unknown struct {
		Rest map[string]any `json:",unknown"`
	}
	type quotedName struct {
		A int `json:"'b'"`
	}
	type symbol struct {
		A int `json:"\u2192"`
	}
	type dash struct {
		A int `json:"-,"` //nolint:staticcheck // the odd name is what is tested
	}
	cases := map[string]func(t *testing.T){
		"number":              func(t *testing.T) { sameDecoded[peculiar[json.Number]](t, `{"Thing": 12345678901234567890.5}`) },
		"not a number":        func(t *testing.T) { sameDecoded[peculiar[json.Number]](t, `{"Thing": "abc"}`) },
		"number in a list":    func(t *testing.T) { sameDecoded[peculiar[[]*json.Number]](t, `{"Thing": ["abc"]}`) },
		"number in a map":     func(t *testing.T) { sameDecoded[peculiar[map[string]json.Number]](t, `{"Thing": {"a": "b"}}`) },
		"number as a key":     func(t *testing.T) { sameDecoded[peculiar[map[json.Number]int]](t, `{"Thing": {"a": 1}}`) },
		"number by itself":    func(t *testing.T) { sameDecoded[json.Number](t, `"abc"`) },
		"case:strict":         func(t *testing.T) { sameDecoded[peculiar[strict]](t, `{"Thing": {"N": 1}}`) },
		"case:ignore":         func(t *testing.T) { sameDecoded[peculiar[ignore]](t, `{"Thing": {"long_name": 1}}`) },
		"format":              func(t *testing.T) { sameDecoded[peculiar[formatted]](t, `{"Thing": {"at": "2026-01-02"}}`) },
		"embed":               func(t *testing.T) { sameDecoded[peculiar[embeds]](t, `{"Thing": {"A": 1, "In": {"A": 2}}}`) },
		"inline":              func(t *testing.T) { sameDecoded[peculiar[inlines]](t, `{"Thing": {"A": 1, "In": {"A": 2}}}`) },
		"unknown":             func(t *testing.T) { sameDecoded[peculiar[unknown]](t, `{"Thing": {"A": 1, "Rest": {"A": 2}}}`) },
		"quoted name":         func(t *testing.T) { sameDecoded[peculiar[quotedName]](t, `{"Thing": {"b": 1, "A": 2, "'b'": 3}}`) },
		"name of a symbol":    func(t *testing.T) { sameDecoded[peculiar[symbol]](t, `{"Thing": {"\u2192": 1, "A": 2}}`) },
		"named dash":          func(t *testing.T) { sameDecoded[peculiar[dash]](t, `{"Thing": {"-": 1, "A": 2}}`) },
		"decoder of the next": func(t *testing.T) { sameDecoded[peculiar[loud]](t, `{"Thing": "quiet"}`) },
		"anything":            func(t *testing.T) { sameDecoded[any](t, `{"a": [1, "b"]}`) },
	}
	for name, run := range cases {
		t.Run(name, run)
	}
	if !decodesAlike(reflect.TypeFor[everything](), map[reflect.Type]bool{}) {
		t.Error("an ordinary type is decoded the slow way")
	}
}

// sameDecoded compares what encoding/json makes of a payload with what a handler gets.
func sameDecoded[T any](t *testing.T, payload string) {
	t.Helper()
	var got, want T
	gotErr, wantErr := decoder[T]()([]byte(payload), &got), json.Unmarshal([]byte(payload), &want)
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
}
