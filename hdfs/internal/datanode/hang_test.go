package datanode

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// hangFS has a disk for each directory at the root. Those that hang answer nothing until they go on.
type hangFS struct {
	vfs.FS
	mu   sync.Mutex
	hang map[string]chan struct{} // by directory
	// told is told of each operation that waits; room has questions for the room wait, too.
	told chan struct{}
	room atomic.Bool
}

// stop has a directory's disk hang, until the test ends or go on is called.
func (f *hangFS) stop(t *testing.T, dir string) (goOn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.hang[dir] = gate
	goOn = sync.OnceFunc(func() {
		f.mu.Lock()
		delete(f.hang, dir)
		f.mu.Unlock()
		close(gate)
	})
	t.Cleanup(goOn)
	return goOn
}

// wait waits for a file's disk.
func (f *hangFS) wait(name string) {
	f.mu.Lock()
	gate := f.hang["/"+strings.Split(name, "/")[1]]
	f.mu.Unlock()
	if gate != nil {
		select {
		case f.told <- struct{}{}:
		default:
		}
		<-gate
	}
}

func (f *hangFS) GetDiskUsage(name string) (vfs.DiskUsage, error) {
	if f.room.Load() {
		f.wait(name)
	}
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41, UsedBytes: 1 << 40}, nil
}

func (f *hangFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.wait(name)
	file, err := f.FS.Create(name, c)
	return hangFile{file, f, name}, err
}

func (f *hangFS) Remove(name string) error {
	f.wait(name)
	return f.FS.Remove(name)
}

type hangFile struct {
	vfs.File
	fs   *hangFS
	name string
}

func (f hangFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.wait(f.name)
	return f.File.WriteAt(p, off)
}

func newHangFS() *hangFS {
	return &hangFS{FS: vfs.NewMem(), hang: map[string]chan struct{}{}, told: make(chan struct{}, 2)}
}

// disks has the first DataNode of a fixture have the disks /a and /b.
func (f *hangFS) disks(limit time.Duration) func(i int, c *Config) {
	return func(i int, c *Config) {
		if i == 0 {
			c.FS, c.Dirs, c.FailedDirs = f, []Directory{{Path: "/a"}, {Path: "/b"}}, 1
			c.DiskTimeout, c.DiskPatience = limit, 20*time.Millisecond
		}
	}
}

// hangFixture is a DataNode with the disks /a and /b, and two finalized blocks on each.
func hangFixture(t *testing.T, limit time.Duration) (f *fixture, fs *hangFS, in map[int][]store.Info) {
	fs = newHangFS()
	f = newFixture(t, 1, fs.disks(limit))
	// Cleanups run in the other order: the disks go on before the DataNode is closed.
	for id := uint64(1); id <= 4; id++ {
		writeBlock(t, f.nodes, id, 1001, random(id, 1000))
	}
	in = map[int][]store.Info{}
	for _, i := range f.nodes[0].store.Replicas() {
		in[i.Storage] = append(in[i.Storage], i)
	}
	if len(in[0]) != 2 || len(in[1]) != 2 {
		t.Fatalf("replicas in %v", in)
	}
	return f, fs, in
}

// storage is what the NameNode has heard last of a directory, nil: nothing. The caller has the lock of
// f.nn.
func (f *fixture) storage(index int) *clusterpb.Storage {
	if all := f.nn.beats[f.nodes[0].UUID()].GetStorages(); index < len(all) {
		return all[index]
	}
	return nil
}

