package datanode

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
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

// hangFixture is a DataNode with the disks /a and /b, and two finalized blocks on each.
func hangFixture(t *testing.T, limit time.Duration) (f *fixture, fs *hangFS, in map[int][]store.Info) {
	fs = &hangFS{FS: vfs.NewMem(), hang: map[string]chan struct{}{}, told: make(chan struct{}, 2)}
	f = newFixture(t, 1, func(_ int, c *Config) {
		c.FS, c.Dirs, c.FailedDirs = fs, []Directory{{Path: "/a"}, {Path: "/b"}}, 1
		c.DiskTimeout, c.DiskPatience = limit, 20*time.Millisecond
	})
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
