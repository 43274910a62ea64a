package shm

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-data/verbena/internal/release"
)

// The layout of what processes share. All integers are in the host's byte
// order. Whatever one side writes often has a line, or a pair of lines that are
// fetched together, of its own.
const (
	lineBytes = 128

	slotBytes  = 128
	slotInline = 112 // payload of a slot behind its two words

	maxQueueDepth = 1 << 15
	maxEntries    = 16 // scatter-gather entries of a request or receive
	maxRegion     = 1 << 36
	maxMessage    = 1 << 30
)

// An inbox is what a queue pair receives with. Its owner makes it, its peer fills it.
//
//	0    owner: gate: flags in the lower 8 bits, the epoch above them
//	128  owner: limit: this many messages, in all, have a receive
//	136  owner: room: every receive below the limit has at least this length
//	144  owner: starved: what the next message lacks, if the owner has looked
//	152  owner: refused: 1 if a message that had no receive got one in a closed region
//	256  peer: access: odd while the peer is inside memory of this side
//	384  peer: waiting: 1 if the peer wants its agent woken for a receive
//	392  peer: asks: 1 if the peer needs a receive and has none
//	512  receive descriptors, then, on a line of its own, message slots
//
// The peer reads limit and room only when it has sent all that the last limit
// allowed. So neither line travels for each message.
//
// A queue pair with receives of its own posts them here. One with a shared receive
// queue is lent some from there (see lend): then the owner may also take back those
// that the peer has not used. It lowers the limit and begins a new epoch, and the
// peer looks at the limit again when it sees that.
const (
	inboxGate    = 0
	inboxLimit   = 128
	inboxRoom    = 136
	inboxStarved = 144
	inboxRefused = 152
	inboxAccess  = 256
	inboxWaiting = 384
	inboxAsks    = 392
	inboxRings   = 512

	// gateClosed keeps the peer out.
	gateClosed uint64 = 1
	// gateCold makes the peer ring the doorbell for each message.
	gateCold uint64 = 2
	// gateLook says that a receive names a region that has been closed: the peer
	// must look at descriptors even for messages that fit into a slot.
	gateLook uint64 = 4
	// gateEpoch is one epoch.
	gateEpoch uint64 = 1 << 8

	starvedOfReceives uint32 = 1
	starvedOfSlots    uint32 = 2
)

// inboxShape sizes an inbox. The counts of receives and slots are powers of two.
type inboxShape struct {
	receives uint32 // descriptors
	entries  uint32 // scatter-gather entries of each
	slots    uint32
}

func powerOfTwo(n int) uint32 { return 1 << bits.Len(uint(max(n, 1)-1)) }

func isPowerOfTwo(n uint32) bool { return n != 0 && n&(n-1) == 0 }

func (s inboxShape) validate() error {
	// With a slot for each receive, whoever finds a receive has a slot, too.
	if !isPowerOfTwo(s.slots) || s.slots > maxQueueDepth || !isPowerOfTwo(s.receives) || s.slots < s.receives ||
		s.entries < 1 || s.entries > maxEntries {
		return fmt.Errorf("%w: inbox of %d receives of %d entries and %d slots", errPacket, s.receives, s.entries, s.slots)
	}
	return nil
}

func (s inboxShape) descriptorStride() int { return descriptorStride(s.entries) }

func descriptorStride(entries uint32) int {
	if entries <= 1 {
		return 16
	}
	return 16 + 16*int(entries)
}

func (s inboxShape) slotsOffset() int {
	return (inboxRings + int(s.receives)*s.descriptorStride() + lineBytes - 1) &^ (lineBytes - 1)
}

func (s inboxShape) size() int { return s.slotsOffset() + int(s.slots)*slotBytes }

// inbox is a view of mapped memory of at least shape.size() bytes.
type inbox struct {
	shape  inboxShape
	base   unsafe.Pointer
	slots  unsafe.Pointer
	stride uintptr
}

func viewInbox(memory []byte, shape inboxShape) inbox {
	_ = memory[shape.size()-1]
	base := unsafe.Pointer(&memory[0])
	return inbox{shape: shape, base: base, slots: unsafe.Add(base, shape.slotsOffset()), stride: uintptr(shape.descriptorStride())}
}

func word(base unsafe.Pointer, offset uintptr) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(base, offset))
}

func halfWord(base unsafe.Pointer, offset uintptr) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Add(base, offset))
}

func (b *inbox) gate() *atomic.Uint64    { return word(b.base, inboxGate) }
func (b *inbox) limit() *atomic.Uint64   { return word(b.base, inboxLimit) }
func (b *inbox) room() *atomic.Uint64    { return word(b.base, inboxRoom) }
func (b *inbox) access() *atomic.Uint64  { return word(b.base, inboxAccess) }
func (b *inbox) starved() *atomic.Uint32 { return halfWord(b.base, inboxStarved) }
func (b *inbox) refused() *atomic.Uint32 { return halfWord(b.base, inboxRefused) }
func (b *inbox) waiting() *atomic.Uint32 { return halfWord(b.base, inboxWaiting) }
func (b *inbox) asks() *atomic.Uint32    { return halfWord(b.base, inboxAsks) }

