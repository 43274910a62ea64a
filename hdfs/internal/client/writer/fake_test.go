package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a NameNode and the way to DataNodes, both in memory. The hooks, which may be
// nil, make things go wrong. They run one at a time.
type cluster struct {
	data.Path
	t     *testing.T
	nodes []*hdfspb.DatanodeInfoProto
	file  File

	call  func(method string, req proto.Message, n int) error // before the n-th call of a method
	setup func(req *data.WriteRequest, n int) error           // before the n-th pipeline
	send  func(l *line, k *data.Packet, n int) error          // before the n-th packet, heartbeats included
	ack   func(l *line, seqno int64) *transfer.Ack            // in place of what all is well with; nil: that
	copy  func(req *data.TransferRequest, n int) error

	mu         sync.Mutex
	counts     map[string]int
	calls      []proto.Message // of the NameNode
	pipelines  []*data.WriteRequest
	copies     []*data.TransferRequest
	blocks     map[uint64][]byte
	order      []uint64 // of the file's blocks
	generation uint64
	length     int64 // of the last block, as complete has it; -1: the file is open
}

// node is a DataNode, of this host or of another.
func node(i int, local bool) *hdfspb.DatanodeInfoProto {
	ip, uuid := fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("uuid-%d", i)
	if local {
		ip = fmt.Sprintf("127.0.0.%d", i)
	}
	return &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{IpAddr: &ip, HostName: &uuid, DatanodeUuid: &uuid, XferPort: proto.Uint32(9866)}}
}

func newCluster(t *testing.T, nodes int, local bool) *cluster {
	c := &cluster{t: t, file: testFile, counts: map[string]int{}, blocks: map[uint64][]byte{}, generation: 1000, length: -1}
	for i := range nodes {
		c.nodes = append(c.nodes, node(i+1, local))
	}
	return c
}

const (
	testBlock  = 64 << 10
	testPacket = 4 << 10
)

// config is a writer's on the cluster.
func (c *cluster) config() *Config {
	return &Config{
		Names: c, Path: c, Client: "client", Packets: data.NewPool(testPacket, transfer.CRC32C()), Window: 9 * testPacket, BlockRetries: 3,
		LocateRetries: 5, LocatePause: 400 * time.Millisecond, RestartTimeout: 30 * time.Second, Heartbeat: 30 * time.Second,
		ExcludeFor: 10 * time.Minute, Logger: slog.New(slog.DiscardHandler),
	}
}

var testFile = File{Path: "/file", ID: 17, BlockSize: testBlock, Replication: 3}

// next counts what happens.
func (c *cluster) next(what string) int {
	c.counts[what]++
	return c.counts[what]
}

func uuid(n *hdfspb.DatanodeInfoProto) string { return n.GetId().GetDatanodeUuid() }

func uuids(nodes []*hdfspb.DatanodeInfoProto) (out []string) {
	for _, n := range nodes {
		out = append(out, uuid(n))
	}
	return out
}

// choose returns DataNodes that are not among those named.
func (c *cluster) choose(count int, not ...*hdfspb.DatanodeInfoProto) (out []*hdfspb.DatanodeInfoProto) {
	for _, n := range c.nodes {
		if len(out) < count && !slices.Contains(uuids(not), uuid(n)) {
			out = append(out, n)
		}
	}
	return out
}

func (c *cluster) located(id uint64, length int, nodes []*hdfspb.DatanodeInfoProto) *hdfspb.LocatedBlockProto {
	lb := &hdfspb.LocatedBlockProto{
		B:    &hdfspb.ExtendedBlockProto{PoolId: proto.String("pool"), BlockId: &id, GenerationStamp: proto.Uint64(c.generation), NumBytes: proto.Uint64(uint64(length))},
		Locs: nodes, Offset: proto.Uint64(0), BlockToken: &hdfspb.TokenProto{},
	}
	for _, n := range nodes {
		lb.StorageIDs = append(lb.StorageIDs, "storage of "+uuid(n))
		lb.StorageTypes = append(lb.StorageTypes, hdfspb.StorageTypeProto_DISK)
	}
	return lb
}

