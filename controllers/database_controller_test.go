package controllers

import (
	"testing"

	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

// An announcement has the reconciler look again. One for each look at a QueueDatabase that
// is gone would keep it busy for ever.
func TestForgettingADatabaseIsAnnouncedOnce(t *testing.T) {
	key := sampler.Key{Namespace: "shop", Name: "app"}
	r := &databaseReconciler{
		hub: sampler.NewHub(), credentials: newCredentialStore(nil, nil), applier: newApplier(nil, nil),
		books: &books{ledger: newLedger(), servers: newServers()}, clock: newStatusClock(), reapers: newReaperWatch(),
	}
	announced := 0
	r.hub.Subscribe(func(sampler.Key) { announced++ })

	r.forget(key)
	if announced != 0 {
		t.Errorf("a QueueDatabase that was never known was announced %d times", announced)
	}
	r.credentials.keep(key, "1", credentials{url: "postgres://db"})
	for range 3 {
		r.forget(key)
	}
	if announced != 1 {
		t.Errorf("a QueueDatabase that is gone was announced %d times, want 1", announced)
	}
}
