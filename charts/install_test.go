package charts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// tryPod asks the API server, without creating it, for the pod that the Deployment would make.
// Asking for the Deployment would not do: the pod security standard only warns about those.
func tryPod(t *testing.T, m manifest, namespace string, change ...func(*corev1.PodSpec)) error {
	t.Helper()
	template := m.deployment(t).Spec.Template
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "try-", Namespace: namespace,
			Labels: template.Labels, Annotations: template.Annotations,
		},
		Spec: template.Spec,
	}
	for _, f := range change {
		f(&pod.Spec)
	}
	return k8s.Create(t.Context(), pod, client.DryRunAll)
}

// may asks whether the operator's account has a right. An empty namespace means all of them.
func may(t *testing.T, account, verb, group, resource, namespace string) bool {
	t.Helper()
	resource, subresource, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   "system:serviceaccount:" + strings.Replace(account, "/", ":", 1),
		Groups: []string{"system:serviceaccounts", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace,
		},
	}}
	if err := k8s.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// checkRights proves that the account has the rights it needs in the watched namespaces and
// in its own, and none of those that would make it dangerous, anywhere.
func checkRights(t *testing.T, account string, watched, unwatched []string) {
	t.Helper()
	needed := []struct{ verb, group, resource string }{
		{"watch", "jobqueue.dev", "jobqueues"},
		{"patch", "jobqueue.dev", "jobqueues/status"},
		{"patch", "jobqueue.dev", "queuedatabases/status"},
		{"get", "", "secrets"},
		{"patch", "apps", "deployments"},
		{"patch", "batch", "cronjobs"},
		{"patch", "policy", "poddisruptionbudgets"},
	}
	own, _, _ := strings.Cut(account, "/")
	for _, n := range needed {
		for _, namespace := range watched {
			if !may(t, account, n.verb, n.group, n.resource, namespace) {
				t.Errorf("%s may not %s %s in %q, and must", account, n.verb, n.resource, namespace)
			}
		}
		for _, namespace := range unwatched {
			if may(t, account, n.verb, n.group, n.resource, namespace) {
				t.Errorf("%s may %s %s in %q, which it does not watch", account, n.verb, n.resource, namespace)
			}
		}
	}
	if !may(t, account, "create", "coordination.k8s.io", "leases", own) {
		t.Errorf("%s may not create Leases in %s, and must", account, own)
	}
	if may(t, account, "create", "coordination.k8s.io", "leases", "kube-system") {
		t.Errorf("%s may create Leases in kube-system", account)
	}
	forbidden := []struct{ verb, group, resource string }{
		{"create", "", "pods"},
		{"create", "", "pods/exec"},
		{"create", "", "secrets"},
		{"update", "", "secrets"},
		{"delete", "", "secrets"},
		{"create", "", "serviceaccounts/token"},
		{"delete", "jobqueue.dev", "jobqueues"},
		{"patch", "jobqueue.dev", "queuedatabases"},
		{"delete", "apps", "deployments"},
		{"create", "rbac.authorization.k8s.io", "rolebindings"},
		{"impersonate", "", "users"},
		{"get", "", "nodes"},
		{"get", "", "configmaps"},
	}
	for _, f := range forbidden {
		for _, namespace := range append(slices.Clone(watched), unwatched...) {
			if may(t, account, f.verb, f.group, f.resource, namespace) {
				t.Errorf("%s may %s %s in %q", account, f.verb, f.resource, namespace)
			}
		}
	}
}

