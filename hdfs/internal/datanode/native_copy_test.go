package datanode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
	"github.com/verbena-data/verbena/rdmanet"
)

const streams = "byte-streams" // nobody dials it here

// publish serves a DataNode that has the native path.
func (f *fixture) publish(n *node) *port.Port {
	f.t.Helper()
	table := n.cfg.Native
	p, err := port.Listen(context.Background(), table.Runtime, "", port.Config{
		Group: table.Dial.Group, Listener: n.l, Messages: []string{native.Service},
		Streams: &port.Streams{Service: streams, Listen: func(l *verbena.Listener) net.Listener {
			return rdmanet.NewListener(l, rdmanet.Config{Service: streams, CloseWait: -1})
		}},
	})
	must(f.t, err)
	serve := n.ServeNative
	if f.native != nil {
		if other := f.native(n); other != nil {
			serve = other
		}
	}
	p.Serve(port.Handlers{Connections: n.ServeConn, Messages: map[string]func(context.Context, *verbena.Endpoint) error{native.Service: serve}})
	return p
}

// newRuntime returns a runtime with a device on a network, or with none, and how to dial
// native peers by it.
func newRuntime(t testing.TB, network *fake.Network, name string) *native.TableConfig {
	t.Helper()
	return newRuntimeWith(t, network, name, 32<<20)
}

// newRuntimeWith is newRuntime with so many bytes for what arrives, and for what is sent.
func newRuntimeWith(t testing.TB, network *fake.Network, name string, memory int64) *native.TableConfig {
	t.Helper()
	var cfg verbena.Config
	if network != nil {
		device := fake.InfiniBand(name)
		device.Capabilities &^= rdma.CapStreams
		cfg.Providers = []rdma.Provider{fake.NewProvider("fakeband", network.NewDevice(device))}
	}
	cfg.HelloTimeout, cfg.ConnectTimeout = 20*time.Second, 20*time.Second
	rt, err := verbena.New(cfg)
	must(t, err)
	t.Cleanup(func() { must(t, rt.Close()) })
	g, err := rt.NewGroup(verbena.GroupConfig{Name: "hdfs", Relay: true, ReceiveMemory: memory, SendMemory: memory})
	must(t, err)
	return &native.TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}}
}

// newNatives starts DataNodes with the native path over a network of devices.
func newNatives(t testing.TB, count int, change func(i int, c *Config)) *fixture {
	return newNativesOn(t, fake.NewNetwork(), count, change, nil)
}

func newNativesOn(t testing.TB, network *fake.Network, count int, change func(i int, c *Config), serve func(n *node) func(context.Context, *verbena.Endpoint) error) *fixture {
	t.Helper()
	return fixtureOf(t, count, func(i int, c *Config) {
		c.Native = newRuntime(t, network, fmt.Sprint("datanode-", i))
		if change != nil {
			change(i, c)
		}
	}, serve)
}

// newNativesBefore makes two DataNodes. The second one's native path is served by serve.
func newNativesBefore(t testing.TB, serve func(context.Context, *verbena.Endpoint) error) *fixture {
	t.Helper()
	const name = "served otherwise"
	return newNativesOn(t, fake.NewNetwork(), 2, func(i int, c *Config) {
		if i == 1 {
			c.Hostname = name
		}
	}, func(n *node) func(context.Context, *verbena.Endpoint) error {
		if n.cfg.Hostname != name {
			return nil
		}
		return serve
	})
}

// A dam is a disk whose data files can be held when they are written to.
type dam struct {
	shut    atomic.Bool
	reached chan struct{} // closed when the first write waits
	open    chan struct{}
	once    sync.Once
}

func newDam() *dam { return &dam{reached: make(chan struct{}), open: make(chan struct{})} }

func (d *dam) disk() vfs.FS {
	return errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		name := filepath.Base(op.Path)
		if d.shut.Load() && op.Kind == errorfs.OpFileWriteAt && strings.HasPrefix(name, "blk_") && !strings.HasSuffix(name, ".meta") {
			d.once.Do(func() { close(d.reached) })
			<-d.open
		}
		return nil
	}))
}

