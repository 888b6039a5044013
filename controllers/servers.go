package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

// servers remembers which QueueDatabases are on one server.
type servers struct {
	mu       sync.Mutex
	together map[databasePair]bool
}

// databasePair is two QueueDatabases, the lesser name first.
type databasePair [2]types.NamespacedName

func pairOf(a, b types.NamespacedName) databasePair {
	if a.String() > b.String() {
		a, b = b, a
	}
	return databasePair{a, b}
}

func newServers() *servers { return &servers{together: map[databasePair]bool{}} }

// share reports whether two QueueDatabases are on one server, from what has been
// sampled, or else as it was found before, also by an earlier process.
func (s *servers) share(a, b *v1alpha1.QueueDatabase, seenA, seenB sampler.State) bool {
	pair := pairOf(keyOf(a), keyOf(b))
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.together[pair]
	if !known {
		before = sharesWith(a, b) || sharesWith(b, a)
	}
	now := onOneServer(seenA, seenB, before)
	s.together[pair] = now
	return now
}

func (s *servers) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pair := range s.together {
		if pair[0] == key || pair[1] == key {
			delete(s.together, pair)
		}
	}
}

// sharesWith reports what the status of a database says of another.
func sharesWith(db, other *v1alpha1.QueueDatabase) bool {
	return db.Status.Connections != nil && slices.Contains(db.Status.Connections.SharedWith, keyOf(other).String())
}

// onOneServer compares two databases by when their servers were started: a copy of
// a server has its system identifier, and its address depends on the way to it. A
// server that was restarted, or has failed over, shows another time at first to one
// of its databases only. So two are of different servers when each was seen at a
// time at which the other was there already; until then what was so before counts.
func onOneServer(a, b sampler.State, before bool) bool {
	switch {
	case a.Sample == nil || b.Sample == nil:
		return before
	case a.Sample.ServerStartedAt.Equal(b.Sample.ServerStartedAt):
		return true
	case a.ReadAt.After(b.ServerSince) && b.ReadAt.After(a.ServerSince):
		return false
	}
	return before
}

// neighbours lists the other QueueDatabases on a database's server, by name.
func (b *books) neighbours(ctx context.Context, db *v1alpha1.QueueDatabase) ([]*v1alpha1.QueueDatabase, error) {
	var list v1alpha1.QueueDatabaseList
	if err := b.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list QueueDatabases: %w", err)
	}
	state, _ := b.hub.State(keyOf(db))
	var out []*v1alpha1.QueueDatabase
	for i := range list.Items {
		other := &list.Items[i]
		if keyOf(other) == keyOf(db) {
			continue
		}
		theirs, _ := b.hub.State(keyOf(other))
		if b.servers.share(db, other, state, theirs) {
			out = append(out, other)
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.QueueDatabase) int { return strings.Compare(keyOf(a).String(), keyOf(b).String()) })
	return out, nil
}
