package engine

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// Bounds of a batch. Its payload is what one write should carry: enough to make
// the system call cheap, little enough to keep the pipe moving.
const (
	batchPayload = 512 << 10
	batchArena   = 32 << 10
	batchVectors = 256
	// copyLimit is the payload up to which copying is cheaper than a vector.
	copyLimit = 1 << 10
	// A Read Response up to copyResponse is copied, too, while there is room for it in the
	// first copiedResponses of the arena: for its CRC most would be copied in any case, and
	// one of this size is one short vector then.
	copyResponse    = 8<<10 - frameOverhead
	copiedResponses = 12 << 10
	// frameOverhead bounds what an FPDU takes of the arena beside copied payload.
	frameOverhead = wire.LengthSize + wire.MaxSegmentHeaderSize + 3 + wire.CRCSize
)

// Batch is a number of whole FPDUs, as vectors for one gathered write. The CRC
// of one, the header of the next and short payloads are one vector.
type Batch struct {
	// Vectors is what is to be written. It names regions, which the batch pins.
	Vectors [][]byte
	// Size is the sum of the vectors' lengths.
	Size int

	held   []byte   // payloads that may change, where there are CRCs
	marked []byte   // everything, where there are markers
	parts  [][]byte // of a frame, while it is marked

	arena   []byte // never grows: vectors point into it
	flat    int    // what lies before it in the arena belongs to vectors
	frames  []frame
	pins    []*mem.Region
	payload int
	through uint64 // requests before it are in the stream once this is written
}

// frame is where an FPDU lies, for its CRC.
type frame struct {
	start, header int  // in the arena: from the length to the end of what is copied
	vector, count int  // the payload's vectors, if it was not copied
	crc           int  // in the arena, after the padding
	restless      bool // others may write to the payload
}

var batches = sync.Pool{New: func() any {
	return &Batch{
		Vectors: make([][]byte, 0, batchVectors),
		arena:   make([]byte, 0, batchArena),
		frames:  make([]frame, 0, batchVectors),
		pins:    make([]*mem.Region, 0, batchVectors),
	}
}}

// NewBatch takes a batch from the pool.
func NewBatch() *Batch { return batches.Get().(*Batch) }

// Free gives it back.
func (b *Batch) Free() {
	b.reset()
	batches.Put(b)
}

func (b *Batch) reset() {
	for i, r := range b.pins {
		r.Unpin()
		b.pins[i] = nil
	}
	clear(b.Vectors)
	b.Vectors, b.arena, b.frames, b.pins = b.Vectors[:0], b.arena[:0], b.frames[:0], b.pins[:0]
	b.Size, b.flat, b.payload = 0, 0, 0
}

// Names tells whether the batch reads the region.
func (b *Batch) Names(region *mem.Region) bool {
	for _, r := range b.pins {
		if r == region {
			return true
		}
	}
	return false
}

// room tells whether one more FPDU fits, whose payload has up to pieces parts.
func (b *Batch) room(pieces int) bool {
	return b.payload < batchPayload &&
		len(b.arena)+frameOverhead+copyLimit <= cap(b.arena) &&
		len(b.Vectors)+pieces+3 <= cap(b.Vectors)
}

// close ends the vector over the arena.
func (b *Batch) close() {
	if b.flat < len(b.arena) {
		b.Vectors = append(b.Vectors, b.arena[b.flat:len(b.arena):len(b.arena)])
		b.flat = len(b.arena)
	}
}

// hold copies the payloads of Read Responses out of regions that do not keep still. Others may
// write there at any time, and the CRC has to be that of the bytes which go out.
func (b *Batch) hold() {
	size := 0
	for i := range b.frames {
		if f := &b.frames[i]; f.restless {
			for _, v := range b.Vectors[f.vector : f.vector+f.count] {
				size += len(v)
			}
		}
	}
	if size == 0 {
		return
	}
	if cap(b.held) < size {
		b.held = make([]byte, 0, max(size, batchPayload))
	}
	b.held = b.held[:0]
	for i := range b.frames {
		f := &b.frames[i]
		if !f.restless {
			continue
		}
		for j, v := range b.Vectors[f.vector : f.vector+f.count] {
			at := len(b.held)
			b.held = append(b.held, v...)
			b.Vectors[f.vector+j] = b.held[at:len(b.held):len(b.held)]
		}
	}
}

// seal computes the CRCs. The batch holds pins, the engine is not locked.
func (b *Batch) seal(crc bool) {
	if !crc {
		return
	}
	b.hold()
	for i := range b.frames {
		f := &b.frames[i]
		sum := wire.UpdateCRC(0, b.arena[f.start:f.header])
		for _, v := range b.Vectors[f.vector : f.vector+f.count] {
			sum = wire.UpdateCRC(sum, v)
		}
		sum = wire.UpdateCRC(sum, b.arena[f.header:f.crc])
		wire.PutCRC(b.arena[f.crc:], sum)
	}
}

