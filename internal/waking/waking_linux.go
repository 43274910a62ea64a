package waking

import (
	"math/bits"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/futex"
)

// several tells whether the process may have more than one processor.
func several() bool {
	var all unix.CPUSet
	return unix.SchedGetaffinity(0, &all) == nil && all.Count() > 1
}

// bind keeps the calling goroutine on the first or the last of the processors that its thread
// may have, until the function that it returns is called. If the thread cannot go back to the
// others then, it ends with the goroutine.
func bind(which int) (unbind func()) {
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return runtime.UnlockOSThread
	}
	for cpu := range len(all) * bits.UintSize {
		if !all.IsSet(cpu) {
			continue
		}
		one.Zero()
		one.Set(cpu)
		if which == first {
			break
		}
	}
	_ = unix.SchedSetaffinity(0, &one) // then the rounds are those of where the scheduler puts it
	return func() {
		if unix.SchedSetaffinity(0, &all) == nil {
			runtime.UnlockOSThread()
		}
	}
}

// sleep sleeps while a word is value, for at most as long as timeout. It reports false if it cannot.
func sleep(w *word, value uint32, timeout time.Duration) bool {
	return futex.Wait((*uint32)(unsafe.Pointer(&w.Uint32)), value, timeout) == nil
}

// tell changes a word and wakes who sleeps there.
func tell(w *word, value uint32) {
	w.Store(value)
	_, _ = futex.Wake((*uint32)(unsafe.Pointer(&w.Uint32)), 1) // who is not woken gives up in time
}
