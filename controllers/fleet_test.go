package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testPod(change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels:      map[string]string{LabelQueue: "emails", "pod-template-hash": "1"},
		Annotations: map[string]string{AnnotationConnections: "3", AnnotationTemplate: "new"},
	}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestCountPods(t *testing.T) {
	now := metav1.Now()
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	old := func(p *corev1.Pod) {
		p.Annotations = map[string]string{AnnotationConnections: "5", AnnotationTemplate: "old"}
	}
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = &now }
	phase := func(ph corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = ph } }
	waiting := func(reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Name = "emails-x"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "worker", Image: "emails:1",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
		}
	}
	ended := func(code int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code}
		}
	}
	started := func(after time.Duration, restarts int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.CreationTimestamp = now
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: restarts,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(after))}}}}
		}
	}
	cases := map[string]struct {
		pods []corev1.Pod
		want fleet
	}{
		"ready and not": {
			pods: []corev1.Pod{testPod(ready), testPod()},
			want: fleet{live: 2, ready: 1, connections: 6, templates: map[string]int32{"new": 2}, hashes: map[string]int32{"1": 2}},
		},
		"B2: terminating pods hold, with the pool they began with": {
			pods: []corev1.Pod{testPod(ready), testPod(old, terminating)},
			want: fleet{live: 1, ready: 1, terminating: 1, connections: 8, templates: map[string]int32{"new": 1}, hashes: map[string]int32{"1": 1}},
		},
		"pods that have ended hold nothing": {
			pods: []corev1.Pod{testPod(phase(corev1.PodFailed)), testPod(phase(corev1.PodSucceeded), terminating), testPod()},
			want: fleet{live: 1, connections: 3, templates: map[string]int32{"new": 1}, hashes: map[string]int32{"1": 1}},
		},
		"B6: pods restarted by kubectl are of another hash": {
			pods: []corev1.Pod{testPod(), testPod(func(p *corev1.Pod) { p.Labels = map[string]string{LabelQueue: "emails", "pod-template-hash": "2"} })},
			want: fleet{live: 2, connections: 6, templates: map[string]int32{"new": 2}, hashes: map[string]int32{"1": 1, "2": 1}},
		},
		"a pod that cannot start": {
			pods: []corev1.Pod{testPod(waiting("ContainerCreating")), testPod(waiting("ImagePullBackOff"))},
			want: fleet{live: 2, connections: 6, templates: map[string]int32{"new": 2}, hashes: map[string]int32{"1": 2}, trouble: `container "worker" of pod "emails-x", image "emails:1", is waiting: ImagePullBackOff`},
		},
		"a pod that does not stay up": {
			pods: []corev1.Pod{testPod(waiting("CrashLoopBackOff"), ended(2))},
			want: fleet{live: 1, connections: 3, templates: map[string]int32{"new": 1}, hashes: map[string]int32{"1": 1},
				trouble: `container "worker" of pod "emails-x", image "emails:1", is waiting: CrashLoopBackOff; it ended with exit code 2, see kubectl logs --previous`},
		},
		"the longest start counts, of pods that never restarted": {
			pods: []corev1.Pod{testPod(started(3*time.Second, 0)), testPod(started(9*time.Second, 0)), testPod(started(time.Hour, 4))},
			want: fleet{live: 3, connections: 9, templates: map[string]int32{"new": 3}, hashes: map[string]int32{"1": 3}, startUp: 10 * time.Second},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := countPods(tc.pods)["emails"]
			if diff := cmp.Diff(&tc.want, got, cmp.AllowUnexported(fleet{})); diff != "" {
				t.Errorf("fleet (-want +got):\n%s", diff)
			}
		})
	}
}
