// Package integration runs the controllers against a real API server and a real
// PostgreSQL. There is no kubelet and no Deployment controller: the tests play them
// (see player), so that every state of a pod can be brought about.
//
// It needs KUBEBUILDER_ASSETS, the directory of etcd and kube-apiserver.
package integration

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/jobqueue-dev/jobqueue-operator/controllers"
	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

var (
	env      *envtest.Environment
	config   *rest.Config
	k8s      client.Client
	postgres *pgtest.Server
)

func TestIntegration(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: it names the folder with etcd and kube-apiserver; run `make test-integration`, or `make assets` once and set it to what `bin/localcluster assets` prints")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "controllers")
}

var _ = BeforeSuite(func() {
	log := logr.FromSlogHandler(slog.NewTextHandler(GinkgoWriter, &slog.HandlerOptions{Level: slog.LevelInfo}))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	SetDefaultEventuallyTimeout(15 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)

	env = &envtest.Environment{
		CRDDirectoryPaths:       []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing:   true,
		ControlPlaneStopTimeout: 20 * time.Second,
	}
	var err error
	config, err = env.Start()
	Expect(err).NotTo(HaveOccurred())
	config.QPS, config.Burst = -1, -1
	scheme, err := controllers.Scheme()
	Expect(err).NotTo(HaveOccurred())
	k8s, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	postgres, err = pgtest.Start()
	Expect(err).NotTo(HaveOccurred())
})

var _ = AfterSuite(func() {
	if postgres != nil {
		Expect(postgres.Stop()).To(Succeed())
	}
	if env != nil {
		Expect(env.Stop()).To(Succeed())
	}
})

// within is a context for one step of a test.
func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	DeferCleanup(cancel)
	return ctx
}
