package main

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
)

// System calls are counted, also those of threads that are made meanwhile.
func TestCountCalls(t *testing.T) {
	if os.Getuid() != 0 {
		testneed.Missing(t, "the right to count system calls", "run as root")
	}
	mounted := t.TempDir()
	if err := unix.Mount("none", mounted, "tracefs", 0, ""); errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
		testneed.Missing(t, "the kernel's tracing: "+err.Error(), "a kernel that has it, and the right to mount it")
	} else if err != nil {
		t.Fatal(err)
	}
	before := tracing
	tracing = []string{mounted}
	defer func() {
		tracing = before
		if err := unix.Unmount(mounted, 0); err != nil {
			t.Error(err)
		}
	}()
	calls := countCalls()
	defer calls.close()
	if len(calls) == 0 {
		t.Fatal("nothing is counted")
	}
	const threads, each = 20, 5_000
	at := calls.read()
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			runtime.LockOSThread() // so that it ends, and the next one is made anew
			for range each {
				_ = os.Getppid()
			}
		})
	}
	all.Wait()
	if n := calls.read() - at; n < threads*each || n > threads*each*3/2 {
		t.Errorf("%d system calls, %d were made, and what the runtime needs", n, threads*each)
	}
}
