package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
)

// How often a status is written that differs only in numbers of the sample, and
// one that differs only in when the sample was taken.
const (
	numbersEvery = 5 * time.Second
	timeEvery    = 5 * time.Minute
)

// importance says how soon a changed status is to be written.
type importance int

const (
	sameStatus importance = iota
	newerSample
	otherNumbers
	otherState
)

// statusClock decides when a status is written: at once when a state has changed,
// and rarely for numbers, so that a steady queue costs the API server nothing.
type statusClock struct {
	mu      sync.Mutex
	written map[types.NamespacedName]writtenAt
}

// writtenAt is when the status of the object of that UID was last written.
type writtenAt struct {
	uid types.UID
	at  time.Time
}

func newStatusClock() *statusClock {
	return &statusClock{written: map[types.NamespacedName]writtenAt{}}
}

// due reports whether to write the object's status now, and counts that as written.
// The first sight of an object counts as well: a restart of the operator alone is no
// change.
func (c *statusClock) due(o client.Object, i importance, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, uid := client.ObjectKeyFromObject(o), o.GetUID()
	last, seen := c.written[key]
	if !seen || last.uid != uid {
		last = writtenAt{uid, now}
		c.written[key] = last
	}
	due := i == otherState ||
		i == otherNumbers && now.Sub(last.at) >= numbersEvery ||
		i == newerSample && now.Sub(last.at) >= timeEvery
	if due {
		c.written[key] = writtenAt{uid, now}
	}
	return due
}

// forget drops what is known of an object that is gone.
func (c *statusClock) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, key)
}

// sameConditions compares what conditions say, not how they say it. Which of the
// limits came last changes with the numbers, and counts as one.
func sameConditions(a, b []metav1.Condition) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		y := meta.FindStatusCondition(b, x.Type)
		if y == nil || x.Status != y.Status || x.ObservedGeneration != y.ObservedGeneration {
			return false
		}
		if x.Reason != y.Reason && x.Type != v1alpha1.ConditionScalingLimited {
			return false
		}
	}
	return true
}

// conditions builds a set of conditions for one generation.
type conditions struct {
	list       *[]metav1.Condition
	generation int64
}

func (c conditions) set(kind string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(c.list, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: c.generation,
	})
}

// only sets a condition that is present while it is true.
func (c conditions) only(kind string, present bool, reason, message string) {
	if present {
		c.set(kind, true, reason, message)
	} else {
		meta.RemoveStatusCondition(c.list, kind)
	}
}

// equalStatus compares statuses wholly.
func equalStatus(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

// lastWritten keeps the status written last, since caches show it late.
type lastWritten[S any] struct {
	mu    sync.Mutex
	known map[types.NamespacedName]writtenStatus[S]
}

type writtenStatus[S any] struct {
	uid    types.UID
	status S
}

// of returns the status written last to this very object, or else the given one.
func (l *lastWritten[S]) of(key types.NamespacedName, uid types.UID, otherwise S) S {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.known[key]; ok && w.uid == uid {
		return w.status
	}
	return otherwise
}

func (l *lastWritten[S]) keep(key types.NamespacedName, uid types.UID, s S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[types.NamespacedName]writtenStatus[S]{}
	}
	l.known[key] = writtenStatus[S]{uid: uid, status: s}
}

func (l *lastWritten[S]) forget(key types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, key)
}
