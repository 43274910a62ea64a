package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Version is the data transfer version that every operation begins with.
const Version = 28

// MaxMessage bounds a varint-delimited message, in bytes. Requests carry a
// block, a token and the pipeline's DataNodes: a few hundred bytes each.
const MaxMessage = 64 << 10

// ErrMalformed is wrapped by every error about bytes that are not the protocol.
// After it the position in the stream is unknown: close the connection.
var ErrMalformed = errors.New("malformed data transfer message")

// Op is the operation that a request asks for.
type Op byte

// The operations of the protocol.
const (
	OpWriteBlock             Op = 80
	OpReadBlock              Op = 81
	OpReadMetadata           Op = 82
	OpReplaceBlock           Op = 83
	OpCopyBlock              Op = 84
	OpBlockChecksum          Op = 85
	OpTransferBlock          Op = 86
	OpRequestShortCircuitFDs Op = 87
	OpReleaseShortCircuitFDs Op = 88
	OpRequestShortCircuitShm Op = 89
	OpBlockGroupChecksum     Op = 90
)

const (
	opHeaderLen  = 3
	maxVarintLen = 5 // a length never needs more
)

// Prefix is what every operation begins with, and so what tells a connection of
// this protocol from others on the same port.
var Prefix = [2]byte{0, Version}

var opNames = map[Op]string{
	OpWriteBlock:             "WRITE_BLOCK",
	OpReadBlock:              "READ_BLOCK",
	OpReadMetadata:           "READ_METADATA",
	OpReplaceBlock:           "REPLACE_BLOCK",
	OpCopyBlock:              "COPY_BLOCK",
	OpBlockChecksum:          "BLOCK_CHECKSUM",
	OpTransferBlock:          "TRANSFER_BLOCK",
	OpRequestShortCircuitFDs: "REQUEST_SHORT_CIRCUIT_FDS",
	OpReleaseShortCircuitFDs: "RELEASE_SHORT_CIRCUIT_FDS",
	OpRequestShortCircuitShm: "REQUEST_SHORT_CIRCUIT_SHM",
	OpBlockGroupChecksum:     "BLOCK_GROUP_CHECKSUM",
}

func (o Op) String() string {
	if s, ok := opNames[o]; ok {
		return s
	}
	return fmt.Sprintf("operation %d", byte(o))
}

// Known tells whether the protocol defines o.
func (o Op) Known() bool { return o >= OpWriteBlock && o <= OpBlockGroupChecksum }

// AppendRequest appends a whole request to dst.
func AppendRequest(dst []byte, op Op, msg proto.Message) ([]byte, error) {
	dst = append(dst, Prefix[0], Prefix[1], byte(op))
	return AppendMessage(dst, msg)
}

// AppendMessage appends a varint-delimited message to dst.
func AppendMessage(dst []byte, msg proto.Message) ([]byte, error) {
	n := proto.Size(msg)
	if n > MaxMessage {
		return nil, fmt.Errorf("%w: %s of %d bytes, at most %d are allowed", ErrMalformed, msg.ProtoReflect().Descriptor().Name(), n, MaxMessage)
	}
	dst = binary.AppendUvarint(dst, uint64(n))
	out, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(dst, msg)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", msg.ProtoReflect().Descriptor().Name(), err)
	}
	return out, nil
}

