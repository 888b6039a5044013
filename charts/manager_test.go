package charts

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestManagerWorksWithItsRights runs the operator with the arguments and as the account that
// the manifests give it. It must become ready and say what it found of a QueueDatabase, and
// the API server must refuse it nothing: the rights are enough, and no more is asked for.
func TestManagerWorksWithItsRights(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "jobqueue")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/jobqueue")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, out)
	}
	installKinds(t)

	t.Run("all namespaces", func(t *testing.T) {
		makeNamespace(t, "manager-all")
		makeNamespace(t, "manager-user")
		m := applyChart(t, "manager-all")
		kubectl(t, "apply", "--namespace", "manager-user", "-k", "../config/samples")
		manager := startManager(t, binary, m, "manager-all")
		manager.waitReady(t)
		waitReason(t, manager, "QueueDatabase", "manager-user", "app", "SecretNotFound")
		waitReason(t, manager, "JobQueue", "manager-user", "emails", "")
		deleteSamples(t, "manager-user")
		manager.stop(t)
	})

	t.Run("two namespaces", func(t *testing.T) {
		for _, namespace := range []string{"manager-ops", "manager-blue", "manager-green", "manager-red"} {
			makeNamespace(t, namespace)
		}
		m := applyChart(t, "manager-ops", "--set", "watchNamespaces={manager-blue,manager-green}")
		for _, namespace := range []string{"manager-blue", "manager-green", "manager-red"} {
			kubectl(t, "apply", "--namespace", namespace, "-k", "../config/samples")
		}
		manager := startManager(t, binary, m, "manager-ops")
		manager.waitReady(t)
		waitReason(t, manager, "QueueDatabase", "manager-blue", "app", "SecretNotFound")
		waitReason(t, manager, "QueueDatabase", "manager-green", "app", "SecretNotFound")
		if got := readyReason(t, "QueueDatabase", "manager-red", "app"); got != "" {
			t.Errorf("a QueueDatabase in a namespace that is not watched has the reason %q", got)
		}
		deleteSamples(t, "manager-blue", "manager-green", "manager-red")
		manager.stop(t)
	})
}

// applyChart applies what the operator's chart gives for a release in a namespace.
func applyChart(t *testing.T, namespace string, args ...string) manifest {
	t.Helper()
	args = append([]string{"template", "jobqueue", "jobqueue-operator", "--namespace", namespace, "--kube-version", "1.36.0"}, args...)
	text := helm(t, args...)
	kubectlStdin(t, text, "apply", "-f", "-")
	return parse(t, text)
}

// deleteSamples deletes the samples for good, which the operator's finalizer must let happen
// although it has never reached the database.
func deleteSamples(t *testing.T, namespaces ...string) {
	t.Helper()
	for _, namespace := range namespaces {
		kubectl(t, "delete", "--namespace", namespace, "--wait", "--timeout=40s", "-k", "../config/samples")
	}
}

type manager struct {
	cmd    *exec.Cmd
	probe  string
	log    *syncBuffer
	exited chan error
}

// syncBuffer may be read while a process writes to it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// startManager runs the container of the Deployment as a process of this machine. Only the
// addresses differ, because another process may hold the ports.
func startManager(t *testing.T, binary string, m manifest, namespace string) *manager {
	t.Helper()
	spec := m.deployment(t).Spec.Template.Spec
	container := spec.Containers[0]
	probe := freeAddress(t)
	args := slices.Clone(container.Args)
	for i, arg := range args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--health-probe-bind-address":
			args[i] = name + "=" + probe
		case "--metrics-bind-address":
			args[i] = name + "=" + freeAddress(t)
		}
	}
	p := &manager{probe: "http://" + probe, log: &syncBuffer{}, exited: make(chan error, 1)}
	// The clean-up ends it, after the test's own context.
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
	p.cmd.Env = append(environment(container.Env, namespace),
		"KUBECONFIG="+accountKubeconfig(t, namespace, spec.ServiceAccountName))
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.exited <- p.cmd.Wait() }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

func environment(vars []corev1.EnvVar, namespace string) []string {
	var env []string
	for _, v := range vars {
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil && v.ValueFrom.FieldRef.FieldPath == "metadata.namespace" {
			v.Value = namespace
		}
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}

// accountKubeconfig writes a kubeconfig with which the API server takes the caller for the
// service account, and so for its rights.
func accountKubeconfig(t *testing.T, namespace, name string) string {
	t.Helper()
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := sigsyaml.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	user := config["users"].([]any)[0].(map[string]any)["user"].(map[string]any)
	user["as"] = fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name)
	if data, err = sigsyaml.Marshal(config); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// until asks again and again for as long as a slow machine may need.
func (p *manager) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		select {
		case err := <-p.exited:
			t.Fatalf("the operator ended (%v) before %s:\n%s", err, what, p.log)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("no sign of it: %s. The operator's log:\n%s", what, p.log)
		}
	}
}

func (p *manager) waitReady(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/healthz", "/readyz"} {
		p.until(t, "it answers "+path, func() bool {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.probe+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return false
			}
			defer func() { _ = response.Body.Close() }()
			return response.StatusCode == http.StatusOK
		})
	}
}

// stop ends the operator as the kubelet does, and looks into what it logged.
func (p *manager) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.exited:
		if err != nil {
			t.Errorf("the operator ended with %v:\n%s", err, p.log)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("the operator has not ended within its grace period:\n%s", p.log)
	}
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, "forbidden") {
			t.Errorf("refused: %s", line)
		}
	}
}

func get(t *testing.T, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "jobqueue.dev", Version: "v1alpha1", Kind: kind})
	if err := k8s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
		t.Fatal(err)
	}
	return object
}

func readyReason(t *testing.T, kind, namespace, name string) string {
	t.Helper()
	conditions, _, err := unstructured.NestedSlice(get(t, kind, namespace, name).Object, "status", "conditions")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == "Ready" {
			return fmt.Sprint(c["reason"])
		}
	}
	return ""
}

// waitReason waits until the object's condition Ready has a reason: want, or any.
func waitReason(t *testing.T, p *manager, kind, namespace, name, want string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s %s/%s: %v", kind, namespace, name, describe(kind, namespace, name))
		}
	})
	p.until(t, fmt.Sprintf("%s %s/%s has the reason %q", kind, namespace, name, want), func() bool {
		got := readyReason(t, kind, namespace, name)
		return got != "" && (want == "" || got == want)
	})
}

// describe gives an object for a message, also after the test's context has ended.
func describe(kind, namespace, name string) string {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "jobqueue.dev", Version: "v1alpha1", Kind: kind})
	if err := k8s.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
		return err.Error()
	}
	data, err := sigsyaml.Marshal(object.Object)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
