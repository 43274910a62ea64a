package datanode

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/internal/testneed"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killDir); dir != "" {
		fmt.Fprintln(os.Stderr, killChild(dir))
		os.Exit(1)
	}
	testneed.AtOnce(8) // they wait for those who are silent
	goleak.VerifyTestMain(m)
}

const (
	pool    = "BP-test"
	patient = 30 * time.Second // for what must happen; nothing waits for it when all is well
)

// fakeNameNode records what DataNodes tell it and hands out commands.
type fakeNameNode struct {
	t        testing.TB
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at every event
	reports  map[string][]*clusterpb.Replica
	parts    map[string][]*clusterpb.Replica
	full     map[string]int
	changes  map[string][]*clusterpb.ReplicaChange
	commits  []*clusterpb.CommitRecoveryRequest
	commands map[string][]*clusterpb.Command
	order    map[string]*reportOrder // of the last report of each DataNode
	sessions uint64
	away     bool                                   // every call fails
	lost     int                                    // so many calls are carried out, but fail
	beats    map[string]*clusterpb.HeartbeatRequest // the last ones
	late     map[string]chan struct{}               // a DataNode's heartbeats are answered when it closes
	cluster  string
	keys     []byte // of block tokens, told to all
}

func newFakeNameNode(t testing.TB) *fakeNameNode {
	n := &fakeNameNode{t: t, changed: make(chan struct{}), reports: map[string][]*clusterpb.Replica{}, parts: map[string][]*clusterpb.Replica{},
		full: map[string]int{}, changes: map[string][]*clusterpb.ReplicaChange{}, commands: map[string][]*clusterpb.Command{}, order: map[string]*reportOrder{}, cluster: "CID-test",
		beats: map[string]*clusterpb.HeartbeatRequest{}, late: map[string]chan struct{}{}}
	return n
}

var errAway = errors.New("nobody at home")

// answer is the error of a call that was carried out.
func (n *fakeNameNode) answer() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost > 0 {
		n.lost--
		return errAway
	}
	return nil
}

// inSession judges a call of a DataNode that has registered.
func (n *fakeNameNode) inSession(uuid string, session uint64) (*reportOrder, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.order[uuid]
	switch {
	case n.away:
		return nil, errAway
	case o == nil || o.session != session:
		return nil, cluster.ErrNotRegistered
	}
	return o, nil
}

// inOrder is inSession for a report.
func (n *fakeNameNode) inOrder(uuid string, session, sequence uint64) error {
	o, err := n.inSession(uuid, session)
	if err == nil && sequence != o.last+1 {
		n.t.Errorf("report %d of %s follows report %d", sequence, uuid, o.last)
	}
	if err == nil {
		o.last = sequence // a DataNode sends one report at a time
	}
	return err
}

func (n *fakeNameNode) event(f func()) {
	n.mu.Lock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
}

// wait returns when what holds; what is called with the lock held.
func (n *fakeNameNode) wait(what string, holds func() bool) {
	n.t.Helper()
	timeout := time.After(patient)
	for {
		n.mu.Lock()
		ok, changed := holds(), n.changed
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			n.t.Fatalf("in vain: %s", what)
		}
	}
}

func (n *fakeNameNode) Register(_ context.Context, req *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.away:
		return nil, errAway
	case req.GetClusterId() != "" && req.GetClusterId() != n.cluster:
		return nil, cluster.ErrForeign
	}
	n.sessions++
	n.order[req.GetDatanode().GetUuid()] = &reportOrder{session: n.sessions}
	return &clusterpb.RegisterResponse{ClusterId: &n.cluster, BlockPoolId: proto.String(pool), HeartbeatIntervalMs: proto.Uint32(20), Session: proto.Uint64(n.sessions), BlockKeys: n.keys}, nil
}

func (n *fakeNameNode) Heartbeat(_ context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	if _, err := n.inSession(req.GetUuid(), req.GetSession()); err != nil {
		return nil, err
	}
	resp := &clusterpb.HeartbeatResponse{}
	var late chan struct{}
	n.event(func() {
		n.beats[req.GetUuid()] = req
		resp.Commands = n.commands[req.GetUuid()]
		resp.BlockKeys = n.keys
		n.commands[req.GetUuid()] = nil
		late = n.late[req.GetUuid()]
	})
	if late != nil {
		<-late
	}
	return resp, nil
}

func (n *fakeNameNode) BlockReport(_ context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	if err := n.inOrder(req.GetUuid(), req.GetSession(), req.GetSequence()); err != nil {
		return nil, err
	}
	n.event(func() {
		u := req.GetUuid()
		n.parts[u] = append(n.parts[u], req.GetReplicas()...)
		if req.GetPart()+1 == req.GetParts() {
			n.reports[u], n.parts[u] = n.parts[u], nil
			n.full[u]++
		}
	})
	return &clusterpb.BlockReportResponse{}, n.answer()
}

func (n *fakeNameNode) BlocksChanged(_ context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	if err := n.inOrder(req.GetUuid(), req.GetSession(), req.GetSequence()); err != nil {
		return nil, err
	}
	n.event(func() { n.changes[req.GetUuid()] = append(n.changes[req.GetUuid()], req.GetChanges()...) })
	return &clusterpb.BlocksChangedResponse{}, n.answer()
}

func (n *fakeNameNode) CommitRecovery(_ context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
	n.event(func() { n.commits = append(n.commits, req) })
	return &clusterpb.CommitRecoveryResponse{}, nil
}

func (n *fakeNameNode) told(uuid string, kind clusterpb.ReplicaChange_Kind, id, gen uint64) bool {
	for _, c := range n.changes[uuid] {
		if b := c.GetReplica().GetBlock(); c.GetKind() == kind && b.GetId() == id && b.GetGeneration() == gen {
			return true
		}
	}
	return false
}

// lose ends every session and lets nobody back until away is false.
func (n *fakeNameNode) lose(away bool) {
	n.mu.Lock()
	n.away = away
	clear(n.order)
	n.mu.Unlock()
}

// node is a DataNode on a loopback port.
type node struct {
	*DataNode
	t    testing.TB
	addr string
	cfg  Config
	l    net.Listener
	done chan struct{}
	port *port.Port // of one that has the native path
}

// testNet finds DataNodes by address for recovery.
type testNet struct {
	mu    sync.Mutex
	nodes map[string]*node
}

func (tn *testNet) holder(addr string) cluster.DataNode {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	if n := tn.nodes[addr]; n != nil {
		return n.Recoveries()
	}
	return nobody(addr)
}

// nobody is where there is no DataNode.
type nobody string

func (addr nobody) InitRecovery(context.Context, *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	return nil, fmt.Errorf("nobody at %s", string(addr))
}

func (addr nobody) UpdateRecovery(context.Context, *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	return nil, fmt.Errorf("nobody at %s", string(addr))
}

func (addr nobody) ExtendRecovery(context.Context, *clusterpb.ExtendRecoveryRequest) (*clusterpb.ExtendRecoveryResponse, error) {
	return nil, fmt.Errorf("nobody at %s", string(addr))
}

type fixture struct {
	t     testing.TB
	nn    *fakeNameNode
	net   *testNet
	nodes []*node
	// native, if set, serves the native path in place of a DataNode.
	native func(n *node) func(context.Context, *verbena.Endpoint) error
}

func newFixture(t testing.TB, count int, change func(i int, c *Config)) *fixture {
	return fixtureOf(t, count, change, nil)
}

// fixtureOf is newFixture with fixture.native.
func fixtureOf(t testing.TB, count int, change func(i int, c *Config), native func(n *node) func(context.Context, *verbena.Endpoint) error) *fixture {
	f := &fixture{t: t, nn: newFakeNameNode(t), net: &testNet{nodes: map[string]*node{}}, native: native}
	for i := range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Dirs: []Directory{{Path: "/dn"}}, FS: vfs.NewMem(), BootID: "boot", NameNode: f.nn, Holder: f.net.holder,
			Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port), ScanRate: -1, ReportTimeout: patient}
		if change != nil {
			change(i, &cfg)
		}
		f.nodes = append(f.nodes, f.start(cfg, l))
	}
	t.Cleanup(func() {
		for _, n := range f.nodes {
			n.stop()
		}
	})
	for _, n := range f.nodes {
		f.nn.wait("registration", func() bool { return f.nn.full[n.UUID()] > 0 })
	}
	return f
}

