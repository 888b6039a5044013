package e2e

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// suiteLabel is on every namespace that a spec makes.
const suiteLabel = "e2e.jobqueue.dev/suite"

// place is what a spec has for itself: a namespace that admits restricted pods only, and a
// database in the server. Both go when the spec ends.
type place struct {
	namespace string
	database  string
	url       string
	pool      *pgxpool.Pool
	queue     *queue.Client
}

// newPlace makes a namespace and a database, and the Secret that names it.
func newPlace(ctx context.Context) *place {
	GinkgoHelper()
	p := newBarePlace(ctx)
	p.putSecret(ctx, secretName, p.url)
	return p
}

// newBarePlace is newPlace without the Secret.
func newBarePlace(ctx context.Context) *place {
	GinkgoHelper()
	id := rand.String(8)
	p := &place{namespace: "e2e-" + id, database: "e2e_" + id}
	var err error
	p.queue, err = queue.New(queue.DefaultSchema)
	Expect(err).NotTo(HaveOccurred())

	_, err = server.Exec(ctx, "CREATE DATABASE "+p.database)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(p.dropDatabase, NodeTimeout(30*time.Second))
	address, err := url.Parse(serverURL)
	Expect(err).NotTo(HaveOccurred(), "DATABASE_URL must be a postgres:// URI")
	address.Path = "/" + p.database
	p.url = address.String()
	p.pool = openPool(ctx, p.url, 4)
	DeferCleanup(p.pool.Close)
	_, err = p.pool.Exec(ctx, `CREATE TABLE orders (id bigint PRIMARY KEY, queue text NOT NULL)`)
	Expect(err).NotTo(HaveOccurred())

	Expect(kube.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   p.namespace,
		Labels: map[string]string{suiteLabel: "", "pod-security.kubernetes.io/enforce": "restricted"},
	}})).To(Succeed())
	DeferCleanup(p.remove, NodeTimeout(time.Minute))
	return p
}

func openPool(ctx context.Context, address string, size int32) *pgxpool.Pool {
	GinkgoHelper()
	cfg, err := pgxpool.ParseConfig(address)
	Expect(err).NotTo(HaveOccurred(), "the address of the database cannot be read")
	// Not one of the product's own names: these connections are another client's.
	cfg.ConnConfig.RuntimeParams["application_name"] = "e2e"
	cfg.MaxConns = size
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	Expect(pool.Ping(ctx)).To(Succeed())
	return pool
}

// remove deletes the place's objects, workers first, and its namespace.
func (p *place) remove(ctx SpecContext) {
	if CurrentSpecReport().Failed() {
		p.dump(ctx)
	}
	in := client.InNamespace(p.namespace)
	Expect(kube.DeleteAllOf(ctx, &v1alpha1.JobQueue{}, in)).To(Succeed())
	p.awaitNone(ctx, &v1alpha1.JobQueueList{})
	// Only when nothing makes new pods any more may those be killed that would drain for long.
	p.awaitNone(ctx, &appsv1.DeploymentList{})
	p.awaitNone(ctx, &appsv1.ReplicaSetList{})
	Expect(kube.DeleteAllOf(ctx, &corev1.Pod{}, in, client.GracePeriodSeconds(0))).To(Succeed())
	Expect(kube.DeleteAllOf(ctx, &v1alpha1.QueueDatabase{}, in)).To(Succeed())
	p.awaitNone(ctx, &v1alpha1.QueueDatabaseList{})
	Expect(kube.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}})).To(Succeed())
}

// awaitNone waits until the last object of a kind is gone.
func (p *place) awaitNone(ctx context.Context, list client.ObjectList) {
	GinkgoHelper()
	Eventually(func() (int, error) {
		err := kube.List(ctx, list, client.InNamespace(p.namespace))
		return meta.LenList(list), err
	}).WithContext(ctx).WithTimeout(40*time.Second).Should(BeZero(), func() string {
		p.dump(ctx)
		return fmt.Sprintf("objects of a %T do not go: is a finalizer stuck?", list)
	})
}

