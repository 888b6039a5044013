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
	id.claimed(start, start, 10*time.Second)
	id.claimed(start.Add(5*time.Second), start.Add(5*time.Second), 10*time.Second) // a later claim need not extend it
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
	if id.beginClaim(start.Add(12 * time.Second)) {
		t.Error("claims after it expired")
	}
}

// What a worker knows of its lease, whatever the order in which claims and heartbeats are
// sent and answered. at is when something was sent; the lease of the policy is 120 s.
func TestIdentityKnowsItsLease(t *testing.T) {
	const lease = 120 * time.Second
	claim := func(at time.Duration, lease time.Duration) func(*identity, time.Time) {
		return func(i *identity, start time.Time) { i.claimed(start.Add(at), start.Add(at), lease) }
	}
	beat := func(at time.Duration) func(*identity, time.Time) {
		return func(i *identity, start time.Time) { i.renew(start.Add(at), lease) }
	}
	cases := map[string]struct {
		answers []func(*identity, time.Time)
		want    time.Duration // when the lease ends
	}{
		"the first claim brings jobs":                        {answers: []func(*identity, time.Time){claim(0, lease)}, want: lease},
		"an empty claim between a heartbeat and its answer":  {answers: []func(*identity, time.Time){claim(time.Second, 0), beat(0)}, want: lease},
		"an empty claim leaves what a heartbeat has said":    {answers: []func(*identity, time.Time){beat(0), claim(100*time.Second, 0)}, want: lease},
		"jobs after an empty claim, before any heartbeat":    {answers: []func(*identity, time.Time){claim(0, 0), claim(50*time.Second, lease)}, want: 80 * time.Second},
		"a heartbeat answered after a claim sent after it":   {answers: []func(*identity, time.Time){claim(0, lease), claim(99*time.Second, lease), beat(98 * time.Second)}, want: 218 * time.Second},
		"a claim when heartbeats have failed leaves quarter": {answers: []func(*identity, time.Time){beat(0), claim(100*time.Second, lease)}, want: 130 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			id, start := newIdentity(), time.Now()
			for _, answer := range tc.answers {
				answer(id, start)
			}
			if id.over(start.Add(tc.want-1)) || !id.over(start.Add(tc.want)) {
				t.Errorf("the lease ends at %s, want %s", id.renewedAt.Add(id.lease).Sub(start), tc.want)
			}
		})
	}
}

func TestIdentitiesReplaceARetiredOne(t *testing.T) {
	all := newIdentities()
	first := all.take(time.Now())
	if again := all.take(time.Now()); again != first {
		t.Error("a new identity without need")
	}
	first.endClaim()
	h := makeHeld(1, time.Minute, time.Minute)
	first.add([]*held{h})
	first.retire()
	second := all.take(time.Now())
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
	id.claimed(start, start, time.Second)
	id.add([]*held{makeHeld(1, time.Minute, time.Minute)})
	id.beginClaim(start)
	id.expire(start.Add(time.Minute))
	if id.endClaim() {
		t.Error("what a claim brings after the lease ran out is kept")
	}
}

// After an outage longer than the lease, an idle worker's first claim may be answered
// before its heartbeat.
func TestIdentityClaimsAfterAnOutage(t *testing.T) {
	const lease = 8 * time.Second
	cases := map[string]struct {
		held           bool // something since before the outage
		sent, answered time.Duration
		wantFresh      bool
		wantOver       time.Duration // when what the claim brings is given up
	}{
		"claims before its end":               {sent: 7 * time.Second, answered: 7 * time.Second, wantOver: 9 * time.Second},
		"claims long before its end":          {sent: 5 * time.Second, answered: 5 * time.Second, wantOver: lease},
		"is answered after its end":           {sent: 7500 * time.Millisecond, answered: 9 * time.Second, wantOver: 9500 * time.Millisecond},
		"claims after its end":                {sent: lease, answered: 9 * time.Second, wantFresh: true, wantOver: 2 * lease},
		"holds a job":                         {held: true, sent: 7 * time.Second, answered: 7 * time.Second, wantOver: 9 * time.Second},
		"holds a job, answered after its end": {held: true, sent: 7 * time.Second, answered: 9 * time.Second, wantOver: lease},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			all := newIdentities()
			first := all.take(start)
			first.claimed(start, start, lease)
			first.endClaim()
			if tc.held {
				first.add([]*held{makeHeld(1, time.Minute, time.Minute)})
			}
			id := all.take(start.Add(tc.sent))
			id.claimed(start.Add(tc.sent), start.Add(tc.answered), lease)
			id.add([]*held{makeHeld(2, time.Minute, time.Minute)})
			if fresh := id != first; fresh != tc.wantFresh {
				t.Errorf("another identity: %t, want %t", fresh, tc.wantFresh)
			}
			if id.expire(start.Add(tc.wantOver - 1)) {
				t.Errorf("given up before %s", tc.wantOver)
			}
			if !id.expire(start.Add(tc.wantOver)) {
				t.Errorf("not given up at %s", tc.wantOver)
			}
		})
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