func (f *fixture) start(cfg Config, l net.Listener) *node {
	f.t.Helper()
	dn, err := Open(context.Background(), cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	n := &node{DataNode: dn, t: f.t, addr: l.Addr().String(), cfg: cfg, l: l, done: make(chan struct{})}
	if cfg.Native != nil {
		close(n.done)
		n.port = f.publish(n)
	} else {
		go func() {
			defer close(n.done)
			_ = port.Accept(context.Background(), l, dn.log, func(nc net.Conn) { go dn.ServeConn(nc) }) // until stop closes it
		}()
	}
	f.net.mu.Lock()
	f.net.nodes[n.addr] = n
	f.net.mu.Unlock()
	return n
}

func (n *node) stop() {
	n.l.Close()
	if err := n.Close(); err != nil {
		n.t.Error(err)
	}
	if n.port != nil {
		_ = n.port.Close() // its listener is closed
	}
	<-n.done
}

// restart is what the death of the process and a new start are to a DataNode:
// its memory is gone, its files are as they were.
func (f *fixture) restart(i int) *node {
	f.t.Helper()
	old := f.nodes[i]
	old.stop()
	l, err := net.Listen("tcp", old.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.nn.mu.Lock()
	before := f.nn.full[old.UUID()]
	f.nn.mu.Unlock()
	f.nodes[i] = f.start(old.cfg, l)
	f.nn.wait("registration after the restart", func() bool { return f.nn.full[old.UUID()] > before })
	return f.nodes[i]
}

// hasNameNode tells whether the NameNode is there, as far as the DataNode knows.
func (n *node) hasNameNode() bool {
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	return n.names.registered
}

func (n *node) proto() *clusterpb.Datanode { return n.self() }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	rng.Read(b)
	return b
}

func extended(id, gen, n uint64) *hdfspb.ExtendedBlockProto {
	return &hdfspb.ExtendedBlockProto{PoolId: proto.String(pool), BlockId: &id, GenerationStamp: &gen, NumBytes: &n}
}

// client is one data transfer connection of a client.
type client struct {
	t   testing.TB
	nc  net.Conn
	r   *transfer.Reader
	sum transfer.Checksum
	seq int64

	token *hdfspb.TokenProto
}

func dialNode(t testing.TB, n *node) *client {
	t.Helper()
	nc, err := net.Dial("tcp", n.addr)
	must(t, err)
	must(t, nc.SetDeadline(time.Now().Add(patient)))
	c := &client{t: t, nc: nc, r: transfer.NewReader(nc, nil), sum: transfer.CRC32C()}
	t.Cleanup(func() { nc.Close() })
	return c
}

func targets(nodes []*node) []*hdfspb.DatanodeInfoProto {
	var out []*hdfspb.DatanodeInfoProto
	for _, n := range nodes {
		out = append(out, infoOf(n.self()))
	}
	return out
}

type stage = hdfspb.OpWriteBlockProto_BlockConstructionStage

const (
	create            = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE
	appending         = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND
	appendRecovery    = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND_RECOVERY
	streamingRecovery = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY
	closeRecovery     = hdfspb.OpWriteBlockProto_PIPELINE_CLOSE_RECOVERY
)

func (c *client) request(st stage, id, gen, newGen uint64, least, most uint64, behind []*node) *hdfspb.BlockOpResponseProto {
	c.t.Helper()
	size := uint32(len(behind))
	must(c.t, transfer.WriteRequest(c.nc, transfer.OpWriteBlock, &hdfspb.OpWriteBlockProto{
		Header:  &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, gen, 0), Token: c.token}, ClientName: proto.String("test")},
		Targets: targets(behind), Stage: st.Enum(), PipelineSize: &size, MinBytesRcvd: &least, MaxBytesRcvd: &most,
		LatestGenerationStamp: &newGen, RequestedChecksum: c.sum.Proto(),
	}))
	resp := &hdfspb.BlockOpResponseProto{}
	must(c.t, c.r.ReadMessage(resp))
	return resp
}

// openWrite sets a pipeline up.
func openWrite(t testing.TB, nodes []*node, st stage, id, gen, newGen, least, most uint64) *client {
	t.Helper()
	c := dialNode(t, nodes[0])
	resp := c.request(st, id, gen, newGen, least, most, nodes[1:])
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		t.Fatalf("%v: %v %s (first bad link %q)", st, resp.GetStatus(), resp.GetMessage(), resp.GetFirstBadLink())
	}
	if resp.FirstBadLink == nil {
		t.Fatal("no firstBadLink in the answer")
	}
	return c
}

func encodePacket(sum transfer.Checksum, h transfer.PacketHeader, data []byte) []byte {
	sums := make([]byte, int(sum.Chunks(int64(len(data))))*sum.Size())
	if len(sums) > 0 {
		sum.Sum(sums, data)
	}
	h.DataLen = int32(len(data))
	return append(append(transfer.AppendPacketPrefix(nil, &h, len(sums)), sums...), data...)
}

func (c *client) send(off int64, data []byte, last, sync bool) {
	c.t.Helper()
	_, err := c.nc.Write(encodePacket(c.sum, transfer.PacketHeader{Offset: off, Seqno: c.seq, Last: last, Sync: sync}, data))
	must(c.t, err)
	c.seq++
}

func (c *client) ack() transfer.Ack {
	c.t.Helper()
	var a transfer.Ack
	must(c.t, c.r.ReadAck(&a))
	return a
}

func (c *client) ackOK(seqno int64, nodes int) {
	c.t.Helper()
	if a := c.ack(); !a.OK() || a.Seqno != seqno || len(a.Replies) != nodes {
		c.t.Fatalf("acknowledgement %+v, want %d by %d DataNodes", a, seqno, nodes)
	}
}

// flush sends data in one packet and waits for its acknowledgement.
func (c *client) flush(off int64, data []byte, sync bool, nodes int) {
	c.t.Helper()
	c.send(off, data, false, sync)
	c.ackOK(c.seq-1, nodes)
}

func (c *client) finish(off int64, nodes int) {
	c.t.Helper()
	c.send(off, nil, true, false)
	c.ackOK(c.seq-1, nodes)
}

func writeBlock(t testing.TB, nodes []*node, id, gen uint64, data []byte) {
	t.Helper()
	c := openWrite(t, nodes, create, id, gen, 0, 0, 0)
	acked := make(chan struct{})
	packets := 0
	const size = 65536
	for off := 0; off < len(data); off += size {
		packets++
	}
	go func() {
		defer close(acked)
		for i := range packets + 1 {
			var a transfer.Ack
			if err := c.r.ReadAck(&a); err != nil || !a.OK() || a.Seqno != int64(i) || len(a.Replies) != len(nodes) {
				t.Errorf("acknowledgement %+v, %v", a, err)
				return
			}
		}
	}()
	for off := 0; off < len(data); off += size {
		c.send(int64(off), data[off:min(off+size, len(data))], false, false)
	}
	c.send(int64(len(data)), nil, true, false)
	<-acked
	c.nc.Close()
}

// read reads a range; the error is the DataNode's or the connection's, or says that what has come
// does not match its checksums.
func (c *client) read(id, gen uint64, off, n int64, sums bool) ([]byte, error) {
	c.t.Helper()
	uoff, un := uint64(off), uint64(n)
	must(c.t, transfer.WriteRequest(c.nc, transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, gen, 0), Token: c.token}, ClientName: proto.String("test")},
		Offset: &uoff, Len: &un, SendChecksums: &sums,
	}))
	resp := &hdfspb.BlockOpResponseProto{}
	if err := c.r.ReadMessage(resp); err != nil {
		return nil, err
	}
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		return nil, fmt.Errorf("%v: %s", resp.GetStatus(), resp.GetMessage())
	}
	info := resp.GetReadOpChecksumInfo()
	sum, err := transfer.NewChecksum(info.GetChecksum().GetType(), info.GetChecksum().GetBytesPerChecksum())
	must(c.t, err)
	at := int64(info.GetChunkOffset())
	if at > off || at <= off-int64(sum.BytesPerChunk) {
		c.t.Fatalf("a read from %d starts at %d", off, at)
	}
	var out []byte
	for seq := int64(0); ; seq++ {
		var p transfer.Packet
		if err := c.r.ReadPacket(sum, &p); err != nil {
			return nil, err
		}
		if p.Seqno != seq || p.Offset != at+int64(len(out)) {
			c.t.Fatalf("packet %+v at %d", p.PacketHeader, len(out))
		}
		if err := sum.Verify(p.Sums, p.Data); err != nil {
			return nil, err
		}
		out = append(out, p.Data...)
		if p.Last {
			break
		}
	}
	must(c.t, transfer.WriteMessage(c.nc, &hdfspb.ClientReadStatusProto{Status: hdfspb.Status_CHECKSUM_OK.Enum()}))
	return out[off-at:][:n], nil
}

func readAll(t testing.TB, n *node, id, gen uint64, size int) ([]byte, error) {
	t.Helper()
	c := dialNode(t, n)
	defer c.nc.Close()
	return c.read(id, gen, 0, int64(size), true)
}

func wantRead(t testing.TB, n *node, id, gen uint64, want []byte) {
	t.Helper()
	got, err := readAll(t, n, id, gen, len(want))
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: wrong bytes in block %d", n.addr, id)
	}
}

