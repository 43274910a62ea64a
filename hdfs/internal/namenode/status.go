package namenode

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/statuses"
)

const (
	listingLimit     = 1000 // entries of one getListing, and locations in it, as in HDFS
	summaryStep      = 5000 // inodes that getContentSummary counts before writers may go on
	bytesPerChecksum = 512
	defaultPolicy    = 7 // HOT: of storage
)

func (nn *NameNode) getServerDefaults(context.Context, *hdfspb.GetServerDefaultsRequestProto) (*hdfspb.GetServerDefaultsResponseProto, error) {
	return &hdfspb.GetServerDefaultsResponseProto{ServerDefaults: &hdfspb.FsServerDefaultsProto{
		BlockSize:        proto.Uint64(nn.cfg.BlockSize),
		BytesPerChecksum: proto.Uint32(bytesPerChecksum),
		WritePacketSize:  proto.Uint32(nn.cfg.WritePacketSize),
		Replication:      proto.Uint32(nn.cfg.Replication),
		FileBufferSize:   proto.Uint32(4096),
		ChecksumType:     hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),

		EncryptDataTransfer: proto.Bool(false),
		TrashInterval:       proto.Uint64(uint64(nn.cfg.TrashInterval / time.Minute)),
		KeyProviderUri:      proto.String(""), // said, so that clients take none of their own
		PolicyId:            proto.Uint32(defaultPolicy),
	}}, nil
}

// stat returns nil if there is nothing.
func (nn *NameNode) stat(ctx context.Context, src string, memory *statuses.Status) (*hdfspb.HdfsFileStatusProto, error) {
	who := nn.readerFrom(ctx)
	nn.state.mu.RLock()
	s, ok, err := nn.state.ns.Stat(who, src)
	nn.state.mu.RUnlock()
	if err != nil || !ok {
		return nil, err
	}
	return statusPB(memory, &s, noName), nil
}

func (nn *NameNode) getFileInfo(ctx context.Context, req *hdfspb.GetFileInfoRequestProto) (*statuses.FileInfo, error) {
	out := new(statuses.FileInfo)
	fs, err := nn.stat(ctx, req.GetSrc(), &out.Status)
	out.Fs = fs
	return out, err
}

func (nn *NameNode) getFileLinkInfo(ctx context.Context, req *hdfspb.GetFileLinkInfoRequestProto) (*hdfspb.GetFileLinkInfoResponseProto, error) {
	fs, err := nn.stat(ctx, req.GetSrc(), new(statuses.Status))
	return &hdfspb.GetFileLinkInfoResponseProto{Fs: fs}, err
}

// getLocatedFileInfo is getFileInfo with a file's blocks.
func (nn *NameNode) getLocatedFileInfo(ctx context.Context, req *hdfspb.GetLocatedFileInfoRequestProto) (*hdfspb.GetLocatedFileInfoResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		s   namespace.Status
		f   namespace.FileBlocks
		ok  bool
		err error
	)
	nn.read(func(ns *namespace.Namespace) {
		if s, ok, err = ns.Stat(c.who(), req.GetSrc()); ok && !s.Directory {
			f, _ = ns.FileByID(s.ID)
		}
	})
	if err != nil || !ok {
		return &hdfspb.GetLocatedFileInfoResponseProto{}, err
	}
	fs := namelessPB(&s)
	if !s.Directory {
		fs.Locations = nn.locatedBlocks(s, f.Blocks, 0, s.Length, nn.placeOf(ctx, c.host))
	}
	return &hdfspb.GetLocatedFileInfoResponseProto{Fs: fs}, nil
}

func (nn *NameNode) checkAccess(ctx context.Context, req *hdfspb.CheckAccessRequestProto) (*hdfspb.CheckAccessResponseProto, error) {
	c := nn.callFrom(ctx)
	var err error
	nn.read(func(ns *namespace.Namespace) {
		err = ns.Access(c.who(), req.GetPath(), namespace.Access(req.GetMode()))
	})
	if err != nil {
		return nil, err
	}
	return &hdfspb.CheckAccessResponseProto{}, nil
}

func (nn *NameNode) getEnclosingRoot(ctx context.Context, req *hdfspb.GetEnclosingRootRequestProto) (*hdfspb.GetEnclosingRootResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		root string
		err  error
	)
	nn.read(func(ns *namespace.Namespace) { root, err = ns.EnclosingRoot(c.who(), req.GetFilename()) })
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetEnclosingRootResponseProto{EnclosingRootPath: &root}, nil
}

