// Package charts proves that what is installed works: every object that the kustomize tree
// and the charts give is accepted by a real API server, under the restricted pod security
// standard, with the rights that the controllers ask for and no more.
//
// It needs etcd, kube-apiserver and kubectl in the folder KUBEBUILDER_ASSETS. Helm is the
// program HELM, or else it is built from hack/tools.
package charts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// What TestMain prepares for every test.
var (
	helmPath    string
	kubectlPath string
	kubeconfig  string
	home        string // of helm and kubectl, so that they read and write nothing of the user's
	k8s         client.Client
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return 1, fmt.Errorf("KUBEBUILDER_ASSETS is not set: it names the folder with etcd, kube-apiserver and kubectl; run `make test-integration`, or `make assets` once and set it to what `bin/localcluster assets` prints")
	}
	kubectlPath = filepath.Join(assets, "kubectl")

	dir, err := os.MkdirTemp("", "jobqueue-charts-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	home = dir
	if helmPath, err = findHelm(dir); err != nil {
		return 1, err
	}

	// A busy machine needs longer than the usual 20 seconds.
	cluster := &envtest.Environment{ControlPlaneStartTimeout: 2 * time.Minute}
	log.SetLogger(logr.Discard())
	config, err := cluster.Start()
	if err != nil {
		return 1, fmt.Errorf("start an API server: %w", err)
	}
	defer func() {
		if stopErr := cluster.Stop(); stopErr != nil && err == nil {
			err = fmt.Errorf("stop the API server: %w", stopErr)
		}
	}()
	user, err := cluster.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return 1, err
	}
	data, err := user.KubeConfig()
	if err != nil {
		return 1, err
	}
	kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, data, 0o600); err != nil {
		return 1, err
	}
	if k8s, err = client.New(config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// findHelm gives the path of HELM, or of a helm that it builds into dir.
func findHelm(dir string) (string, error) {
	if path := os.Getenv("HELM"); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "helm")
	build := exec.Command("go", "-C", "../hack/tools", "build", "-o", path, "helm.sh/helm/v3/cmd/helm")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build helm: %w\n%s", err, out)
	}
	return path, nil
}

// command runs a program against the cluster and gives its output and its error, whose text
// is what the program wrote to stderr.
func command(t *testing.T, stdin, program string, args ...string) (string, error) {
	t.Helper()
	// Not the test's context, which is cancelled before its clean-up runs.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{
		"HOME=" + home, "KUBECONFIG=" + kubeconfig, "PATH=" + os.Getenv("PATH"),
		"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
	}
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return kubectlStdin(t, "", args...)
}

func kubectlStdin(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := command(t, stdin, kubectlPath, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := command(t, "", helmPath, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// makeNamespace creates a namespace in which only pods of the restricted standard may run.
// Without a controller manager a namespace is never gone again, so each test has its own.
func makeNamespace(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := k8s.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
}

// installKinds applies the CRDs the way users do, and removes them after the test.
func installKinds(t *testing.T) {
	t.Helper()
	kubectl(t, "apply", "-k", "../config/crd")
	removeKindsAfter(t)
	waitForKinds(t)
}

// waitForKinds waits until the API server serves the new kinds.
func waitForKinds(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"JobQueueList", "QueueDatabaseList"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "jobqueue.dev", Version: "v1alpha1", Kind: kind})
		deadline := time.Now().Add(time.Minute)
		for err := k8s.List(t.Context(), list); err != nil; err = k8s.List(t.Context(), list) {
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func removeKindsAfter(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := command(t, "", kubectlPath, "delete", "--ignore-not-found", "--wait", "-k", "../config/crd"); err != nil {
			t.Error(err)
		}
	})
}
