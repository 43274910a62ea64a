package namenode

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
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

// In safe mode by hand, and with a full disk, DataNodes are told to delete and to copy nothing. All of it follows
// when changes are taken again.
func TestSafeModeStopsDeletionsAndCopies(t *testing.T) {
	fs := &roomFS{FS: vfs.NewMem()}
	fs.available.Store(1 << 40)
	r := newRig(t, func(c *Config) { c.FS = fs })
	byHand := func(action hdfspb.SafeModeActionProto) {
		must[*hdfspb.SetSafeModeResponseProto](t)(r.nn.setSafeMode(r.as("root"), &hdfspb.SetSafeModeRequestProto{Action: &action}))
	}
	full := func(available uint64) {
		fs.available.Store(available)
		r.nn.checkResources()
	}
	dns := r.datanodes(3)
	turns := func() (kinds []clusterpb.Command_Kind) {
		for range 4 {
			for _, d := range dns {
				d.seen = nil
			}
			r.clock.advance(6 * time.Second)
			r.turn(dns)
			for _, d := range dns {
				for _, c := range d.seen {
					kinds = append(kinds, c.GetKind())
				}
			}
		}
		return kinds
	}
	for name, freeze := range map[string]func(bool){
		"by hand": func(on bool) {
			if on {
				byHand(hdfspb.SafeModeActionProto_SAFEMODE_ENTER)
			} else {
				byHand(hdfspb.SafeModeActionProto_SAFEMODE_LEAVE)
			}
		},
		"full disk": func(on bool) {
			if on {
				full(0)
			} else {
				full(1 << 40)
			}
		},
		"full disk, which no operator ends": func(on bool) {
			if on {
				full(0)
				byHand(hdfspb.SafeModeActionProto_SAFEMODE_LEAVE)
			} else {
				full(1 << 40)
			}
		},
	} {
		stray := r.write("/stray", 1, 100, dns...)
		must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/stray"), Recursive: proto.Bool(false)}))
		gone := r.write("/gone", 2, 100, dns...).GetBlockId()
		fewer := r.write("/fewer", 3, 100, dns...).GetBlockId()
		more := r.write("/more", 1, 100, dns...).GetBlockId()
		turns()
		must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/gone"), Recursive: proto.Bool(false)}))
		for path, n := range map[string]uint32{"/fewer": 1, "/more": 3} {
			r.replicate(path, n)
		}
		freeze(true)
		dns[0].receive(stray) // it has been deleted, and is here again
		if kinds := turns(); len(kinds) > 0 {
			t.Errorf("%s: DataNodes were told to %v", name, kinds)
		}
		r.nn.blocks.mu.Lock()
		trimmed := len(r.nn.blocks.nodes[dns[0].uuid].deletions) + len(r.nn.blocks.nodes[dns[1].uuid].deletions) + len(r.nn.blocks.nodes[dns[2].uuid].deletions)
		copying := len(r.nn.blocks.copying)
		r.nn.blocks.mu.Unlock()
		if copying > 0 {
			t.Errorf("%s: copies of %d blocks are planned", name, copying)
		}
		if trimmed != 2 {
			t.Errorf("%s: %d deletions are planned, want only those of the deleted file's two replicas", name, trimmed)
		}
		freeze(false)
		turns()
		for id, want := range map[uint64]int{gone: 0, stray.GetBlockId(): 0, fewer: 1, more: 3} {
			if n := r.holders(id, dns); n != want {
				t.Errorf("%s: afterwards %d replicas of block %d, want %d", name, n, id, want)
			}
		}
		for _, path := range []string{"/fewer", "/more"} {
			must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: &path, Recursive: proto.Bool(false)}))
		}
	}
}

// As in HDFS a change is refused in safe mode, though there would be nothing to do.
func TestSafeModeRefusesWhatChangesNothing(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	b := r.write("/f", 1, 100, dns...)
	r.mkdirs("root", "/d")
	r.create("/open", "w", 1)
	open := r.addBlock("/open", "w", nil).GetB()
	rename := func(id int32) error {
		_, err := r.nn.rename2(r.call("root", id), &hdfspb.Rename2RequestProto{Src: proto.String("/d"), Dst: proto.String("/e"), OverwriteDest: proto.Bool(false)})
		return err
	}
	if err := rename(1000); err != nil {
		t.Fatal(err)
	}
	r.write("/again", 1, 100, dns...)
	appendTo := func(path string, id int32) error {
		_, err := r.nn.append(r.call("root", id), &hdfspb.AppendRequestProto{Src: &path, ClientName: proto.String("w")})
		return err
	}
	if err := appendTo("/again", 1001); err != nil {
		t.Fatal(err)
	}
	// Safe mode is told of before the want of replicas.
	gone := r.write("/gone", 1, 100, dns...)
	dns[0].changed(clusterpb.ReplicaChange_DELETED, dns[0].replicas[gone.GetBlockId()])
	wantClass(t, appendTo("/gone", 1002), exception.IO)
	must[*hdfspb.SetSafeModeResponseProto](t)(r.nn.setSafeMode(r.as("root"), &hdfspb.SetSafeModeRequestProto{Action: hdfspb.SafeModeActionProto_SAFEMODE_ENTER.Enum()}))
	for name, do := range map[string]func() error{
		"mkdirs": func() error {
			_, err := r.nn.mkdirs(r.as("root"), &hdfspb.MkdirsRequestProto{Src: proto.String("/e"), Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)})
			return err
		},
		"delete": func() error {
			_, err := r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/none"), Recursive: proto.Bool(false)})
			return err
		},
		"recoverLease": func() error {
			_, err := r.nn.recoverLease(r.as("root"), &hdfspb.RecoverLeaseRequestProto{Src: proto.String("/f"), ClientName: proto.String("w")})
			return err
		},
		"complete": func() error {
			_, err := r.nn.complete(r.as("root"), &hdfspb.CompleteRequestProto{Src: proto.String("/f"), ClientName: proto.String("writer"), Last: b})
			return err
		},
		"addBlock": func() error {
			_, err := r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: proto.String("/open"), ClientName: proto.String("w")})
			return err
		},
		"append": func() error { return appendTo("/gone", 1003) },
		"truncate": func() error {
			_, err := r.nn.truncate(r.as("root"), &hdfspb.TruncateRequestProto{Src: proto.String("/gone"), NewLength: proto.Uint64(10), ClientName: proto.String("w")})
			return err
		},
		"updateBlockForPipeline": func() error {
			_, err := r.nn.updateBlockForPipeline(r.as("root"), &hdfspb.UpdateBlockForPipelineRequestProto{Block: open, ClientName: proto.String("w")})
			return err
		},
		"getAdditionalDatanode": func() error {
			_, err := r.nn.getAdditionalDatanode(r.as("root"), &hdfspb.GetAdditionalDatanodeRequestProto{Src: proto.String("/open"), Blk: open, ClientName: proto.String("w"), NumAdditionalNodes: proto.Uint32(1)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantClass(t, do(), exception.SafeMode) })
	}
	if err := errors.Join(rename(1000), appendTo("/again", 1001)); err != nil {
		t.Errorf("a call that was carried out before is not answered again: %v", err)
	}
}
