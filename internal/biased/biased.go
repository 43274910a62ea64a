// Package biased is a mutex that the one who has had it most lately enters without a
// fence, until somebody else wants it.
//
// A mutex costs two atomic operations, at which a processor waits until all that it has
// stored before has reached the caches. Where goroutines take long turns with something,
// and touch much memory in between, that wait is most of what they do. So one User may
// be the mutex's favourite: it says that it is inside by a plain store, and looks whether
// it is the favourite still. Whoever locks takes the favour away, has the kernel run a
// fence on all processors (package membarrier), and waits until the favourite is outside.
// This is a biased lock, as Kawachiya, Koseki and Onodera have it for Java (OOPSLA 2002).
//
// On amd64 nobody is favoured where there is no membarrier(2), and all that is left is the
// mutex. On other processors a favourite stores by atomic operations, which is right and
// saves no fence.
package biased

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/nap"
	"github.com/verbena-data/verbena/internal/release"
)

// A Mutex guards what its users lock it for, or enter. It is free, and nobody's
// favourite, when it is zero. It must not be copied.
type Mutex struct {
	mu        sync.Mutex
	favourite atomic.Pointer[User] // changes with mu locked
	last      *User                // that has locked it, and how often in a row; mu is held
	row       int
}

// A User is who locks mutexes, of which it enters one at most. It belongs to one goroutine at a time.
// It must not be copied.
type User struct {
	inside   atomic.Uint64 // 1 from Enter to Leave
	favoured bool          // as far as it knows
}

// Enter reports whether u is the favourite, and may use what m guards without locking it. Then
// Leave must follow, soon: nothing that waits may come between them, and nothing that panics,
// since whoever locks m waits for Leave.
func (m *Mutex) Enter(u *User) bool { return u.favoured && m.enter(u) }

func (m *Mutex) enter(u *User) bool {
	release.Store(&u.inside, 1)
	if m.favourite.Load() == u { // whoever takes the favour away sees inside, or has been seen here
		return true
	}
	release.Store(&u.inside, 0)
	u.favoured = false
	return false
}

// Leave ends what Enter has begun.
func (u *User) Leave() { release.Store(&u.inside, 0) }

// Lock locks m, and takes the favour from another user that has it.
func (m *Mutex) Lock(u *User) {
	m.mu.Lock()
	if m.last != u {
		m.last, m.row = u, 0
	}
	m.row++
	if f := m.favourite.Load(); f != nil && f != u {
		m.revoke(f)
	}
}

// Unlock unlocks it.
func (m *Mutex) Unlock() { m.mu.Unlock() }

// rowsToFavour is how often a user locks a mutex, with no other in between, before it is worth a favour.
const rowsToFavour = 4

// Favour makes u the favourite, if that pays and it alone has locked m of late. m is locked by it. It tells whether u is.
func (m *Mutex) Favour(u *User) bool {
	if m.row < rowsToFavour || !Pays() {
		return false
	}
	m.favourite.Store(u)
	u.favoured = true
	return true
}

// Disfavour takes the favour from u, which has locked m, if it has it.
func (m *Mutex) Disfavour(u *User) {
	if m.favourite.Load() == u {
		m.favourite.Store(nil)
	}
	u.favoured = false
}

// revoke takes the favour from f, and waits until f is outside.
func (m *Mutex) revoke(f *User) {
	m.favourite.Store(nil)
	fence()
	for looks := 0; f.inside.Load() != 0; looks++ {
		nap.Between(looks)
	}
}
