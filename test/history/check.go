package history

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Rule names what must not happen.
type Rule string

// The rules.
const (
	// Lost: a job is neither alive nor finished.
	Lost Rule = "lost"
	// TwoOwners: a job was claimed before its former run had ended.
	TwoOwners Rule = "two owners"
	// StaleWrite: a result was accepted of a run that had ended before, or never began.
	StaleWrite Rule = "stale write accepted"
	// FinishedTwice: a job ended for good a second time.
	FinishedTwice Rule = "finished twice"
	// Revived: a job that had ended for good came back without having been requeued.
	Revived Rule = "ended and alive"
	// ResultLost: a result was accepted and its run goes on all the same.
	ResultLost Rule = "accepted result lost"
	// Causeless: a result was refused of a run that had not ended.
	Causeless Rule = "refused without cause"
	// Robbed: the reaper took a run whose worker's lease was not over, nor was its deadline.
	Robbed Rule = "taken from a live worker"
)

// Violation is one breach of a rule.
type Violation struct {
	Rule  Rule
	ID    int64
	Token uuid.UUID // zero when it is of no single run
	Why   string
}

func (v Violation) String() string {
	if v.Token == uuid.Nil {
		return fmt.Sprintf("job %d: %s: %s", v.ID, v.Rule, v.Why)
	}
	return fmt.Sprintf("job %d, run %s: %s: %s", v.ID, v.Token, v.Rule, v.Why)
}

// Report is the verdict, with numbers that show that there was something to judge.
type Report struct {
	// Jobs that were ever seen, and Runs that were ever claimed.
	Jobs, Runs int
	// Ended counts the runs by the function that ended them.
	Ended map[string]int
	// Unrun of them were given back before their handlers began. How many are, depends on
	// how fast the machine is: a worker does so when jobs wait for too long in its memory.
	Unrun int
	// Accepted and Refused results, as workers were told.
	Accepted, Refused int
	Violations        []Violation
}

// Begun is how many runs were not given back unrun.
func (r Report) Begun() int { return r.Runs - r.Unrun }

