package wire

import "google.golang.org/protobuf/encoding/protowire"

// Request is Hadoop's RpcRequestHeaderProto without tracing.
type Request struct {
	Kind, Op int32 // -1 if the client said none
	CallID   int32
	ClientID []byte
	// RetryCount is -1 if the client does not count.
	RetryCount int32
}

// ParseRequest splits a request header off b.
func ParseRequest(b []byte) (h Request, rest []byte, err error) {
	b, rest, err = Next(b)
	if err != nil {
		return h, nil, err
	}
	h = Request{Kind: -1, Op: -1, RetryCount: -1}
	var hasCall, hasClient bool
	f := fields{b: b}
	for f.next() {
		switch f.tag {
		case 1<<3 | varint:
			h.Kind = int32(f.value)
		case 2<<3 | varint:
			h.Op = int32(f.value)
		case 3<<3 | varint:
			h.CallID, hasCall = sint32(f.value), true
		case 4<<3 | bytes:
			h.ClientID, hasClient = f.bytes, true
		case 5<<3 | varint:
			h.RetryCount = sint32(f.value)
		}
	}
	if !hasCall || !hasClient {
		f.missing()
	}
	return h, rest, f.err
}

func (h *Request) size() int {
	return 4 + 1 + protowire.SizeVarint(fromSint32(h.CallID)) +
		1 + protowire.SizeBytes(len(h.ClientID)) +
		1 + protowire.SizeVarint(fromSint32(h.RetryCount))
}

// Size is the size of the header behind its length.
func (h *Request) Size() int { return SizeDelimited(h.size()) }

// Append appends the header behind its length, always with KindProtobuf and
// OpFinal.
func (h *Request) Append(b []byte) []byte {
	b = AppendLength(b, h.size())
	b = append(b, 0x08, KindProtobuf, 0x10, OpFinal, 0x18)
	b = protowire.AppendVarint(b, fromSint32(h.CallID))
	b = append(b, 0x22)
	b = protowire.AppendBytes(b, h.ClientID)
	b = append(b, 0x28)
	return protowire.AppendVarint(b, fromSint32(h.RetryCount))
}

// Invocation is Hadoop's RequestHeaderProto: which method of which protocol.
type Invocation struct {
	Method, Class []byte
	Version       uint64
}

// ParseInvocation splits an invocation off b.
func ParseInvocation(b []byte) (i Invocation, rest []byte, err error) {
	b, rest, err = Next(b)
	if err != nil {
		return i, nil, err
	}
	var has int
	f := fields{b: b}
	for f.next() {
		switch f.tag {
		case 1<<3 | bytes:
			i.Method = f.bytes
			has |= 1
		case 2<<3 | bytes:
			i.Class = f.bytes
			has |= 2
		case 3<<3 | varint:
			i.Version = f.value
			has |= 4
		}
	}
	if has != 7 {
		f.missing()
	}
	return i, rest, f.err
}
