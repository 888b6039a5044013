package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// at is a time of the operator's clock, in seconds.
func at(seconds int) time.Time { return time.Unix(int64(1_000_000+seconds), 0) }

// seen is a state whose latest sample was read at readAt from a server that was
// started at started and had been seen since since.
func seen(started, since, readAt int) sampler.State {
	return sampler.State{
		Attempted: true, Sample: &queue.Sample{ServerStartedAt: at(started)}, ServerSince: at(since), ReadAt: at(readAt),
	}
}

func TestOnOneServer(t *testing.T) {
	const started, later = -1000, -500
	cases := map[string]struct {
		a, b sampler.State
		// want is the outcome where the two were apart before, and together.
		want map[bool]bool
	}{
		"both show one start":                           {seen(started, 0, 10), seen(started, 5, 8), map[bool]bool{false: true, true: true}},
		"two servers, both seen beside the other":       {seen(started, 0, 10), seen(later, 1, 9), map[bool]bool{false: false, true: false}},
		"one is new, the other not sampled since":       {seen(started, 0, 10), seen(later, 11, 11), map[bool]bool{false: false, true: true}},
		"a restart that only one of them has seen":      {seen(started, 0, 10), seen(11, 12, 20), map[bool]bool{false: false, true: true}},
		"a failover to a server that had long been up":  {seen(started, 0, 10), seen(later, 12, 12), map[bool]bool{false: false, true: true}},
		"one that cannot be reached stays where it was": {seen(started, 0, 10), sampler.State{Attempted: true}, map[bool]bool{false: false, true: true}},
		"nothing is known yet":                          {sampler.State{}, sampler.State{}, map[bool]bool{false: false, true: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for before, want := range tc.want {
				if got := onOneServer(tc.a, tc.b, before); got != want {
					t.Errorf("onOneServer, %t before, = %t, want %t", before, got, want)
				}
				if got := onOneServer(tc.b, tc.a, before); got != want {
					t.Errorf("onOneServer the other way round, %t before, = %t, want %t", before, got, want)
				}
			}
		})
	}
}

func TestServersRemember(t *testing.T) {
	database := func(name string, sharedWith ...string) *v1alpha1.QueueDatabase {
		db := testDatabase()
		db.Name = name
		db.Status.Connections = &v1alpha1.DatabaseConnections{SharedWith: sharedWith}
		return db
	}
	a, b, c := database("a", "ns/b"), database("b"), database("c")
	s := newServers()
	steps := []struct {
		say          string
		a, b         *v1alpha1.QueueDatabase
		seenA, seenB sampler.State
		want         bool
	}{
		{"S10: after a start the status counts, whichever of both has it", b, a, sampler.State{}, sampler.State{}, true},
		{"and says nothing of others", a, c, sampler.State{}, sampler.State{}, false},
		{"what is sampled counts more", a, c, seen(1, 2, 3), seen(1, 2, 3), true},
		{"and stays when one cannot be reached", c, a, seen(1, 2, 3), sampler.State{}, true},
		{"until both are seen apart", c, a, seen(1, 2, 9), seen(5, 6, 8), false},
		{"which stays, too", c, a, sampler.State{}, sampler.State{}, false},
	}
	for _, step := range steps {
		if got := s.share(step.a, step.b, step.seenA, step.seenB); got != step.want {
			t.Errorf("%s: %t, want %t", step.say, got, step.want)
		}
	}
	s.forget(keyOf(a))
	if diff := cmp.Diff(map[databasePair]bool{}, s.together); diff != "" {
		t.Errorf("kept after the database is gone (-want +got):\n%s", diff)
	}
}

func TestStraysAreEvenedOut(t *testing.T) {
	l, db := newLedger(), types.NamespacedName{Namespace: "ns", Name: "app"}
	beside := []string{"ns/b"}
	steps := []struct {
		say         string
		sampled     int
		beside      []string
		unaccounted int32
		want        int32
	}{
		{"the first sample counts at once", 1, beside, 0, 0},
		{"and the next", 2, beside, 0, 0},
		{"a pod that was gone when its sample came costs nothing", 3, beside, 3, 0},
		{"nor does looking at the sample again", 3, beside, 9, 0},
		{"nor again", 3, beside, 9, 0},
		{"what lasts", 4, beside, 7, 3},
		{"counts", 5, beside, 7, 3},
		{"soon", 6, beside, 7, 7},
		{"with other neighbours it begins anew", 6, nil, 0, 0},
	}
	for _, step := range steps {
		if got := l.strays(db, at(step.sampled), step.beside, step.unaccounted); got != step.want {
			t.Errorf("%s: %d, want %d", step.say, got, step.want)
		}
	}
}
