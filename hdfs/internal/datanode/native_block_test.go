package datanode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// writeOf is the write of a new block to targets behind the first DataNode.
func writeOf(id uint64, to ...*node) *hdfspb.OpWriteBlockProto {
	return &hdfspb.OpWriteBlockProto{
		Header:  &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, 1001, 0)}, ClientName: proto.String("test")},
		Targets: targets(to), Stage: create.Enum(), PipelineSize: proto.Uint32(uint32(1 + len(to))),
		MinBytesRcvd: proto.Uint64(0), MaxBytesRcvd: proto.Uint64(0), LatestGenerationStamp: proto.Uint64(0), RequestedChecksum: transfer.CRC32C().Proto(),
	}
}

// A nativeClient writes blocks over an endpoint of its own.
type nativeClient struct {
	t   testing.TB
	ctx context.Context
	ep  *verbena.Endpoint
}

// dialNative connects plainly, so that nothing of it takes what devices have.
func dialNative(t testing.TB, n *node) *nativeClient {
	t.Helper()
	table := newRuntime(t, nil, "client")
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	ep, err := table.Runtime.Dial(ctx, n.addr, native.Service, table.Dial)
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	return &nativeClient{t, ctx, ep}
}

func (c *nativeClient) send(tag uint32, b []byte) {
	c.t.Helper()
	must(c.t, c.ep.Send(c.ctx, tag, b))
}

// next returns the next message for a block.
func (c *nativeClient) next(tag uint32) []byte {
	c.t.Helper()
	for {
		m, err := c.ep.Receive(c.ctx)
		must(c.t, err)
		b := append([]byte(nil), m.Bytes()...)
		mine := m.Tag == tag
		if m.Release(); mine {
			return b
		}
	}
}

func (c *nativeClient) setUp(tag uint32, op *hdfspb.OpWriteBlockProto) (native.Verdict, *hdfspb.BlockOpResponseProto) {
	c.t.Helper()
	return c.setUpWith(tag, 1<<20, op)
}

func (c *nativeClient) setUpWith(tag uint32, window int, op *hdfspb.OpWriteBlockProto) (native.Verdict, *hdfspb.BlockOpResponseProto) {
	c.t.Helper()
	message, err := native.AppendSetUp(nil, window, op)
	must(c.t, err)
	c.send(tag, message)
	v, resp, err := native.ParseAnswer(c.next(tag))
	must(c.t, err)
	return v, resp
}

// A DataNode whose pipeline can't go on because the next one has no room for an endpoint says
// so: nothing has failed, and when there is room the same pipeline is set up.
func TestNextDataNodeWithoutRoom(t *testing.T) {
	const id = 1
	network := fake.NewNetwork()
	f := newNativesOn(t, network, 3, func(i int, c *Config) {
		c.DialTimeout = 2 * time.Second
		c.Native.Dial.Transport = "fakeband"
		if i == 2 {
			c.Native = newRuntimeWith(t, network, "full", 4<<20)
			c.Native.Dial.Transport = "fakeband"
		}
	}, nil)
	// Others take all the room that the last one has.
	others := newRuntime(t, network, "others")
	others.Dial.Transport = "fakeband"
	var crowd []*verbena.Endpoint
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		ep, err := others.Runtime.Dial(ctx, f.nodes[2].addr, native.Service, others.Dial)
		cancel()
		var none *verbena.SelectionError
		if errors.As(err, &none) && none.Temporary() {
			break
		}
		must(t, err)
		t.Cleanup(func() { ep.Close() })
		crowd = append(crowd, ep)
	}
	c := dialNative(t, f.nodes[0])
	v, resp := c.setUp(7, writeOf(id, f.nodes[1:]...))
	if v != native.Busy || resp.GetStatus() != native.StatusNoRoom || resp.GetFirstBadLink() != f.nodes[2].addr {
		t.Fatalf("answer %d: %v", v, resp)
	}
	for _, ep := range crowd {
		must(t, ep.Close())
	}
	for tag := uint32(8); v != native.Accepted; tag++ {
		if v, resp = c.setUp(tag, writeOf(id, f.nodes[1:]...)); v != native.Accepted && (v != native.Busy || c.ctx.Err() != nil) {
			t.Fatalf("answer %d with room: %v", v, resp)
		}
	}
}

