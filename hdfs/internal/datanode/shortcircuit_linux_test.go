package datanode

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/shortcircuit"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// neighbour is a process of the DataNode's host.
type neighbour struct {
	t       *testing.T
	n       *node
	path    string
	c       *net.UnixConn // for requests
	shared  *net.UnixConn // stands for the segment
	id      shortcircuit.ID
	memory  *shortcircuit.Memory
	version uint32
}

// onDisk has the first DataNode keep its blocks in files, which alone have descriptors.
func onDisk(t *testing.T, change func(*Config)) func(int, *Config) {
	return func(_ int, c *Config) {
		c.FS, c.Dirs = vfs.Default, []Directory{{Path: t.TempDir()}}
		if change != nil {
			change(c)
		}
	}
}

func newNeighbour(t *testing.T, n *node, version uint32) *neighbour {
	t.Helper()
	b := &neighbour{t: t, n: n, version: version, path: filepath.Join(t.TempDir(), "dn")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.path, Net: "unix"})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go n.ServeConn(c)
		}
	}()
	b.c, b.shared = b.dial(), b.dial()
	must(t, transfer.WriteRequest(b.shared, transfer.OpRequestShortCircuitShm, &hdfspb.ShortCircuitShmRequestProto{ClientName: proto.String("test")}))
	resp := &hdfspb.ShortCircuitShmResponseProto{}
	a, err := shortcircuit.Receive(b.shared, resp, func() bool { return resp.GetStatus() == hdfspb.Status_SUCCESS }, 1)
	must(t, err)
	b.id = shortcircuit.IDOf(resp.GetId())
	b.memory, err = shortcircuit.Adopt(a.FDs[0])
	must(t, err)
	t.Cleanup(func() { b.memory.Close() })
	if b.memory.Slots() != shortcircuit.SegmentSlots {
		t.Fatalf("%d slots", b.memory.Slots())
	}
	return b
}

func (b *neighbour) dial() *net.UnixConn {
	b.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.path, Net: "unix"})
	must(b.t, err)
	must(b.t, c.SetDeadline(time.Now().Add(patient)))
	b.t.Cleanup(func() { c.Close() })
	return c
}

// request asks for a block's descriptors.
func (b *neighbour) request(slot int, id, gen uint64, token *hdfspb.TokenProto) (*hdfspb.BlockOpResponseProto, shortcircuit.Answer) {
	b.t.Helper()
	must(b.t, transfer.WriteRequest(b.c, transfer.OpRequestShortCircuitFDs, &hdfspb.OpRequestShortCircuitAccessProto{
		Header: &hdfspb.BaseHeaderProto{Block: extended(id, gen, 0), Token: token}, MaxVersion: &b.version,
		SlotId: shortcircuit.SlotID{Segment: b.id, Index: slot}.Proto(), SupportsReceiptVerification: proto.Bool(true),
	}))
	resp := &hdfspb.BlockOpResponseProto{}
	a, err := shortcircuit.Receive(b.c, resp, func() bool { return resp.GetStatus() == hdfspb.Status_SUCCESS }, 2)
	must(b.t, err)
	b.t.Cleanup(func() { a.Close() })
	if resp.GetStatus() == hdfspb.Status_SUCCESS {
		if a.With != shortcircuit.Receipt {
			b.t.Fatalf("no receipt is asked for")
		}
		_, err := b.c.Write([]byte{0})
		must(b.t, err)
	}
	return resp, a
}

// claim is request for a slot that is made valid before.
func (b *neighbour) claim(slot int, id, gen uint64, token *hdfspb.TokenProto) (*hdfspb.BlockOpResponseProto, shortcircuit.Answer) {
	b.t.Helper()
	must(b.t, b.memory.Claim(slot))
	return b.request(slot, id, gen, token)
}

func (b *neighbour) release(slot int) hdfspb.Status {
	b.t.Helper()
	must(b.t, transfer.WriteRequest(b.c, transfer.OpReleaseShortCircuitFDs, &hdfspb.ReleaseShortCircuitAccessRequestProto{SlotId: shortcircuit.SlotID{Segment: b.id, Index: slot}.Proto()}))
	resp := &hdfspb.ReleaseShortCircuitAccessResponseProto{}
	_, err := shortcircuit.Receive(b.c, resp, func() bool { return false }, 0)
	must(b.t, err)
	return resp.GetStatus()
}

