// Package wire is the codec of Hadoop RPC's headers, written out by hand so
// that a call allocates nothing for them: request header, invocation (Hadoop's
// RequestHeaderProto) and response header, each behind its length as a varint.
//
// It is pure: bytes in, values out. What it parses refers to the bytes that it
// was given. The messages that are rare (connection context, SASL) are
// generated code in rpcpb.
package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Version is the version of Hadoop RPC that is spoken.
const Version = 9

// Numbers of calls that are none.
const (
	CallIDSASL    = -33
	CallIDPing    = -4
	CallIDContext = -3
	CallIDInvalid = -2 // answers what had no number
	CallIDNone    = -1 // answers what came before the first frame
)

// KindProtobuf is the only kind of RPC that is spoken, OpFinal the only
// operation.
const (
	KindProtobuf = 2
	OpFinal      = 0
)

// Status tells how a response is meant.
type Status int32

// The statuses. After StatusFatal the connection ends.
const (
	StatusSuccess Status = 0
	StatusError   Status = 1
	StatusFatal   Status = 2
)

var (
	errNoMessage  = errors.New("no message where one must be")
	errIncomplete = errors.New("a required field is missing")
)

// Next splits a message off b that follows its length as a varint.
func Next(b []byte) (body, rest []byte, err error) {
	if len(b) > 0 && b[0] < 0x80 { // the usual header is shorter than 128 bytes
		if n := int(b[0]); n < len(b) {
			return b[1 : 1+n], b[1+n:], nil
		}
	}
	n, size := protowire.ConsumeVarint(b)
	if size < 0 {
		return nil, nil, errNoMessage
	}
	if n > uint64(len(b)-size) {
		return nil, nil, fmt.Errorf("a message of %d bytes in a frame that has %d more", n, len(b)-size)
	}
	return b[size : size+int(n)], b[size+int(n):], nil
}

// SizeDelimited is the size of a message of n bytes behind its length.
func SizeDelimited(n int) int { return protowire.SizeVarint(uint64(n)) + n }

// AppendLength appends the length that stands before a message of n bytes.
func AppendLength(b []byte, n int) []byte { return appendVarint(b, uint64(n)) }

func sint32(v uint64) int32     { return int32(protowire.DecodeZigZag(v & 0xffffffff)) }
func fromSint32(v int32) uint64 { return protowire.EncodeZigZag(int64(v)) }
