package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// components are the names that the one Kubernetes binary answers to.
var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}

// sourceVariable names the directory of this module's source, for a program
// that was moved away from it.
const sourceVariable = "JOBQUEUE_LOCALCLUSTER_SOURCE"

// moduleLine is how the go.mod of this module starts.
const moduleLine = "module github.com/jobqueue-dev/jobqueue-operator/hack/localcluster"

// sourceDir finds the source of this module: where it was compiled, or in the
// repository that the working directory or this program lies in.
func sourceDir() (string, error) {
	if dir := os.Getenv(sourceVariable); dir != "" {
		if isSource(dir) {
			return filepath.Abs(dir)
		}
		return "", fmt.Errorf("%s=%s is not the directory hack/localcluster of the repository", sourceVariable, dir)
	}
	var starts []string
	if working, err := os.Getwd(); err == nil {
		starts = append(starts, working)
	}
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			for _, candidate := range []string{dir, filepath.Join(dir, "hack", "localcluster")} {
				if isSource(candidate) {
					return candidate, nil
				}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok && isSource(filepath.Dir(file)) {
		return filepath.Dir(file), nil
	}
	return "", fmt.Errorf("cannot find the source of the Kubernetes components: run inside the repository, or set %s to its directory hack/localcluster", sourceVariable)
}

func isSource(dir string) bool {
	content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(content), moduleLine+"\n")
}

// cacheDir is where built things are kept between runs.
func cacheDir() (string, error) {
	if dir := os.Getenv("JOBQUEUE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for built programs (set JOBQUEUE_CACHE to a directory): %w", err)
	}
	return filepath.Join(dir, "jobqueue", "localcluster"), nil
}

// kubernetesVersion finds the version of Kubernetes that a go.mod requires.
var kubernetesVersion = regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// buildFlags are the flags of the build for the given go.mod. Without the
// linker's -X the components would report an empty version.
func buildFlags(goMod string) ([]string, error) {
	version := kubernetesVersion.FindStringSubmatch(goMod)
	if version == nil {
		return nil, errors.New("go.mod requires no version of k8s.io/kubernetes")
	}
	const stamp = "k8s.io/component-base/version"
	return []string{"-tags", "components", "-trimpath", "-ldflags", fmt.Sprintf("-s -w -X %s.gitVersion=%s -X %s.gitMajor=%s -X %s.gitMinor=%s",
		stamp, version[1], stamp, version[2], stamp, version[3])}, nil
}

// cacheKey is a name for what is built from those files with those flags.
func cacheKey(files []string, flags []string) (string, error) {
	sum := sha256.New()
	for _, flag := range append([]string{runtime.GOOS, runtime.GOARCH}, flags...) {
		fmt.Fprintf(sum, "flag %d %s\n", len(flag), flag)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "file %s %d\n", filepath.Base(file), len(content))
		_, _ = sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// BuildAssets returns the directory with the components, building them when
// they are not there yet.
func BuildAssets(ctx context.Context) (string, error) {
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	goMod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return "", err
	}
	flags, err := buildFlags(string(goMod))
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(source, "cmd", "kube", "*.go"))
	if err != nil {
		return "", err
	}
	key, err := cacheKey(append([]string{filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum")}, files...), flags)
	if err != nil {
		return "", err
	}
	return buildOnce(ctx, "kube-"+key, func(dir string) error {
		progress("building etcd and the Kubernetes components from source; the first time on a machine this takes several minutes (6 to 10 on 2 cores)")
		started := time.Now()
		args := slices.Concat([]string{"build"}, flags, []string{"-o", filepath.Join(dir, "kube"), "./cmd/kube"})
		if err := goCommand(ctx, source, nil, args...); err != nil {
			return err
		}
		for _, name := range components {
			if err := os.Symlink("kube", filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		progress("built in %s", time.Since(started).Round(time.Second))
		return nil
	})
}

// BuildPauseImage returns the archive of the image that holds a pod's
// namespaces, building it when it is not there yet.
func BuildPauseImage(ctx context.Context) (string, error) {
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	image := filepath.Join(source, "..", "image")
	var files []string
	for _, pattern := range []string{filepath.Join(source, "cmd", "pause", "*.go"), filepath.Join(image, "*.go"), filepath.Join(image, "go.*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		files = append(files, found...)
	}
	key, err := cacheKey(files, []string{pauseImage})
	if err != nil {
		return "", err
	}
	dir, err := buildOnce(ctx, "pause-"+key, func(dir string) error {
		progress("building the pause image")
		binary := filepath.Join(dir, "pause")
		static := []string{"CGO_ENABLED=0"}
		// The image writer is a module of its own and stays one: its
		// dependencies are newer than those Kubernetes is pinned to.
		return errors.Join(
			goCommand(ctx, source, static, "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/pause"),
			goCommand(ctx, image, nil, "run", ".", "-tag", pauseImage, "-entrypoint", "/pause", "-ca-certificates", "",
				"-o", filepath.Join(dir, "pause.tar"), "/pause="+binary),
		)
	})
	return filepath.Join(dir, "pause.tar"), err
}

// buildOnce returns the cache's directory of that name, which build fills when
// it does not exist. Builders wait for each other, and the directory appears
// complete or not at all.
func buildOnce(ctx context.Context, name string, build func(dir string) error) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		progress("waiting for another build")
		if err := flockWait(ctx, lock); err != nil {
			return "", err
		}
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", err
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return "", err
	}
	if err := build(partial); err != nil {
		return "", errors.Join(err, os.RemoveAll(partial))
	}
	return dir, os.Rename(partial, dir)
}

// flockWait takes a lock on a file that another process holds.
func flockWait(ctx context.Context, file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting for another process: %w", ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// goCommand runs the go tool in a module's directory, with a sign of life every
// minute.
func goCommand(ctx context.Context, dir string, environment []string, args ...string) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return errors.New("the Go toolchain is needed to build the cluster's components, and \"go\" is not in PATH")
	}
	cmd := exec.CommandContext(ctx, goTool, args...)
	cmd.Dir = dir
	// A workspace around this repository must not change what gets built.
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), environment...)
	started := time.Now()
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = io.Writer(&output), io.Writer(&output)
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		for {
			select {
			case <-finished:
				return
			case <-time.After(time.Minute):
				progress("still building (%s)", time.Since(started).Round(time.Second))
			}
		}
	}()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s failed in %s: %w\n%s", args[0], dir, err, lastLines(output.String(), 30))
	}
	return nil
}
