// Package clustertest has connections in memory for tests of the cluster
// protocol. It carries whole messages, as an endpoint does.
package clustertest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
)

// Conn is one end of a pair. It is a connection of the cluster protocol.
type Conn struct {
	in, out chan []byte
	closed  *closed
}

// closed is what both ends share: either one closes the pair.
type closed struct {
	once sync.Once
	done chan struct{}
}

// Pair returns two connected ends. As many messages as waiting says may be under
// way to each before Send waits.
func Pair(waiting int) (a, b *Conn) {
	there, back := make(chan []byte, waiting), make(chan []byte, waiting)
	c := &closed{done: make(chan struct{})}
	return &Conn{back, there, c}, &Conn{there, back, c}
}

// Send sends a copy of msg.
func (c *Conn) Send(ctx context.Context, msg []byte) error {
	select {
	case c.out <- bytes.Clone(msg):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed.done:
		return net.ErrClosed
	}
}

// Receive appends the next message to buf[:0]. What was sent before the pair was
// closed still arrives.
func (c *Conn) Receive(ctx context.Context, buf []byte) ([]byte, error) {
	select {
	case msg := <-c.in:
		return append(buf[:0], msg...), nil
	default:
	}
	select {
	case msg := <-c.in:
		return append(buf[:0], msg...), nil
	case <-ctx.Done():
		return buf, ctx.Err()
	case <-c.closed.done:
		return buf, io.EOF
	}
}

// Close closes both ends.
func (c *Conn) Close() error {
	c.closed.once.Do(func() { close(c.closed.done) })
	return nil
}
