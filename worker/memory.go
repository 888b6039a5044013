package worker

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// cgroupMemoryFile holds the container's memory limit under cgroup v2.
const cgroupMemoryFile = "/sys/fs/cgroup/memory.max"

// tuneMemory tells the garbage collector of the container's limit, so that it works
// harder before the kernel kills the process, and, that limit being known, lets it
// work less often until then: a worker's heap is small and short-lived, and would be
// collected hundreds of times a minute. GOMEMLIMIT and GOGC in the environment have
// the last word. It returns the limit it has set, 0 for none.
func tuneMemory() (set int64) {
	limited := os.Getenv("GOMEMLIMIT") != ""
	if !limited {
		text, err := os.ReadFile(cgroupMemoryFile)
		if err == nil {
			set = memoryLimit(string(text))
		}
		if set > 0 {
			debug.SetMemoryLimit(set)
			limited = true
		}
	}
	if limited && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(limitedGCPercent)
	}
	return set
}

// limitedGCPercent is how much a heap with a limit may grow between collections,
// in percent of what is live.
const limitedGCPercent = 400

// memoryLimit is nine tenths of a cgroup's limit, leaving a tenth for what the Go
// runtime does not count; 0 when there is no limit.
func memoryLimit(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return n / 10 * 9
}
