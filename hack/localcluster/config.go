package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// pauseImage is the full name of the image that holds a pod's namespaces.
const pauseImage = "docker.io/jobqueue/pause:localcluster"

// containerdConfig is containerd's configuration. Everything it keeps goes
// below the cluster's state; its fixed paths below /run are private to the
// sandbox.
var containerdConfig = template.Must(template.New("containerd").Parse(`version = 2
root = "{{.State}}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = "{{.Socket}}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{{.State}}/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.PauseImage}}"
  # Without CAP_SYS_RESOURCE a process may not make itself less likely to be
  # killed than its parent; containerd then has to leave that out.
  restrict_oom_score_adj = {{.RestrictOOMScore}}

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{{.CNIPlugins}}"
  conf_dir = "{{.State}}/cni"
  max_conf_num = 1
`))

// containerdValues fills containerdConfig.
type containerdValues struct {
	State, Socket, PauseImage, CNIPlugins string
	RestrictOOMScore                      bool
}

// renderContainerd returns containerd's configuration.
func renderContainerd(values containerdValues) (string, error) {
	var text strings.Builder
	err := containerdConfig.Execute(&text, values)
	return text.String(), err
}

// renderCNI returns the pods' network: one pair of devices and one route per
// pod. Without a bridge between pods all their traffic is routed, so that
// service addresses work between pods of this node on kernels without the
// bridge's packet filter too.
func renderCNI(name string, addresses Addresses) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "jobqueue-" + name,
		"plugins": []any{map[string]any{
			"type":   "ptp",
			"ipMasq": false,
			"ipam": map[string]any{
				"type":   "host-local",
				"ranges": []any{[]any{map[string]any{"subnet": addresses.Pods.String()}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	}, "", "  ")
}

// renderKubelet returns the kubelet's configuration file.
func renderKubelet(c *Cluster) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": c.path("pki", "ca.crt")},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              c.path("pki", "kubelet.crt"),
		"tlsPrivateKeyFile":        c.path("pki", "kubelet.key"),
		"address":                  c.Addresses.Node.String(),
		"healthzBindAddress":       "127.0.0.1",
		"containerRuntimeEndpoint": "unix://" + c.containerdSocket(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + c.cgroup(),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"enforceNodeAllocatable":   []string{},
		"makeIPTablesUtilChains":   false,
		"maxPods":                  250,
		"podLogsDir":               c.path("pod-logs"),
		"resolvConf":               c.path("resolv.conf"),
		// Nothing listens there, so look-ups fail at once. An empty list would
		// put a warning event on every pod.
		"clusterDNS":    []string{c.Addresses.Node.String()},
		"clusterDomain": "cluster.local",
		// A nearly full developer's disk must not evict pods, nor images that
		// no registry can give back.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]string{
			"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		// Tests wait for what the kubelet reports, so it looks more often than
		// on a real node and reports without a budget.
		"syncFrequency":             "10s",
		"nodeStatusUpdateFrequency": "10s",
		"nodeStatusReportFrequency": "1m",
		"eventRecordQPS":            0,
		"kubeAPIQPS":                100,
		"kubeAPIBurst":              200,
		"oomScoreAdj":               0,
		"volumeStatsAggPeriod":      "-1s",
	}, "", "  ")
}

// kubeconfig is where the credentials of a user of the API server are.
func (c *Cluster) kubeconfig(user string) string { return c.path("kubeconfig", user+".yaml") }

// writeKubeconfig writes the credentials of a user whose certificate is
// pki/USER.crt, all in one file so that it may be copied.
func (c *Cluster) writeKubeconfig(user string) error {
	var encoded []any
	for _, file := range []string{"ca.crt", user + ".crt", user + ".key"} {
		content, err := os.ReadFile(c.path("pki", file))
		if err != nil {
			return err
		}
		encoded = append(encoded, base64.StdEncoding.EncodeToString(content))
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[4]s
users:
- name: %[3]s
  user:
    client-certificate-data: %[5]s
    client-key-data: %[6]s
contexts:
- name: %[1]s
  context: {cluster: %[1]s, user: %[3]s}
current-context: %[1]s
`, append([]any{"jobqueue-localcluster-" + c.Name, c.apiServer(), user}, encoded...)...)
	return writeFile(c.kubeconfig(user), []byte(text), 0o600)
}

// writeConfigs writes every configuration file of the cluster.
func (c *Cluster) writeConfigs() error {
	for _, user := range []string{"admin", "controller-manager", "scheduler", "kubelet", "proxy"} {
		if err := c.writeKubeconfig(user); err != nil {
			return err
		}
	}
	plugins, err := cniPlugins()
	if err != nil {
		return err
	}
	capable, err := hasSysResource()
	if err != nil {
		return err
	}
	containerd, err := renderContainerd(containerdValues{
		State: c.Dir, Socket: c.containerdSocket(), PauseImage: pauseImage, CNIPlugins: plugins, RestrictOOMScore: !capable,
	})
	if err != nil {
		return err
	}
	cni, err := renderCNI(c.Name, c.Addresses)
	if err != nil {
		return err
	}
	kubelet, err := renderKubelet(c)
	if err != nil {
		return err
	}
	for file, content := range map[string][]byte{
		"containerd.toml":       []byte(containerd),
		"cni/jobqueue.conflist": cni,
		"kubelet.json":          kubelet,
		// Pods that ask for the node's name servers get none: the machine's
		// own are out of reach.
		"resolv.conf": []byte("# This cluster has no name servers.\n"),
	} {
		if err := writeFile(c.path(file), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// cniPlugins finds the directory with the CNI plugins.
func cniPlugins() (string, error) {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if present(filepath.Join(dir, "ptp")) && present(filepath.Join(dir, "host-local")) && present(filepath.Join(dir, "loopback")) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the CNI plugins ptp, host-local and loopback are neither in /usr/lib/cni nor in /opt/cni/bin")
}

// writeFile writes a file and makes the directories above it.
func writeFile(file string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, mode)
}
