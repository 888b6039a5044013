package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// requirement is a program and the Debian package it comes from.
type requirement struct {
	// Files are the places it may be in; one of them suffices. A plain name
	// is looked up in PATH, a pattern with a slash in the file system.
	Files   []string
	Package string
}

// clusterRequirements is what the cluster takes from the distribution.
var clusterRequirements = []requirement{
	{Files: []string{"containerd"}, Package: "containerd"},
	{Files: []string{"ctr"}, Package: "containerd"},
	{Files: []string{"runc"}, Package: "runc"},
	{Files: []string{"/usr/lib/cni/ptp", "/opt/cni/bin/ptp"}, Package: "containernetworking-plugins"},
	{Files: []string{"iptables"}, Package: "iptables"},
	{Files: []string{"nft"}, Package: "nftables"},
	{Files: []string{"conntrack"}, Package: "conntrack"},
	{Files: []string{"ip"}, Package: "iproute2"},
}

// postgresRequirements is what a PostgreSQL takes from the distribution.
var postgresRequirements = []requirement{
	{Files: []string{postgresPattern}, Package: "postgresql"},
}

// missingPackages lists the packages of requirements that are not met.
func missingPackages(requirements []requirement) []string {
	var missing []string
	for _, need := range requirements {
		if !slices.ContainsFunc(need.Files, present) && !slices.Contains(missing, need.Package) {
			missing = append(missing, need.Package)
		}
	}
	return missing
}

func present(file string) bool {
	if strings.Contains(file, "/") {
		found, _ := filepath.Glob(file)
		return len(found) > 0
	}
	_, err := findProgram(file)
	return err == nil
}

// findProgram finds a program in PATH or where administrators' programs are:
// an unprivileged user's PATH often lacks the latter.
func findProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("the program %q is not installed", name)
}

// ensurePackages installs what is missing, where it can.
func ensurePackages(ctx context.Context, requirements []requirement) error {
	missing := missingPackages(requirements)
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing on this machine: %s (names of Debian's packages); install them with your package manager", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing on this machine: %s; run as root, or: sudo apt-get install --no-install-recommends %s", list, list)
	}
	progress("installing Debian packages: %s", list)
	restore, err := forbidServiceStarts()
	if err != nil {
		return err
	}
	defer restore()
	install := append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)
	if err := aptGet(ctx, install...); err == nil {
		return nil
	}
	// Most often the lists of packages are missing or old.
	if err := aptGet(ctx, "update", "-q"); err != nil {
		return err
	}
	return aptGet(ctx, install...)
}

// policyFile is what Debian's packages ask before they start a service.
const policyFile = "/usr/sbin/policy-rc.d"

// forbidServiceStarts keeps packages from starting their services (a containerd
// or a PostgreSQL that nobody asked for) until the returned function is called.
// A policy that is already there is left as it is.
func forbidServiceStarts() (restore func(), err error) {
	file, err := os.OpenFile(policyFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot keep packages from starting services: %w", err)
	}
	// 101 is "action forbidden by policy".
	_, err = file.WriteString("#!/bin/sh\nexit 101\n")
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(policyFile))
	}
	return func() { _ = os.Remove(policyFile) }, nil
}

// aptGet runs apt-get without questions and shows its output only on failure.
func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, lastLines(string(output), 20))
	}
	return nil
}
