package integration

import (
	"context"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"

	"github.com/jobqueue-dev/jobqueue-operator/controllers"
	"github.com/jobqueue-dev/jobqueue-operator/worker"
)

// plugs opens for each pod the connections that it would open, and notes when the
// server has none left. All methods do nothing on nil.
type plugs struct {
	config *pgx.ConnConfig

	mu      sync.Mutex
	byPod   map[string][]*pgx.Conn
	refused []error
}

// newPlugs connects as a role that has no part in the reserved connections.
func newPlugs(url, role string) (*plugs, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.User = role
	return &plugs{config: config, byPod: map[string][]*pgx.Conn{}}, nil
}

func (p *plugs) plug(ctx context.Context, pod *corev1.Pod) {
	if p == nil {
		return
	}
	n, _ := strconv.Atoi(pod.Annotations[controllers.AnnotationConnections])
	for range n {
		p.open(ctx, pod.Name, worker.ApplicationName(pod.Labels[controllers.LabelQueue]))
	}
}

func (p *plugs) open(ctx context.Context, pod, application string) {
	config := p.config.Copy()
	config.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(ctx, config)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.refused = append(p.refused, err)
		return
	}
	p.byPod[pod] = append(p.byPod[pod], conn)
}

func (p *plugs) unplug(pod *corev1.Pod) {
	if p != nil {
		p.close(pod.Name)
	}
}

func (p *plugs) close(pod string) {
	p.mu.Lock()
	connections := p.byPod[pod]
	delete(p.byPod, pod)
	p.mu.Unlock()
	for _, conn := range connections {
		_ = conn.Close(context.Background()) // the server sees its end either way
	}
}

func (p *plugs) closeAll() {
	p.mu.Lock()
	var pods []string
	for pod := range p.byPod {
		pods = append(pods, pod)
	}
	p.mu.Unlock()
	for _, pod := range pods {
		p.close(pod)
	}
}

// refusals are the errors of connections that could not be had.
func (p *plugs) refusals() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}