func TestPipeline(t *testing.T) {
	f := newFixture(t, 3, nil)
	for i, size := range []int{0, 1, 512, 65536, 65537, 3 << 20} {
		for count := 1; count <= 3; count++ {
			id, data := uint64(100*i+count), random(uint64(i), size)
			writeBlock(t, f.nodes[:count], id, 1001, data)
			for _, n := range f.nodes[:count] {
				wantRead(t, n, id, 1001, data)
				f.nn.wait("report of the block", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVED, id, 1001) })
			}
		}
	}
}

// When the end of a block is acknowledged by a single DataNode the NameNode
// knows of it: clients complete the file at once.
func TestReceivedIsToldBeforeTheAcknowledgement(t *testing.T) {
	f := newFixture(t, 1, nil)
	for id := range uint64(50) {
		writeBlock(t, f.nodes, id, 1001, []byte("x"))
		f.nn.mu.Lock()
		told := f.nn.told(f.nodes[0].UUID(), clusterpb.ReplicaChange_RECEIVED, id, 1001)
		f.nn.mu.Unlock()
		if !told {
			t.Fatalf("block %d acknowledged before the NameNode knew", id)
		}
	}
}

func TestReadRanges(t *testing.T) {
	f := newFixture(t, 1, nil)
	data := random(1, 300_001)
	writeBlock(t, f.nodes, 1, 1001, data)
	c := dialNode(t, f.nodes[0]) // one connection for all of them
	for _, r := range [][2]int64{{0, 300_001}, {0, 1}, {511, 2}, {512, 512}, {1000, 200_000}, {300_000, 1}, {300_001, 0}, {0, 0}} {
		for _, sums := range []bool{true, false} {
			got, err := c.read(1, 1001, r[0], r[1], sums)
			must(t, err)
			if !bytes.Equal(got, data[r[0]:r[0]+r[1]]) {
				t.Fatalf("range %v: wrong bytes", r)
			}
		}
	}
	for _, r := range [][2]int64{{300_002, 0}, {0, 300_002}, {1 << 62, 1}, {0, 1<<63 - 1}} {
		c := dialNode(t, f.nodes[0])
		if _, err := c.read(1, 1001, r[0], r[1], true); err == nil {
			t.Errorf("range %v: no error", r)
		}
	}
	for _, b := range [][2]uint64{{2, 1001}, {1, 1002}} {
		if _, err := readAll(t, f.nodes[0], b[0], b[1], 1); err == nil {
			t.Errorf("block %v: no error", b)
		}
	}
}

func TestChecksumTypes(t *testing.T) {
	f := newFixture(t, 2, nil)
	id := uint64(0)
	for _, typ := range []hdfspb.ChecksumTypeProto{hdfspb.ChecksumTypeProto_CHECKSUM_NULL, hdfspb.ChecksumTypeProto_CHECKSUM_CRC32, hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C} {
		for _, bpc := range []uint32{1, 512, 4096, 1 << 20} {
			id++
			sum, err := transfer.NewChecksum(typ, bpc)
			must(t, err)
			c := dialNode(t, f.nodes[0])
			c.sum = sum
			if resp := c.request(create, id, 1001, 0, 0, 0, f.nodes[1:]); resp.GetStatus() != hdfspb.Status_SUCCESS {
				t.Fatalf("%v", resp)
			}
			data := random(id, 200_000)
			c.flush(0, data[:150_001], false, 2)
			c.flush(150_001, data[150_001:150_002], false, 2) // inside a chunk
			aligned := 150_002 / int64(bpc) * int64(bpc)
			c.flush(aligned, data[aligned:], false, 2) // again from the chunk's start
			c.finish(200_000, 2)
			for _, n := range f.nodes {
				wantRead(t, n, id, 1001, data)
			}
		}
	}
}

func TestFlushedBytesAreVisible(t *testing.T) {
	f := newFixture(t, 3, nil)
	data := random(1, 10_000)
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	at := 0
	for _, n := range []int{1, 511, 600, 2000, 1, 1, 5000} {
		start := at / 512 * 512
		c.flush(int64(start), data[start:at+n], n == 600, 3)
		at += n
		for _, node := range f.nodes {
			if got := visibleLength(t, node, 1, 1001); got != int64(at) {
				t.Fatalf("%s: %d bytes visible, %d acknowledged", node.addr, got, at)
			}
			wantRead(t, node, 1, 1001, data[:at])
			if _, err := readAll(t, node, 1, 1001, at+1); err == nil {
				t.Fatal("more was read than acknowledged")
			}
		}
	}
	// Heartbeats go all the way.
	_, err := c.nc.Write(encodePacket(c.sum, transfer.PacketHeader{Seqno: transfer.HeartbeatSeqno}, nil))
	must(t, err)
	c.ackOK(transfer.HeartbeatSeqno, 3)
	c.finish(int64(at), 3)
}

func TestFlushedBytesSurviveTheProcess(t *testing.T) {
	f := newFixture(t, 1, nil)
	data := random(1, 1234)
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	c.flush(0, data, false, 1)
	writeBlock(t, f.nodes, 2, 1001, data)
	n := f.restart(0)
	wantRead(t, n, 1, 1001, data)
	wantRead(t, n, 2, 1001, data)
	f.nn.mu.Lock()
	defer f.nn.mu.Unlock()
	states := map[uint64]clusterpb.ReplicaState{}
	for _, r := range f.nn.reports[n.UUID()] {
		states[r.GetBlock().GetId()] = r.GetState()
		if r.GetBlock().GetLength() != 1234 || r.GetBlock().GetGeneration() != 1001 {
			t.Errorf("reported %v", r)
		}
	}
	if len(states) != 2 || states[1] != clusterpb.ReplicaState_WAITING_RECOVERY || states[2] != clusterpb.ReplicaState_FINALIZED {
		t.Fatalf("reported states %v", states)
	}
}

// hsync through the protocol, then the machine dies.
func TestSyncedBytesSurviveTheMachine(t *testing.T) {
	for seed := range uint64(20) {
		fs := vfs.NewCrashableMem()
		f := newFixture(t, 1, func(_ int, c *Config) { c.FS = fs })
		data := random(seed, 5000)
		c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
		c.flush(0, data[:700], true, 1)
		c.flush(512, data[512:3000], false, 1)
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, 1))})
		cfg := f.nodes[0].cfg
		cfg.FS, cfg.BootID = crashed, "after"
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		n := f.start(cfg, l)
		got := visibleLength(t, n, 1, 1001)
		if got < 700 {
			t.Fatalf("%d bytes are left of 700", got)
		}
		wantRead(t, n, 1, 1001, data[:got])
		n.stop()
		c.nc.Close()
	}
}

func TestMirrorUnreachable(t *testing.T) {
	f := newFixture(t, 3, nil)
	dead := f.nodes[2]
	addr := dead.addr
	dead.stop()
	defer func() { f.nodes = f.nodes[:2] }()
	c := dialNode(t, f.nodes[0])
	resp := c.request(create, 1, 1001, 0, 0, 0, f.nodes[1:])
	if resp.GetStatus() != hdfspb.Status_ERROR || resp.GetFirstBadLink() != addr || resp.GetMessage() == "" {
		t.Fatalf("%v", resp)
	}
	// The block can be written without it: nothing was left behind.
	c.nc.Close()
	for _, n := range f.nodes[:2] {
		waitGone(t, n, 1)
	}
	writeBlock(t, f.nodes[:2], 1, 1001, []byte("without it"))
}

// waitGone waits until the replica of a writer that failed is gone.
func waitGone(t testing.TB, n *node, id uint64) {
	t.Helper()
	for end := time.Now().Add(patient); time.Now().Before(end); n.sleep(time.Millisecond) {
		if _, err := n.store.Get(id); err != nil {
			return
		}
	}
	t.Fatalf("block %d is still there", id)
}

// A DataNode dies in the middle; the client goes on with the others under a new
// generation stamp, and all bytes are there.
func TestMirrorDies(t *testing.T) {
	for victim := 1; victim <= 2; victim++ {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			f := newFixture(t, 3, nil)
			data := random(1, 200_000)
			c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
			c.flush(0, data[:100_000], false, 3)
			f.nodes[victim].stop()
			// Whatever is sent now ends in an error that names a DataNode behind.
			var a transfer.Ack
			for off := 100_000; off < len(data); off += 1000 {
				if _, err := c.nc.Write(encodePacket(c.sum, transfer.PacketHeader{Offset: 100_000 / 512 * 512, Seqno: c.seq}, data[100_000/512*512:off+1000])); err != nil {
					break
				}
				c.seq++
				if err := c.r.ReadAck(&a); err != nil || !a.OK() {
					break
				}
			}
			if a.OK() || a.Replies[0] != hdfspb.Status_SUCCESS {
				t.Fatalf("acknowledgement %+v", a)
			}
			c.nc.Close()
			alive := []*node{f.nodes[0], f.nodes[3-victim]}
			c = openWrite(t, alive, streamingRecovery, 1, 1001, 1002, 100_000, 200_000)
			start := 100_000 / 512 * 512
			c.flush(int64(start), data[start:], false, 2)
			c.finish(200_000, 2)
			for _, n := range alive {
				wantRead(t, n, 1, 1002, data)
			}
			// The dead one comes back with an old generation: nobody reads it.
			n := f.restart(victim)
			if _, err := readAll(t, n, 1, 1002, 1); err == nil {
				t.Fatal("an old replica was read")
			}
		})
	}
}

