package namenode

import (
	"context"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// openFilesLimit is how many open files one answer has at most, as in HDFS
// (dfs.namenode.list.openfiles.num.responses).
const openFilesLimit = 1000

// listOpenFiles lists the files that are being written, in the order of their ids: all of
// them, or those that keep a DataNode from leaving the service.
func (nn *NameNode) listOpenFiles(ctx context.Context, req *hdfspb.ListOpenFilesRequestProto) (*hdfspb.ListOpenFilesResponseProto, error) {
	if !strings.HasPrefix(req.GetPath(), "/") {
		return nil, exception.New(exception.Assertion, "Absolute path required, but got '%s'", req.GetPath())
	}
	if err := nn.superuser(ctx, "listOpenFiles"); err != nil {
		return nil, err
	}
	out := &hdfspb.ListOpenFilesResponseProto{HasMore: proto.Bool(false), Types: req.GetTypes()}
	below := path.Clean(req.GetPath())
	nn.read(func(ns *namespace.Namespace) {
		var ids []uint64
		switch {
		case slices.Contains(req.GetTypes(), hdfspb.OpenFilesTypeProto_ALL_OPEN_FILES):
			ids = openFiles(ns)
		case slices.Contains(req.GetTypes(), hdfspb.OpenFilesTypeProto_BLOCKING_DECOMMISSION):
			ids = nn.blocks.openOnLeaving(ns)
		}
		for _, id := range ids {
			if int64(id) <= req.GetId() {
				continue
			}
			name := ns.PathOf(id)
			f, ok := ns.FileByID(id)
			if !ok || !f.Status.Open || !isParentEntry(name, below) {
				continue
			}
			if len(out.Entries) == nn.cfg.openFiles {
				out.HasMore = proto.Bool(true)
				return
			}
			out.Entries = append(out.Entries, &hdfspb.OpenFilesBatchResponseProto{
				Id: proto.Int64(int64(id)), Path: &name, ClientName: &f.Holder, ClientMachine: proto.String(nn.leases.host(f.Holder)),
			})
		}
	})
	if !slices.ContainsFunc(req.GetTypes(), func(t hdfspb.OpenFilesTypeProto) bool { return hdfspb.OpenFilesTypeProto_name[int32(t)] != "" }) {
		return nil, exception.New(exception.JavaIllegalArgument, "Unknown OpenFileType: []")
	}
	return out, nil
}

// openFiles returns the ids of all files with a lease, in order.
func openFiles(ns *namespace.Namespace) (ids []uint64) {
	for _, holder := range ns.Holders() {
		ids = append(ids, ns.OpenFiles(holder)...)
	}
	slices.Sort(ids)
	return ids
}

// openOnLeaving returns the ids of the files, in order, that are open and have a block on
// a DataNode that waits for its blocks to be elsewhere.
func (m *blockMap) openOnLeaving(ns *namespace.Namespace) (ids []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		for id := range n.leaving.all() {
			if b, ok := ns.Block(id); ok {
				ids = append(ids, b.File)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// isParentEntry tells whether name is at or below parent, which has no slash at
// its end unless it is the root.
func isParentEntry(name, parent string) bool {
	rest, ok := strings.CutPrefix(name, parent)
	return ok && (rest == "" || rest[0] == '/' || parent == "/")
}