func (b *inbox) slot(n uint64) slot {
	return slot{unsafe.Add(b.slots, (n&uint64(b.shape.slots-1))*slotBytes)}
}

func (b *inbox) descriptor(n uint64) descriptor {
	return descriptor{unsafe.Add(b.base, inboxRings+uintptr(n&uint64(b.shape.receives-1))*b.stride)}
}

// Slots and descriptors are published by their first word, written last, whose
// upper 24 bits are the sequence number: 1 for the first, so that zeroed memory
// holds none, and different for each lap of a ring.
func sequence(n uint64) uint64 { return (n + 1) & (1<<24 - 1) }

// A slot holds one message:
//
//	0   header: length, 32 bits; kind and flags, 8 bits; sequence, 24 bits
//	8   immediate, 32 bits
//	16  payload, unless it was placed into the receive
type slot struct{ base unsafe.Pointer }

type slotKind uint8

const (
	slotSend slotKind = 1 + iota
	slotSendImmediate
	slotWriteImmediate
	// The last two tell the receiver why the sender could not use its receive.
	slotTooLong
	slotProtection

	slotKindMask  slotKind = 0x0f
	slotPlaced    slotKind = 0x10
	slotSolicited slotKind = 0x20
)

// slotHeader is a header that has been copied out of shared memory.
type slotHeader uint64

func makeSlotHeader(n uint64, kind slotKind, length int) slotHeader {
	return slotHeader(sequence(n)<<40 | uint64(kind)<<32 | uint64(uint32(length)))
}

func (h slotHeader) published(n uint64) bool { return uint64(h)>>40 == sequence(n) }
func (h slotHeader) kind() slotKind          { return slotKind(h>>32) & slotKindMask }
func (h slotHeader) placed() bool            { return slotKind(h>>32)&slotPlaced != 0 }
func (h slotHeader) solicited() bool         { return slotKind(h>>32)&slotSolicited != 0 }
func (h slotHeader) length() int             { return int(uint32(h)) }

// validate checks what can be checked without knowing the receive.
func (h slotHeader) validate() error {
	if k := h.kind(); k < slotSend || k > slotProtection {
		return fmt.Errorf("message of kind %d", k)
	}
	if h.length() > maxMessage {
		return fmt.Errorf("message of %d bytes", h.length())
	}
	if h.kind() <= slotSendImmediate && !h.placed() && h.length() > slotInline {
		return fmt.Errorf("message of %d bytes in a slot", h.length())
	}
	return nil
}

func (s slot) header() slotHeader         { return slotHeader(word(s.base, 0).Load()) }
func (s slot) publish(h slotHeader)       { release.Store(word(s.base, 0), uint64(h)) }
func (s slot) setDetail(detail uint64)    { *(*uint64)(unsafe.Add(s.base, 8)) = detail }
func (s slot) detail() uint64             { return word(s.base, 8).Load() }
func (s slot) payload() *[slotInline]byte { return (*[slotInline]byte)(unsafe.Add(s.base, 16)) }

// A descriptor announces a posted receive:
//
//	0   head: length of all entries, 32 bits; their number, 8 bits; sequence, 24
//	8   the place, if there is one entry
//	16  otherwise, for each entry, its place and its length
type descriptor struct{ base unsafe.Pointer }

type descriptorHead uint64

func makeDescriptorHead(n uint64, entries, length int) descriptorHead {
	return descriptorHead(sequence(n)<<40 | uint64(entries)<<32 | uint64(uint32(length)))
}

func (h descriptorHead) published(n uint64) bool { return uint64(h)>>40 == sequence(n) }
func (h descriptorHead) entries() int            { return int(uint8(h >> 32)) }
func (h descriptorHead) length() int             { return int(uint32(h)) }

func (d descriptor) head() descriptorHead     { return descriptorHead(word(d.base, 0).Load()) }
func (d descriptor) publish(h descriptorHead) { release.Store(word(d.base, 0), uint64(h)) }

// entry copies entry i of count out of shared memory.
func (d descriptor) entry(i, count int, total int) (place, int) {
	if count == 1 {
		return place(word(d.base, 8).Load()), total
	}
	offset := uintptr(16 + 16*i)
	return place(word(d.base, offset).Load()), int(uint32(word(d.base, offset+8).Load()))
}

func (d descriptor) setEntry(i, count int, p place, length int) {
	if count == 1 {
		*(*uint64)(unsafe.Add(d.base, 8)) = uint64(p)
		return
	}
	*(*uint64)(unsafe.Add(d.base, 16+16*i)) = uint64(p)
	*(*uint64)(unsafe.Add(d.base, 24+16*i)) = uint64(length)
}

// A place is an offset in a region of the writer's domain: the region's handle
// in the upper 28 bits, the offset in the lower 36.
type place uint64

func makePlace(handle uint32, offset int) place { return place(uint64(handle)<<36 | uint64(offset)) }

func (p place) handle() uint32 { return uint32(p >> 36) }
func (p place) offset() int    { return int(p & (1<<36 - 1)) }