// A disk that hangs gets nothing new and holds nothing up: neither heartbeats nor reports, nor what is
// ordered of blocks elsewhere. When it goes on it is as good as before.
func TestDiskThatHangsForAWhile(t *testing.T) {
	f, fs, in := hangFixture(t, time.Hour)
	n := f.nodes[0]
	goOn := fs.stop(t, "/a")
	order := func(blocks ...store.Info) {
		f.nn.event(func() {
			for _, i := range blocks {
				f.nn.commands[n.UUID()] = append(f.nn.commands[n.UUID()], &clusterpb.Command{
					Kind: clusterpb.Command_DELETE.Enum(), Block: &clusterpb.Block{Id: &i.ID, Generation: &i.Generation},
				})
			}
		})
	}
	// Both workers of deletions are lost to it, and the locks of two replicas.
	order(in[0]...)
	<-fs.told
	<-fs.told
	fs.room.Store(true)
	f.nn.wait("a heartbeat without room in one directory", func() bool {
		a, b := f.storage(0), f.storage(1)
		return a.GetRemaining() == 0 && !a.GetFailed() && b.GetRemaining() > 0
	})
	order(in[1][0])
	f.nn.wait("a deletion elsewhere", func() bool {
		return slices.ContainsFunc(f.nn.changes[n.UUID()], func(c *clusterpb.ReplicaChange) bool {
			return c.GetKind() == clusterpb.ReplicaChange_DELETED && c.GetReplica().GetBlock().GetId() == in[1][0].ID
		})
	})
	for id := uint64(5); id <= 7; id++ {
		writeBlock(t, f.nodes, id, 1001, random(id, 1000))
		if r, err := n.store.Get(id); err != nil || r.Storage() != 1 {
			t.Fatalf("block %d is on the disk that hangs (%v)", id, err)
		}
	}
	reports := 0
	f.nn.event(func() {
		reports = f.nn.full[n.UUID()]
		f.nn.commands[n.UUID()] = append(f.nn.commands[n.UUID()], &clusterpb.Command{Kind: clusterpb.Command_REPORT.Enum()})
	})
	f.nn.wait("a full report", func() bool { return f.nn.full[n.UUID()] > reports })
	f.nn.mu.Lock()
	reports = f.nn.full[n.UUID()]
	if got := len(f.nn.reports[n.UUID()]); got != 4 { // one was left there, three are new
		t.Errorf("the report has %d replicas", got)
	}
	f.nn.mu.Unlock()
	goOn()
	f.nn.wait("a heartbeat with room, and another full report", func() bool {
		return f.storage(0).GetRemaining() > 0 && f.nn.full[n.UUID()] > reports
	})
	for id := uint64(8); id <= 9; id++ {
		writeBlock(t, f.nodes, id, 1001, random(id, 1000))
	}
	if !slices.ContainsFunc(n.store.Replicas(), func(i store.Info) bool { return i.ID >= 8 && i.Storage == 0 }) {
		t.Error("nothing is put on the disk that goes on")
	}
}

// A disk that hangs for longer than it may is out of service: the NameNode hears of it, its replicas are
// gone, and writers to it go elsewhere.
func TestDiskThatHangsIsTakenOut(t *testing.T) {
	f, fs, in := hangFixture(t, 200*time.Millisecond)
	n := f.nodes[0]
	c := openWrite(t, f.nodes, create, 9, 1001, 0, 0, 0)
	writing, err := n.store.Get(9)
	if err != nil {
		t.Fatal(err)
	}
	dir := writing.Storage()
	fs.room.Store(true)
	fs.stop(t, n.cfg.Dirs[dir].Path)
	c.send(0, random(9, 1000), false, false)
	f.nn.wait("a heartbeat that tells of a failed directory", func() bool { return f.storage(dir).GetFailed() && !f.storage(1-dir).GetFailed() })
	var a transfer.Ack
	if err := c.r.ReadAck(&a); err == nil {
		t.Errorf("a packet that is not written is acknowledged: %+v", a)
	}
	left := n.store.Replicas()
	if len(left) != 2 || slices.ContainsFunc(left, func(i store.Info) bool { return i.Storage == dir }) {
		t.Errorf("%+v are left", left)
	}
	writeBlock(t, f.nodes, 10, 1001, random(10, 1000))
	resp, err := n.Recoveries().InitRecovery(t.Context(), &clusterpb.InitRecoveryRequest{
		Block: &clusterpb.Block{Id: &in[dir][0].ID, Generation: proto.Uint64(1001)}, NewGeneration: proto.Uint64(1002),
	})
	if err != nil || resp.GetReplica() != nil {
		t.Errorf("a recovery finds %v, %v", resp, err)
	}
}

// dirOf is the directory of a block on the first DataNode.
func (f *fixture) dirOf(id uint64) int {
	f.t.Helper()
	r, err := f.nodes[0].store.Get(id)
	must(f.t, err)
	return r.Storage()
}

// wantAck takes the next acknowledgement of a block, which has no failure.
func (c *nativeClient) wantAck(tag uint32, seqno int64) {
	c.t.Helper()
	var a transfer.Ack
	if must(c.t, native.ParseAck(c.next(tag), &a)); !a.OK() || a.Seqno != seqno {
		c.t.Fatalf("acknowledgement %+v of packet %d of block %d", a, seqno, tag)
	}
}

