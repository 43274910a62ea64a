package verbena

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
)

// peerShare is the part of a group's memory on a device that the endpoints of one
// peer may have together: one in so many.
const peerShare = 2

// trialShare is the part of the long messages' memory that messages on trial may
// have: one in so many.
const trialShare = 8

// trialPatience is how long Receive waits for a place on trial, before it asks for
// memory for the whole message. Tests change it.
var trialPatience = 10 * time.Second

// shares counts what the peers of a domain have of its receives and of its memory
// for long messages, so that a peer with many endpoints does not starve another.
type shares struct {
	long     *slab.Pool
	receives int // that there is memory for

	mu       sync.Mutex
	peers    map[string]*share
	promised int   // receives
	growing  int64 // bytes of messages that may need more, or did when they got them
	onTrial  int64 // bytes of messages on trial
	trialEnd chan struct{}
}

// A share is what one peer has. Its fields are guarded by the mutex of all.
type share struct {
	of       *shares
	name     string
	users    int // endpoints and long messages
	promised int
	growing  int64
	firm     int64         // bytes of messages that need no more
	trial    bool          // one of its messages is on trial
	line     []*firmWaiter // the first has waited longest
}

type firmWaiter struct {
	size    int64
	granted chan struct{}
}

// A memoryKind says what a long message's memory counts as.
type memoryKind uint8

const (
	// growingMemory is given on an announcement, or as a message grows.
	growingMemory memoryKind = iota
	// trialMemory is the first of a message that Receive waits for when no growing
	// memory is left.
	trialMemory
	// firmMemory is for a whole message.
	firmMemory
)

func newShares(long *slab.Pool, receives int) *shares {
	return &shares{long: long, receives: receives, peers: map[string]*share{}, trialEnd: make(chan struct{})}
}

// join returns the share of a peer, for an endpoint or a message of its.
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
	// Memory that comes late is given back when the peer may have another share.
	if sh.users--; sh.users == 0 && sh.of.peers[sh.name] == sh {
		delete(sh.of.peers, sh.name)
	}
}

// Receives.

// promise takes from least to most receives for the peer.
func (sh *share) promise(least, most int) (int, error) {
	a := sh.of
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.receives/peerShare - sh.promised
	room := a.receives - a.promised
	n := min(most, own, room)
	switch {
	case n >= least:
	case own < room:
		return 0, fmt.Errorf("%w: receives for %d more messages of peer %s, it has %d and may have %d of %d: raise ReceiveMemory",
			slab.ErrExhausted, least, sh.name, sh.promised, a.receives/peerShare, a.receives)
	default:
		return 0, fmt.Errorf("%w: receives for %d more messages, %d of %d are promised: raise ReceiveMemory",
			slab.ErrExhausted, least, a.promised, a.receives)
	}
	sh.promised += n
	a.promised += n
	return n, nil
}

// withdraw takes n promises back.
func (sh *share) withdraw(n int) {
	a := sh.of
	a.mu.Lock()
	sh.promised -= n
	a.promised -= n
	a.mu.Unlock()
}

// plenty tells that the peer may have more receives because it sends fast.
func (sh *share) plenty() bool {
	a := sh.of
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.promised < a.receives/2 && sh.promised < a.receives/peerShare/2
}

// scarce tells that endpoints of the peer should give back what they have grown by.
func (sh *share) scarce() bool {
	a := sh.of
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.promised > a.receives/4*3 || sh.promised > a.receives/peerShare/4*3
}

// reserve takes n receives that belong to no peer, and gives back those below 0.
func (a *shares) reserve(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.promised+n > a.receives {
		return fmt.Errorf("%w: receives for %d more messages, %d of %d are promised: raise ReceiveMemory", slab.ErrExhausted, n, a.promised, a.receives)
	}
	a.promised += n
	return nil
}

// Long messages.

// endpointShare is how much memory the long messages of one endpoint get for being
// announced. One that Receive waits for may have more.
func (a *shares) endpointShare() int { return int(a.long.Limit() / 16) }

// growingLimit is what the longest message and those on trial leave of the large
// regions' part of the pool, which makes each region up to an eighth longer; a quarter
// of the pool at most, less an arena that may hold little.
func (a *shares) growingLimit() int64 {
	limit := a.long.Limit()
	rest := a.long.LargeLimit() - int64(slab.RegionFor(int(limit/2)))
	return max(min(limit/4-2<<20, rest*8/9-limit/trialShare), limit/8)
}

// firmLimit is what whole messages of one peer may have together. A single one may
// exceed it.
func (a *shares) firmLimit() int64 { return a.long.Limit() / peerShare }

// tryGrowing gets memory for a message that may come to need more. Together those
// hold so little that a whole message always fits beside them: they never wait for
// each other. try is the pool's TryGet or TryQuick.
func (sh *share) tryGrowing(size int, try func(int) (slab.Slab, bool, error)) (slab.Slab, bool, error) {
	a := sh.of
	limit := a.growingLimit()
	n := int64(size)
	a.mu.Lock()
	if a.growing+n > limit || sh.growing+n > limit/peerShare {
		a.mu.Unlock()
		return slab.Slab{}, false, nil
	}
	a.growing += n
	sh.growing += n
	a.mu.Unlock()
	memory, ok, err := try(size)
	a.mu.Lock()
	defer a.mu.Unlock()
	if ok && err == nil {
		n -= int64(memory.Size())
		sh.users++ // the message's
	}
	a.growing -= n
	sh.growing -= n
	return memory, ok, err
}

