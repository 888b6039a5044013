package controllers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

const (
	// workerContainer is the name of the container that gets the environment; the
	// first one does if none is called so.
	workerContainer = "worker"
	// portName names the port of /healthz, /readyz and /metrics. A template that
	// declares a port of this name chooses the number.
	portName    = "jobqueue-http"
	defaultPort = 8080
)

// workerTemplate is the user's pod template with what the operator adds. What the
// user has set stays, except what the budget and the planner rely on: see env.
func workerTemplate(q *v1alpha1.JobQueue, db *v1alpha1.QueueDatabase, credentials string) (corev1.PodTemplateSpec, error) {
	t := *q.Spec.Worker.Template.DeepCopy()
	if len(t.Spec.Containers) == 0 {
		return t, fmt.Errorf("worker.template.spec.containers is empty")
	}
	t.Labels = templateLabels(q, t.Labels)
	t.Annotations = maps.Clone(t.Annotations)
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[AnnotationCredentials] = credentials
	t.Annotations[AnnotationConnections] = strconv.Itoa(int(perReplicaOf(q)))
	t.Spec.TerminationGracePeriodSeconds = new(graceOf(q))
	setDefault(&t.Spec.AutomountServiceAccountToken, false)
	restrictPod(&t.Spec)
	equipWorker(workerOf(&t.Spec), q, db)
	hash, err := hashOf(t)
	if err != nil {
		return t, err
	}
	t.Annotations[AnnotationTemplate] = hash
	return t, nil
}

// templateLabels lets the user name the application, but not change what the
// operator finds its pods by.
func templateLabels(q *v1alpha1.JobQueue, users map[string]string) map[string]string {
	labels := workerLabels(q)
	for k, v := range users {
		if k != LabelQueue && k != LabelDatabase && k != labelManagedBy {
			labels[k] = v
		}
	}
	return labels
}

func workerOf(pod *corev1.PodSpec) *corev1.Container {
	for i := range pod.Containers {
		if pod.Containers[i].Name == workerContainer {
			return &pod.Containers[i]
		}
	}
	return &pod.Containers[0]
}

// equipWorker gives the worker its environment, its port and its probes.
func equipWorker(c *corev1.Container, q *v1alpha1.JobQueue, db *v1alpha1.QueueDatabase) {
	port, probed := equipPort(c)
	c.Env = mergeEnv(c.Env, workerEnv(q, db), observingEnv(port))
	at := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: probed}}
	}
	if c.StartupProbe == nil && c.LivenessProbe == nil {
		c.StartupProbe = &corev1.Probe{ProbeHandler: at("/healthz"), PeriodSeconds: 1, FailureThreshold: 120, TimeoutSeconds: 2}
	}
	if c.LivenessProbe == nil {
		c.LivenessProbe = &corev1.Probe{ProbeHandler: at("/healthz"), PeriodSeconds: 10, FailureThreshold: 3, TimeoutSeconds: 5}
	}
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: at("/readyz"), PeriodSeconds: 5, FailureThreshold: 3, TimeoutSeconds: 3}
	}
}

// equipPort declares the port, unless the template does, and returns its number and
// what probes call it.
func equipPort(c *corev1.Container) (int32, intstr.IntOrString) {
	for _, p := range c.Ports {
		if p.Name == portName {
			return p.ContainerPort, intstr.FromString(portName)
		}
	}
	port := int32(defaultPort)
	for _, e := range c.Env {
		if e.Name == "JOBQUEUE_HTTP_ADDR" {
			port = portOf(e.Value, port)
		}
	}
	for _, p := range c.Ports {
		// The template has it under a name of its own. Server-side apply refuses a list
		// with the same port twice.
		if p.ContainerPort == port && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			return port, intstr.FromInt32(port)
		}
	}
	c.Ports = append(c.Ports, corev1.ContainerPort{Name: portName, ContainerPort: port, Protocol: corev1.ProtocolTCP})
	return port, intstr.FromString(portName)
}

func portOf(addr string, otherwise int32) int32 {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return otherwise
	}
	return int32(n)
}

// workerEnv is the part of the environment that is the operator's alone: which
// queue of which database is served, and the slots, pool size and grace period
// that the planner and the budget count on.
func workerEnv(q *v1alpha1.JobQueue, db *v1alpha1.QueueDatabase) []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: "JOBQUEUE_DATABASE_URL", ValueFrom: databaseURL(db)},
		{Name: "JOBQUEUE_SCHEMA", Value: schemaOf(db)},
		{Name: "JOBQUEUE_QUEUE", Value: queueName(q)},
		{Name: "JOBQUEUE_SLOTS", Value: strconv.Itoa(int(slotsOf(q)))},
		{Name: "JOBQUEUE_POOL_SIZE", Value: strconv.Itoa(int(perReplicaOf(q)))},
		{Name: "JOBQUEUE_GRACE_SECONDS", Value: strconv.FormatInt(graceOf(q), 10)},
	}
}

// observingEnv is the part that the template may set differently.
func observingEnv(port int32) []corev1.EnvVar {
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	return []corev1.EnvVar{
		{Name: "JOBQUEUE_POD_NAME", ValueFrom: field("metadata.name")},
		{Name: "JOBQUEUE_POD_NAMESPACE", ValueFrom: field("metadata.namespace")},
		{Name: "JOBQUEUE_HTTP_ADDR", Value: ":" + strconv.Itoa(int(port))},
	}
}

func databaseURL(db *v1alpha1.QueueDatabase) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: db.Spec.Credentials.SecretRef.Name},
		Key:                  secretKeyOf(db),
	}}
}

// mergeEnv puts the operator's variables first, so that the user's may refer to
// them, and leaves out user variables that are not theirs to set.
func mergeEnv(users, fixed, open []corev1.EnvVar) []corev1.EnvVar {
	taken, chosen := map[string]bool{}, map[string]bool{}
	for _, e := range fixed {
		taken[e.Name] = true
	}
	for _, e := range users {
		chosen[e.Name] = true
	}
	merged := append([]corev1.EnvVar{}, fixed...)
	for _, e := range open {
		if !chosen[e.Name] {
			merged = append(merged, e)
		}
	}
	for _, e := range users {
		if !taken[e.Name] {
			merged = append(merged, e)
		}
	}
	return merged
}

// restrictPod fills in what the restricted Pod Security Standard asks for and the
// user has not decided.
func restrictPod(pod *corev1.PodSpec) {
	if pod.SecurityContext == nil {
		pod.SecurityContext = &corev1.PodSecurityContext{}
	}
	setDefault(&pod.SecurityContext.RunAsNonRoot, true)
	setDefault(&pod.SecurityContext.SeccompProfile, corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault})
	for i := range pod.InitContainers {
		restrictContainer(&pod.InitContainers[i])
	}
	for i := range pod.Containers {
		restrictContainer(&pod.Containers[i])
	}
}

func restrictContainer(c *corev1.Container) {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	if !orDefault(c.SecurityContext.Privileged, false) {
		setDefault(&c.SecurityContext.AllowPrivilegeEscalation, false)
	}
	setDefault(&c.SecurityContext.Capabilities, corev1.Capabilities{Drop: []corev1.Capability{"ALL"}})
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// hashOf is a short fingerprint of what a value says in JSON.
func hashOf(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}
