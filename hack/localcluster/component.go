package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// component is one long-running program of the cluster.
type component struct {
	name    string
	program string
	args    []string
	// user runs it, when not root.
	user *syscall.Credential
}

const (
	etcdURL     = "http://127.0.0.1:2379"
	apiPort     = 6443
	etcdName    = "etcd"
	apiName     = "kube-apiserver"
	runtimeName = "containerd"
)

// controlPlane returns etcd and the API server, which everything else needs.
func (c *Cluster) controlPlane(assets string) []component {
	pki := func(file string) string { return c.path("pki", file) }
	return []component{{
		name: etcdName, program: filepath.Join(assets, "etcd"),
		args: []string{
			"--name=local",
			"--data-dir=" + c.path("etcd"),
			"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=local=http://127.0.0.1:2380",
			// The cluster is made anew after every crash; what a power cut
			// would take is of no use anyway.
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
	}, {
		name: apiName, program: filepath.Join(assets, "kube-apiserver"),
		args: []string{
			"--etcd-servers=" + etcdURL,
			fmt.Sprintf("--secure-port=%d", apiPort),
			"--advertise-address=" + c.Addresses.Node.String(),
			"--service-cluster-ip-range=" + c.Addresses.Services.String(),
			"--client-ca-file=" + pki("ca.crt"),
			"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
			"--kubelet-certificate-authority=" + pki("ca.crt"),
			"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"),
			"--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
			"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"),
			"--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + pki("front-proxy-client.crt"),
			"--proxy-client-key-file=" + pki("front-proxy-client.key"),
			"--enable-aggregator-routing=true",
			// The node's name is in no DNS.
			"--kubelet-preferred-address-types=InternalIP",
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--allow-privileged=true",
			"--profiling=false",
		},
	}}
}

// containerRuntime returns containerd.
func (c *Cluster) containerRuntime() component {
	return component{name: runtimeName, program: "containerd", args: []string{"--config", c.path("containerd.toml"), "--log-level", "warn"}}
}

// nodeAndControllers returns what starts once the API server and containerd
// answer.
func (c *Cluster) nodeAndControllers(assets string) []component {
	return []component{{
		name: "kube-controller-manager", program: filepath.Join(assets, "kube-controller-manager"),
		args: []string{
			"--kubeconfig=" + c.kubeconfig("controller-manager"),
			"--authentication-kubeconfig=" + c.kubeconfig("controller-manager"),
			"--authorization-kubeconfig=" + c.kubeconfig("controller-manager"),
			"--use-service-account-credentials=true",
			"--root-ca-file=" + c.path("pki", "ca.crt"),
			"--service-account-private-key-file=" + c.path("pki", "sa.key"),
			"--cluster-signing-cert-file=" + c.path("pki", "ca.crt"), "--cluster-signing-key-file=" + c.path("pki", "ca.key"),
			// The one instance has nobody to take turns with.
			"--leader-elect=false",
			"--kube-api-qps=100", "--kube-api-burst=200",
			"--profiling=false",
		},
	}, {
		name: "kube-scheduler", program: filepath.Join(assets, "kube-scheduler"),
		args: []string{
			"--kubeconfig=" + c.kubeconfig("scheduler"),
			"--authentication-kubeconfig=" + c.kubeconfig("scheduler"),
			"--authorization-kubeconfig=" + c.kubeconfig("scheduler"),
			"--leader-elect=false",
			"--profiling=false",
		},
	}, {
		name: "kubelet", program: filepath.Join(assets, "kubelet"),
		args: []string{
			"--config=" + c.path("kubelet.json"),
			"--kubeconfig=" + c.kubeconfig("kubelet"),
			"--root-dir=" + c.path("kubelet"),
			"--cert-dir=" + c.path("kubelet", "pki"),
			"--hostname-override=" + c.nodeName(),
			"--node-ip=" + c.Addresses.Node.String(),
		},
	}, {
		name: "kube-proxy", program: filepath.Join(assets, "kube-proxy"),
		args: []string{
			"--kubeconfig=" + c.kubeconfig("proxy"),
			"--hostname-override=" + c.nodeName(),
			"--proxy-mode=nftables",
			"--cluster-cidr=" + c.Addresses.Pods.String(),
			// The size of the connection table belongs to the machine.
			"--conntrack-max-per-core=0", "--conntrack-min=0",
			"--healthz-bind-address=127.0.0.1:10256",
			"--oom-score-adj=0",
		},
	}}
}

// process is a component that this process has started.
type process struct {
	component
	Identity
	// ended is closed when the process has ended.
	ended chan struct{}
}

// start runs a component inside the sandbox, detached from this process: it
// goes on when this one ends.
func (c *Cluster) start(sandbox *Sandbox, part component) (*process, error) {
	program := part.program
	if !filepath.IsAbs(program) {
		path, err := findProgram(program)
		if err != nil {
			return nil, err
		}
		program = path
	}
	if err := os.MkdirAll(c.path("logs"), 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(c.logFile(part.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, part.args...)
	cmd.Env = componentEnvironment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: part.user}
	if err := sandbox.within(componentNamespaces, cmd.Start); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", part.name, err)
	}
	running := &process{component: part, ended: make(chan struct{})}
	// Read before anybody waits for the process, so that its id cannot have
	// been given away yet.
	running.Identity, err = identify(cmd.Process.Pid)
	go func() {
		defer close(running.ended)
		_ = cmd.Wait()
	}()
	if err != nil {
		return nil, c.componentFailed(part.name, "ended at once")
	}
	return running, saveJSON(c.pidFile(part.name), running.Identity)
}

// componentFailed is an error that shows the end of a component's log.
func (c *Cluster) componentFailed(name, what string) error {
	content, _ := os.ReadFile(c.logFile(name))
	return fmt.Errorf("%s %s; the end of its log %s:\n%s", name, what, c.logFile(name), lastLines(string(content), 25))
}

// waitFor polls until ready returns nil, and gives up early when a component
// ends: the first of them is blamed when time runs out.
func (c *Cluster) waitFor(ctx context.Context, what string, limit time.Duration, parts []*process, ready func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		for _, part := range parts {
			select {
			case <-part.ended:
				return c.componentFailed(part.name, "ended while the cluster waited for "+what)
			default:
			}
		}
		if time.Now().After(deadline) {
			return c.componentFailed(parts[0].name, fmt.Sprintf("did not bring %s within %s (%v)", what, limit, err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// lastLines returns the last n lines of text, all of them when n is 0.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if n > 0 && len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