// A packet that the disk has not taken is not acknowledged, neither at the end of a pipeline
// nor before it, however soon the DataNodes behind have it.
func TestPacketsAreAcknowledgedWhenTheyAreWritten(t *testing.T) {
	for _, holds := range []int{0, 1} {
		d := newDam()
		f := newNatives(t, 2, func(i int, c *Config) {
			if i == holds {
				c.FS = d.disk()
			}
		})
		c := dialNative(t, f.nodes[0])
		if v, resp := c.setUp(7, writeOf(1, f.nodes[1])); v != native.Accepted {
			t.Fatal(resp)
		}
		d.shut.Store(true)
		packets := nativePackets(random(1, 1000), 1000)
		c.send(7, packets[0])
		d.wait(t)
		if other := f.nodes[1-holds]; holds == 0 {
			// The mirror has acknowledged its part.
			for other.Packets().Acknowledgements == 0 {
				if !other.sleep(time.Millisecond) || c.ctx.Err() != nil {
					t.Fatal("the DataNode behind acknowledges nothing")
				}
			}
		}
		if n := f.nodes[holds].Packets().Acknowledgements; n != 0 {
			t.Errorf("DataNode %d has acknowledged %d times what it has not written", holds, n)
		}
		if holds == 1 {
			if n := f.nodes[0].Packets().Acknowledgements; n != 0 {
				t.Errorf("the first DataNode has acknowledged %d times what the last one has not written", n)
			}
		}
		d.free()
		var a transfer.Ack
		if must(t, native.ParseAck(c.next(7), &a)); !a.OK() || a.Seqno != 0 || len(a.Replies) != 2 {
			t.Errorf("acknowledgement %+v", a)
		}
	}
}

// Whoever sends more than his window has ends, also when much of the block has been
// acknowledged before: what an acknowledgement gives back it gives back once.
func TestWindowsAreGivenBackOnce(t *testing.T) {
	d := newDam()
	f := newNatives(t, 2, func(i int, c *Config) {
		if i == 1 {
			c.FS = d.disk()
		}
	})
	c := dialNative(t, f.nodes[0])
	packets := nativePackets(random(1, 600_000), 40_960)
	window := 2*len(packets[0]) + 100
	if v, resp := c.setUpWith(7, window, writeOf(1, f.nodes[1])); v != native.Accepted {
		t.Fatal(resp)
	}
	var a transfer.Ack
	for seqno := range int64(6) {
		c.send(7, packets[seqno])
		if must(t, native.ParseAck(c.next(7), &a)); !a.OK() || a.Seqno != seqno {
			t.Fatalf("acknowledgement %+v of packet %d", a, seqno)
		}
	}
	d.shut.Store(true)
	defer d.free()
	for _, p := range packets[6:10] {
		if c.ep.Send(c.ctx, 7, p) != nil {
			break
		}
	}
	if m, err := c.ep.Receive(c.ctx); err == nil || c.ctx.Err() != nil {
		t.Errorf("%d packets are on their way in a window for two: %v, %v", 4, m, err)
	}
}

// DataNodes stand in a pipeline as the set-up names them, and so do their answers: of two
// behind, the nearer one is to blame for what it has not written.
func TestOrderOfAPipeline(t *testing.T) {
	for failing := range 3 {
		fs := &fullFS{}
		f := newNatives(t, 3, func(i int, c *Config) {
			if i == failing {
				fs.FS = c.FS
				c.FS = fs
			}
		})
		c := dialNative(t, f.nodes[0])
		op := writeOf(1, f.nodes[1:]...)
		if v, resp := c.setUp(7, op); v != native.Accepted {
			t.Fatal(resp)
		}
		fs.full.Store(true)
		c.send(7, nativePackets(random(1, 1000), 1000)[0])
		var a transfer.Ack
		must(t, native.ParseAck(c.next(7), &a))
		if len(a.Replies) != failing+1 || a.Replies[failing] != hdfspb.Status_ERROR {
			t.Errorf("DataNode %d has failed, and the answers are %v", failing, a.Replies)
		}
	}
}