func (f *fixture) damage(n *node, id uint64, match string, off int64) {
	f.t.Helper()
	fs := n.cfg.FS
	dir := filepath.Join("/dn/blocks", fmt.Sprintf("%02x", byte(id>>8)))
	names, err := fs.List(dir)
	must(f.t, err)
	for _, name := range names {
		if strings.HasPrefix(name, fmt.Sprintf("blk_%d", id)) && strings.HasSuffix(name, ".meta") == (match == "meta") {
			file, err := fs.OpenReadWrite(filepath.Join(dir, name), vfs.WriteCategoryUnspecified)
			must(f.t, err)
			_, err = file.WriteAt([]byte{0xa5, 0x5a, 0xa5}, off)
			must(f.t, err)
			must(f.t, file.Close())
			return
		}
	}
	f.t.Fatalf("no %s file among %v", match, names)
}

// A client that is not known to compare gets no damaged byte with its checksum, and the NameNode
// hears of the damage.
func TestDamageIsNeverServed(t *testing.T) {
	for _, c := range []struct {
		file string
		off  int64
	}{{"data", 10}, {"data", 250_000}, {"meta", 512}, {"meta", 512 + 4*400}} {
		t.Run(fmt.Sprint(c.file, c.off), func(t *testing.T) {
			f := newFixture(t, 2, nil)
			data := random(1, 300_000)
			writeBlock(t, f.nodes, 1, 1001, data)
			bad := f.nodes[1]
			f.damage(bad, 1, c.file, c.off)
			if _, err := readAll(t, bad, 1, 1001, len(data)); err == nil || errors.Is(err, transfer.ErrChecksum) {
				t.Fatalf("damaged bytes were sent: %v", err)
			}
			f.nn.wait("report of the damage", func() bool { return f.nn.told(bad.UUID(), clusterpb.ReplicaChange_CORRUPT, 1, 1001) })
			wantRead(t, f.nodes[0], 1, 1001, data)
			// What the NameNode orders then: the bad one goes, a copy comes.
			f.nn.mu.Lock()
			f.nn.commands[bad.UUID()] = []*clusterpb.Command{{Kind: clusterpb.Command_DELETE.Enum(), Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001)}}}
			f.nn.mu.Unlock()
			f.nn.wait("deletion", func() bool { return f.nn.told(bad.UUID(), clusterpb.ReplicaChange_DELETED, 1, 1001) })
			f.nn.mu.Lock()
			f.nn.changes[bad.UUID()] = nil
			f.nn.commands[f.nodes[0].UUID()] = []*clusterpb.Command{{Kind: clusterpb.Command_REPLICATE.Enum(), Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001), Length: proto.Uint64(uint64(len(data)))}, Targets: []*clusterpb.Datanode{bad.proto()}}}
			f.nn.mu.Unlock()
			f.nn.wait("copy", func() bool { return f.nn.told(bad.UUID(), clusterpb.ReplicaChange_RECEIVED, 1, 1001) })
			wantRead(t, bad, 1, 1001, data)
		})
	}
}

// holdDeletions returns when both workers have done what was to be done, and keeps them.
func holdDeletions(n *node, gen uint64) (free chan struct{}) {
	busy, free := make(chan struct{}), make(chan struct{})
	for i := range uint64(2) {
		n.deletions.add(1000+i, gen, nowhere, func() { busy <- struct{}{}; <-free })
	}
	<-busy
	<-busy
	return free
}

// A deletion whose order is on its way for long does not hit a copy that has come meanwhile: the order may be
// a repetition.
func TestLateDeletionSparesACopy(t *testing.T) {
	f := newFixture(t, 2, nil)
	n, data := f.nodes[1], random(1, 1000)
	writeBlock(t, f.nodes, 1, 1001, data)
	block := &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001), Length: proto.Uint64(1000)}
	order := func(late chan struct{}) {
		f.nn.mu.Lock()
		f.nn.commands[n.UUID()] = []*clusterpb.Command{{Kind: clusterpb.Command_DELETE.Enum(), Block: block}}
		f.nn.late[n.UUID()] = late
		f.nn.mu.Unlock()
		f.nn.wait("that the order is on its way", func() bool { return f.nn.commands[n.UUID()] == nil })
	}
	late := make(chan struct{})
	order(late)
	must(t, n.store.Delete(1, 1001)) // what an earlier answer ordered
	f.nn.mu.Lock()
	f.nn.changes[n.UUID()] = nil
	f.nn.commands[f.nodes[0].UUID()] = []*clusterpb.Command{{Kind: clusterpb.Command_REPLICATE.Enum(), Block: block, Targets: []*clusterpb.Datanode{n.proto()}}}
	f.nn.mu.Unlock()
	f.nn.wait("copy", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVED, 1, 1001) })
	f.nn.mu.Lock()
	before := f.nn.beats[n.UUID()]
	delete(f.nn.late, n.UUID())
	f.nn.mu.Unlock()
	close(late)
	f.nn.wait("the next heartbeat", func() bool { return f.nn.beats[n.UUID()] != before })
	close(holdDeletions(n, 1))
	wantRead(t, n, 1, 1001, data)
	// It is deleted if that is ordered from now on.
	order(nil)
	f.nn.wait("deletion", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_DELETED, 1, 1001) })
}

// A deletion that is told again, because its end was not heard of yet, does not hit a copy of the
// block that has come since.
func TestRepeatedDeletionSparesACopy(t *testing.T) {
	f := newFixture(t, 2, nil)
	n, data := f.nodes[0], random(1, 1000)
	obey := func(gen uint64) {
		t.Helper()
		must(t, n.obey([]*clusterpb.Command{{Kind: clusterpb.Command_DELETE.Enum(), Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: &gen}}}))
	}
	told := func() (count int) { // the caller has f.nn.mu
		for _, c := range f.nn.changes[n.UUID()] {
			if c.GetKind() == clusterpb.ReplicaChange_DELETED && c.GetReplica().GetBlock().GetId() == 1 {
				count++
			}
		}
		return count
	}
	writeBlock(t, f.nodes, 1, 1001, data)
	free := holdDeletions(n, 1)
	obey(1001) // waits, and the replica that it is for goes meanwhile
	must(t, n.store.Delete(1, 1001))
	obey(1001) // there is nothing to wait for
	f.nn.wait("that the block is not here", func() bool { return told() == 1 })
	w, err := n.store.Create(1, 1001, transfer.CRC32C(), true, nil, store.Want{})
	must(t, err)
	obey(1002) // a copy is under way, of which the NameNode does not know
	sums := make([]byte, 4*transfer.CRC32C().Chunks(1000))
	transfer.CRC32C().Sum(sums, data)
	_, err = w.Write(0, data, sums, transfer.CRC32C())
	must(t, err)
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	close(free)
	close(holdDeletions(n, 2))
	wantRead(t, n, 1, 1001, data)
	f.nn.event(func() {
		if n := told(); n != 1 {
			t.Errorf("told %d times that the block is not here", n)
		}
	})
	// It is deleted if that is ordered from now on.
	obey(1001)
	f.nn.wait("that the block is not here", func() bool { return told() == 2 })
}

func TestRefusedDeletionIsTold(t *testing.T) {
	f := newFixture(t, 1, nil)
	n, data := f.nodes[0], random(1, 1000)
	writeBlock(t, f.nodes, 1, 1002, data)
	f.nn.mu.Lock()
	f.nn.changes[n.UUID()] = nil
	f.nn.commands[n.UUID()] = []*clusterpb.Command{{Kind: clusterpb.Command_DELETE.Enum(), Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001)}}}
	f.nn.mu.Unlock()
	f.nn.wait("report of the newer replica", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVED, 1, 1002) })
	wantRead(t, n, 1, 1002, data)
}

func TestScannerFindsDamage(t *testing.T) {
	f := newFixture(t, 1, func(_ int, c *Config) {
		c.ScanRate, c.ScanDelay, c.ScanInterval = 1<<30, time.Millisecond, time.Millisecond
	})
	writeBlock(t, f.nodes, 1, 1001, random(1, 300_000))
	f.damage(f.nodes[0], 1, "data", 200_000)
	f.nn.wait("report of the damage", func() bool {
		return f.nn.told(f.nodes[0].UUID(), clusterpb.ReplicaChange_CORRUPT, 1, 1001)
	})
}

