package charts

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// maxApplyBytes is what an annotation may hold: client-side `kubectl apply` keeps the whole
// object, as JSON, in one.
const maxApplyBytes = 262144

// manifest is what a chart or a kustomization gives.
type manifest []unstructured.Unstructured

func parse(t *testing.T, text string) manifest {
	t.Helper()
	var objects manifest
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		var object unstructured.Unstructured
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("parse a manifest: %v", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// ids lists the objects as Kind/name, or Kind/namespace/name.
func (m manifest) ids() []string {
	var ids []string
	for _, o := range m {
		id := o.GetKind() + "/" + o.GetName()
		if o.GetNamespace() != "" {
			id = o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (m manifest) ofKind(kind string) manifest {
	return slices.DeleteFunc(slices.Clone(m), func(o unstructured.Unstructured) bool { return o.GetKind() != kind })
}

func convert[T any](t *testing.T, object unstructured.Unstructured) T {
	t.Helper()
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &typed, true); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
	return typed
}

func (m manifest) deployment(t *testing.T) appsv1.Deployment {
	t.Helper()
	found := m.ofKind("Deployment")
	if len(found) != 1 {
		t.Fatalf("%d Deployments, want 1", len(found))
	}
	return convert[appsv1.Deployment](t, found[0])
}

func kustomization(t *testing.T, path string) manifest {
	t.Helper()
	return parse(t, kubectl(t, "kustomize", path))
}

// helmTemplate renders a chart. A helm built from source believes in an ancient Kubernetes
// unless it is told the version, or asks a cluster.
func helmTemplate(t *testing.T, chart, namespace string, args ...string) manifest {
	t.Helper()
	args = append([]string{"template", "jobqueue", chart, "--namespace", namespace, "--kube-version", "1.36.0"}, args...)
	return parse(t, helm(t, args...))
}

func TestChartsLint(t *testing.T) {
	for _, chart := range []string{"jobqueue-crds", "jobqueue-operator"} {
		helm(t, "lint", "--strict", "--kube-version", "1.36.0", chart)
	}
}

func TestChartFilesAreCopiesOfConfig(t *testing.T) {
	copies := map[string]string{
		"../config/crd/bases/*.yaml": "jobqueue-crds/files",
		"../config/rbac/*role.yaml":  "jobqueue-operator/files",
	}
	for glob, dir := range copies {
		sources, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, source := range sources {
			names = append(names, filepath.Base(source))
			want, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, filepath.Base(source)))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s differs from its copy in %s (%v): run `make generate`", source, dir, err)
			}
		}
		copied, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range copied {
			if !slices.Contains(names, filepath.Base(file)) {
				t.Errorf("%s has no source in %s", file, glob)
			}
		}
	}
}

func TestCRDs(t *testing.T) {
	fromConfig := kustomization(t, "../config/crd")
	fromChart := helmTemplate(t, "jobqueue-crds", "jobqueue-system", "--set", "labels.team=data")
	want := []string{"CustomResourceDefinition/jobqueues.jobqueue.dev", "CustomResourceDefinition/queuedatabases.jobqueue.dev"}
	for name, m := range map[string]manifest{"config/crd": fromConfig, "charts/jobqueue-crds": fromChart} {
		if diff := cmp.Diff(want, m.ids()); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
		for _, crd := range m {
			data, err := json.Marshal(crd.Object)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %s has %d bytes as JSON", name, crd.GetName(), len(data))
			if len(data) >= maxApplyBytes {
				t.Errorf("%s: %s has %d bytes as JSON, and client-side apply takes less than %d", name, crd.GetName(), len(data), maxApplyBytes)
			}
		}
	}
	specs := func(m manifest) map[string]any {
		specs := map[string]any{}
		for _, crd := range m {
			specs[crd.GetName()] = crd.Object["spec"]
		}
		return specs
	}
	if diff := cmp.Diff(specs(fromConfig), specs(fromChart)); diff != "" {
		t.Errorf("the chart's CRDs are not those of config/crd: -config +chart\n%s", diff)
	}
	for _, crd := range fromChart {
		if got := crd.GetAnnotations()["helm.sh/resource-policy"]; got != "keep" {
			t.Errorf("%s: helm.sh/resource-policy is %q, want keep: uninstalling would delete every JobQueue", crd.GetName(), got)
		}
		if got := crd.GetLabels()["team"]; got != "data" {
			t.Errorf("%s: label team is %q, want data", crd.GetName(), got)
		}
	}
	for _, crd := range helmTemplate(t, "jobqueue-crds", "jobqueue-system", "--set", "keep=false") {
		if _, ok := crd.GetAnnotations()["helm.sh/resource-policy"]; ok {
			t.Errorf("%s is kept with keep=false", crd.GetName())
		}
	}
}

// rules gives the rules of every Role and ClusterRole by kind and name.
func (m manifest) rules(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, kind := range []string{"Role", "ClusterRole"} {
		for _, o := range m.ofKind(kind) {
			rules[kind+"/"+o.GetName()] = convert[rbacv1.ClusterRole](t, o).Rules
		}
	}
	return rules
}

// TestOneOperatorWhateverTheTool compares what kustomize and helm install: the same rights
// for the same account, and the same pod.
func TestOneOperatorWhateverTheTool(t *testing.T) {
	fromConfig := kustomization(t, "../config/default")
	fromChart := helmTemplate(t, "jobqueue-operator", "jobqueue-system", "--set", "image.tag=dev")

	renamed := map[string]string{
		"ClusterRole/jobqueue-editor": "ClusterRole/jobqueue-operator-editor",
		"ClusterRole/jobqueue-viewer": "ClusterRole/jobqueue-operator-viewer",
	}
	want := fromConfig.rules(t)
	for from, to := range renamed {
		want[to] = want[from]
		delete(want, from)
	}
	if diff := cmp.Diff(want, fromChart.rules(t)); diff != "" {
		t.Errorf("rights differ: -config +chart\n%s", diff)
	}

	ignoreMeta := cmpopts.IgnoreFields(rbacv1.ClusterRoleBinding{}, "ObjectMeta")
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		bindings := func(m manifest) map[string]rbacv1.ClusterRoleBinding {
			all := map[string]rbacv1.ClusterRoleBinding{}
			for _, o := range m.ofKind(kind) {
				all[o.GetNamespace()+"/"+o.GetName()] = convert[rbacv1.ClusterRoleBinding](t, o)
			}
			return all
		}
		if diff := cmp.Diff(bindings(fromConfig), bindings(fromChart), ignoreMeta); diff != "" {
			t.Errorf("%ss differ: -config +chart\n%s", kind, diff)
		}
	}

	fromConfigSpec, fromChartSpec := fromConfig.deployment(t).Spec, fromChart.deployment(t).Spec
	ignore := cmp.Options{
		cmpopts.IgnoreFields(appsv1.DeploymentSpec{}, "Selector"),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Labels" }, cmp.Ignore()),
	}
	if diff := cmp.Diff(fromConfigSpec, fromChartSpec, ignore); diff != "" {
		t.Errorf("Deployments differ: -config +chart\n%s", diff)
	}
}

