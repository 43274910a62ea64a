package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"net"
	"path"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/locations"
	"github.com/verbena-data/verbena/hdfs/internal/statuses"
)

func joinPort(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// notFound is how the NameNode would say it, if it did not answer with nothing.
func notFound(name string) error {
	return &ServerError{exception.FileNotFound, "File does not exist: " + name}
}

// Stat tells of a file or directory.
func (c *Client) Stat(ctx context.Context, name string) (*FileInfo, error) {
	name = c.Abs(name)
	s := &struct {
		name  string
		req   hdfspb.GetFileInfoRequestProto
		reply statuses.FileInfo
		info  FileInfo
	}{name: name}
	s.req.Src = &s.name
	if err := c.call(ctx, "stat", name, "getFileInfo", &s.req, &s.reply); err != nil {
		return nil, err
	}
	if s.reply.Fs == nil {
		return nil, c.fail("stat", name, notFound(name))
	}
	s.info = newInfo(name, s.reply.Fs)
	return &s.info, nil
}

// List goes through a directory in the order of its names, a page at a time, so that one
// of any size takes the memory of a page. Of a file it gives that file. After an error,
// which comes with a nil entry, it ends.
func (c *Client) List(ctx context.Context, name string) iter.Seq2[*FileInfo, error] {
	name = c.Abs(name)
	return func(yield func(*FileInfo, error) bool) {
		start := []byte{}
		for {
			var resp statuses.Listing
			err := c.call(ctx, "list", name, "getListing", &hdfspb.GetListingRequestProto{Src: &name, StartAfter: start, NeedLocation: proto.Bool(false)}, &resp)
			if err == nil && resp.DirList == nil {
				err = c.fail("list", name, notFound(name))
			}
			if err != nil {
				yield(nil, err)
				return
			}
			page := resp.GetDirList().GetPartialListing()
			var some []FileInfo
			for i, s := range page {
				entry := string(s.GetPath())
				if entry == "" {
					entry = name // a file lists itself
				}
				if len(some) == 0 {
					some = make([]FileInfo, min(statuses.Together, len(page)-i))
				}
				info := &some[0]
				some = some[1:]
				*info = newInfo(entry, s)
				if !yield(info, nil) {
					return
				}
			}
			if resp.GetDirList().GetRemainingEntries() == 0 || len(page) == 0 {
				return
			}
			start = page[len(page)-1].GetPath()
		}
	}
}

// ReadDir returns all entries of a directory in the order of their names.
func (c *Client) ReadDir(ctx context.Context, name string) ([]*FileInfo, error) {
	var out []*FileInfo
	for info, err := range c.List(ctx, name) {
		if err != nil {
			return out, err
		}
		out = append(out, info)
	}
	return out, nil
}

// Walk calls f for name and all that is below it, a directory before its entries, in the
// order of names. f gets the full path. If it returns [fs.SkipDir] for a directory, that
// is left out; another error ends the walk. A directory that can't be listed is given to
// f a second time, with the error.
func (c *Client) Walk(ctx context.Context, name string, f func(name string, info *FileInfo, err error) error) error {
	name = c.Abs(name)
	info, err := c.Stat(ctx, name)
	if err == nil {
		err = c.walk(ctx, name, info, f)
	} else {
		err = f(name, nil, err)
	}
	if errors.Is(err, fs.SkipDir) || errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

func (c *Client) walk(ctx context.Context, name string, info *FileInfo, f func(string, *FileInfo, error) error) error {
	err := f(name, info, nil)
	if err != nil || !info.IsDir() {
		if errors.Is(err, fs.SkipDir) && info.IsDir() {
			return nil
		}
		return err
	}
	for entry, err := range c.List(ctx, name) {
		if err != nil {
			if err = f(name, info, err); errors.Is(err, fs.SkipDir) {
				return nil
			}
			return err
		}
		if err := c.walk(ctx, path.Join(name, entry.Name()), entry, f); err != nil {
			if errors.Is(err, fs.SkipDir) {
				return nil // the rest of this directory
			}
			return err
		}
	}
	return nil
}

// Mkdir makes a directory. What is above it must be there; if it is there itself, the
// error is [fs.ErrExist]. A mode of 0 stands for 0777 without [ClientConfig].Umask.
func (c *Client) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	name = c.Abs(name)
	if _, err := c.Stat(ctx, name); err == nil {
		return c.fail("mkdir", name, fs.ErrExist) // HDFS makes no difference
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return c.mkdirs(ctx, name, mode, false)
}

// MkdirAll makes a directory and what is missing above it. It accepts one that is there.
// mode is as in [Client.Mkdir].
func (c *Client) MkdirAll(ctx context.Context, name string, mode fs.FileMode) error {
	return c.mkdirs(ctx, c.Abs(name), mode, true)
}

func (c *Client) mkdirs(ctx context.Context, name string, mode fs.FileMode, parents bool) error {
	masked, unmasked := c.modes(mode, directoryMode)
	var resp hdfspb.MkdirsResponseProto
	err := c.call(ctx, "mkdir", name, "mkdirs", &hdfspb.MkdirsRequestProto{Src: &name, Masked: masked, Unmasked: unmasked, CreateParent: &parents}, &resp)
	if err == nil && !resp.GetResult() {
		err = c.fail("mkdir", name, errors.New("the NameNode made no directory"))
	}
	return err
}

// Remove removes a file or an empty directory.
func (c *Client) Remove(ctx context.Context, name string) error {
	return c.remove(ctx, c.Abs(name), false)
}

// RemoveAll removes a file, or a directory with all that is in it. That there is none is
// no error.
func (c *Client) RemoveAll(ctx context.Context, name string) error {
	err := c.remove(ctx, c.Abs(name), true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (c *Client) remove(ctx context.Context, name string, recursive bool) error {
	var resp hdfspb.DeleteResponseProto
	if err := c.call(ctx, "remove", name, "delete", &hdfspb.DeleteRequestProto{Src: &name, Recursive: &recursive}, &resp); err != nil {
		return err
	}
	if resp.GetResult() {
		return nil
	}
	return c.fail("remove", name, notFound(name))
}

// Rename renames a file or directory to exactly the new name. If that is there, it must be
// replaceable (a file by a file, an empty directory by a directory), and replace must be
// set.
func (c *Client) Rename(ctx context.Context, from, to string, replace bool) error {
	from, to = c.Abs(from), c.Abs(to)
	return c.call(ctx, "rename", from, "rename2", &hdfspb.Rename2RequestProto{Src: &from, Dst: &to, OverwriteDest: &replace}, &hdfspb.Rename2ResponseProto{})
}

// Chmod sets the permissions and the sticky bit.
func (c *Client) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	name = c.Abs(name)
	return c.call(ctx, "chmod", name, "setPermission", &hdfspb.SetPermissionRequestProto{
		Src: &name, Permission: &hdfspb.FsPermissionProto{Perm: proto.Uint32(bitsOf(mode))},
	}, &hdfspb.SetPermissionResponseProto{})
}

// Chown sets the owner, the group, or both; an empty one stays.
func (c *Client) Chown(ctx context.Context, name, owner, group string) error {
	name = c.Abs(name)
	req := &hdfspb.SetOwnerRequestProto{Src: &name}
	if owner != "" {
		req.Username = &owner
	}
	if group != "" {
		req.Groupname = &group
	}
	return c.call(ctx, "chown", name, "setOwner", req, &hdfspb.SetOwnerResponseProto{})
}

// Chtimes sets the times of the last access and change; a zero time stays as it is.
func (c *Client) Chtimes(ctx context.Context, name string, access, change time.Time) error {
	name = c.Abs(name)
	millis := func(t time.Time) *uint64 {
		if t.IsZero() {
			return proto.Uint64(math.MaxUint64) // -1
		}
		return proto.Uint64(uint64(t.UnixMilli()))
	}
	return c.call(ctx, "chtimes", name, "setTimes", &hdfspb.SetTimesRequestProto{Src: &name, Mtime: millis(change), Atime: millis(access)}, &hdfspb.SetTimesResponseProto{})
}

// SetReplication sets how many replicas the blocks of a file are to have. The NameNode
// has them made or removed later.
func (c *Client) SetReplication(ctx context.Context, name string, replicas int) error {
	name = c.Abs(name)
	if replicas < 1 || replicas > largestReplication {
		return c.fail("setreplication", name, fmt.Errorf("%d replicas: want 1 to %d: %w", replicas, largestReplication, fs.ErrInvalid))
	}
	var resp hdfspb.SetReplicationResponseProto
	err := c.call(ctx, "setreplication", name, "setReplication", &hdfspb.SetReplicationRequestProto{Src: &name, Replication: proto.Uint32(uint32(replicas))}, &resp)
	if err == nil && !resp.GetResult() {
		err = c.fail("setreplication", name, fmt.Errorf("it is not a file: %w", fs.ErrInvalid))
	}
	return err
}

// Summary counts what is in a directory.
func (c *Client) Summary(ctx context.Context, name string) (*Summary, error) {
	name = c.Abs(name)
	var resp hdfspb.GetContentSummaryResponseProto
	if err := c.call(ctx, "summary", name, "getContentSummary", &hdfspb.GetContentSummaryRequestProto{Path: &name}, &resp); err != nil {
		return nil, err
	}
	s := resp.GetSummary()
	return &Summary{
		Length: int64(s.GetLength()), Files: int64(s.GetFileCount()), Directories: int64(s.GetDirectoryCount()), Space: int64(s.GetSpaceConsumed()),
		Quota: int64(s.GetQuota()), SpaceQuota: int64(s.GetSpaceQuota()), ErasureCodingPolicy: s.GetErasureCodingPolicy(), Types: typeQuotas(s.GetTypeQuotaInfos()),
		SnapshotLength: int64(s.GetSnapshotLength()), SnapshotFiles: int64(s.GetSnapshotFileCount()), SnapshotDirectories: int64(s.GetSnapshotDirectoryCount()), SnapshotSpace: int64(s.GetSnapshotSpaceConsumed()),
	}, nil
}

// Status tells the capacity of the file system.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var s hdfspb.GetFsStatsResponseProto
	if err := c.call(ctx, "status", "/", "getFsStats", &hdfspb.GetFsStatusRequestProto{}, &s); err != nil {
		return nil, err
	}
	return &Status{
		Capacity: int64(s.GetCapacity()), Used: int64(s.GetUsed()), Remaining: int64(s.GetRemaining()),
		UnderReplicated: int64(s.GetUnderReplicated()), Corrupt: int64(s.GetCorruptBlocks()), Gone: int64(s.GetMissingBlocks()),
		GoneWithOneReplica: int64(s.GetMissingReplOneBlocks()), ToBeDeleted: int64(s.GetPendingDeletionBlocks()),
	}, nil
}

// DataNodes lists the DataNodes that are up.
func (c *Client) DataNodes(ctx context.Context) ([]DataNodeInfo, error) {
	var resp hdfspb.GetDatanodeReportResponseProto
	if err := c.call(ctx, "datanodes", "/", "getDatanodeReport", &hdfspb.GetDatanodeReportRequestProto{Type: hdfspb.DatanodeReportTypeProto_LIVE.Enum()}, &resp); err != nil {
		return nil, err
	}
	var out []DataNodeInfo
	for _, d := range resp.GetDi() {
		out = append(out, dataNodeInfo(d))
	}
	return out, nil
}

// BlockLocations tells where the blocks of a range of a file are. A length below 0 means
// up to the end.
func (c *Client) BlockLocations(ctx context.Context, name string, offset, length int64) ([]BlockLocation, error) {
	name = c.Abs(name)
	lbs, err := c.locate(ctx, "locations", name, offset, length)
	if err != nil {
		return nil, err
	}
	blocks := lbs.GetBlocks()
	if last := lbs.GetLastBlock(); last != nil && !lbs.GetIsLastBlockComplete() && (length < 0 || int64(last.GetOffset()) < offset+length) {
		// Apache's NameNode does not list the block that is being written.
		if n := len(blocks); n == 0 || blocks[n-1].GetB().GetBlockId() != last.GetB().GetBlockId() {
			blocks = append(blocks, last)
		}
	}
	var out []BlockLocation
	for _, lb := range blocks {
		b := BlockLocation{ID: lb.GetB().GetBlockId(), Generation: lb.GetB().GetGenerationStamp(), Offset: int64(lb.GetOffset()), Length: int64(lb.GetB().GetNumBytes()), Corrupt: lb.GetCorrupt()}
		for _, d := range lb.GetLocs() {
			b.DataNodes = append(b.DataNodes, dataNodeInfo(d))
		}
		out = append(out, b)
	}
	return out, nil
}

func (c *Client) locate(ctx context.Context, op, name string, offset, length int64) (*hdfspb.LocatedBlocksProto, error) {
	if length < 0 {
		length = math.MaxInt64 - max(0, offset)
	}
	var resp locations.Blocks
	err := c.call(ctx, op, name, "getBlockLocations", &hdfspb.GetBlockLocationsRequestProto{Src: &name, Offset: proto.Uint64(uint64(max(0, offset))), Length: proto.Uint64(uint64(length))}, &resp)
	if err == nil && resp.Locations == nil {
		err = c.fail(op, name, notFound(name))
	}
	return resp.GetLocations(), err
}

// Truncate cuts a file to a length, which must not be above its own. If the cut is inside
// a block, DataNodes have to cut their replicas first: done is then false, and the file
// can't be written until they have, for which [Client.WaitClosed] waits.
func (c *Client) Truncate(ctx context.Context, name string, length int64) (done bool, err error) {
	name = c.Abs(name)
	var resp hdfspb.TruncateResponseProto
	err = c.call(ctx, "truncate", name, "truncate", &hdfspb.TruncateRequestProto{Src: &name, NewLength: proto.Uint64(uint64(length)), ClientName: &c.holder}, &resp)
	return resp.GetResult(), err
}

// IsClosed tells whether nobody writes a file, nor are its last bytes being recovered.
func (c *Client) IsClosed(ctx context.Context, name string) (bool, error) {
	name = c.Abs(name)
	var resp hdfspb.IsFileClosedResponseProto
	err := c.call(ctx, "isclosed", name, "isFileClosed", &hdfspb.IsFileClosedRequestProto{Src: &name}, &resp)
	return resp.GetResult(), err
}

// WaitClosed waits until a file is closed, or ctx ends.
func (c *Client) WaitClosed(ctx context.Context, name string) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		closed, err := c.IsClosed(ctx, name)
		if closed || err != nil {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return c.fail("wait", c.Abs(name), context.Cause(ctx))
		}
	}
}