// A set-up needs a token to write that very block, at each DataNode: one for another block, to
// read alone, of an older generation or that has expired begins nothing.
func TestNativeSetUpsWantTokens(t *testing.T) {
	network := fake.NewNetwork()
	g := newGuardedWith(t, 2, func(i int, c *Config) { c.Native = newRuntime(t, network, fmt.Sprint("datanode-", i)) })
	c := dialNative(t, g.nodes[0])
	tag := uint32(6)
	begin := func(token *hdfspb.TokenProto, op *hdfspb.OpWriteBlockProto) (native.Verdict, *hdfspb.BlockOpResponseProto) {
		op.Header.BaseHeader.Token = token
		tag++
		return c.setUp(tag, op)
	}
	for what, token := range map[string]*hdfspb.TokenProto{
		"none":             nil,
		"empty":            blocktoken.None(),
		"of another block": g.token("ada", blocktoken.Write, 2, 1001),
		"to read":          g.token("ada", blocktoken.Read|blocktoken.Copy|blocktoken.Replace, 1, 1001),
		"older":            g.token("ada", blocktoken.Write, 1, 1000),
		"expired":          g.issuer.Grant(time.Now().Add(-10*time.Hour-time.Second), "ada", blocktoken.Write, extended(1, 1001, 0), nil, nil),
	} {
		if v, resp := begin(token, writeOf(1, g.nodes[1])); v != native.Refused || resp.GetStatus() != hdfspb.Status_ERROR_ACCESS_TOKEN {
			t.Errorf("token %s: verdict %d, %v", what, v, resp)
		}
	}
	good := g.token("ada", blocktoken.Write, 1, 1001)
	if v, resp := begin(good, writeOf(1, g.nodes[1])); v != native.Accepted {
		t.Fatalf("with a token: verdict %d, %v", v, resp)
	}
	packet := nativePackets(random(1, 1000), 1000)
	c.send(tag, packet[0])
	c.send(tag, packet[1])
	for seqno := int64(-1); seqno < 1; {
		var a transfer.Ack
		if must(t, native.ParseAck(c.next(tag), &a)); !a.OK() {
			t.Fatalf("%+v", a)
		}
		seqno = a.Seqno
	}
	// A writer that has lost its lease has a token of an older generation.
	late := writeOf(1)
	late.Stage, late.LatestGenerationStamp = appending.Enum(), proto.Uint64(1002)
	late.MinBytesRcvd, late.MaxBytesRcvd = proto.Uint64(1000), proto.Uint64(1000)
	if v, resp := begin(good, late); v != native.Refused || resp.GetStatus() != hdfspb.Status_ERROR_ACCESS_TOKEN {
		t.Errorf("append under a generation that the token is not for: verdict %d, %v", v, resp)
	}
}

// Blocks that are open have no goroutine of their own, at none of the DataNodes of their
// pipelines: the receiver of each endpoint serves all of them.
func TestOpenBlocksHaveNoGoroutines(t *testing.T) {
	const blocks = 100
	f := newNatives(t, 2, nil)
	c := dialNative(t, f.nodes[0])
	packets := nativePackets(random(1, 1000), 500)
	open := func(tag uint32) {
		t.Helper()
		if v, resp := c.setUp(tag, writeOf(uint64(tag), f.nodes[1])); v != native.Accepted {
			t.Fatal(resp)
		}
		c.send(tag, packets[0])
		var a transfer.Ack
		if must(t, native.ParseAck(c.next(tag), &a)); !a.OK() {
			t.Fatalf("%+v", a)
		}
	}
	open(1) // connects the two
	before := runtime.NumGoroutine()
	for tag := range uint32(blocks) {
		open(2 + tag)
	}
	for end := time.Now().Add(patient); ; time.Sleep(time.Millisecond) {
		more := runtime.NumGoroutine() - before
		if more < blocks/10 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines more for %d open blocks at each of two DataNodes", more, blocks)
		}
	}
	for tag := range uint32(blocks) {
		c.send(2+tag, packets[1])
		var a transfer.Ack
		if must(t, native.ParseAck(c.next(2+tag), &a)); !a.OK() || a.Seqno != 1 {
			t.Fatalf("block %d: %+v", tag, a)
		}
	}
}

// packetsOf are the packets of size bytes of data of a block, with the numbers that are told, and
// no last one.
func packetsOf(data []byte, size int, seqnos ...uint64) [][]byte {
	packets := nativePackets(data, size)[:len(seqnos)]
	for i, n := range seqnos {
		binary.BigEndian.PutUint64(packets[i][16:], n)
	}
	return packets
}

