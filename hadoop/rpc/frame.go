package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	version       = 9
	preambleSize  = 7
	authNone      = 0x00
	authSASL      = 0xDF
	callIDSASL    = -33
	callIDPing    = -4
	callIDContext = -3
	callIDInvalid = -2
)

var magic = [4]byte{'h', 'r', 'p', 'c'}

// frameStep is how much memory a frame gets before its bytes have come: a
// length is only a claim.
const frameStep = 64 << 10

// maxResponse is what a Java client takes by default
// (ipc.maximum.response.length); at a longer one it drops the connection.
const maxResponse = 128 << 20

var errFrameLength = errors.New("frame length out of bounds")

// readFrame reads a frame of at most limit bytes into buf, growing it as bytes
// arrive. At the end of the stream before a frame it returns io.EOF.
func readFrame(r io.Reader, buf []byte, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return buf, err
	}
	claimed := binary.BigEndian.Uint32(head[:])
	if claimed > uint32(limit) {
		return buf, fmt.Errorf("%w: %d bytes, at most %d", errFrameLength, claimed, limit)
	}
	n := int(claimed)
	buf = buf[:0]
	for len(buf) < n {
		step := min(n-len(buf), max(frameStep, len(buf)))
		if cap(buf)-len(buf) < step {
			bigger := make([]byte, len(buf), len(buf)+step)
			copy(bigger, buf)
			buf = bigger
		}
		got, err := io.ReadFull(r, buf[len(buf):len(buf)+step])
		buf = buf[:len(buf)+got]
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return buf, err
		}
	}
	return buf, nil
}

// nextMessage splits a varint-delimited message off b.
func nextMessage(b []byte) (body, rest []byte, err error) {
	n, size := protowire.ConsumeVarint(b)
	if size < 0 {
		return nil, nil, errors.New("no message where one must be")
	}
	if n > uint64(len(b)-size) {
		return nil, nil, fmt.Errorf("a message of %d bytes in a frame that has %d more", n, len(b)-size)
	}
	return b[size : size+int(n)], b[size+int(n):], nil
}

// decodeNext decodes a varint-delimited message off b.
func decodeNext(b []byte, m proto.Message) (rest []byte, err error) {
	body, rest, err := nextMessage(b)
	if err != nil {
		return nil, err
	}
	return rest, proto.Unmarshal(body, m)
}

// appendFrame appends a frame of messages to b.
func appendFrame(b []byte, messages ...proto.Message) ([]byte, error) {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	for _, m := range messages {
		var err error
		b = protowire.AppendVarint(b, uint64(proto.Size(m)))
		if b, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(b, m); err != nil {
			return b[:start], err
		}
	}
	length := len(b) - start - 4
	if length > maxResponse {
		return b[:start], fmt.Errorf("a frame of %d bytes is more than the %d that clients take: ask for less at once", length, maxResponse)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(length))
	return b, nil
}
