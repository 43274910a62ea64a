package datanode

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func dialRPC(t testing.TB, n *node) *rpc.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", n.addr)
	must(t, err)
	c, err := rpc.NewConn(t.Context(), nc, rpc.Target{User: "test", Protocol: "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"}, rpc.ClientConfig{})
	must(t, err)
	return c
}

// visibleLength asks as a client does, on the port of data transfer.
func visibleLength(t testing.TB, n *node, id, gen uint64) int64 {
	t.Helper()
	c := dialRPC(t, n)
	defer c.Close()
	resp := &hdfspb.GetReplicaVisibleLengthResponseProto{}
	must(t, c.Call(context.Background(), "getReplicaVisibleLength", &hdfspb.GetReplicaVisibleLengthRequestProto{Block: extended(id, gen, 0)}, resp))
	return int64(resp.GetLength())
}

func TestVisibleLengthOfUnknownBlock(t *testing.T) {
	f := newFixture(t, 1, nil)
	c := dialRPC(t, f.nodes[0])
	defer c.Close()
	err := c.Call(context.Background(), "getReplicaVisibleLength", &hdfspb.GetReplicaVisibleLengthRequestProto{Block: extended(1, 1001, 0)}, &hdfspb.GetReplicaVisibleLengthResponseProto{})
	var e *exception.Error
	if !errors.As(err, &e) || e.Class != exception.ReplicaNotFound {
		t.Fatalf("%v", err)
	}
}