func (d *dam) wait(t testing.TB) {
	t.Helper()
	select {
	case <-d.reached:
	case <-time.After(patient):
		t.Fatal("nothing was written")
	}
}

func (d *dam) free() {
	d.shut.Store(false)
	close(d.open)
}

func replica(id uint64, data []byte) *clusterpb.Block {
	return &clusterpb.Block{Id: &id, Generation: proto.Uint64(1001), Length: proto.Uint64(uint64(len(data)))}
}

// copyTo has the first DataNode copy a final block of generation 1001.
func (f *fixture) copyTo(id uint64, data []byte, to ...*node) error {
	cmd := &clusterpb.Command{Block: replica(id, data)}
	for _, n := range to {
		cmd.Targets = append(cmd.Targets, n.proto())
	}
	return f.nodes[0].replicate(cmd)
}

// wantCopies compares how a DataNode's copies have gone. fallback is the one reason that
// counts, if any does.
func wantCopies(t testing.TB, n *node, native, legacy uint64, fallback string) {
	t.Helper()
	s := n.Copies()
	if s.Native.Blocks != native || s.Legacy.Blocks != legacy {
		t.Errorf("%d copies by the native path and %d by the other, want %d and %d", s.Native.Blocks, s.Legacy.Blocks, native, legacy)
	}
	for why, count := range s.Fallbacks {
		if want := why == fallback; (count > 0) != want {
			t.Errorf("%d copies fell back for the reason %q", count, why)
		}
	}
}

// wantIdle waits until nothing is reserved for blocks.
func wantIdle(t testing.TB, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		for end := time.Now().Add(patient); n.Packets().Reserved != 0 || n.transfers.Load() != 0; n.sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d bytes are reserved still, for %d operations", n.Packets().Reserved, n.transfers.Load())
			}
		}
	}
}

// Final replicas, empty ones too, and one that is being written come whole to two DataNodes in a
// row, over a device and over TCP, and a pipeline goes on with the last.
func TestCopiesGoNatively(t *testing.T) {
	for name, network := range map[string]*fake.Network{"fakeband": fake.NewNetwork(), "tcp": nil} {
		t.Run(name, func(t *testing.T) {
			f := newNativesOn(t, network, 3, nil, nil)
			data := random(1, 5<<20+77)
			writeBlock(t, f.nodes[:1], 1, 1001, data)
			writeBlock(t, f.nodes[:1], 3, 1001, nil)
			c := openWrite(t, f.nodes[:1], create, 2, 1001, 0, 0, 0)
			c.flush(0, data[:1000], false, 1)
			for id := uint64(1); id <= 3; id++ {
				transferBlock(t, f.nodes, id, 1001)
			}
			for _, n := range f.nodes[1:] {
				wantRead(t, n, 1, 1001, data)
				wantRead(t, n, 2, 1001, data[:1000])
				for id, want := range map[uint64]store.Info{
					1: {State: store.Finalized, Length: int64(len(data)), Synced: true}, 2: {State: store.BeingWritten, Length: 1000}, 3: {State: store.Finalized, Synced: true},
				} {
					r, err := n.store.Get(id)
					must(t, err)
					if i := r.Info(); i.State != want.State || i.Length != want.Length || i.Visible != want.Length || i.Synced != want.Synced || i.Generation != 1001 {
						t.Errorf("block %d: %+v", id, i)
					}
				}
				f.nn.wait("news of the copy", func() bool {
					return f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVED, 1, 1001) && f.nn.told(n.UUID(), clusterpb.ReplicaChange_RECEIVING, 2, 1001)
				})
				if _, legacy := n.Writes(); legacy.Blocks != 0 || n.Packets().Packets == 0 {
					t.Errorf("%d packets came by the native path", n.Packets().Packets)
				}
			}
			wantCopies(t, f.nodes[0], 3, 0, "")
			if s := f.nodes[0].Copies().Native.Bytes; s != uint64(len(data)+1000) {
				t.Errorf("%d bytes were copied", s)
			}
			c.nc.Close()
			c = openWrite(t, f.nodes, streamingRecovery, 2, 1001, 1002, 1000, 1000)
			c.flush(512, data[512:5000], false, 3)
			c.finish(5000, 3)
			for _, n := range f.nodes {
				wantRead(t, n, 2, 1002, data[:5000])
			}
			// A second copy to the same place is refused, and the source says why.
			if err := f.copyTo(1, data, f.nodes[1]); !errors.Is(err, store.ErrExists) {
				t.Fatalf("%v", err)
			}
			wantCopies(t, f.nodes[0], 3, 0, "")
			wantIdle(t, f.nodes[1:]...)
		})
	}
}