func contents(t *testing.T, fd int) []byte {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	b := make([]byte, st.Size)
	n, err := unix.Pread(fd, b, 0)
	must(t, err)
	return b[:n]
}

// finalized makes a finalized replica.
func finalized(t *testing.T, n *node, id, gen uint64, data []byte) {
	t.Helper()
	c := openWrite(t, []*node{n}, create, id, gen, 0, 0, 0)
	c.flush(0, data, false, 1)
	c.send(int64(len(data)), nil, true, false)
	var ack transfer.Ack
	must(t, c.r.ReadAck(&ack))
	if !ack.OK() {
		t.Fatalf("%v", ack)
	}
	c.nc.Close()
}

// HDFS's clients get the block and a meta file as HDFS's; nobody can write to either.
func TestHandsOverAsHDFS(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	data := random(1, 70_000)
	finalized(t, f.nodes[0], 1, 1001, data)
	b := newNeighbour(t, f.nodes[0], shortcircuit.VersionHDFS)
	resp, a := b.claim(3, 1, 1001, nil)
	if resp.GetStatus() != hdfspb.Status_SUCCESS || resp.GetShortCircuitAccessVersion() != shortcircuit.VersionHDFS {
		t.Fatalf("%v", resp)
	}
	if got := contents(t, a.FDs[0]); !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, or others", len(got))
	}
	meta := contents(t, a.FDs[1])
	sum, err := shortcircuit.ParseMeta(meta)
	must(t, err)
	if want := shortcircuit.MetaHeader + 4*int(sum.Chunks(int64(len(data)))); len(meta) != want {
		t.Fatalf("a meta file of %d bytes, want %d", len(meta), want)
	}
	must(t, sum.Verify(meta[shortcircuit.MetaHeader:], data))
	for _, fd := range a.FDs {
		if _, err := unix.Pwrite(fd, []byte{1}, 0); err == nil {
			t.Fatal("what was handed over can be written to")
		}
	}
	if got := f.nodes[0].Reads(); got.HandedOver != 1 || got.Local.Slots != 1 || got.Local.ChecksumBytes != int64(len(meta)) {
		t.Fatalf("%+v", got)
	}
	// A second slot of the same replica shares the memory, which is free after the last.
	if resp, _ := b.claim(4, 1, 1001, nil); resp.GetStatus() != hdfspb.Status_SUCCESS {
		t.Fatalf("%v", resp)
	}
	if got := f.nodes[0].Reads().Local; got.ChecksumBytes != int64(len(meta)) || got.Slots != 2 {
		t.Fatalf("%+v", got)
	}
	for _, slot := range []int{3, 4} {
		if s := b.release(slot); s != hdfspb.Status_SUCCESS {
			t.Fatal(s)
		}
	}
	if s := b.release(3); s != hdfspb.Status_ERROR_INVALID {
		t.Fatalf("a slot was released twice: %v", s)
	}
	if got := f.nodes[0].Reads().Local; got.ChecksumBytes != 0 || got.Slots != 0 {
		t.Fatalf("after the release: %+v", got)
	}
	if kept := contents(t, a.FDs[1]); !bytes.Equal(kept, make([]byte, len(meta))) {
		t.Fatal("a client that keeps a descriptor after the release keeps the memory")
	}
}

