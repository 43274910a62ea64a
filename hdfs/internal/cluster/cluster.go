// Package cluster is the protocol between DataNodes and their NameNode, and
// among DataNodes for block recovery: messages that travel as calls of the
// runtime, over endpoints of the service [Service]. Before all others come those by
// which both ends prove that they know the cluster's [Secret].
//
// docs/hdfs-cluster-protocol.md defines it. The namenode and datanode packages
// import it; it knows neither.
package cluster

import (
	"context"
	"fmt"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// Service is the name under which endpoints carry this protocol.
const Service = "hdfs-cluster/3"

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
	ExtendRecovery(context.Context, *clusterpb.ExtendRecoveryRequest) (*clusterpb.ExtendRecoveryResponse, error)
}

// method numbers a kind of call.
type method uint32

const (
	methodRegister method = 1 + iota
	methodHeartbeat
	methodBlockReport
	methodBlocksChanged
	methodCommitRecovery
	methodInitRecovery
	methodUpdateRecovery
	methodHello
	methodProve
	methodExtendRecovery
)

var methodNames = [...]string{
	"?", "Register", "Heartbeat", "BlockReport", "BlocksChanged", "CommitRecovery", "InitRecovery", "UpdateRecovery", "Hello", "Prove", "ExtendRecovery",
}

func (m method) String() string {
	if int(m) < len(methodNames) {
		return methodNames[m]
	}
	return fmt.Sprintf("method %d", uint32(m))
}
