package cluster

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// client makes calls to one peer, over a channel that it opens with the first one and
// again when the peer has forgotten it. The pool makes a call again whose endpoint has
// ended before the answer: docs/hdfs-cluster-protocol.md tells for each method why
// that is harmless.
type client struct {
	pool    *verbena.CallPool
	address string
	secret  *Secret
	role    string // of the peer

	mu   sync.Mutex
	open *channel
}

func newClient(pool *verbena.CallPool, address string, secret *Secret, role string) *client {
	if secret == nil {
		panic("cluster: a client needs the cluster's secret")
	}
	return &client{pool: pool, address: address, secret: secret, role: role}
}

func call[Resp any, PResp interface {
	*Resp
	proto.Message
}](ctx context.Context, c *client, m method, req proto.Message) (*Resp, error) {
	for again := false; ; again = true {
		ch, err := c.channel(ctx)
		if err != nil {
			return nil, fmt.Errorf("cluster: %v: %w", m, err)
		}
		resp := new(Resp)
		err = c.over(ctx, ch, m, req, PResp(resp))
		if err == nil {
			return resp, nil
		}
		if errors.Is(err, ErrUnproven) && !again {
			c.forget(ch) // the peer was started anew, or has not heard of us for long
			continue
		}
		return nil, fmt.Errorf("cluster: %v: %w", m, err)
	}
}

// over makes a call over a channel; without one it makes one of the channel's own.
func (c *client) over(ctx context.Context, ch *channel, m method, req, resp proto.Message) error {
	b, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	var tie []byte
	if ch != nil {
		b, tie = ch.seal(m, b)
	}
	answer, err := c.pool.Call(ctx, c.address, verbena.Intent{}, uint32(m), b, verbena.Idempotent)
	if err != nil {
		return told(err)
	}
	defer answer.Release()
	b = answer.Bytes()
	if ch != nil {
		if b, err = ch.opened(tie, b); err != nil {
			return err
		}
	}
	if err := proto.Unmarshal(b, resp); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// channel returns the one that is open, or opens one: both ends prove that they know
// the secret.
func (c *client) channel(ctx context.Context) (*channel, error) {
	c.mu.Lock()
	ch := c.open
	c.mu.Unlock()
	if ch != nil {
		return ch, nil
	}
	nonce := random(nonceSize)
	var challenge clusterpb.HelloResponse
	if err := c.over(ctx, nil, methodHello, &clusterpb.HelloRequest{Nonce: nonce, Role: &c.role}, &challenge); err != nil {
		return nil, fmt.Errorf("%v: %w", methodHello, err)
	}
	if len(challenge.GetNonce()) != nonceSize {
		return nil, fmt.Errorf("%v: a nonce of %d bytes", methodHello, len(challenge.GetNonce()))
	}
	keys := keysOf(c.secret, c.role, nonce, challenge.GetNonce())
	if !hmac.Equal(keys.server, challenge.GetProof()) {
		return nil, fmt.Errorf("%w: the %s at %s has another secret than this node: give all nodes the same --cluster-secret", ErrUnproven, c.role, c.address)
	}
	err := c.over(ctx, nil, methodProve, &clusterpb.ProveRequest{
		ClientNonce: nonce, ServerNonce: challenge.GetNonce(), Cookie: challenge.GetCookie(), Proof: keys.client,
	}, &clusterpb.ProveResponse{})
	if err != nil {
		return nil, fmt.Errorf("%v: %w", methodProve, err)
	}
	ch = &channel{id: [channelID]byte(challenge.GetNonce()), key: keys.calls}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = ch
	return ch, nil
}

func (c *client) forget(ch *channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == ch {
		c.open = nil
	}
}

// NameNodeClient calls a NameNode. It may be used concurrently.
type NameNodeClient struct{ c *client }

// NewNameNodeClient calls the NameNode at address by a pool for [Service].
func NewNameNodeClient(pool *verbena.CallPool, address string, secret *Secret) *NameNodeClient {
	return &NameNodeClient{newClient(pool, address, secret, roleNameNode)}
}

var _ NameNode = (*NameNodeClient)(nil)

// Register implements [NameNode].
func (c *NameNodeClient) Register(ctx context.Context, req *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error) {
	return call[clusterpb.RegisterResponse](ctx, c.c, methodRegister, req)
}

// Heartbeat implements [NameNode].
func (c *NameNodeClient) Heartbeat(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	return call[clusterpb.HeartbeatResponse](ctx, c.c, methodHeartbeat, req)
}

// BlockReport implements [NameNode].
func (c *NameNodeClient) BlockReport(ctx context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	return call[clusterpb.BlockReportResponse](ctx, c.c, methodBlockReport, req)
}

// BlocksChanged implements [NameNode].
func (c *NameNodeClient) BlocksChanged(ctx context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	return call[clusterpb.BlocksChangedResponse](ctx, c.c, methodBlocksChanged, req)
}

// CommitRecovery implements [NameNode].
func (c *NameNodeClient) CommitRecovery(ctx context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
	return call[clusterpb.CommitRecoveryResponse](ctx, c.c, methodCommitRecovery, req)
}

// DataNodeClient calls a DataNode. It may be used concurrently.
type DataNodeClient struct{ c *client }

// NewDataNodeClient calls the DataNode at address by a pool for [Service].
func NewDataNodeClient(pool *verbena.CallPool, address string, secret *Secret) *DataNodeClient {
	return &DataNodeClient{newClient(pool, address, secret, roleDataNode)}
}

var _ DataNode = (*DataNodeClient)(nil)

// InitRecovery implements [DataNode].
func (c *DataNodeClient) InitRecovery(ctx context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	return call[clusterpb.InitRecoveryResponse](ctx, c.c, methodInitRecovery, req)
}

// UpdateRecovery implements [DataNode].
func (c *DataNodeClient) UpdateRecovery(ctx context.Context, req *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	return call[clusterpb.UpdateRecoveryResponse](ctx, c.c, methodUpdateRecovery, req)
}

// ExtendRecovery implements [DataNode].
func (c *DataNodeClient) ExtendRecovery(ctx context.Context, req *clusterpb.ExtendRecoveryRequest) (*clusterpb.ExtendRecoveryResponse, error) {
	return call[clusterpb.ExtendRecoveryResponse](ctx, c.c, methodExtendRecovery, req)
}