// RecoverLease takes a file from a writer that is gone. closed tells whether the file is
// closed already; else [Client.WaitClosed] waits for it.
func (c *Client) RecoverLease(ctx context.Context, name string) (closed bool, err error) {
	name = c.Abs(name)
	var resp hdfspb.RecoverLeaseResponseProto
	err = c.call(ctx, "recoverlease", name, "recoverLease", &hdfspb.RecoverLeaseRequestProto{Src: &name, ClientName: &c.holder}, &resp)
	return resp.GetResult(), err
}

// Concat moves the blocks of files to the end of another one. The files are gone then.
// All must be in one directory, with the same block size and replication.
func (c *Client) Concat(ctx context.Context, target string, sources ...string) error {
	target = c.Abs(target)
	req := &hdfspb.ConcatRequestProto{Trg: &target}
	for _, s := range sources {
		req.Srcs = append(req.Srcs, c.Abs(s))
	}
	return c.call(ctx, "concat", target, "concat", req, &hdfspb.ConcatResponseProto{})
}

// Access tells by [fs.ErrPermission] whether the user may not do with a path what mode
// says: 4 to read, 2 to write, 1 to execute, or sums of them.
func (c *Client) Access(ctx context.Context, name string, mode int) error {
	name = c.Abs(name)
	return c.call(ctx, "access", name, "checkAccess", &hdfspb.CheckAccessRequestProto{Path: &name, Mode: hdfspb.FsActionProto(mode & 7).Enum()}, &hdfspb.CheckAccessResponseProto{})
}
