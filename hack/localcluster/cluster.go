package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// defaultStateRoot is where clusters keep their state.
const defaultStateRoot = "/var/lib/jobqueue-localcluster"

// Cluster is one local cluster, running or not.
type Cluster struct {
	// Name tells it from others on the same machine.
	Name string
	// Dir is its state: configuration, keys, logs, data, images.
	Dir string
	// Addresses are its networks.
	Addresses Addresses
}

// NewCluster returns the cluster of that name below a directory of states.
func NewCluster(name, stateRoot string) (*Cluster, error) {
	if err := validateName(name); err != nil {
		return nil, err
	}
	root, err := filepath.Abs(stateRoot)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: name, Dir: filepath.Join(root, name), Addresses: addressesFor(name)}
	if socket := c.containerdSocket() + ".ttrpc"; len(socket) > 107 {
		return nil, fmt.Errorf("the state directory %s is too long: sockets in it get paths of more than 107 bytes; choose a shorter --state", root)
	}
	return c, nil
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.Dir}, elements...)...)
}

func (c *Cluster) nodeName() string         { return "jobqueue-" + c.Name }
func (c *Cluster) cgroup() string           { return "jobqueue-localcluster-" + c.Name }
func (c *Cluster) containerdSocket() string { return c.path("containerd.sock") }
func (c *Cluster) sandboxFile() string      { return c.path("run", "sandbox.json") }
func (c *Cluster) pidFile(component string) string {
	return c.path("run", component+".json")
}
func (c *Cluster) logFile(component string) string { return c.path("logs", component+".log") }
func (c *Cluster) apiServer() string {
	return fmt.Sprintf("https://%s:%d", c.Addresses.Node, apiPort)
}

// sandbox returns what the last "up" has left; it may no longer be alive.
func (c *Cluster) sandbox() *Sandbox {
	sandbox := loadJSON[Sandbox](c.sandboxFile())
	return &sandbox
}

// notRunning is the error of commands that need a running cluster.
func (c *Cluster) notRunning() error {
	return fmt.Errorf("the cluster %q does not run; start it with: localcluster --name %s up", c.Name, c.Name)
}

// progress tells the user what goes on.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "localcluster: "+format+"\n", args...)
}

// lock keeps two commands from changing the same cluster at once.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a local cluster needs root: namespaces, mounts and control groups are not for other users")
	}
	if err := os.MkdirAll(filepath.Dir(c.Dir), 0o755); err != nil {
		return nil, err
	}
	name := c.Dir + ".lock"
	for {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		if err := flockWait(ctx, file); err != nil {
			_ = file.Close()
			return nil, err
		}
		// "down" removes the file while it holds the lock. Whoever waited for
		// it then holds a lock on a file that nobody else can find.
		held, heldErr := file.Stat()
		named, namedErr := os.Stat(name)
		if heldErr == nil && namedErr == nil && os.SameFile(held, named) {
			return func() { _ = file.Close() }, nil
		}
		_ = file.Close()
	}
}

