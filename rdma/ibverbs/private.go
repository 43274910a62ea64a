package ibverbs

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// The connection manager pads private data with zeros on InfiniBand and RoCE, so
// what this package sends there has a header of its own: two bytes that mark it
// and the length, big-endian. Nothing at all is sent where there is no data, so
// that programs which know nothing of this get what they expect. On iWARP data
// keeps its length and goes as it is, as other implementations' does.
const (
	privateHeader = 4
	privateMark   = 0x5642
	// What rdma_cm has room for on InfiniBand and RoCE; iWARP has more.
	connectRoom = 56
	// maxPrivate is the least of what fits with a request, an answer and a refusal.
	maxPrivate = connectRoom - privateHeader
)

// packPrivate makes what a device's connection manager is given of data.
func packPrivate(class rdma.Class, data []byte) ([]byte, error) {
	if class != rdma.ClassIWARP {
		return appendPrivate(nil, data)
	}
	if len(data) > maxPrivate {
		return nil, fmt.Errorf("%w: %d bytes of private data, at most %d", rdma.ErrInvalid, len(data), maxPrivate)
	}
	return data, nil
}

// unpackPrivate takes the data out of what a connection manager got. framed says
// that it had a header.
func unpackPrivate(class rdma.Class, came []byte) (data []byte, framed bool) {
	if class != rdma.ClassIWARP {
		return parsePrivate(came)
	}
	return came, false
}

// appendPrivate appends data with its header to b.
func appendPrivate(b, data []byte) ([]byte, error) {
	if len(data) > maxPrivate {
		return b, fmt.Errorf("%w: %d bytes of private data, at most %d", rdma.ErrInvalid, len(data), maxPrivate)
	}
	b = binary.BigEndian.AppendUint16(b, privateMark)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...), nil
}

// parsePrivate takes the data out of what came. framed says that it had a
// header; what has none is a foreign program's, padding and all, or nothing if
// it is all zeros.
func parsePrivate(came []byte) (data []byte, framed bool) {
	if len(came) >= privateHeader && binary.BigEndian.Uint16(came) == privateMark {
		if n := int(binary.BigEndian.Uint16(came[2:])); n <= len(came)-privateHeader {
			return came[privateHeader : privateHeader+n : privateHeader+n], true
		}
	}
	for _, b := range came {
		if b != 0 {
			return came, false
		}
	}
	return nil, false
}