// A replica that is damaged in its middle is not copied, though its beginning has been sent: the
// NameNode is told, and nothing is left at the other end.
func TestDamagedReplicaIsNotCopied(t *testing.T) {
	for _, file := range []string{"data", "meta"} {
		t.Run(file, func(t *testing.T) {
			f := newNatives(t, 2, nil)
			data := random(1, 4<<20)
			writeBlock(t, f.nodes[:1], 1, 1001, data)
			at := int64(3 << 20)
			if file == "meta" {
				at = 512 + at/512*4
			}
			f.damage(f.nodes[0], 1, file, at)
			if err := f.copyTo(1, data, f.nodes[1]); !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("%v", err)
			}
			f.nn.wait("report of the damage", func() bool { return f.nn.told(f.nodes[0].UUID(), clusterpb.ReplicaChange_CORRUPT, 1, 1001) })
			waitGone(t, f.nodes[1], 1)
			if f.nodes[1].Packets().Packets == 0 {
				t.Error("nothing was sent before")
			}
			wantCopies(t, f.nodes[0], 0, 0, "")
			wantIdle(t, f.nodes[1])
		})
	}
}

// copyInTheMiddle is a copy of block 1 from the first of two DataNodes to the second, whose disk
// takes no more of it until the dam is freed. done gets how the copy has ended.
func copyInTheMiddle(t *testing.T) (f *fixture, d *dam, data []byte, done <-chan error) {
	d = newDam()
	f = newNatives(t, 2, func(i int, c *Config) {
		if i == 1 {
			c.FS = d.disk()
		}
	})
	data = random(1, 6<<20)
	writeBlock(t, f.nodes[:1], 1, 1001, data)
	d.shut.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- f.copyTo(1, data, f.nodes[1]) }()
	d.wait(t)
	return f, d, data, ended
}

// The connection ends in the middle of a copy while both ends live: the copy goes on by the
// other protocol, from its beginning.
func TestCopyWhoseConnectionEnds(t *testing.T) {
	f, d, data, done := copyInTheMiddle(t)
	conn, _ := f.nodes[0].native.mirrors.Peek(f.nodes[1].addr)
	if conn == nil {
		t.Fatal("no connection")
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		conn.Endpoint().Close() // waits for the other end, which waits for the disk
	}()
	for end := time.Now().Add(patient); f.nodes[0].Copies().Fallbacks["broke off"] == 0; f.nodes[0].sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the source does not notice")
		}
	}
	d.free()
	must(t, <-done)
	<-closed
	wantRead(t, f.nodes[1], 1, 1001, data)
	wantCopies(t, f.nodes[0], 0, 1, "broke off")
	wantIdle(t, f.nodes[1])
}

