// Package cluster is the protocol between DataNodes and their NameNode, and
// among DataNodes for block recovery: request and response messages on a
// [Conn], one connection for any number of calls at once.
//
// docs/hdfs-cluster-protocol.md defines it. The namenode and datanode packages
// import it; it knows neither.
package cluster

import (
	"context"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// Service is the name under which endpoints carry this protocol.
const Service = "hdfs-cluster/1"

// Conn carries whole messages in order, as an endpoint does.
type Conn interface {
	// Send sends a copy of msg. It may be called concurrently.
	Send(ctx context.Context, msg []byte) error
	// Receive appends the next message to buf[:0], growing it if needed.
	// One caller at a time. After the last message of a peer that has closed in
	// order it returns [io.EOF].
	Receive(ctx context.Context, buf []byte) ([]byte, error)
	// Close ends every Send and Receive with an error.
	Close() error
}

// NameNode is what a DataNode asks of its NameNode.
type NameNode interface {
	Register(context.Context, *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error)
	Heartbeat(context.Context, *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error)
	BlockReport(context.Context, *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error)
	BlocksChanged(context.Context, *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error)
	CommitRecovery(context.Context, *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error)
}

// DataNode is what the leader of a block recovery asks of each holder.
type DataNode interface {
	InitRecovery(context.Context, *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error)
	UpdateRecovery(context.Context, *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error)
}
