package native

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// MethodRing reads a long range by a call with a stream: the DataNode fills the slots of a
// ring in turn, and tells of each; the client reads them by Get, and says how many it does
// not need any more. It fails with CodeNotNow where there is no memory for a ring.
const MethodRing uint32 = 4

// MethodPush reads a long range as MethodRing does, but through a ring of the client: the
// DataNode puts the pieces into its slots, so that nothing is asked for piece by piece.
// It fails with CodeNotNow over TCP, where a Put is a message, too.
const MethodPush uint32 = 5

// Sizes of a ring in bytes.
const (
	// RingSlots is how many slots a ring has. Half of them are told of, and given back, at a
	// time: each such message may have to wake who waits for it.
	RingSlots = 8
	// SlotData is how many bytes of a block a slot has at most, and SlotSums how many of
	// checksums, which stand behind the room for data, or, in a ring of the client, behind
	// the data itself.
	SlotData = 512 << 10
	SlotSums = 8 << 10
	slotSize = SlotData + SlotSums
	// RingBytes is the memory of a ring.
	RingBytes = RingSlots * slotSize

	// RingLen is the length of what a DataNode sends first, and FilledLen that of what it
	// sends for each slot.
	RingLen        = PushLen + verbena.TokenSize
	FilledLen      = 16
	ringRequestLen = 24
	// PushLen is the length of what it sends first where the ring is the client's.
	PushLen = 8
	// RingFinished is what a client sends that needs no slot any more. Lower bytes, of
	// RingSlots at most, are numbers of slots.
	RingFinished = 0xff
)

// RingRequest asks for a range of a block. A ClientOperationHeaderProto with block and
// token follows it.
type RingRequest struct {
	Offset, Length int64 // in the block, bytes; one at least
	Unverified     bool  // as the bytes are, without checksums
}

// AppendRingRequest appends the payload of a [MethodRing], behind which header is the
// encoded ClientOperationHeaderProto.
func AppendRingRequest(dst []byte, q *RingRequest, header []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(q.Offset))
	dst = binary.BigEndian.AppendUint64(dst, uint64(q.Length))
	var flags uint32
	if q.Unverified {
		flags |= flagUnverified
	}
	dst = binary.BigEndian.AppendUint32(dst, flags)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	return append(dst, header...)
}

// ParseRingRequest decodes the payload of a [MethodRing], but for the header behind it,
// which lies in b: ParseReadHeader does.
func ParseRingRequest(b []byte) (q RingRequest, header []byte, err error) {
	if len(b) < ringRequestLen || len(b) > ringRequestLen+MaxRequest {
		return q, nil, fmt.Errorf("%w: a request for a ring of %d bytes", ErrMalformed, len(b))
	}
	flags, zero := binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:])
	q = RingRequest{Offset: int64(binary.BigEndian.Uint64(b)), Length: int64(binary.BigEndian.Uint64(b[8:])), Unverified: flags&flagUnverified != 0}
	if q.Offset < 0 || q.Offset > 1<<61 || q.Length < 1 || q.Length > 1<<61 || flags&^flagUnverified != 0 || zero != 0 {
		return q, nil, fmt.Errorf("%w: a ring for %d bytes at %d, flags %#x", ErrMalformed, q.Length, q.Offset, flags)
	}
	return q, b[ringRequestLen:], nil
}

// AppendPushRequest appends the payload of a [MethodPush]: ring is the client's, which the
// DataNode may write to.
func AppendPushRequest(dst []byte, q *RingRequest, ring verbena.Token, header []byte) []byte {
	return append(ring.Append(AppendRingRequest(dst, q, nil)), header...)
}