// Who gets a copy dies in the middle. The source ends with an error, and after a restart nothing
// of the copy is there, so that it can be had again.
func TestTargetOfACopyDies(t *testing.T) {
	f, d, data, done := copyInTheMiddle(t)
	victim := f.nodes[1]
	victim.l.Close() // nobody is there for the other protocol
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-victim.ctx.Done()
		d.free()
	}()
	victim.stop()
	<-stopped
	if err := <-done; err == nil {
		t.Fatal("the copy has succeeded")
	}
	f.restart(1)
	wantCopies(t, f.nodes[0], 0, 0, "broke off")
	if _, err := f.nodes[1].store.Get(1); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("after the restart: %v", err)
	}
	must(t, f.copyTo(1, data, f.nodes[1]))
	wantRead(t, f.nodes[1], 1, 1001, data)
}

// The source dies in the middle: nothing of the copy stays at the other end.
func TestSourceOfACopyDies(t *testing.T) {
	f, d, _, done := copyInTheMiddle(t)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		f.nodes[0].stop() // waits for the other end, which waits for the disk
	}()
	if err := <-done; err == nil {
		t.Fatal("the copy has succeeded")
	}
	d.free()
	<-stopped
	waitGone(t, f.nodes[1], 1)
	wantIdle(t, f.nodes[1])
	f.nn.mu.Lock()
	defer f.nn.mu.Unlock()
	for _, c := range f.nn.changes[f.nodes[1].UUID()] {
		if c.GetReplica().GetBlock().GetId() == 1 {
			t.Errorf("the NameNode was told of it: %v", c)
		}
	}
}

// Where the native path does not do, the copy goes by the other protocol at once, and the reason
// counts.
func TestCopiesFallBack(t *testing.T) {
	data := random(1, 1<<20+5)
	refusing := func(*node) func(context.Context, *verbena.Endpoint) error {
		return func(ctx context.Context, ep *verbena.Endpoint) error { // as DataNodes did that took no copies
			for {
				m, err := ep.Receive(ctx)
				if err != nil {
					return err
				}
				if native.KindOf(m.Bytes()) == native.SetUp {
					answer, err := native.AppendAnswer(nil, native.Refused, transfer.ErrorResponse(hdfspb.Status_ERROR_INVALID, proto.String(""), "copies come by the data transfer protocol"))
					if err == nil {
						err = ep.Send(ctx, m.Tag, answer)
					}
					if err != nil {
						return err
					}
				}
				m.Release()
			}
		}
	}
	last := func(serve func(*node) func(context.Context, *verbena.Endpoint) error) func(n *node) func(context.Context, *verbena.Endpoint) error {
		return func(n *node) func(context.Context, *verbena.Endpoint) error {
			if n.cfg.Hostname != "last" {
				return nil
			}
			return serve(n)
		}
	}
	for _, c := range []struct {
		name, reason string
		nodes        int
		change       func(i int, c *Config)
		serve        func(*node) func(context.Context, *verbena.Endpoint) error
	}{
		{"without the path", "not offered", 2, func(i int, c *Config) {
			if i == 1 {
				c.Native = nil
			}
		}, nil},
		{"without the path behind", "not offered", 3, func(i int, c *Config) {
			if i == 2 {
				c.Native = nil
			}
		}, nil},
		{"older", "not offered", 2, nil, last(refusing)},
		{"older behind", "not offered", 3, nil, last(refusing)},
		{"no memory", "no memory", 2, func(i int, c *Config) {
			if i == 1 {
				c.NativeMemory = 1
			}
		}, nil},
		{"no memory here", "no memory", 2, func(i int, c *Config) {
			if i == 0 {
				c.NativeMemory = 1
			}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newNativesOn(t, fake.NewNetwork(), c.nodes, func(i int, cfg *Config) {
				if i == c.nodes-1 {
					cfg.Hostname = "last"
				}
				if c.change != nil {
					c.change(i, cfg)
				}
			}, c.serve)
			writeBlock(t, f.nodes[:1], 1, 1001, data)
			must(t, f.copyTo(1, data, f.nodes[1:]...))
			for _, n := range f.nodes[1:] {
				wantRead(t, n, 1, 1001, data)
			}
			wantCopies(t, f.nodes[0], 0, 1, c.reason)
			wantIdle(t, f.nodes[1:]...)
		})
	}
}