func TestWrongChecksumFromTheClient(t *testing.T) {
	f := newFixture(t, 2, nil)
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	data := random(1, 1000)
	c.flush(0, data, false, 2)
	b := encodePacket(c.sum, transfer.PacketHeader{Offset: 512, Seqno: c.seq}, random(1, 2000))
	b[len(b)-1]++
	_, err := c.nc.Write(b)
	must(t, err)
	if a := c.ack(); a.Replies[0] != hdfspb.Status_ERROR_CHECKSUM {
		t.Fatalf("acknowledgement %+v", a)
	}
	for _, n := range f.nodes {
		wantRead(t, n, 1, 1001, data)
	}
}

// Packets that come together are acknowledged one by one and in order, those before a bad
// one as good.
func TestPacketsThatComeTogether(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		f := newFixture(t, nodes, nil)
		c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
		const size = 20 * 512
		data := random(1, 6*size)
		var together []byte
		for i := range int64(6) {
			part := encodePacket(c.sum, transfer.PacketHeader{Offset: i * size, Seqno: c.seq, Sync: i == 2}, data[i*size:(i+1)*size])
			if c.seq++; i == 4 {
				part[len(part)-1]++
			}
			together = append(together, part...)
		}
		_, err := c.nc.Write(together)
		must(t, err)
		for seqno := range int64(4) {
			c.ackOK(seqno, nodes)
		}
		if a := c.ack(); a.Seqno != 4 || len(a.Replies) != nodes || a.Replies[nodes-1] != hdfspb.Status_ERROR_CHECKSUM {
			t.Fatalf("acknowledgement %+v of a bad packet", a)
		}
		c.nc.Close()
		for _, n := range f.nodes {
			n.waitIdle(t, 1)
			wantRead(t, n, 1, 1001, data[:4*size])
		}
		// Another pipeline goes on where all have agreed.
		c = openWrite(t, f.nodes, streamingRecovery, 1, 1001, 1002, 4*size, 6*size)
		c.flush(4*size, data[4*size:], false, nodes)
		c.finish(6*size, nodes)
		for _, n := range f.nodes {
			wantRead(t, n, 1, 1002, data)
		}
	}
}

// counted counts what is read from a connection, by calls.
type counted struct {
	io.Reader
	calls int
}

func (c *counted) Read(b []byte) (int, error) {
	c.calls++
	return c.Reader.Read(b)
}

// Acknowledgements wait for a packet of which a part has come, and not beyond it.
func TestAcknowledgementsAreGathered(t *testing.T) {
	f := newFixture(t, 1, nil)
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	const size, count = 4 * 512, 5
	data := random(1, count*size)
	var stream []byte
	for i := range int64(count) {
		stream = append(stream, encodePacket(c.sum, transfer.PacketHeader{Offset: i * size, Seqno: c.seq}, data[i*size:(i+1)*size])...)
		c.seq++
	}
	// The last packet comes by halves. Nobody sends so and then waits, so nothing is to come
	// in the pause.
	half := len(stream) - size/2
	_, err := c.nc.Write(stream[:half])
	must(t, err)
	must(t, c.nc.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if n, err := c.nc.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	must(t, c.nc.SetReadDeadline(time.Now().Add(patient)))
	from := &counted{Reader: c.nc}
	c.r = transfer.NewReader(from, nil)
	_, err = c.nc.Write(stream[half:])
	must(t, err)
	for i := range int64(count) {
		c.ackOK(i, 1)
	}
	if from.calls != 1 {
		t.Errorf("%d messages for %d acknowledgements", from.calls, count)
	}
	c.finish(count*size, 1)
	wantRead(t, f.nodes[0], 1, 1001, data)
}

func TestAppendAndRecoveryStages(t *testing.T) {
	f := newFixture(t, 2, nil)
	data := random(1, 100_000)
	writeBlock(t, f.nodes, 1, 1001, data[:10_000])
	// Append at the middle of a chunk, with the new generation stamp.
	c := openWrite(t, f.nodes, appending, 1, 1001, 1002, 10_000, 0)
	wantRead(t, f.nodes[0], 1, 1002, data[:10_000])
	c.flush(10_000, data[10_000:10_100], false, 2)
	// The partial chunk again, from where the append began: that is unaligned.
	c.flush(10_000, data[10_000:10_240], false, 2)
	c.flush(10_240, data[10_240:50_000], false, 2)
	// The client loses its connection and comes back.
	c.nc.Close()
	c = openWrite(t, f.nodes, streamingRecovery, 1, 1002, 1003, 50_000, 50_000)
	c.flush(50_000/512*512, data[50_000/512*512:60_000], false, 2)
	c.nc.Close()
	// Everything is acknowledged; only the end is missing.
	c = dialNode(t, f.nodes[0])
	if resp := c.request(closeRecovery, 1, 1003, 1004, 60_000, 60_000, f.nodes[1:]); resp.GetStatus() != hdfspb.Status_SUCCESS {
		t.Fatalf("%v", resp)
	}
	for _, n := range f.nodes {
		wantRead(t, n, 1, 1004, data[:60_000])
		f.nn.wait("report", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVED, 1, 1004) })
	}
	// A failed append, with a replica still final on one DataNode.
	c = openWrite(t, f.nodes[:1], appending, 1, 1004, 1005, 60_000, 0)
	c.nc.Close()
	c = openWrite(t, f.nodes, appendRecovery, 1, 1004, 1006, 60_000, 60_000)
	c.flush(60_000, data[60_000:60_100], false, 2)
	c.finish(60_100, 2)
	for _, n := range f.nodes {
		wantRead(t, n, 1, 1006, data[:60_100])
	}
	// What does not fit is refused with a message.
	for _, r := range []struct {
		st                     stage
		gen, newGen, min, most uint64
	}{
		{appending, 1004, 1007, 60_100, 0}, {appending, 1006, 1005, 60_100, 0}, {appending, 1006, 1007, 60_000, 0},
		{streamingRecovery, 1006, 1007, 0, 100_000}, {create, 1006, 0, 0, 0}, {99, 1006, 0, 0, 0},
	} {
		c := dialNode(t, f.nodes[0])
		if resp := c.request(r.st, 1, r.gen, r.newGen, r.min, r.most, nil); resp.GetStatus() == hdfspb.Status_SUCCESS || resp.GetMessage() == "" || resp.FirstBadLink == nil {
			t.Errorf("%+v: %v", r, resp)
		}
	}
}

func TestBlockChecksum(t *testing.T) {
	f := newFixture(t, 1, nil)
	data := random(1, 300_001)
	writeBlock(t, f.nodes, 1, 1001, data)
	for _, n := range []int{300_001, 1000, 512, 262_144} {
		c := dialNode(t, f.nodes[0])
		must(t, transfer.WriteRequest(c.nc, transfer.OpBlockChecksum, &hdfspb.OpBlockChecksumProto{Header: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, uint64(n))}}))
		resp := &hdfspb.BlockOpResponseProto{}
		must(t, c.r.ReadMessage(resp))
		sums := make([]byte, 4*c.sum.Chunks(int64(n)))
		c.sum.Sum(sums, data[:n])
		want := md5.Sum(sums)
		if got := resp.GetChecksumResponse(); !bytes.Equal(got.GetBlockChecksum(), want[:]) || got.GetBytesPerCrc() != 512 || got.GetCrcPerBlock() != uint64(len(sums)/4) || got.GetCrcType() != hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C {
			t.Fatalf("%d bytes: %v", n, resp)
		}
	}
}

// A composite checksum is the CRC of the bytes themselves, of all or of each stripe.
func TestCompositeBlockChecksum(t *testing.T) {
	f := newFixture(t, 1, nil)
	data := random(1, 300_001)
	writeBlock(t, f.nodes, 1, 1001, data)
	ask := func(length int, stripe uint64) *hdfspb.BlockOpResponseProto {
		c := dialNode(t, f.nodes[0])
		must(t, transfer.WriteRequest(c.nc, transfer.OpBlockChecksum, &hdfspb.OpBlockChecksumProto{
			Header:               &hdfspb.BaseHeaderProto{Block: extended(1, 1001, uint64(length))},
			BlockChecksumOptions: &hdfspb.BlockChecksumOptionsProto{BlockChecksumType: hdfspb.BlockChecksumTypeProto_COMPOSITE_CRC.Enum(), StripeLength: &stripe},
		}))
		resp := &hdfspb.BlockOpResponseProto{}
		must(t, c.r.ReadMessage(resp))
		return resp
	}
	for _, c := range []struct{ length, stripe int }{{300_001, 0}, {300_001, 1 << 20}, {1000, 0}, {512, 512}, {1, 0}, {300_001, 1000}, {300_000, 1000}, {5000, 1}} {
		resp := ask(c.length, uint64(c.stripe))
		var want []byte
		step := c.stripe
		if step == 0 {
			step = c.length
		}
		for part := range slices.Chunk(data[:c.length], step) {
			want = binary.BigEndian.AppendUint32(want, crc32.Checksum(part, crc32.MakeTable(crc32.Castagnoli)))
		}
		got := resp.GetChecksumResponse()
		if !bytes.Equal(got.GetBlockChecksum(), want) || got.GetBlockChecksumOptions().GetBlockChecksumType() != hdfspb.BlockChecksumTypeProto_COMPOSITE_CRC {
			t.Errorf("%d bytes in stripes of %d: %v, want %x", c.length, c.stripe, resp, want)
		}
	}
	if resp := ask(2<<20, 1); resp.GetStatus() == hdfspb.Status_SUCCESS {
		t.Errorf("more stripes than a block may have: %v", resp.GetStatus())
	}
}