func TestNamespacedModeHasRolesOnly(t *testing.T) {
	everywhere := kustomization(t, "../config/default").rules(t)["ClusterRole/jobqueue-operator"]
	cases := map[string]struct {
		objects    manifest
		namespaces []string
		arg        string
	}{
		"kustomize": {
			objects:    kustomization(t, "../config/namespaced"),
			namespaces: []string{"jobqueue-system"},
			arg:        "--watch-namespaces=$(POD_NAMESPACE)",
		},
		"helm": {
			objects:    helmTemplate(t, "jobqueue-operator", "jobqueue-system", "--set", "watchNamespaces={team-a,team-b}"),
			namespaces: []string{"team-a", "team-b"},
			arg:        "--watch-namespaces=team-a,team-b",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, o := range tc.objects {
				switch o.GetKind() {
				case "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace":
					t.Errorf("%s/%s is for the whole cluster", o.GetKind(), o.GetName())
				}
				if o.GetNamespace() == "" {
					t.Errorf("%s/%s names no namespace", o.GetKind(), o.GetName())
				}
			}
			got := map[string]bool{}
			for _, o := range tc.objects.ofKind("Role") {
				if o.GetName() != "jobqueue-operator" {
					continue
				}
				got[o.GetNamespace()] = true
				if diff := cmp.Diff(everywhere, convert[rbacv1.Role](t, o).Rules); diff != "" {
					t.Errorf("Role in %s: -cluster-wide +namespaced\n%s", o.GetNamespace(), diff)
				}
			}
			if diff := cmp.Diff(tc.namespaces, slices.Sorted(maps.Keys(got))); diff != "" {
				t.Errorf("namespaces with a Role: -want +got\n%s", diff)
			}
			if args := tc.objects.deployment(t).Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, tc.arg) {
				t.Errorf("args %q lack %s", args, tc.arg)
			}
		})
	}
}

