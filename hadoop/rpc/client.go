package rpc

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

// ClientConfig configures a client.
type ClientConfig struct {
	User     string
	Protocol string // Java class name
	Version  uint64 // of the protocol; 0 means 1
	MaxFrame int    // longest response in bytes; default 64 MiB
}

// Client makes calls on one connection, any number at once. It is for tests
// and tools: it neither reconnects nor retries.
type Client struct {
	nc  net.Conn
	cfg ClientConfig
	id  ClientID

	writing chan struct{} // holds a token while a request goes out

	mu      sync.Mutex
	next    int32
	waiting map[int32]chan reply
	failed  error
	done    chan struct{} // the reader has ended
}

type reply struct {
	body []byte
	err  error
}

// NewClient starts a session on nc, which then belongs to the client.
func NewClient(nc net.Conn, cfg ClientConfig) (*Client, error) {
	if cfg.Version == 0 {
		cfg.Version = 1
	}
	if cfg.MaxFrame <= 0 {
		cfg.MaxFrame = 64 << 20
	}
	c := &Client{nc: nc, cfg: cfg, writing: make(chan struct{}, 1), waiting: map[int32]chan reply{}, done: make(chan struct{})}
	_, _ = rand.Read(c.id[:]) // never fails
	hello := append(magic[:], version, 0, authNone)
	hello, err := appendFrame(hello, c.header(callIDContext), &rpcpb.IpcConnectionContextProto{
		UserInfo: &rpcpb.UserInformationProto{EffectiveUser: proto.String(cfg.User)},
		Protocol: proto.String(cfg.Protocol),
	})
	if err == nil {
		_, err = nc.Write(hello)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("rpc: connect to %s: %w", nc.RemoteAddr(), err)
	}
	go c.read()
	return c, nil
}

func (c *Client) header(id int32) *rpcpb.RpcRequestHeaderProto {
	return &rpcpb.RpcRequestHeaderProto{
		RpcKind:    rpcpb.RpcKindProto_RPC_PROTOCOL_BUFFER.Enum(),
		RpcOp:      rpcpb.RpcRequestHeaderProto_RPC_FINAL_PACKET.Enum(),
		CallId:     proto.Int32(id),
		ClientId:   c.id[:],
		RetryCount: proto.Int32(0),
	}
}

// Call calls a method and decodes its answer into resp. The server's refusal
// is an [*exception.Error].
func (c *Client) Call(ctx context.Context, method string, req, resp proto.Message) error {
	answer := make(chan reply, 1)
	c.mu.Lock()
	if c.failed != nil {
		defer c.mu.Unlock()
		return fmt.Errorf("rpc: %s at %s: %w", method, c.nc.RemoteAddr(), c.failed)
	}
	id := c.next
	c.next = (c.next + 1) & 0x7fffffff
	c.waiting[id] = answer
	c.mu.Unlock()

	b, err := appendFrame(nil, c.header(id), &rpcpb.RequestHeaderProto{
		MethodName:                 proto.String(method),
		DeclaringClassProtocolName: proto.String(c.cfg.Protocol),
		ClientProtocolVersion:      proto.Uint64(c.cfg.Version),
	}, req)
	if err == nil {
		err = c.write(ctx, b)
	}
	if err != nil {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return fmt.Errorf("rpc: %s at %s: %w", method, c.nc.RemoteAddr(), err)
	}
	select {
	case r := <-answer:
		if r.err == nil {
			r.err = proto.Unmarshal(r.body, resp)
		}
		if r.err != nil {
			return fmt.Errorf("rpc: %s at %s: %w", method, c.nc.RemoteAddr(), r.err)
		}
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return fmt.Errorf("rpc: %s at %s: %w", method, c.nc.RemoteAddr(), ctx.Err())
	}
}

// write sends a request. If ctx ends while it goes out, the connection does,
// too, for half a frame may be out.
func (c *Client) write(ctx context.Context, b []byte) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return c.reason()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// A context that ends when the whole request is out must not end the connection.
	interrupted := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { interrupted <- c.nc.SetWriteDeadline(time.Unix(1, 0)) })
	_, err := c.nc.Write(b)
	if !stop() {
		if derr := <-interrupted; err == nil && derr == nil {
			err = c.nc.SetWriteDeadline(time.Time{})
		}
	}
	if err == nil {
		return nil
	}
	c.nc.Close()
	<-c.done
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(c.reason(), err)
}

// reason tells why the connection has ended.
func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *Client) read() {
	defer close(c.done)
	r := bufio.NewReader(c.nc)
	var buf []byte
	for {
		var err error
		if buf, err = readFrame(r, buf, c.cfg.MaxFrame); err == nil {
			err = c.deliver(buf)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// deliver hands a response to its call. The error ends the connection.
func (c *Client) deliver(b []byte) error {
	header := &rpcpb.RpcResponseHeaderProto{}
	rest, err := decodeNext(b, header)
	if err != nil {
		return fmt.Errorf("response header: %w", err)
	}
	var r reply
	if header.GetStatus() == statusSuccess {
		body, _, err := nextMessage(rest)
		if err != nil {
			return fmt.Errorf("response: %w", err)
		}
		r.body = append([]byte(nil), body...)
	} else {
		r.err = &exception.Error{Class: exception.Class(header.GetExceptionClassName()), Message: header.GetErrorMsg()}
		if header.GetStatus() == statusFatal {
			return r.err
		}
	}
	id := int32(header.GetCallId())
	c.mu.Lock()
	answer := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if answer != nil { // else its caller has given up
		answer <- r
	}
	return nil
}

// fail ends all calls.
func (c *Client) fail(err error) {
	c.nc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	for id, answer := range c.waiting {
		delete(c.waiting, id)
		answer <- reply{err: c.failed}
	}
}

// Close ends the calls under way with [ErrClosed].
func (c *Client) Close() error {
	c.mu.Lock()
	if c.failed == nil {
		c.failed = ErrClosed
	}
	c.mu.Unlock()
	err := c.nc.Close()
	<-c.done
	return err
}
