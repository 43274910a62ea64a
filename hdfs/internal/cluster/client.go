package cluster

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// client makes calls to one peer. The pool makes a call again whose endpoint has
// ended before the answer: docs/hdfs-cluster-protocol.md tells for each method why
// that is harmless.
type client struct {
	pool    *verbena.CallPool
	address string
}

func call[Resp any, PResp interface {
	*Resp
	proto.Message
}](ctx context.Context, c client, m method, req proto.Message) (*Resp, error) {
	b, err := proto.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("cluster: %v: %w", m, err)
	}
	answer, err := c.pool.Call(ctx, c.address, verbena.Intent{}, uint32(m), b, verbena.Idempotent)
	if err != nil {
		return nil, fmt.Errorf("cluster: %v: %w", m, told(err))
	}
	defer answer.Release()
	resp := new(Resp)
	if err := proto.Unmarshal(answer.Bytes(), PResp(resp)); err != nil {
		return nil, fmt.Errorf("cluster: %v: answer: %w", m, err)
	}
	return resp, nil
}

// NameNodeClient calls a NameNode. It may be used concurrently.
type NameNodeClient struct{ c client }

// NewNameNodeClient calls the NameNode at address by a pool for [Service].
func NewNameNodeClient(pool *verbena.CallPool, address string) *NameNodeClient {
	return &NameNodeClient{client{pool, address}}
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
type DataNodeClient struct{ c client }

// NewDataNodeClient calls the DataNode at address by a pool for [Service].
func NewDataNodeClient(pool *verbena.CallPool, address string) *DataNodeClient {
	return &DataNodeClient{client{pool, address}}
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
