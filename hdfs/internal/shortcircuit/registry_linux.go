package shortcircuit

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/internal/memfd"
)

// ErrSlot says that a slot can't be had as asked: there is none, it is in use, or the
// client has not made it valid.
var ErrSlot = errors.New("the slot is not to be had")

// Registry is a DataNode's segments and slots. It may be used concurrently.
type Registry struct {
	most int // segments

	mu       sync.Mutex
	segments map[ID]*Segment
	blocks   map[uint64]map[*slot]struct{}
	counts   Counts
}

// Counts tells what a registry has and has done.
type Counts struct {
	Segments, Slots int    // now
	Revoked         uint64 // slots that were taken back while clients had them
}

// Segment is the slots of one client process.
type Segment struct {
	id     ID
	memory *memfd.File
	slots  [SegmentSlots]*slot
}

// slot is one that is registered.
type slot struct {
	segment *Segment
	index   int
	block   uint64
	release func()
}

// NewRegistry returns a registry of at most so many segments.
func NewRegistry(most int) *Registry {
	return &Registry{most: most, segments: map[ID]*Segment{}, blocks: map[uint64]map[*slot]struct{}{}}
}

// NewSegment makes a segment for a client, to be ended with Remove.
func (r *Registry) NewSegment() (*Segment, error) {
	memory, err := memfd.Create("verbena-slots", SegmentSize, memfd.Reserved)
	if err != nil {
		return nil, fmt.Errorf("segment of slots: %w", err)
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	s := &Segment{memory: memory, id: ID{int64(binary.NativeEndian.Uint64(b[:])), int64(binary.NativeEndian.Uint64(b[8:]))}}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.segments) >= r.most {
		return nil, errors.Join(fmt.Errorf("%d segments of slots are in use, as many as are allowed", r.most), memory.Close())
	}
	r.segments[s.id] = s
	return s, nil
}

// ID is the segment's name.
func (s *Segment) ID() ID { return s.id }

// FD is the descriptor to hand over. It stays the segment's.
func (s *Segment) FD() int { return s.memory.FD() }

// Remove ends a segment, whose client has gone: its slots are taken back and released.
func (r *Registry) Remove(s *Segment) error {
	var released []func()
	r.mu.Lock()
	delete(r.segments, s.id)
	for _, sl := range s.slots {
		if sl != nil {
			released = append(released, r.forget(sl))
		}
	}
	err := s.memory.Close()
	r.mu.Unlock()
	for _, f := range released {
		f()
	}
	return err
}

// Register notes that a slot stands for a block, until Unregister or Remove; release is
// then called once, without locks. The error wraps [ErrSlot].
func (r *Registry) Register(id SlotID, block uint64, release func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.segments[id.Segment]
	switch {
	case s == nil:
		return fmt.Errorf("%w: there is no segment %v", ErrSlot, id.Segment)
	case id.Index < 0 || id.Index >= len(s.slots):
		return fmt.Errorf("%w: %v: the segment has %d", ErrSlot, id, len(s.slots))
	case s.slots[id.Index] != nil:
		return fmt.Errorf("%w: %v is in use for block %d", ErrSlot, id, s.slots[id.Index].block)
	case word(s.memory.Bytes(), id.Index).Load()&slotValid == 0:
		return fmt.Errorf("%w: %v was not made valid", ErrSlot, id)
	}
	sl := &slot{segment: s, index: id.Index, block: block, release: release}
	s.slots[id.Index] = sl
	of := r.blocks[block]
	if of == nil {
		of = map[*slot]struct{}{}
		r.blocks[block] = of
	}
	of[sl] = struct{}{}
	r.counts.Slots++
	return nil
}

// Unregister takes a slot back and frees it. The error wraps [ErrSlot].
func (r *Registry) Unregister(id SlotID) error {
	r.mu.Lock()
	s := r.segments[id.Segment]
	if s == nil || id.Index < 0 || id.Index >= len(s.slots) || s.slots[id.Index] == nil {
		r.mu.Unlock()
		return fmt.Errorf("%w: %v is not registered", ErrSlot, id)
	}
	release := r.forget(s.slots[id.Index])
	r.mu.Unlock()
	release()
	return nil
}

// forget takes a slot back and out of the registry, whose lock is held. What it returns
// is to be called without.
func (r *Registry) forget(sl *slot) (release func()) {
	sl.invalidate()
	sl.segment.slots[sl.index] = nil
	of := r.blocks[sl.block]
	delete(of, sl)
	if len(of) == 0 {
		delete(r.blocks, sl.block)
	}
	r.counts.Slots--
	return sl.release
}

// Revoke takes back all slots of a block, which is about to change. They stay registered
// until their clients have released them. It waits for nobody.
func (r *Registry) Revoke(block uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for sl := range r.blocks[block] {
		if sl.invalidate() {
			r.counts.Revoked++
		}
	}
}

// Counts returns the registry's numbers.
func (r *Registry) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts
	c.Segments = len(r.segments)
	return c
}

// invalidate tells whether the slot was valid. Anchors of the client stay as they are.
func (sl *slot) invalidate() bool {
	return word(sl.segment.memory.Bytes(), sl.index).And(^slotValid)&slotValid != 0
}
