package worker

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// cgroupMemoryFile holds the container's memory limit under cgroup v2.
const cgroupMemoryFile = "/sys/fs/cgroup/memory.max"

// setMemoryLimit tells the garbage collector of the container's limit, so that it
// works harder before the kernel kills the process. GOMEMLIMIT in the environment
// has the last word. It returns what it has set, 0 for nothing.
func setMemoryLimit() int64 {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	text, err := os.ReadFile(cgroupMemoryFile)
	if err != nil {
		return 0
	}
	limit := memoryLimit(string(text))
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	return limit
}

// memoryLimit is nine tenths of a cgroup's limit, leaving a tenth for what the Go
// runtime does not count; 0 when there is no limit.
func memoryLimit(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return n / 10 * 9
}
