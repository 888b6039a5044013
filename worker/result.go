package worker

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// action is what a result asks the database to do.
type action int

const (
	actSucceed action = iota
	actFail
	actSnooze
	actDiscard
	actRelease
)

var actionNames = map[action]string{
	actSucceed: "succeed", actFail: "fail", actSnooze: "snooze", actDiscard: "discard", actRelease: "release",
}

func (a action) String() string { return actionNames[a] }

// result is the decided end of one run, on its way to the database.
type result struct {
	held      *held
	action    action
	text      string // the error of a failure, the reason of a discard
	permanent bool
	delay     time.Duration

	took time.Duration // how long the handler did

	// verify is set for a run that called Job.Succeed. That the database refuses what the
	// handler wants now is the proof that its transaction is committed.
	verify        bool
	handlerFailed bool // it returned an error, of a run to verify
	tries         int
	postponed     int // times that its row was locked
	// unsure is set when an earlier write may have reached the database without its
	// answer reaching us, so that a refusal now may mean "done already".
	unsure    bool
	notBefore time.Time
}

// lockedOut is how long a job is put off whose Job.Succeed met a locked row: no fault of
// its handler's.
const lockedOut = time.Second

// maxErrorText bounds what is sent; the database keeps 4,000 characters.
const maxErrorText = 16 << 10

// cleanText makes text that PostgreSQL can store: valid UTF-8 without NUL.
func cleanText(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}

// ending turns a handler's return into a result. succeeded tells that Job.Succeed
// was accepted, interrupted that the worker had cancelled the handler's context
// because it stops.
func ending(h *held, err error, succeeded, interrupted bool) result {
	switch {
	case succeeded && err == nil:
		return result{held: h, action: actFail, text: ErrNotCommitted.Error(), verify: true}
	case err == nil:
		return result{held: h, action: actSucceed}
	}
	c := classify(err)
	// Whatever the handler says now, the job may be finished already if Job.Succeed was accepted.
	r := result{held: h, action: actFail, text: cleanText(err.Error()), verify: succeeded, handlerFailed: succeeded}
	switch c.verdict {
	case verdictRetry:
		switch {
		case interrupted:
			r.action = actRelease
		case h.wasLocked():
			r.action, r.delay = actSnooze, lockedOut
		}
	case verdictPermanent:
		r.permanent = true
	case verdictRetryAfter:
		r.delay = c.delay
	case verdictSnooze:
		r.action, r.delay = actSnooze, c.delay
	case verdictDiscard:
		r.action, r.text = actDiscard, cleanText(c.reason)
	}
	return r
}

// group is the key of the results that one statement can write. Those of unsure writes go
// by themselves: answers name jobs, and such a result may meet a later run of its job.
type group struct {
	worker uuid.UUID
	action action
	unsure bool
}

// grouped splits results by statement, keeping their order.
func grouped(results []*result) [][]*result {
	var groups [][]*result
	index := map[group]int{}
	for _, r := range results {
		key := group{worker: r.held.identity.id, action: r.action, unsure: r.unsure}
		at, ok := index[key]
		if !ok {
			at = len(groups)
			index[key] = at
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], r)
	}
	return groups
}

func refsOf(results []*result) []queue.Ref {
	refs := make([]queue.Ref, len(results))
	for i, r := range results {
		refs[i] = r.held.Ref
	}
	return refs
}

func tookOf(results []*result) []time.Duration {
	took := make([]time.Duration, len(results))
	for i, r := range results {
		took[i] = r.took
	}
	return took
}

func snoozesOf(results []*result) []queue.Snooze {
	snoozes := make([]queue.Snooze, len(results))
	for i, r := range results {
		snoozes[i] = queue.Snooze{Ref: r.held.Ref, Delay: r.delay}
	}
	return snoozes
}

func discardsOf(results []*result) []queue.Discard {
	discards := make([]queue.Discard, len(results))
	for i, r := range results {
		discards[i] = queue.Discard{Ref: r.held.Ref, Reason: r.text}
	}
	return discards
}

func failuresOf(results []*result) []queue.Failure {
	failures := make([]queue.Failure, len(results))
	for i, r := range results {
		failures[i] = queue.Failure{Ref: r.held.Ref, Error: r.text, Permanent: r.permanent, RetryAfter: r.delay}
	}
	return failures
}
