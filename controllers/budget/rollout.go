package budget

// How a worker Deployment replaces its pods. Without surge, a rollout takes away a
// quarter of the pods, at least one, and brings as many new ones at once, while
// the old may still be finishing a job. So at most RolloutPods more pods than
// replicas exist, provided that the next quarter does not go before the last is
// gone; the controllers see to that with minReadySeconds.
const (
	MaxSurge       = 0
	MaxUnavailable = "25%"
)

// RolloutPods is how many pods beyond the replicas a rollout may add: what the
// Deployment controller makes of MaxUnavailable, rounded down, but at least one.
func RolloutPods(replicas int32) int32 {
	if replicas <= 0 {
		return 0
	}
	return max(1, replicas/4)
}
