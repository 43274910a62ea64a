package simulate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/client/legacy"
	clientnative "github.com/verbena-data/verbena/hdfs/internal/client/native"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A way is how a client reaches DataNodes. Each pipeline and each read takes one that chance
// has, so that all of them meet at one block.
type way uint8

const (
	foreign   way = iota // the data transfer protocol as others speak it: in client.go and below
	ownLegacy            // the same by our client's package
	ownNative            // hdfs-data/1 by our client's package
	ways
)

func (w way) String() string {
	return [ways]string{"another client's legacy path", "our legacy path", "our native path"}[w]
}

// paths are our client's ways to DataNodes.
type paths struct {
	alive  atomic.Bool
	calls  *rpc.Client
	legacy *legacy.Path
	rt     *verbena.Runtime
	table  *native.Table
	reads  *verbena.CallPool
	native *clientnative.Path
}

const (
	// answerTimeout is for how long a DataNode may owe a client something.
	answerTimeout = 30 * time.Second
	dialTimeout   = 5 * time.Second
)

func (s *system) newPaths(host string) (*paths, error) {
	p := &paths{}
	p.alive.Store(true)
	dial := func(ctx context.Context, _, address string) (net.Conn, error) { return s.net.dial(ctx, host, address) }
	p.calls = rpc.NewClient(rpc.ClientConfig{Dial: func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "", address) }})
	p.legacy = legacy.New(legacy.Config{Dial: dial, Calls: p.calls, User: superuser, ConnectTimeout: dialTimeout, SocketTimeout: answerTimeout})
	rt, table, err := s.newRuntime(host, &p.alive)
	if err != nil {
		return nil, err
	}
	p.rt = rt
	table.DialTimeout = dialTimeout
	p.table = native.NewTable(table)
	p.reads, err = rt.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{
		Service: native.CallService, Dial: table.Dial, DialTimeout: dialTimeout, Endpoints: 2,
		Backoff: 50 * time.Millisecond, MaxBackoff: 500 * time.Millisecond,
	}, Attempts: 1})
	if err != nil {
		return nil, err
	}
	p.native = clientnative.New(clientnative.Config{Table: p.table, Calls: p.reads, Legacy: p.legacy, SocketTimeout: answerTimeout, Logger: s.logger("client " + host)})
	return p, nil
}

// die has nothing more be dialled, as of a process that is dead, and gives everything back.
func (p *paths) die() error {
	p.alive.Store(false)
	p.native.Close()
	p.table.Close()
	err := errors.Join(p.reads.Close(), p.rt.Close())
	p.legacy.Close()
	p.calls.Close()
	return err
}

// path is one of our client's ways.
func (c *client) path(w way) (data.Path, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		var err error
		if c.own, err = c.s.newPaths(c.host); err != nil {
			return nil, err
		}
	}
	if w == ownNative {
		return c.own.native, nil
	}
	return c.own.legacy, nil
}

// close ends the client, whose connections are of no use any more.
func (c *client) close() {
	c.rpc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.own; own != nil {
		c.s.ending.Go(func() { _ = own.die() }) // nobody is left to hear it
	}
}

// A line is a pipeline by one of the ways.
type line interface {
	send(h transfer.PacketHeader, data []byte) error
	ack(a *transfer.Ack) error
	close()
}

func (d *dataConn) send(h transfer.PacketHeader, data []byte) error {
	_ = d.SetDeadline(time.Now().Add(70 * time.Second))
	_, err := d.Write(packet(h, data))
	return err
}

func (d *dataConn) ack(a *transfer.Ack) error { return d.r.ReadAck(a) }

// packet encodes one.
func packet(h transfer.PacketHeader, data []byte) []byte {
	sum := transfer.CRC32C()
	sums := make([]byte, int(sum.Chunks(int64(len(data))))*sum.Size())
	if len(sums) > 0 {
		sum.Sum(sums, data)
	}
	h.DataLen = int32(len(data))
	return append(append(transfer.AppendPacketPrefix(nil, &h, len(sums)), sums...), data...)
}

