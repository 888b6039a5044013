package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestTrimFile(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"descriptions below the property go, its own and its siblings' stay": {
			in:   "properties: {template: {description: mine, properties: {spec: {description: theirs, type: object}}}, slots: {description: ours}}",
			want: "properties: {template: {description: mine, properties: {spec: {type: object}}}, slots: {description: ours}}",
		},
		"a property named description stays": {
			in:   "properties: {template: {properties: {description: {type: string, description: text}}}}",
			want: "properties: {template: {properties: {description: {type: string}}}}",
		},
		"lists are walked": {
			in:   "versions: [{properties: {template: {properties: {a: {items: {description: x, type: string}}}}}}]",
			want: "versions: [{properties: {template: {properties: {a: {items: {type: string}}}}}}]",
		},
		"a file without the property is left as it is": {
			in:   "properties: {slots: {description: ours}}",
			want: "properties: {slots: {description: ours}}",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "crd.yaml")
			if err := os.WriteFile(file, []byte(tc.in), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := trimFile(file, "template"); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := yaml.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("trimFile: -want +got\n%s", diff)
			}
		})
	}
}
