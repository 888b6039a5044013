package sampler

import (
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/controllers/scaling"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// Config says which database to sample and how. Two equal ones are one.
type Config struct {
	// URL is the connection string. It never leaves the sampler.
	URL string
	// Schema holds the queues.
	Schema string
	// Interval is the time between two samples.
	Interval time.Duration
	// Migrate lets the sampler bring the schema to this program's version.
	Migrate bool
}

// State is what is known of a database. It is immutable.
type State struct {
	// Attempted is false until the first try to read a sample has ended.
	Attempted bool
	// Problem is why the latest try failed, nil when it did not.
	Problem *Problem
	// Sample is the latest that was read, nil when none was. ReadAt is when that
	// was, on the operator's clock, which is only compared with itself.
	Sample *queue.Sample
	ReadAt time.Time
	// ServerSince is the ReadAt of the first sample that showed the same
	// ServerStartedAt as the latest one.
	ServerSince time.Time
	// HorizonSince is when the sample's holder of the horizon was first seen to hold
	// it where it is, on the database's clock; zero without one.
	HorizonSince time.Time
	// Interval is the configured one.
	Interval time.Duration
	// SchemaVersion is the version found; 0 when there is none.
	SchemaVersion int
	// Others is the number of connections that are not of job queues, evened out.
	Others int32
	// Settled is true once that is over enough samples.
	Settled bool
	// Rates are measured over the past samples, by queue.
	Rates map[string]scaling.Rates
	// Policies is what became of the policies asked for, by queue.
	Policies map[string]PolicyState
	// Released has the queues (as releaseKey) whose owner has been cleared.
	released map[release]bool
}

// PolicyState is what became of one policy.
type PolicyState struct {
	// Generation is the generation that was accepted last, 0 when none was.
	Generation int64
	// Problem is why the wanted one was not accepted.
	Problem *Problem
}

// Problem is an error as users see it: a reason for a condition, and a message
// that holds no secret.
type Problem struct {
	Reason, Message string
}

// staleAfter is how many intervals a sample lasts.
const staleAfter = 3

// Fresh reports whether there is a sample to decide from, and if not, why.
func (s State) Fresh(now time.Time) (bool, Problem) {
	switch {
	case s.Problem != nil:
		return false, *s.Problem
	case s.Sample == nil:
		return false, Problem{Reason: ReasonStarting, Message: "the database has not been sampled yet"}
	case now.Sub(s.ReadAt) > staleAfter*s.Interval+opTimeout:
		return false, Problem{Reason: ReasonStale, Message: "the latest sample is older than three intervals"}
	}
	return true, Problem{}
}

// see takes a new sample.
func (s *State) see(sample queue.Sample, now time.Time) {
	if s.Sample == nil || !s.Sample.ServerStartedAt.Equal(sample.ServerStartedAt) {
		s.ServerSince = now
	}
	s.HorizonSince = s.horizonSince(sample)
	s.Sample, s.ReadAt = &sample, now
}

// horizonSince is HorizonSince of a sample that comes after this state.
func (s *State) horizonSince(sample queue.Sample) time.Time {
	now := sample.Horizon
	if now == nil {
		return time.Time{}
	}
	if s.Sample != nil && s.Sample.Horizon != nil {
		if was := s.Sample.Horizon; was.Same(*now) && was.Xmin == now.Xmin {
			return s.HorizonSince
		}
	}
	return sample.TakenAt
}

// Released reports whether the owner of a queue has been cleared as asked.
func (s State) Released(queueName, owner string) bool { return s.released[release{queueName, owner}] }

type release struct{ queue, owner string }