// Whatever must not be handed over is refused, and the connection serves the next request.
func TestRefusesDescriptors(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, func(c *Config) { c.LocalMemory, c.MaxLocalClients = 100, 1 }))
	n := f.nodes[0]
	finalized(t, n, 1, 1001, random(1, 5000))
	finalized(t, n, 2, 1001, random(2, 50_000))
	open := openWrite(t, []*node{n}, create, 3, 1001, 0, 0, 0)
	open.flush(0, random(3, 1000), false, 1)
	b := newNeighbour(t, n, shortcircuit.VersionHDFS)
	for what, status := range map[string]struct {
		slot    int
		id, gen uint64
		version uint32
		claimed bool
	}{
		"a slot that was not made valid":      {slot: 1, id: 1, gen: 1001, version: 1},
		"a slot that the segment lacks":       {slot: 128, id: 1, gen: 1001, version: 1},
		"a slot below all":                    {slot: -1, id: 1, gen: 1001, version: 1},
		"a block that is being written":       {slot: 2, id: 3, gen: 1001, version: 1, claimed: true},
		"a block that is not here":            {slot: 2, id: 9, gen: 1001, version: 1, claimed: true},
		"a generation that is not here":       {slot: 2, id: 1, gen: 1002, version: 1, claimed: true},
		"more checksums than memory for them": {slot: 2, id: 2, gen: 1001, version: 1, claimed: true},
		"version 0":                           {slot: 2, id: 1, gen: 1001, version: 0, claimed: true},
	} {
		b.version = status.version
		if status.claimed {
			must(t, b.memory.Claim(status.slot))
		}
		resp, _ := b.request(status.slot, status.id, status.gen, nil)
		if resp.GetStatus() != hdfspb.Status_ERROR_UNSUPPORTED || resp.ShortCircuitAccessVersion == nil || resp.GetMessage() == "" {
			t.Errorf("%s: %v", what, resp)
		}
	}
	if got := n.Reads(); got.Refused != 8 || got.HandedOver != 0 || got.Local.Slots != 0 || got.Local.ChecksumBytes != 0 {
		t.Fatalf("%+v", got)
	}
	// The own version needs no memory for checksums.
	b.version = shortcircuit.VersionOwn
	if resp, _ := b.claim(5, 2, 1001, nil); resp.GetStatus() != hdfspb.Status_SUCCESS || resp.GetLocalReplica().GetLength() != 50_000 {
		t.Fatalf("%v", resp)
	}
	if resp, _ := b.claim(5, 1, 1001, nil); resp.GetStatus() == hdfspb.Status_SUCCESS {
		t.Fatal("a slot was given twice")
	}
	// A second client is one too many.
	c := b.dial()
	must(t, transfer.WriteRequest(c, transfer.OpRequestShortCircuitShm, &hdfspb.ShortCircuitShmRequestProto{ClientName: proto.String("second")}))
	resp := &hdfspb.ShortCircuitShmResponseProto{}
	_, err := shortcircuit.Receive(c, resp, func() bool { return false }, 0)
	must(t, err)
	if resp.GetStatus() != hdfspb.Status_ERROR {
		t.Fatalf("%v", resp)
	}
	// Over TCP there is nothing to hand over.
	tcp := dialNode(t, n)
	must(t, transfer.WriteRequest(tcp.nc, transfer.OpRequestShortCircuitShm, &hdfspb.ShortCircuitShmRequestProto{ClientName: proto.String("far")}))
	refused := &hdfspb.BlockOpResponseProto{}
	must(t, tcp.r.ReadMessage(refused))
	if refused.GetStatus() != hdfspb.Status_ERROR_UNSUPPORTED {
		t.Fatalf("%v", refused)
	}
}

// Descriptors are for who has a token to read the block.
func TestDescriptorsWantTokens(t *testing.T) {
	g := newGuarded(t, 1)
	g.nodes[0].stop()
	g.fixture = newFixture(t, 1, onDisk(t, func(c *Config) {
		c.Secret = g.secret
		nn := c.NameNode.(*fakeNameNode)
		nn.mu.Lock()
		nn.keys = g.sealed(time.Now())
		nn.mu.Unlock()
	}))
	g.write(1, 1001, random(1, 5000), g.nodes)
	b := newNeighbour(t, g.nodes[0], shortcircuit.VersionOwn)
	for what, token := range map[string]*hdfspb.TokenProto{
		"none": nil, "to write": g.token("ada", blocktoken.Write, 1, 1001), "of another block": g.token("ada", blocktoken.Read, 2, 1001),
	} {
		if resp, _ := b.claim(1, 1, 1001, token); resp.GetStatus() != hdfspb.Status_ERROR_ACCESS_TOKEN {
			t.Errorf("token %s: %v", what, resp)
		}
	}
	if resp, _ := b.claim(1, 1, 1001, g.token("ada", blocktoken.Read, 1, 1001)); resp.GetStatus() != hdfspb.Status_SUCCESS {
		t.Fatalf("%v", resp)
	}
}

