package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/futex"
)

// A bare wake-up: a process on the server's processor sleeps on a futex, and one on the
// client's wakes it and polls until it sees that the other runs. It is the least that a
// call to a server takes that sleeps.

// wakeCommand prints the median in nanoseconds.
func wakeCommand() *cobra.Command {
	var pause, duration time.Duration
	var goroutine, sleeper bool
	cmd := &cobra.Command{Use: "wake", Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		if sleeper {
			words, err := mapWords(os.NewFile(3, "words"))
			if err != nil {
				return err
			}
			return words.sleepUntilAsked(goroutine)
		}
		times, err := wakes(pause, duration, goroutine)
		if err == nil {
			fmt.Println(float64(times[len(times)/2]))
		}
		return err
	}}
	cmd.Flags().DurationVar(&pause, "pause", 10*time.Millisecond, "sleep before each wake-up")
	cmd.Flags().DurationVar(&duration, "duration", time.Second, "measure for so long, at least one wake-up")
	cmd.Flags().BoolVar(&goroutine, "goroutine", false, "wake a goroutine, not a thread")
	cmd.Flags().BoolVar(&sleeper, "sleeper", false, "be the process that sleeps, which has the words of both as descriptor 3")
	return cmd
}

// wakeWords are what the two processes share.
type wakeWords struct {
	asked, stop atomic.Uint32
	_           [120]byte // the sleeper's word lies in another line
	seen        atomic.Uint32
}

func mapWords(f *os.File) (*wakeWords, error) {
	memory, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(wakeWords{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the words: %w", err)
	}
	return (*wakeWords)(unsafe.Pointer(&memory[0])), nil
}

// wakes are the times of so many wake-ups, at least one, as duration has place for, sorted.
func wakes(pause, duration time.Duration, goroutine bool) (times []time.Duration, err error) {
	if pause <= 0 {
		return nil, fmt.Errorf("--pause %s: a thread has to sleep before it is woken", pause)
	}
	fd, err := unix.MemfdCreate("wake", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory for two processes: %w", err)
	}
	shared := os.NewFile(uintptr(fd), "words")
	defer shared.Close()
	if err := shared.Truncate(int64(unsafe.Sizeof(wakeWords{}))); err != nil {
		return nil, err
	}
	words, err := mapWords(shared)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "wake", "--sleeper", fmt.Sprintf("--goroutine=%t", goroutine))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{shared}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// Nothing else of this process keeps the server's processor awake.
	err = host.PinProcess(host.ClientCPU)
	times = make([]time.Duration, 0, max(1, duration/pause))
	for n := uint32(1); err == nil && len(times) < cap(times) && len(ended) == 0; n++ {
		time.Sleep(pause)
		start := time.Now()
		words.asked.Store(n)
		if err = words.wake(); err != nil {
			break
		}
		for words.seen.Load() != n && (time.Since(start) < pause || len(ended) == 0) {
		}
		times = append(times, time.Since(start))
	}
	words.stop.Store(1)
	words.asked.Add(1)
	if err := errors.Join(err, words.wake(), <-ended); err != nil {
		return nil, err
	}
	slices.Sort(times)
	return times, nil
}

func (w *wakeWords) wake() error {
	_, err := futex.Wake((*uint32)(unsafe.Pointer(&w.asked)), 1)
	return err
}

// sleepUntilAsked shows each number that asked gets, and sleeps while it stays the same. As
// a goroutine it gives Go's processor away, and needs one again before it goes on, as
// whoever serves calls does. Otherwise it keeps that, and Go's scheduler has no part in its
// waking; a collection would wait for it.
func (w *wakeWords) sleepUntilAsked(goroutine bool) error {
	if err := host.PinProcess(host.ServerCPU); err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	word := (*uint32)(unsafe.Pointer(&w.asked))
	for w.stop.Load() == 0 {
		n := w.asked.Load()
		w.seen.Store(n)
		if goroutine {
			if err := futex.WaitIdle(word, n, 0); err != nil {
				return err
			}
			continue
		}
		const futexWait = 0
		switch _, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(n), 0, 0, 0); errno {
		case 0, unix.EAGAIN, unix.EINTR:
		default:
			return fmt.Errorf("futex wait: %w", errno)
		}
	}
	return nil
}
