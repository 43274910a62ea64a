package shm

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Several flags of this package are tested by one side right after it has
// stored something, and set by the other right before it looks for that: the
// sender publishes a message and looks whether the receiver sleeps; the receiver
// says that it will sleep and looks for messages. A processor may delay a store
// beyond a later load, so each side needs a fence in between. The first kind of
// side does it for every message, the second seldom. So the second pays for both:
// it makes the kernel run a barrier on every processor that runs a process which
// has registered for that.
const (
	membarrierQuery           = 0
	membarrierGlobalExpedited = 1 << 1
	membarrierRegisterGlobal  = 1 << 2
)

// barriers tells whether this process is registered, and may call barrier. A
// seccomp profile or an emulator may forbid it.
var barriers = sync.OnceValue(func() bool {
	supported, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierQuery, 0, 0)
	const both = membarrierGlobalExpedited | membarrierRegisterGlobal
	if errno != 0 || supported&both != both {
		return false
	}
	if _, _, errno = unix.Syscall(unix.SYS_MEMBARRIER, membarrierRegisterGlobal, 0, 0); errno != 0 {
		return false
	}
	_, _, errno = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobalExpedited, 0, 0)
	return errno == 0
})

// barrier orders what every thread of registered processes has stored before
// what it loads next, and does the same for the caller. It takes a microsecond,
// or ten if other processors have to be interrupted.
func barrier() {
	if barriers() {
		// It has worked once with the same arguments.
		_, _, _ = unix.RawSyscall(unix.SYS_MEMBARRIER, membarrierGlobalExpedited, 0, 0)
	}
}

// A fence orders what was stored before it against what is loaded after it. It
// is private, so nobody contends for it.
type fence struct{ word atomic.Uint32 }

func (f *fence) order() { f.word.Store(1) }

// keepOrder keeps loads and stores before it from the stores, and from the acquiring loads,
// after it. A release store and an acquiring load, in this order, do so on every
// architecture.
func keepOrder() {
	var word atomic.Uint64
	word.Store(1)
	word.Load()
}
