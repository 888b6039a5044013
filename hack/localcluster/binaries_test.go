package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuildFlags(t *testing.T) {
	want := []string{"-tags", "components", "-trimpath", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 " +
		"-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"}
	cases := map[string]string{
		"in a block":  "module x\n\nrequire (\n\tk8s.io/kubectl v0.0.0\n\tk8s.io/kubernetes v1.36.3\n)\n",
		"on one line": "module x\n\nrequire k8s.io/kubernetes v1.36.3\n",
	}
	for title, goMod := range cases {
		t.Run(title, func(t *testing.T) {
			got, err := buildFlags(goMod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := buildFlags("module x\n"); err == nil {
		t.Error("a go.mod without Kubernetes was taken")
	}
}

func TestCacheKey(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := func(files, flags []string) string {
		key, err := cacheKey(files, flags)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	one, two := file("go.mod", "ab"), file("go.sum", "c")
	base := key([]string{one, two}, []string{"-trimpath"})
	if again := key([]string{one, two}, []string{"-trimpath"}); again != base {
		t.Errorf("the same input gave %s and %s", base, again)
	}
	seen := map[string]string{base: "the base"}
	for what, other := range map[string]string{
		"no flags":              key([]string{one, two}, nil),
		"other flags":           key([]string{one, two}, []string{"-trimpath", "-race"}),
		"flags cut differently": key([]string{one, two}, []string{"-trim", "path"}),
		"a file less":           key([]string{one}, []string{"-trimpath"}),
	} {
		if before, taken := seen[other]; taken {
			t.Errorf("%s has the key of %s", what, before)
		}
		seen[other] = what
	}
	// The same bytes, but another file ends earlier.
	file("go.mod", "a")
	file("go.sum", "bc")
	if other := key([]string{one, two}, []string{"-trimpath"}); other == base {
		t.Error("content moved from one file to another has the same key")
	}
}

func TestBuildOnce(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("JOBQUEUE_CACHE", cache)
	failure := errors.New("no luck")
	if _, err := buildOnce(t.Context(), "x", func(string) error { return failure }); !errors.Is(err, failure) {
		t.Fatalf("got error %v, want %v", err, failure)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "x*")); len(left) > 0 {
		t.Errorf("a failed build left %v", left)
	}
	builds := 0
	for range 2 {
		dir, err := buildOnce(t.Context(), "x", func(dir string) error {
			builds++
			return os.WriteFile(filepath.Join(dir, "kube"), nil, 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "kube")); err != nil {
			t.Error(err)
		}
	}
	if builds != 1 {
		t.Errorf("built %d times, want once", builds)
	}
}

func TestSourceDir(t *testing.T) {
	working, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("from the repository's root", func(t *testing.T) {
		t.Chdir(filepath.Join(working, "..", ".."))
		if got, err := sourceDir(); err != nil || got != working {
			t.Errorf("got %q, %v; want %q", got, err, working)
		}
	})
	t.Run("a wrong variable", func(t *testing.T) {
		t.Setenv(sourceVariable, t.TempDir())
		if _, err := sourceDir(); err == nil || !strings.Contains(err.Error(), sourceVariable) {
			t.Errorf("got error %v, want one that names %s", err, sourceVariable)
		}
	})
}
