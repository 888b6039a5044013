package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// epoch is the time of everything in the image. A real clock would make two
// builds of the same source differ.
var epoch = time.Unix(0, 0).UTC()

// nonrootID is the user and group that distroless images, and with them most
// manifests in the wild, call nonroot.
const nonrootID = 65532

const (
	passwd = "root:x:0:0:root:/root:/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n" +
		"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
	group = "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n"
)

// Spec says what an image holds and how it runs.
type Spec struct {
	// Tag is the full name of the image, registry and tag included.
	Tag string
	// Entrypoint is the command of the container and its first arguments.
	Entrypoint []string
	// User is the numeric id the container runs as. A number, not a name:
	// Kubernetes can only prove runAsNonRoot for a number.
	User string
	// Arch is the architecture of the binaries, as GOARCH names it.
	Arch string
	// Labels are added to the image's configuration.
	Labels map[string]string
	// Files are the binaries. All of them become executable.
	Files []File
	// CACertificates is a local file with the authorities to trust, or empty.
	CACertificates string
}

// File is one file of the image.
type File struct {
	// Path is where the file goes in the image.
	Path string
	// Source is the local file to copy.
	Source string
}

// WriteArchive builds the image and writes it to output as a docker-archive
// tar. It writes beside output first and renames, so that a reader never sees
// half an archive.
func WriteArchive(output string, spec Spec) (err error) {
	tag, err := name.NewTag(spec.Tag, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("the tag %q is not a full image name such as docker.io/owner/name:version: %w", spec.Tag, err)
	}
	img, err := buildImage(spec)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(output), filepath.Base(output)+".*")
	if err != nil {
		return fmt.Errorf("cannot write the archive: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary.Name())
		}
	}()
	err = tarball.Write(tag, img, temporary)
	if err = errors.Join(err, temporary.Chmod(0o644), temporary.Close()); err != nil {
		return fmt.Errorf("cannot write %s: %w", output, err)
	}
	return os.Rename(temporary.Name(), output)
}

// buildImage assembles the layers and the configuration.
func buildImage(spec Spec) (v1.Image, error) {
	base, err := baseEntries(spec.CACertificates)
	if err != nil {
		return nil, err
	}
	binaries, err := fileEntries(spec.Files)
	if err != nil {
		return nil, err
	}
	// Two layers: the base stays the same from one build to the next, so
	// whoever stores or ships the image keeps it.
	var layers []mutate.Addendum
	for _, part := range []struct {
		comment string
		entries []entry
	}{{"users, groups and certificates", base}, {"binaries", binaries}} {
		layer, err := newLayer(part.entries)
		if err != nil {
			return nil, err
		}
		layers = append(layers, mutate.Addendum{
			Layer:   layer,
			History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "hack/image", Comment: part.comment},
		})
	}
	img, err := mutate.Append(empty.Image, layers...)
	if err != nil {
		return nil, fmt.Errorf("cannot assemble the image: %w", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("cannot read the image's configuration: %w", err)
	}
	config = config.DeepCopy()
	config.OS = "linux"
	config.Architecture = spec.Arch
	config.Created = v1.Time{Time: epoch}
	config.Config = v1.Config{
		Entrypoint: spec.Entrypoint,
		User:       spec.User,
		WorkingDir: "/",
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin:/", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels:     imageLabels(spec),
	}
	if spec.CACertificates == "" {
		config.Config.Env = config.Config.Env[:1]
	}
	return mutate.ConfigFile(img, config)
}

// imageLabels returns the OCI annotations that are known without a clock or a
// repository, under the caller's own labels.
func imageLabels(spec Spec) map[string]string {
	repository, version, _ := strings.Cut(path.Base(spec.Tag), ":")
	labels := map[string]string{
		"org.opencontainers.image.title":    repository,
		"org.opencontainers.image.ref.name": spec.Tag,
	}
	if version != "" {
		labels["org.opencontainers.image.version"] = version
	}
	for key, value := range spec.Labels {
		labels[key] = value
	}
	return labels
}

// entry is one file or, when its mode says so, one directory of a layer.
type entry struct {
	path string
	mode os.FileMode
	uid  int
	data []byte
}

// baseEntries is what a static binary expects of a system: its user's name, a
// place for temporary files, and authorities to trust.
func baseEntries(caCertificates string) ([]entry, error) {
	entries := []entry{
		{path: "etc/passwd", mode: 0o644, data: []byte(passwd)},
		{path: "etc/group", mode: 0o644, data: []byte(group)},
		{path: "home/nonroot", mode: os.ModeDir | 0o700, uid: nonrootID},
		{path: "tmp", mode: os.ModeDir | os.ModeSticky | 0o777},
	}
	if caCertificates == "" {
		return entries, nil
	}
	bundle, err := os.ReadFile(caCertificates)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate authorities (name another file with -ca-certificates, or give it an empty value for none): %w", err)
	}
	return append(entries, entry{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: bundle}), nil
}

// fileEntries reads the binaries.
func fileEntries(files []File) ([]entry, error) {
	var entries []entry
	seen := map[string]bool{}
	for _, file := range files {
		target := strings.TrimPrefix(path.Clean("/"+file.Path), "/")
		if target == "" {
			return nil, fmt.Errorf("%q names no file in the image", file.Path)
		}
		if seen[target] {
			return nil, fmt.Errorf("two files want to be /%s in the image", target)
		}
		seen[target] = true
		data, err := os.ReadFile(file.Source)
		if err != nil {
			return nil, fmt.Errorf("cannot read what should become /%s in the image: %w", target, err)
		}
		entries = append(entries, entry{path: target, mode: 0o755, data: data})
	}
	return entries, nil
}

// newLayer turns entries into a gzip-compressed layer.
func newLayer(entries []entry) (v1.Layer, error) {
	var raw bytes.Buffer
	if err := writeTar(&raw, entries); err != nil {
		return nil, fmt.Errorf("cannot write a layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw.Bytes())), nil },
		// The layer is read several times and usually stays on this machine:
		// fast compression once beats small files.
		tarball.WithCompressedCaching, tarball.WithCompressionLevel(gzip.BestSpeed),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot build a layer: %w", err)
	}
	return layer, nil
}

// writeTar writes entries in the order of their paths, each after the
// directories it lies in.
func writeTar(w io.Writer, entries []entry) error {
	all := map[string]entry{}
	for _, e := range entries {
		for dir := path.Dir(e.path); dir != "."; dir = path.Dir(dir) {
			if _, known := all[dir]; !known {
				all[dir] = entry{path: dir, mode: os.ModeDir | 0o755}
			}
		}
		all[e.path] = e
	}
	ordered := make([]entry, 0, len(all))
	for _, e := range all {
		ordered = append(ordered, e)
	}
	slices.SortFunc(ordered, func(a, b entry) int { return cmp.Compare(a.path, b.path) })

	archive := tar.NewWriter(w)
	for _, e := range ordered {
		header := &tar.Header{
			Typeflag: tar.TypeReg,
			Name:     e.path,
			Mode:     int64(e.mode.Perm()),
			Uid:      e.uid,
			Gid:      e.uid,
			Size:     int64(len(e.data)),
			ModTime:  epoch,
			Format:   tar.FormatPAX,
		}
		if e.mode.IsDir() {
			header.Typeflag = tar.TypeDir
			header.Name += "/"
		}
		if e.mode&os.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(e.data); err != nil {
			return err
		}
	}
	return archive.Close()
}
