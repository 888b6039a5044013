package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// bridgeName is the device that carries the node's address. It has no ports; a
// bridge is simply the one kind of virtual device that every kernel with
// container networking has.
const bridgeName = "node0"

// kernelSettings are what the kubelet insists on. It would write them for the
// whole machine; instead it gets to read files that already say so.
var kernelSettings = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// runInit is process 1 of the cluster. It sets its namespaces up, says so on
// file descriptor 3, and then only collects orphans until it is told to end.
func runInit(args []string) int {
	answer := os.NewFile(3, "answer")
	err := func() error {
		var spec sandboxSpec
		if len(args) != 1 {
			return errors.New("this command is started by \"localcluster up\" only")
		}
		if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
			return err
		}
		if os.Getpid() != 1 {
			return errors.New("this command runs as the first process of a namespace only")
		}
		if err := setUpMounts(spec.Keep); err != nil {
			return err
		}
		return setUpNetwork(spec.NodeAddress, spec.Services)
	}()
	if err != nil {
		fmt.Fprint(answer, err)
		return 1
	}
	children := make(chan os.Signal, 1)
	stop := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	fmt.Fprint(answer, "ready")
	_ = answer.Close()
	for {
		select {
		case <-stop:
			return 0
		case <-children:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && !errors.Is(err, syscall.EINTR) {
					break
				}
			}
		}
	}
}

// setUpMounts gives the cluster a /var, a /run and a /dev/shm of its own.
// Kubernetes, containerd and the CNI plugins keep things under fixed paths in
// there (/var/lib/kubelet, /var/log/containers, /var/lib/cni, /run/containerd,
// /run/netns), which would otherwise collide between clusters and stay behind.
func setUpMounts(keep []string) error {
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("cannot mount %s on %s: %w", source, target, err)
		}
		return nil
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	// Open files keep the directories reachable while what is above them
	// gets covered.
	kept := make([]*os.File, len(keep))
	for i, dir := range keep {
		file, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		kept[i] = file
	}
	for _, dir := range []string{"/var", "/run", "/dev/shm"} {
		mode := "mode=0755"
		if dir == "/dev/shm" {
			mode = "mode=1777"
			if err := os.MkdirAll(dir, 0o1777); err != nil {
				return err
			}
		}
		if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, mode); err != nil {
			return err
		}
	}
	if err := errors.Join(
		os.Symlink("/run", "/var/run"), os.MkdirAll("/run/lock", 0o755), os.MkdirAll("/var/tmp", 0o755),
		os.MkdirAll("/var/log", 0o755), os.MkdirAll("/var/lib", 0o755),
	); err != nil {
		return err
	}
	for i, dir := range keep {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := mount(fmt.Sprintf("/proc/self/fd/%d", kept[i].Fd()), dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	for name, value := range kernelSettings {
		file := filepath.Join("/run/kernel-settings", strings.ReplaceAll(name, "/", "."))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		target := "/proc/sys/" + name
		if _, err := os.Stat(target); err != nil {
			continue // not every kernel has keyrings
		}
		if err := mount(file, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	// Containers that ask for mount propagation need a shared tree; it is
	// shared among the cluster's own processes only.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// setUpNetwork gives the namespace the node's address and no way out: whoever
// tries is told so at once. Service addresses need a route of their own, any
// route, as the kernel refuses to send what it cannot route before kube-proxy's
// rules get to rewrite it.
func setUpNetwork(nodeAddress, services string) error {
	for _, command := range []string{
		"link set lo up",
		"link add " + bridgeName + " type bridge",
		"address add " + nodeAddress + "/32 dev " + bridgeName,
		"link set " + bridgeName + " up",
		"route add " + services + " dev " + bridgeName,
		"route add unreachable default",
	} {
		if output, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", command, err, strings.TrimSpace(string(output)))
		}
	}
	// The node routes between pods.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("cannot set up the cluster's network: %w", err)
	}
	return nil
}