// transferBlock has the first DataNode copy a block to the others.
func transferBlock(t *testing.T, nodes []*node, id, generation uint64) {
	t.Helper()
	c := dialNode(t, nodes[0])
	must(t, transfer.WriteRequest(c.nc, transfer.OpTransferBlock, &hdfspb.OpTransferBlockProto{
		Header:  &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, generation, 0)}, ClientName: proto.String("test")},
		Targets: targets(nodes[1:]),
	}))
	resp := &hdfspb.BlockOpResponseProto{}
	must(t, c.r.ReadMessage(resp))
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		t.Fatalf("%v", resp)
	}
}

func TestTransferBlock(t *testing.T) {
	f := newFixture(t, 3, nil)
	data := random(1, 300_000)
	writeBlock(t, f.nodes[:1], 1, 1001, data)
	c := openWrite(t, f.nodes[:1], create, 2, 1001, 0, 0, 0)
	c.flush(0, data[:1000], false, 1)
	for id := uint64(1); id <= 2; id++ {
		transferBlock(t, f.nodes, id, 1001)
	}
	for _, n := range f.nodes[1:] {
		wantRead(t, n, 1, 1001, data)
		wantRead(t, n, 2, 1001, data[:1000])
	}
	c.nc.Close()
	// The new members take part in the pipeline.
	c = openWrite(t, f.nodes, streamingRecovery, 2, 1001, 1002, 1000, 1000)
	c.flush(512, data[512:5000], false, 3)
	c.finish(5000, 3)
	for _, n := range f.nodes {
		wantRead(t, n, 2, 1002, data[:5000])
	}
	// A second copy to the same place is refused, and the source says why.
	if err := f.nodes[0].copyBlock(context.Background(), &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001), Length: proto.Uint64(uint64(len(data)))}, "", targets(f.nodes[1:2])); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Fatalf("%v", err)
	}
}

// An append has begun when the NameNode's order to copy the block comes. The copy would
// lack what the append's pipeline acknowledges next, and have its generation.
func TestNoCopyOfWhatIsBeingWritten(t *testing.T) {
	f := newFixture(t, 2, nil)
	data := random(1, 5000)
	writeBlock(t, f.nodes[:1], 1, 1001, data[:1000])
	c := openWrite(t, f.nodes[:1], appending, 1, 1001, 1002, 1000, 0)
	c.flush(1000, data[1000:], false, 1)
	for _, b := range []*clusterpb.Block{
		{Id: proto.Uint64(1), Generation: proto.Uint64(1001), Length: proto.Uint64(1000)},
		{Id: proto.Uint64(1), Generation: proto.Uint64(1002), Length: proto.Uint64(5000)},
	} {
		err := f.nodes[0].replicate(&clusterpb.Command{Block: b, Targets: []*clusterpb.Datanode{f.nodes[1].proto()}})
		if !errors.Is(err, store.ErrState) {
			t.Fatalf("%v", err)
		}
	}
	// Nor for a client that knows of more bytes, or of a replica that may have lost some.
	asked := &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1002), Length: proto.Uint64(5001)}
	if err := f.nodes[0].copyBlock(t.Context(), asked, "client", targets(f.nodes[1:])); !errors.Is(err, store.ErrState) {
		t.Fatalf("%v", err)
	}
	torn := openWrite(t, f.nodes[:1], create, 2, 1001, 0, 0, 0)
	torn.flush(0, data, false, 1)
	torn.nc.Close()
	c.finish(5000, 1)
	c.nc.Close()
	f.nodes[0].cfg.BootID = "another boot"
	f.restart(0)
	asked = &clusterpb.Block{Id: proto.Uint64(2), Generation: proto.Uint64(1001), Length: proto.Uint64(1)}
	if err := f.nodes[0].copyBlock(t.Context(), asked, "client", targets(f.nodes[1:])); !errors.Is(err, store.ErrState) {
		t.Fatalf("%v", err)
	}
	must(t, f.nodes[0].replicate(&clusterpb.Command{Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1002), Length: proto.Uint64(5000)},
		Targets: []*clusterpb.Datanode{f.nodes[1].proto()}}))
	wantRead(t, f.nodes[1], 1, 1002, data)
	r, err := f.nodes[1].store.Get(1)
	must(t, err)
	if !r.Info().Synced {
		t.Fatal("the copy is not on stable storage, and what it was made of may be deleted")
	}
}

func (f *fixture) recover(leader *node, id, gen, newGen uint64, truncateTo *uint64) *clusterpb.CommitRecoveryRequest {
	f.t.Helper()
	var ts []*clusterpb.Datanode
	for _, n := range f.nodes {
		ts = append(ts, n.proto())
	}
	f.nn.mu.Lock()
	f.nn.commands[leader.UUID()] = []*clusterpb.Command{{Kind: clusterpb.Command_RECOVER.Enum(), NewGeneration: &newGen, TruncateTo: truncateTo, Targets: ts,
		Block: &clusterpb.Block{Id: &id, Generation: &gen}}}
	before := len(f.nn.commits)
	f.nn.mu.Unlock()
	f.nn.wait("commit of the recovery", func() bool { return len(f.nn.commits) > before })
	f.nn.mu.Lock()
	defer f.nn.mu.Unlock()
	return f.nn.commits[before]
}

// The client dies; one replica is shorter than the others.
func TestRecoveryOfAnOpenBlock(t *testing.T) {
	f := newFixture(t, 3, nil)
	data := random(1, 100_000)
	c := openWrite(t, f.nodes[:2], create, 1, 1001, 0, 0, 0)
	c.flush(0, data[:90_000], false, 2)
	d := openWrite(t, f.nodes[2:], create, 1, 1001, 0, 0, 0)
	d.flush(0, data[:70_123], false, 1)
	// The writers are still connected: the recovery stops them.
	commit := f.recover(f.nodes[1], 1, 1001, 1010, nil)
	if commit.GetBlock().GetLength() != 70_123 || commit.GetNewGeneration() != 1010 || len(commit.GetDatanodes()) != 3 {
		t.Fatalf("%v", commit)
	}
	for _, n := range f.nodes {
		wantRead(t, n, 1, 1010, data[:70_123])
		if _, err := readAll(t, n, 1, 1010, 70_124); err == nil {
			t.Fatal("the replica was not cut")
		}
	}
	// Other bytes come after the cut; the old ones never show again.
	other := random(2, 5000)
	c = openWrite(t, f.nodes, appending, 1, 1010, 1011, 70_123, 0)
	c.flush(70_123, other[:100], false, 3)
	c.nc.Close()
	for i := range f.nodes {
		wantRead(t, f.restart(i), 1, 1011, append(bytes.Clone(data[:70_123]), other[:100]...))
	}
	// Two that wait for recovery and a new one; the same length everywhere.
	commit = f.recover(f.nodes[0], 1, 1011, 1012, nil)
	if commit.GetBlock().GetLength() != 70_223 || len(commit.GetDatanodes()) != 3 {
		t.Fatalf("%v", commit)
	}
	// Truncation.
	n := uint64(1000)
	commit = f.recover(f.nodes[2], 1, 1012, 1013, &n)
	if commit.GetBlock().GetLength() != 1000 || len(commit.GetDatanodes()) != 3 {
		t.Fatalf("%v", commit)
	}
	for _, node := range f.nodes {
		wantRead(t, node, 1, 1013, data[:1000])
	}
	// Nobody has it: the block is nothing.
	commit = f.recover(f.nodes[2], 77, 1012, 1013, nil)
	if commit.GetBlock().GetLength() != 0 || len(commit.GetDatanodes()) != 0 {
		t.Fatalf("%v", commit)
	}
}

func TestNameNodeAway(t *testing.T) {
	f := newFixture(t, 2, nil)
	data := random(1, 100_000)
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	c.flush(0, data[:50_000], false, 2)
	f.nn.lose(true)
	start := int64(50_000 / 512 * 512)
	c.flush(start, data[start:], false, 2)
	f.nn.lose(true)
	for _, n := range f.nodes {
		for n.hasNameNode() {
			if !n.sleep(time.Millisecond) {
				t.Fatal("closed")
			}
		}
	}
	c.finish(100_000, 2)
	writeBlock(t, f.nodes, 2, 1001, data)
	f.nn.mu.Lock()
	f.nn.away = false
	f.nn.mu.Unlock()
	for _, n := range f.nodes {
		wantRead(t, n, 1, 1001, data)
		for id := uint64(1); id <= 2; id++ {
			f.nn.wait("report after the return", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVED, id, 1001) })
		}
	}
}

