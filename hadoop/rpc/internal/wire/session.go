package wire

import "google.golang.org/protobuf/encoding/protowire"

// A Session is what the calls of one client to one protocol have in common, encoded once.
// It does not change, and may be used concurrently.
type Session struct {
	client   []byte // its id, as it stands in a request's header
	protocol []byte // class and version, as they stand in an invocation
}

// NewSession returns the session of a client's calls to a protocol, which is a Java class.
func NewSession(clientID []byte, class string, version uint64) *Session {
	s := &Session{
		client:   protowire.AppendBytes([]byte{0x22}, clientID),
		protocol: protowire.AppendString([]byte{0x12}, class),
	}
	s.protocol = protowire.AppendVarint(append(s.protocol, 0x18), version)
	return s
}

// Size is the size of a call whose request has n bytes, all that Append appends and the
// request.
func (s *Session) Size(callID, retryCount int32, method string, n int) int {
	return SizeDelimited(s.header(callID, retryCount)) + SizeDelimited(s.invocation(method)) + SizeDelimited(n)
}

// Append appends what stands before the request, which has n bytes: Hadoop's
// RpcRequestHeaderProto with KindProtobuf and OpFinal, its RequestHeaderProto and the
// request's length.
func (s *Session) Append(b []byte, callID, retryCount int32, method string, n int) []byte {
	b = appendVarint(b, uint64(s.header(callID, retryCount)))
	b = append(b, 0x08, KindProtobuf, 0x10, OpFinal, 0x18)
	b = appendVarint(b, fromSint32(callID))
	b = append(append(b, s.client...), 0x28)
	b = appendVarint(b, fromSint32(retryCount))
	b = append(appendVarint(b, uint64(s.invocation(method))), 0x0a)
	b = append(appendVarint(b, uint64(len(method))), method...)
	b = append(b, s.protocol...)
	return appendVarint(b, uint64(n))
}

// header is the size of a request's header.
func (s *Session) header(callID, retryCount int32) int {
	return 4 + 1 + protowire.SizeVarint(fromSint32(callID)) + len(s.client) + 1 + protowire.SizeVarint(fromSint32(retryCount))
}

// invocation is the size of an invocation.
func (s *Session) invocation(method string) int {
	return 1 + protowire.SizeBytes(len(method)) + len(s.protocol)
}

// appendVarint appends a number; most in headers are below 128.
func appendVarint(b []byte, v uint64) []byte {
	if v < 0x80 {
		return append(b, byte(v))
	}
	return protowire.AppendVarint(b, v)
}
