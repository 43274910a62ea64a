package namenode

import (
	"context"
	"slices"
	"strconv"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// corruptFilesLimit is how many blocks one answer has at most, as in HDFS
// (dfs.corruptfilesreturned.max).
const corruptFilesLimit = 500

// listCorruptFileBlocks lists the files with blocks of which no good replica is known,
// once for each such block. The cookie counts those that were looked at.
func (nn *NameNode) listCorruptFileBlocks(ctx context.Context, req *hdfspb.ListCorruptFileBlocksRequestProto) (*hdfspb.ListCorruptFileBlocksResponseProto, error) {
	if err := nn.superuser(ctx, "listCorruptFileBlocks"); err != nil {
		return nil, err
	}
	out := &hdfspb.CorruptFileBlocksProto{Cookie: req.Cookie}
	seen := 0
	if n, err := strconv.ParseInt(req.GetCookie(), 10, 32); err == nil {
		seen = max(int(n), 0)
	}
	nn.read(func(ns *namespace.Namespace) {
		missing := nn.blocks.missingBlocks()
		if len(missing) == 0 && req.Cookie != nil {
			return // as in HDFS it stays, whatever it is
		}
		for seen < len(missing) && len(out.Files) < corruptFilesLimit {
			b, ok := ns.Block(missing[seen])
			seen++
			if !ok {
				continue
			}
			if name := ns.PathOf(b.File); isParentEntry(name, req.GetPath()) {
				out.Files = append(out.Files, name)
			}
		}
		cookie := strconv.Itoa(seen)
		out.Cookie = &cookie
	})
	return &hdfspb.ListCorruptFileBlocksResponseProto{Corrupt: out}, nil
}

// missingBlocks are the ids of the blocks without a good replica, in order.
func (m *blockMap) missingBlocks() []uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.AppendSeq(make([]uint64, 0, m.missing.len()), m.missing.all())
}
