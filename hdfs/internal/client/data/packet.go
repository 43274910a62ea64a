package data

import (
	"sync"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// headroom is what a path may write in front of a packet's checksums.
const headroom = 64

// Packet is a piece of a block in memory that is used again. Headroom, checksums and
// data lie side by side once it is sealed, so that it goes out in one piece.
type Packet struct {
	transfer.PacketHeader
	buf   []byte
	mem   Memory // that buf is; nil: the heap
	data  int    // where the data begins in buf
	sums  int    // bytes of checksums, right before the data
	limit int    // bytes of data that may come

	// Acked and Busy are the writer's: whether the packet has been acknowledged, and
	// whether it is being sent.
	Acked, Busy bool
	// Sent says that a pipeline may be reading its header where it lies.
	Sent bool
}

// Pool makes packets of one size and keeps those that are given back. It may be used
// concurrently.
type Pool struct {
	size int
	sum  transfer.Checksum
	pool sync.Pool
	lent sync.Pool // packets without memory
}

// NewPool returns a pool of packets of at most size bytes of data, rounded to whole
// chunks of sum, one at least.
func NewPool(size int, sum transfer.Checksum) *Pool {
	size = max(size/sum.BytesPerChunk, 1) * sum.BytesPerChunk
	return &Pool{size: size, sum: sum}
}

// Size is how many bytes of data a packet takes at most.
func (p *Pool) Size() int { return p.size }

// Memory is how many bytes a packet takes, with its checksums and a header.
func (p *Pool) Memory() int {
	return headroom + int(p.sum.Chunks(int64(p.size)))*p.sum.Size() + p.size
}

// Checksum is what protects the data.
func (p *Pool) Checksum() transfer.Checksum { return p.sum }

// Get returns an empty packet for limit bytes of data from offset. It lies in memory of
// from, which may be nil, if that has some.
func (p *Pool) Get(seqno, offset int64, limit int, from Lender) *Packet {
	k := p.lend(p.Memory(), from)
	if k == nil {
		var ok bool
		if k, ok = p.pool.Get().(*Packet); !ok {
			k = &Packet{buf: make([]byte, p.Memory())}
		}
	}
	k.PacketHeader = transfer.PacketHeader{Offset: offset, Seqno: seqno}
	k.data, k.sums, k.limit = p.Memory()-p.size, 0, min(limit, p.size)
	k.Acked, k.Busy, k.Sent = false, false, false
	return k
}

func (p *Pool) lend(size int, from Lender) *Packet {
	if from == nil {
		return nil
	}
	m := from.Lend(size)
	if m == nil {
		return nil
	}
	k, ok := p.lent.Get().(*Packet)
	if !ok {
		k = &Packet{}
	}
	k.mem, k.buf = m, m.Bytes()
	return k
}

// Put gives a packet back, which nobody may use any more.
func (p *Pool) Put(k *Packet) {
	if k.mem == nil {
		p.pool.Put(k)
		return
	}
	k.mem.Release()
	k.mem, k.buf = nil, nil
	p.lent.Put(k)
}

// Memory is what the packet lies in, or nil if that is the heap.
func (k *Packet) Memory() Memory { return k.mem }

// Place returns where in the packet's memory checksums and data lie, behind size bytes
// for a header, at most 64.
func (k *Packet) Place(size int) (from, to int) {
	return k.data - k.sums - size, k.data + int(k.DataLen)
}

// Bytes is the packet's memory.
func (k *Packet) Bytes() []byte { return k.buf }

// Room is where more data may be put.
func (k *Packet) Room() []byte {
	return k.buf[k.data+int(k.DataLen) : k.data+k.limit]
}

// Grow says that the first n bytes of Room are filled.
func (k *Packet) Grow(n int) { k.DataLen += int32(n) }

// Data is what the packet has.
func (k *Packet) Data() []byte { return k.buf[k.data : k.data+int(k.DataLen)] }

// End is the offset behind the packet's data in the block.
func (k *Packet) End() int64 { return k.Offset + int64(k.DataLen) }

// Seal computes the checksums. The data begins at a chunk's start, or lies within one
// chunk.
func (k *Packet) Seal(sum transfer.Checksum) {
	k.sums = int(sum.Chunks(int64(k.DataLen))) * sum.Size()
	if k.sums > 0 {
		sum.Sum(k.buf[k.data-k.sums:k.data], k.Data())
	}
}

// Sums are the checksums of a sealed packet.
func (k *Packet) Sums() []byte { return k.buf[k.data-k.sums : k.data] }

// Frame returns the packet as the data transfer protocol has it, in the packet's memory.
func (k *Packet) Frame() []byte {
	var head [headroom]byte
	h := transfer.AppendPacketPrefix(head[:0], &k.PacketHeader, k.sums)
	at := k.data - k.sums - len(h)
	copy(k.buf[at:], h)
	return k.buf[at : k.data+int(k.DataLen)]
}
