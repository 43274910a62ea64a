// Package latch is a mutex for what is nearly always free and held for nanoseconds:
// posting, polling, and the state of an endpoint.
//
// Its holder lets go by a plain store, where that is enough. A locked instruction
// waits until everything that was stored before has reached the cache, which for a
// line that the peer's processor holds takes longer than all the rest of a post; a
// sync.Mutex has two of them, a latch has one. In turn nobody wakes who waits for a
// latch: it tries again, ever less often. One of them at a time does. The others sleep,
// for a thousand that try, each in a thread of its own, leave the holder no processor.
package latch

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/nap"
	"github.com/verbena-data/verbena/internal/release"
)

// A Latch is free when it is zero. It must not be copied.
type Latch struct {
	word atomic.Uint64
	next sync.Mutex // held by the one waiter that tries
}

// TryLock takes the latch if it is free.
func (l *Latch) TryLock() bool { return l.word.CompareAndSwap(0, 1) }

// Lock takes the latch.
func (l *Latch) Lock() {
	if !l.word.CompareAndSwap(0, 1) {
		l.wait()
	}
}

func (l *Latch) wait() {
	l.next.Lock()
	defer l.next.Unlock()
	for looks := 0; l.word.Load() != 0 || !l.TryLock(); looks++ {
		nap.Between(looks)
	}
}

// Unlock lets the latch go.
func (l *Latch) Unlock() { release.Store(&l.word, 0) }