// Fill puts into b, which is empty, what can be sent now. If there is nothing,
// the caller loses the writer's role.
func (e *Engine) Fill(b *Batch) bool {
	e.mu.Lock()
	for b.room(len(e.current.pieces)) {
		if !e.current.active {
			// What earlier Reads bring has to be taken before an atomic operation
			// changes it.
			if len(b.pins) > 0 && e.respHead != e.respEnd && e.responses[e.respHead%uint64(len(e.responses))].atomic {
				break
			}
			if !e.pick() {
				break
			}
			continue // the new message may need more room
		}
		e.emit(b)
	}
	b.through = e.next
	if e.current.active && e.current.kind <= messageRead {
		b.through = e.current.index
	}
	if len(b.frames) == 0 {
		e.writing = false
		e.stop()
		e.mu.Unlock()
		return false
	}
	crc := e.params.CRC
	e.mu.Unlock()
	b.close()
	if e.markers != nil {
		b.mark(e.markers, crc)
	} else {
		b.seal(crc)
	}
	for _, v := range b.Vectors {
		b.Size += len(v)
	}
	return true
}

// emit appends the next segment of the current message.
func (e *Engine) emit(b *Batch) {
	m := &e.current
	header := m.segment.HeaderSize()
	n := min(m.left, e.params.MaxULPDU-header)
	m.segment.Last = n == m.left
	start, vectors, pins, flat := len(b.arena), len(b.Vectors), len(b.pins), b.flat
	b.arena = binary.BigEndian.AppendUint16(b.arena, uint16(header+n))
	b.arena = m.segment.Append(b.arena)
	f := frame{start: start}
	if len(m.body) > 0 {
		b.arena = append(b.arena, m.body[:n]...)
		m.body = m.body[n:]
	} else if !e.gather(b, &f, n) {
		for i, r := range b.pins[pins:] {
			r.Unpin()
			b.pins[pins+i] = nil
		}
		b.arena, b.Vectors, b.pins, b.flat = b.arena[:start], b.Vectors[:vectors], b.pins[:pins], flat
		e.revoked(m)
		return
	}
	f.header = len(b.arena)
	for range wire.Padding(header + n) {
		b.arena = append(b.arena, 0)
	}
	f.crc = len(b.arena)
	b.arena = append(b.arena, 0, 0, 0, 0)
	b.frames = append(b.frames, f)
	b.payload += n
	m.left -= n
	m.segment.Offset += uint64(n)
	if m.left > 0 || e.follow(m) {
		return
	}
	m.active = false
	if m.kind == messageResponse {
		e.responses[e.respHead%uint64(len(e.responses))] = response{}
		e.respHead++
	}
}

// gather adds n bytes of payload, copied if they are few. It fails on a region
// that has been closed.
func (e *Engine) gather(b *Batch, f *frame, n int) bool {
	m := &e.current
	byCopy := n <= copyLimit ||
		m.kind == messageResponse && e.params.CRC && n <= copyResponse && len(b.arena)+n <= copiedResponses
	if !byCopy {
		b.close()
		f.vector = len(b.Vectors)
	}
	for n > 0 {
		p := &m.pieces[m.piece]
		k := min(n, p.length-m.at)
		if m.kind == messageResponse && p.region.Revoked() || !p.region.Pin() {
			return false
		}
		bytes := p.region.Bytes()[p.offset+m.at : p.offset+m.at+k]
		if byCopy {
			b.arena = append(b.arena, bytes...)
			p.region.Unpin()
		} else {
			b.Vectors = append(b.Vectors, bytes)
			b.pins = append(b.pins, p.region)
			f.count++
			f.restless = f.restless || m.kind == messageResponse && !p.region.KeepsStill()
		}
		n -= k
		if m.at += k; m.at == p.length {
			m.piece, m.at = m.piece+1, 0
		}
	}
	return true
}

// revoked ends the connection because a region that m names has been closed.
func (e *Engine) revoked(m *message) {
	m.active = false
	if m.kind == messageResponse {
		r := &e.responses[m.index%uint64(len(e.responses))]
		f := faultf(wire.RDMAPInvalidSTag, "the region of a Read in progress was closed or its key revoked")
		t := &wire.Terminate{Cause: f.cause, HasSegment: true, Segment: r.segment,
			SegmentLength: wire.UntaggedHeaderSize + wire.AtomicRequestSize}
		if !r.atomic {
			t.SegmentLength = wire.UntaggedHeaderSize + wire.ReadRequestSize
			t.HasRequest, t.Request = true, r.request
		}
		e.fail(f.error(), t)
		e.respHead = e.respEnd
		return
	}
	e.failed, e.failure = m.index, rdma.StatusLocalProtection
	e.fail(fmt.Errorf("request %d names a region that was closed", e.slot(m.index).id),
		&wire.Terminate{Cause: wire.RDMAPStreamCatastrophic})
}

// Written says that the stream has taken the whole batch, and empties it.
func (e *Engine) Written(b *Batch) {
	through := b.through
	b.reset()
	e.mu.Lock()
	if e.state == rdma.StateConnected {
		for ; e.written < through; e.written++ {
			if r := e.slot(e.written); !r.answered() {
				r.done = true
			}
		}
		e.retire()
	}
	e.mu.Unlock()
}

// WriteFailed says that the stream takes nothing more; the caller loses the
// writer's role. The queue pair fails once its reader has seen the end of what
// the peer had to say.
func (e *Engine) WriteFailed(b *Batch, err error) {
	b.reset()
	e.mu.Lock()
	e.txDead, e.writing, e.txErr = true, false, err
	e.terminate = nil
	e.stop()
	e.mu.Unlock()
}
