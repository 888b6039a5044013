package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/jobqueue-dev/jobqueue-operator/controllers"
)

// leaderElectionID names the Lease by default; the domain keeps it apart from others'.
const leaderElectionID = "operator.jobqueue.dev"

const managerLong = `manager runs the operator: it reconciles JobQueues and QueueDatabases, scales workers
on the age of the oldest pending job, and keeps all of them within the connection budget.

It finds the cluster as kubectl does: KUBECONFIG, or the service account of its pod.`

type managerFlags struct {
	metricsAddr    string
	probeAddr      string
	leaderElect    bool
	leaderElectNS  string
	leaderElectID  string
	namespaces     []string
	moreNamespaces []string
	operatorImage  string
	pullPolicy     string
	logLevel       string
	logFormat      string
}

func newManagerCommand() *cobra.Command {
	f := &managerFlags{}
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run the operator",
		Long:  managerLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return usageError("%w", err)
			}
			return runManager(cmd.Context(), f, cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.metricsAddr, "metrics-bind-address", ":8080", "where /metrics is served; 0 serves none")
	flags.StringVar(&f.probeAddr, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served; 0 serves none")
	flags.BoolVar(&f.leaderElect, "leader-elect", false, "let one of several operators work, by a Lease")
	flags.StringVar(&f.leaderElectNS, "leader-election-namespace", os.Getenv("POD_NAMESPACE"), "namespace of the Lease; by default that of the pod")
	flags.StringVar(&f.leaderElectID, "leader-election-id", leaderElectionID, "name of the Lease; operators that watch different namespaces need one each")
	flags.StringSliceVar(&f.namespaces, "watch-namespaces", nil, "namespaces to watch, separated by commas; by default all of them")
	flags.StringSliceVar(&f.moreNamespaces, "namespace", nil, "the same, for one namespace; may be repeated")
	flags.StringVar(&f.operatorImage, "operator-image", os.Getenv("OPERATOR_IMAGE"), "image of the reapers; by default $OPERATOR_IMAGE")
	flags.StringVar(&f.pullPolicy, "reaper-image-pull-policy", "", "imagePullPolicy of the reapers: Always, IfNotPresent or Never")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "json", "json or text")
	return cmd
}

func (f *managerFlags) validate() error {
	switch corev1.PullPolicy(f.pullPolicy) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return fmt.Errorf("--reaper-image-pull-policy is %q: allowed are Always, IfNotPresent and Never", f.pullPolicy)
	}
	if f.logFormat != "json" && f.logFormat != "text" {
		return fmt.Errorf("--log-format is %q: allowed are json and text", f.logFormat)
	}
	if problems := validation.IsDNS1123Subdomain(f.leaderElectID); len(problems) > 0 {
		return fmt.Errorf("--leader-election-id is %q: %s", f.leaderElectID, strings.Join(problems, "; "))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return fmt.Errorf("--log-level is %q: allowed are debug, info, warn and error", f.logLevel)
	}
	return nil
}

// logger makes the logger that the operator and the Kubernetes libraries share.
func (f *managerFlags) logger(out io.Writer) logr.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.logLevel)) // validated before
	options := &slog.HandlerOptions{Level: level}
	if f.logFormat == "text" {
		return logr.FromSlogHandler(slog.NewTextHandler(out, options))
	}
	return logr.FromSlogHandler(slog.NewJSONHandler(out, options))
}

// runManager runs until the process is told to stop. The Lease is given up at the
// end, so that another operator takes over at once.
func runManager(ctx context.Context, f *managerFlags, out io.Writer) error {
	log := f.logger(out)
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	mgr, err := f.newManager(log)
	if err != nil {
		return err
	}
	err = controllers.Setup(ctx, mgr,
		controllers.WithOperatorImage(f.operatorImage),
		controllers.WithReaperPullPolicy(corev1.PullPolicy(f.pullPolicy)))
	if err != nil {
		return fmt.Errorf("set up controllers: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

func (f *managerFlags) newManager(log logr.Logger) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	scheme, err := controllers.Scheme()
	if err != nil {
		return nil, err
	}
	caches, err := controllers.CacheOptions(append(f.namespaces, f.moreNamespaces...)...)
	if err != nil {
		return nil, err
	}
	grace := 15 * time.Second
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Logger:                        log,
		Cache:                         caches,
		Client:                        client.Options{FieldOwner: controllers.OwnerTemplate},
		Metrics:                       metricsserver.Options{BindAddress: f.metricsAddr},
		HealthProbeBindAddress:        f.probeAddr,
		LeaderElection:                f.leaderElect,
		LeaderElectionID:              f.leaderElectID,
		LeaderElectionNamespace:       f.leaderElectNS,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &grace,
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("healthz: %w", err)
	}
	// Ready means that the caches are filled; the API server's absence later on is
	// no reason to restart or to be taken out of anything.
	ready := func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("caches are not filled yet")
		}
		return nil
	}
	if err := mgr.AddReadyzCheck("caches", ready); err != nil {
		return nil, fmt.Errorf("readyz: %w", err)
	}
	return mgr, nil
}
