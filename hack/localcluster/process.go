package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Identity names one process for good. A process id alone does not: the kernel
// gives it to another process once the first has ended.
type Identity struct {
	// PID is the process id as the machine sees it.
	PID int `json:"pid"`
	// StartTicks is when it started, in clock ticks since the machine booted.
	StartTicks uint64 `json:"startTicks"`
	// BootID tells one boot of the machine from another.
	BootID string `json:"bootID"`
}

// identify returns the identity of a living process.
func identify(pid int) (Identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Identity{}, err
	}
	state, ticks, err := parseStat(stat)
	if err != nil {
		return Identity{}, err
	}
	if state == 'Z' || state == 'X' {
		return Identity{}, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: ticks, BootID: strings.TrimSpace(string(boot))}, nil
}

// parseStat reads the state and the start time out of /proc/PID/stat. The
// second field, the command's name, may hold spaces and parentheses itself, so
// counting starts behind the last one.
func parseStat(stat []byte) (state byte, startTicks uint64, err error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("process status %q has no command name", stat)
	}
	const stateField, startField = 3, 22
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) <= startField-stateField {
		return 0, 0, fmt.Errorf("process status %q is too short", stat)
	}
	startTicks, err = strconv.ParseUint(fields[startField-stateField], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("process status has no start time: %w", err)
	}
	return fields[0][0], startTicks, nil
}

// Alive says whether exactly this process still runs.
func (i Identity) Alive() bool {
	if i.PID <= 0 {
		return false
	}
	now, err := identify(i.PID)
	return err == nil && now == i
}

// Signal sends a signal to exactly this process; one that has ended is no error.
func (i Identity) Signal(signal syscall.Signal) error {
	if !i.Alive() {
		return nil
	}
	if err := syscall.Kill(i.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot send %v to process %d: %w", signal, i.PID, err)
	}
	return nil
}

// Wait waits until the process has ended and says whether it did in time.
func (i Identity) Wait(limit time.Duration) bool {
	for deadline := time.Now().Add(limit); i.Alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// saveJSON writes a value where a later run finds it.
func saveJSON(file string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeFile(file, append(content, '\n'), 0o644)
}

// loadJSON reads what saveJSON wrote. A missing or damaged file, as a crash
// leaves it, gives the zero value: the identity of no process.
func loadJSON[T any](file string) T {
	var value, zero T
	content, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(content, &value) != nil {
		return zero
	}
	return value
}
