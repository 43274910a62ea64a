package verbena

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/slab"
)

// peerShare says that the endpoints of one peer may together have half of a group's
// memory on a device.
const peerShare = 2

// shares counts what the peers of a domain have of its receives and of its memory
// for long messages, so that a peer with many endpoints does not starve another.
type shares struct {
	long     *slab.Pool
	receives int // how many there is memory for

	mu       sync.Mutex
	peers    map[string]*share
	promised atomic.Int64  // receives; scarce reads it without mu
	growing  int64         // bytes of growingMemory
	onTrial  int64         // bytes of trialMemory
	trialEnd chan struct{} // closed, and replaced, when a trial ends
}

// A share is what one peer has. Its fields are guarded by the mutex of all.
type share struct {
	of       *shares
	name     string
	users    int          // endpoints and long messages
	promised atomic.Int64 // as that of all
	growing  int64
	firm     int64         // bytes of firmMemory
	trial    bool          // one of its messages is on trial
	line     []*firmWaiter // of those who wait for firmMemory; the first has waited longest
}

func newShares(long *slab.Pool, receives int) *shares {
	return &shares{long: long, receives: receives, peers: map[string]*share{}, trialEnd: make(chan struct{})}
}

// join returns the share of a peer for one more endpoint, which calls leave.
func (a *shares) join(peer string) *share {
	a.mu.Lock()
	defer a.mu.Unlock()
	sh := a.peers[peer]
	if sh == nil {
		sh = &share{of: a, name: peer}
		a.peers[peer] = sh
	}
	sh.users++
	return sh
}

// leave ends one use of the share.
func (sh *share) leave() {
	sh.of.mu.Lock()
	defer sh.of.mu.Unlock()
	sh.unuse()
}

// unuse needs the mutex.
func (sh *share) unuse() {
	// A message may be released when the peer has gone, come back and got a new share.
	if sh.users--; sh.users == 0 && sh.of.peers[sh.name] == sh {
		delete(sh.of.peers, sh.name)
	}
}

// promise counts from least to most receives more for the peer, and tells how many. Unless
// there are plenty it is half of what is beyond the least, so that late endpoints get some,
// too.
func (sh *share) promise(least, most int) (int, error) {
	a := sh.of
	a.mu.Lock()
	defer a.mu.Unlock()
	if !sh.plenty() {
		most = least + (most-least)/2
	}
	had, all := int(sh.promised.Load()), int(a.promised.Load())
	own := a.receives/peerShare - had
	room := a.receives - all
	n := min(most, own, room)
	switch {
	case n >= least:
	case own < room:
		return 0, fmt.Errorf("%w: receives for %d more messages of peer %s, it has %d and may have %d of %d: raise ReceiveMemory",
			slab.ErrExhausted, least, sh.name, had, a.receives/peerShare, a.receives)
	default:
		return 0, fmt.Errorf("%w: receives for %d more messages, %d of %d are promised: raise ReceiveMemory",
			slab.ErrExhausted, least, all, a.receives)
	}
	sh.promised.Add(int64(n))
	a.promised.Add(int64(n))
	return n, nil
}

// withdraw takes n promises back.
func (sh *share) withdraw(n int) {
	a := sh.of
	a.mu.Lock()
	sh.promised.Add(int64(-n))
	a.promised.Add(int64(-n))
	a.mu.Unlock()
}

// plenty tells that a peer that sends fast may have more receives: less than half is
// promised of all, and of its share.
func (sh *share) plenty() bool {
	a := sh.of
	return int(a.promised.Load()) < a.receives/2 && int(sh.promised.Load()) < a.receives/peerShare/2
}

// scarce tells that endpoints of the peer should give back what they have grown by: more
// than three quarters are promised of all, or of its share. It is asked for each message
// that is released, so it takes no lock.
func (sh *share) scarce() bool {
	a := sh.of
	return int(a.promised.Load()) > a.receives/4*3 || int(sh.promised.Load()) > a.receives/peerShare/4*3
}

// reserve counts n receives that belong to no peer. A negative n gives them back.
func (a *shares) reserve(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all := int(a.promised.Load()); all+n > a.receives {
		return fmt.Errorf("%w: receives for %d more messages, %d of %d are promised: raise ReceiveMemory", slab.ErrExhausted, n, all, a.receives)
	}
	a.promised.Add(int64(n))
	return nil
}
