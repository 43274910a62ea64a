package nap

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A nap ends when it should, and not up to 50 us later as the kernel has it by default.
func TestNapsHaveLittleSlack(t *testing.T) {
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread ends with the goroutine
		For(time.Microsecond)
		ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			t.Error("ask for the thread's slack:", err)
		}
		done <- ns
	}()
	if ns := time.Duration(<-done); ns != slack {
		t.Errorf("after a nap the thread's sleeps may be late by %v, not %v", ns, slack)
	}
}