// piecePacket is a packet of the data from one offset to another. It is to be synced, or not.
func piecePacket(data []byte, from, to int, seqno int64, sync bool) []byte {
	sum, part := transfer.CRC32C(), data[from:to]
	h := transfer.PacketHeader{Offset: int64(from), Seqno: seqno, DataLen: int32(len(part)), Sync: sync}
	b := make([]byte, native.PacketHeaderLen+int(sum.Chunks(int64(len(part))))*4)
	native.PutPacketHeader(b, &h, len(b)-native.PacketHeaderLen)
	sum.Sum(b[native.PacketHeaderLen:], part)
	return append(b, part...)
}

// waitPending waits until a block has so many packets that are written and wait for the DataNode behind.
func (n *node) waitPending(t *testing.T, packets int) {
	t.Helper()
	for end := time.Now().Add(patient); time.Now().Before(end); n.sleep(time.Millisecond) {
		n.native.mu.Lock()
		var blocks []*nativeBlock
		for l := range n.native.links {
			blocks = append(blocks, l.all()...)
		}
		n.native.mu.Unlock()
		for _, b := range blocks {
			b.mu.Lock()
			pending := b.pending.Len()
			b.mu.Unlock()
			if pending == packets {
				return
			}
		}
	}
	t.Fatalf("no block has %d packets that wait", packets)
}

// Of packets that are acknowledged together readers see all data, with the checksum of its end: also if the
// last packet has none, or ends before another one.
func TestPacketsThatAreAcknowledgedTogetherShowAllTheirData(t *testing.T) {
	data := random(1, 1000)
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	must(t, err)
	ack := native.AppendAck(nil, &transfer.Ack{Seqno: 1, Replies: make([]hdfspb.Status, 1)})
	for name, c := range map[string]struct {
		first, second []byte
		visible       int
	}{
		"the last one has no data":      {piecePacket(data, 0, 700, 0, false), piecePacket(data, 700, 700, 1, true), 700},
		"and lies behind the others":    {piecePacket(data, 0, 700, 0, false), piecePacket(data, 1000, 1000, 1, true), 700},
		"the last one is of older data": {piecePacket(data, 0, 1000, 0, false), piecePacket(data, 0, 300, 1, false), 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written := make(chan struct{})
			f := newNativesBefore(t, func(ctx context.Context, ep *verbena.Endpoint) error {
				for {
					m, err := ep.Receive(ctx)
					if err != nil {
						return err
					}
					kind, tag := native.KindOf(m.Bytes()), m.Tag
					last := kind == native.Packet && binary.BigEndian.Uint64(m.Bytes()[16:]) == 1
					if m.Release(); kind == native.SetUp {
						err = ep.Send(ctx, tag, accepted)
					}
					if last {
						<-written
						err = ep.Send(ctx, tag, ack)
					}
					if err != nil {
						return err
					}
				}
			})
			n, cl := f.nodes[0], dialNative(t, f.nodes[0])
			if v, resp := cl.setUp(7, writeOf(1, f.nodes[1])); v != native.Accepted {
				t.Fatal(resp)
			}
			cl.send(7, c.first)
			cl.send(7, c.second)
			n.waitPending(t, 2)
			close(written)
			var a transfer.Ack
			if must(t, native.ParseAck(cl.next(7), &a)); !a.OK() || a.Seqno != 1 {
				t.Fatalf("%+v", a)
			}
			r, err := n.store.Get(1)
			must(t, err)
			if info := r.Info(); info.Visible != int64(c.visible) {
				t.Errorf("%+v", info)
			}
			wantRead(t, n, 1, 1001, data[:c.visible])
		})
	}
}

