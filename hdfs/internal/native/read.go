package native

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Methods of the calls. Others of the service begin at 16.
const (
	MethodRead uint32 = 1
	// MethodReadNow has request and answer of a MethodRead, of at most MaxReadNow bytes. It
	// fails with CodeNotNow if the DataNode would have to wait for anything, or has yet to
	// look at the token: then MethodRead is the way.
	MethodReadNow uint32 = 2
)

// Sizes in bytes.
const (
	// MaxRead is the longest range of one call.
	MaxRead = 8 << 20
	// MaxReadNow is the longest range of a MethodReadNow.
	MaxReadNow = 64 << 10
	// ReadHeaderLen is what stands before the checksums of an answer.
	ReadHeaderLen    = 24
	readRequestLen   = 16
	flagUnverified   = 1 // of a read: the bytes are wanted as they are, without checksums
	failureOfStatus0 = verbena.CodeApplication
	mostStatus       = 1 << 15
	// CodeNotNow is that of a MethodReadNow which waits for nothing.
	CodeNotNow = failureOfStatus0 + mostStatus + 1
)

// ReadRequest asks for a range of a block. A ClientOperationHeaderProto with block and
// token follows it.
type ReadRequest struct {
	Offset     int64 // in the block, bytes
	Length     int   // bytes, 1 to MaxRead
	Unverified bool  // as the bytes are, without checksums
}

// AppendReadRequest appends the payload of a [MethodRead], behind which header is the
// encoded ClientOperationHeaderProto.
func AppendReadRequest(dst []byte, q *ReadRequest, header []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(q.Offset))
	dst = binary.BigEndian.AppendUint32(dst, uint32(q.Length))
	var flags uint32
	if q.Unverified {
		flags |= flagUnverified
	}
	dst = binary.BigEndian.AppendUint32(dst, flags)
	return append(dst, header...)
}

// ParseReadRequest decodes the payload of a [MethodRead], but for the header behind it,
// which lies in b: ParseReadHeader does.
func ParseReadRequest(b []byte) (q ReadRequest, header []byte, err error) {
	if len(b) < readRequestLen || len(b) > readRequestLen+MaxRequest {
		return q, nil, fmt.Errorf("%w: a read of %d bytes", ErrMalformed, len(b))
	}
	length, flags := binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	q = ReadRequest{Offset: int64(binary.BigEndian.Uint64(b)), Length: int(length), Unverified: flags&flagUnverified != 0}
	if q.Offset < 0 || q.Offset > 1<<62 || length == 0 || length > MaxRead || flags&^flagUnverified != 0 {
		return q, nil, fmt.Errorf("%w: a read of %d bytes at %d, flags %#x", ErrMalformed, length, q.Offset, flags)
	}
	return q, b[readRequestLen:], nil
}

// ParseReadHeader decodes what follows a read's request.
func ParseReadHeader(b []byte) (*hdfspb.ClientOperationHeaderProto, error) {
	header := &hdfspb.ClientOperationHeaderProto{}
	if err := proto.Unmarshal(b, header); err != nil {
		return nil, fmt.Errorf("%w: read: %w", ErrMalformed, err)
	}
	return header, nil
}

// ReadAnswer is the answer to a [MethodRead]. Sums and Data lie in the message.
type ReadAnswer struct {
	Sum    transfer.Checksum // NULL if none were asked for
	Offset int64             // of Data in the block: at a chunk's start, at or before the range
	Sums   []byte
	Data   []byte // up to the end of the range's last chunk, or of the block
}

// PutReadHeader writes what stands before the checksums to the beginning of b. Sums and
// Data of r are not looked at: their lengths are the other arguments.
func PutReadHeader(b []byte, r *ReadAnswer, sums, data int) {
	_ = b[ReadHeaderLen-1]
	b[0], b[1], b[2], b[3] = byte(r.Sum.Type), 0, 0, 0
	binary.BigEndian.PutUint32(b[4:], uint32(r.Sum.BytesPerChunk))
	binary.BigEndian.PutUint64(b[8:], uint64(r.Offset))
	binary.BigEndian.PutUint32(b[16:], uint32(sums))
	binary.BigEndian.PutUint32(b[20:], uint32(data))
}

// ParseReadAnswer decodes an answer.
func ParseReadAnswer(b []byte) (r ReadAnswer, err error) {
	if len(b) < ReadHeaderLen || b[1]|b[2]|b[3] != 0 {
		return r, fmt.Errorf("%w: an answer of %d bytes to a read", ErrMalformed, len(b))
	}
	if r.Sum, err = transfer.NewChecksum(hdfspb.ChecksumTypeProto(b[0]), binary.BigEndian.Uint32(b[4:])); err != nil {
		return r, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	r.Offset = int64(binary.BigEndian.Uint64(b[8:]))
	sums, data, rest := binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:]), b[ReadHeaderLen:]
	if r.Offset < 0 || uint64(sums)+uint64(data) != uint64(len(rest)) || int64(sums) != r.Sum.Chunks(int64(data))*int64(r.Sum.Size()) {
		return r, fmt.Errorf("%w: an answer of %d bytes of checksums and %d of data at %d in %d", ErrMalformed, sums, data, r.Offset, len(rest))
	}
	r.Sums, r.Data = rest[:sums:sums], rest[sums:]
	return r, nil
}

// CodeOf is the code of a failed call, and StatusOf what it says.
func CodeOf(s hdfspb.Status) uint32 { return failureOfStatus0 + uint32(s) }

// StatusOf is the status that a code stands for: ERROR for those that CodeOf does not
// make.
func StatusOf(code uint32) hdfspb.Status {
	if code > failureOfStatus0 && code-failureOfStatus0 <= mostStatus {
		s := int32(code - failureOfStatus0)
		if _, known := hdfspb.Status_name[s]; known {
			return hdfspb.Status(s)
		}
	}
	return hdfspb.Status_ERROR
}