// Rules lists the rules that were broken, each once, in alphabetical order.
func (r Report) Rules() []Rule {
	rules := []Rule{}
	for _, v := range r.Violations {
		rules = append(rules, v.Rule)
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

// Err names up to 20 violations, or is nil.
func (r Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	var lines []string
	for _, v := range r.Violations[:min(len(r.Violations), 20)] {
		lines = append(lines, v.String())
	}
	return fmt.Errorf("%d violation(s):\n%s", len(r.Violations), strings.Join(lines, "\n"))
}

// run is what is known of one run of a job.
type run struct {
	id         int64
	registered uint64 // its worker, by that transaction
	closed     bool
	closedIn   uint64 // the transaction
	closedBy   string
	closedAt   time.Time
	succeeded  bool
}

// job is what is known of one job.
type job struct {
	open map[uuid.UUID]bool
	ends int // for good, since it was last requeued
}

type checker struct {
	jobs   map[int64]*job
	runs   map[uuid.UUID]*run
	wrote  map[uuid.UUID]bool // runs whose workers know, or suspect, that they have ended them
	report Report
}

// Check judges a history.
func Check(h History) Report {
	c := checker{jobs: map[int64]*job{}, runs: map[uuid.UUID]*run{}, wrote: map[uuid.UUID]bool{}, report: Report{Ended: map[string]int{}}}
	for _, id := range h.Enqueued {
		c.job(id)
	}
	closings := closingsOf(h.Events)
	for _, e := range h.Events {
		c.event(e, closings)
	}
	for _, t := range h.Told {
		c.wrote[t.Token] = c.wrote[t.Token] || t.Outcome != "refused"
	}
	for _, t := range h.Told {
		c.told(t)
	}
	c.unrun(h.Began)
	c.lost(h.Live)
	c.report.Jobs, c.report.Runs = len(c.jobs), len(c.runs)
	slices.SortStableFunc(c.report.Violations, func(a, b Violation) int {
		return strings.Compare(string(a.Rule), string(b.Rule))
	})
	return c.report
}

func (c *checker) job(id int64) *job {
	j := c.jobs[id]
	if j == nil {
		j = &job{open: map[uuid.UUID]bool{}}
		c.jobs[id] = j
	}
	return j
}

func (c *checker) broken(rule Rule, id int64, token uuid.UUID, format string, args ...any) {
	c.report.Violations = append(c.report.Violations, Violation{rule, id, token, fmt.Sprintf(format, args...)})
}

func (c *checker) event(e Event, closings map[change]bool) {
	j := c.job(e.ID)
	switch e.What {
	case Claimed:
		for former := range j.open {
			c.broken(TwoOwners, e.ID, e.Token, "claimed while run %s had not ended", former)
		}
		j.open[e.Token] = true
		c.runs[e.Token] = &run{id: e.ID, registered: e.Registered}
	case Closed:
		delete(j.open, e.Token)
		if r := c.runs[e.Token]; r != nil {
			r.closed, r.closedIn, r.closedBy, r.closedAt = true, e.Xid, e.By, e.At
			c.report.Ended[e.By]++
			c.taken(r, e)
		}
	case Succeeded:
		c.succeeded(e)
		c.finished(j, e)
	case Arrived:
		if writesResults[e.By] && !closings[change{e.Xid, e.ID}] {
			c.broken(StaleWrite, e.ID, uuid.Nil, "%s moved it to %s and ended no run of it", e.By, e.Place)
		}
		switch {
		case e.Place != "waiting":
			c.finished(j, e)
		case strings.HasPrefix(e.By, "requeue"):
			j.ends = 0
		case j.ends > 0:
			c.broken(Revived, e.ID, uuid.Nil, "%s made it wait again after its end", e.By)
		}
	}
}

// taken judges the end of a run by the reaper. Causes are the end of the worker's lease, the
// run's deadline, and that the worker's row is gone: the reaper gives back what a worker that
// has unregistered left behind. It looks for rows before it gives back, and a heartbeat may
// make one anew meanwhile; so only the row that was there at the claim, and has not been
// removed since, shows that there was a live worker all the time. The reaper reads the clock
// before the end is noted, so that what was over for it is over here.
func (c *checker) taken(r *run, e Event) {
	if e.By != "reap" || e.Registered == 0 || e.Registered != r.registered {
		return
	}
	if e.At.Before(e.Lease) && e.At.Before(e.Deadline) {
		c.broken(Robbed, e.ID, e.Token, "%s ended it %s before its worker's lease was over, and %s before its deadline",
			e.By, e.Lease.Sub(e.At), e.Deadline.Sub(e.At))
	}
}

func (c *checker) succeeded(e Event) {
	r := c.runs[e.Token]
	switch {
	case r == nil:
		c.broken(StaleWrite, e.ID, e.Token, "succeeded, but it was never claimed")
		return
	case r.closed && r.closedIn != e.Xid:
		c.broken(StaleWrite, e.ID, e.Token, "succeeded after %s had ended it", r.closedBy)
	}
	r.succeeded = true
}

func (c *checker) finished(j *job, e Event) {
	if j.ends++; j.ends > 1 {
		c.broken(FinishedTwice, e.ID, e.Token, "finished by %s for the %d. time", e.By, j.ends)
	}
}

// writesResults are the functions by which workers end runs otherwise than by success.
var writesResults = map[string]bool{"fail": true, "snooze": true, "discard": true, "release": true}

// endsBy says which function an accepted outcome comes from.
var endsBy = map[string]string{
	"retried": "fail", "dead": "fail", "snoozed": "snooze", "discarded": "discard", "released": "release",
}

func (c *checker) told(t Told) {
	switch t.Outcome {
	case "refused":
		c.report.Refused++
		c.refused(t)
		return
	case "unconfirmed":
		return
	}
	c.report.Accepted++
	r := c.runs[t.Token]
	switch {
	case r == nil || r.id != t.ID:
		c.broken(StaleWrite, t.ID, t.Token, "its worker was told %q, but it was never claimed", t.Outcome)
	case t.Outcome == "succeeded" && r.succeeded:
	case r.closed && r.closedBy == endsBy[t.Outcome]:
	case r.closed:
		c.broken(StaleWrite, t.ID, t.Token, "its worker was told %q, but %s had ended it", t.Outcome, r.closedBy)
	default:
		c.broken(ResultLost, t.ID, t.Token, "its worker was told %q", t.Outcome)
	}
}

// refused judges a refusal. The only cause is that the run had ended before: a lease that
// has run out is none, as long as nobody has taken the run back. Who ends a run does so
// before whoever comes too late is answered, which is noted later still; so where the times
// are the other way round, the run went on when its result was refused. And results are
// written by the run's worker alone, which says that it is unsure where it got no answer.
func (c *checker) refused(t Told) {
	r := c.runs[t.Token]
	switch {
	case r == nil || r.id != t.ID: // there was nothing to finish
	case !r.closed:
		c.broken(Causeless, t.ID, t.Token, "it never ended")
	case r.closedAt.After(t.At):
		c.broken(Causeless, t.ID, t.Token, "%s ended it %s later", r.closedBy, r.closedAt.Sub(t.At))
	case (r.succeeded || writesResults[r.closedBy]) && !c.wrote[t.Token]:
		c.broken(Causeless, t.ID, t.Token, "the only result that was written of it, by %s, is this one", r.closedBy)
	}
}

// unrun counts the runs that ended as those do that no handler has seen, and none had.
func (c *checker) unrun(began []uuid.UUID) {
	saw := make(map[uuid.UUID]bool, len(began))
	for _, token := range began {
		saw[token] = true
	}
	for token, r := range c.runs {
		if !saw[token] && (r.closedBy == "release" || r.closedBy == "disown") {
			c.report.Unrun++
		}
	}
}

func (c *checker) lost(live []int64) {
	alive := make(map[int64]bool, len(live))
	for _, id := range live {
		alive[id] = true
	}
	var gone []int64
	for id, j := range c.jobs {
		if !alive[id] && j.ends == 0 {
			gone = append(gone, id)
		}
	}
	slices.Sort(gone)
	for _, id := range gone {
		c.broken(Lost, id, uuid.Nil, "neither alive nor finished")
	}
}

// change is a transaction's work on one job.
type change struct {
	xid uint64
	id  int64
}

// closingsOf finds which transactions ended runs of which jobs. A result may put its job
// elsewhere before or after it ends the run.
func closingsOf(events []Event) map[change]bool {
	closings := map[change]bool{}
	for _, e := range events {
		if e.What == Closed {
			closings[change{e.Xid, e.ID}] = true
		}
	}
	return closings
}
