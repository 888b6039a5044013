package controllers

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// applier applies objects by server-side apply, and not again what it applied last
// as long as nobody has changed it.
type applier struct {
	client client.Client
	live   client.Reader

	mu     sync.Mutex
	last   map[appliedKey]appliedState
	scaled map[types.NamespacedName]int32 // replicas set last, which caches show late
}

type appliedKey struct {
	kind string
	name types.NamespacedName
}

type appliedState struct {
	hash       string
	uid        types.UID
	generation int64
}

func newApplier(c client.Client, live client.Reader) *applier {
	return &applier{client: c, live: live, last: map[appliedKey]appliedState{}, scaled: map[types.NamespacedName]int32{}}
}

// foreignError says that an object of the wanted name belongs to somebody else.
type foreignError struct{ kind, name string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s %q exists and does not belong to this object; rename one of the two", e.kind, e.name)
}

// apply applies wanted as OwnerTemplate and by force: every field in it is the
// operator's. found is the object in the cache; not found there, it is looked for
// on the server before anything of the same name is touched.
func (a *applier) apply(ctx context.Context, wanted, found client.Object) error {
	kind := wanted.GetObjectKind().GroupVersionKind().Kind
	key := appliedKey{kind, keyOf(wanted)}
	object, err := toApply(wanted)
	if err != nil {
		return fmt.Errorf("%s %q: %w", kind, wanted.GetName(), err)
	}
	hash, err := hashOf(object.Object)
	if err != nil {
		return fmt.Errorf("%s %q: %w", kind, wanted.GetName(), err)
	}
	if found.GetUID() == "" {
		if err := a.refuseForeign(ctx, wanted); err != nil {
			return err
		}
	} else if a.standing(key, hash, wanted, found) {
		return nil
	}
	err = a.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(OwnerTemplate), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %q: %w", kind, wanted.GetName(), err)
	}
	a.note(key, appliedState{hash: hash, uid: object.GetUID(), generation: object.GetGeneration()})
	return nil
}

// refuseForeign keeps the operator from taking over what it did not make. An
// object that carries its owner's name and nobody else's claim, as after a restore
// from a backup, counts as its own.
func (a *applier) refuseForeign(ctx context.Context, wanted client.Object) error {
	gvk := wanted.GetObjectKind().GroupVersionKind()
	there := &unstructured.Unstructured{}
	there.SetGroupVersionKind(gvk)
	err := a.live.Get(ctx, keyOf(wanted), there)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s %q: %w", gvk.Kind, wanted.GetName(), err)
	}
	mine := wanted.GetOwnerReferences()[0]
	for _, owner := range there.GetOwnerReferences() {
		if owner.UID == mine.UID {
			return nil
		}
		if orDefault(owner.Controller, false) && (owner.Kind != mine.Kind || owner.Name != mine.Name) {
			return &foreignError{gvk.Kind, wanted.GetName()}
		}
	}
	if there.GetLabels()[labelManagedBy] != managedBy {
		return &foreignError{gvk.Kind, wanted.GetName()}
	}
	return nil
}

// standing reports whether what was applied last is this, and still stands.
func (a *applier) standing(key appliedKey, hash string, wanted, found client.Object) bool {
	a.mu.Lock()
	last, ok := a.last[key]
	a.mu.Unlock()
	if !ok || last.hash != hash || last.uid != found.GetUID() || last.generation != found.GetGeneration() {
		return false
	}
	labels := found.GetLabels()
	for k, v := range wanted.GetLabels() {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (a *applier) note(key appliedKey, s appliedState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last[key] = s
}

// saw notes a generation that the scaler made, which leaves the template as it was.
func (a *applier) saw(key appliedKey, before, after int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, ok := a.last[key]; ok && s.generation == before {
		s.generation = after
		a.last[key] = s
	}
}

func (a *applier) forget(kind string, name types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, appliedKey{kind, name})
	if kind == "Deployment" {
		delete(a.scaled, name)
	}
}

// toApply makes an apply configuration of an object: only what is set, and nothing
// that the server writes.
func toApply(o client.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	delete(content, "status")
	dropTimestamps(content)
	return &unstructured.Unstructured{Object: content}, nil
}

// dropTimestamps removes the empty creationTimestamp that typed metadata has.
func dropTimestamps(content map[string]any) {
	for key, value := range content {
		child, ok := value.(map[string]any)
		if !ok {
			continue
		}
		if ts, has := child["creationTimestamp"]; has && key == "metadata" && ts == nil {
			delete(child, "creationTimestamp")
		}
		dropTimestamps(child)
	}
}
