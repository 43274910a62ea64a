package native

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// MethodWindow asks for a window: its request is that of a [MethodRead] of which the offset
// alone counts, and its answer a [Window]. It fails with CodeNotNow if there is none now.
const MethodWindow uint32 = 3

const (
	// WindowSize is how many bytes of a block a window has, but for the last one of the
	// block. Windows begin at its multiples.
	WindowSize = 1 << 20
	windowLen  = 24 + verbena.TokenSize
	// mostLease is the longest that a window lasts.
	mostLease = time.Hour
	sumSize   = 4
)

// A Window is memory of a DataNode from which a range of a block can be read by Get: its
// chunks, each with its checksum of 4 bytes, big-endian, behind it. A DataNode that takes a
// window back makes the checksums others first, so that what is read later does not match.
type Window struct {
	Sum    transfer.Checksum
	Offset int64 // in the block, a multiple of WindowSize
	Length int   // bytes of the block, 1 to WindowSize
	// Lease is for how long it may be used, from when it was asked for.
	Lease time.Duration
	Token verbena.Token
}

// WindowBytes is the memory of a window: 0 if the chunks do not fit one.
func WindowBytes(sum transfer.Checksum, length int) int {
	if sum.Size() != sumSize || WindowSize%sum.BytesPerChunk != 0 {
		return 0
	}
	return length + sumSize*int(sum.Chunks(int64(length)))
}

// AppendWindow appends the answer to a [MethodWindow].
func AppendWindow(dst []byte, w *Window) []byte {
	dst = append(dst, byte(w.Sum.Type), 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(w.Sum.BytesPerChunk))
	dst = binary.BigEndian.AppendUint64(dst, uint64(w.Offset))
	dst = binary.BigEndian.AppendUint32(dst, uint32(w.Length))
	dst = binary.BigEndian.AppendUint32(dst, uint32(w.Lease.Milliseconds()))
	return w.Token.Append(dst)
}

// ParseWindow decodes the answer to a [MethodWindow].
func ParseWindow(b []byte) (w Window, err error) {
	if len(b) != windowLen || b[1]|b[2]|b[3] != 0 {
		return w, fmt.Errorf("%w: a window of %d bytes", ErrMalformed, len(b))
	}
	if w.Sum, err = transfer.NewChecksum(hdfspb.ChecksumTypeProto(b[0]), binary.BigEndian.Uint32(b[4:])); err != nil {
		return w, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if w.Token, err = verbena.ParseToken(b[24:]); err != nil {
		return w, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	w.Offset = int64(binary.BigEndian.Uint64(b[8:]))
	length, lease := binary.BigEndian.Uint32(b[16:]), time.Duration(binary.BigEndian.Uint32(b[20:]))*time.Millisecond
	w.Length, w.Lease = int(min(length, WindowSize+1)), lease
	switch n := WindowBytes(w.Sum, w.Length); {
	case w.Offset < 0 || w.Offset%WindowSize != 0 || w.Offset > 1<<62 || w.Length < 1 || w.Length > WindowSize || lease > mostLease,
		n == 0 || n != w.Token.Len() || w.Token.Rights()&verbena.MayRead == 0:
		return w, fmt.Errorf("%w: a window of %d bytes at %d, %d of memory, for %v", ErrMalformed, length, w.Offset, w.Token.Len(), lease)
	}
	return w, nil
}

// Part is which part of a window's memory holds n bytes from off of the block on, 1 at
// least; ok is false if the window does not have all of them.
func (w *Window) Part(off int64, n int) (from, to int, ok bool) {
	skip := off - w.Offset
	if skip < 0 || n < 1 || skip+int64(n) > int64(w.Length) {
		return 0, 0, false
	}
	bpc := w.Sum.BytesPerChunk
	last := (int(skip) + n - 1) / bpc
	return int(skip) / bpc * (bpc + sumSize), WindowBytes(w.Sum, min((last+1)*bpc, w.Length)), true
}

// Take compares a part with its checksums in place, and copies what was asked for into b.
func (w *Window) Take(part []byte, off int64, b []byte) bool {
	bpc := w.Sum.BytesPerChunk
	for skip := int((off - w.Offset) % int64(bpc)); len(b) > 0; skip = 0 {
		n := min(bpc, len(part)-sumSize)
		if n <= skip {
			return false // the part is shorter than Part says
		}
		chunk := part[:n]
		if w.Sum.Update(0, chunk) != binary.BigEndian.Uint32(part[n:]) {
			return false
		}
		b = b[copy(b, chunk[skip:]):]
		part = part[n+sumSize:]
	}
	return true
}

// LayWindow lays chunks and checksums into a window's memory.
func LayWindow(memory, data, sums []byte, sum transfer.Checksum) {
	for len(data) > 0 {
		n := copy(memory, data[:min(sum.BytesPerChunk, len(data))])
		copy(memory[n:], sums[:sumSize])
		memory, data, sums = memory[n+sumSize:], data[n:], sums[sumSize:]
	}
}

// SpoilWindow makes all checksums of a window's memory others, which no chunk in it has.
func SpoilWindow(memory []byte, sum transfer.Checksum) {
	for len(memory) > 0 {
		n := min(sum.BytesPerChunk, len(memory)-sumSize)
		for i := range sumSize {
			memory[n+i] ^= 0xff
		}
		memory = memory[n+sumSize:]
	}
}
