package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// killWorker kills the busiest worker with SIGKILL and measures how long its jobs take to
// run again.
func (d *demo) killWorker(ctx context.Context) error {
	schema := pgx.Identifier{d.queue.Schema()}.Sanitize()
	var worker uuid.UUID
	var podName string
	err := d.pool.QueryRow(ctx, `
		SELECT w.id, w.pod FROM `+schema+`.workers w JOIN `+schema+`.jobs j ON j.worker_id = w.id AND j.state = 'running'
		WHERE w.pod <> '' GROUP BY 1, 2 ORDER BY count(*) DESC LIMIT 1`).Scan(&worker, &podName)
	if err != nil {
		return fmt.Errorf("choosing a worker to kill: %w", err)
	}
	// A worker in a pod names itself namespace/pod.
	podName = podName[strings.LastIndexByte(podName, '/')+1:]
	pod := &corev1.Pod{}
	if err := d.kube.Get(ctx, types.NamespacedName{Namespace: namespace, Name: podName}, pod); err != nil {
		return fmt.Errorf("reading pod %s: %w", podName, err)
	}
	how, err := d.sigkill(ctx, pod)
	if err != nil {
		return err
	}
	killed := time.Now()

	// What the dead process held is what its worker id still owns. A job of these runs again
	// once it is running under another token, or has ended.
	var ids []int64
	var tokens []string
	err = d.pool.QueryRow(ctx, `SELECT coalesce(array_agg(id), '{}'), coalesce(array_agg(token::text), '{}')
		FROM `+schema+`.jobs WHERE worker_id = $1 AND state = 'running'`, worker).Scan(&ids, &tokens)
	if err != nil {
		return fmt.Errorf("counting the killed worker's jobs: %w", err)
	}
	fmt.Printf("       --- killed worker %s with %d running jobs (%s)\n", podName, len(ids), how)
	err = await(ctx, 2*time.Minute, "the killed worker's jobs to run again", func(ctx context.Context) (bool, error) {
		var waiting int64
		err := d.pool.QueryRow(ctx, `SELECT count(*) FROM `+schema+`.jobs j JOIN unnest($1::bigint[], $2::text[]) held (id, token) USING (id)
			WHERE j.state <> 'running' OR j.token::text = held.token`, ids, tokens).Scan(&waiting)
		return waiting == 0, err
	})
	if err != nil {
		return err
	}
	d.recovery = time.Since(killed)
	fmt.Printf("       --- all of its %d jobs ran again %.1f s after the kill\n", len(ids), d.recovery.Seconds())
	return nil
}

// sigkill sends SIGKILL to the pod's worker process when this machine is the pod's node and
// we may, else it has the node's kubelet do so by deleting the pod without grace.
func (d *demo) sigkill(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pid := findProcess(pod.UID); pid > 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return "", fmt.Errorf("killing process %d of pod %s: %w", pid, pod.Name, err)
		}
		return "kill -9 " + strconv.Itoa(pid), nil
	}
	err := d.kube.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err != nil {
		return "", fmt.Errorf("deleting pod %s: %w", pod.Name, err)
	}
	return "deleted without grace", nil
}

// findProcess returns the process id of the pod's worker on this machine, or 0. The kubelet
// names a pod's control group after the pod's UID.
func findProcess(uid types.UID) int {
	names := []string{"pod" + string(uid), "pod" + strings.ReplaceAll(string(uid), "-", "_")}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !(strings.Contains(string(groups), names[0]) || strings.Contains(string(groups), names[1])) {
			continue
		}
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.HasPrefix(string(command), "/jobqueue\x00") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		return pid
	}
	return 0
}
