package namenode

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// roomFS is a file system with as much room as a test says.
type roomFS struct {
	vfs.FS
	available atomic.Uint64
}

func (f *roomFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	n := f.available.Load()
	return vfs.DiskUsage{AvailBytes: n, TotalBytes: 1 << 40, UsedBytes: 1<<40 - n}, nil
}

// While the disk is full reads are answered and changes are refused, with the
// reason; when there is room it goes on.
func TestFullDisk(t *testing.T) {
	fs := &roomFS{FS: vfs.NewMem()}
	fs.available.Store(1 << 40)
	r := newRig(t, func(c *Config) { c.FS = fs })
	dns := r.datanodes(1)
	r.write("/f", 1, 100, dns...)
	safe := func() bool {
		return must[*hdfspb.SetSafeModeResponseProto](t)(r.nn.setSafeMode(r.as("root"), &hdfspb.SetSafeModeRequestProto{Action: hdfspb.SafeModeActionProto_SAFEMODE_GET.Enum()})).GetResult()
	}
	mkdirs := func(path string) error {
		_, err := r.nn.mkdirs(r.as("root"), &hdfspb.MkdirsRequestProto{Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)})
		return err
	}
	if safe() {
		t.Fatal("safe mode with an empty disk")
	}
	fs.available.Store(100<<20 - 1)
	r.nn.checkResources()
	wantClass(t, mkdirs("/d"), exception.SafeMode)
	_, err := r.nn.create(r.as("root"), createRequest("/g", "w", 1, flagCreate))
	wantClass(t, err, exception.SafeMode)
	if !safe() {
		t.Fatal("no safe mode with a full disk")
	}
	if n := len(r.locations("/f").GetBlocks()); n != 1 {
		t.Fatalf("a file of one block has %d while the disk is full", n)
	}
	// A heartbeat and a report need no room.
	dns[0].heartbeat(dns)
	dns[0].report()
	fs.available.Store(100 << 20)
	r.nn.checkResources()
	if err := mkdirs("/d"); err != nil || safe() {
		t.Fatalf("with room again: %v, safe mode %t", err, safe())
	}
}

// stoppedFS is a file system whose syncs wait while it is stopped, as pebble's
// writes do when a full disk keeps it from flushing.
type stoppedFS struct {
	roomFS
	gate    sync.RWMutex
	waiting chan struct{}
	stopped atomic.Bool
}

func (f *stoppedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return &stoppedFile{file, f}, err
}

func (f *stoppedFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, c)
	return &stoppedFile{file, f}, err
}

type stoppedFile struct {
	vfs.File
	fs *stoppedFS
}

func (f *stoppedFile) wait() {
	if f.fs.stopped.Load() {
		select {
		case f.fs.waiting <- struct{}{}:
		default:
		}
	}
	f.fs.gate.RLock()
	defer f.fs.gate.RUnlock()
}

func (f *stoppedFile) Sync() error     { f.wait(); return f.File.Sync() }
func (f *stoppedFile) SyncData() error { f.wait(); return f.File.SyncData() }
func (f *stoppedFile) SyncTo(n int64) (bool, error) {
	f.wait()
	return f.File.SyncTo(n)
}

// A change that already waits for the disk when that fills up ends with the
// reason, is carried out once there is room, and its repetition tells so.
func TestChangeWaitsForRoom(t *testing.T) {
	fs := &stoppedFS{roomFS: roomFS{FS: vfs.NewMem()}, waiting: make(chan struct{}, 1)}
	fs.available.Store(1 << 40)
	r := newRig(t, func(c *Config) { c.FS = fs })
	r.mkdirs("root", "/d")
	rename := func(id int32) error {
		_, err := r.nn.rename2(r.call("root", id), &hdfspb.Rename2RequestProto{Src: proto.String("/d"), Dst: proto.String("/e"), OverwriteDest: proto.Bool(false)})
		return err
	}
	fs.gate.Lock()
	fs.stopped.Store(true)
	done := make(chan error, 1)
	go func() { done <- rename(1000) }()
	<-fs.waiting
	fs.available.Store(0)
	r.nn.checkResources()
	select {
	case err := <-done:
		t.Fatalf("it did not wait for room: %v", err)
	default:
	}
	r.clock.advance(5 * time.Second)
	r.nn.checkResources()
	wantClass(t, <-done, exception.SafeMode)
	fs.stopped.Store(false)
	fs.gate.Unlock()
	fs.available.Store(1 << 40)
	r.nn.checkResources()
	if err := rename(1000); err != nil {
		t.Fatalf("the same call again: %v", err)
	}
	r.mkdirs("root", "/d")
	if err := rename(1001); err == nil {
		t.Fatal("/e is not there: the change was not carried out")
	}
}
