package datanode

import (
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

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
	remaining := func() uint64 { return f.nn.beats[n.UUID()].GetRemaining() }
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
