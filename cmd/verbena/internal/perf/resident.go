package perf

import (
	"bytes"
	"os"
	"strconv"
)

// resident is this process's resident memory in bytes, or 0 where the system
// does not tell.
func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0
	}
	n, err := strconv.ParseInt(string(f[1]), 10, 64)
	if err != nil {
		return 0
	}
	return n * int64(os.Getpagesize())
}
