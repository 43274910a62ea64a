package main

import (
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// countCalls counts the system calls that this process's threads, and those that they make,
// enter until the count is taken. Without the right to trace it counts none.
func countCalls() (count func() uint64) {
	none := func() uint64 { return 0 }
	var id []byte
	var err error
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		if id, err = os.ReadFile(dir + "/events/raw_syscalls/sys_enter/id"); err == nil {
			break
		}
	}
	if err != nil {
		return none
	}
	config, err := strconv.ParseUint(strings.TrimSpace(string(id)), 10, 64)
	if err != nil {
		return none
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return none
	}
	attributes := unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Size: unix.PERF_ATTR_SIZE_VER1, Config: config, Bits: unix.PerfBitInherit}
	var counters []int
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PerfEventOpen(&attributes, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return none
		}
		counters = append(counters, fd)
	}
	return func() (n uint64) {
		for _, fd := range counters {
			var b [8]byte
			if _, err := unix.Read(fd, b[:]); err == nil {
				n += binary.NativeEndian.Uint64(b[:])
			}
			_ = unix.Close(fd)
		}
		return n
	}
}
