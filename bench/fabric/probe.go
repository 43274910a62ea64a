package main

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// The two processors everything runs on.
const (
	clientCPU = 0
	serverCPU = 1
)

// pin binds the calling thread.
func pin(cpu int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind to processor %d: %w", cpu, err)
	}
	return nil
}

// distance is how long a cache line takes from one of the two processors to
// the other: the median over batches, in nanoseconds one way. Virtual machines
// move about, so it changes while one looks.
func distance() (float64, error) {
	const (
		batches = 200
		each    = 100
	)
	var line struct {
		_    [128]byte
		turn atomic.Int64
		_    [128]byte
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	errs := make([]error, 2)
	times := make([]time.Duration, 0, batches)
	player := func(i, cpu int) {
		defer wg.Done()
		defer stop.Store(true)
		// The thread ends with the goroutine: it is locked and never unlocked.
		if errs[i] = pin(cpu); errs[i] != nil {
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
	go player(1, serverCPU)
	go player(0, clientCPU)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / each / 2, nil
}

func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe",
		Short: "Tell how long a cache line takes between the two processors, in ns one way",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for range 10 {
				d, err := distance()
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%.1f\n", d)
			}
			return nil
		},
	}
}