// Up starts the cluster. One that runs and is healthy stays as it is; anything
// else that is left of it goes first.
func (c *Cluster) Up(ctx context.Context, wait bool) error {
	begin := time.Now()
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if problem := c.problem(); problem == nil {
		progress("the cluster %q runs already", c.Name)
		return nil
	} else if _, err := os.Stat(c.Dir); err == nil {
		progress("removing what is left of the cluster %q: %v", c.Name, problem)
		if err := c.remove(); err != nil {
			return err
		}
	}
	mounts, err := mountedCgroups()
	if err != nil {
		return err
	}
	cgroups, err := usedCgroups(mounts)
	if err != nil {
		return err
	}
	if err := ensurePackages(ctx, clusterRequirements); err != nil {
		return err
	}
	assets, err := BuildAssets(ctx)
	if err != nil {
		return err
	}
	pause, err := BuildPauseImage(ctx)
	if err != nil {
		return err
	}
	if err := c.prepare(cgroups); err != nil {
		return err
	}
	sandbox, err := c.launch(ctx, assets, pause, wait)
	if err != nil {
		// The logs stay for a look at them; the next "up" or "down" takes them.
		if sandbox != nil {
			err = errors.Join(err, sandbox.Destroy())
		}
		return errors.Join(err, removeCgroup(c.cgroup()))
	}
	progress("the cluster %q is up (%s)", c.Name, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// prepare writes everything that can be written before anything runs.
func (c *Cluster) prepare(cgroups []cgroupMount) error {
	// Others may look in, as PostgreSQL's user must; the keys keep to themselves.
	for _, dir := range []string{c.Dir, c.path("run"), c.path("logs"), c.path("kubelet"), c.path("containerd"), c.path("pod-logs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := c.writeCertificates(); err != nil {
		return err
	}
	if err := c.writeConfigs(); err != nil {
		return err
	}
	return createCgroup(cgroups, c.cgroup())
}

// launch starts the sandbox and the components in it.
func (c *Cluster) launch(ctx context.Context, assets, pause string, wait bool) (*Sandbox, error) {
	sandbox, err := startSandbox(sandboxSpec{
		Keep:        []string{c.Dir, assets},
		NodeAddress: c.Addresses.Node.String(),
		Services:    c.Addresses.Services.String(),
	}, c.logFile("init"))
	if err != nil {
		return nil, err
	}
	if err := saveJSON(c.sandboxFile(), sandbox); err != nil {
		return sandbox, err
	}
	var parts []*process
	startAll := func(components ...component) error {
		for _, part := range components {
			running, err := c.start(sandbox, part)
			if err != nil {
				return err
			}
			parts = append(parts, running)
		}
		return nil
	}
	if err := startAll(append(c.controlPlane(assets), c.containerRuntime())...); err != nil {
		return sandbox, err
	}
	runtime := parts[len(parts)-1]
	if err := c.waitFor(ctx, "containerd's socket", 30*time.Second, []*process{runtime}, func() error {
		return c.ctr(ctx, "version")
	}); err != nil {
		return sandbox, err
	}
	if err := c.ctr(ctx, "images", "import", pause); err != nil {
		return sandbox, err
	}
	api, err := c.newAPIClient(sandbox)
	if err != nil {
		return sandbox, err
	}
	apiServer := parts[1]
	if err := c.waitFor(ctx, "a ready API server", time.Minute, []*process{apiServer, parts[0]}, func() error { return api.ready(ctx) }); err != nil {
		return sandbox, err
	}
	if err := startAll(c.nodeAndControllers(assets)...); err != nil {
		return sandbox, err
	}
	if !wait {
		return sandbox, nil
	}
	controllers, kubelet := parts[3], parts[5]
	if err := c.waitFor(ctx, "a Ready node", 2*time.Minute, append([]*process{kubelet}, parts...), func() error { return api.nodeReady(ctx, c.nodeName()) }); err != nil {
		return sandbox, err
	}
	return sandbox, c.waitFor(ctx, "the default service account", time.Minute, append([]*process{controllers}, parts...), func() error {
		return api.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
}

// problem says why the cluster is not up and healthy; nil when it is.
func (c *Cluster) problem() error {
	sandbox := c.sandbox()
	if !sandbox.Alive() {
		return errors.New("it does not run")
	}
	for _, name := range c.componentNames() {
		if !loadJSON[Identity](c.pidFile(name)).Alive() {
			return fmt.Errorf("%s does not run", name)
		}
	}
	api, err := c.newAPIClient(sandbox)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(api.ready(ctx), api.nodeReady(ctx, c.nodeName()))
}

// componentNames lists the components of a complete cluster.
func (c *Cluster) componentNames() []string {
	names := []string{etcdName, apiName, runtimeName}
	for _, part := range c.nodeAndControllers("") {
		names = append(names, part.name)
	}
	return names
}

// Down stops the cluster, removes all of it and verifies that nothing is left.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	sandbox := c.sandbox()
	if err := c.remove(); err != nil {
		return err
	}
	if err := os.Remove(c.Dir + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Another cluster's state may be in there.
	_ = os.Remove(filepath.Dir(c.Dir))
	if left := c.leftovers(sandbox); len(left) > 0 {
		return fmt.Errorf("the cluster %q is down, but this is left of it:\n  %s", c.Name, strings.Join(left, "\n  "))
	}
	progress("the cluster %q is down; no process, mount, control group or file of it is left", c.Name)
	return nil
}

// remove ends every process of the cluster and removes its files.
func (c *Cluster) remove() error {
	sandbox := c.sandbox()
	if sandbox.Alive() {
		// PostgreSQL gets to write its data out: others may look at a copy.
		if err := c.stopPostgres(syscall.SIGINT); err != nil {
			progress("PostgreSQL did not stop by itself: %v", err)
		}
		if err := sandbox.Destroy(); err != nil {
			return err
		}
	}
	if err := removeCgroup(c.cgroup()); err != nil {
		return err
	}
	return os.RemoveAll(c.Dir)
}

// leftovers lists what a removed cluster has left behind, which should be
// nothing.
func (c *Cluster) leftovers(sandbox *Sandbox) []string {
	var left []string
	for _, process := range sandbox.Survivors() {
		left = append(left, "process "+process)
	}
	mountinfo, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mountinfo)) {
		if fields := strings.Fields(line); len(fields) > 4 && (fields[4] == c.Dir || strings.HasPrefix(fields[4], c.Dir+"/")) {
			left = append(left, "mount "+fields[4])
		}
	}
	cgroups, _ := mountedCgroups()
	for _, mount := range cgroups {
		if dir := filepath.Join(mount.Path, c.cgroup()); present(dir) {
			left = append(left, "control group "+dir)
		}
	}
	if present(c.Dir) {
		left = append(left, "directory "+c.Dir)
	}
	return left
}

// hasSysResource says whether this process has CAP_SYS_RESOURCE.
func hasSysResource() (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "CapEff:"); found {
			capabilities, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			const sysResource = 24
			return capabilities&(1<<sysResource) != 0, err
		}
	}
	return false, errors.New("/proc/self/status does not list capabilities")
}