// WriteMessage writes a varint-delimited message in one call of w.Write.
func WriteMessage(w io.Writer, msg proto.Message) error {
	b, err := AppendMessage(make([]byte, 0, 256), msg)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// WriteRequest writes a request in one call of w.Write.
func WriteRequest(w io.Writer, op Op, msg proto.Message) error {
	b, err := AppendRequest(make([]byte, 0, 1024), op, msg)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// ErrorResponse is the answer to a request that failed. The message is never
// empty: a well-known client waits for ever on a response of less than five bytes.
func ErrorResponse(status hdfspb.Status, firstBadLink *string, message string) *hdfspb.BlockOpResponseProto {
	if message == "" {
		message = "the operation failed: " + status.String()
	}
	return &hdfspb.BlockOpResponseProto{
		Status:       status.Enum(),
		FirstBadLink: firstBadLink,
		Message:      &message,
	}
}

// An Ack is a PipelineAckProto: the outcome of one packet at this DataNode and
// those behind it, in the pipeline's order.
type Ack struct {
	Seqno   int64
	Replies []hdfspb.Status
	// DownstreamNanos is how long the packet took behind the sender of the ack.
	DownstreamNanos uint64
}

// OK tells whether every DataNode succeeded.
func (a *Ack) OK() bool {
	for _, s := range a.Replies {
		if s != hdfspb.Status_SUCCESS {
			return false
		}
	}
	return true
}

// AppendAck appends a varint-delimited PipelineAckProto to dst. It allocates
// only to grow dst.
func AppendAck(dst []byte, a *Ack) []byte {
	n := 1 + protowire.SizeVarint(protowire.EncodeZigZag(a.Seqno)) + 1 + protowire.SizeVarint(a.DownstreamNanos)
	for _, s := range a.Replies {
		n += 1 + protowire.SizeVarint(uint64(s))
	}
	dst = binary.AppendUvarint(dst, uint64(n))
	dst = append(dst, 1<<3|byte(protowire.VarintType))
	dst = protowire.AppendVarint(dst, protowire.EncodeZigZag(a.Seqno))
	for _, s := range a.Replies {
		dst = append(dst, 2<<3|byte(protowire.VarintType))
		dst = protowire.AppendVarint(dst, uint64(s))
	}
	dst = append(dst, 3<<3|byte(protowire.VarintType))
	return protowire.AppendVarint(dst, a.DownstreamNanos)
}

// maxReplies bounds the DataNodes of a pipeline in an acknowledgement.
const maxReplies = 64

// ParseAck reads a PipelineAckProto, without its length, into a, reusing
// a.Replies. Flags and unknown fields are ignored.
func ParseAck(b []byte, a *Ack) error {
	*a = Ack{Replies: a.Replies[:0]}
	seen := false
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: acknowledgement: %w", ErrMalformed, protowire.ParseError(n))
		}
		b = b[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return fmt.Errorf("%w: acknowledgement's sequence number: %w", ErrMalformed, protowire.ParseError(n))
			}
			a.Seqno, seen, b = protowire.DecodeZigZag(v), true, b[n:]
		case num == 2 && typ == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return fmt.Errorf("%w: acknowledgement's reply: %w", ErrMalformed, protowire.ParseError(n))
			}
			b = b[n:]
			if err := a.addReply(v); err != nil {
				return err
			}
		case num == 2 && typ == protowire.BytesType:
			packed, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return fmt.Errorf("%w: acknowledgement's replies: %w", ErrMalformed, protowire.ParseError(n))
			}
			b = b[n:]
			for len(packed) > 0 {
				v, n := protowire.ConsumeVarint(packed)
				if n < 0 {
					return fmt.Errorf("%w: acknowledgement's replies: %w", ErrMalformed, protowire.ParseError(n))
				}
				packed = packed[n:]
				if err := a.addReply(v); err != nil {
					return err
				}
			}
		case num == 3 && typ == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return fmt.Errorf("%w: acknowledgement's time: %w", ErrMalformed, protowire.ParseError(n))
			}
			a.DownstreamNanos, b = v, b[n:]
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return fmt.Errorf("%w: acknowledgement's field %d: %w", ErrMalformed, num, protowire.ParseError(n))
			}
			b = b[n:]
		}
	}
	if !seen {
		return fmt.Errorf("%w: acknowledgement without a sequence number", ErrMalformed)
	}
	return nil
}

func (a *Ack) addReply(v uint64) error {
	if len(a.Replies) == maxReplies {
		return fmt.Errorf("%w: acknowledgement of more than %d DataNodes", ErrMalformed, maxReplies)
	}
	s := hdfspb.Status_ERROR
	if _, ok := hdfspb.Status_name[int32(min(v, 1<<31-1))]; ok {
		s = hdfspb.Status(v)
	}
	a.Replies = append(a.Replies, s)
	return nil
}