// Blocks of one endpoint are on several disks. One disk that hangs holds up neither the blocks on
// others nor set-ups, and when it goes on so do its own, in order.
func TestDiskThatHangsHoldsNoOtherBlockUp(t *testing.T) {
	for behind := range 2 {
		t.Run(fmt.Sprint(behind, " behind"), func(t *testing.T) {
			fs := newHangFS()
			f := newNatives(t, 1+behind, fs.disks(time.Hour))
			c := dialNative(t, f.nodes[0])
			in := map[int][]uint32{} // by directory
			for tag := uint32(1); tag <= 6; tag++ {
				if v, resp := c.setUp(tag, writeOf(uint64(tag), f.nodes[1:]...)); v != native.Accepted {
					t.Fatal(resp)
				}
				in[f.dirOf(uint64(tag))] = append(in[f.dirOf(uint64(tag))], tag)
			}
			if len(in[0]) != 3 || len(in[1]) != 3 {
				t.Fatalf("blocks in %v", in)
			}
			packets := packetsOf(random(1, 4000), 1000, 0, 1, 2)
			goOn := fs.stop(t, "/a")
			c.send(in[0][0], packets[0])
			<-fs.told
			for i, p := range packets {
				for _, tag := range in[1] {
					c.send(tag, p)
					c.wantAck(tag, int64(i))
				}
				if i < 2 {
					c.send(in[0][0], packets[1+i])
				}
				c.send(in[0][1], p)
			}
			for n := f.nodes[0]; !n.store.Hangs(0); { // or block 7 may be put there
				if !n.sleep(time.Millisecond) || c.ctx.Err() != nil {
					t.Fatal("nobody notices that the disk hangs")
				}
			}
			if v, resp := c.setUp(7, writeOf(7, f.nodes[1:]...)); v != native.Accepted || f.dirOf(7) != 1 {
				t.Error(resp)
			}
			goOn()
			acked := map[uint32]int64{in[0][0]: -1, in[0][1]: -1}
			for acked[in[0][0]] < 2 || acked[in[0][1]] < 2 {
				m, err := c.ep.Receive(c.ctx)
				must(t, err)
				var a transfer.Ack
				if must(t, native.ParseAck(m.Bytes(), &a)); !a.OK() || a.Seqno <= acked[m.Tag] {
					t.Fatalf("block %d: %+v behind packet %d", m.Tag, a, acked[m.Tag])
				}
				acked[m.Tag] = a.Seqno
				m.Release()
			}
		})
	}
}

// Who breaks the protocol ends, also if the packets that came before are for a disk that hangs.
func TestBreachEndsThoughADiskHangs(t *testing.T) {
	fs := newHangFS()
	ended := make(chan error, 1)
	f := newNativesOn(t, fake.NewNetwork(), 1, fs.disks(time.Hour), func(n *node) func(context.Context, *verbena.Endpoint) error {
		return func(ctx context.Context, ep *verbena.Endpoint) error {
			err := n.ServeNative(ctx, ep)
			ended <- err
			return err
		}
	})
	c := dialNative(t, f.nodes[0])
	in := map[int]uint32{} // by directory
	for tag := uint32(1); tag <= 2; tag++ {
		if v, resp := c.setUp(tag, writeOf(uint64(tag))); v != native.Accepted {
			t.Fatal(resp)
		}
		in[f.dirOf(uint64(tag))] = tag
	}
	if len(in) != 2 {
		t.Fatalf("blocks in %v", in)
	}
	fs.stop(t, "/a")
	fs.stop(t, "/b")
	packet := packetsOf(random(1, 1000), 1000, 0)[0]
	c.send(in[0], packet)
	<-fs.told
	// Until the goroutine that receives is relieved they come together.
	c.send(in[1], packet)
	c.send(in[1], []byte{99, 0, 0, 0, 0, 0, 0, 0})
	<-fs.told
	for {
		m, err := c.ep.Receive(c.ctx)
		if err != nil {
			if c.ctx.Err() != nil {
				t.Fatal("the endpoint lives on")
			}
			break
		}
		m.Release()
	}
	select {
	case err := <-ended:
		if !errors.Is(err, native.ErrMalformed) {
			t.Error(err)
		}
	case <-c.ctx.Done():
		t.Error("it is served still")
	}
	n := &f.nodes[0].native
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.links) != 0 {
		t.Errorf("%d links are left", len(n.links))
	}
}

// A replica is locked while it is opened to be read, which may take as long as its disk hangs. Acknowledgements from
// behind of other blocks do not wait for that.
func TestReplicaThatIsOpenedHoldsNoOtherBlockUp(t *testing.T) {
	var shut atomic.Bool
	opening, gate := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(gate) })
	defer free()
	d := newDam()
	f := newNatives(t, 2, func(i int, c *Config) {
		if i == 1 {
			c.FS = d.disk()
			return
		}
		c.FS = errorfs.Wrap(c.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpOpen && filepath.Base(op.Path) == "blk_1" && shut.CompareAndSwap(true, false) {
				close(opening)
				<-gate
			}
			return nil
		}))
	})
	c := dialNative(t, f.nodes[0])
	for tag := uint32(1); tag <= 2; tag++ {
		if v, resp := c.setUp(tag, writeOf(uint64(tag), f.nodes[1])); v != native.Accepted {
			t.Fatal(resp)
		}
	}
	packets := packetsOf(random(1, 2000), 1000, 0, 1)
	d.shut.Store(true)
	c.send(1, packets[0])
	d.wait(t)
	r, err := f.nodes[0].store.Get(1)
	must(t, err)
	for r.Info().Length != 1000 {
		if !f.nodes[0].sleep(time.Millisecond) || c.ctx.Err() != nil {
			t.Fatal("the first DataNode writes nothing")
		}
	}
	shut.Store(true)
	opened := make(chan error)
	go func() {
		rd, err := r.Open()
		if err == nil {
			err = rd.Close()
		}
		opened <- err
	}()
	<-opening
	d.free() // the one behind acknowledges
	for i, p := range packets {
		c.send(2, p)
		c.wantAck(2, int64(i))
	}
	free()
	must(t, <-opened)
	c.wantAck(1, 0)
	if n := r.Info().Visible; n != 1000 {
		t.Errorf("%d bytes are visible", n)
	}
}

