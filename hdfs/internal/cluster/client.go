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
	resp   proto.Message
	result chan error
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
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err == nil {
		return nil
	}
	c.mu.Lock()
	_, pending := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if !pending && ctx.Err() != nil {
		<-w.result // the reader is about to be done with resp
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
	w.result <- proto.Unmarshal(body, w.resp)
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
	resp := &clusterpb.RegisterResponse{}
	return resp, c.call(ctx, methodRegister, req, resp)
}

// Heartbeat implements [NameNode].
func (c *NameNodeClient) Heartbeat(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	resp := &clusterpb.HeartbeatResponse{}
	return resp, c.call(ctx, methodHeartbeat, req, resp)
}

// BlockReport implements [NameNode].
func (c *NameNodeClient) BlockReport(ctx context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	resp := &clusterpb.BlockReportResponse{}
	return resp, c.call(ctx, methodBlockReport, req, resp)
}

// BlocksChanged implements [NameNode].
func (c *NameNodeClient) BlocksChanged(ctx context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	resp := &clusterpb.BlocksChangedResponse{}
	return resp, c.call(ctx, methodBlocksChanged, req, resp)
}

// CommitRecovery implements [NameNode].
func (c *NameNodeClient) CommitRecovery(ctx context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
	resp := &clusterpb.CommitRecoveryResponse{}
	return resp, c.call(ctx, methodCommitRecovery, req, resp)
}

// DataNodeClient calls a DataNode. It may be used concurrently.
type DataNodeClient struct{ *caller }

// NewDataNodeClient makes calls on conn, which then belongs to it.
func NewDataNodeClient(conn Conn) *DataNodeClient { return &DataNodeClient{newCaller(conn)} }

var _ DataNode = (*DataNodeClient)(nil)

// InitRecovery implements [DataNode].
func (c *DataNodeClient) InitRecovery(ctx context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	resp := &clusterpb.InitRecoveryResponse{}
	return resp, c.call(ctx, methodInitRecovery, req, resp)
}

// UpdateRecovery implements [DataNode].
func (c *DataNodeClient) UpdateRecovery(ctx context.Context, req *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	resp := &clusterpb.UpdateRecoveryResponse{}
	return resp, c.call(ctx, methodUpdateRecovery, req, resp)
}
