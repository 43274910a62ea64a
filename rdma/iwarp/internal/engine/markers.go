package engine

import (
	"encoding/binary"

	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// Markers (RFC 5044 section 4.3) stand at every 512th byte of the stream,
// beginning with its first, and tell how far behind them the FPDU begins that
// they are in. One between two FPDUs belongs to the second. The CRC covers them.
//
// They are put in and taken out beside the rest of the engine, which knows FPDUs
// without markers: with markers every byte is copied once more, in both
// directions, and payload is placed after its CRC has passed.

// markedULPDU bounds a ULPDU in a stream with markers, so that the last of them
// can tell where the FPDU begins in 16 bits.
const markedULPDU = 64512 + wire.TaggedHeaderSize

// markerWriter puts markers into what is sent. The writer owns it.
type markerWriter struct {
	position int // of the next byte, modulo the interval
}

// frame appends an FPDU, given in parts without markers and up to its CRC, and
// the CRC if crc is set, or four zero bytes.
func (w *markerWriter) frame(dst []byte, crc bool, parts ...[]byte) []byte {
	begin, start := len(dst), -1 // start is where the length stands
	put := func(b []byte) {
		for len(b) > 0 {
			if w.position == 0 {
				pointer := 0
				if start >= 0 {
					pointer = len(dst) - start
				}
				dst = binary.BigEndian.AppendUint32(dst, uint32(pointer))
				w.position = wire.MarkerSize
			}
			if start < 0 {
				start = len(dst)
			}
			n := min(len(b), wire.MarkerInterval-w.position)
			dst = append(dst, b[:n]...)
			w.position = (w.position + n) % wire.MarkerInterval
			b = b[n:]
		}
	}
	for _, part := range parts {
		put(part)
	}
	// The field for the CRC is put first, since a marker may stand before it.
	put([]byte{0, 0, 0, 0})
	if crc {
		at := len(dst) - wire.CRCSize
		wire.PutCRC(dst[at:], wire.UpdateCRC(0, dst[begin:at]))
	}
	return dst
}

// mark replaces the batch's vectors by one that has markers.
func (b *Batch) mark(w *markerWriter, crc bool) {
	b.marked = b.marked[:0]
	for i := range b.frames {
		f := &b.frames[i]
		b.parts = append(b.parts[:0], b.arena[f.start:f.header])
		b.parts = append(b.parts, b.Vectors[f.vector:f.vector+f.count]...)
		b.parts = append(b.parts, b.arena[f.header:f.crc])
		b.marked = w.frame(b.marked, crc, b.parts...)
	}
	clear(b.parts)
	clear(b.Vectors)
	b.Vectors = append(b.Vectors[:0], b.marked)
}

// markerReader takes markers out of what is received. The reader owns it.
type markerReader struct {
	crc      bool
	position int // of the next byte of the stream, modulo the interval
	marker   [wire.MarkerSize]byte
	frame    []byte // the FPDU that is arriving, without markers
	size     int    // of all of it, once its length is there
	since    int    // bytes of the stream since the FPDU began
	sum      uint32
}

// within tells whether the stream stands in the middle of something.
func (r *markerReader) within() bool {
	return len(r.frame) > 0 || r.position > 0 && r.position < wire.MarkerSize
}

// next takes bytes of b up to the end of an FPDU. It returns how many, and the
// FPDU without markers, if it is whole, until the next call.
func (r *markerReader) next(b []byte) (taken int, frame []byte, f *fault) {
	for taken < len(b) {
		rest := b[taken:]
		if r.position < wire.MarkerSize {
			n := copy(r.marker[r.position:], rest)
			taken += n
			if r.position += n; r.position < wire.MarkerSize {
				break
			}
			// The two lowest bits are to be ignored, as is the first half.
			if pointer := int(binary.BigEndian.Uint16(r.marker[2:]) &^ 3); pointer != r.since&0xFFFC {
				return taken, nil, faultf(wire.MPALength, "a marker says that the unit begins %d bytes before, it is %d", pointer, r.since)
			}
			r.sum = wire.UpdateCRC(r.sum, r.marker[:])
			if len(r.frame) > 0 {
				r.since += wire.MarkerSize
			}
			continue
		}
		want := wire.LengthSize - len(r.frame)
		if r.size > 0 {
			// The CRC itself is not part of the sum.
			if want = r.size - wire.CRCSize - len(r.frame); want <= 0 {
				want += wire.CRCSize
			}
		}
		n := min(len(rest), want, wire.MarkerInterval-r.position)
		if r.size == 0 || len(r.frame) < r.size-wire.CRCSize {
			r.sum = wire.UpdateCRC(r.sum, rest[:n])
		}
		r.frame = append(r.frame, rest[:n]...)
		r.since += n
		r.position = (r.position + n) % wire.MarkerInterval
		taken += n
		if r.size == 0 && len(r.frame) == wire.LengthSize {
			ulpdu := int(binary.BigEndian.Uint16(r.frame))
			r.size = wire.LengthSize + ulpdu + wire.Padding(ulpdu) + wire.CRCSize
		}
		if len(r.frame) != r.size {
			continue
		}
		frame, sum := r.frame, r.sum
		r.frame, r.size, r.since, r.sum = r.frame[:0], 0, 0, 0
		if got := wire.CRC(frame[len(frame)-wire.CRCSize:]); r.crc && got != sum {
			return taken, nil, faultf(wire.MPACRC, "a unit of %d bytes with markers has CRC %08x, not %08x", len(frame), got, sum)
		}
		return taken, frame, nil
	}
	return taken, nil, nil
}

// feedMarked is feed for a stream with markers.
func (e *Engine) feedMarked(b []byte) ([]byte, error) {
	for len(b) > 0 {
		n, frame, f := e.rx.markers.next(b)
		if f != nil {
			e.refuse(f)
			return nil, e.Err()
		}
		b = b[n:]
		if frame == nil {
			continue
		}
		rest, err := e.feed(frame)
		if err != nil {
			return nil, err
		}
		if e.rx.waits != nil {
			e.rx.heldFrame = rest // valid until the next call of next
			return b, nil
		}
	}
	return b, nil
}
