// Package e2e proves the operator on real pods and a real PostgreSQL: what it promises is
// counted in SQL and read from the API server, never taken from its own word alone.
//
// It is run by hack/e2e.sh, which brings up the cluster and installs the operator.
package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/format"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

const (
	// operatorNamespace and operatorName are what hack/cluster.sh installs.
	operatorNamespace = "jobqueue-system"
	operatorName      = "jobqueue-operator"

	// labelLocal marks specs that need the node to be this machine: they signal processes
	// of pods, or stop the PostgreSQL server.
	labelLocal = "local"

	// specTime bounds a spec. What it waits for has a tighter bound of its own.
	specTime = 5 * time.Minute
	// podTime bounds the making and ending of some pods. It is long, since specs run side by
	// side on machines of two cores; what is promised in seconds is asserted apart.
	podTime = 60 * time.Second
)

// What the suite was started with.
var (
	kube client.WithWatch
	// server is a pool on the server's first database, from which others are made.
	server    *pgxpool.Pool
	serverURL = os.Getenv("DATABASE_URL")
	image     = os.Getenv("IMAGE")
	// onLocalCluster is true in the network of hack/localcluster, whose node is this machine.
	onLocalCluster = os.Getenv("JOBQUEUE_LOCALCLUSTER") != ""
)

func TestE2E(t *testing.T) {
	for _, name := range []string{"DATABASE_URL", "IMAGE", "JOBQUEUE_BIN", "JOBQUEUE_ROOT"} {
		if os.Getenv(name) == "" {
			t.Fatalf("%s is not set: run this suite through `make e2e`", name)
		}
	}
	RegisterFailHandler(Fail)
	suite, reporter := GinkgoConfiguration()
	if !onLocalCluster {
		suite.LabelFilter = both(suite.LabelFilter, "!"+labelLocal)
	}
	RunSpecs(t, "JobQueue operator on real pods", suite, reporter)
}

func both(a, b string) string {
	if a == "" {
		return b
	}
	return "(" + a + ") && (" + b + ")"
}

var _ = BeforeSuite(func(ctx SpecContext) {
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(150 * time.Millisecond)
	EnforceDefaultTimeoutsWhenUsingContexts()
	// An error's words are enough, and its insides may hold the server's password.
	format.RegisterCustomFormatter(func(value any) (string, bool) {
		err, ok := value.(error)
		if !ok {
			return "", false
		}
		return err.Error(), true
	})

	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	cfg, err := ctrl.GetConfig()
	Expect(err).NotTo(HaveOccurred(), "KUBECONFIG must name a cluster")
	// The suite polls; the client's own brake would only make it late.
	cfg.QPS, cfg.Burst = 200, 400
	kube, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	server = openPool(ctx, serverURL, 2)
	DeferCleanup(server.Close)
	awaitOperator(ctx)
	awaitGarbageCollector(ctx)
}, NodeTimeout(4*time.Minute))

// All specs' namespaces are gone before the suite is, so that a cluster that is kept
// can be used again at once.
var _ = SynchronizedAfterSuite(func() {}, func(ctx SpecContext) {
	Eventually(func(g Gomega) {
		var left corev1.NamespaceList
		g.Expect(kube.List(ctx, &left, client.HasLabels{suiteLabel})).To(Succeed())
		g.Expect(left.Items).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(90*time.Second).Should(Succeed(), "namespaces of the suite are left")
}, NodeTimeout(2*time.Minute))

// awaitOperator waits until the operator's Deployment is as it should be.
func awaitOperator(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		d := operatorDeployment(ctx, g)
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect(d.Status.UpdatedReplicas).To(Equal(*d.Spec.Replicas))
		g.Expect(d.Status.AvailableReplicas).To(Equal(*d.Spec.Replicas))
		g.Expect(d.Status.Replicas).To(Equal(*d.Spec.Replicas))
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed(), "the operator does not run")
}

// awaitGarbageCollector waits until the cluster's garbage collector knows JobQueues. It looks
// for new kinds twice a minute; an object of a kind that it does not know yet makes it try
// again after twice the time, so that the Deployments of a JobQueue that is deleted in a
// cluster's first half minute can stay for a minute more.
func awaitGarbageCollector(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		// Each try is an object of its own, which no earlier failure has put off.
		orphan := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "e2e-orphan-", Namespace: operatorNamespace,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "JobQueue", Name: "gone", UID: uuid.NewUUID(),
			}},
		}}
		g.Expect(kube.Create(ctx, orphan)).To(Succeed())
		defer func() { g.Expect(client.IgnoreNotFound(kube.Delete(ctx, orphan))).To(Succeed()) }()
		g.Eventually(func() error {
			return kube.Get(ctx, client.ObjectKeyFromObject(orphan), orphan)
		}).WithContext(ctx).WithTimeout(3 * time.Second).Should(MatchError(apierrors.IsNotFound, "not found"))
	}).WithContext(ctx).WithTimeout(2*time.Minute).Should(Succeed(), "the garbage collector does not know JobQueues")
}

func operatorDeployment(ctx context.Context, g Gomega) *appsv1.Deployment {
	d := &appsv1.Deployment{}
	g.Expect(kube.Get(ctx, types.NamespacedName{Namespace: operatorNamespace, Name: operatorName}, d)).To(Succeed())
	return d
}
