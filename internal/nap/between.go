package nap

import (
	"runtime"
	"time"
)

const (
	yields                 = 64
	firstSleep, longestNap = 20 * time.Microsecond, 200 * time.Microsecond
)

// Between pauses between two looks whether somebody has let go of what is held for
// nanoseconds. looks is how many were in vain before. Who holds it for longer has been pushed
// aside, or is in the kernel. So the caller gives its processor away 64 times; then it
// sleeps, 20 us at first and up to 200 us.
func Between(looks int) {
	if looks < yields {
		runtime.Gosched()
		return
	}
	For(min(time.Duration(looks-yields+1)*firstSleep, longestNap))
}
