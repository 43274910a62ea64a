package transfer

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"sync"

	"google.golang.org/protobuf/proto"
)

const (
	smallBuffer = 4 << 10
	// Three ordinary packets of 64 KiB fit this one; beyond it memory is asked of the budget.
	freeBuffer = 256 << 10
	// Packets from this size on are read several at a time, as far as freeBuffer holds
	// them. A writer of small packets keeps a small buffer.
	manyPackets = 32 << 10
	minClass    = 12 // 4 KiB
	maxClass    = 25 // 32 MiB: the largest packet and the read-ahead
)

var buffers [maxClass + 1]sync.Pool

func bufferClass(n int) int { return max(minClass, bits.Len(uint(n-1))) }

// GetBuffer returns a pooled buffer with a length of at least n bytes, at most
// 32 MiB; its contents are arbitrary. Hand it back with [PutBuffer].
func GetBuffer(n int) *[]byte {
	c := bufferClass(n)
	if b, ok := buffers[c].Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 1<<c)
	return &b
}

// PutBuffer hands back a buffer of [GetBuffer], which nobody may use any more.
func PutBuffer(b *[]byte) { buffers[bufferClass(len(*b))].Put(b) }

// A Budget bounds the memory that large packets hold at one time.
type Budget interface {
	// Acquire waits until n bytes may be used, or fails.
	Acquire(n int64) error
	Release(n int64)
}

// A Reader reads messages and packets from a stream through a buffer that it
// borrows from a pool: 4 KiB between operations, as large as the largest packet
// seen within one. What it returns stands in that buffer and is valid until the
// next call. It reads a packet, or several, with one call of Read where the stream
// has that much. One goroutine at a time.
type Reader struct {
	src    io.Reader
	buf    *[]byte
	r, w   int // unread bytes are (*buf)[r:w]
	budget Budget
	held   int64
}

// NewReader returns a reader of src. budget may be nil. Release must be called
// in the end.
func NewReader(src io.Reader, budget Budget) *Reader {
	return &Reader{src: src, budget: budget, buf: GetBuffer(smallBuffer)}
}

// Buffered is the number of bytes read from the stream and not yet returned.
func (r *Reader) Buffered() int { return r.w - r.r }

// Shrink gives a large buffer back, if what is left in it fits a small one.
func (r *Reader) Shrink() {
	if r.buf == nil || len(*r.buf) == smallBuffer || r.Buffered() > smallBuffer {
		return
	}
	r.replace(smallBuffer)
}

// Release gives the buffer back. The reader can't be used any more.
func (r *Reader) Release() {
	if r.buf == nil {
		return
	}
	PutBuffer(r.buf)
	r.buf = nil
	r.releaseBudget()
}

func (r *Reader) releaseBudget() {
	if r.held > 0 {
		r.budget.Release(r.held)
		r.held = 0
	}
}

func (r *Reader) replace(n int) {
	b := GetBuffer(n)
	r.w = copy(*b, (*r.buf)[r.r:r.w])
	r.r = 0
	PutBuffer(r.buf)
	r.buf = b
	if len(*b) <= freeBuffer {
		r.releaseBudget()
	}
}