// A writer of the native path is told when its disk is taken out of service.
func TestDiskThatIsTakenOutTellsNativeWriters(t *testing.T) {
	fs := newHangFS()
	f := newNatives(t, 1, fs.disks(200*time.Millisecond))
	c := dialNative(t, f.nodes[0])
	if v, resp := c.setUp(7, writeOf(9)); v != native.Accepted {
		t.Fatal(resp)
	}
	fs.stop(t, f.nodes[0].cfg.Dirs[f.dirOf(9)].Path)
	c.send(7, nativePackets(random(9, 1000), 1000)[0])
	c.wantFailure(7)
}

// wantFailure takes the next acknowledgement of a block, by which the first DataNode has failed.
func (c *nativeClient) wantFailure(tag uint32) {
	c.t.Helper()
	var a transfer.Ack
	if must(c.t, native.ParseAck(c.next(tag), &a)); len(a.Replies) != 1 || a.Replies[0] != hdfspb.Status_ERROR {
		c.t.Errorf("acknowledgement %+v", a)
	}
}

// A writer of the native path is told when a recovery takes its block over, and can't write on.
func TestRecoveryTellsNativeWriters(t *testing.T) {
	f := newNatives(t, 2, nil)
	c := dialNative(t, f.nodes[0])
	if v, resp := c.setUp(7, writeOf(1, f.nodes[1])); v != native.Accepted {
		t.Fatal(resp)
	}
	packets := packetsOf(random(1, 2000), 1000, 0, 1)
	c.send(7, packets[0])
	c.wantAck(7, 0)
	resp, err := f.nodes[0].Recoveries().InitRecovery(t.Context(), &clusterpb.InitRecoveryRequest{
		Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001)}, NewGeneration: proto.Uint64(1002),
	})
	if err != nil || resp.GetReplica().GetBlock().GetLength() != 1000 {
		t.Fatalf("a recovery finds %v, %v", resp, err)
	}
	c.wantFailure(7)
}

// Whoever begins a block on a disk that hangs is told so while it hangs, and which DataNode is to be left out. When the
// disk goes on nothing of the block is left there.
func TestSetUpOnADiskThatHangs(t *testing.T) {
	for place := range 2 {
		hangs := func(fs *hangFS) func(i int, c *Config) {
			return func(i int, c *Config) {
				if i == place {
					fs.disks(time.Hour)(0, c)
				}
			}
		}
		stop := func(t *testing.T, f *fixture, fs *hangFS) (goOn func(), bad string) {
			a, b := fs.stop(t, "/a"), fs.stop(t, "/b")
			if place > 0 {
				bad = f.nodes[place].addr
			}
			return func() { a(); b() }, bad
		}
		t.Run(fmt.Sprint("at place ", place), func(t *testing.T) {
			t.Parallel()
			fs := newHangFS()
			f := newFixture(t, 2, hangs(fs))
			goOn, bad := stop(t, f, fs)
			c := dialNode(t, f.nodes[0])
			if resp := c.request(create, 1, 1001, 0, 0, 0, f.nodes[1:]); resp.GetStatus() != hdfspb.Status_ERROR || resp.GetFirstBadLink() != bad {
				t.Errorf("answer %v", resp)
			}
			goOn()
			for _, n := range f.nodes[:place+1] { // one behind has begun it
				waitGone(t, n, 1)
			}
		})
		t.Run(fmt.Sprint("at place ", place, " of the native path"), func(t *testing.T) {
			t.Parallel()
			fs := newHangFS()
			f := newNatives(t, 2, hangs(fs))
			goOn, bad := stop(t, f, fs)
			c := dialNative(t, f.nodes[0])
			if v, resp := c.setUp(1, writeOf(1, f.nodes[1])); v != native.Refused || resp.GetFirstBadLink() != bad {
				t.Errorf("verdict %d: %v", v, resp)
			}
			goOn()
			for _, n := range f.nodes[:place+1] { // one behind has begun it
				waitGone(t, n, 1)
			}
		})
	}
}
