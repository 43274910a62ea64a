package verbena

import (
	"context"
	"fmt"
	"slices"

	"github.com/verbena-data/verbena/internal/slab"
)

// A firmWaiter waits for what its peer has in use to come back.
type firmWaiter struct {
	size    int64
	granted chan struct{}
}

// A memoryKind says what a long message's memory counts as.
type memoryKind uint8

const (
	// growingMemory is given on an announcement, or as a message arrives: the message may
	// need more.
	growingMemory memoryKind = iota
	// trialMemory is the first part of a message that Receive waits for, when no growing
	// memory is left. It proves that the peer sends what it has announced.
	trialMemory
	// firmMemory is for a whole message, which needs no more.
	firmMemory
)

// endpointShare is how many bytes the long messages of one endpoint get for being
// announced: a sixteenth of the pool. One that Receive waits for may have more.
func (a *shares) endpointShare() int { return int(a.long.Limit() / 16) }

// growingLimit is how many bytes all growing messages may have together. The longest
// message, half of the pool, and all on trial, an eighth, always fit beside them into
// the part of the pool for large regions, which may be an eighth longer than asked for.
// It is at most a quarter of the pool, less 2 MiB for an arena that is nearly empty, and
// at least an eighth.
func (a *shares) growingLimit() int64 {
	limit := a.long.Limit()
	rest := a.long.LargeLimit() - int64(slab.RegionFor(int(limit/2)))
	return max(min(limit/4-2<<20, rest*8/9-limit/trialShare), limit/8)
}

// firmLimit is what whole messages of one peer may have together. A single one may
// exceed it.
func (a *shares) firmLimit() int64 { return a.long.Limit() / peerShare }

// tryGrowing gets growing memory if there is some within growingLimit, of which a peer
// may have half. So such messages never wait for each other. try is the pool's TryGet or
// TryQuick.
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

// takeFirm counts n bytes of firm memory if the peer may have them. It needs the mutex.
func (sh *share) takeFirm(n int64) bool {
	if sh.firm > 0 && sh.firm+n > sh.of.firmLimit() {
		return false
	}
	sh.firm += n
	return true
}

// serve grants firm memory to those in line while the peer may have it. It needs the
// mutex.
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

// put takes memory of a long message back.
func (sh *share) put(memory slab.Slab, kind memoryKind) {
	n := int64(memory.Size()) // once it is put, its region may be cut into other sizes
	sh.of.long.Put(memory)
	sh.uncount(n, kind)
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
