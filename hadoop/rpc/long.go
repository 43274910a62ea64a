package rpc

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// mostRest is the most in bytes that there may be in a message beside its long field for
// that not to be encoded.
const mostRest = 2 << 10

// long is a message most of which is one field of bytes. The field is not encoded: the
// message goes out as the rest, and then value.
type long struct {
	message proto.Message
	field   protoreflect.FieldDescriptor
	value   []byte
	alone   bool // there is nothing else in the message
}

// findLong finds the field of bytes that makes up a message of n bytes, if one does.
func findLong(m proto.Message, n int) (l long, ok bool) {
	if n < longField {
		return l, false
	}
	r := m.ProtoReflect()
	l.alone = len(r.GetUnknown()) == 0
	r.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() == protoreflect.BytesKind && !f.IsList() && !f.IsExtension() && f.ContainingOneof() == nil && n-len(v.Bytes()) <= mostRest {
			l.field, l.value = f, v.Bytes()
		} else {
			l.alone = false
		}
		return true
	})
	if l.message = m; l.field == nil || len(l.value) < longField {
		return long{}, false
	}
	return l, true
}

// appendRest appends all of the message but the bytes of its long field, which follow.
func (l *long) appendRest(b []byte) ([]byte, error) {
	if err := proto.CheckInitialized(l.message); err != nil {
		return b, err
	}
	if !l.alone {
		var err error
		if b, err = (proto.MarshalOptions{AllowPartial: true}).MarshalAppend(b, l.rest()); err != nil {
			return b, err
		}
	}
	b = protowire.AppendTag(b, l.field.Number(), protowire.BytesType)
	return protowire.AppendVarint(b, uint64(len(l.value))), nil
}

// rest is the message without the field. What it has refers to the message's memory.
func (l *long) rest() proto.Message {
	from := l.message.ProtoReflect()
	to := from.New()
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f != l.field {
			to.Set(f, v)
		}
		return true
	})
	to.SetUnknown(from.GetUnknown())
	return to.Interface()
}
