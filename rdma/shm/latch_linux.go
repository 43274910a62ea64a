package shm

import (
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/release"
)

// A latch is a mutex for what is nearly always free and held for nanoseconds:
// posting and polling. Its holder lets go by a plain store, where that is enough.
// A locked instruction waits until everything that was stored before has reached
// the cache, which for a line that the peer's processor holds takes longer than
// all the rest of a post; a sync.Mutex has two of them, this has one. In turn
// nobody wakes who waits for a latch: it tries again, ever less often.
type latch struct{ word atomic.Uint64 }

// TryLock takes the latch if it is free.
func (l *latch) TryLock() bool { return l.word.CompareAndSwap(0, 1) }

// Lock takes the latch.
func (l *latch) Lock() {
	if !l.word.CompareAndSwap(0, 1) {
		l.wait()
	}
}

func (l *latch) wait() {
	for attempt := 0; l.word.Load() != 0 || !l.TryLock(); attempt++ {
		pause(attempt)
	}
}

// Unlock lets the latch go.
func (l *latch) Unlock() { release.Store(&l.word, 0) }
