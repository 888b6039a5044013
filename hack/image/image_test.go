package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const testTag = "docker.io/jobqueue/jobqueue:dev"

// writeFile makes a file for a test and returns its path.
func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// listLayer describes each entry of a layer in one line.
func listLayer(t *testing.T, layer v1.Layer) []string {
	t.Helper()
	stream, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	var lines []string
	for archive := tar.NewReader(stream); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.Equal(epoch) {
			t.Errorf("%s has the time %v, want %v", header.Name, header.ModTime, epoch)
		}
		lines = append(lines, fmt.Sprintf("%04o %d:%d %d %s", header.Mode, header.Uid, header.Gid, header.Size, header.Name))
	}
}

func TestArchiveReadsBack(t *testing.T) {
	binary := writeFile(t, "jobqueue", "the binary")
	bundle := writeFile(t, "bundle.crt", "the authorities")
	output := filepath.Join(t.TempDir(), "out.tar")
	err := run([]string{
		"-tag", testTag, "-entrypoint", "/bin/jobqueue worker", "-arch", "arm64", "-ca-certificates", bundle,
		"-label", "org.opencontainers.image.revision=abc", "-o", output, "/bin/jobqueue=" + binary,
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}

	tag, err := name.NewTag(testTag)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(output, &tag)
	if err != nil {
		t.Fatalf("the archive does not hold the image under its tag: %v", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" {
		t.Errorf("platform is %s/%s, want linux/arm64", config.OS, config.Architecture)
	}
	if !config.Created.Equal(epoch) {
		t.Errorf("created at %v, want %v", config.Created, epoch)
	}
	wantConfig := v1.Config{
		Entrypoint: []string{"/bin/jobqueue", "worker"},
		User:       "65532",
		WorkingDir: "/",
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin:/", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "jobqueue",
			"org.opencontainers.image.version":  "dev",
			"org.opencontainers.image.ref.name": testTag,
			"org.opencontainers.image.revision": "abc",
		},
	}
	if diff := cmp.Diff(wantConfig, config.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}

	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, layer := range layers {
		got = append(got, listLayer(t, layer))
	}
	want := [][]string{{
		"0755 0:0 0 etc/",
		fmt.Sprintf("0644 0:0 %d etc/group", len(group)),
		fmt.Sprintf("0644 0:0 %d etc/passwd", len(passwd)),
		"0755 0:0 0 etc/ssl/",
		"0755 0:0 0 etc/ssl/certs/",
		"0644 0:0 15 etc/ssl/certs/ca-certificates.crt",
		"0755 0:0 0 home/",
		"0700 65532:65532 0 home/nonroot/",
		"1777 0:0 0 tmp/",
	}, {
		"0755 0:0 0 bin/",
		"0755 0:0 10 bin/jobqueue",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
}

func TestSameInputGivesSameBytes(t *testing.T) {
	spec := Spec{
		Tag: testTag, Entrypoint: []string{"/a"}, User: "65532", Arch: "amd64",
		Labels: map[string]string{"one": "1", "two": "2", "three": "3"},
		Files: []File{
			{Path: "a", Source: writeFile(t, "a", "first")},
			{Path: "deep/er/b", Source: writeFile(t, "b", strings.Repeat("second", 1000))},
		},
	}
	var archives [][]byte
	for range 2 {
		output := filepath.Join(t.TempDir(), "out.tar")
		if err := WriteArchive(output, spec); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(output)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, content)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same input differ")
	}
}

func TestNoCertificates(t *testing.T) {
	img, err := buildImage(Spec{Tag: testTag, Files: []File{{Path: "a", Source: writeFile(t, "a", "x")}}})
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/"}, config.Config.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestRunRefuses(t *testing.T) {
	file := writeFile(t, "a", "x")
	output := filepath.Join(t.TempDir(), "out.tar")
	complete := []string{"-tag", testTag, "-entrypoint", "/a", "-o", output}
	cases := map[string]struct {
		args      []string
		wantError string
	}{
		"no tag":            {args: []string{"-entrypoint", "/a", "-o", output, "a=" + file}, wantError: "-tag"},
		"short tag":         {args: []string{"-tag", "jobqueue", "-entrypoint", "/a", "-o", output, "a=" + file}, wantError: "not a full image name"},
		"no file":           {args: complete, wantError: "no file"},
		"no equals sign":    {args: append(complete, file), wantError: "PATH/IN/IMAGE=LOCAL/FILE"},
		"missing file":      {args: append(complete, "a="+file+".missing"), wantError: "cannot read"},
		"root as a file":    {args: append(complete, "/="+file), wantError: "names no file"},
		"same path twice":   {args: append(complete, "a="+file, "/x/../a="+file), wantError: "two files"},
		"bad label":         {args: append(complete, "-label", "x", "a="+file), wantError: "key=value"},
		"named CA bundle":   {args: append(complete, "-ca-certificates", file+".missing", "a="+file), wantError: "-ca-certificates"},
		"unwritable output": {args: []string{"-tag", testTag, "-entrypoint", "/a", "-o", filepath.Join(file, "x"), "a=" + file}, wantError: "cannot write"},
	}
	for title, test := range cases {
		t.Run(title, func(t *testing.T) {
			err := run(test.args, io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.wantError) {
				t.Errorf("got error %v, want one with %q", err, test.wantError)
			}
		})
	}
}
