package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// client is a small HDFS client that works as Hadoop's does: it recovers pipelines, and
// tells all that it knows to be acknowledged. It reaches DataNodes by several ways.
type client struct {
	s    *system
	host string
	name string // of its leases
	rpc  *rpc.Client
	nn   *rpc.Proxy

	mu  sync.Mutex
	own *paths // made when they are needed
}

func newClient(s *system, host, name string) *client {
	c := &client{s: s, host: host, name: name}
	c.rpc = rpc.NewClient(rpc.ClientConfig{
		Dial:        func(ctx context.Context, address string) (net.Conn, error) { return s.net.dial(ctx, host, address) },
		CallTimeout: 20 * time.Second, Attempts: 4, MaxBackoff: 2 * time.Second,
	})
	c.nn = c.rpc.Proxy(rpc.Target{Address: nameNodeAddr, Protocol: namenode.ClientProtocol, User: superuser})
	return c
}

func (c *client) call(ctx context.Context, method string, req, resp proto.Message, repeat rpc.Repeat) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return c.nn.Call(ctx, method, req, resp, repeat)
}

func (c *client) locations(ctx context.Context, path string) (*hdfspb.LocatedBlocksProto, error) {
	resp := &hdfspb.GetBlockLocationsResponseProto{}
	err := c.call(ctx, "getBlockLocations", &hdfspb.GetBlockLocationsRequestProto{Src: &path, Offset: proto.Uint64(0), Length: proto.Uint64(1 << 40)}, resp, rpc.Idempotent)
	return resp.GetLocations(), err
}

func dataAddress(d *hdfspb.DatanodeInfoProto) string {
	return net.JoinHostPort(d.GetId().GetIpAddr(), fmt.Sprint(d.GetId().GetXferPort()))
}

func (c *client) header(b *hdfspb.ExtendedBlockProto, token *hdfspb.TokenProto) *hdfspb.ClientOperationHeaderProto {
	return &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: b, Token: token}, ClientName: &c.name}
}

// dataConn is a connection to a DataNode.
type dataConn struct {
	net.Conn
	r *transfer.Reader
}

func (d *dataConn) close() {
	d.r.Release()
	d.Close()
}

// ask sends a request to a DataNode and reads the first answer.
func (c *client) ask(ctx context.Context, address string, op transfer.Op, req proto.Message) (*dataConn, *hdfspb.BlockOpResponseProto, error) {
	dialCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	nc, err := c.s.net.dial(dialCtx, c.host, address)
	if err != nil {
		return nil, nil, err
	}
	d := &dataConn{nc, transfer.NewReader(nc, nil)}
	resp := &hdfspb.BlockOpResponseProto{}
	err = errors.Join(nc.SetDeadline(time.Now().Add(30*time.Second)), transfer.WriteRequest(nc, op, req))
	if err == nil {
		err = d.r.ReadMessage(resp)
	}
	if err == nil && resp.GetStatus() != hdfspb.Status_SUCCESS {
		err = fmt.Errorf("%v: %s", resp.GetStatus(), resp.GetMessage())
	}
	if err != nil {
		d.close()
		return nil, resp, fmt.Errorf("%v at %s: %w", op, address, err)
	}
	return d, resp, nil
}

// readReplica reads the first bytes of a block from one DataNode, by any way.
func (c *client) readReplica(ctx context.Context, lb *hdfspb.LocatedBlockProto, at *hdfspb.DatanodeInfoProto, n int) ([]byte, error) {
	if w := way(c.s.net.chanceOf(int64(ways))); w != foreign && n > 0 {
		return c.readOwn(ctx, w, lb, at, n)
	}
	d, resp, err := c.ask(ctx, dataAddress(at), transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: c.header(lb.GetB(), lb.GetBlockToken()), Offset: proto.Uint64(0), Len: proto.Uint64(uint64(n)),
	})
	if err != nil {
		return nil, err
	}
	defer d.close()
	info := resp.GetReadOpChecksumInfo().GetChecksum()
	sum, err := transfer.NewChecksum(info.GetType(), info.GetBytesPerChecksum())
	if err != nil {
		return nil, err
	}
	var out []byte
	var p transfer.Packet
	for {
		if err := d.r.ReadPacket(sum, &p); err != nil {
			return nil, fmt.Errorf("read block %d from %s: %w", lb.GetB().GetBlockId(), dataAddress(at), err)
		}
		if p.Last {
			break
		}
		if err := sum.Verify(p.Sums, p.Data); err != nil {
			return nil, err
		}
		out = append(out, p.Data...)
	}
	_ = transfer.WriteMessage(d, &hdfspb.ClientReadStatusProto{Status: hdfspb.Status_CHECKSUM_OK.Enum()})
	if len(out) < n {
		return nil, io.ErrUnexpectedEOF
	}
	c.s.h.count("replicas read by "+foreign.String(), 1)
	return out[:n], nil
}

// readFile reads all complete blocks of a file, each from any DataNode that has it.
func (c *client) readFile(ctx context.Context, path string) (data []byte, open bool, err error) {
	located, err := c.locations(ctx, path)
	if err != nil {
		return nil, false, err
	}
	for i, lb := range located.GetBlocks() {
		if located.GetUnderConstruction() && i == len(located.GetBlocks())-1 && !located.GetIsLastBlockComplete() {
			break
		}
		var b []byte
		err := errors.New("no DataNode has it")
		for _, at := range lb.GetLocs() {
			if b, err = c.readReplica(ctx, lb, at, int(lb.GetB().GetNumBytes())); err == nil {
				break
			}
		}
		if err != nil && lb.GetB().GetNumBytes() > 0 {
			return data, located.GetUnderConstruction(), fmt.Errorf("block %d: %w", lb.GetB().GetBlockId(), err)
		}
		data = append(data, b...)
	}
	return data, located.GetUnderConstruction(), nil
}
