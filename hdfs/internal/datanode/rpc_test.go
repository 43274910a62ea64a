package datanode

import (
	"context"
	"errors"
	"io"
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

// The sending side of a client's connection ends alone, so that a client reads
// its last answer.
func TestPrefixedConnEndsItsHalf(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer here.Close()
	there, err := l.Accept()
	must(t, err)
	defer there.Close()
	must(t, (&prefixedConn{Conn: there}).CloseWrite())
	if b, err := io.ReadAll(here); len(b) > 0 || err != nil {
		t.Errorf("read %x, %v, want the end", b, err)
	}
	_, err = here.Write([]byte("x"))
	must(t, err)
	if _, err := io.ReadFull(there, make([]byte, 1)); err != nil {
		t.Errorf("the other direction: %v", err)
	}
	pipe, other := net.Pipe()
	defer pipe.Close()
	defer other.Close()
	if err := (&prefixedConn{Conn: pipe}).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("of a connection without halves: %v", err)
	}
}
