package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	jobqueuev1alpha1 "github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/test/invariants"
)

//go:embed manifests.yaml
var manifests []byte

func newKubeClient() (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), jobqueuev1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster: %w", err)
	}
	return client.New(cfg, client.Options{Scheme: scheme})
}

// reset removes the queue, its pods and its schema, so that the demo can be run again.
func (d *demo) reset(ctx context.Context) error {
	for _, obj := range []client.Object{
		&jobqueuev1alpha1.JobQueue{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: queueName}},
		&jobqueuev1alpha1.QueueDatabase{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "app"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
	} {
		err := d.kube.Delete(ctx, obj, client.PropagationPolicy(metav1.DeletePropagationForeground))
		if client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("removing %T %s: %w", obj, obj.GetName(), err)
		}
		err = await(ctx, 2*time.Minute, fmt.Sprintf("%T %s to go", obj, obj.GetName()), func(ctx context.Context) (bool, error) {
			return apierrors.IsNotFound(d.kube.Get(ctx, client.ObjectKeyFromObject(obj), obj)), nil
		})
		if err != nil {
			return err
		}
	}
	for _, schema := range []string{d.queue.Schema(), invariants.Schema} {
		if _, err := d.pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{schema}.Sanitize()+` CASCADE`); err != nil {
			return fmt.Errorf("dropping an earlier demo's schema: %w", err)
		}
	}
	return nil
}

// apply applies the manifests, and the Secret with the database's URI.
func (d *demo) apply(ctx context.Context) error {
	docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(bytes.ReplaceAll(manifests, []byte("IMAGE"), []byte(d.image))), 4096)
	for {
		obj := &unstructured.Unstructured{}
		err := docs.Decode(obj)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("manifests.yaml: %w", err)
		}
		if err := d.applyObject(ctx, obj); err != nil {
			return err
		}
		if obj.GetKind() == "Namespace" {
			secret := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Secret",
				"metadata":   map[string]any{"name": "app-db", "namespace": namespace},
				"stringData": map[string]any{"uri": d.url},
			}}
			if err := d.applyObject(ctx, secret); err != nil {
				return err
			}
		}
	}
}

func (d *demo) applyObject(ctx context.Context, obj *unstructured.Unstructured) error {
	err := d.kube.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("demo"), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	return nil
}

func (d *demo) jobQueue(ctx context.Context) (*jobqueuev1alpha1.JobQueue, error) {
	jq := &jobqueuev1alpha1.JobQueue{}
	err := d.kube.Get(ctx, types.NamespacedName{Namespace: namespace, Name: queueName}, jq)
	if err != nil {
		return nil, fmt.Errorf("reading JobQueue %s: %w", queueName, err)
	}
	return jq, nil
}

// awaitReady waits until the policy is in the database, so that jobs can be enqueued.
func (d *demo) awaitReady(ctx context.Context) error {
	return await(ctx, time.Minute, "the JobQueue to be Ready", func(ctx context.Context) (bool, error) {
		jq, err := d.jobQueue(ctx)
		return err == nil && meta.IsStatusConditionTrue(jq.Status.Conditions, jobqueuev1alpha1.ConditionReady), err
	})
}

// awaitIdle waits until no worker is left and the reaper has run.
func (d *demo) awaitIdle(ctx context.Context) error {
	err := await(ctx, 2*time.Minute, "the workers to go", func(ctx context.Context) (bool, error) {
		jq, err := d.jobQueue(ctx)
		return err == nil && jq.Status.Replicas == 0, err
	})
	if err != nil {
		return err
	}
	return await(ctx, 2*time.Minute, "a run of the reaper CronJob", func(ctx context.Context) (bool, error) {
		var jobs batchv1.JobList
		if err := d.kube.List(ctx, &jobs, client.InNamespace(namespace)); err != nil {
			return false, fmt.Errorf("listing the reaper's jobs: %w", err)
		}
		for _, job := range jobs.Items {
			if job.Status.Succeeded > 0 {
				return true, nil
			}
		}
		return false, nil
	})
}

// await polls a condition and names it when it does not come true in time.
func await(ctx context.Context, limit time.Duration, what string, condition wait.ConditionWithContextFunc) error {
	if err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, condition); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}