// A disk that becomes full ends a block whose packets go back, and nothing else: what is not written is
// not acknowledged, whatever has been behind it.
func TestFullDiskUnderPacketsThatGoBack(t *testing.T) {
	data := random(1, 1500)
	gate := make(chan struct{})
	var sums int64 // where the first checksums are
	f := newNatives(t, 1, func(_ int, c *Config) {
		c.FS = errorfs.Wrap(c.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
			name := filepath.Base(op.Path)
			switch {
			case op.Kind == errorfs.OpCreate && name == "blk_1":
				<-gate
			case op.Kind == errorfs.OpFileWriteAt && strings.HasPrefix(name, "blk_1_"):
				if sums == 0 {
					sums = op.Offset
				}
				if op.Offset > sums {
					return syscall.ENOSPC
				}
			}
			return nil
		}))
	})
	n, c := f.nodes[0], dialNative(t, f.nodes[0])
	setUp, err := native.AppendSetUp(nil, 1<<20, writeOf(1))
	must(t, err)
	c.send(7, setUp)
	// They wait for the replica, so that they are written together.
	c.send(7, piecePacket(data, 0, 600, 0, false))
	c.send(7, piecePacket(data, 600, 1500, 1, false))
	c.send(7, piecePacket(data, 0, 500, 2, false))
	for end := time.Now().Add(patient); n.Packets().Packets < 3; n.sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", n.Packets())
		}
	}
	close(gate)
	if v, resp, err := native.ParseAnswer(c.next(7)); err != nil || v != native.Accepted {
		t.Fatalf("verdict %d: %v, %v", v, resp, err)
	}
	var a transfer.Ack
	if must(t, native.ParseAck(c.next(7), &a)); !a.OK() || a.Seqno != 0 {
		t.Errorf("%+v of the packet that is written", a)
	}
	if must(t, native.ParseAck(c.next(7), &a)); len(a.Replies) != 1 || a.Replies[0] != hdfspb.Status_ERROR {
		t.Errorf("%+v of one that is not", a)
	}
	wantIdle(t, n)
	wantRead(t, n, 1, 1001, data[:600])
}

// The last DataNode of a pipeline compares what a client sends with its checksums: a packet that
// comes alone, and one among others. Nothing of it or of what is behind it is there afterwards, what
// was acknowledged stays, and another pipeline goes on from there.
func TestWrongChecksumsOverTheNativePath(t *testing.T) {
	const size = 20 * 512
	data := random(1, 5*size)
	for _, nodes := range []int{1, 3} {
		for name, spoil := range map[string]func(p []byte){
			"a flipped bit": func(p []byte) { p[len(p)-1] ^= 1 },
			"a wrong sum":   func(p []byte) { p[native.PacketHeaderLen] ^= 1 },
		} {
			for bad := range 3 {
				t.Run(fmt.Sprintf("%s in packet %d, DataNodes %d", name, bad, nodes), func(t *testing.T) {
					f := newNatives(t, nodes, nil)
					c := dialNative(t, f.nodes[0])
					packets := packetsOf(data, size, 0, 1, 2, 3)
					spoil(packets[bad])
					// They travel with the set-up, so that they are there together.
					setUp, err := native.AppendSetUp(nil, 1<<20, writeOf(1, f.nodes[1:]...))
					must(t, err)
					c.send(7, setUp)
					for _, p := range packets {
						c.send(7, p)
					}
					if v, resp, err := native.ParseAnswer(c.next(7)); err != nil || v != native.Accepted {
						t.Fatalf("verdict %d: %v, %v", v, resp, err)
					}
					acked := int64(-1)
					var a transfer.Ack
					for a.OK() && acked < 3 {
						if must(t, native.ParseAck(c.next(7), &a)); a.OK() {
							acked = a.Seqno
						}
					}
					// Those before the last one pass its failure on at once, whatever they have not written yet.
					if len(a.Replies) != nodes || a.Replies[nodes-1] != hdfspb.Status_ERROR_CHECKSUM || acked >= int64(bad) || nodes == 1 && acked != int64(bad)-1 {
						t.Fatalf("%v, and packets up to %d are acknowledged", a.Replies, acked)
					}
					wantIdle(t, f.nodes...)
					kept := int(acked+1) * size
					for i, n := range f.nodes {
						n.waitIdle(t, 1)
						r, err := n.store.Get(1)
						must(t, err)
						info := r.Info()
						if info.Visible < int64(kept) || info.Visible > int64(bad*size) || i == nodes-1 && info.Length != int64(bad*size) {
							t.Errorf("DataNode %d: %+v", i, info)
						}
						if kept > 0 {
							wantRead(t, n, 1, 1001, data[:kept])
						}
					}
					again := openWrite(t, f.nodes, streamingRecovery, 1, 1001, 1002, uint64(kept), uint64(len(data)))
					again.flush(int64(kept), data[kept:], false, nodes)
					again.finish(int64(len(data)), nodes)
					for _, n := range f.nodes {
						wantRead(t, n, 1, 1002, data)
					}
				})
			}
		}
	}
}

