package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// ackWatch looks at the data transfer of a client whose Flush does not wait
// for acknowledgements, and waits for them: what counts as flushed is what
// every DataNode has acknowledged, as for Hadoop's own client.
type ackWatch struct {
	mu      sync.Mutex
	changed sync.Cond
	current *watchedConn // of the block being written
}

func (a *ackWatch) dial(next dial) dial {
	a.changed.L = &a.mu
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := next(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &watchedConn{Conn: nc, watch: a}
		a.mu.Lock()
		a.current = c
		a.mu.Unlock()
		return c, nil
	}
}

// wait returns when all packets that were sent for the current block have been
// acknowledged.
func (a *ackWatch) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.changed.Broadcast()
	})
	defer stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.current
	for c != nil && c.failed == nil && c.acks < c.packets && ctx.Err() == nil {
		a.changed.Wait()
	}
	if c == nil {
		return nil // nothing has been written
	}
	if c.failed != nil {
		return c.failed
	}
	return ctx.Err()
}

// watchedConn is a connection to a DataNode that writes a block. The client
// writes the request and then each packet with one Write; the answers are
// varint-delimited messages, the first to the request.
type watchedConn struct {
	net.Conn
	watch *ackWatch

	// Guarded by watch.mu.
	writes, packets, acks int
	failed                error

	in      bytes.Buffer // what has been read and not been taken apart
	answers int
}

func (c *watchedConn) Write(p []byte) (int, error) {
	c.watch.mu.Lock()
	c.writes++
	if c.writes > 1 {
		c.packets++
	}
	c.watch.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	c.in.Write(p[:n])
	c.takeApart()
	if err != nil && c.failed == nil {
		c.failed = err
	}
	c.watch.changed.Broadcast()
	return n, err
}

// takeApart counts acknowledgements (PipelineAckProto: 1 is the number, 2 the
// DataNodes' replies, of which 0 is success).
func (c *watchedConn) takeApart() {
	for {
		length, head := protowire.ConsumeVarint(c.in.Bytes())
		if head < 0 || uint64(c.in.Len()-head) < length {
			return
		}
		c.in.Next(head)
		message := c.in.Next(int(length))
		if c.answers++; c.answers == 1 {
			continue
		}
		if err := checkAck(message); err != nil && c.failed == nil {
			c.failed = err
		}
		c.acks++
	}
}

func checkAck(b []byte) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if number == 2 {
			values := b
			switch kind {
			case protowire.VarintType:
			case protowire.BytesType: // packed
				packed, n := protowire.ConsumeBytes(b)
				if n < 0 {
					return protowire.ParseError(n)
				}
				values = packed
			default:
				return errors.New("an acknowledgement of an unknown form")
			}
			for len(values) > 0 {
				status, n := protowire.ConsumeVarint(values)
				if n < 0 {
					return protowire.ParseError(n)
				}
				if status != 0 {
					return fmt.Errorf("a DataNode answered status %d", status)
				}
				if values = values[n:]; kind == protowire.VarintType {
					break
				}
			}
		}
		n = protowire.ConsumeFieldValue(number, kind, b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil
}