// An ownLine is one of our client's.
type ownLine struct {
	data.Pipeline
	pool   *data.Pool
	lender data.Lender // nil: not a native one
}

func (l *ownLine) send(h transfer.PacketHeader, bytes []byte) error {
	k := l.pool.Get(h.Seqno, h.Offset, packetBytes, l.lender)
	defer l.pool.Put(k)
	k.Last, k.Sync = h.Last, h.Sync
	k.Grow(copy(k.Room(), bytes))
	k.Seal()
	return l.Send(k)
}

func (l *ownLine) ack(a *transfer.Ack) error { return l.Ack(a) }

func (l *ownLine) close() { _ = l.Close() }

// connect sets up the pipeline by a way. bad is the index of the DataNode to blame for an error.
func (o *output) connect(ctx context.Context, w way, st stage, generation uint64, token *hdfspb.TokenProto) (l line, bad int, err error) {
	sum := transfer.CRC32C()
	if w == foreign {
		conn, resp, err := o.c.ask(ctx, dataAddress(o.nodes[0]), transfer.OpWriteBlock, &hdfspb.OpWriteBlockProto{
			Header: o.c.header(o.block, token), Targets: o.nodes[1:], Stage: st.Enum(), PipelineSize: proto.Uint32(uint32(len(o.nodes))),
			MinBytesRcvd: proto.Uint64(uint64(o.acked)), MaxBytesRcvd: proto.Uint64(uint64(o.sent)), LatestGenerationStamp: &generation,
			RequestedChecksum: sum.Proto(),
		})
		if err == nil {
			return conn, 0, nil
		}
		for i, n := range o.nodes {
			if resp.GetFirstBadLink() == dataAddress(n) {
				bad = i
			}
		}
		return nil, bad, err
	}
	path, err := o.c.path(w)
	if err != nil {
		return nil, 0, err
	}
	pipeline, err := path.Write(ctx, &data.WriteRequest{
		Client: o.c.name, Block: o.ofNow(), Token: token, Nodes: o.nodes, Stage: st, Sent: int64(o.sent), Generation: generation,
		BlockSize: int64(o.size), Window: o.window, Checksum: sum,
	})
	if err == nil {
		lender, _ := pipeline.(data.Lender)
		return &ownLine{pipeline, data.NewPool(packetBytes, sum), lender}, 0, nil
	}
	var broken *data.PipelineError
	if errors.As(err, &broken) {
		bad = broken.Node
	}
	return nil, bad, err
}

// blame finds out which DataNode an error of a pipeline is about: the first, if that is not
// told.
func blame(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	bad := &badNode{err: err}
	var broken *data.PipelineError
	if errors.As(err, &broken) {
		bad.index, bad.neverSetUp = broken.Node, broken.SetUp
	}
	return bad
}

// readOwn reads the first bytes of a block by one of our client's ways.
func (c *client) readOwn(ctx context.Context, w way, lb *hdfspb.LocatedBlockProto, at *hdfspb.DatanodeInfoProto, n int) (out []byte, err error) {
	path, err := c.path(w)
	if err != nil {
		return nil, err
	}
	defer func() {
		if _, native := c.own.table.Peek(dataAddress(at)); !native {
			w = ownLegacy // the DataNode does not have the other
		}
		if err == nil {
			c.s.h.count("replicas read by "+w.String(), 1)
		}
	}()
	req := &data.ReadRequest{Client: c.name, Block: lb.GetB(), Token: lb.GetBlockToken(), Node: at, Length: int64(n)}
	if f, ok := path.(data.Filler); ok && n <= native.MaxReadNow && c.s.net.chance(2) {
		if req.Encoded, err = data.EncodeHeader(req.Block, req.Token, req.Client); err != nil {
			return nil, err
		}
		out = make([]byte, n)
		if done, err := f.Fill(ctx, req, out); done || err != nil {
			return out, err
		}
	}
	r, err := path.Read(ctx, req)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out = make([]byte, 0, n)
	for len(out) < n {
		b, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("read block %d from %s: %w", lb.GetB().GetBlockId(), dataAddress(at), err)
		}
		out = append(out, b...)
	}
	return out[:n], nil
}