// The number of a packet is greater than that of the one before, the first two included, and
// nothing follows the last one. Who sends others has broken the protocol: its endpoint ends.
func TestNumbersOfPacketsGrow(t *testing.T) {
	const size = 1024
	data := random(1, 3*size)
	// send sends packets of a new block, and tells up to which number they are acknowledged until
	// all are, or the endpoint ends.
	send := func(t *testing.T, f *fixture, packets [][]byte, all int64) (acked int64, err error) {
		t.Helper()
		c := dialNative(t, f.nodes[0])
		if v, resp := c.setUp(7, writeOf(1, f.nodes[1:]...)); v != native.Accepted {
			t.Fatal(resp)
		}
		for _, p := range packets {
			if c.ep.Send(c.ctx, 7, p) != nil {
				break
			}
		}
		for acked = -1; acked < all; {
			m, err := c.ep.Receive(c.ctx)
			if err != nil {
				return acked, err
			}
			var a transfer.Ack
			must(t, native.ParseAck(m.Bytes(), &a))
			if m.Release(); !a.OK() {
				t.Fatalf("%+v", a)
			}
			acked = a.Seqno
		}
		return acked, nil
	}
	const never = math.MaxInt64
	for _, numbers := range [][]uint64{{0, 0}, {0, 0, 1}, {1, 1}, {5, 4}, {0, 7, 3}} {
		t.Run(fmt.Sprint(numbers), func(t *testing.T) {
			f := newNatives(t, 1, nil)
			if acked, err := send(t, f, packetsOf(data, size, numbers...), never); !errors.Is(err, io.EOF) {
				t.Errorf("up to %d is acknowledged: %v", acked, err)
			}
			wantIdle(t, f.nodes...)
		})
	}
	t.Run("with gaps", func(t *testing.T) {
		f := newNatives(t, 1, nil)
		if acked, err := send(t, f, packetsOf(data, size, 0, 3, 1<<40), 1<<40); err != nil || acked != 1<<40 {
			t.Errorf("up to %d is acknowledged: %v", acked, err)
		}
		wantRead(t, f.nodes[0], 1, 1001, data)
	})
	t.Run("behind the last one", func(t *testing.T) {
		d := newDam() // before the block's end
		f := newNatives(t, 2, func(i int, c *Config) {
			if i == 1 {
				c.FS = d.disk()
			}
		})
		d.shut.Store(true)
		defer d.free()
		packets := nativePackets(data, size)
		packets = append(packets, packetsOf(data, size, uint64(len(packets)))...)
		if acked, err := send(t, f, packets, never); !errors.Is(err, io.EOF) || acked >= 0 {
			t.Errorf("up to %d is acknowledged: %v", acked, err)
		}
	})
}

// A DataNode that owes an answer or an acknowledgement for too long counts as failed though its
// endpoint lives, and one that owes nothing does not, however long nothing is heard of it.
func TestSilentDataNodeBehind(t *testing.T) {
	const patience = 200 * time.Millisecond
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	must(t, err)
	for name, c := range map[string]struct {
		answers, acknowledges bool
	}{"answers nothing": {}, "acknowledges nothing": {answers: true}, "owes nothing": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const silent = "silent"
			f := newNativesOn(t, fake.NewNetwork(), 2, func(i int, cfg *Config) {
				if i == 0 {
					cfg.ReadTimeout = patience - perHop // which is added for the one behind
				} else {
					cfg.Hostname = silent
				}
			}, func(n *node) func(context.Context, *verbena.Endpoint) error {
				if n.cfg.Hostname != silent {
					return nil
				}
				return func(ctx context.Context, ep *verbena.Endpoint) error {
					for {
						m, err := ep.Receive(ctx)
						if err != nil {
							return err
						}
						var reply []byte
						switch kind := native.KindOf(m.Bytes()); {
						case kind == native.SetUp && c.answers:
							reply = accepted
						case kind == native.Packet && c.acknowledges:
							reply = native.AppendAck(nil, &transfer.Ack{Seqno: int64(binary.BigEndian.Uint64(m.Bytes()[16:])), Replies: make([]hdfspb.Status, 1)})
						}
						tag := m.Tag
						m.Release()
						if reply != nil {
							if err := ep.Send(ctx, tag, reply); err != nil {
								return err
							}
						}
					}
				}
			})
			cl := dialNative(t, f.nodes[0])
			v, resp := cl.setUp(7, writeOf(1, f.nodes[1]))
			if !c.answers {
				if v != native.Refused || resp.GetFirstBadLink() != f.nodes[1].addr {
					t.Errorf("verdict %d: %v", v, resp)
				}
				wantIdle(t, f.nodes[0])
				return
			}
			if v != native.Accepted {
				t.Fatal(resp)
			}
			for _, p := range packetsOf(random(1, 3000), 1024, 0, 1) {
				cl.send(7, p)
				var a transfer.Ack
				if must(t, native.ParseAck(cl.next(7), &a)); a.OK() == c.acknowledges && len(a.Replies) == 2 && a.Replies[0] == hdfspb.Status_SUCCESS {
					if a.OK() {
						time.Sleep(3 * patience) // nothing happens
						continue
					}
					break
				}
				t.Fatalf("%+v", a)
			}
			if !c.acknowledges {
				wantIdle(t, f.nodes[0])
			}
		})
	}
}

