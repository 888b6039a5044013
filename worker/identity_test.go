package worker

import (
	"context"
	"testing"
	"time"
)

func TestNobodyWritesARowThatIsGone(t *testing.T) {
	id := newIdentity()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if !id.holdRow(ctx) {
		t.Fatal("the row of a new identity cannot be held")
	}
	if id.holdRow(ctx) || id.isGone() {
		t.Fatal("the row was held twice")
	}
	waiting := make(chan bool)
	go func() { waiting <- id.holdRow(context.Background()) }()
	close(id.gone)
	if <-waiting || !id.isGone() {
		t.Error("a row that is gone was held")
	}
}

func TestIdentityExpiresByItsOwnClock(t *testing.T) {
	start := time.Now()
	id := newIdentity()
	if id.expire(start.Add(time.Hour)) {
		t.Error("expires without ever having had a lease")
	}
	id.registered(start, 10*time.Second)
	id.registered(start.Add(5*time.Second), 10*time.Second) // a later claim need not extend it
	if id.expire(start.Add(time.Hour)) {
		t.Error("expires though nothing is held")
	}
	id.add([]*held{makeHeld(1, time.Minute, time.Minute)})
	id.renew(start.Add(time.Second), 10*time.Second)
	id.renew(start, time.Hour) // an answer that came out of order
	if id.expire(start.Add(11*time.Second - 1)) {
		t.Error("expires too early")
	}
	if !id.expire(start.Add(11 * time.Second)) {
		t.Error("does not expire")
	}
	if id.expire(start.Add(12 * time.Second)) {
		t.Error("expires twice")
	}
	if id.beginClaim() {
		t.Error("claims after it expired")
	}
}

func TestIdentitiesReplaceARetiredOne(t *testing.T) {
	all := newIdentities()
	first := all.take()
	if again := all.take(); again != first {
		t.Error("a new identity without need")
	}
	first.endClaim()
	h := makeHeld(1, time.Minute, time.Minute)
	first.add([]*held{h})
	first.retire()
	second := all.take()
	if second == first || second.id == first.id {
		t.Error("a retired identity claims")
	}
	if list := all.all(); len(list) != 2 {
		t.Errorf("%d identities, want the current and the retired one", len(list))
	}
	if _, done := first.state(); done {
		t.Error("done while a job is held and a claim is under way")
	}
	first.endClaim()
	first.remove(h)
	if beating, done := first.state(); !beating || !done {
		t.Errorf("beating=%t done=%t, want both once nothing hangs on it", beating, done)
	}
	all.forget(first)
	if list := all.all(); len(list) != 1 || list[0] != second {
		t.Error("not forgotten")
	}
}

func TestIdentityClaimAcrossExpiry(t *testing.T) {
	start := time.Now()
	id := newIdentity()
	id.registered(start, time.Second)
	id.add([]*held{makeHeld(1, time.Minute, time.Minute)})
	id.beginClaim()
	id.expire(start.Add(time.Minute))
	if id.endClaim() {
		t.Error("what a claim brings after the lease ran out is kept")
	}
}

func TestIdentityActive(t *testing.T) {
	id := newIdentity()
	waiting, running, settled := makeHeld(1, time.Minute, time.Minute), makeHeld(2, time.Minute, time.Minute), makeHeld(3, time.Minute, time.Minute)
	running.testBegin(t)
	settled.takeBack()
	id.add([]*held{waiting, running, settled})
	if n := len(id.active()); n != 2 {
		t.Errorf("%d jobs need the lease, want the waiting and the running one", n)
	}
}