// A DataNode that breaks the protocol while it gets a copy ends the copy there, and the other
// protocol brings it: the source neither hangs nor takes for copied what is not.
func TestCopyToAHostileDataNode(t *testing.T) {
	data := random(1, 3<<20)
	ack := func(seqno int64, replies ...hdfspb.Status) []byte {
		return native.AppendAck(nil, &transfer.Ack{Seqno: seqno, Replies: replies})
	}
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	must(t, err)
	for name, messages := range map[string][][]byte{
		"packets that were not sent":           {accepted, ack(1000, hdfspb.Status_SUCCESS)},
		"for more DataNodes":                   {accepted, ack(0, hdfspb.Status_SUCCESS, hdfspb.Status_SUCCESS)},
		"before the answer":                    {ack(0, hdfspb.Status_SUCCESS)},
		"two answers":                          {accepted, accepted},
		"nonsense":                             {accepted, {1, 2, 3}},
		"a short acknowledgement":              {accepted, ack(0, hdfspb.Status_SUCCESS)[:10]},
		"an answer that is none":               {{byte(native.Answer), 0, 0, 99, 0, 0, 0, 0}},
		"a set-up":                             {{byte(native.SetUp), 0, 0, 0, 0, 0, 1, 0}},
		"another DataNode that does not exist": {accepted, ack(0, hdfspb.Status_SUCCESS, hdfspb.Status_ERROR)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newNativesBefore(t, func(ctx context.Context, ep *verbena.Endpoint) error {
				for {
					m, err := ep.Receive(ctx)
					if err != nil {
						return err
					}
					if native.KindOf(m.Bytes()) == native.SetUp {
						for _, b := range messages {
							if err := ep.Send(ctx, m.Tag, b); err != nil {
								return err
							}
						}
					}
					m.Release()
				}
			})
			writeBlock(t, f.nodes[:1], 1, 1001, data)
			must(t, f.copyTo(1, data, f.nodes[1]))
			wantRead(t, f.nodes[1], 1, 1001, data)
			wantCopies(t, f.nodes[0], 0, 1, "broke off")
		})
	}
}

// Who sends a copy may be wrong: bytes that do not match their checksums, fewer than were announced,
// or more, leave nothing, neither at the DataNode that it sends to nor behind that.
func TestCopyOfAHostileDataNode(t *testing.T) {
	for name, spoil := range map[string]func(op *hdfspb.OpWriteBlockProto, packets [][]byte) [][]byte{
		"a flipped bit":   func(_ *hdfspb.OpWriteBlockProto, p [][]byte) [][]byte { p[1][len(p[1])-1] ^= 1; return p },
		"a wrong sum":     func(_ *hdfspb.OpWriteBlockProto, p [][]byte) [][]byte { p[1][native.PacketHeaderLen] ^= 1; return p },
		"a packet less":   func(_ *hdfspb.OpWriteBlockProto, p [][]byte) [][]byte { return append(p[:1:1], p[2:]...) },
		"fewer announced": func(op *hdfspb.OpWriteBlockProto, p [][]byte) [][]byte { announce(op, -1); return p },
		"more announced":  func(op *hdfspb.OpWriteBlockProto, p [][]byte) [][]byte { announce(op, 1); return p },
		"no end":          func(_ *hdfspb.OpWriteBlockProto, p [][]byte) [][]byte { return p[:2] },
	} {
		t.Run(name, func(t *testing.T) {
			f := newNatives(t, 2, nil)
			data := random(1, 100_000)
			op := copyOf(1, data, f.nodes[1:]...)
			packets := spoil(op, nativePackets(data, 40_960))
			setUp, err := native.AppendSetUp(nil, 1<<20, op)
			must(t, err)
			table := newRuntime(t, nil, "hostile")
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			defer cancel()
			ep, err := table.Runtime.Dial(ctx, f.nodes[0].addr, native.Service, table.Dial)
			must(t, err)
			defer ep.Close()
			for _, m := range append([][]byte{setUp}, packets...) {
				must(t, ep.Send(ctx, 7, m))
			}
			if name == "no end" {
				for f.nodes[1].Packets().Packets < 2 {
					if !f.nodes[1].sleep(time.Millisecond) || ctx.Err() != nil {
						t.Fatal("nothing has come")
					}
				}
			} else {
				wantNo(t, ctx, ep)
			}
			must(t, ep.Close())
			for _, n := range f.nodes {
				waitGone(t, n, 1)
			}
			wantIdle(t, f.nodes...)
			// An honest one finds all as it was.
			writeBlock(t, f.nodes[:1], 2, 1001, data)
			must(t, f.copyTo(2, data, f.nodes[1]))
			wantRead(t, f.nodes[1], 2, 1001, data)
		})
	}
}

