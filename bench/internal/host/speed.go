package host

import (
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// multiplications is how many are timed at once: some 3 ms.
const multiplications = 4_000_000

// Multiplication is the processor time in ns of a multiplication of 64 bits that waits for
// the one before: 3 cycles of most processors, some 1 ns. A host that gives a part of a core
// to another guest, or lowers its clock, makes it longer. Software takes longer there, too; a
// cache line on its way between processors does not. So the ratio of the two grows, and
// tells of the host. 0 says that it could not be measured.
func Multiplication() float64 {
	runtime.LockOSThread() // the clock is the thread's
	defer runtime.UnlockOSThread()
	var rounds []float64
	for range 9 {
		before, ok := threadTime()
		product := multiply()
		after, ok2 := threadTime()
		if !ok || !ok2 || product == 0 { // of odd numbers it is not
			return 0
		}
		rounds = append(rounds, float64(after-before)/multiplications)
	}
	slices.Sort(rounds)
	return rounds[len(rounds)/2]
}

// multiply does them, one after the other.
//
//go:noinline
func multiply() uint64 {
	p := uint64(1)
	for range multiplications {
		p *= 0x9e3779b97f4a7c15
	}
	return p
}

func threadTime() (time.Duration, bool) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err == nil
}
