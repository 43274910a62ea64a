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
	// Nearly all have a tag of a byte, and a number or a length of one.
	if b := f.b; len(b) >= 2 && b[0] < 0x80 && b[0] >= 1<<3 && b[1] < 0x80 {
		n := int(b[1])
		switch uint64(b[0] & 7) {
		case varint:
			f.tag, f.value, f.b = uint64(b[0]), uint64(n), b[2:]
			return true
		case bytes:
			if n <= len(b)-2 {
				f.tag, f.bytes, f.b = uint64(b[0]), b[2:2+n], b[2+n:]
				return true
			}
		}
	}
	return f.any()
}

// any is next for all kinds of fields.
func (f *fields) any() bool {
	if len(f.b) == 0 {
		return false
	}
	var n int
	if f.tag, n = protowire.ConsumeVarint(f.b); n < 0 {
		return f.fail(protowire.ParseError(n))
	}
	f.b = f.b[n:]
	field := f.tag >> 3
	if field < uint64(protowire.MinValidNumber) || field > uint64(protowire.MaxValidNumber) {
		return f.fail(errNumber)
	}
	switch f.tag & 7 {
	case varint:
		f.value, n = protowire.ConsumeVarint(f.b)
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
