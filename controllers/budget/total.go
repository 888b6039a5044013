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

// Spec is the budget as the user gave it: one of the two is set.
type Spec struct {
	// Connections is a fixed number.
	Connections *int32
	// Percent is a share of what other clients leave of the server.
	Percent *int32
}

// Server is what a sample says of the server's connections.
type Server struct {
	// Max and Reserved are max_connections and the part of it that is reserved.
	Max, Reserved int32
	// Others is what clients hold that are not ours.
	Others int32
}

// Total is how many connections workers, reapers and the operator may hold
// together: never more than other clients leave of the server. It is known when the
// number is fixed or the server has been sampled.
func Total(spec Spec, server *Server) (total int32, known bool) {
	if server == nil {
		if spec.Connections == nil {
			return 0, false
		}
		return max(0, *spec.Connections), true
	}
	free := max(0, int64(server.Max)-int64(server.Reserved)-int64(server.Others))
	switch {
	case spec.Connections != nil:
		return int32(min(free, max(0, int64(*spec.Connections)))), true
	case spec.Percent != nil:
		return int32(free * int64(*spec.Percent) / 100), true
	}
	return 0, false
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
