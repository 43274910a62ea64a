package shm

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

func aligned(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
}

// Bits set by many are all collected, by one who looks whenever it likes.
func TestBitSet(t *testing.T) {
	memory := aligned(1024)
	set := bitSet{unsafe.Pointer(&memory[0])}
	const setters, rounds = 3, 3000
	var signalled, seen [bellBits]atomic.Uint64
	var group sync.WaitGroup
	for s := range uint64(setters) {
		group.Go(func() {
			random := rand.New(rand.NewPCG(s, 1))
			for range rounds {
				bit := random.Uint32N(bellBits)
				signalled[bit].Add(1)
				set.set(bit)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	collect := func() {
		set.collect(func(bit uint32) { seen[bit].Store(signalled[bit].Load()) })
	}
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		collect()
	}
	for bit := range signalled {
		if signalled[bit].Load() != seen[bit].Load() {
			t.Fatalf("bit %d was set %d times, and %d had been when it was last collected", bit, signalled[bit].Load(), seen[bit].Load())
		}
	}
}

// The messages of a ring arrive in order, whole, and once, for any interleaving
// of a sender that is ahead by at most the ring.
func TestSlotsModel(t *testing.T) {
	shape := inboxShape{receives: 8, entries: 3, slots: 8}
	memory := aligned(shape.size())
	box := viewInbox(memory, shape)
	type message struct {
		header slotHeader
		detail uint64
	}
	var model []message
	random := rand.New(rand.NewPCG(1, 2))
	sent, arrived := uint64(0), uint64(0)
	for range 200_000 {
		if random.IntN(2) == 0 && sent-arrived < 8 {
			m := message{makeSlotHeader(sent, slotKind(random.IntN(256)), random.IntN(1<<30)), random.Uint64()}
			s := box.slot(sent)
			s.setDetail(m.detail)
			s.publish(m.header)
			model = append(model, m)
			sent++
		}
		if random.IntN(2) == 0 {
			s := box.slot(arrived)
			h := s.header()
			if h.published(arrived) != (len(model) > 0) {
				t.Fatalf("message %d: published %t with %d under way", arrived, h.published(arrived), len(model))
			}
			if len(model) > 0 {
				if h != model[0].header || s.detail() != model[0].detail {
					t.Fatalf("message %d: %#x", arrived, h)
				}
				model = model[1:]
				arrived++
			}
		}
	}
	if arrived < 10_000 {
		t.Fatalf("only %d messages", arrived)
	}
}

// A sequence number differs from those of the laps around it, also where 24 bits
// wrap.
func TestSequence(t *testing.T) {
	for _, n := range []uint64{0, 1, 1<<24 - 2, 1<<24 - 1, 1 << 24, 1<<32 + 5, 1<<48 - 1} {
		for lap := uint64(1); lap <= maxQueueDepth; lap *= 2 {
			if makeSlotHeader(n, slotSend, 1).published(n + lap) {
				t.Errorf("position %d looks published %d later", n, lap)
			}
		}
		if !makeSlotHeader(n, slotSend, 1).published(n) || !makeDescriptorHead(n, 1, 1).published(n) {
			t.Errorf("position %d does not look published", n)
		}
	}
	if slotHeader(0).published(0) || descriptorHead(0).published(0) {
		t.Error("zeroed memory looks published")
	}
}

func TestCopyTailLast(t *testing.T) {
	to, from := aligned(4096), aligned(4096)
	fill(from, 9)
	for start := range 9 {
		for _, length := range []int{1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1000, 1001} {
			clear(to)
			copyTailLast(to[start:start+length], from[:length])
			if !bytes.Equal(to[start:start+length], from[:length]) || slices.Max(to[:start+1]) != 0 && start > 0 && slices.Max(to[:start]) != 0 || slices.Max(to[start+length:]) != 0 {
				t.Fatalf("%d bytes at %d", length, start)
			}
		}
	}
}

func TestHandles(t *testing.T) {
	for _, given := range [][2]uint32{{0, 1}, {65535, 4095}, {7, 4096}, {1, 1 << 31}} {
		handle := makeHandle(given[0], given[1])
		if handleIndex(handle) != given[0] || handle>>28 != 0 {
			t.Errorf("%v: handle %#x", given, handle)
		}
		p := makePlace(handle, maxRegion-1)
		if p.handle() != handle || p.offset() != maxRegion-1 {
			t.Errorf("%v: place %#x", given, p)
		}
	}
}
