package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// NewStreamConn carries messages on a byte stream, each behind its length as 32
// bits, big-endian. A context that ends in the middle of a message breaks the
// stream, and so the connection. It belongs to the Conn from then on.
func NewStreamConn(nc net.Conn) Conn {
	return &streamConn{nc: nc, r: bufio.NewReader(nc), sending: make(chan struct{}, 1)}
}

// keepBuffer is the largest buffer that stays with an idle connection.
const keepBuffer = 64 << 10

type streamConn struct {
	nc net.Conn
	r  *bufio.Reader

	sending chan struct{} // holds a token while a message goes out
	buf     []byte        // for whoever sends
}

func (c *streamConn) Send(ctx context.Context, msg []byte) error {
	if len(msg) > MaxMessage {
		return fmt.Errorf("a message of %d bytes, at most %d", len(msg), MaxMessage)
	}
	select {
	case c.sending <- struct{}{}:
		defer func() { <-c.sending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// A context that ends just as the message is out must not break what is whole.
	interrupted := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { interrupted <- c.nc.SetWriteDeadline(time.Unix(1, 0)) })
	c.buf = append(binary.BigEndian.AppendUint32(c.buf[:0], uint32(len(msg))), msg...)
	_, err := c.nc.Write(c.buf)
	if cap(c.buf) > keepBuffer {
		c.buf = nil
	}
	if !stop() {
		if derr := <-interrupted; err == nil && derr == nil {
			err = c.nc.SetWriteDeadline(time.Time{})
		}
	}
	if err != nil {
		c.nc.Close() // a part of the message may be out
	}
	return c.reason(ctx, err)
}

func (c *streamConn) Receive(ctx context.Context, buf []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return buf, err
	}
	stop := context.AfterFunc(ctx, func() { c.nc.Close() })
	defer stop()
	var head [4]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return buf, c.reason(ctx, err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxMessage {
		return buf, fmt.Errorf("%w: a message of %d bytes, at most %d", errProtocol, n, MaxMessage)
	}
	// The length is only a claim: memory follows the bytes.
	buf = buf[:0]
	for len(buf) < int(n) {
		step := min(int(n)-len(buf), max(64<<10, len(buf)))
		if cap(buf)-len(buf) < step {
			buf = append(make([]byte, 0, len(buf)+step), buf...)
		}
		got, err := io.ReadFull(c.r, buf[len(buf):len(buf)+step])
		buf = buf[:len(buf)+got]
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return buf, c.reason(ctx, err)
		}
	}
	return buf, nil
}

// reason prefers the context's error to that of the connection it closed.
func (c *streamConn) reason(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (c *streamConn) Close() error { return c.nc.Close() }
