package namenode

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// blockOperations are those of who writes a file. A slot remembers it.
var blockOperations = map[string]func(*letter, context.Context, []string) (string, error){
	"create": (*letter).create,
	"append": (*letter).append,
	"addBlock": func(l *letter, ctx context.Context, f []string) (string, error) {
		s := l.slot(f[2])
		r, err := l.nn.addBlock(ctx, &hdfspb.AddBlockRequestProto{Src: l.path(f[3]), ClientName: &f[4], Previous: s.said(f[6]), FileId: s.fileID(f[5])})
		if err != nil {
			return "", err
		}
		s.last, s.awaited = r.GetBlock().GetB(), true
		return locatedText(r.GetBlock()), nil
	},
	"received": func(l *letter, ctx context.Context, f []string) (string, error) {
		s := l.slot(f[2])
		if !s.awaited {
			return "none", nil
		}
		s.awaited = false
		s.last.NumBytes = s.fit(*l.unsigned(f[3]))
		if told := l.datanode.replicas[s.last.GetBlockId()]; told != nil { // two writers may have been given one block
			s.last.NumBytes = proto.Uint64(told.GetBlock().GetLength())
		}
		l.datanode.receive(s.last)
		return "ok", nil
	},
	"grow": (*letter).grow,
	"abandon": func(l *letter, ctx context.Context, f []string) (string, error) {
		s := l.slot(f[2])
		if s.last == nil {
			return "none", nil
		}
		_, err := l.nn.abandonBlock(ctx, &hdfspb.AbandonBlockRequestProto{B: s.last, FileId: s.fileID(f[5]), Src: l.path(f[3]), Holder: &f[4]})
		if err == nil {
			s.last, s.awaited = nil, false
		}
		return "ok", err
	},
	"fsync": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.fsync(ctx, &hdfspb.FsyncRequestProto{Src: l.path(f[3]), FileId: l.slot(f[2]).fileID(f[5]), Client: &f[4], LastBlockLength: proto.Int64(l.number(f[6]))}))
	},
	"complete": func(l *letter, ctx context.Context, f []string) (string, error) {
		s := l.slot(f[2])
		return result(l.nn.complete(ctx, &hdfspb.CompleteRequestProto{Src: l.path(f[3]), ClientName: &f[4], Last: s.said(f[6]), FileId: s.fileID(f[5])}))
	},
	"learn": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getFileInfo(ctx, &hdfspb.GetFileInfoRequestProto{Src: l.path(f[3])})
		if fs := r.GetFs(); fs != nil {
			*l.slot(f[2]) = letterSlot{id: fs.GetFileId(), size: fs.GetBlocksize()}
		}
		return statusText(r.GetFs()), err
	},
}

// nameOperations change names and attributes, or files that nobody writes.
var nameOperations = map[string]func(*letter, context.Context, []string) (string, error){
	"mkdirs": func(l *letter, ctx context.Context, f []string) (string, error) {
		return result(l.nn.mkdirs(ctx, &hdfspb.MkdirsRequestProto{Src: l.path(f[2]), Masked: l.perm(f[3]), Unmasked: l.unmasked(f[3]), CreateParent: boolean(f[4])}))
	},
	"rename": func(l *letter, ctx context.Context, f []string) (string, error) {
		return result(l.nn.rename(ctx, &hdfspb.RenameRequestProto{Src: l.path(f[2]), Dst: l.path(f[3])}))
	},
	"rename2": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.rename2(ctx, &hdfspb.Rename2RequestProto{Src: l.path(f[2]), Dst: l.path(f[3]), OverwriteDest: boolean(f[4])}))
	},
	"delete": func(l *letter, ctx context.Context, f []string) (string, error) {
		return result(l.nn.delete(ctx, &hdfspb.DeleteRequestProto{Src: l.path(f[2]), Recursive: boolean(f[3])}))
	},
	"setPermission": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.setPermission(ctx, &hdfspb.SetPermissionRequestProto{Src: l.path(f[2]), Permission: l.perm(f[3])}))
	},
	"setOwner": func(l *letter, ctx context.Context, f []string) (string, error) {
		req := &hdfspb.SetOwnerRequestProto{Src: l.path(f[2])}
		if f[3] != "-" {
			req.Username = &f[3]
		}
		if f[4] != "-" {
			req.Groupname = &f[4]
		}
		return ok(l.nn.setOwner(ctx, req))
	},
	"setReplication": func(l *letter, ctx context.Context, f []string) (string, error) {
		return result(l.nn.setReplication(ctx, &hdfspb.SetReplicationRequestProto{Src: l.path(f[2]), Replication: proto.Uint32(uint32(l.number(f[3])))}))
	},
	"setTimes": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.setTimes(ctx, &hdfspb.SetTimesRequestProto{Src: l.path(f[2]), Mtime: l.unsigned(f[3]), Atime: l.unsigned(f[4])}))
	},
	"truncate": func(l *letter, ctx context.Context, f []string) (string, error) {
		return result(l.nn.truncate(ctx, &hdfspb.TruncateRequestProto{Src: l.path(f[2]), NewLength: l.unsigned(f[3]), ClientName: &f[4]}))
	},
	"concat": func(l *letter, ctx context.Context, f []string) (string, error) {
		req := &hdfspb.ConcatRequestProto{Trg: l.path(f[2])}
		for _, p := range f[3:] {
			req.Srcs = append(req.Srcs, *l.path(p))
		}
		return ok(l.nn.concat(ctx, req))
	},
	"recoverLease": func(l *letter, ctx context.Context, f []string) (string, error) {
		return result(l.nn.recoverLease(ctx, &hdfspb.RecoverLeaseRequestProto{Src: l.path(f[2]), ClientName: &f[3]}))
	},
}

