package rpc

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// longField is from how many bytes on a field of bytes is not copied by the protobuf
// package, which allocates memory for it: that, and collecting it, costs more than all
// else of a call.
const longField = 32 << 10

// lentField is from how many bytes on a field of bytes refers to the memory that it came in,
// where that stays for as long as the message is used.
const lentField = 512

// unmarshalLent decodes b into m. A field of least bytes or more that makes up half of b
// refers to it then, which unmarshalLent reports.
func unmarshalLent(b []byte, m proto.Message, least int) (refers bool, err error) {
	field, value, rest := splitLong(b, m, least)
	if field == nil {
		return false, proto.Unmarshal(b, m)
	}
	if err := unmarshalAround(rest, m, field, value[:len(value):len(value)]); err != nil {
		proto.Reset(m) // the memory goes
		return false, err
	}
	return true, nil
}

// An Unmarshaler is a response that decodes itself, for instance into memory that it has
// for all of its fields. The bytes are lent to UnmarshalRPC, which gets them once.
type Unmarshaler interface{ UnmarshalRPC([]byte) error }

// A Marshaler is an answer that encodes itself, as protobuf would: AppendRPC appends as many bytes as SizeRPC said.
type Marshaler interface {
	SizeRPC() int
	AppendRPC(b []byte) ([]byte, error)
}

// A Kept is a response that takes an answer over without copying it. Where the answer has
// a field of bytes that has 512 bytes or more and makes up half of it, the field of Message
// refers to the memory that the answer came in. Over endpoints that is registered memory of
// the runtime, and the endpoint receives less while it is kept. It belongs to the Kept until
// Release, or until the Kept is the response of another call; both clear Message. It is of
// one call at a time.
type Kept struct {
	proto.Message
	memory carrier.Owner // of what Message refers to, or nil
}

// Release gives the memory back, if there is some. What referred to it must not be used
// any more.
func (k *Kept) Release() {
	if owner := k.memory; owner != nil {
		k.memory = nil
		proto.Reset(k.Message)
		owner.Release()
	}
}

// unmarshalAnswer decodes body, a part of m, into resp, and releases m unless resp keeps
// it.
func unmarshalAnswer(m *carrier.Message, body []byte, resp proto.Message) error {
	defer func() { m.Release() }()
	k, ok := resp.(*Kept)
	if !ok {
		return unmarshalOver(body, resp)
	}
	k.Release()
	if m.Owner == nil { // the memory is only lent
		return proto.Unmarshal(body, k.Message)
	}
	refers, err := unmarshalLent(body, k.Message, lentField)
	if refers {
		k.memory = m.Owner
		*m = carrier.Message{}
	}
	return err
}

// unmarshalOver decodes b into m, and puts a long field of bytes where m has memory for
// it already.
func unmarshalOver(b []byte, m proto.Message) error {
	if u, ok := m.(Unmarshaler); ok {
		return u.UnmarshalRPC(b)
	}
	field, value, rest := splitLong(b, m, longField)
	if field == nil {
		return proto.Unmarshal(b, m)
	}
	memory := m.ProtoReflect().Get(field).Bytes()
	return unmarshalAround(rest, m, field, append(memory[:0], value...))
}

// unmarshalAround decodes what is there beside one field.
func unmarshalAround(rest []byte, m proto.Message, field protoreflect.FieldDescriptor, value []byte) error {
	if len(rest) == 0 {
		proto.Reset(m)
	} else if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(rest, m); err != nil {
		return err
	}
	m.ProtoReflect().Set(field, protoreflect.ValueOfBytes(value))
	return proto.CheckInitialized(m)
}

// splitLong finds a field of m's own that is of bytes, has least of them or more and makes
// up half of m, and returns what is there beside it. It finds none in what is no message, or
// no simple case.
func splitLong(b []byte, m proto.Message, least int) (field protoreflect.FieldDescriptor, value, rest []byte) {
	if len(b) < least {
		return nil, nil, nil
	}
	var begin, end int
	for at := 0; at < len(b); {
		number, kind, n := protowire.ConsumeTag(b[at:])
		if n < 0 {
			return nil, nil, nil
		}
		size := protowire.ConsumeFieldValue(number, kind, b[at+n:])
		if size < 0 {
			return nil, nil, nil
		}
		if field != nil && number == field.Number() {
			return nil, nil, nil // twice: the last one counts
		}
		if field == nil && kind == protowire.BytesType && size >= least {
			v, _ := protowire.ConsumeBytes(b[at+n:])
			f := m.ProtoReflect().Descriptor().Fields().ByNumber(number)
			if len(v) >= max(least, len(b)/2) && f != nil && f.Kind() == protoreflect.BytesKind && !f.IsList() && f.ContainingOneof() == nil {
				field, value, begin, end = f, v, at, at+n+size
			}
		}
		at += n + size
	}
	if field == nil {
		return nil, nil, nil
	}
	if end == len(b) {
		return field, value, b[:begin]
	}
	return field, value, append(append([]byte(nil), b[:begin]...), b[end:]...)
}