// A DataNode that does not hear whether a report has come begins a new session and
// tells everything again.
func TestReportWhoseAnswerIsLost(t *testing.T) {
	f := newFixture(t, 1, nil)
	n := f.nodes[0]
	f.nn.mu.Lock()
	before := f.nn.full[n.UUID()]
	f.nn.lost = 1
	f.nn.mu.Unlock()
	writeBlock(t, f.nodes, 1, 1001, random(1, 1000))
	f.nn.wait("a full report with the block", func() bool {
		for _, r := range f.nn.reports[n.UUID()] {
			if r.GetBlock().GetId() == 1 && f.nn.full[n.UUID()] > before {
				return f.nn.lost == 0
			}
		}
		return false
	})
	f.nn.wait("the change once more", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVED, 1, 1001) })
}

func TestForeignPool(t *testing.T) {
	f := newFixture(t, 1, nil)
	c := dialNode(t, f.nodes[0])
	b := extended(1, 1001, 0)
	b.PoolId = proto.String("BP-other")
	must(t, transfer.WriteRequest(c.nc, transfer.OpBlockChecksum, &hdfspb.OpBlockChecksumProto{Header: &hdfspb.BaseHeaderProto{Block: b}}))
	resp := &hdfspb.BlockOpResponseProto{}
	must(t, c.r.ReadMessage(resp))
	if resp.GetStatus() != hdfspb.Status_ERROR || !strings.Contains(resp.GetMessage(), "block pool") {
		t.Fatalf("%v", resp)
	}
}

func TestGarbage(t *testing.T) {
	t.Parallel() // it waits for the timeout
	f := newFixture(t, 1, func(_ int, c *Config) { c.HandshakeTimeout = 3 * time.Second })
	n := f.nodes[0]
	open := func(write ...[]byte) {
		nc, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		if err := nc.SetDeadline(time.Now().Add(patient)); err != nil {
			t.Error(err)
		}
		for _, b := range write {
			if _, err := nc.Write(b); err != nil {
				break
			}
		}
		if _, err := io.Copy(io.Discard, nc); err != nil && !connectionBroken(err) {
			t.Errorf("% x: not closed: %v", write, err)
		}
	}
	writeOp, err := transfer.AppendRequest(nil, transfer.OpWriteBlock, &hdfspb.OpWriteBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, 0)}, ClientName: proto.String("test")},
		Stage:  create.Enum(), PipelineSize: proto.Uint32(0), MinBytesRcvd: proto.Uint64(0), MaxBytesRcvd: proto.Uint64(0),
		LatestGenerationStamp: proto.Uint64(0), RequestedChecksum: transfer.CRC32C().Proto(),
	})
	must(t, err)
	var all sync.WaitGroup // some wait for the timeout
	for _, b := range [][][]byte{
		{},
		{[]byte("G")},
		{[]byte("GET / HTTP/1.1\r\n\r\n")},
		{[]byte("hrp")},
		{[]byte("hello")},
		{[]byte("hrpc\xff\xff\xff\xff\xff\xff\xff\xff")},
		{{0}},
		{{0, 28}},
		{{0, 27, 80}},
		{{0, 28, 1, 2, 3}},
		{{0, 28, 80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{{0, 28, 80, 0xff, 0xff, 0xff, 0x0f}},
		{{0, 28, 80, 3, 1, 2, 3}},
		{{0, 28, 81, 0}},
		{{0, 28, 87, 0}},
		{writeOp, {0xff, 0xff, 0xff, 0xff, 0, 25}},
		{writeOp, {0, 0, 0, 3, 0, 25}},
		{writeOp, {0, 0, 0, 4, 0xff, 0xff}},
		{writeOp, bytes.Repeat([]byte{0}, 100)},
		{random(3, 100_000)},
	} {
		all.Go(func() { open(b...) })
	}
	all.Wait()
	writeBlock(t, f.nodes, 2, 1001, []byte("undisturbed"))
}

func TestTooManyTransfers(t *testing.T) {
	f := newFixture(t, 1, func(_ int, c *Config) { c.MaxTransfers = 2 })
	for id := range uint64(2) {
		openWrite(t, f.nodes, create, id, 1001, 0, 0, 0)
	}
	c := dialNode(t, f.nodes[0])
	if resp := c.request(create, 9, 1001, 0, 0, 0, nil); resp.GetStatus() != hdfspb.Status_ERROR || !strings.Contains(resp.GetMessage(), "MaxTransfers") {
		t.Fatalf("%v", resp)
	}
}

func TestTooManyConnections(t *testing.T) {
	f := newFixture(t, 1, func(_ int, c *Config) { c.MaxConns = 2 })
	for id := range uint64(2) {
		openWrite(t, f.nodes, create, id, 1001, 0, 0, 0)
	}
	nc, err := net.Dial("tcp", f.nodes[0].addr)
	must(t, err)
	defer nc.Close()
	must(t, nc.SetDeadline(time.Now().Add(patient)))
	if n, err := io.Copy(io.Discard, nc); n != 0 || err != nil && !connectionBroken(err) {
		t.Fatalf("%d bytes, %v", n, err)
	}
}

// A pipeline breaks after its set-up and before the first packet: the replicas
// live on, and the client goes on with them under a new generation.
func TestBrokenBeforeTheFirstPacket(t *testing.T) {
	for victim := range 3 {
		f := newFixture(t, 3, nil)
		c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
		alive := slices.Delete(slices.Clone(f.nodes), victim, victim+1)
		for _, n := range f.nodes {
			f.nn.wait("begun", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVING, 1, 1001) })
		}
		f.nodes[victim].stop()
		c.nc.Close()
		for _, n := range alive {
			n.waitIdle(t, 1)
		}
		data := random(1, 10_000)
		c = openWrite(t, alive, streamingRecovery, 1, 1001, 1002, 0, 10_000)
		c.flush(0, data, false, 2)
		c.finish(10_000, 2)
		for _, n := range alive {
			wantRead(t, n, 1, 1002, data)
		}
		f.restart(victim)
	}
}

// waitIdle waits until a replica has no writer.
func (n *node) waitIdle(t testing.TB, id uint64) {
	t.Helper()
	for end := time.Now().Add(patient); time.Now().Before(end); n.sleep(time.Millisecond) {
		r, err := n.store.Get(id)
		must(t, err)
		if !r.Info().HasWriter {
			return
		}
	}
	t.Fatalf("block %d still has a writer", id)
}

// One holder can't be asked, another one has an empty replica: so no byte was
// ever acknowledged, and the recovery ends.
func TestRecoveryWithAnEmptyReplica(t *testing.T) {
	f := newFixture(t, 2, nil)
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	for _, n := range f.nodes {
		f.nn.wait("begun", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVING, 1, 1001) })
	}
	c.nc.Close()
	f.nodes[1].stop()
	commit := f.recover(f.nodes[0], 1, 1001, 1010, nil)
	if commit.GetBlock().GetLength() != 0 || len(commit.GetDatanodes()) != 0 {
		t.Fatalf("%v", commit)
	}
	f.restart(1)
}

// A recovery has heard that a block is nowhere and gives it up. The writer that was given
// it before, and was slow, gets no byte acknowledged any more.
func TestWriterAfterTheRecovery(t *testing.T) {
	f := newFixture(t, 2, nil)
	if commit := f.recover(f.nodes[0], 1, 1001, 1010, nil); commit.GetUnwritten() || len(commit.GetDatanodes()) != 0 {
		t.Fatalf("%v", commit)
	}
	for i := range f.nodes {
		resp := dialNode(t, f.nodes[i]).request(create, 1, 1001, 0, 0, 0, nil)
		if resp.GetStatus() == hdfspb.Status_SUCCESS || !strings.Contains(resp.GetMessage(), "recovery 1010") {
			t.Fatalf("the pipeline was set up: %v", resp)
		}
	}
}

// Who does not answer may have flushed bytes that those who answer have lost in a power
// cut. Somebody who has lost nothing speaks for all.
func TestRecoveryWithoutSomeOfThePipeline(t *testing.T) {
	for _, c := range []struct {
		name         string
		torn         bool // the leader's machine has died
		late         bool
		missing      uint32
		length, fail bool
	}{
		{name: "all answer"},
		{name: "all answer, one after a power cut", torn: true},
		{name: "one is missing", missing: 1},
		{name: "one is missing, the other one had a power cut", missing: 1, torn: true, fail: true},
		{name: "the same, for longer than the limit", missing: 1, torn: true, late: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, 1, nil)
			n := f.nodes[0]
			w := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
			w.flush(0, random(1, 5000), false, 1)
			w.nc.Close()
			if c.torn {
				n.cfg.BootID = "another boot"
				n = f.restart(0)
			}
			cmd := &clusterpb.Command{Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001)}, NewGeneration: proto.Uint64(1010),
				Targets: []*clusterpb.Datanode{n.proto()}, Missing: &c.missing, Late: &c.late}
			if err := n.DataNode.recover(t.Context(), cmd); (err != nil) != c.fail {
				t.Fatalf("%v", err)
			}
			f.nn.mu.Lock()
			defer f.nn.mu.Unlock()
			if c.fail != (len(f.nn.commits) == 0) || !c.fail && f.nn.commits[0].GetBlock().GetLength() != 5000 {
				t.Fatalf("%v", f.nn.commits)
			}
		})
	}
}