// getFirm waits for memory for a whole message, behind others of the peer.
func (sh *share) getFirm(ctx context.Context, size int) (slab.Slab, error) {
	if err := sh.waitFirm(ctx, int64(size)); err != nil {
		return slab.Slab{}, err
	}
	memory, err := sh.of.long.Get(ctx, size)
	sh.gotFirm(int64(size), memory, err)
	return memory, err
}

// tryFirm is getFirm without waiting.
func (sh *share) tryFirm(size int) (slab.Slab, bool, error) {
	a := sh.of
	a.mu.Lock()
	ok := len(sh.line) == 0 && sh.takeFirm(int64(size))
	a.mu.Unlock()
	if !ok {
		return slab.Slab{}, false, nil
	}
	memory, ok, err := a.long.TryGet(size)
	if !ok && err == nil {
		sh.gotFirm(int64(size), memory, slab.ErrExhausted)
		return memory, false, nil
	}
	sh.gotFirm(int64(size), memory, err)
	return memory, ok, err
}

// gotFirm corrects what was counted for a request.
func (sh *share) gotFirm(size int64, memory slab.Slab, err error) {
	sh.of.mu.Lock()
	defer sh.of.mu.Unlock()
	if err != nil {
		sh.firm -= size
		sh.serve()
		return
	}
	sh.firm += int64(memory.Size()) - size
	sh.users++ // the message's
}

// takeFirm needs the mutex.
func (sh *share) takeFirm(n int64) bool {
	if sh.firm > 0 && sh.firm+n > sh.of.firmLimit() {
		return false
	}
	sh.firm += n
	return true
}

// serve lets those go on who wait for the peer's share. It needs the mutex.
func (sh *share) serve() {
	for len(sh.line) > 0 && sh.takeFirm(sh.line[0].size) {
		close(sh.line[0].granted)
		sh.line = slices.Delete(sh.line, 0, 1)
	}
}

func (sh *share) waitFirm(ctx context.Context, n int64) error {
	a := sh.of
	a.mu.Lock()
	if len(sh.line) == 0 && sh.takeFirm(n) {
		a.mu.Unlock()
		return nil
	}
	w := &firmWaiter{size: n, granted: make(chan struct{})}
	sh.line = append(sh.line, w)
	a.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(sh.line, w); i >= 0 {
		sh.line = slices.Delete(sh.line, i, i+1)
	} else {
		sh.firm -= n // granted just before
	}
	sh.serve()
	return fmt.Errorf("waiting for %d bytes of what peer %s may have, %d: %w", n, sh.name, a.firmLimit(), context.Cause(ctx))
}

// errNoTrial says that no place on trial has come free in time.
var errNoTrial = errors.New("verbena: no place on trial")

// getTrial waits for the first memory of a message that Receive waits for and that
// has proved nothing yet: at most patience, then it returns errNoTrial. One message
// of a peer is on trial at a time. Those on trial hold so little that a whole
// message fits beside them and all that are growing.
func (sh *share) getTrial(ctx context.Context, size int, patience time.Duration) (slab.Slab, error) {
	t := time.NewTimer(patience)
	defer t.Stop()
	a := sh.of
	n := int64(size)
	for {
		a.mu.Lock()
		if !sh.trial && (a.onTrial == 0 || a.onTrial+n <= a.long.Limit()/trialShare) {
			sh.trial = true
			a.onTrial += n
			a.mu.Unlock()
			break
		}
		ended := a.trialEnd
		a.mu.Unlock()
		select {
		case <-ended:
		case <-t.C:
			return slab.Slab{}, errNoTrial
		case <-ctx.Done():
			return slab.Slab{}, fmt.Errorf("waiting for memory of a message: %w", context.Cause(ctx))
		}
	}
	memory, err := a.long.Get(ctx, size)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		sh.endTrial(n)
		return memory, err
	}
	a.onTrial += int64(memory.Size()) - n
	sh.users++ // the message's
	return memory, nil
}

// endTrial needs the mutex.
func (sh *share) endTrial(n int64) {
	sh.trial = false
	sh.of.onTrial -= n
	close(sh.of.trialEnd)
	sh.of.trialEnd = make(chan struct{})
}

// put takes memory of a long message back.
func (sh *share) put(memory slab.Slab, kind memoryKind) {
	sh.of.long.Put(memory)
	sh.uncount(int64(memory.Size()), kind)
}

// spoil is put for memory that the device or the peer may still use. The peer's share
// has it until its region is closed.
func (sh *share) spoil(memory slab.Slab, kind memoryKind) {
	n := int64(memory.Size())
	sh.of.long.Spoil(memory, func() { sh.uncount(n, kind) })
}

func (sh *share) uncount(n int64, kind memoryKind) {
	a := sh.of
	a.mu.Lock()
	defer a.mu.Unlock()
	switch kind {
	case growingMemory:
		a.growing -= n
		sh.growing -= n
	case trialMemory:
		sh.endTrial(n)
	case firmMemory:
		sh.firm -= n
		sh.serve()
	}
	sh.unuse()
}