// TestKubectlApply is the way of config/: client-side apply, as most people and GitOps
// tools do it.
func TestKubectlApply(t *testing.T) {
	removeKindsAfter(t)
	rendered := kubectl(t, "kustomize", "../config/default")
	out := kubectlStdin(t, rendered, "apply", "-f", "-")
	if strings.Contains(out, "configured") {
		t.Errorf("the first apply found something there:\n%s", out)
	}
	waitForKinds(t)

	t.Run("applying again changes nothing", func(t *testing.T) {
		for line := range strings.Lines(kubectlStdin(t, rendered, "apply", "-f", "-")) {
			if !strings.HasSuffix(strings.TrimSpace(line), " unchanged") {
				t.Errorf("%s", line)
			}
		}
		kubectlStdin(t, rendered, "diff", "-f", "-")
	})

	t.Run("server-side apply takes the same manifest", func(t *testing.T) {
		kubectlStdin(t, rendered, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
	})

	t.Run("the namespace admits the operator's pod and no privileged one", func(t *testing.T) {
		m := parse(t, rendered)
		if err := tryPod(t, m, "jobqueue-system"); err != nil {
			t.Error(err)
		}
		err := tryPod(t, m, "jobqueue-system", func(p *corev1.PodSpec) { p.HostNetwork = true })
		if !apierrors.IsForbidden(err) {
			t.Errorf("a pod on the host's network: %v, want forbidden", err)
		}
	})

	t.Run("its account may do what it must and no more", func(t *testing.T) {
		checkRights(t, "jobqueue-system/jobqueue-operator", []string{"default", "jobqueue-system", ""}, nil)
	})

	t.Run("samples", func(t *testing.T) {
		makeNamespace(t, "samples")
		kubectl(t, "apply", "--namespace", "samples", "-k", "../config/samples")
		for line := range strings.Lines(kubectl(t, "apply", "--namespace", "samples", "-k", "../config/samples")) {
			if !strings.HasSuffix(strings.TrimSpace(line), " unchanged") {
				t.Errorf("applied again: %s", line)
			}
		}
		if got := kubectl(t, "scale", "--namespace", "samples", "jobqueue/emails", "--replicas=3"); !strings.Contains(got, "scaled") {
			t.Errorf("kubectl scale: %s", got)
		}
		if got := kubectl(t, "get", "--namespace", "samples", "jq", "emails", "-o", "jsonpath={.spec.replicas}"); got != "3" {
			t.Errorf("spec.replicas is %q after kubectl scale, want 3", got)
		}
	})

	t.Run("the namespaced variant", func(t *testing.T) {
		kubectl(t, "apply", "--dry-run=server", "-k", "../config/namespaced")
	})
}

// TestMinimalJobQueueIsShort keeps the promise that a queue takes less than 15 lines.
func TestMinimalJobQueueIsShort(t *testing.T) {
	data, err := os.ReadFile("../config/samples/jobqueue.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(data), "\n"); lines >= 15 {
		t.Errorf("the minimal JobQueue has %d lines, want less than 15", lines)
	}
}

// TestHelmInstall is the way of charts/: install, upgrade, uninstall.
func TestHelmInstall(t *testing.T) {
	const namespace = "helm-system"
	makeNamespace(t, namespace)
	removeKindsAfter(t)
	helm(t, "install", "jobqueue-crds", "jobqueue-crds", "--namespace", namespace)
	out := helm(t, "install", "jobqueue", "jobqueue-operator", "--namespace", namespace)
	if strings.Contains(out, "does not know these kinds") {
		t.Errorf("the notes do not see the CRDs:\n%s", out)
	}
	waitForKinds(t)

	t.Run("the queue of the notes is accepted", func(t *testing.T) {
		_, rest, found := strings.Cut(out, "a queue in it:\n")
		example, _, end := strings.Cut(rest, "Then see")
		if !found || !end {
			t.Fatalf("the notes hold no example:\n%s", out)
		}
		kubectlStdin(t, strings.ReplaceAll(example, "\n  ", "\n"), "apply", "--namespace", namespace, "-f", "-")
	})

	t.Run("the restricted namespace admits the operator's pod", func(t *testing.T) {
		if err := tryPod(t, parse(t, helm(t, "get", "manifest", "jobqueue", "--namespace", namespace)), namespace); err != nil {
			t.Error(err)
		}
	})

	t.Run("its account may do what it must and no more", func(t *testing.T) {
		checkRights(t, namespace+"/jobqueue-operator", []string{"default", namespace, ""}, nil)
	})

	t.Run("upgrade brings the kinds up to date", func(t *testing.T) {
		// An older version of the CRD lacks a field that this one has.
		kubectl(t, "patch", "crd", "jobqueues.jobqueue.dev", "--type=json", "-p",
			`[{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/suspend"}]`)
		helm(t, "upgrade", "jobqueue-crds", "jobqueue-crds", "--namespace", namespace, "--set", "labels.upgraded=yes")
		got := kubectl(t, "get", "crd", "jobqueues.jobqueue.dev", "-o",
			"jsonpath={.metadata.labels.upgraded} {.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.suspend.type}")
		if got != "yes boolean" {
			t.Errorf("after the upgrade: %q, want %q", got, "yes boolean")
		}
		helm(t, "upgrade", "jobqueue", "jobqueue-operator", "--namespace", namespace, "--set", "replicas=2")
	})

	t.Run("uninstalling keeps the queues", func(t *testing.T) {
		helm(t, "uninstall", "jobqueue", "--namespace", namespace)
		helm(t, "uninstall", "jobqueue-crds", "--namespace", namespace)
		if got := kubectl(t, "get", "jobqueues,queuedatabases", "--namespace", namespace, "-o", "name"); strings.Count(got, "\n") != 2 {
			t.Errorf("after helm uninstall: %q, want the JobQueue and the QueueDatabase", got)
		}
		left := kubectl(t, "get", "all,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts", "--namespace", namespace,
			"-l", "app.kubernetes.io/part-of=jobqueue,app.kubernetes.io/managed-by=Helm", "-o", "name")
		if left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	})

	t.Run("installing again takes the kinds over", func(t *testing.T) {
		helm(t, "install", "jobqueue-crds", "jobqueue-crds", "--namespace", namespace)
		helm(t, "uninstall", "jobqueue-crds", "--namespace", namespace)
	})
}

// TestHelmNamespaced installs without a single cluster-wide right.
func TestHelmNamespaced(t *testing.T) {
	for _, namespace := range []string{"ops", "blue", "green", "red"} {
		makeNamespace(t, namespace)
	}
	helm(t, "install", "jobqueue", "jobqueue-operator", "--namespace", "ops", "--set", "watchNamespaces={blue,green}")
	checkRights(t, "ops/jobqueue-operator", []string{"blue", "green"}, []string{"ops", "red", "default", ""})
	if got := kubectl(t, "get", "clusterroles,clusterrolebindings", "-o", "name", "-l", "app.kubernetes.io/instance=jobqueue"); got != "" {
		t.Errorf("cluster-wide objects:\n%s", got)
	}
	helm(t, "uninstall", "jobqueue", "--namespace", "ops")
}

// TestOperatorChartVariants applies the chart under many values. The server checks every
// field of every object, as strictly as it can.
func TestOperatorChartVariants(t *testing.T) {
	const everything = `
image: {repository: registry.example/jobqueue, tag: v1, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
replicas: 3
serviceAccount: {name: operator, annotations: {example.com/role: queue}}
log: {level: debug, format: text}
extraArgs: [--operator-image=registry.example/reaper:v1]
extraEnv: [{name: GOMEMLIMIT, value: 100MiB}]
podLabels: {team: data}
podAnnotations: {example.com/scrape: "true"}
commonLabels: {cost-centre: "42"}
priorityClassName: system-cluster-critical
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 1
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {app.kubernetes.io/name: jobqueue-operator}}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {app.kubernetes.io/name: jobqueue-operator}}
metrics: {port: 9090, service: {annotations: {example.com/a: b}}}
`
	const account, service = "ServiceAccount/variants/jobqueue-operator", "Service/variants/jobqueue-operator-metrics"
	const deployment, role, binding = "Deployment/variants/jobqueue-operator", "ClusterRole/jobqueue-operator-variants", "ClusterRoleBinding/jobqueue-operator-variants"
	const lease, leaseBinding = "Role/variants/jobqueue-operator-leader-election", "RoleBinding/variants/jobqueue-operator-leader-election"
	const editor, viewer = "ClusterRole/jobqueue-operator-variants-editor", "ClusterRole/jobqueue-operator-variants-viewer"
	cases := map[string]struct {
		values string
		want   []string
	}{
		"defaults": {
			want: []string{account, service, deployment, role, binding, lease, leaseBinding, editor, viewer},
		},
		"everything": {
			values: everything,
			want: []string{"ServiceAccount/variants/operator", service, deployment, role, binding, lease, leaseBinding, editor, viewer,
				"PodDisruptionBudget/variants/jobqueue-operator"},
		},
		"nothing but the Deployment": {
			values: "{rbac: {create: false}, serviceAccount: {create: false}, metrics: {enabled: false}, leaderElection: {enabled: false}}",
			want:   []string{deployment},
		},
		"two replicas without a budget": {
			values: "{replicas: 2, podDisruptionBudget: {enabled: false}, rbac: {aggregateToUserRoles: false}}",
			want:   []string{account, service, deployment, role, binding, lease, leaseBinding},
		},
		"namespaced": {
			values: "{watchNamespaces: [variants, default]}",
			want: []string{account, service, deployment, lease, leaseBinding,
				"Role/default/jobqueue-operator-variants", "RoleBinding/default/jobqueue-operator-variants",
				"Role/variants/jobqueue-operator-variants", "RoleBinding/variants/jobqueue-operator-variants"},
		},
	}
	makeNamespace(t, "variants")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(tc.values), 0o600); err != nil {
				t.Fatal(err)
			}
			m := helmTemplate(t, "jobqueue-operator", "variants", "--values", file)
			slices.Sort(tc.want)
			if diff := cmp.Diff(tc.want, m.ids()); diff != "" {
				t.Errorf("objects: -want +got\n%s", diff)
			}
			for i := range m {
				err := k8s.Create(t.Context(), m[i].DeepCopy(), client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
				if err != nil {
					t.Errorf("%s/%s: %v", m[i].GetKind(), m[i].GetName(), err)
				}
			}
			// The test's API server knows only the priorities that Kubernetes brings.
			if err := tryPod(t, m, "variants"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestServiceMonitor(t *testing.T) {
	m := helmTemplate(t, "jobqueue-operator", "jobqueue-system",
		"--set", "metrics.serviceMonitor.enabled=true", "--set", "metrics.serviceMonitor.labels.release=prometheus")
	monitors, services := m.ofKind("ServiceMonitor"), m.ofKind("Service")
	if len(monitors) != 1 || len(services) != 1 {
		t.Fatalf("%d ServiceMonitors and %d Services, want one of each", len(monitors), len(services))
	}
	if got := monitors[0].GetLabels()["release"]; got != "prometheus" {
		t.Errorf("label release is %q", got)
	}
	selector := monitors[0].Object["spec"].(map[string]any)["selector"].(map[string]any)["matchLabels"].(map[string]any)
	for key, value := range selector {
		if got := services[0].GetLabels()[key]; got != fmt.Sprint(value) {
			t.Errorf("it selects %s=%v, and the Service has %q", key, value, got)
		}
	}
}