// A packet that the DataNode behind has acknowledged may wait for this one's disk. The one behind owes those that it
// has not acknowledged, since they were sent or since something was heard of it.
func TestDataNodeBehindOwesWhatItHasNotAcknowledged(t *testing.T) {
	heard := time.Now()
	at := func(seconds int) time.Time { return heard.Add(time.Duration(seconds) * time.Second) }
	sent := func(seconds ...int) (pending []nativeAck) { // when each packet was
		for i, s := range seconds {
			pending = append(pending, nativeAck{pendingAck: pendingAck{seqno: int64(i), at: at(s)}})
		}
		return pending
	}
	for name, c := range map[string]struct {
		behind  bool
		acked   int64
		pending []nativeAck
		owes    bool
		since   int
	}{
		"the answer":                   {false, -1, nil, true, 0},
		"nothing":                      {true, -1, nil, false, 0},
		"one":                          {true, -1, sent(1, 2), true, 1},
		"one from before it was heard": {true, -1, sent(-1, 1), true, 0},
		"the second":                   {true, 0, sent(-1, 2, 3), true, 2},
		"none, all wait for this one":  {true, 1, sent(-1, 1), false, 0},
	} {
		b := &nativeBlock{behind: c.behind, acked: c.acked, heard: heard}
		for _, a := range c.pending {
			b.pending.Push(a)
		}
		if since, owes := b.owes(); owes != c.owes || owes && !since.Equal(at(c.since)) {
			t.Errorf("%s: owes %v since %v", name, owes, since.Sub(heard))
		}
	}
}

// A next DataNode may be anybody's, and guess the ids of blocks: what it says of one before it is
// asked fails that block alone, whatever it says.
func TestNextDataNodeThatSpeaksFirst(t *testing.T) {
	no, err := native.AppendAnswer(nil, native.Refused, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_ERROR.Enum()})
	must(t, err)
	for name, early := range map[string][]byte{
		"refuses":       no,
		"answers badly": {byte(native.Answer), 1, 0, 0, 0, 0, 0, 0},
		"acknowledges":  native.AppendAck(nil, &transfer.Ack{Replies: make([]hdfspb.Status, 1)}),
		"is garbled":    make([]byte, 8),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newNativesBefore(t, func(ctx context.Context, ep *verbena.Endpoint) error {
				for next := uint32(1); ; {
					if m := ep.TryReceive(); m != nil {
						next = m.Tag + 1
						m.Release()
						_ = ep.Send(ctx, next-1, early) // if nothing came early; its error is that of the next one
					}
					if err := ep.Send(ctx, next, early); err != nil {
						return err
					}
				}
			})
			c := dialNative(t, f.nodes[0])
			for tag := uint32(1); tag <= 20; tag++ {
				if v, resp := c.setUp(tag, writeOf(uint64(tag), f.nodes[1])); v != native.Refused || resp.GetFirstBadLink() != f.nodes[1].addr {
					t.Fatalf("block %d: verdict %d, %v", tag, v, resp)
				}
			}
			if v, resp := c.setUp(21, writeOf(21)); v != native.Accepted {
				t.Fatalf("without it: verdict %d, %v", v, resp)
			}
		})
	}
}

