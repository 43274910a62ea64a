package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// ErrClosed is what calls on a closed client return.
var ErrClosed = errors.New("cluster: closed")

// keepBuffer is the largest buffer that stays with an idle connection.
const keepBuffer = 64 << 10

// caller makes calls on a connection, any number at once.
type caller struct {
	conn   Conn
	cancel context.CancelFunc

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]*waiter
	failed  error
	done    chan struct{}
}

type waiter struct {
	method method
	resp   proto.Message // the reader decodes into it before it sends the result
	result chan error    // one result at most, buffered
}

func newCaller(conn Conn) *caller {
	ctx, cancel := context.WithCancel(context.Background())
	c := &caller{conn: conn, cancel: cancel, waiting: map[uint64]*waiter{}, done: make(chan struct{})}
	go c.read(ctx)
	return c
}

func (c *caller) call(ctx context.Context, m method, req, resp proto.Message) error {
	w := &waiter{m, resp, make(chan error, 1)}
	c.mu.Lock()
	if c.failed != nil {
		defer c.mu.Unlock()
		return fmt.Errorf("cluster: %v: %w", m, c.failed)
	}
	c.next++
	id := c.next
	c.waiting[id] = w
	c.mu.Unlock()
	b, err := proto.MarshalOptions{}.MarshalAppend(header{kindRequest, m, id}.append(nil), req)
	if err == nil && len(b) > MaxMessage {
		err = fmt.Errorf("a request of %d bytes, at most %d: send it in parts", len(b), MaxMessage)
	}
	if err == nil {
		err = c.conn.Send(ctx, b)
	}
	if err == nil {
		select {
		case err = <-w.result:
			return named(m, err)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	c.mu.Lock()
	_, pending := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if !pending {
		// The answer, or the end of the connection, came before the error. It
		// tells more, and the reader must be done with resp.
		return named(m, <-w.result)
	}
	return named(m, err)
}

// call is caller.call with a response of its own, nil after an error.
func call[Resp any, PResp interface {
	*Resp
	proto.Message
}](ctx context.Context, c *caller, m method, req proto.Message) (*Resp, error) {
	resp := new(Resp)
	if err := c.call(ctx, m, req, PResp(resp)); err != nil {
		return nil, err
	}
	return resp, nil
}

func named(m method, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cluster: %v: %w", m, err)
}

func (c *caller) read(ctx context.Context) {
	defer close(c.done)
	var buf []byte
	for {
		var err error
		if buf, err = c.conn.Receive(ctx, buf); err == nil {
			err = c.deliver(buf)
		}
		if err != nil {
			c.fail(err)
			return
		}
		if cap(buf) > keepBuffer {
			buf = nil
		}
	}
}

func (c *caller) deliver(b []byte) error {
	h, body, err := parseHeader(b)
	if err != nil {
		return err
	}
	if h.kind == kindRequest {
		return fmt.Errorf("%w: a request where answers are due", errProtocol)
	}
	c.mu.Lock()
	w := c.waiting[h.id]
	delete(c.waiting, h.id)
	c.mu.Unlock()
	if w == nil {
		return nil // its caller has given up
	}
	if h.method != w.method {
		err := fmt.Errorf("%w: an answer to %v for a request of %v", errProtocol, h.method, w.method)
		w.result <- err
		return err
	}
	if h.kind == kindError {
		e, err := parseError(body)
		if err != nil {
			w.result <- err
			return err
		}
		w.result <- e
		return nil
	}
	if err := proto.Unmarshal(body, w.resp); err != nil {
		err = fmt.Errorf("%w: answer: %w", errProtocol, err)
		w.result <- err
		return err
	}
	w.result <- nil
	return nil
}

func (c *caller) fail(err error) {
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	for id, w := range c.waiting {
		delete(c.waiting, id)
		w.result <- c.failed
	}
}

// Done is closed when the connection has failed or was closed.
func (c *caller) Done() <-chan struct{} { return c.done }

// Close ends the connection and the calls on it, with [ErrClosed].
func (c *caller) Close() error {
	c.mu.Lock()
	if c.failed == nil {
		c.failed = ErrClosed
	}
	c.mu.Unlock()
	c.cancel()
	err := c.conn.Close()
	<-c.done
	return err
}

// NameNodeClient calls a NameNode. It may be used concurrently.
type NameNodeClient struct{ *caller }

// NewNameNodeClient makes calls on conn, which then belongs to it.
func NewNameNodeClient(conn Conn) *NameNodeClient { return &NameNodeClient{newCaller(conn)} }

var _ NameNode = (*NameNodeClient)(nil)

// Register implements [NameNode].
func (c *NameNodeClient) Register(ctx context.Context, req *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error) {
	return call[clusterpb.RegisterResponse](ctx, c.caller, methodRegister, req)
}

// Heartbeat implements [NameNode].
func (c *NameNodeClient) Heartbeat(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	return call[clusterpb.HeartbeatResponse](ctx, c.caller, methodHeartbeat, req)
}

// BlockReport implements [NameNode].
func (c *NameNodeClient) BlockReport(ctx context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	return call[clusterpb.BlockReportResponse](ctx, c.caller, methodBlockReport, req)
}

// BlocksChanged implements [NameNode].
func (c *NameNodeClient) BlocksChanged(ctx context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	return call[clusterpb.BlocksChangedResponse](ctx, c.caller, methodBlocksChanged, req)
}

// CommitRecovery implements [NameNode].
func (c *NameNodeClient) CommitRecovery(ctx context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
	return call[clusterpb.CommitRecoveryResponse](ctx, c.caller, methodCommitRecovery, req)
}

// DataNodeClient calls a DataNode. It may be used concurrently.
type DataNodeClient struct{ *caller }

// NewDataNodeClient makes calls on conn, which then belongs to it.
func NewDataNodeClient(conn Conn) *DataNodeClient { return &DataNodeClient{newCaller(conn)} }

var _ DataNode = (*DataNodeClient)(nil)

// InitRecovery implements [DataNode].
func (c *DataNodeClient) InitRecovery(ctx context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	return call[clusterpb.InitRecoveryResponse](ctx, c.caller, methodInitRecovery, req)
}

// UpdateRecovery implements [DataNode].
func (c *DataNodeClient) UpdateRecovery(ctx context.Context, req *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	return call[clusterpb.UpdateRecoveryResponse](ctx, c.caller, methodUpdateRecovery, req)
}