// A handle names a region within its domain: the index in the domain's table in
// the lower 16 bits and, above it, 12 bits of the entry's generation, so that a
// stale one is noticed.
const (
	tableEntries = 1 << 16
	tableBytes   = tableEntries * 8
)

func makeHandle(index, generation uint32) uint32 { return index | generation<<16&(1<<28-1) }

func handleIndex(handle uint32) uint32 { return handle & (tableEntries - 1) }

// The table holds the state of each region: its generation and whether it may
// be used. Only its owner can write it.
func regionState(generation uint32, open bool) uint64 {
	state := uint64(generation) << 1
	if open {
		state |= 1
	}
	return state
}

type table struct{ base unsafe.Pointer }

func viewTable(memory []byte) table {
	_ = memory[tableBytes-1]
	return table{unsafe.Pointer(&memory[0])}
}

// open tells whether the region of the handle may be used.
func (t table) open(handle uint32) bool {
	state := t.state(handle).Load()
	return state&1 != 0 && makeHandle(handleIndex(handle), uint32(state>>1)) == handle
}

func (t table) state(handle uint32) *atomic.Uint64 {
	return word(t.base, uintptr(handleIndex(handle))*8)
}

// A doorbell is how peers reach a domain that does not look:
//
//	0     agent: a futex, changed and woken when a retry bit is set
//	128   which words of the retry bits are set
//	256   retry bits: queue pairs whose peer has posted what they wait for, or asks
//	      for a receive
//	4096  a block for each completion queue
//
// and in a block
//
//	0     armed, and behind it the futex that a waiter sleeps on
//	128   which words of the bits are set
//	256   bits: queue pairs that have received something while cold
const (
	bellQueues = 8192
	bellBits   = 4096
	bellBlock  = 1024
	bellHeader = 4096
	bellBytes  = bellHeader + bellQueues*bellBlock

	armedAny       uint32 = 1
	armedSolicited uint32 = 2
	armedSleeping  uint32 = 4 // the waiter sleeps on the futex
	armedAgent     uint32 = 8 // the waiter is woken by the domain's agent
	// armedAlarm says that the waiter sleeps until its alarm rings. Whoever has no
	// descriptor of that rings the agent, as armedAgent says beside it.
	armedAlarm uint32 = 16
)

// bellPlace is where a peer reports that it has sent.
type bellPlace struct{ queue, bit uint32 }

type doorbell struct{ base unsafe.Pointer }

func viewDoorbell(memory []byte) doorbell {
	_ = memory[bellBytes-1]
	return doorbell{unsafe.Pointer(&memory[0])}
}

func (d doorbell) agent() *atomic.Uint32 { return halfWord(d.base, 0) }
func (d doorbell) retries() bitSet       { return bitSet{unsafe.Add(d.base, 128)} }

func (d doorbell) block(queue uint32) bellView {
	return bellView{unsafe.Add(d.base, bellHeader+uintptr(queue)*bellBlock)}
}

type bellView struct{ base unsafe.Pointer }

func (v bellView) armed() *atomic.Uint32 { return halfWord(v.base, 0) }
func (v bellView) futex() *atomic.Uint32 { return halfWord(v.base, 4) }
func (v bellView) bits() bitSet          { return bitSet{unsafe.Add(v.base, 128)} }

// disarm reports an event to who waits at the queue, if it asked for such an event, and
// returns how it wants to be woken; 0: not at all. The caller wakes it.
func (v bellView) disarm(solicited bool) (armed uint32) {
	armed = v.armed().Load()
	if armed&(armedAny|armedSolicited) == 0 || armed&armedAny == 0 && !solicited {
		return 0
	}
	// The waiter may change armed to tell that it sleeps.
	for !v.armed().CompareAndSwap(armed, 0) {
		if armed = v.armed().Load(); armed == 0 {
			return 0
		}
	}
	v.futex().Add(1)
	return armed
}

// A bitSet is bellBits bits behind a summary of one bit for each of their words.
// Many set bits; one collects them.
type bitSet struct{ base unsafe.Pointer }

func (s bitSet) summary() *atomic.Uint64      { return word(s.base, 0) }
func (s bitSet) word(i uint32) *atomic.Uint64 { return word(s.base, 128+uintptr(i&63)*8) }

func (s bitSet) set(bit uint32) {
	mask := uint64(1) << (bit & 63)
	w := s.word(bit >> 6)
	// Whoever set it before will be followed by a look at the queue pair.
	if w.Load()&mask == 0 {
		w.Or(mask)
	}
	mask = 1 << (bit >> 6 & 63)
	if s.summary().Load()&mask == 0 {
		s.summary().Or(mask)
	}
}

// collect calls f for each bit and clears them.
func (s bitSet) collect(f func(bit uint32)) {
	if s.summary().Load() == 0 {
		return
	}
	for words := s.summary().Swap(0); words != 0; words &= words - 1 {
		i := uint32(bits.TrailingZeros64(words))
		for set := s.word(i).Swap(0); set != 0; set &= set - 1 {
			f(i<<6 | uint32(bits.TrailingZeros64(set)))
		}
	}
}
