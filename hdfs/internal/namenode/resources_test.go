package namenode

import (
	"context"
	"sync/atomic"
	"testing"

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
	r.check()
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
	r.nn.check(context.Background())
	if err := mkdirs("/d"); err != nil || safe() {
		t.Fatalf("with room again: %v, safe mode %t", err, safe())
	}
}
