package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/protobuf/encoding/protowire"
)

// connection makes calls of Hadoop RPC one after the other, from frames that were made before.
// The generator runs on the processors of what it measures: whatever it does for a call makes
// both systems look more alike, so it does no more than to write, read, and look at the status.
type connection struct {
	nc   net.Conn
	in   *bufio.Reader
	id   [16]byte
	call int32
}

const (
	callContext  = -3 // the number of the message that says who calls
	kindProtobuf = 2
	opFinal      = 0
)

func dial(ctx context.Context, address, user string) (*connection, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &connection{nc: nc, in: bufio.NewReader(nc)}
	_, _ = rand.Read(c.id[:])                                                // never fails
	who := request(nil).sub(2, request(nil).text(1, user)).text(3, protocol) // IpcConnectionContextProto
	hello := append([]byte{'h', 'r', 'p', 'c', 9, 0, 0}, c.frame(callContext, -1, who)...)
	if _, err := nc.Write(hello); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return c, nil
}

// frame is a message of parts that each have their length before them, with
// RpcRequestHeaderProto as the first.
func (c *connection) frame(call int32, retry int64, parts ...request) []byte {
	header := request(nil).number(1, kindProtobuf).number(2, opFinal).number(3, protowire.EncodeZigZag(int64(call)))
	header = header.text(4, string(c.id[:])).number(5, protowire.EncodeZigZag(retry))
	b := make([]byte, 4, 256)
	for _, p := range append([]request{header}, parts...) {
		b = protowire.AppendBytes(b, p)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// prepare makes the frame of a call. Calls are made in the order in which they are prepared.
func (c *connection) prepare(method string, req request) []byte {
	c.call++
	return c.frame(c.call, 0, request(nil).text(1, method).text(2, protocol).number(3, 1), req)
}

// do makes a call, and waits for its answer.
func (c *connection) do(frame []byte) error {
	if _, err := c.nc.Write(frame); err != nil {
		return err
	}
	length, err := c.in.Peek(4)
	if err != nil {
		return err
	}
	n := 4 + int(binary.BigEndian.Uint32(length))
	if n > c.in.Size() {
		return fmt.Errorf("an answer of %d bytes", n)
	}
	b, err := c.in.Peek(n)
	if err != nil {
		return err
	}
	refused := refusal(b[4:])
	_, err = c.in.Discard(n)
	return errors.Join(refused, err)
}

// refusal is the error that an answer says, by its RpcResponseHeaderProto.
func refusal(answer []byte) error {
	header, n := protowire.ConsumeBytes(answer)
	if n < 0 {
		return io.ErrUnexpectedEOF
	}
	var status uint64
	var why [2]string // exception and message
	for len(header) > 0 {
		number, kind, n := protowire.ConsumeTag(header)
		if n < 0 {
			return protowire.ParseError(n)
		}
		header = header[n:]
		switch {
		case number == 2 && kind == protowire.VarintType:
			status, n = protowire.ConsumeVarint(header)
		case (number == 4 || number == 5) && kind == protowire.BytesType:
			why[number-4], n = protowire.ConsumeString(header)
		default:
			n = protowire.ConsumeFieldValue(number, kind, header)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		header = header[n:]
	}
	if status != 0 {
		return fmt.Errorf("%s: %s", why[0], why[1])
	}
	return nil
}
