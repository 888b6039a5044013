package controllers

import (
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// defaultStartUp is assumed as long as no pod has shown how long it takes, and
	// longestStartUp is the most that is believed: a pod may have waited for a node.
	defaultStartUp = 5 * time.Second
	longestStartUp = 2 * time.Minute
	// readyMargin is the time between a container's start and its first claim.
	readyMargin = time.Second
)

// fleet is what the pods of one queue amount to.
type fleet struct {
	// live pods are not going away; ready ones of them claim.
	live, ready int32
	// terminating pods still hold connections.
	terminating int32
	// connections is what all of them hold together.
	connections int32
	// templates counts live pods by AnnotationTemplate, and hashes by what the
	// Deployment controller tells its templates apart by: also those that others have
	// changed, as `kubectl rollout restart` does.
	templates, hashes map[string]int32
	// startUp is the longest start seen of a pod that has never been restarted.
	startUp time.Duration
	// trouble is why a pod does not start, "" when none has trouble.
	trouble string
}

func newFleet() *fleet { return &fleet{templates: map[string]int32{}, hashes: map[string]int32{}} }

// countPods sorts pods by the queue they belong to. Pods that have ended hold
// nothing and are left out.
func countPods(pods []corev1.Pod) map[string]*fleet {
	fleets := map[string]*fleet{}
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		name := p.Labels[LabelQueue]
		if fleets[name] == nil {
			fleets[name] = newFleet()
		}
		fleets[name].add(p)
	}
	return fleets
}

func (f *fleet) add(p *corev1.Pod) {
	f.connections += connectionsOf(p)
	if p.DeletionTimestamp != nil {
		f.terminating++
		return
	}
	f.live++
	f.templates[p.Annotations[AnnotationTemplate]]++
	f.hashes[p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]]++
	if isReady(p) {
		f.ready++
	}
	f.startUp = max(f.startUp, startUpOf(p))
	if t := troubleOf(p); t != "" && (f.trouble == "" || t < f.trouble) {
		f.trouble = t
	}
}

// outdated is how many live pods are of another template than the given one; none
// where that is not known.
func (f *fleet) outdated(template string) int32 {
	if template == "" {
		return 0
	}
	return f.live - f.templates[template]
}

// rolling reports whether pods are being replaced: by those of the given template, or of
// one that somebody else has changed.
func (f *fleet) rolling(template string) bool { return f.outdated(template) > 0 || len(f.hashes) > 1 }

// connectionsOf is what the pod was started with; the smallest number a worker can
// have where that is not written on it.
func connectionsOf(p *corev1.Pod) int32 {
	n, err := strconv.ParseInt(p.Annotations[AnnotationConnections], 10, 32)
	if err != nil || n < 1 {
		return 2
	}
	return int32(n)
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// startUpOf is the time from a pod's creation to its workers' start. Readiness is
// no measure, for it comes and goes with the database.
func startUpOf(p *corev1.Pod) time.Duration {
	var longest time.Duration
	for _, s := range p.Status.ContainerStatuses {
		if s.RestartCount > 0 || s.State.Running == nil {
			return 0
		}
		longest = max(longest, s.State.Running.StartedAt.Sub(p.CreationTimestamp.Time)+readyMargin)
	}
	return min(longest, longestStartUp)
}

// harmless are reasons of waiting that are part of a normal start.
var harmless = map[string]bool{"": true, "ContainerCreating": true, "PodInitializing": true}

// troubleOf is a short word on why a pod does not run.
func troubleOf(p *corev1.Pod) string {
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range statuses {
			if w := s.State.Waiting; w != nil && !harmless[w.Reason] {
				trouble := fmt.Sprintf("container %q of pod %q, image %q, is waiting: %s", s.Name, p.Name, s.Image, w.Reason)
				if ended := s.LastTerminationState.Terminated; ended != nil {
					trouble += fmt.Sprintf("; it ended with exit code %d, see kubectl logs --previous", ended.ExitCode)
				}
				return trouble
			}
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return fmt.Sprintf("pod %q cannot be scheduled: %s", p.Name, c.Message)
		}
	}
	return ""
}

// deploymentTrouble is why a Deployment cannot make its pods, as for a quota or an
// admission rule.
func deploymentTrouble(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// slimPod drops from cached pods what nothing here reads.
func slimPod(object any) (any, error) {
	if p, ok := object.(*corev1.Pod); ok {
		p.ManagedFields = nil
		p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName}
	}
	return object, nil
}
