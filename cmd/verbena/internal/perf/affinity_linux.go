package perf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Pin binds this process, all its threads and those to come, to processors, as
// taskset does, and lets as many goroutines run at a time.
func Pin(cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		if cpu < 0 || cpu >= len(set)*64 {
			return fmt.Errorf("perf: there is no processor %d", cpu)
		}
		set.Set(cpu)
	}
	runtime.GOMAXPROCS(set.Count())
	// A thread that starts during the first pass either inherits the mask of a thread
	// that is bound already, or is found by the second pass.
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("perf: bind to processors %v: %w", cpus, err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("perf: bind to processors %v: %w: are they among those of this process?", cpus, err)
			}
		}
	}
	return nil
}