// Slots are taken back before a replica changes, and end with their client.
func TestTakesDescriptorsBack(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	n := f.nodes[0]
	b := newNeighbour(t, n, shortcircuit.VersionOwn)
	for i, change := range replicaChanges(t, n) {
		id := uint64(10 + i)
		finalized(t, n, id, 1001, random(id, 5000))
		if resp, _ := b.claim(i, id, 1001, nil); resp.GetStatus() != hdfspb.Status_SUCCESS {
			t.Fatalf("%s: %v", change.what, resp)
		}
		if !b.memory.Valid(i) {
			t.Fatalf("%s: the slot was taken back before", change.what)
		}
		change.do(id)
		if b.memory.Valid(i) {
			t.Errorf("%s: the slot is valid still", change.what)
		}
	}
	if got := n.Reads().Local; got.Revoked != 3 || got.Slots != 3 || got.Segments != 1 {
		t.Fatalf("%+v", got)
	}
	b.shared.Close()
	// The DataNode notices in its own time: its answer to a request for the segment's slots
	// tells.
	for deadline := time.Now().Add(patient); n.Reads().Local.Segments > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the segment outlives its client")
		}
		_ = b.release(0)
	}
	if got := n.Reads().Local; got.Slots != 0 {
		t.Fatalf("%+v", got)
	}
}

// FuzzLocalConnection sends anything to the socket: the connection ends, and the block is
// as it was.
func FuzzLocalConnection(f *testing.F) {
	ask := func(op transfer.Op, m proto.Message) []byte {
		b, err := transfer.AppendRequest(nil, op, m)
		must(f, err)
		return b
	}
	slot := shortcircuit.SlotID{Index: 1}.Proto()
	f.Add(ask(transfer.OpRequestShortCircuitShm, &hdfspb.ShortCircuitShmRequestProto{ClientName: proto.String("x")}))
	f.Add(ask(transfer.OpReleaseShortCircuitFDs, &hdfspb.ReleaseShortCircuitAccessRequestProto{SlotId: slot}))
	f.Add(ask(transfer.OpRequestShortCircuitFDs, &hdfspb.OpRequestShortCircuitAccessProto{Header: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, 0)}, MaxVersion: proto.Uint32(1), SlotId: slot}))
	f.Add(ask(transfer.OpRequestShortCircuitFDs, &hdfspb.OpRequestShortCircuitAccessProto{Header: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, 0)}, MaxVersion: proto.Uint32(1 << 31)}))
	f.Fuzz(func(t *testing.T, in []byte) {
		dn, err := Open(t.Context(), Config{Dirs: []Directory{{Path: "/dn"}}, FS: vfs.NewMem(), BootID: "b", Host: "127.0.0.1", Port: 1, ScanRate: -1, NameNode: &fakeNameNode{away: true},
			KeepAlive: time.Second, HandshakeTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second})
		must(t, err)
		defer dn.Close()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		near, far := fileConn(t, fds[0]), fileConn(t, fds[1])
		served := make(chan struct{})
		go func() { defer close(served); dn.ServeConn(far) }()
		_, _ = near.Write(in)
		must(t, near.CloseWrite())
		_, _ = io.Copy(io.Discard, near)
		near.Close()
		<-served
		if got := dn.Reads().Local; got.Slots != 0 || got.Segments != 0 {
			t.Fatalf("%+v", got)
		}
	})
}

// fileConn is a connection of a descriptor.
func fileConn(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	c, err := net.FileConn(f)
	must(t, err)
	return c.(*net.UnixConn)
}

// A process that asks for descriptors and does not read the answer is not waited for longer than any other peer.
func TestDescriptorsForADeafPeer(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, func(c *Config) { c.WriteTimeout = 50 * time.Millisecond }))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(file)
		must(t, errors.Join(err, file.Close()))
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	// No byte more fits into the way to the client.
	must(t, ends[0].SetWriteBuffer(4096))
	for _, size := range []int{64 << 10, 1} {
		for err := error(nil); !errors.Is(err, os.ErrDeadlineExceeded); {
			must(t, ends[0].SetWriteDeadline(time.Now().Add(5*time.Millisecond)))
			if _, err = ends[0].Write(make([]byte, size)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
	}
	must(t, ends[0].SetWriteDeadline(time.Time{}))
	must(t, transfer.WriteRequest(ends[1], transfer.OpRequestShortCircuitShm, &hdfspb.ShortCircuitShmRequestProto{ClientName: proto.String("test")}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.nodes[0].ServeConn(ends[0])
	}()
	select {
	case <-done:
	case <-time.After(patient):
		t.Error("it still waits for the client to read")
		ends[1].Close()
		<-done
	}
}
