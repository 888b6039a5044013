package budget

import "slices"

// What the operator takes of the budget for itself: its sampling and its
// listening connection, and the one of a reaper's run (runs do not overlap).
const (
	OperatorConnections = 2
	ReaperConnections   = 1
	// Overhead is the sum of both.
	Overhead = OperatorConnections + ReaperConnections
)

// Spec is the budget as the user gave it: at least one of the two is set.
type Spec struct {
	// Connections is a fixed number. It goes before Percent.
	Connections *int32
	// Percent is a share of what other clients leave of the server.
	Percent *int32
}

// Server is what a sample says of the server's connections.
type Server struct {
	// Max and Reserved are max_connections and the part of it that is reserved.
	Max, Reserved int32
	// Others is what clients hold that no ledger has.
	Others int32
}

// Limits bound a database's connections: those of its workers, its reaper and the
// operator's to it.
type Limits struct {
	// Own is the most that the database may hold itself.
	Own int32
	// Server is the most that all job queue databases of its server may hold together
	// for this one to get more.
	Server int32
}

// Budget is the most that the database can ever hold.
func (l Limits) Budget() int32 { return min(l.Own, l.Server) }

// Limits are what a budget comes to on a server, and never more than other clients
// leave of it. A number bounds this database. A share bounds what the job queues of
// the whole server hold, since what it leaves is meant for other clients.
func (s Spec) Limits(server Server) Limits {
	free := max(0, int64(server.Max)-int64(server.Reserved)-int64(server.Others))
	switch {
	case s.Connections != nil:
		return Limits{Own: int32(min(free, int64(max(0, *s.Connections)))), Server: int32(free)}
	case s.Percent != nil:
		share := int32(free * int64(*s.Percent) / 100)
		return Limits{Own: share, Server: share}
	}
	return Limits{}
}

// Smoother evens out the number of other clients' connections. A share of what
// others leave must not follow each short-lived session, or every such session
// would cost worker pods: the median over the latest samples follows a lasting
// change after half of them, and a short one never.
type Smoother struct {
	latest []int32
}

// smoothed is the number of samples that the median goes over.
const smoothed = 9

// Add notes a sample and returns the median of the latest ones.
func (s *Smoother) Add(others int32) int32 {
	s.latest = append(s.latest, others)
	if len(s.latest) > smoothed {
		s.latest = s.latest[1:]
	}
	sorted := slices.Sorted(slices.Values(s.latest))
	return sorted[len(sorted)/2]
}

// Settled reports whether the median is over so many samples that no short-lived
// session decides it.
func (s *Smoother) Settled() bool { return len(s.latest) > smoothed/2 }