func TestNamespacedKustomizationFollowsItsNamespace(t *testing.T) {
	// kustomize takes relative paths only, so the overlay lies in the tree for a moment.
	dir, err := os.MkdirTemp("../config", "overlay-") //nolint:usetesting // it must lie beside the tree
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	overlay := "namespace: team-a\nresources: [../namespaced]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	objects := kustomization(t, dir)
	for _, o := range objects {
		if o.GetNamespace() != "team-a" {
			t.Errorf("%s/%s is in %q, want team-a", o.GetKind(), o.GetName(), o.GetNamespace())
		}
	}
	for _, o := range objects.ofKind("RoleBinding") {
		for _, subject := range convert[rbacv1.RoleBinding](t, o).Subjects {
			if subject.Namespace != "team-a" {
				t.Errorf("RoleBinding/%s binds an account of %q, want team-a", o.GetName(), subject.Namespace)
			}
		}
	}
}

func TestOperatorChartNames(t *testing.T) {
	cases := map[string]struct{ release, namespace, wantDeployment, wantClusterRole string }{
		"the documented release has kustomize's names": {
			"jobqueue", "jobqueue-system", "jobqueue-operator", "jobqueue-operator",
		},
		"a release named after the chart": {
			"jobqueue-operator", "jobqueue-system", "jobqueue-operator", "jobqueue-operator",
		},
		"any other": {
			"blue", "jobqueue-system", "blue-jobqueue-operator", "blue-jobqueue-operator",
		},
		"cluster-wide names differ between namespaces": {
			"jobqueue", "team-a", "jobqueue-operator", "jobqueue-operator-team-a",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m := parse(t, helm(t, "template", tc.release, "jobqueue-operator", "--namespace", tc.namespace, "--kube-version", "1.36.0"))
			if got := m.deployment(t).Name; got != tc.wantDeployment {
				t.Errorf("Deployment %s, want %s", got, tc.wantDeployment)
			}
			if got := m.ofKind("ClusterRoleBinding")[0].GetName(); got != tc.wantClusterRole {
				t.Errorf("ClusterRoleBinding %s, want %s", got, tc.wantClusterRole)
			}
		})
	}
}

func TestOperatorChartImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	cases := map[string]struct{ set, want string }{
		"the tag is the chart's appVersion": {"image.tag=", "docker.io/jobqueue/jobqueue:0.1.0"},
		"a tag":                             {"image.tag=dev", "docker.io/jobqueue/jobqueue:dev"},
		"another registry":                  {"image.repository=registry.example/jobqueue", "registry.example/jobqueue:0.1.0"},
		"a digest":                          {"image.digest=" + digest, "docker.io/jobqueue/jobqueue:0.1.0@" + digest},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := helmTemplate(t, "jobqueue-operator", "jobqueue-system", "--set", tc.set).deployment(t).Spec.Template.Spec.Containers[0]
			if c.Image != tc.want {
				t.Errorf("image %s, want %s", c.Image, tc.want)
			}
			for _, e := range c.Env {
				if e.Name == "OPERATOR_IMAGE" && e.Value != tc.want {
					t.Errorf("OPERATOR_IMAGE is %s, want %s", e.Value, tc.want)
				}
			}
		})
	}
}

func TestOperatorChartRefusesWrongValues(t *testing.T) {
	cases := map[string]string{
		"a value that is not there":   "replicaCount=2",
		"an image value, misspelled":  "image.name=x",
		"no replicas at all":          "replicas=-1",
		"a pull policy":               "image.pullPolicy=Sometimes",
		"a digest":                    "image.digest=latest",
		"a log level":                 "log.level=trace",
		"a namespace":                 "watchNamespaces={Team_A}",
		"the health probe's own port": "metrics.port=8081",
	}
	for name, set := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := command(t, "", helmPath, "template", "jobqueue", "jobqueue-operator", "--kube-version", "1.36.0", "--set", set)
			if err == nil {
				t.Fatalf("%s was accepted:\n%s", set, out)
			}
			key, _, _ := strings.Cut(set, "=")
			if section, _, _ := strings.Cut(key, "."); !strings.Contains(err.Error(), section) {
				t.Errorf("the error does not name %s: %v", section, err)
			}
		})
	}
}