// msync has nothing to wait for: one NameNode answers reads and writes.
func (nn *NameNode) msync(context.Context, *hdfspb.MsyncRequestProto) (*hdfspb.MsyncResponseProto, error) {
	return &hdfspb.MsyncResponseProto{}, nil
}

func (nn *NameNode) getListing(ctx context.Context, req *hdfspb.GetListingRequestProto) (*hdfspb.GetListingResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		entries []namespace.Entry
		rest    int
		ok      bool
		err     error
	)
	nn.read(func(ns *namespace.Namespace) {
		entries, rest, ok, err = ns.List(c.who(), req.GetSrc(), string(req.GetStartAfter()), nn.cfg.ListLimit, req.GetNeedLocation())
	})
	if err != nil || !ok {
		return &hdfspb.GetListingResponseProto{}, err
	}
	from := nn.placeOf(ctx, c.host)
	list := &hdfspb.DirectoryListingProto{PartialListing: make([]*hdfspb.HdfsFileStatusProto, 0, len(entries))}
	room := nn.cfg.ListLimit // for locations, as HDFS counts them: those that are wanted
	memory, names := make([]statuses.Status, len(entries)), namesOf(entries)
	for i := range entries {
		e := &entries[i]
		if room <= 0 {
			rest += len(entries) - i
			break
		}
		n := len(e.Status.Name)
		fs := statusPB(&memory[i], &e.Status, names[:n:n])
		names = names[n:]
		if req.GetNeedLocation() && !e.Status.Directory {
			fs.Locations = nn.locatedBlocks(e.Status, e.Blocks, 0, e.Status.Length, from)
			room -= len(fs.Locations.GetBlocks()) * int(e.Status.Replication)
		}
		list.PartialListing = append(list.PartialListing, fs)
	}
	list.RemainingEntries = proto.Uint32(uint32(rest))
	return &hdfspb.GetListingResponseProto{DirList: list}, nil
}

// namesOf returns the names of entries, one behind the other.
func namesOf(entries []namespace.Entry) []byte {
	total := 0
	for i := range entries {
		total += len(entries[i].Status.Name)
	}
	names := make([]byte, 0, total)
	for i := range entries {
		names = append(names, entries[i].Status.Name...)
	}
	return names
}

// summary adds up what is below a path, in steps.
func (nn *NameNode) summary(ctx context.Context, path string) (*namespace.Summing, error) {
	c := nn.callFrom(ctx)
	var (
		sum *namespace.Summing
		err error
	)
	nn.read(func(ns *namespace.Namespace) { sum, err = ns.Sum(c.who(), path) })
	for done := false; err == nil && !done; {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("namenode: content summary of %s: %w", path, context.Cause(ctx))
		}
		nn.read(func(ns *namespace.Namespace) { done, err = sum.Step(ns, summaryStep) })
	}
	return sum, err
}

func (nn *NameNode) getContentSummary(ctx context.Context, req *hdfspb.GetContentSummaryRequestProto) (*hdfspb.GetContentSummaryResponseProto, error) {
	sum, err := nn.summary(ctx, req.GetPath())
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetContentSummaryResponseProto{Summary: &hdfspb.ContentSummaryProto{
		Length: &sum.Total.Length, FileCount: &sum.Total.Files, DirectoryCount: &sum.Total.Directories,
		Quota: proto.Uint64(uint64(sum.Limits.Names)), SpaceConsumed: &sum.Total.Space, SpaceQuota: proto.Uint64(uint64(sum.Limits.Space)),
		TypeQuotaInfos: typeQuotasPB(&sum.Limits, &sum.Total.TypeLengths),
	}}, nil
}

func (nn *NameNode) file(ctx context.Context, src string) (f namespace.FileBlocks, err error) {
	c := nn.callFrom(ctx)
	nn.read(func(ns *namespace.Namespace) { f, err = ns.File(c.who(), src, 0) })
	return f, err
}

func (nn *NameNode) isFileClosed(ctx context.Context, req *hdfspb.IsFileClosedRequestProto) (*hdfspb.IsFileClosedResponseProto, error) {
	f, err := nn.file(ctx, req.GetSrc())
	if err != nil {
		return nil, err
	}
	return &hdfspb.IsFileClosedResponseProto{Result: proto.Bool(!f.Status.Open)}, nil
}

func (nn *NameNode) getPreferredBlockSize(ctx context.Context, req *hdfspb.GetPreferredBlockSizeRequestProto) (*hdfspb.GetPreferredBlockSizeResponseProto, error) {
	f, err := nn.file(ctx, req.GetFilename())
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetPreferredBlockSizeResponseProto{Bsize: proto.Uint64(f.Status.BlockSize)}, nil
}
