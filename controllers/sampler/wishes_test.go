package sampler

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestWishesAreWrittenOnceAndAgainWhenTheyDrift(t *testing.T) {
	w := newWishes()
	p := queue.Policy{Generation: 2, Owner: "ns/a"}
	if !w.setPolicy("a", p) || w.setPolicy("a", p) {
		t.Error("a wish is new once")
	}
	if diff := cmp.Diff(map[string]queue.Policy{"a": p}, w.unwritten()); diff != "" {
		t.Errorf("unwritten (-want +got):\n%s", diff)
	}
	w.settle("a", p, nil)
	if n := len(w.unwritten()); n != 0 {
		t.Errorf("%d unwritten after it was written", n)
	}
	w.compare(queue.Sample{Queues: map[string]queue.QueueSample{"a": {PolicyGeneration: 2}}})
	if n := len(w.unwritten()); n != 0 {
		t.Errorf("%d unwritten though nothing drifted", n)
	}
	w.compare(queue.Sample{Queues: map[string]queue.QueueSample{"a": {PolicyGeneration: 1}}})
	if n := len(w.unwritten()); n != 1 {
		t.Errorf("%d unwritten after a drift", n)
	}
}

func TestWishesKeepTheGenerationInForce(t *testing.T) {
	w := newWishes()
	first, second := queue.Policy{Generation: 1, Owner: "ns/a"}, queue.Policy{Generation: 2, Owner: "ns/a"}
	w.setPolicy("a", first)
	w.settle("a", first, nil)
	w.setPolicy("a", second)
	w.settle("a", first, &Problem{Reason: "late"}) // of a policy that is not wanted any more
	w.settle("a", second, &Problem{Reason: "refused"})
	policies, _ := w.outcomes()
	want := map[string]PolicyState{"a": {Generation: 1, Problem: &Problem{Reason: "refused"}}}
	if diff := cmp.Diff(want, policies); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestReleaseForgetsOnlyItsOwnPolicy(t *testing.T) {
	w := newWishes()
	p := queue.Policy{Generation: 1, Owner: "ns/winner"}
	w.setPolicy("a", p)
	if !w.release("a", "ns/loser") || w.release("a", "ns/loser") {
		t.Error("a release is new once")
	}
	if len(w.unwritten()) != 1 {
		t.Error("the winner's policy was forgotten")
	}
	w.release("a", "ns/winner")
	if len(w.unwritten()) != 0 {
		t.Error("the released policy is still wanted")
	}
	w.settleRelease(release{"a", "ns/winner"})
	if _, done := w.outcomes(); !done[release{"a", "ns/winner"}] || done[release{"a", "ns/loser"}] {
		t.Errorf("released: %v", done)
	}
	w.setPolicy("a", p)
	if _, done := w.outcomes(); done[release{"a", "ns/winner"}] {
		t.Error("a queue taken up again counts as released")
	}
}