// ParsePushRequest decodes the payload of a [MethodPush], as ParseRingRequest does.
func ParsePushRequest(b []byte) (q RingRequest, ring verbena.Token, header []byte, err error) {
	const front = ringRequestLen + verbena.TokenSize
	if len(b) < front || len(b) > front+MaxRequest {
		return q, ring, nil, fmt.Errorf("%w: a request for a push of %d bytes", ErrMalformed, len(b))
	}
	if q, _, err = ParseRingRequest(b[:ringRequestLen]); err != nil {
		return q, ring, nil, err
	}
	if ring, err = verbena.ParseToken(b[ringRequestLen:front]); err != nil {
		return q, ring, nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if ring.Len() != RingBytes || ring.Rights()&verbena.MayWrite == 0 {
		return q, ring, nil, fmt.Errorf("%w: a client's ring of %d bytes, rights %#02x", ErrMalformed, ring.Len(), uint8(ring.Rights()))
	}
	return q, ring, b[front:], nil
}

// A Ring is memory of a DataNode with RingSlots slots, for one reader.
type Ring struct {
	Sum   transfer.Checksum
	Token verbena.Token
}

// RingFits tells whether chunks fit a ring: their checksums have to fit a slot.
func RingFits(sum transfer.Checksum) bool {
	return sum.BytesPerChunk <= SlotData && int(sum.Chunks(SlotData))*sum.Size() <= SlotSums
}

// AppendRing appends what a DataNode sends first.
func AppendRing(dst []byte, r *Ring) []byte { return r.Token.Append(AppendPush(dst, r.Sum)) }

// AppendPush appends what a DataNode sends first where the ring is the client's.
func AppendPush(dst []byte, sum transfer.Checksum) []byte {
	dst = append(dst, byte(sum.Type), 0, 0, 0)
	return binary.BigEndian.AppendUint32(dst, uint32(sum.BytesPerChunk))
}

// ParsePush decodes what a DataNode sends first where the ring is the client's.
func ParsePush(b []byte) (sum transfer.Checksum, err error) {
	if len(b) != PushLen || b[1]|b[2]|b[3] != 0 {
		return sum, fmt.Errorf("%w: a push that begins with %d bytes", ErrMalformed, len(b))
	}
	if sum, err = transfer.NewChecksum(hdfspb.ChecksumTypeProto(b[0]), binary.BigEndian.Uint32(b[4:])); err != nil {
		return sum, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if !RingFits(sum) {
		return sum, fmt.Errorf("%w: chunks of %d bytes do not fit a slot", ErrMalformed, sum.BytesPerChunk)
	}
	return sum, nil
}

// ParseRing decodes what a DataNode sends first.
func ParseRing(b []byte) (r Ring, err error) {
	if len(b) != RingLen {
		return r, fmt.Errorf("%w: a ring that begins with %d bytes", ErrMalformed, len(b))
	}
	if r.Sum, err = ParsePush(b[:PushLen]); err != nil {
		return r, err
	}
	if r.Token, err = verbena.ParseToken(b[PushLen:]); err != nil {
		return r, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if r.Token.Len() != RingBytes || r.Token.Rights()&verbena.MayRead == 0 {
		return r, fmt.Errorf("%w: a ring of %d bytes, with chunks of %d", ErrMalformed, r.Token.Len(), r.Sum.BytesPerChunk)
	}
	return r, nil
}

// Slot is where in a ring's memory the data and the checksums of its n-th piece lie.
func Slot(n uint64) (data, sums int) {
	data = int(n%RingSlots) * slotSize
	return data, data + SlotData
}

// Filled tells of a slot that has been filled: the one behind that of the message before.
type Filled struct {
	Offset int64 // of the data in the block: where the piece before has ended, or a chunk's start
	Data   int   // bytes: whole chunks, but for the last one of the block
	Sums   int   // bytes
}

// AppendFilled appends what a DataNode sends for a slot.
func AppendFilled(dst []byte, f *Filled) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.Offset))
	dst = binary.BigEndian.AppendUint32(dst, uint32(f.Data))
	return binary.BigEndian.AppendUint32(dst, uint32(f.Sums))
}

// ParseFilled decodes what a DataNode sends for a slot of a ring.
func ParseFilled(b []byte, sum transfer.Checksum) (f Filled, err error) {
	if len(b) != FilledLen {
		return f, fmt.Errorf("%w: %d bytes for a slot", ErrMalformed, len(b))
	}
	data, sums := binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	f.Offset = int64(binary.BigEndian.Uint64(b))
	if f.Offset < 0 || f.Offset > 1<<62 || data < 1 || data > SlotData || int64(sums) != sum.Chunks(int64(data))*int64(sum.Size()) {
		return f, fmt.Errorf("%w: a slot with %d bytes at %d and %d of checksums", ErrMalformed, data, f.Offset, sums)
	}
	f.Data, f.Sums = int(data), int(sums)
	return f, nil
}
