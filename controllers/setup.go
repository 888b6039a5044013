package controllers

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

// What the operator may do. Secrets are listed and watched for their metadata, and
// read one by one where a QueueDatabase names them.
//
// +kubebuilder:rbac:groups=jobqueue.dev,resources=jobqueues,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=jobqueue.dev,resources=queuedatabases,verbs=get;list;watch
// +kubebuilder:rbac:groups=jobqueue.dev,resources=jobqueues/status;queuedatabases/status,verbs=patch
// +kubebuilder:rbac:groups=jobqueue.dev,resources=jobqueues/finalizers;queuedatabases/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=batch,resources=cronjobs,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	indexDatabase = ".spec.databaseRef.name"
	indexSecret   = ".spec.credentials.secretRef.name"
	// indexDatabaseLabel finds Deployments and pods by LabelDatabase; a label selector
	// looks at all of the namespace.
	indexDatabaseLabel = ".metadata.labels.database"
)

// Option changes how the controllers work.
type Option func(*settings)

type settings struct {
	image string
	pull  corev1.PullPolicy
	now   func() time.Time
	names string
	hub   []sampler.Option
	held  time.Duration
}

// WithOperatorImage names the image of reapers that choose none themselves.
func WithOperatorImage(image string) Option { return func(s *settings) { s.image = image } }

// WithReaperPullPolicy sets the reapers' imagePullPolicy; "" leaves it to Kubernetes.
func WithReaperPullPolicy(p corev1.PullPolicy) Option { return func(s *settings) { s.pull = p } }

// WithClock replaces the clock.
func WithClock(now func() time.Time) Option { return func(s *settings) { s.now = now } }

// WithSamplerOptions passes options to the sampler's Hub.
func WithSamplerOptions(o ...sampler.Option) Option {
	return func(s *settings) { s.hub = append(s.hub, o...) }
}

// WithNameSuffix tells controllers of several managers in one process apart.
func WithNameSuffix(suffix string) Option { return func(s *settings) { s.names = suffix } }

// WithHorizonLimit sets how long a session, slot or the like may hold the database's
// horizon before the QueueDatabase warns of it; five minutes by default.
func WithHorizonLimit(d time.Duration) Option { return func(s *settings) { s.held = d } }

// Scheme knows every kind that the operator deals with.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	return s, nil
}

// CacheOptions keeps in memory only what the operator has made, and of pods and
// Secrets only what it reads. No namespace means all of them.
func CacheOptions(namespaces ...string) (cache.Options, error) {
	ofQueues, err := labels.NewRequirement(LabelQueue, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("selector: %w", err)
	}
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{labelManagedBy: managedBy})}
	options := cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Label: labels.NewSelector().Add(*ofQueues), Transform: slimPod},
			&appsv1.Deployment{}:            ours,
			&batchv1.CronJob{}:              ours,
			&policyv1.PodDisruptionBudget{}: ours,
		},
	}
	for _, ns := range namespaces {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[ns] = cache.Config{}
	}
	return options, nil
}

// Setup adds the sampler and both controllers to a manager, whose cache must have
// been made with CacheOptions.
func Setup(ctx context.Context, mgr ctrl.Manager, opts ...Option) error {
	s := settings{now: time.Now, held: defaultHorizonLimit}
	for _, o := range opts {
		o(&s)
	}
	if err := addIndexes(ctx, mgr); err != nil {
		return err
	}
	hub := sampler.NewHub(append([]sampler.Option{
		sampler.WithClock(s.now), sampler.WithObserver(sampleMetrics{}), sampler.WithLogger(mgr.GetLogger().WithName("sampler")),
	}, s.hub...)...)
	if err := mgr.Add(hub); err != nil {
		return fmt.Errorf("add sampler: %w", err)
	}
	recorder := func(kind string) loggingRecorder {
		return loggingRecorder{mgr.GetEventRecorder("jobqueue-operator"), mgr.GetLogger().WithName("events"), kind}
	}
	books := &books{client: mgr.GetClient(), hub: hub, ledger: newLedger(), servers: newServers()}
	store := newCredentialStore(mgr.GetClient(), mgr.GetAPIReader())
	databases := &databaseReconciler{
		client: mgr.GetClient(), hub: hub, credentials: store, books: books,
		applier: newApplier(mgr.GetClient(), mgr.GetAPIReader()), clock: newStatusClock(), reapers: newReaperWatch(),
		recorder: recorder("queueDatabase"), now: s.now, image: s.image, pull: s.pull,
		horizonLimit: s.held,
	}
	queues := &queueReconciler{
		client: mgr.GetClient(), hub: hub, credentials: store, books: books, memories: newMemories(),
		applier: newApplier(mgr.GetClient(), mgr.GetAPIReader()), clock: newStatusClock(), deletions: newDeletions(),
		recorder: recorder("jobQueue"), now: s.now,
	}
	if err := databases.setup(mgr, s.names); err != nil {
		return fmt.Errorf("QueueDatabase controller: %w", err)
	}
	if err := queues.setup(mgr, s.names); err != nil {
		return fmt.Errorf("JobQueue controller: %w", err)
	}
	return nil
}

