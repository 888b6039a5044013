package integration

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/jobqueue-dev/jobqueue-operator/controllers"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

var worlds atomic.Int64

// world is a namespace with an operator that watches it alone, or with others, a
// database, and a player for its pods.
type world struct {
	ns     string
	watch  []string // the operator's namespaces
	dbURL  string
	player *player
	queue  *queue.Client
	stop   func()
	// options are the operator's, besides those that all worlds have.
	options []controllers.Option
}

// newWorld makes a world whose operator runs.
func newWorld() *world { return newWorldOn(postgres) }

func newWorldOn(server *pgtest.Server, options ...controllers.Option) *world {
	w := makeWorld(server)
	w.options = options
	w.start()
	DeferCleanup(func() { w.stop(); w.player.stop() })
	return w
}

// makeWorld makes a world without an operator.
func makeWorld(server *pgtest.Server) *world {
	w := &world{ns: fmt.Sprintf("w%d", worlds.Add(1))}
	w.watch = []string{w.ns}
	ctx := within(20 * time.Second)
	Expect(k8s.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}})).To(Succeed())
	admin, err := pgx.Connect(ctx, server.URL("postgres"))
	Expect(err).NotTo(HaveOccurred())
	_, err = admin.Exec(ctx, "CREATE DATABASE "+w.ns)
	Expect(err).NotTo(HaveOccurred())
	Expect(admin.Close(ctx)).To(Succeed())
	w.dbURL = server.URL(w.ns)
	w.queue, err = queue.New("")
	Expect(err).NotTo(HaveOccurred())
	w.setSecret("db", w.dbURL)
	w.player = newPlayer(w.ns)
	return w
}

// start runs an operator for the namespaces; stop ends it and waits for its end.
func (w *world) start() {
	scheme, err := controllers.Scheme()
	Expect(err).NotTo(HaveOccurred())
	caches, err := controllers.CacheOptions(w.watch...)
	Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: caches, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	suffix := "-" + w.ns + "-" + strconv.FormatInt(worlds.Add(1), 10)
	Expect(controllers.Setup(ctx, mgr, append([]controllers.Option{
		controllers.WithNameSuffix(suffix), controllers.WithOperatorImage("registry.example/jobqueue:test"),
		controllers.WithSamplerOptions(sampler.WithBackoff(100*time.Millisecond, time.Second)),
	}, w.options...)...)).To(Succeed())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	w.stop = func() {
		cancel()
		if ended != nil {
			var err error
			Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(&err))
			Expect(err).NotTo(HaveOccurred())
			ended = nil
		}
	}
}

func (w *world) setSecret(name, url string) {
	GinkgoHelper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	_, err := ctrl.CreateOrUpdate(within(5*time.Second), k8s, s, func() error {
		s.Data = map[string][]byte{"uri": []byte(url)}
		return nil
	})
	Expect(err).NotTo(HaveOccurred())
}

// sql runs f on a connection to the world's database.
func (w *world) sql(f func(ctx context.Context, conn *pgx.Conn)) {
	GinkgoHelper()
	ctx := within(20 * time.Second)
	conn, err := pgx.Connect(ctx, w.dbURL)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close(ctx) }()
	f(ctx, conn)
}

// enqueue adds jobs.
func (w *world) enqueue(queueName string, n int) {
	GinkgoHelper()
	w.sql(func(ctx context.Context, conn *pgx.Conn) {
		jobs := make([]queue.NewJob, n)
		for i := range jobs {
			jobs[i] = queue.NewJob{Kind: "test", Payload: i}
		}
		_, err := w.queue.Enqueue(ctx, conn, queueName, jobs...)
		Expect(err).NotTo(HaveOccurred())
	})
}
