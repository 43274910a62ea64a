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
	for len(b) > 0 {
		number, kind, after, err := field(b)
		if err != nil {
			return h, nil, err
		}
		b = after
		switch {
		case kind == protowire.VarintType && (number <= 3 || number == 6 || number == 8):
			var v uint64
			if v, b, err = varint(b); err != nil {
				return h, nil, err
			}
			switch number {
			case 1:
				h.CallID, hasCall = int32(uint32(v)), true
			case 2:
				h.Status, hasStatus = Status(int32(v)), true
			case 6:
				h.Detail = int32(v)
			case 8:
				h.RetryCount = sint32(v)
			}
		case kind == protowire.BytesType && (number == 4 || number == 5 || number == 7):
			var v []byte
			if v, b, err = bytes(b); err != nil {
				return h, nil, err
			}
			switch number {
			case 4:
				h.Exception = string(v)
			case 5:
				h.Message = string(v)
			case 7:
				h.ClientID = v
			}
		default:
			if b, err = skip(number, kind, b); err != nil {
				return h, nil, err
			}
		}
	}
	if !hasCall || !hasStatus {
		return h, nil, errIncomplete
	}
	return h, rest, nil
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
	b = protowire.AppendVarint(b, uint64(uint32(h.CallID)))
	b = append(b, 0x10, byte(h.Status), 0x18, Version)
	if h.Status != StatusSuccess {
		b = append(b, 0x22)
		b = protowire.AppendString(b, h.Exception)
		b = append(b, 0x2a)
		b = protowire.AppendString(b, h.Message)
		b = append(b, 0x30)
		b = protowire.AppendVarint(b, uint64(h.Detail))
	}
	b = append(b, 0x3a)
	b = protowire.AppendBytes(b, h.ClientID)
	b = append(b, 0x40)
	return protowire.AppendVarint(b, fromSint32(h.RetryCount))
}
