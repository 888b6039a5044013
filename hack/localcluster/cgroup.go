package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// neededControllers are those without which the kubelet cannot enforce limits.
var neededControllers = []string{"cpu", "cpuset", "memory", "pids"}

// cgroupMount is one mounted hierarchy of control groups.
type cgroupMount struct {
	// Path is where it is mounted.
	Path string
	// Unified says that it is the one hierarchy of version 2.
	Unified bool
	// Options are the mount's options; those of version 1 name its controllers.
	Options []string
}

// parseCgroupMounts finds the control group hierarchies in /proc/self/mountinfo.
func parseCgroupMounts(mountinfo string) []cgroupMount {
	var mounts []cgroupMount
	for scanner := bufio.NewScanner(strings.NewReader(mountinfo)); scanner.Scan(); {
		before, after, found := strings.Cut(scanner.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) < 3 || !strings.HasPrefix(kind[0], "cgroup") {
			continue
		}
		mounts = append(mounts, cgroupMount{
			Path:    fields[4],
			Unified: kind[0] == "cgroup2",
			Options: strings.Split(kind[2], ","),
		})
	}
	return mounts
}

// usedCgroups picks the hierarchies that the kubelet will use, and says what is
// missing. On a machine with both versions mounted, version 1 has the
// controllers and version 2 none.
func usedCgroups(mounts []cgroupMount) ([]cgroupMount, error) {
	var used []cgroupMount
	missing := slices.Clone(neededControllers)
	for _, mount := range mounts {
		if mount.Unified {
			continue
		}
		used = append(used, mount)
		missing = slices.DeleteFunc(missing, func(controller string) bool { return slices.Contains(mount.Options, controller) })
	}
	if len(used) > 0 {
		if len(missing) > 0 {
			return nil, fmt.Errorf("the control groups of this machine lack the controllers %s: mount them below /sys/fs/cgroup", strings.Join(missing, ", "))
		}
		return used, nil
	}
	for _, mount := range mounts {
		if mount.Path == "/sys/fs/cgroup" {
			return []cgroupMount{mount}, nil
		}
	}
	return nil, errors.New("no control groups are mounted below /sys/fs/cgroup: mount version 2 with \"mount -t cgroup2 none /sys/fs/cgroup\"")
}

// mountedCgroups returns every hierarchy of this machine.
func mountedCgroups() ([]cgroupMount, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	return parseCgroupMounts(string(mountinfo)), err
}

// createCgroup makes the group that all pods of the cluster go below, in every
// hierarchy; the kubelet requires it to exist.
func createCgroup(mounts []cgroupMount, group string) error {
	for _, mount := range mounts {
		dir := filepath.Join(mount.Path, group)
		if mount.Unified {
			if err := delegateControllers(mount.Path); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cannot create a control group: %w", err)
		}
		if mount.Unified {
			if err := delegateControllers(dir); err != nil {
				return err
			}
		}
		if slices.Contains(mount.Options, "cpuset") {
			// A new cpuset of version 1 is empty, and nothing can run in it.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(mount.Path, file))
				if err != nil {
					return fmt.Errorf("cannot set up a control group: %w", err)
				}
				if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
					return fmt.Errorf("cannot set up a control group: %w", err)
				}
			}
		}
	}
	return nil
}

// delegateControllers lets the groups below a group of version 2 have limits.
func delegateControllers(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cannot read the controllers of a control group: %w", err)
	}
	for _, controller := range strings.Fields(string(available)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		if err != nil && slices.Contains(neededControllers, controller) {
			return fmt.Errorf("cannot delegate the controller %s in %s: %w", controller, dir, err)
		}
	}
	return nil
}

// removeCgroup removes the group and what is below it from every hierarchy; on
// a machine with both versions the container runtime makes it in those too
// that the kubelet does not use. The kernel may still count processes that have
// just ended, so it tries for a while.
func removeCgroup(group string) error {
	mounts, last := mountedCgroups()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		last = nil
		for _, mount := range mounts {
			last = errors.Join(last, removeCgroupTree(filepath.Join(mount.Path, group)))
		}
		if last == nil {
			return nil
		}
	}
	return fmt.Errorf("cannot remove the control groups: %w", last)
}

// removeCgroupTree removes directories only, deepest first: the files of a
// control group cannot be unlinked and go with it.
func removeCgroupTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroupTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
