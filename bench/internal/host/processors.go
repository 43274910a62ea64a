// Package host is what the commands under bench share: this host's two processors and
// how far apart they are, the processes that run on them, and what they run, such as
// verbena perf.
package host

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The two processors everything runs on.
const (
	ClientCPU = 0
	ServerCPU = 1
)

// Pin binds the calling thread.
func Pin(cpu int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind to processor %d: %w", cpu, err)
	}
	return nil
}

// Distance is how long a cache line takes from one of the two processors to
// the other: the median over batches, in nanoseconds one way. Virtual machines
// move about, so it changes while one looks.
func Distance() (float64, error) {
	const (
		batches = 200
		each    = 100
	)
	var line struct {
		_    [128]byte
		turn atomic.Int64
		_    [128]byte
	}
	// Each of the two holds one of Go's processors. A process that is bound to one has one.
	if n := runtime.GOMAXPROCS(0); n < 2 {
		runtime.GOMAXPROCS(2)
		defer runtime.GOMAXPROCS(n)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	errs := make([]error, 2)
	times := make([]time.Duration, 0, batches)
	player := func(i, cpu int) {
		defer wg.Done()
		defer stop.Store(true)
		// The thread ends with the goroutine: it is locked and never unlocked.
		if errs[i] = Pin(cpu); errs[i] != nil {
			return
		}
		began := time.Now()
		for round := int64(0); round < batches*each; round++ {
			if i == 0 && round > 0 && round%each == 0 {
				now := time.Now()
				times = append(times, now.Sub(began))
				began = now
			}
			for spins := 0; line.turn.Load() != 2*round+int64(i); spins++ {
				if spins&0xffff == 0xffff && stop.Load() {
					return
				}
			}
			line.turn.Add(1)
		}
	}
	wg.Add(2)
	go player(1, ServerCPU)
	go player(0, ClientCPU)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / each / 2, nil
}

// PinProcess binds all of this process, as taskset does; verbena perf is bound so, too.
func PinProcess(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	runtime.GOMAXPROCS(1)
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range threads {
			var id int
			if _, err := fmt.Sscan(t.Name(), &id); err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("bind to processor %d: %w", cpu, err)
			}
		}
	}
	return nil
}