// fill makes n unread bytes available. It reads at most ahead bytes more than
// that, so that little has to be moved when the next packet begins.
func (r *Reader) fill(n, ahead int) error {
	if r.w-r.r >= n {
		return nil
	}
	if need := n + ahead; need > len(*r.buf) {
		if size := int64(1) << bufferClass(need); size > freeBuffer && r.budget != nil && size > r.held {
			// Give back before asking for more. Else two readers that each hold a
			// part of what both need would wait for each other.
			r.releaseBudget()
			if err := r.budget.Acquire(size); err != nil {
				return fmt.Errorf("memory for a packet of %d bytes: %w", n, err)
			}
			r.held = size
		}
		r.replace(need)
	}
	b := *r.buf
	if r.r > 0 && (r.r == r.w || r.r+n+ahead > len(b)) {
		r.w = copy(b, b[r.r:r.w])
		r.r = 0
	}
	for r.w-r.r < n {
		m, err := r.src.Read(b[r.w : r.r+n+ahead])
		r.w += m
		if err != nil && r.w-r.r < n {
			if err == io.EOF && r.w > r.r {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// fillGradually is fill for n bytes inside a packet, which may be many. They get their memory
// as they arrive. The buffer stays for those that follow, so this happens once.
func (r *Reader) fillGradually(n, ahead int) error {
	for have := freeBuffer / 2; have < n && len(*r.buf) < n+ahead; have *= 2 {
		if err := r.fill(have, 0); err != nil {
			return noEOF(err, true)
		}
	}
	return noEOF(r.fill(n, ahead), true)
}

// Peek waits for n bytes, at most 4 KiB, and returns them without consuming them.
func (r *Reader) Peek(n int) ([]byte, error) {
	if err := r.fill(n, min(smallBuffer-n, len(*r.buf)-n)); err != nil {
		return nil, err
	}
	return (*r.buf)[r.r : r.r+n], nil
}

// Rest consumes and returns what is buffered.
func (r *Reader) Rest() []byte {
	b := (*r.buf)[r.r:r.w]
	r.r = r.w
	return b
}

// Read consumes bytes without regard to messages.
func (r *Reader) Read(p []byte) (int, error) {
	if r.r < r.w {
		n := copy(p, (*r.buf)[r.r:r.w])
		r.r += n
		return n, nil
	}
	return r.src.Read(p)
}

// ReadOp reads the version and operation of a request. At the end of the stream
// between two requests the error is io.EOF.
func (r *Reader) ReadOp() (Op, error) {
	b, err := r.Peek(opHeaderLen)
	if err != nil {
		return 0, err
	}
	if b[0] != Prefix[0] || b[1] != Prefix[1] {
		return 0, fmt.Errorf("%w: a request begins with version %d, want %d", ErrMalformed, binary.BigEndian.Uint16(b), Version)
	}
	op := Op(b[2])
	if !op.Known() {
		return 0, fmt.Errorf("%w: unknown %v", ErrMalformed, op)
	}
	r.r += opHeaderLen
	return op, nil
}

// readDelimited returns the bytes of a varint-delimited message.
func (r *Reader) readDelimited() ([]byte, error) {
	var size uint64
	n := 0
	for {
		b, err := r.Peek(n + 1)
		if err != nil {
			return nil, noEOF(err, n > 0)
		}
		size |= uint64(b[n]&0x7f) << (7 * n)
		n++
		if b[n-1] < 0x80 {
			break
		}
		if n == maxVarintLen {
			return nil, fmt.Errorf("%w: a message's length does not end", ErrMalformed)
		}
	}
	if size > MaxMessage {
		return nil, fmt.Errorf("%w: message of %d bytes, at most %d are allowed", ErrMalformed, size, MaxMessage)
	}
	r.r += n
	// Memory grows as bytes arrive, not by what the length claims.
	for have := min(int(size), smallBuffer-1); ; have = min(int(size), 2*have) {
		if err := r.fill(have, 0); err != nil {
			return nil, noEOF(err, true)
		}
		if have == int(size) {
			break
		}
	}
	b := (*r.buf)[r.r : r.r+int(size)]
	r.r += int(size)
	return b, nil
}

func noEOF(err error, inside bool) error {
	if err == io.EOF && inside {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReadMessage reads a varint-delimited message into msg.
func (r *Reader) ReadMessage(msg proto.Message) error {
	b, err := r.readDelimited()
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(b, msg); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMalformed, msg.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

// ReadAck reads an acknowledgement into a, reusing a.Replies.
func (r *Reader) ReadAck(a *Ack) error {
	b, err := r.readDelimited()
	if err != nil {
		return err
	}
	return ParseAck(b, a)
}

// ReadPacket reads a packet whose data has checksums as c tells.
func (r *Reader) ReadPacket(c Checksum, p *Packet) error { return r.readPacket(c, p, false) }

// readPacket is ReadPacket. With bare, the data may have no checksums at all.
func (r *Reader) readPacket(c Checksum, p *Packet, bare bool) error {
	h, start, sums, err := r.packetHeader(c, bare, len(*r.buf))
	if err != nil {
		return err
	}
	total, ahead := start+sums+int(h.DataLen), smallBuffer
	if total >= manyPackets {
		ahead = max(ahead, freeBuffer-total)
	}
	if err := r.fillGradually(total, ahead); err != nil {
		return err
	}
	raw := (*r.buf)[r.r : r.r+total : r.r+total]
	r.r += total
	*p = Packet{PacketHeader: h, Raw: raw, Sums: raw[start : start+sums], Data: raw[start+sums:]}
	return nil
}

// packetHeader reads what stands before a packet's checksums, and leaves it in the buffer. It
// tells how long that is, and how many bytes of checksums follow. About ahead bytes are read
// with it.
func (r *Reader) packetHeader(c Checksum, bare bool, ahead int) (h PacketHeader, start, sums int, err error) {
	if err := r.fill(packetPrefixLen, ahead-packetPrefixLen); err != nil {
		return h, 0, 0, err
	}
	b := (*r.buf)[r.r:]
	length, hlen := int64(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint16(b[4:]))
	if length < 4 || length > MaxPacket {
		return h, 0, 0, fmt.Errorf("%w: packet of %d bytes, must be between 4 and %d", ErrMalformed, length, MaxPacket)
	}
	if hlen < PacketHeaderLen || hlen > maxPacketHeader {
		return h, 0, 0, fmt.Errorf("%w: packet header of %d bytes, must be between %d and %d", ErrMalformed, hlen, PacketHeaderLen, maxPacketHeader)
	}
	// The header comes first, so that a body is believed only under a header
	// that agrees with it.
	start = packetPrefixLen + hlen
	if err := r.fill(start, max(0, ahead-start)); err != nil {
		return h, 0, 0, noEOF(err, true)
	}
	if h, err = ParsePacketHeader((*r.buf)[r.r+packetPrefixLen : r.r+start]); err != nil {
		return h, 0, 0, err
	}
	body := int(length) - 4
	sums = int(c.Chunks(int64(h.DataLen))) * c.Size()
	if bare && body == int(h.DataLen) {
		sums = 0
	}
	if sums+int(h.DataLen) != body {
		return h, 0, 0, fmt.Errorf("%w: packet with %d bytes of checksums and data; %d bytes of data have %d bytes of checksums", ErrMalformed, body, h.DataLen, sums)
	}
	return h, start, sums, nil
}

// ReadPacketHead is [Reader.ReadPacket] for all of a packet that stands before its data. Those
// the caller takes next: by [Reader.Read], or [Reader.ReadRest]. With little, no more of them is
// read than comes with the head, so that Read has the stream put them where they are wanted.
func (r *Reader) ReadPacketHead(c Checksum, p *Packet, little bool) error {
	ahead := len(*r.buf)
	if little {
		ahead = smallBuffer
	}
	h, start, sums, err := r.packetHeader(c, false, ahead)
	if err != nil {
		return err
	}
	if err := r.fillGradually(start+sums, max(0, ahead-start-sums)); err != nil {
		return err
	}
	at := r.r + start
	r.r = at + sums
	*p = Packet{PacketHeader: h, Sums: (*r.buf)[at:r.r:r.r]}
	return nil
}

// ReadRest returns the next n bytes of a packet whose head has been read, in the buffer: valid
// until the next call, as the packet's checksums were until this one. About ahead bytes more are
// read with them.
func (r *Reader) ReadRest(n, ahead int) ([]byte, error) {
	if err := r.fillGradually(n, ahead); err != nil {
		return nil, err
	}
	b := (*r.buf)[r.r : r.r+n : r.r+n]
	r.r += n
	return b, nil
}

// ReadPackets reads a packet as [Reader.ReadPacket] does, and those behind it that
// are in the buffer already, as far as packets has room for them and not beyond the
// block's last. It returns how many, and the bytes of all of them as they came. A
// malformed packet behind the first is left to the next call.
//
// With bare, packets may have data without checksums: HDFS's clients send such ones of
// files with one replica that are to live in memory (LAZY_PERSIST), and DataNodes make the
// checksums.
func (r *Reader) ReadPackets(c Checksum, packets []Packet, bare bool) (n int, raw []byte, err error) {
	if err := r.readPacket(c, &packets[0], bare); err != nil {
		return 0, nil, err
	}
	start := r.r - len(packets[0].Raw)
	for n = 1; n < len(packets) && !packets[n-1].Last && r.PacketBuffered() && r.readPacket(c, &packets[n], bare) == nil; {
		n++
	}
	return n, (*r.buf)[start:r.r:r.r], nil
}

// MessageBuffered tells whether a whole varint-delimited message is in the buffer,
// so that ReadMessage and ReadAck will not wait for the stream.
func (r *Reader) MessageBuffered() bool {
	size, n := binary.Uvarint((*r.buf)[r.r:r.w])
	return n > 0 && size <= uint64(r.w-r.r-n)
}

// PacketBuffered tells whether a whole packet is in the buffer, so that
// ReadPacket will not wait for the stream.
func (r *Reader) PacketBuffered() bool {
	if r.w-r.r < packetPrefixLen {
		return false
	}
	b := (*r.buf)[r.r:r.w]
	return int64(len(b)) >= packetPrefixLen+int64(binary.BigEndian.Uint32(b))-4+int64(binary.BigEndian.Uint16(b[4:]))
}