// After a power cut on all the longest replica decides. Who has lost its end gets it, so that
// bytes that two had synced do not hang on one disk.
func TestRecoveryExtendsTheShorter(t *testing.T) {
	for _, c := range []struct {
		name      string
		one       int   // bytes of the second DataNode's replica
		damaged   int64 // an offset in it
		leader    int
		fails     bool // first: it is not the leader that has all
		datanodes int
	}{
		{name: "a shorter one", one: 3000, datanodes: 2},
		{name: "one that ends with a chunk", one: 1024, datanodes: 2},
		{name: "one with checksums behind its end", one: 70_000, damaged: 3100, datanodes: 2},
		{name: "led by the shorter one", one: 3000, leader: 1, fails: true, datanodes: 2},
		{name: "an empty one", one: 0, datanodes: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, 2, nil)
			data := random(1, 70_000)
			for i, n := range []int{len(data), c.one} {
				w := openWrite(t, f.nodes[i:i+1], create, 1, 1001, 0, 0, 0)
				if n > 0 {
					w.flush(0, data[:n], false, 1)
				}
				f.nn.wait("begun", func() bool { return f.nn.told(f.nodes[i].UUID(), clusterpb.ReplicaChange_RECEIVING, 1, 1001) })
				w.nc.Close()
			}
			if c.damaged > 0 {
				f.damage(f.nodes[1], 1, "data", c.damaged)
			}
			for i := range f.nodes {
				f.nodes[i].cfg.BootID = "another boot"
				f.restart(i)
			}
			cmd := &clusterpb.Command{Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001)}, NewGeneration: proto.Uint64(1010),
				Targets: []*clusterpb.Datanode{f.nodes[0].proto(), f.nodes[1].proto()}}
			if err := f.nodes[c.leader].DataNode.recover(t.Context(), cmd); c.fails != (err != nil) {
				t.Fatal(err)
			}
			if c.fails {
				cmd.NewGeneration = proto.Uint64(1011)
				must(t, f.nodes[0].DataNode.recover(t.Context(), cmd))
			}
			f.nn.mu.Lock()
			commits := f.nn.commits
			f.nn.mu.Unlock()
			if len(commits) != 1 || len(commits[0].GetDatanodes()) != c.datanodes || commits[0].GetBlock().GetLength() != uint64(len(data)) {
				t.Fatalf("%v", commits)
			}
			for _, n := range f.nodes[:c.datanodes] {
				wantRead(t, n, 1, cmd.GetNewGeneration(), data)
			}
		})
	}
}

// fullDisk is a holder that has no room to settle on anything.
type fullDisk struct{ cluster.DataNode }

func (fullDisk) UpdateRecovery(context.Context, *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	return nil, syscall.ENOSPC
}

// Bytes that two DataNodes have stay on two: a recovery does not go on with the only one
// that can settle, unless it has been tried for long. The next attempt has both.
func TestRecoveryThatOneCannotSettle(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%t", late), func(t *testing.T) {
			full := true
			var f *fixture
			f = newFixture(t, 2, func(_ int, c *Config) {
				c.Holder = func(addr string) cluster.DataNode {
					if full {
						return fullDisk{f.net.holder(addr)}
					}
					return f.net.holder(addr)
				}
			})
			w := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
			w.flush(0, random(1, 5000), false, 2)
			w.nc.Close()
			cmd := &clusterpb.Command{Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001)}, NewGeneration: proto.Uint64(1010),
				Targets: []*clusterpb.Datanode{f.nodes[0].proto(), f.nodes[1].proto()}, Late: &late}
			if err := f.nodes[0].DataNode.recover(t.Context(), cmd); late != (err == nil) || err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			want := 1
			if !late {
				full, want = false, 2
				cmd.NewGeneration = proto.Uint64(1011)
				must(t, f.nodes[0].DataNode.recover(t.Context(), cmd))
			}
			f.nn.mu.Lock()
			defer f.nn.mu.Unlock()
			if c := f.nn.commits; len(c) != 1 || len(c[0].GetDatanodes()) != want || c[0].GetBlock().GetLength() != 5000 {
				t.Fatalf("%v", c)
			}
		})
	}
}

// Replicas closed without hsync are fsynced after a while, those of an earlier
// process too.
func TestSettle(t *testing.T) {
	f := newFixture(t, 1, func(_ int, c *Config) { c.SyncAfter = time.Hour })
	writeBlock(t, f.nodes, 1, 1001, []byte("one"))
	f.nodes[0].cfg.SyncAfter = time.Millisecond
	n := f.restart(0)
	writeBlock(t, f.nodes, 2, 1001, []byte("two"))
	for id := uint64(1); id <= 2; id++ {
		r, err := n.store.Get(id)
		must(t, err)
		for end := time.Now().Add(patient); !r.Info().Synced; n.sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("block %d was never synced", id)
			}
		}
	}
}

// A client that falls silent does not hold its replica for ever.
func TestSilentClient(t *testing.T) {
	t.Parallel() // it waits for the timeout
	f := newFixture(t, 2, func(_ int, c *Config) { c.ReadTimeout = 3 * time.Second })
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	c.flush(0, random(1, 100), false, 2)
	if _, err := io.Copy(io.Discard, c.nc); err != nil && !connectionBroken(err) {
		t.Fatal(err)
	}
}

func TestForeignCluster(t *testing.T) {
	f := newFixture(t, 1, nil)
	f.nn.mu.Lock()
	f.nn.cluster = "CID-other"
	f.nn.mu.Unlock()
	before := f.nodes[0].store.Identity()
	f.nn.lose(false)
	for f.nodes[0].hasNameNode() {
		f.nodes[0].sleep(time.Millisecond)
	}
	if f.nodes[0].store.Identity() != before {
		t.Fatal("the identity changed")
	}
}

// A packet without checksums, as HDFS's clients send them of files that are to live in
// memory, gets those that its DataNode makes, in whichever piece its bytes come. A copy of
// another DataNode must have them.
func TestPacketsWithoutChecksums(t *testing.T) {
	bare := func(h transfer.PacketHeader, data []byte) []byte {
		h.DataLen = int32(len(data))
		return append(transfer.AppendPacketPrefix(nil, &h, 0), data...)
	}
	for _, nodes := range []int{1, 2} {
		f := newFixture(t, nodes, nil)
		c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
		data := random(1, 3000)
		at := int64(0)
		for _, to := range []int64{1000, 1024, 1100, 3000, 3000} {
			_, err := c.nc.Write(bare(transfer.PacketHeader{Offset: at, Seqno: c.seq, Last: to == at}, data[at:to]))
			must(t, err)
			c.ackOK(c.seq, nodes)
			at, c.seq = to, c.seq+1
		}
		for _, n := range f.nodes {
			n.waitIdle(t, 1)
			wantRead(t, n, 1, 1001, data) // which compares
			r, err := n.store.Get(1)
			must(t, err)
			must(t, r.Verify(nil))
		}
		if nodes == 1 {
			continue
		}
		c = openWrite(t, f.nodes[:1], hdfspb.OpWriteBlockProto_TRANSFER_FINALIZED, 2, 1001, 1001, 0, 0)
		_, err := c.nc.Write(bare(transfer.PacketHeader{}, data))
		must(t, err)
		if err := c.r.ReadMessage(&hdfspb.BlockOpResponseProto{}); err == nil {
			t.Error("a copy without checksums is answered")
		}
		waitGone(t, f.nodes[0], 2)
	}
}

// The bytes of a replica whose meta file is missing are sent to who asks for no checksums, to save them, and to
// nobody else. The NameNode hears that they are damaged.
func TestReplicaWithoutItsMetaFile(t *testing.T) {
	f := newFixture(t, 1, nil)
	n := f.nodes[0]
	data := random(1, 5000)
	writeBlock(t, f.nodes, 1, 1001, data)
	must(t, n.cfg.FS.Remove("/dn/blocks/00/blk_1_1001.meta"))
	got, err := dialNode(t, n).read(1, 1001, 1000, 3000, false)
	if err != nil || !bytes.Equal(got, data[1000:4000]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	f.nn.wait("report of the damage", func() bool { return f.nn.told(n.UUID(), clusterpb.ReplicaChange_CORRUPT, 1, 1001) })
	if got, err := dialNode(t, n).read(1, 1001, 1000, 3000, true); err == nil {
		t.Errorf("%d bytes are sent to who compares", len(got))
	}
}
