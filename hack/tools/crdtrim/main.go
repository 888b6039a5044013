// Command crdtrim removes the descriptions below one property of CRD files, in place.
//
// A CRD that embeds a whole pod template carries half a megabyte of the Kubernetes
// API's own documentation, more than the 262,144 bytes that client-side
// `kubectl apply` can keep in its annotation. Our own fields keep their descriptions.
//
// Usage: crdtrim PROPERTY FILE...
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: crdtrim PROPERTY FILE...")
		os.Exit(2)
	}
	for _, file := range os.Args[2:] {
		if err := trimFile(file, os.Args[1]); err != nil {
			fmt.Fprintf(os.Stderr, "crdtrim: %s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

func trimFile(file, property string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc any
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return err
	}
	below(doc, property)
	out, err := yaml.Marshal(doc)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append([]byte("---\n"), out...), 0o644)
}

// below walks a schema to every property of the given name and strips its children.
func below(node any, property string) {
	switch n := node.(type) {
	case map[string]any:
		for key, child := range n {
			if key == "properties" {
				if props, ok := child.(map[string]any); ok {
					if target, ok := props[property].(map[string]any); ok {
						strip(target["properties"])
						continue
					}
				}
			}
			below(child, property)
		}
	case []any:
		for _, child := range n {
			below(child, property)
		}
	}
}

// strip removes every schema description under node. A property that is itself named
// "description" holds a schema, not a text, and stays.
func strip(node any) {
	switch n := node.(type) {
	case map[string]any:
		if _, isText := n["description"].(string); isText {
			delete(n, "description")
		}
		for _, child := range n {
			strip(child)
		}
	case []any:
		for _, child := range n {
			strip(child)
		}
	}
}
