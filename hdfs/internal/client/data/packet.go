package data

import (
	"bytes"
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
	sums  int    // bytes of checksums, right before the data, of a sealed packet
	sum   transfer.Checksum
	done  int // bytes of data of which there are checksums, as if the packet became full
	limit int // bytes of data that may come

	// Acked and Busy are the writer's: whether the packet has been acknowledged, and
	// whether it is being sent.
	Acked, Busy bool
	// Sent says that a pipeline may be reading its memory, header included, where it lies.
	Sent bool
}

// Pool makes packets and keeps those that are given back. It may be used concurrently.
type Pool struct {
	size int
	most int // bytes of memory that a packet of a lender may have; 0: all are of size
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

// Suit makes packets of lenders as long as these want them, and at most most bytes with
// all that goes with them.
func (p *Pool) Suit(most int) { p.most = most }

// Limit is how many bytes of data a packet for from takes at most, which may be nil.
func (p *Pool) Limit(from Lender) int {
	if from == nil || p.most == 0 {
		return p.size
	}
	chunk := p.sum.BytesPerChunk
	return max((min(from.Packet(), p.most)-headroom)/(chunk+p.sum.Size()), 1) * chunk
}

// Most is how many bytes of memory a packet for from takes at most, which may be nil.
func (p *Pool) Most(from Lender) int { return max(p.Memory(), p.memory(p.Limit(from))) }

// Memory is how many bytes a packet takes that no pipeline lends memory for, with its
// checksums and a header.
func (p *Pool) Memory() int { return p.memory(p.size) }

func (p *Pool) memory(size int) int {
	return headroom + int(p.sum.Chunks(int64(size)))*p.sum.Size() + size
}

// Checksum is what protects the data.
func (p *Pool) Checksum() transfer.Checksum { return p.sum }

// Get returns an empty packet for up to limit bytes of data from offset. It lies in memory
// of from, which may be nil, if that has some.
func (p *Pool) Get(seqno, offset int64, limit int, from Lender) *Packet {
	size := min(limit, p.Limit(from))
	k := p.lend(p.memory(size), from)
	if k == nil {
		var ok bool
		if k, ok = p.pool.Get().(*Packet); !ok {
			k = &Packet{buf: make([]byte, p.Memory())}
		}
		size = min(limit, p.size)
	}
	k.PacketHeader = transfer.PacketHeader{Offset: offset, Seqno: seqno}
	k.data, k.sums, k.limit, k.sum, k.done = p.memory(size)-size, 0, size, p.sum, 0
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

// Cost is how many bytes of memory the packet takes.
func (k *Packet) Cost() int { return len(k.buf) }

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

// Grow says that the first n bytes of Room are filled. Chunks that are whole by that are
// summed up.
func (k *Packet) Grow(n int) {
	k.DataLen += int32(n)
	if whole := int(k.DataLen) / k.sum.BytesPerChunk * k.sum.BytesPerChunk; whole > k.done {
		k.sumUp(whole)
	}
}

// sumUp makes the checksums of the chunks from done to end.
func (k *Packet) sumUp(end int) {
	if k.sum.Size() > 0 {
		at := k.data - k.sumsOf(k.limit) + k.sumsOf(k.done)
		k.sum.Sum(k.buf[at:k.data], k.buf[k.data+k.done:k.data+end])
	}
	k.done = end
}

// sumsOf is how many bytes of checksums n bytes of data have.
func (k *Packet) sumsOf(n int) int { return int(k.sum.Chunks(int64(n))) * k.sum.Size() }

// Data is what the packet has.
func (k *Packet) Data() []byte { return k.buf[k.data : k.data+int(k.DataLen)] }

// End is the offset behind the packet's data in the block.
func (k *Packet) End() int64 { return k.Offset + int64(k.DataLen) }

// Seal computes the checksums that are left, and puts them all right before the data. The
// data begins at a chunk's start, or lies within one chunk.
func (k *Packet) Seal() {
	if k.done < int(k.DataLen) {
		k.sumUp(int(k.DataLen))
	}
	k.sums = k.sumsOf(int(k.DataLen))
	first := k.data - k.sumsOf(k.limit)
	copy(k.buf[k.data-k.sums:k.data], k.buf[first:first+k.sums])
}

// Sums are the checksums of a sealed packet.
func (k *Packet) Sums() []byte { return k.buf[k.data-k.sums : k.data] }

// Frame returns the packet as the data transfer protocol has it: body, which lies in the
// packet's memory, behind head. For a packet that a pipeline may be reading nothing is written
// to that memory, and head has what stands before the checksums. For others head is empty.
func (k *Packet) Frame() (head, body []byte) {
	var space [headroom]byte
	prefix := transfer.AppendPacketPrefix(space[:0], &k.PacketHeader, k.sums)
	from, to := k.Place(0)
	if k.Sent {
		return bytes.Clone(prefix), k.buf[from:to]
	}
	from -= len(prefix)
	copy(k.buf[from:], prefix)
	return nil, k.buf[from:to]
}
