package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/futex"
)

// A bare wake-up: a thread on the server's processor sleeps on a futex, and one on the
// client's wakes it and polls until it sees that the other runs. It is the least that a
// call to a server takes that sleeps.

// wakeCommand prints the median in nanoseconds.
func wakeCommand() *cobra.Command {
	var pause, duration time.Duration
	cmd := &cobra.Command{Use: "wake", Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		times, err := wakes(pause, duration)
		if err == nil {
			fmt.Println(float64(times[len(times)/2]))
		}
		return err
	}}
	cmd.Flags().DurationVar(&pause, "pause", 10*time.Millisecond, "")
	cmd.Flags().DurationVar(&duration, "duration", time.Second, "")
	return cmd
}

// wakes are the times of so many wake-ups, at least one, as duration has place for, sorted.
func wakes(pause, duration time.Duration) ([]time.Duration, error) {
	if pause <= 0 {
		return nil, fmt.Errorf("--pause %s: a thread has to sleep before it is woken", pause)
	}
	// The sleeper keeps Go's processor, so that Go's scheduler has no part in its waking. A
	// collection would wait for it.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	// Nothing else of this process keeps the server's processor awake.
	if err := host.PinProcess(host.ClientCPU); err != nil {
		return nil, err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var asked, seen atomic.Uint32
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() { ended <- sleepUntilAsked(&asked, &seen, &stop) }()
	wake := func() error {
		_, err := futex.Wake((*uint32)(unsafe.Pointer(&asked)), 1)
		return err
	}
	times := make([]time.Duration, 0, max(1, duration/pause))
	var failed error
	for n := uint32(1); len(times) < cap(times) && failed == nil && len(ended) == 0; n++ {
		time.Sleep(pause)
		start := time.Now()
		asked.Store(n)
		if failed = wake(); failed != nil {
			break
		}
		for seen.Load() != n && len(ended) == 0 {
		}
		times = append(times, time.Since(start))
	}
	stop.Store(true)
	asked.Add(1)
	if err := errors.Join(failed, wake(), <-ended); err != nil {
		return nil, err
	}
	slices.Sort(times)
	return times, nil
}

// sleepUntilAsked shows each number that asked gets, and sleeps while it stays the same.
func sleepUntilAsked(asked, seen *atomic.Uint32, stop *atomic.Bool) error {
	if err := host.Pin(host.ServerCPU); err != nil {
		return err
	}
	for !stop.Load() {
		n := asked.Load()
		seen.Store(n)
		const futexWait = 0
		switch _, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(asked)), futexWait, uintptr(n), 0, 0, 0); errno {
		case 0, unix.EAGAIN, unix.EINTR:
		default:
			return fmt.Errorf("futex wait: %w", errno)
		}
	}
	return nil
}
