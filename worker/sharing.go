package worker

import "sync/atomic"

// provenRuns is how many handlers of a kind must have returned without finishing
// their job in a transaction of their own before its jobs may share rows.
const provenRuns = 16

// sharing decides whether the jobs of one kind may share rows in the database,
// which is several times faster. A handler that finishes its job in its own
// transaction locks the job's row until it commits, and would hold up the results
// of those that share it; so a kind shares once its handlers are known not to, and
// never again when one did.
type sharing struct {
	runs  atomic.Int32
	ownTx atomic.Bool
}

// returned notes that a handler is back.
func (s *sharing) returned() {
	if s.runs.Load() < provenRuns {
		s.runs.Add(1)
	}
}

// finishedInTx notes that a handler finishes its job in its own transaction.
func (s *sharing) finishedInTx() { s.ownTx.Store(true) }

// alone is true while a job of the kind needs a row to itself.
func (s *sharing) alone() bool { return s.ownTx.Load() || s.runs.Load() < provenRuns }

// alone lists the kinds whose jobs need a row each; never nil.
func (e *engine) alone() []string {
	kinds := []string{}
	for _, kind := range e.kinds {
		if e.handlers[kind].sharing.alone() {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}
