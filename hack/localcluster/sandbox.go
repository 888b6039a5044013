package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initCommand is the hidden argument that makes this program the cluster's init.
const initCommand = "cluster-init"

// Sandbox is the set of namespaces that a cluster lives in: process ids, mounts,
// network and System V IPC, all held by one init process. When that process
// ends, the kernel ends every other process in it, and mounts, networks and
// shared memory go with the last of them. So nothing has to be found and
// cleaned up one by one, not even after a crash.
type Sandbox struct {
	// Init is the process that holds the namespaces.
	Init Identity `json:"init"`
	// Namespace names the process namespace, to look for survivors in it.
	Namespace string `json:"namespace"`
}

// sandboxSpec is what the init process needs to know.
type sandboxSpec struct {
	// Keep are directories that stay visible under their own paths where the
	// sandbox hides what surrounds them.
	Keep []string
	// NodeAddress becomes the address of the node.
	NodeAddress string
	// Services is the network of the service addresses.
	Services string
}

// startSandbox starts an init in new namespaces and waits until it is set up.
func startSandbox(spec sandboxSpec, logFile string) (*Sandbox, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	instructions, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	ready, done, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ready.Close() }()

	cmd := exec.Command(self, initCommand, string(instructions))
	cmd.Dir = "/"
	cmd.Env = componentEnvironment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{done}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
	}
	err = cmd.Start()
	_ = done.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot create the cluster's namespaces (this needs root with CAP_SYS_ADMIN and a kernel with namespaces): %w", err)
	}
	identity, identityErr := identify(cmd.Process.Pid)
	namespace, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", cmd.Process.Pid))
	go func() { _ = cmd.Wait() }()

	answer, err := io.ReadAll(ready)
	if err == nil && string(answer) == "ready" && identityErr == nil {
		return &Sandbox{Init: identity, Namespace: namespace}, nil
	}
	_ = cmd.Process.Kill()
	if len(answer) == 0 {
		answer = []byte("its init ended without a word")
	}
	return nil, fmt.Errorf("cannot set up the cluster's namespaces: %s", answer)
}

// Alive says whether the sandbox exists.
func (s *Sandbox) Alive() bool { return s != nil && s.Init.Alive() }

// Destroy ends the init, and with it everything in the sandbox.
func (s *Sandbox) Destroy() error {
	for _, step := range []struct {
		signal syscall.Signal
		limit  time.Duration
	}{{syscall.SIGTERM, 5 * time.Second}, {syscall.SIGKILL, 30 * time.Second}} {
		if err := s.Init.Signal(step.signal); err != nil {
			return err
		}
		// Not the init alone: its first thread can be gone while others still
		// wait for the rest of the namespace to end.
		for deadline := time.Now().Add(step.limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if len(s.Survivors()) == 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("processes do not end although killed: %s; see what they wait for with: ps -eo pid,stat,wchan,args", strings.Join(s.Survivors(), ", "))
}

// namespaces that a component joins, in an order that works: the mount
// namespace last, since it takes /proc of the machine away.
var componentNamespaces = []string{"ipc", "net", "pid", "mnt"}

// within calls f on a thread that has joined the given namespaces of the
// sandbox. Processes that f starts are born in all of them; f itself stays in
// its own process namespace. The thread is thrown away afterwards.
func (s *Sandbox) within(namespaces []string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends a thread whose goroutine returns
		// while locked, and nobody else gets to run in these namespaces.
		runtime.LockOSThread()
		result <- func() error {
			if err := s.join(namespaces); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-result
}

// join moves the calling thread into namespaces of the sandbox.
func (s *Sandbox) join(namespaces []string) error {
	if !s.Alive() {
		return errors.New("the cluster does not run")
	}
	// A thread can only change its mount namespace while it shares its
	// working directory and root with no other thread.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cannot enter the cluster's namespaces: %w", err)
	}
	var files []*os.File
	defer func() {
		for _, file := range files {
			_ = file.Close()
		}
	}()
	for _, namespace := range namespaces {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", s.Init.PID, namespace))
		if err != nil {
			return fmt.Errorf("cannot enter the cluster's namespaces: %w", err)
		}
		files = append(files, file)
	}
	for i, file := range files {
		if err := unix.Setns(int(file.Fd()), 0); err != nil {
			return fmt.Errorf("cannot enter the cluster's %s namespace (this needs root with CAP_SYS_ADMIN): %w", namespaces[i], err)
		}
	}
	return nil
}

// dial connects to an address inside the sandbox's network.
func (s *Sandbox) dial(network, address string) (connection net.Conn, err error) {
	err = s.within([]string{"net"}, func() (err error) {
		connection, err = net.DialTimeout(network, address, 2*time.Second)
		return err
	})
	return connection, err
}

// Survivors lists the processes that are still in the sandbox.
func (s *Sandbox) Survivors() []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, candidate := range links {
		if target, err := os.Readlink(candidate); err == nil && target == s.Namespace {
			pid := strings.Split(candidate, "/")[2]
			command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			found = append(found, fmt.Sprintf("%s (%s)", pid, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))))
		}
	}
	return found
}

// componentEnvironment is the whole environment of everything in the sandbox.
// What the caller has set (proxies, Go settings, credentials) is none of its
// business.
func componentEnvironment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LANG=C.UTF-8"}
}