func announce(op *hdfspb.OpWriteBlockProto, more int64) {
	b := op.GetHeader().GetBaseHeader().GetBlock()
	b.NumBytes = proto.Uint64(uint64(int64(b.GetNumBytes()) + more))
}

// nativePackets cuts a block into packets of size bytes of data, the empty last one included.
func nativePackets(data []byte, size int) (packets [][]byte) {
	sum := transfer.CRC32C()
	for off := 0; ; off += size {
		part := data[min(off, len(data)):min(off+size, len(data))]
		h := transfer.PacketHeader{Offset: int64(min(off, len(data))), Seqno: int64(len(packets)), DataLen: int32(len(part)), Last: len(part) == 0}
		b := make([]byte, native.PacketHeaderLen+int(sum.Chunks(int64(len(part))))*4)
		native.PutPacketHeader(b, &h, len(b)-native.PacketHeaderLen)
		sum.Sum(b[native.PacketHeaderLen:], part)
		packets = append(packets, append(b, part...))
		if h.Last {
			return packets
		}
	}
}

// wantNo receives until a set-up or a packet is refused.
func wantNo(t testing.TB, ctx context.Context, ep *verbena.Endpoint) {
	t.Helper()
	for {
		m, err := ep.Receive(ctx)
		if err != nil {
			if err == io.EOF {
				return
			}
			t.Fatal(err)
		}
		b := bytes.Clone(m.Bytes())
		m.Release()
		if native.KindOf(b) == native.Answer {
			if v, _, err := native.ParseAnswer(b); err != nil || v != native.Accepted {
				return
			}
			continue
		}
		var a transfer.Ack
		must(t, native.ParseAck(b, &a))
		if !a.OK() {
			return
		}
		if a.Seqno >= 3 {
			t.Fatal("all was acknowledged")
		}
	}
}

// Packets are as long as suits the transport, but never shorter than a chunk, and a window has
// room for all of a short replica and for two packets of a long one.
func TestShapeOfPackets(t *testing.T) {
	for _, chunk := range []uint32{1, 512, 4096, transfer.MaxBytesPerChecksum} {
		sum, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_CRC32, chunk)
		must(t, err)
		for _, size := range []int{64, 64 << 10, 256 << 10, 1 << 20} {
			p := packetOf(sum, size)
			if p.data%int64(chunk) != 0 || p.data == 0 || p.size(p.data) > int64(size) && p.data > int64(chunk) {
				t.Errorf("chunks of %d in packets of %d: %d bytes of data", chunk, size, p.data)
			}
			for _, length := range []int64{0, 1, p.data - 1, p.data, p.data + 1, 3*p.data + 7} {
				var total int64
				for off := int64(0); ; off += p.data {
					n := max(0, min(p.data, length-off))
					if total += p.size(n); n == 0 {
						break
					}
				}
				if got := p.total(length); got != total {
					t.Errorf("chunks of %d in packets of %d, %d bytes: %d in all, want %d", chunk, size, length, got, total)
				}
			}
		}
	}
}