// A next DataNode that has accepted a block and fails before this one has is to blame for it.
func TestNextDataNodeThatFailsDuringTheSetUp(t *testing.T) {
	const next = "next"
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	must(t, err)
	for name, failure := range map[string][]byte{
		"garbled": make([]byte, 8), "failing": native.AppendAck(nil, &transfer.Ack{Replies: []hdfspb.Status{hdfspb.Status_ERROR}}),
	} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			f := newNativesOn(t, fake.NewNetwork(), 2, func(i int, c *Config) {
				if i == 1 {
					c.Hostname = next
					return
				}
				c.FS = errorfs.Wrap(c.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if op.Kind == errorfs.OpCreate && filepath.Base(op.Path) == "blk_1" {
						<-gate
					}
					return nil
				}))
			}, func(n *node) func(context.Context, *verbena.Endpoint) error {
				if n.cfg.Hostname != next {
					return nil
				}
				return func(ctx context.Context, ep *verbena.Endpoint) error {
					for {
						m, err := ep.Receive(ctx)
						if err != nil {
							return err
						}
						kind, tag := native.KindOf(m.Bytes()), m.Tag
						m.Release()
						switch kind {
						case native.SetUp:
							err = errors.Join(ep.Send(ctx, tag, accepted), ep.Send(ctx, tag, failure))
						case native.Abort: // the block has ended at the first DataNode
							close(gate)
						}
						if err != nil {
							return err
						}
					}
				}
			})
			c := dialNative(t, f.nodes[0])
			v, resp := c.setUp(7, writeOf(1, f.nodes[1]))
			if v != native.Refused || resp.GetStatus() != hdfspb.Status_ERROR || resp.GetFirstBadLink() != f.nodes[1].addr {
				t.Errorf("verdict %d: %v", v, resp)
			}
		})
	}
}

// A DataNode lets who has proved to be the DataNode of its address read packets where they lie, and
// nobody else: with another answer to the hello, packets to it go over another endpoint, on which nobody is trusted.
func TestPacketsAreSharedWithWhoProves(t *testing.T) {
	secret, err := cluster.NewSecret([]byte(strings.Repeat("s", 32)))
	must(t, err)
	foreign, err := cluster.NewSecret([]byte(strings.Repeat("S", 32)))
	must(t, err)
	for name, c := range map[string]struct {
		prove func(nonce [native.NonceLen]byte, address string) []byte
		trust bool
	}{
		"proof": {func(nonce [native.NonceLen]byte, address string) []byte {
			return native.ProofOf(secret, nonce, address)
		}, true},
		"none":     {func([native.NonceLen]byte, string) []byte { return nil }, false},
		"nonsense": {func([native.NonceLen]byte, string) []byte { return make([]byte, native.ProofLen) }, false},
		"another secret": {func(nonce [native.NonceLen]byte, address string) []byte {
			return native.ProofOf(foreign, nonce, address)
		}, false},
		"another address": {func(nonce [native.NonceLen]byte, _ string) []byte {
			return native.ProofOf(secret, nonce, "127.0.0.1:1")
		}, false},
		"another nonce": {func(_ [native.NonceLen]byte, address string) []byte {
			return native.ProofOf(secret, [native.NonceLen]byte{}, address)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			const other = "other"
			came := make(chan bool, 1) // a packet, on an endpoint that had a hello
			f := newNativesOn(t, fake.NewNetwork(), 2, func(i int, cfg *Config) {
				if cfg.Secret = secret; i == 1 {
					cfg.Hostname = other
				}
			}, func(n *node) func(context.Context, *verbena.Endpoint) error {
				if n.cfg.Hostname != other {
					return nil
				}
				return func(ctx context.Context, ep *verbena.Endpoint) error {
					for greeted := false; ; {
						m, err := ep.Receive(ctx)
						if err != nil {
							return err
						}
						switch native.KindOf(m.Bytes()) {
						case native.Packet:
							came <- greeted
						case native.Hello:
							greeted = true
							nonce, err := native.ParseHello(m.Bytes())
							if err == nil {
								err = ep.Send(ctx, m.Tag, native.AppendProof(nil, c.prove(nonce, n.addr)))
							}
							if err != nil {
								return err
							}
						}
						m.Release()
					}
				}
			})
			conn, err := f.nodes[0].native.mirrors.Get(t.Context(), f.nodes[1].addr)
			must(t, err)
			conn.Post(1, nativePackets(nil, 1)[0])
			select {
			case trusted := <-came:
				if trusted != c.trust {
					t.Errorf("trusted: %v", trusted)
				}
			case <-time.After(patient):
				t.Fatal("no packet comes")
			}
		})
	}
}
