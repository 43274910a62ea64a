package datanode

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// fullFS is a disk that a test fills.
type fullFS struct {
	vfs.FS
	full atomic.Bool
}

func (f *fullFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41, UsedBytes: 1 << 40}, nil
}

func (f *fullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return fullFile{file, f}, err
}

type fullFile struct {
	vfs.File
	fs *fullFS
}

func (f fullFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, off)
}

// A DataNode whose disk fails a write tells the NameNode that it has no room,
// and why it refuses to the client.
func TestFailingDisk(t *testing.T) {
	fs := &fullFS{FS: vfs.NewMem()}
	f := newFixture(t, 1, func(_ int, c *Config) { c.FS = fs })
	n := f.nodes[0]
	remaining := func() (sum uint64) {
		for _, s := range f.nn.beats[n.UUID()].GetStorages() {
			sum += s.GetRemaining()
		}
		return sum
	}
	f.nn.wait("a heartbeat with room", func() bool { return remaining() > 0 })
	c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
	fs.full.Store(true)
	c.send(0, random(1, 1000), false, false)
	var a transfer.Ack
	if err := c.r.ReadAck(&a); err != nil || a.Replies[0] != hdfspb.Status_ERROR {
		t.Fatalf("acknowledgement %+v, %v", a, err)
	}
	f.nn.wait("a heartbeat without room", func() bool { return remaining() == 0 })
}

// brokenFS has a disk for each directory at the root; those that are broken fail all writes.
type brokenFS struct {
	vfs.FS
	broken sync.Map // of the directories' names
}

func (f *brokenFS) err(name string) error {
	if _, is := f.broken.Load(strings.Split(name, "/")[1]); is {
		return &os.PathError{Op: "test", Path: name, Err: syscall.EIO}
	}
	return nil
}

func (f *brokenFS) GetDiskUsage(name string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41, UsedBytes: 1 << 40}, f.err(name)
}

func (f *brokenFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.err(name); err != nil {
		return nil, err
	}
	return f.FS.Create(name, c)
}

// A DataNode goes on without as many directories as may fail, and tells the NameNode which have;
// then it ends.
func TestDirectoriesFail(t *testing.T) {
	fs := &brokenFS{FS: vfs.NewMem()}
	ended := make(chan error, 2)
	f := newFixture(t, 1, func(_ int, c *Config) {
		c.FS, c.Dirs, c.FailedDirs = fs, []Directory{{Path: "/a"}, {Path: "/b", Type: hdfspb.StorageTypeProto_SSD}, {Path: "/c"}}, 1
		c.Ended = func(err error) { ended <- err }
	})
	n := f.nodes[0]
	for id := uint64(1); id <= 4; id++ {
		writeBlock(t, f.nodes, id, 1001, random(id, 1000))
	}
	f.nn.wait("a full report", func() bool { return len(f.nn.changes[n.UUID()]) >= 4 })
	in := map[uint32]int{}
	for _, i := range n.store.Replicas() {
		in[uint32(i.Storage)]++
	}
	if in[0] != 2 || in[1] != 0 || in[2] != 2 { // DISK unless a client says otherwise
		t.Fatalf("replicas in %v", in)
	}
	storages := func() []*clusterpb.Storage { return f.nn.beats[n.UUID()].GetStorages() }
	f.nn.wait("a heartbeat with storages", func() bool {
		s := storages()
		return len(s) == 3 && s[1].GetType() == uint32(hdfspb.StorageTypeProto_SSD) && s[0].GetRemaining() > 0 && !s[0].GetFailed()
	})
	fs.broken.Store("a", true) // which the next heartbeat finds out
	f.nn.wait("a heartbeat that tells of it", func() bool { s := storages(); return s[0].GetFailed() && !s[2].GetFailed() && s[0].GetRemaining() == 0 })
	if left := n.store.Replicas(); len(left) != 2 || left[0].Storage != 2 || left[1].Storage != 2 {
		t.Fatalf("%+v are left", left)
	}
	writeBlock(t, f.nodes, 5, 1001, random(5, 1000))
	select {
	case err := <-ended:
		t.Fatalf("ended with one failed directory: %v", err)
	default:
	}
	fs.broken.Store("c", true)
	if err := <-ended; !errors.Is(err, store.ErrTooManyFailed) || !strings.Contains(err.Error(), "/a") || !strings.Contains(err.Error(), "/c") {
		t.Fatalf("ended with %v", err)
	}
	f.nn.wait("a heartbeat that tells of both", func() bool { s := storages(); return s[0].GetFailed() && s[2].GetFailed() })
}