func addIndexes(ctx context.Context, mgr ctrl.Manager) error {
	index := mgr.GetFieldIndexer()
	err := index.IndexField(ctx, &v1alpha1.JobQueue{}, indexDatabase, func(o client.Object) []string {
		return []string{o.(*v1alpha1.JobQueue).Spec.DatabaseRef.Name}
	})
	if err != nil {
		return fmt.Errorf("index JobQueues: %w", err)
	}
	err = index.IndexField(ctx, &v1alpha1.QueueDatabase{}, indexSecret, func(o client.Object) []string {
		return []string{o.(*v1alpha1.QueueDatabase).Spec.Credentials.SecretRef.Name}
	})
	if err != nil {
		return fmt.Errorf("index QueueDatabases: %w", err)
	}
	for _, o := range []client.Object{&appsv1.Deployment{}, &corev1.Pod{}} {
		err := index.IndexField(ctx, o, indexDatabaseLabel, func(o client.Object) []string { return []string{o.GetLabels()[LabelDatabase]} })
		if err != nil {
			return fmt.Errorf("index %T: %w", o, err)
		}
	}
	return nil
}

// controllerOptions retry soon: what fails is mostly mended from outside.
func controllerOptions() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: 1, // the ledger's page must not change between reading and asking
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 30*time.Second),
		ReconciliationTimeout:   time.Minute,
	}
}

func (r *databaseReconciler) setup(mgr ctrl.Manager, suffix string) error {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return ctrl.NewControllerManagedBy(mgr).
		Named("queuedatabase"+suffix).
		For(&v1alpha1.QueueDatabase{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&batchv1.CronJob{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(secret, handler.EnqueueRequestsFromMapFunc(r.usersOfSecret)).
		WatchesRawSource(r.samples()).
		WithOptions(controllerOptions()).
		Complete(r)
}

// usersOfSecret finds the QueueDatabases that name a Secret.
func (r *databaseReconciler) usersOfSecret(ctx context.Context, o client.Object) []reconcile.Request {
	var list v1alpha1.QueueDatabaseList
	if err := r.client.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.MatchingFields{indexSecret: o.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list the QueueDatabases of a Secret")
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: keyOf(&list.Items[i])})
	}
	return out
}

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// samples has a database reconciled after each sample.
func (r *databaseReconciler) samples() source.Source {
	return source.Func(func(_ context.Context, queue requests) error {
		r.hub.Subscribe(func(key sampler.Key) { queue.Add(reconcile.Request{NamespacedName: key}) })
		return nil
	})
}

func (r *queueReconciler) setup(mgr ctrl.Manager, suffix string) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("jobqueue"+suffix).
		For(&v1alpha1.JobQueue{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.Deployment{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, r.podEvents()).
		Watches(&v1alpha1.QueueDatabase{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.queuesOf(ctx, keyOf(o))
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.samples()).
		WithOptions(controllerOptions()).
		Complete(r)
}

// samples has all queues of a database reconciled after each sample.
func (r *queueReconciler) samples() source.Source {
	return source.Func(func(ctx context.Context, queue requests) error {
		r.hub.Subscribe(func(key sampler.Key) {
			for _, req := range r.queuesOf(ctx, key) {
				queue.Add(req)
			}
		})
		return nil
	})
}

// podEvents has a pod's queue reconciled, and with a pod that is gone all queues
// of the server, since its connections are free.
func (r *queueReconciler) podEvents() handler.EventHandler {
	own := func(o client.Object, queue requests) {
		queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[LabelQueue]}})
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue requests) { own(e.Object, queue) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue requests) { own(e.ObjectNew, queue) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue requests) {
			own(e.Object, queue)
			db := types.NamespacedName{Namespace: e.Object.GetNamespace(), Name: e.Object.GetLabels()[LabelDatabase]}
			for _, req := range r.queuesBeside(ctx, db) {
				queue.Add(req)
			}
		},
	}
}

// queuesBeside lists the JobQueues of a database and of those on its server.
func (r *queueReconciler) queuesBeside(ctx context.Context, key types.NamespacedName) []reconcile.Request {
	out := r.queuesOf(ctx, key)
	db := &v1alpha1.QueueDatabase{}
	if err := r.client.Get(ctx, key, db); err != nil {
		return out // it is gone: whatever was its pods' counts with the next sample
	}
	neighbours, err := r.books.neighbours(ctx, db)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list the QueueDatabases of a server")
	}
	for _, n := range neighbours {
		out = append(out, r.queuesOf(ctx, keyOf(n))...)
	}
	return out
}

// queuesOf lists the JobQueues of a database.
func (r *queueReconciler) queuesOf(ctx context.Context, db types.NamespacedName) []reconcile.Request {
	var list v1alpha1.JobQueueList
	if err := r.client.List(ctx, &list, client.InNamespace(db.Namespace), client.MatchingFields{indexDatabase: db.Name}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list the JobQueues of a QueueDatabase")
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: keyOf(&list.Items[i])})
	}
	return out
}
