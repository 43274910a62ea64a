package shm

import (
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/membarrier"
)

// Several flags of this package are tested by one side right after it has
// stored something, and set by the other right before it looks for that: the
// sender publishes a message and looks whether the receiver sleeps; the receiver
// says that it will sleep and looks for messages. The first kind of side does it
// for every message, the second seldom, so the second pays for both.

// barriers tells whether this process takes part in the barriers of all that do.
func barriers() bool { return membarrier.Global.Registered() }

// barrier is the fence of the second kind of side.
func barrier() { membarrier.Global.Fence() }

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