func (p *place) dropDatabase(ctx SpecContext) {
	// While autovacuum is in it, nobody but a superuser may end all of its sessions.
	Eventually(func() error {
		_, err := server.Exec(ctx, "DROP DATABASE IF EXISTS "+p.database+" WITH (FORCE)")
		return err
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
}

// putSecret creates or changes a Secret with a connection URI.
func (p *place) putSecret(ctx context.Context, name, uri string) {
	GinkgoHelper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: p.namespace}, StringData: map[string]string{"uri": uri}}
	err := kube.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = kube.Update(ctx, secret)
	}
	Expect(err).NotTo(HaveOccurred())
}

// create creates objects as a user does.
func (p *place) create(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, obj := range objects {
		Expect(kube.Create(ctx, obj)).To(Succeed(), "creating %T %s", obj, obj.GetName())
	}
}

// change applies a change to a JobQueue, as often as another writer is faster.
func (p *place) change(ctx context.Context, name string, f func(*v1alpha1.JobQueueSpec)) {
	GinkgoHelper()
	Eventually(func() error {
		jq, err := p.jobQueue(ctx, name)
		if err != nil {
			return err
		}
		f(&jq.Spec)
		return kube.Update(ctx, jq)
	}).WithContext(ctx).WithTimeout(10*time.Second).Should(Succeed(), "changing JobQueue %s", name)
}

func (p *place) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: p.namespace, Name: name}
}

func (p *place) jobQueue(ctx context.Context, name string) (*v1alpha1.JobQueue, error) {
	jq := &v1alpha1.JobQueue{}
	return jq, kube.Get(ctx, p.key(name), jq)
}

func (p *place) queueDatabase(ctx context.Context) (*v1alpha1.QueueDatabase, error) {
	qdb := &v1alpha1.QueueDatabase{}
	return qdb, kube.Get(ctx, p.key(databaseName), qdb)
}

// kubectl runs kubectl in the place's namespace and returns what it prints.
func (p *place) kubectl(ctx context.Context, args ...string) (string, error) {
	return program{path: "kubectl"}.run(ctx, append([]string{"--namespace", p.namespace}, args...)...)
}

// apply applies a manifest through kubectl.
func (p *place) apply(ctx context.Context, manifest string) {
	GinkgoHelper()
	program{path: "kubectl", input: manifest}.mustRun(ctx, "--namespace", p.namespace, "apply", "-f", "-")
}

// dump prints what explains a failure: objects, events, pods, and the logs of workers and
// operator. The Secret stays out of it.
func (p *place) dump(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "queuedatabases,jobqueues", "-o", "yaml"},
		{"get", "deployments,replicasets,cronjobs,jobs,pods", "-o", "wide"},
		{"describe", "pods"},
		{"get", "events", "--sort-by=.lastTimestamp"},
	} {
		output, err := p.kubectl(ctx, args...)
		printDump(strings.Join(args, " "), output, err)
	}
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(p.namespace)); err != nil {
		printDump("pods", "", err)
	}
	for _, pod := range pods.Items {
		output, err := p.kubectl(ctx, "logs", pod.Name, "--tail=60")
		printDump("logs of "+pod.Name, output, err)
	}
	rows, err := one[string](ctx, p, `
		SELECT 'jobs: ' || coalesce((SELECT jsonb_agg(to_jsonb(g)) FROM
			(SELECT queue, state, attempt, count(*), min(last_error) AS error FROM jobqueue.jobs GROUP BY 1, 2, 3) AS g)::text, 'none')
		|| E'\nworkers: ' || coalesce((SELECT jsonb_agg(to_jsonb(w)) FROM jobqueue.workers AS w)::text, 'none') || E'\n' `)
	printDump("the database", rows, err)
	// Lines of other places only hide what matters.
	output, err := program{path: "kubectl"}.run(ctx, "--namespace", operatorNamespace, "logs", "deployment/"+operatorName, "--tail=2000")
	var mine []string
	for line := range strings.Lines(output) {
		if strings.Contains(line, p.namespace) || strings.Contains(line, "panic") {
			mine = append(mine, line)
		}
	}
	printDump("the operator's lines about "+p.namespace, strings.Join(mine[max(0, len(mine)-150):], ""), err)
}

func printDump(title, output string, err error) {
	fmt.Fprintf(GinkgoWriter, "\n----- %s\n%s", title, output)
	if err != nil {
		fmt.Fprintf(GinkgoWriter, "(%v)\n", err)
	}
}
