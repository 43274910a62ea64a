package wire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// The kinds of the fields that headers have, as they stand in a tag behind the
// number of the field: 1<<3 | varint.
const (
	varint = uint64(protowire.VarintType)
	bytes  = uint64(protowire.BytesType)
)

var errNumber = errors.New("a field's number is out of bounds")

// fields goes through the fields of a message. A field of a number or kind that
// a header does not have is stepped over by who does not look at it.
type fields struct {
	b     []byte // what is left
	tag   uint64
	value uint64 // of a varint
	bytes []byte // of a string, bytes or message
	err   error
}

// next takes the next field, and reports whether there was one.
func (f *fields) next() bool {
	if len(f.b) == 0 {
		return false
	}
	var n int
	if f.tag, n = number(f.b); n < 0 {
		return f.fail(protowire.ParseError(n))
	}
	f.b = f.b[n:]
	field := f.tag >> 3
	if field < uint64(protowire.MinValidNumber) || field > uint64(protowire.MaxValidNumber) {
		return f.fail(errNumber)
	}
	switch f.tag & 7 {
	case varint:
		f.value, n = number(f.b)
	case bytes:
		f.bytes, n = protowire.ConsumeBytes(f.b)
	default:
		n = protowire.ConsumeFieldValue(protowire.Number(field), protowire.Type(f.tag&7), f.b)
	}
	if n < 0 {
		return f.fail(protowire.ParseError(n))
	}
	f.b = f.b[n:]
	return true
}

func (f *fields) fail(err error) bool {
	f.err = err
	return false
}

// missing says that a required field has not come.
func (f *fields) missing() {
	if f.err == nil {
		f.err = errIncomplete
	}
}

// number takes a varint off b, and returns its length or an error as protowire
// does.
func number(b []byte) (v uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 { // the usual one
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}