// Call is the NameNode.
func (c *cluster) Call(ctx context.Context, method string, req, resp proto.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	c.calls = append(c.calls, proto.Clone(req))
	if n := c.next(method); c.call != nil {
		if err := c.call(method, req, n); err != nil {
			return err
		}
	}
	switch req := req.(type) {
	case *hdfspb.AddBlockRequestProto:
		id := uint64(100 + c.next("block"))
		c.blocks[id] = nil
		c.order = append(c.order, id)
		resp.(*hdfspb.AddBlockResponseProto).Block = c.located(id, 0, c.choose(c.file.Replication, req.GetExcludeNodes()...))
	case *hdfspb.AbandonBlockRequestProto:
		c.order = slices.DeleteFunc(c.order, func(id uint64) bool { return id == req.GetB().GetBlockId() })
	case *hdfspb.UpdateBlockForPipelineRequestProto:
		c.generation++
		resp.(*hdfspb.UpdateBlockForPipelineResponseProto).Block = c.located(req.GetBlock().GetBlockId(), int(req.GetBlock().GetNumBytes()), nil)
	case *hdfspb.GetAdditionalDatanodeRequestProto:
		more := c.choose(1, append(slices.Clone(req.GetExcludes()), req.GetExistings()...)...)
		if len(more) == 0 {
			return exception.New(exception.IO, "no DataNode is left")
		}
		resp.(*hdfspb.GetAdditionalDatanodeResponseProto).Block = c.located(req.GetBlk().GetBlockId(), int(req.GetBlk().GetNumBytes()), append(slices.Clone(req.GetExistings()), more...))
	case *hdfspb.CompleteRequestProto:
		c.length = int64(req.GetLast().GetNumBytes())
		resp.(*hdfspb.CompleteResponseProto).Result = proto.Bool(true)
	}
	return nil
}

// line is a pipeline.
type line struct {
	c      *cluster
	req    *data.WriteRequest
	acks   chan *transfer.Ack
	closed chan struct{}
	once   sync.Once
}

func (c *cluster) Write(ctx context.Context, req *data.WriteRequest) (data.Pipeline, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := *req
	kept.Block = proto.CloneOf(req.Block)
	kept.Nodes = slices.Clone(req.Nodes)
	c.pipelines = append(c.pipelines, &kept)
	if n := c.next("pipeline"); c.setup != nil {
		if err := c.setup(req, n); err != nil {
			return nil, err
		}
	}
	return &line{c: c, req: &kept, acks: make(chan *transfer.Ack, 1000), closed: make(chan struct{})}, nil
}

func (l *line) Send(k *data.Packet) error {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.next("packet")
	if k.Seqno == transfer.HeartbeatSeqno {
		c.next("heartbeat")
	}
	if c.send != nil {
		if err := c.send(l, k, n); err != nil {
			return err
		}
	}
	if id := l.req.Block.GetBlockId(); k.DataLen > 0 {
		if have := int64(len(c.blocks[id])); k.Offset > have {
			c.t.Errorf("block %d gets bytes at %d and has %d", id, k.Offset, have)
		}
		c.blocks[id] = append(c.blocks[id][:k.Offset], k.Data()...)
	}
	a := &transfer.Ack{Seqno: k.Seqno, Replies: make([]hdfspb.Status, len(l.req.Nodes))}
	if c.ack != nil {
		if other := c.ack(l, k.Seqno); other != nil {
			a = other
		}
	}
	l.acks <- a
	return nil
}

func (l *line) Ack(a *transfer.Ack) error {
	select {
	case <-l.closed:
		return errors.New("the pipeline is closed")
	default:
	}
	select {
	case <-l.closed:
		return errors.New("the pipeline is closed")
	case got := <-l.acks:
		if got == broken {
			return errors.New("connection reset")
		}
		if got.Seqno == neverSetUp.Seqno {
			return &data.PipelineError{Node: 1, SetUp: true, Blameless: got == refusedNow, Err: errors.New("not set up")}
		}
		*a = *got
		return nil
	}
}

// What Ack gives in place of an acknowledgement.
var (
	broken     = &transfer.Ack{Seqno: -100}
	neverSetUp = &transfer.Ack{Seqno: -101} // the second DataNode is to blame
	refusedNow = &transfer.Ack{Seqno: -101} // nobody is
)

func (l *line) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (c *cluster) Transfer(_ context.Context, req *data.TransferRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copies = append(c.copies, req)
	if n := c.next("copy"); c.copy != nil {
		return c.copy(req, n)
	}
	return nil
}

// content is what the file has.
func (c *cluster) content() (out []byte) {
	for _, id := range c.order {
		out = append(out, c.blocks[id]...)
	}
	return out
}

// callsOf are the NameNode's calls of one kind.
func callsOf[T proto.Message](c *cluster) (out []T) {
	for _, m := range c.calls {
		if req, ok := m.(T); ok {
			out = append(out, req)
		}
	}
	return out
}

// replies is an acknowledgement with a status other than success.
func replies(l *line, seqno int64, at int, status hdfspb.Status) *transfer.Ack {
	a := &transfer.Ack{Seqno: seqno, Replies: make([]hdfspb.Status, len(l.req.Nodes))}
	a.Replies[at] = status
	return a
}
