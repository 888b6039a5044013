package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/controllers"
)

// selector is how a JobQueue's worker pods are found, as its status says it for /scale.
func (p *place) selector(ctx context.Context, jobQueue string) (client.MatchingLabelsSelector, error) {
	jq, err := p.jobQueue(ctx, jobQueue)
	if err != nil {
		return client.MatchingLabelsSelector{}, err
	}
	selector, err := labels.Parse(jq.Status.Selector)
	if err == nil && selector.Empty() {
		err = errors.New("the status has no selector")
	}
	return client.MatchingLabelsSelector{Selector: selector}, err
}

// pods returns a JobQueue's worker pods, those left out that are going.
func (p *place) pods(ctx context.Context, jobQueue string) ([]corev1.Pod, error) {
	selector, err := p.selector(ctx, jobQueue)
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	err = kube.List(ctx, &list, client.InNamespace(p.namespace), selector)
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }), err
}

// awaitPods waits until a JobQueue has exactly so many pods and all are ready.
func (p *place) awaitPods(ctx context.Context, jobQueue string, n int, within time.Duration) []corev1.Pod {
	GinkgoHelper()
	var pods []corev1.Pod
	all := And(HaveLen(n), HaveEach(HaveSuffix("ready")))
	if n == 0 { // HaveEach refuses to speak of nothing
		all = BeEmpty()
	}
	Eventually(func() ([]string, error) {
		var err error
		pods, err = p.pods(ctx, jobQueue)
		return describe(pods), err
	}).WithContext(ctx).WithTimeout(within).Should(all, "JobQueue %s has not got %d ready pods", jobQueue, n)
	return pods
}

// describe names pods and says which of them are ready, for messages that can be read.
func describe(pods []corev1.Pod) []string {
	words := make([]string, len(pods))
	for i, pod := range pods {
		words[i] = pod.Name + " starting"
		if isReady(pod) {
			words[i] = pod.Name + " ready"
		}
	}
	return words
}

func isReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// deployment returns the Deployment that the operator keeps for a JobQueue.
func (p *place) deployment(ctx context.Context, jobQueue string) (*appsv1.Deployment, error) {
	var list appsv1.DeploymentList
	if err := kube.List(ctx, &list, client.InNamespace(p.namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if owner := metav1.GetControllerOf(&list.Items[i]); owner != nil && owner.Kind == "JobQueue" && owner.Name == jobQueue {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("JobQueue %s has no Deployment", jobQueue)
}

// sigkill kills a pod's worker as the kernel would: with SIGKILL when this machine is the
// node, else by having the kubelet delete the pod without grace.
func (p *place) sigkill(ctx context.Context, pod corev1.Pod) (how string) {
	GinkgoHelper()
	if onLocalCluster {
		pid := findWorker(pod.UID)
		Expect(pid).NotTo(BeZero(), "no process of pod %s on this machine", pod.Name)
		Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
		return "kill -9 " + strconv.Itoa(pid)
	}
	Expect(kube.Delete(ctx, &pod, client.GracePeriodSeconds(0))).To(Succeed())
	return "deleted without grace"
}

// findWorker returns the process id of a pod's worker on this machine, or 0. The kubelet
// names a pod's control group after the pod's UID.
func findWorker(uid types.UID) int {
	names := []string{"pod" + string(uid), "pod" + strings.ReplaceAll(string(uid), "-", "_")}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !strings.Contains(string(groups), names[0]) && !strings.Contains(string(groups), names[1]) {
			continue
		}
		if cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && strings.HasPrefix(string(cmdline), "/jobqueue\x00worker") {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	return 0
}

// podWatch remembers, by pod, when it was first seen, and how its containers ended: a pod
// that is deleted takes its exit codes with it.
type podWatch struct {
	mu   sync.Mutex
	seen map[string]time.Time
	ends map[string]corev1.ContainerStateTerminated
	gone map[string]bool
}

// watchPods watches the workers of the place, not its reaper, from now until the spec ends.
func (p *place) watchPods(ctx context.Context) *podWatch {
	GinkgoHelper()
	events, err := kube.Watch(ctx, &corev1.PodList{}, client.InNamespace(p.namespace), client.HasLabels{controllers.LabelQueue})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(events.Stop)
	w := &podWatch{seen: map[string]time.Time{}, ends: map[string]corev1.ContainerStateTerminated{}, gone: map[string]bool{}}
	go func() {
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				w.note(pod, event.Type)
			}
		}
	}()
	return w
}

func (w *podWatch) note(pod *corev1.Pod, what watch.EventType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[pod.Name].IsZero() {
		w.seen[pod.Name] = time.Now()
	}
	w.gone[pod.Name] = what == watch.Deleted
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Terminated != nil {
			w.ends[pod.Name] = *status.State.Terminated
		}
	}
}

// first is when the first pod was seen; zero when none was.
func (w *podWatch) first() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first time.Time
	for _, at := range w.seen {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// expectExit waits until a pod is gone and checks the exit code of its container.
func (w *podWatch) expectExit(ctx context.Context, pod string, code int32, within time.Duration) {
	GinkgoHelper()
	Eventually(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.gone[pod]
	}).WithContext(ctx).WithTimeout(within).Should(BeTrue(), "pod %s does not go", pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	Expect(w.ends).To(HaveKey(pod), "the end of pod %s was not seen", pod)
	Expect(w.ends[pod].ExitCode).To(Equal(code), "pod %s: %+v", pod, w.ends[pod])
}

// findPod reports whether a pod exists, be it on its way out.
func findPod(ctx context.Context, p *place, name string) (bool, error) {
	err := kube.Get(ctx, p.key(name), &corev1.Pod{})
	return err == nil, client.IgnoreNotFound(err)
}
