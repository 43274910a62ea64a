package hdfs

import (
	"context"
	"net"
	"strconv"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// LocalReads tell how a client has read blocks of its own host.
type LocalReads struct {
	Reads    uint64 // ranges read by descriptor
	Passed   uint64 // ranges read over connections, from whichever host
	Replicas uint64 // whose descriptors were handed over
}

// LocalReads returns how blocks have been read so far.
func (c *Client) LocalReads() LocalReads {
	if c.local == nil {
		return LocalReads{}
	}
	s := c.local.Stats()
	return LocalReads{Reads: s.Local, Passed: s.Passed, Replicas: s.Opened}
}

// askForSocket asks a DataNode of this host where it hands over descriptors. Apache's
// answers, too, but says nothing of it.
func (c *Client) askForSocket(ctx context.Context, node *hdfspb.DatanodeInfoProto) (socket string, user int, err error) {
	target := rpc.Target{
		Address:  net.JoinHostPort(node.GetId().GetIpAddr(), strconv.FormatUint(uint64(node.GetId().GetIpcPort()), 10)),
		Protocol: "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol", User: c.cfg.User,
	}
	var resp hdfspb.GetDatanodeInfoResponseProto
	if err := c.rpc.Proxy(target).Call(ctx, "getDatanodeInfo", &hdfspb.GetDatanodeInfoRequestProto{}, &resp, rpc.Idempotent); err != nil {
		return "", -1, err
	}
	info := resp.GetLocalInfo()
	return info.GetLocalSocket(), int(info.GetLocalUser()), nil
}