// queryOperations are all others: questions, and what the test itself does.
var queryOperations = map[string]func(*letter, context.Context, []string) (string, error){
	"reset": func(l *letter, ctx context.Context, f []string) (string, error) {
		return "ok", l.reset(ctx)
	},
	"getFileInfo": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getFileInfo(ctx, &hdfspb.GetFileInfoRequestProto{Src: l.path(f[2])})
		return statusText(r.GetFs()), err
	},
	"getFileLinkInfo": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getFileLinkInfo(ctx, &hdfspb.GetFileLinkInfoRequestProto{Src: l.path(f[2])})
		return statusText(r.GetFs()), err
	},
	"getListing": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getListing(ctx, &hdfspb.GetListingRequestProto{Src: l.path(f[2]), StartAfter: []byte(f[3]), NeedLocation: boolean(f[4])})
		return listingText(r.GetDirList()), err
	},
	"getContentSummary": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getContentSummary(ctx, &hdfspb.GetContentSummaryRequestProto{Path: l.path(f[2])})
		s := r.GetSummary()
		return fmt.Sprint(s.GetLength(), s.GetFileCount(), s.GetDirectoryCount(), s.GetSpaceConsumed(), int64(s.GetQuota()), int64(s.GetSpaceQuota())) + typesText(s.GetTypeQuotaInfos()), err
	},
	"getBlockLocations": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getBlockLocations(ctx, &hdfspb.GetBlockLocationsRequestProto{Src: l.path(f[2]), Offset: l.unsigned(f[3]), Length: l.unsigned(f[4])})
		return locationsText(r.GetLocations()), err
	},
	"isFileClosed": func(l *letter, ctx context.Context, f []string) (string, error) {
		return result(l.nn.isFileClosed(ctx, &hdfspb.IsFileClosedRequestProto{Src: l.path(f[2])}))
	},
	"getPreferredBlockSize": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getPreferredBlockSize(ctx, &hdfspb.GetPreferredBlockSizeRequestProto{Filename: l.path(f[2])})
		return fmt.Sprint(r.GetBsize()), err
	},
	"getLocatedFileInfo": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getLocatedFileInfo(ctx, &hdfspb.GetLocatedFileInfoRequestProto{Src: l.path(f[2])})
		return statusText(r.GetFs()), err
	},
	"checkAccess": func(l *letter, ctx context.Context, f []string) (string, error) {
		modes := map[string]hdfspb.FsActionProto{"---": 0, "--x": 1, "-w-": 2, "-wx": 3, "r--": 4, "r-x": 5, "rw-": 6, "rwx": 7}
		return ok(l.nn.checkAccess(ctx, &hdfspb.CheckAccessRequestProto{Path: l.path(f[2]), Mode: modes[f[3]].Enum()}))
	},
	"getEnclosingRoot": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getEnclosingRoot(ctx, &hdfspb.GetEnclosingRootRequestProto{Filename: l.path(f[2])})
		return r.GetEnclosingRootPath(), err
	},
	"msync": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.msync(ctx, &hdfspb.MsyncRequestProto{}))
	},
	"beat": func(l *letter, ctx context.Context, f []string) (string, error) {
		l.check()
		l.datanode.heartbeat([]*fakeDatanode{l.datanode})
		return "ok", nil
	},
	"tree": func(l *letter, ctx context.Context, f []string) (string, error) {
		root := "/"
		r, err := l.nn.getFileInfo(ctx, &hdfspb.GetFileInfoRequestProto{Src: &root})
		if err != nil {
			return "", err
		}
		out := &strings.Builder{}
		out.WriteString("/=" + statusText(r.GetFs()))
		return out.String() + l.tree(ctx, ""), nil
	},
}
