package wire

import "google.golang.org/protobuf/encoding/protowire"

// Response is Hadoop's RpcResponseHeaderProto.
type Response struct {
	// CallID is the request's; the header has it unsigned, so that negative ones wrap.
	CallID     int32
	Status     Status
	Exception  string // Java class name, "" in a success
	Message    string
	Detail     int32 // Hadoop's RpcErrorCodeProto, 0 for none
	ClientID   []byte
	RetryCount int32
}

// ParseResponse splits a response header off b. The strings are copies.
func ParseResponse(b []byte) (h Response, rest []byte, err error) {
	b, rest, err = Next(b)
	if err != nil {
		return h, nil, err
	}
	h.RetryCount = -1
	var hasCall, hasStatus bool
	f := fields{b: b}
	for f.next() {
		switch f.tag {
		case 1<<3 | varint:
			h.CallID, hasCall = int32(uint32(f.value)), true
		case 2<<3 | varint:
			h.Status, hasStatus = Status(int32(f.value)), true
		case 4<<3 | bytes:
			h.Exception = string(f.bytes)
		case 5<<3 | bytes:
			h.Message = string(f.bytes)
		case 6<<3 | varint:
			h.Detail = int32(f.value)
		case 7<<3 | bytes:
			h.ClientID = f.bytes
		case 8<<3 | varint:
			h.RetryCount = sint32(f.value)
		}
	}
	if !hasCall || !hasStatus {
		f.missing()
	}
	return h, rest, f.err
}

func (h *Response) size() int {
	n := 1 + protowire.SizeVarint(uint64(uint32(h.CallID))) + 4 +
		1 + protowire.SizeBytes(len(h.ClientID)) +
		1 + protowire.SizeVarint(fromSint32(h.RetryCount))
	if h.Status != StatusSuccess {
		n += 1 + protowire.SizeBytes(len(h.Exception)) + 1 + protowire.SizeBytes(len(h.Message)) +
			1 + protowire.SizeVarint(uint64(h.Detail))
	}
	return n
}

// Size is the size of the header behind its length.
func (h *Response) Size() int { return SizeDelimited(h.size()) }

// Append appends the header behind its length, always with Version.
func (h *Response) Append(b []byte) []byte {
	b = AppendLength(b, h.size())
	b = append(b, 0x08)
	b = appendVarint(b, uint64(uint32(h.CallID)))
	b = append(b, 0x10, byte(h.Status), 0x18, Version)
	if h.Status != StatusSuccess {
		b = append(b, 0x22)
		b = protowire.AppendString(b, h.Exception)
		b = append(b, 0x2a)
		b = protowire.AppendString(b, h.Message)
		b = append(b, 0x30)
		b = appendVarint(b, uint64(h.Detail))
	}
	b = append(b, 0x3a)
	b = append(appendVarint(b, uint64(len(h.ClientID))), h.ClientID...)
	b = append(b, 0x40)
	return appendVarint(b, fromSint32(h.RetryCount))
}
