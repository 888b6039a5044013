package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/controllers"
)

// player plays the Deployment controller and the kubelet of a namespace: it makes
// the pods that Deployments ask for, makes them ready, and takes them away. It
// replaces pods of an older template one at a time, each when the one before has
// been available for minReadySeconds, of which it takes a tenth for a whole. With
// slow drains, pods that are deleted stay terminating until they are let go.
type player struct {
	ns     string
	cancel context.CancelFunc
	done   chan struct{}

	slowDrain atomic.Bool
	unready   atomic.Bool
	// plugs, if set, opens the connections of the pods.
	plugs atomic.Pointer[plugs]

	mu      sync.Mutex
	serial  int
	most    int32 // connections held at most, all pods together
	current int32
}

func newPlayer(ns string) *player {
	ctx, cancel := context.WithCancel(context.Background())
	p := &player{ns: ns, cancel: cancel, done: make(chan struct{})}
	go p.run(ctx)
	return p
}

func (p *player) stop() {
	p.cancel()
	<-p.done
}

func (p *player) run(ctx context.Context) {
	defer close(p.done)
	for ctx.Err() == nil {
		p.round(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// round looks once at all Deployments and pods. Errors pass: the next round tries
// again, and the tests wait for outcomes.
func (p *player) round(ctx context.Context) {
	var deployments appsv1.DeploymentList
	var pods corev1.PodList
	if k8s.List(ctx, &deployments, client.InNamespace(p.ns)) != nil || k8s.List(ctx, &pods, client.InNamespace(p.ns)) != nil {
		return
	}
	p.count(pods.Items)
	for i := range deployments.Items {
		p.play(ctx, &deployments.Items[i], pods.Items)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp != nil && !p.slowDrain.Load() {
			p.letGo(ctx, pod)
		}
	}
}

func (p *player) count(pods []corev1.Pod) {
	var held int32
	for i := range pods {
		n, _ := strconv.Atoi(pods[i].Annotations[controllers.AnnotationConnections])
		held += int32(n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.most = held, max(p.most, held)
}

// mostHeld is the most connections that all pods held together at any time.
func (p *player) mostHeld() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

func (p *player) play(ctx context.Context, d *appsv1.Deployment, pods []corev1.Pod) {
	var live []*corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp == nil && pod.Labels[controllers.LabelQueue] == d.Name {
			live = append(live, pod)
		}
	}
	wanted := int(*d.Spec.Replicas)
	template := d.Spec.Template.Annotations[controllers.AnnotationTemplate]
	if len(live) == wanted {
		if i := slices.IndexFunc(live, func(pod *corev1.Pod) bool {
			return pod.Annotations[controllers.AnnotationTemplate] != template
		}); i >= 0 && available(live, template, d.Spec.MinReadySeconds) {
			_ = k8s.Delete(ctx, live[i])
			return
		}
	}
	for i := wanted; i < len(live); i++ {
		_ = k8s.Delete(ctx, live[i])
	}
	for i := len(live); i < wanted; i++ {
		p.make(ctx, d)
	}
	for _, pod := range live {
		p.setReady(ctx, pod, !p.unready.Load())
	}
	if d.Status.ObservedGeneration != d.Generation {
		d.Status.ObservedGeneration = d.Generation
		_ = k8s.Status().Update(ctx, d)
	}
}

// available reports whether all pods of the new template are old enough for the
// next step of a rollout.
func available(live []*corev1.Pod, template string, minReadySeconds int32) bool {
	for _, pod := range live {
		age := time.Since(pod.CreationTimestamp.Time)
		if pod.Annotations[controllers.AnnotationTemplate] == template && age < time.Duration(minReadySeconds)*time.Second/10 {
			return false
		}
	}
	return true
}

func (p *player) make(ctx context.Context, d *appsv1.Deployment) {
	p.mu.Lock()
	p.serial++
	name := fmt.Sprintf("%s-%d", d.Name, p.serial)
	p.mu.Unlock()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.ns, Name: name, Labels: d.Spec.Template.Labels, Annotations: d.Spec.Template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: *d.Spec.Template.Spec.DeepCopy(),
	}
	pod.Spec.NodeName = "node" // bound, so that deleting it is graceful
	if k8s.Create(ctx, pod) == nil {
		p.plugs.Load().plug(ctx, pod)
	}
}

func (p *player) setReady(ctx context.Context, pod *corev1.Pod, ready bool) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == status {
			return
		}
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	_ = k8s.Status().Update(ctx, pod)
}

func (p *player) letGo(ctx context.Context, pod *corev1.Pod) {
	p.plugs.Load().unplug(pod)
	_ = k8s.Delete(ctx, pod, client.GracePeriodSeconds(0))
}

// letOneGo ends one terminating pod; false when there is none.
func (p *player) letOneGo() bool {
	ctx := within(5 * time.Second)
	var pods corev1.PodList
	Expect(k8s.List(ctx, &pods, client.InNamespace(p.ns))).To(Succeed())
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp != nil {
			p.plugs.Load().unplug(&pods.Items[i])
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0)))).To(Succeed())
			return true
		}
	}
	return false
}

// pods counts the pods of a queue: those that stay and those that go.
func (w *world) pods(name string) (live, terminating int) {
	var pods corev1.PodList
	err := k8s.List(within(5*time.Second), &pods, client.InNamespace(w.ns), client.MatchingLabels{controllers.LabelQueue: name})
	if err != nil && !apierrors.IsNotFound(err) {
		return -1, -1
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp != nil {
			terminating++
		} else {
			live++
		}
	}
	return live, terminating
}
