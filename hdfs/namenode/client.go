package namenode

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace/nspb"
)

// Java classes of the exceptions that this package makes itself; the
// namespace has its own.
const (
	ioException           = "java.io.IOException"
	fileNotFound          = "java.io.FileNotFoundException"
	illegalArgument       = "org.apache.hadoop.HadoopIllegalArgumentException"
	accessControl         = "org.apache.hadoop.security.AccessControlException"
	alreadyBeingCreated   = "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException"
	recoveryInProgress    = "org.apache.hadoop.hdfs.protocol.RecoveryInProgressException"
	standbyException      = "org.apache.hadoop.ipc.StandbyException"
	unsupportedOperation  = "java.lang.UnsupportedOperationException"
	listingLimit          = 1000 // entries of one getListing, as in HDFS
	listingLocationsLimit = 1000 // block locations of one getListing
	summaryStep           = 5000 // inodes between two chances for writers
)

// Bits of CreateRequestProto.createFlag and AppendRequestProto.flag.
const (
	flagCreate    = 1
	flagOverwrite = 2
	flagNewBlock  = 0x20
)

func exception(class, format string, args ...any) error {
	return &namespace.Error{Class: class, Message: fmt.Sprintf(format, args...)}
}

// call is one client's call: who, from where, and which.
type call struct {
	caller *nspb.Caller
	host   string // the peer's IP address, empty if it has none
	id     callID
}

func (c *call) who() namespace.Caller {
	return namespace.Caller{User: c.caller.GetUser(), Groups: c.caller.GetGroups(), Superuser: c.caller.GetSuperuser()}
}

func (nn *NameNode) getServerDefaults(context.Context, *hdfspb.GetServerDefaultsRequestProto) (*hdfspb.GetServerDefaultsResponseProto, error) {
	return &hdfspb.GetServerDefaultsResponseProto{ServerDefaults: &hdfspb.FsServerDefaultsProto{
		BlockSize:        proto.Uint64(nn.cfg.BlockSize),
		BytesPerChecksum: proto.Uint32(bytesPerChecksum),
		WritePacketSize:  proto.Uint32(nn.cfg.WritePacketSize),
		Replication:      proto.Uint32(nn.cfg.Replication),
		FileBufferSize:   proto.Uint32(4096),
		ChecksumType:     hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
	}}, nil
}

func (nn *NameNode) stat(ctx context.Context, src string) (*hdfspb.HdfsFileStatusProto, error) {
	c := nn.callFrom(ctx)
	var (
		s   namespace.Status
		ok  bool
		err error
	)
	nn.read(func(ns *namespace.Namespace) { s, ok, err = ns.Stat(c.who(), src) })
	if err != nil || !ok {
		return nil, err
	}
	return statusPB(s, ""), nil
}

func (nn *NameNode) getFileInfo(ctx context.Context, req *hdfspb.GetFileInfoRequestProto) (*hdfspb.GetFileInfoResponseProto, error) {
	fs, err := nn.stat(ctx, req.GetSrc())
	return &hdfspb.GetFileInfoResponseProto{Fs: fs}, err
}

func (nn *NameNode) getFileLinkInfo(ctx context.Context, req *hdfspb.GetFileLinkInfoRequestProto) (*hdfspb.GetFileLinkInfoResponseProto, error) {
	fs, err := nn.stat(ctx, req.GetSrc())
	return &hdfspb.GetFileLinkInfoResponseProto{Fs: fs}, err
}

// statusPB has the name as its path: empty where the client knows it.
func statusPB(s namespace.Status, name string) *hdfspb.HdfsFileStatusProto {
	fs := &hdfspb.HdfsFileStatusProto{
		FileType:         hdfspb.HdfsFileStatusProto_IS_FILE.Enum(),
		Path:             []byte(name),
		Length:           proto.Uint64(s.Length),
		Permission:       &hdfspb.FsPermissionProto{Perm: proto.Uint32(uint32(s.Mode))},
		Owner:            proto.String(s.Owner),
		Group:            proto.String(s.Group),
		ModificationTime: proto.Uint64(uint64(s.ModTime)),
		AccessTime:       proto.Uint64(uint64(s.AccessTime)),
		BlockReplication: proto.Uint32(uint32(s.Replication)),
		Blocksize:        proto.Uint64(s.BlockSize),
		FileId:           proto.Uint64(s.ID),
		ChildrenNum:      proto.Int32(int32(s.Children)),
	}
	if s.Directory {
		fs.FileType = hdfspb.HdfsFileStatusProto_IS_DIR.Enum()
	}
	return fs
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
		entries, rest, ok, err = ns.List(c.who(), req.GetSrc(), string(req.GetStartAfter()), listingLimit, req.GetNeedLocation())
	})
	if err != nil || !ok {
		return &hdfspb.GetListingResponseProto{}, err
	}
	list := &hdfspb.DirectoryListingProto{PartialListing: make([]*hdfspb.HdfsFileStatusProto, 0, len(entries))}
	locations := 0
	for i, e := range entries {
		if locations >= listingLocationsLimit {
			rest += len(entries) - i
			break
		}
		fs := statusPB(e.Status, e.Status.Name)
		if req.GetNeedLocation() && !e.Status.Directory {
			fs.Locations = nn.locatedBlocks(e.Status, e.Blocks, 0, math.MaxUint64, c.host)
			for _, b := range fs.Locations.GetBlocks() {
				locations += len(b.GetLocs())
			}
		}
		list.PartialListing = append(list.PartialListing, fs)
	}
	list.RemainingEntries = proto.Uint32(uint32(rest))
	return &hdfspb.GetListingResponseProto{DirList: list}, nil
}

func (nn *NameNode) getBlockLocations(ctx context.Context, req *hdfspb.GetBlockLocationsRequestProto) (*hdfspb.GetBlockLocationsResponseProto, error) {
	c := nn.callFrom(ctx)
	if req.GetOffset() > math.MaxInt64 || req.GetLength() > math.MaxInt64 {
		return nil, exception(illegalArgument, "Negative offset or length is not supported. File: %s", req.GetSrc())
	}
	var (
		f   namespace.FileBlocks
		err error
	)
	nn.read(func(ns *namespace.Namespace) { f, err = ns.File(c.who(), req.GetSrc(), namespace.Read) })
	if err != nil {
		return nil, err
	}
	locate := func() *hdfspb.LocatedBlocksProto {
		return nn.locatedBlocks(f.Status, f.Blocks, req.GetOffset(), req.GetOffset()+req.GetLength(), c.host)
	}
	located := locate()
	if nn.InSafeMode() && nn.waitForReports(ctx, f.Blocks, located) {
		located = locate()
	}
	return &hdfspb.GetBlockLocationsResponseProto{Locations: located}, nil
}

// waitForReports gives DataNodes a moment after a start to report the blocks
// of which none is known yet. It tells whether something was reported.
func (nn *NameNode) waitForReports(ctx context.Context, blocks []namespace.Block, located *hdfspb.LocatedBlocksProto) (reported bool) {
	limit := time.NewTimer(nn.cfg.CompleteWait)
	defer limit.Stop()
	missing := make(map[uint64]bool)
	for _, lb := range located.GetBlocks() {
		if len(lb.GetLocs()) == 0 {
			missing[lb.GetB().GetBlockId()] = true
		}
	}
	for _, b := range blocks {
		if !missing[b.ID] || b.Construction != nil {
			continue
		}
		wait, cancel := nn.blocks.finalized(b.ID, b.Generation, b.Length)
		if wait != nil {
			select {
			case <-wait:
			case <-limit.C:
				cancel()
				return reported
			case <-ctx.Done():
				cancel()
				return reported
			}
		}
		reported = true
	}
	return reported
}

// locatedBlocks tells where the blocks of a file are that have bytes in
// [from, to), and the last one anyway.
func (nn *NameNode) locatedBlocks(s namespace.Status, blocks []namespace.Block, from, to uint64, host string) *hdfspb.LocatedBlocksProto {
	out := &hdfspb.LocatedBlocksProto{
		UnderConstruction:   proto.Bool(s.Open),
		IsLastBlockComplete: proto.Bool(true),
	}
	nn.blocks.mu.Lock()
	defer nn.blocks.mu.Unlock()
	var at, complete uint64
	for i, b := range blocks {
		end := at + b.Length
		last := i == len(blocks)-1
		// Of a block under construction more may be written than is known here.
		wanted := at < to && (end > from || b.Construction != nil && end >= from)
		if wanted || last {
			lb := nn.blocks.locatedPB(b, at, nn.blocks.locate(b.ID, b, host))
			if wanted {
				out.Blocks = append(out.Blocks, lb)
			}
			if last {
				out.LastBlock = lb
				out.IsLastBlockComplete = proto.Bool(b.Construction == nil)
			}
		}
		if b.Construction == nil {
			complete += b.Length
		}
		at = end
	}
	out.FileLength = proto.Uint64(complete)
	return out
}

// locatedPB needs m.mu held.
func (m *blockMap) locatedPB(b namespace.Block, offset uint64, l located) *hdfspb.LocatedBlockProto {
	lb := &hdfspb.LocatedBlockProto{
		B:          m.extendedPB(b.ID, b.Generation, b.Length),
		Offset:     proto.Uint64(offset),
		Corrupt:    proto.Bool(l.corrupt),
		BlockToken: &hdfspb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: proto.String(""), Service: proto.String("")},
	}
	for _, n := range l.nodes {
		lb.Locs = append(lb.Locs, m.infoPB(n))
		lb.IsCached = append(lb.IsCached, false)
		lb.StorageTypes = append(lb.StorageTypes, hdfspb.StorageTypeProto_DISK)
		lb.StorageIDs = append(lb.StorageIDs, "DS-"+n.dn.UUID)
	}
	return lb
}

func (m *blockMap) extendedPB(id, generation, length uint64) *hdfspb.ExtendedBlockProto {
	return &hdfspb.ExtendedBlockProto{PoolId: proto.String(m.poolID), BlockId: proto.Uint64(id), GenerationStamp: proto.Uint64(generation), NumBytes: proto.Uint64(length)}
}

func (m *blockMap) infoPB(n *node) *hdfspb.DatanodeInfoProto {
	now := m.cfg.now()
	seen := now.Sub(n.lastSeen)
	if n.lastSeen.IsZero() {
		seen = now.Sub(m.started)
	}
	return &hdfspb.DatanodeInfoProto{
		Id: &hdfspb.DatanodeIDProto{
			IpAddr:       proto.String(n.dn.Host),
			HostName:     proto.String(n.dn.Hostname),
			DatanodeUuid: proto.String(n.dn.UUID),
			XferPort:     proto.Uint32(n.dn.Port),
			InfoPort:     proto.Uint32(0),
			IpcPort:      proto.Uint32(n.dn.Port),
		},
		Capacity:      proto.Uint64(n.capacity),
		DfsUsed:       proto.Uint64(n.used),
		Remaining:     proto.Uint64(n.remaining),
		BlockPoolUsed: proto.Uint64(n.used),
		LastUpdate:    proto.Uint64(uint64(now.Add(-seen).UnixMilli())),
		XceiverCount:  proto.Uint32(n.transfers),
		Location:      proto.String("/default-rack"),
		NonDfsUsed:    proto.Uint64(n.capacity - min(n.capacity, n.used+n.remaining)),
		NumBlocks:     proto.Uint32(uint32(n.replicas)),
	}
}

func (nn *NameNode) mkdirs(ctx context.Context, req *hdfspb.MkdirsRequestProto) (*hdfspb.MkdirsResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{
		Path: req.Src, Mode: req.GetMasked().Perm, CreateParent: req.CreateParent,
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.MkdirsResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) create(ctx context.Context, req *hdfspb.CreateRequestProto) (*hdfspb.CreateResponseProto, error) {
	c := nn.callFrom(ctx)
	flag := req.GetCreateFlag()
	switch {
	case flag&(flagCreate|flagOverwrite) == 0:
		return nil, exception(illegalArgument, "create %s: flag %#x says neither CREATE nor OVERWRITE", req.GetSrc(), flag)
	case req.GetBlockSize() < nn.cfg.MinBlockSize:
		return nil, exception(ioException, "Specified block size is less than configured minimum value (dfs.namenode.fs-limits.min-block-size): %d < %d", req.GetBlockSize(), nn.cfg.MinBlockSize)
	case req.GetEcPolicyName() != "":
		return nil, exception(unsupportedOperation, "create %s: erasure coding is not supported", req.GetSrc())
	}
	e := &nspb.Entry{Op: &nspb.Entry_Create{Create: &nspb.Create{
		Path: req.Src, Mode: req.GetMasked().Perm, Holder: req.ClientName,
		Overwrite: proto.Bool(flag&flagOverwrite != 0), MustExist: proto.Bool(flag&flagCreate == 0),
		CreateParent: req.CreateParent, Replication: req.Replication, BlockSize: req.BlockSize,
	}}}
	res, err := nn.changeUnlessLeased(ctx, c, "CREATE_FILE", req.GetSrc(), req.GetClientName(), e)
	if err != nil {
		return nil, err
	}
	nn.leases.renew(req.GetClientName(), nn.cfg.now())
	var (
		s  namespace.Status
		ok bool
	)
	nn.read(func(ns *namespace.Namespace) { s, ok = ns.StatID(res.Inode) })
	if !ok {
		return nil, exception(fileNotFound, "File does not exist: %s: it was deleted at once", req.GetSrc())
	}
	return &hdfspb.CreateResponseProto{Fs: statusPB(s, "")}, nil
}

// changeUnlessLeased is change, remembered, for operations that need a file
// to be closed: it takes the file from a writer beyond the soft limit.
func (nn *NameNode) changeUnlessLeased(ctx context.Context, c *call, what, src, holder string, e *nspb.Entry) (namespace.Result, error) {
	res, err := nn.change(ctx, c, true, e)
	var refused *namespace.Error
	if !errors.As(err, &refused) || refused.Class != alreadyBeingCreated {
		return res, err
	}
	var (
		f       namespace.FileBlocks
		findErr error
	)
	nn.read(func(ns *namespace.Namespace) {
		f, findErr = ns.File(namespace.Caller{Superuser: true}, src, 0)
	})
	if findErr != nil || !f.Status.Open {
		return res, err
	}
	if f.Holder != namespace.RecoveryHolder() {
		if f.Holder == holder || nn.leases.age(f.Holder, nn.cfg.now()) <= nn.cfg.LeaseSoftLimit || nn.blocks.inSafeMode() {
			return res, err
		}
		closed, err := nn.recoverFile(ctx, f.Status.ID)
		if err != nil {
			return res, err
		}
		if closed {
			return nn.change(ctx, c, true, e)
		}
	}
	return res, exception(recoveryInProgress, "Failed to %s %s for %s: lease recovery is in progress. Try again later.", what, src, holder)
}

// nodesNamed finds DataNodes that a client names. The caller has m.mu.
func (m *blockMap) nodesNamed(infos []*hdfspb.DatanodeInfoProto) []*node {
	var out []*node
	for _, info := range infos {
		if n := m.nodes[info.GetId().GetDatanodeUuid()]; n != nil {
			out = append(out, n)
		}
	}
	return out
}

func exclusion(lists ...[]*node) map[*node]bool {
	out := make(map[*node]bool)
	for _, l := range lists {
		for _, n := range l {
			out[n] = true
		}
	}
	return out
}

func uuids(nodes []*node) []string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = n.dn.UUID
	}
	return out
}

func extended(b *hdfspb.ExtendedBlockProto) *nspb.Block {
	if b == nil {
		return nil
	}
	return &nspb.Block{Id: b.BlockId, Generation: b.GenerationStamp, Length: proto.Uint64(b.GetNumBytes())}
}

func (nn *NameNode) addBlock(ctx context.Context, req *hdfspb.AddBlockRequestProto) (*hdfspb.AddBlockResponseProto, error) {
	c := nn.callFrom(ctx)
	if err := nn.checkPool(req.GetPrevious()); err != nil {
		return nil, err
	}
	stamp, err := nn.stamp(ctx)
	if err != nil {
		return nil, err
	}
	op := &nspb.AddBlock{Path: req.Src, File: proto.Uint64(req.GetFileId()), Holder: req.ClientName, Previous: extended(req.GetPrevious()), Generation: &stamp}
	e := &nspb.Entry{Caller: c.caller, Op: &nspb.Entry_AddBlock{AddBlock: op}}
	var (
		file    namespace.Status
		last    namespace.Block
		res     namespace.Result
		changes bool
	)
	nn.read(func(ns *namespace.Namespace) {
		if file, last, err = ns.WrittenEnd(c.who(), req.GetSrc(), req.GetFileId(), req.GetClientName()); err == nil {
			res, changes, err = ns.Check(e)
		}
	})
	if err != nil {
		return nil, err
	}
	if changes {
		if op.Targets, err = nn.placeSoon(ctx, req, file, c.host); err != nil {
			return nil, err
		}
		if res, err = nn.change(ctx, c, false, e); err != nil {
			return nil, err
		}
	}
	// What comes before the new block: all that there was, and the last block at
	// the length that the client has just told.
	at := file.Length
	switch {
	case last.ID == res.Block.ID:
		at -= last.Length
	case req.GetPrevious() != nil && last.ID == req.GetPrevious().GetBlockId():
		at += req.GetPrevious().GetNumBytes() - last.Length
	}
	nn.blocks.mu.Lock()
	defer nn.blocks.mu.Unlock()
	return &hdfspb.AddBlockResponseProto{Block: nn.blocks.pipelinePB(res.Block, at)}, nil
}

// pipelinePB is a block with the DataNodes of its pipeline, in order.
func (m *blockMap) pipelinePB(b namespace.Block, offset uint64) *hdfspb.LocatedBlockProto {
	var l located
	if b.Construction != nil {
		for _, uuid := range b.Construction.Targets {
			if n := m.nodes[uuid]; n != nil && n.alive {
				l.nodes = append(l.nodes, n)
			}
		}
	}
	return m.locatedPB(b, offset, l)
}

// placeSoon is place, but after a start it gives the DataNodes a moment to come.
func (nn *NameNode) placeSoon(ctx context.Context, req *hdfspb.AddBlockRequestProto, s namespace.Status, host string) ([]string, error) {
	limit := time.NewTimer(nn.cfg.CompleteWait)
	defer limit.Stop()
	for {
		targets, grown, err := nn.place(req, int(s.Replication), s.BlockSize, host)
		if err == nil || !nn.InSafeMode() {
			return targets, err
		}
		select {
		case <-grown:
		case <-limit.C:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// place chooses DataNodes for a new block. With an error comes what tells that
// there is another DataNode.
func (nn *NameNode) place(req *hdfspb.AddBlockRequestProto, replication int, blockSize uint64, host string) (targets []string, grown chan struct{}, err error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	excluded := exclusion(m.nodesNamed(req.GetExcludeNodes()))
	for _, f := range req.GetFlags() {
		if f == hdfspb.AddBlockFlagProto_IGNORE_CLIENT_LOCALITY {
			host = ""
		}
		if f == hdfspb.AddBlockFlagProto_NO_LOCAL_WRITE {
			for _, n := range m.nodes {
				if n.dn.Host == host {
					excluded[n] = true
				}
			}
		}
	}
	nodes := m.choose(replication, excluded, host, blockSize)
	if len(nodes) > 0 {
		return uuids(nodes), nil, nil
	}
	live, full := 0, 0
	for _, n := range m.nodes {
		if n.alive && n.registered {
			live++
			if n.remaining < blockSize {
				full++
			}
		}
	}
	return nil, m.grown, exception(ioException, "File %s could only be written to 0 of the 1 minReplication nodes. There are %d datanode(s) running, %d node(s) are excluded in this operation and %d have less room than a block of %d bytes.", req.GetSrc(), live, len(excluded), full, blockSize)
}

func (nn *NameNode) checkPool(b *hdfspb.ExtendedBlockProto) error {
	if b == nil || b.GetPoolId() == nn.blocks.poolID {
		return nil
	}
	return exception(ioException, "Unexpected BlockPoolId %q - expected %q", b.GetPoolId(), nn.blocks.poolID)
}

func (nn *NameNode) updateBlockForPipeline(ctx context.Context, req *hdfspb.UpdateBlockForPipelineRequestProto) (*hdfspb.UpdateBlockForPipelineResponseProto, error) {
	if err := nn.checkPool(req.GetBlock()); err != nil {
		return nil, err
	}
	var (
		b   namespace.Block
		err error
	)
	nn.read(func(ns *namespace.Namespace) {
		b, _, err = ns.Constructing(req.GetBlock().GetBlockId(), req.GetClientName())
	})
	if err != nil {
		return nil, err
	}
	if b.Generation, err = nn.stamp(ctx); err != nil {
		return nil, err
	}
	b.Length = req.GetBlock().GetNumBytes()
	nn.blocks.mu.Lock()
	defer nn.blocks.mu.Unlock()
	return &hdfspb.UpdateBlockForPipelineResponseProto{Block: nn.blocks.pipelinePB(b, 0)}, nil
}

func (nn *NameNode) updatePipeline(ctx context.Context, req *hdfspb.UpdatePipelineRequestProto) (*hdfspb.UpdatePipelineResponseProto, error) {
	if err := errors.Join(nn.checkPool(req.GetOldBlock()), nn.checkPool(req.GetNewBlock())); err != nil {
		return nil, err
	}
	op := &nspb.UpdatePipeline{Holder: req.ClientName, Old: extended(req.GetOldBlock()), New: extended(req.GetNewBlock())}
	nn.blocks.mu.Lock()
	for _, id := range req.GetNewNodes() {
		if nn.blocks.nodes[id.GetDatanodeUuid()] != nil {
			op.Targets = append(op.Targets, id.GetDatanodeUuid())
		}
	}
	nn.blocks.mu.Unlock()
	if _, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_UpdatePipeline{UpdatePipeline: op}}); err != nil {
		return nil, err
	}
	return &hdfspb.UpdatePipelineResponseProto{}, nil
}

func (nn *NameNode) getAdditionalDatanode(ctx context.Context, req *hdfspb.GetAdditionalDatanodeRequestProto) (*hdfspb.GetAdditionalDatanodeResponseProto, error) {
	c := nn.callFrom(ctx)
	if err := nn.checkPool(req.GetBlk()); err != nil {
		return nil, err
	}
	var (
		file namespace.Status
		err  error
	)
	nn.read(func(ns *namespace.Namespace) {
		file, _, err = ns.WrittenEnd(c.who(), req.GetSrc(), req.GetFileId(), req.GetClientName())
	})
	if err != nil {
		return nil, err
	}
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	existing := m.nodesNamed(req.GetExistings())
	chosen := m.choose(min(int(req.GetNumAdditionalNodes()), namespace.MaxReplication), exclusion(existing, m.nodesNamed(req.GetExcludes())), "", file.BlockSize)
	b := namespace.Block{ID: req.GetBlk().GetBlockId(), Generation: req.GetBlk().GetGenerationStamp(), Length: req.GetBlk().GetNumBytes()}
	return &hdfspb.GetAdditionalDatanodeResponseProto{Block: m.locatedPB(b, 0, located{nodes: append(existing, chosen...)})}, nil
}

func (nn *NameNode) abandonBlock(ctx context.Context, req *hdfspb.AbandonBlockRequestProto) (*hdfspb.AbandonBlockResponseProto, error) {
	if err := nn.checkPool(req.GetB()); err != nil {
		return nil, err
	}
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_AbandonBlock{AbandonBlock: &nspb.AbandonBlock{
		Path: req.Src, File: proto.Uint64(req.GetFileId()), Holder: req.Holder, Block: extended(req.GetB()),
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.AbandonBlockResponseProto{}, nil
}

func (nn *NameNode) complete(ctx context.Context, req *hdfspb.CompleteRequestProto) (*hdfspb.CompleteResponseProto, error) {
	c := nn.callFrom(ctx)
	if err := nn.checkPool(req.GetLast()); err != nil {
		return nil, err
	}
	e := &nspb.Entry{Caller: c.caller, Op: &nspb.Entry_Complete{Complete: &nspb.Complete{
		Path: req.Src, File: proto.Uint64(req.GetFileId()), Holder: req.ClientName, Last: extended(req.GetLast()),
	}}}
	limit := time.NewTimer(nn.cfg.CompleteWait)
	defer limit.Stop()
	for {
		var (
			res     namespace.Result
			changes bool
			err     error
			f       namespace.FileBlocks
		)
		nn.read(func(ns *namespace.Namespace) {
			if res, changes, err = ns.Check(e); changes {
				f, err = ns.Written(c.who(), req.GetSrc(), req.GetFileId(), req.GetClientName())
			}
		})
		if err != nil {
			return nil, err
		}
		if !changes {
			return &hdfspb.CompleteResponseProto{Result: proto.Bool(res.OK)}, nil
		}
		wait, cancel := nn.unreported(f.Blocks, req.GetLast())
		if wait == nil {
			break
		}
		select {
		case <-wait:
			continue
		case <-limit.C:
			cancel()
			return &hdfspb.CompleteResponseProto{Result: proto.Bool(false)}, nil
		case <-ctx.Done():
			cancel()
			return nil, fmt.Errorf("namenode: complete %s: wait for a DataNode to report its last block: %w", req.GetSrc(), context.Cause(ctx))
		}
	}
	res, err := nn.change(ctx, c, false, e)
	if err != nil {
		return nil, err
	}
	return &hdfspb.CompleteResponseProto{Result: proto.Bool(res.OK)}, nil
}

// unreported returns something to wait for if a block has no replica yet.
func (nn *NameNode) unreported(blocks []namespace.Block, last *hdfspb.ExtendedBlockProto) (wait chan struct{}, cancel func()) {
	for i, b := range blocks {
		if i == len(blocks)-1 && last != nil {
			b.Generation, b.Length = last.GetGenerationStamp(), last.GetNumBytes()
		}
		if wait, cancel = nn.blocks.finalized(b.ID, b.Generation, b.Length); wait != nil {
			return wait, cancel
		}
	}
	return nil, nil
}

func (nn *NameNode) renewLease(ctx context.Context, req *hdfspb.RenewLeaseRequestProto) (*hdfspb.RenewLeaseResponseProto, error) {
	held := false
	nn.read(func(ns *namespace.Namespace) { held = ns.Leased(req.GetClientName()) })
	if held {
		nn.leases.renew(req.GetClientName(), nn.cfg.now())
	}
	return &hdfspb.RenewLeaseResponseProto{}, nil
}

func (nn *NameNode) fsync(ctx context.Context, req *hdfspb.FsyncRequestProto) (*hdfspb.FsyncResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_Fsync{Fsync: &nspb.Fsync{
		Path: req.Src, File: proto.Uint64(req.GetFileId()), Holder: req.Client, LastBlockLength: proto.Int64(req.GetLastBlockLength()),
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.FsyncResponseProto{}, nil
}

func (nn *NameNode) append(ctx context.Context, req *hdfspb.AppendRequestProto) (*hdfspb.AppendResponseProto, error) {
	c := nn.callFrom(ctx)
	op := &nspb.Append{Path: req.Src, Holder: req.ClientName, NewBlock: proto.Bool(req.GetFlag()&flagNewBlock != 0)}
	if !op.GetNewBlock() {
		var err error
		if op.Targets, err = nn.holdersOf(c, req.GetSrc(), func(f namespace.FileBlocks) *namespace.Block {
			if n := len(f.Blocks); n > 0 && f.Blocks[n-1].Length < f.Status.BlockSize {
				return &f.Blocks[n-1]
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	res, err := nn.changeUnlessLeased(ctx, c, "APPEND_FILE", req.GetSrc(), req.GetClientName(), &nspb.Entry{Op: &nspb.Entry_Append{Append: op}})
	if err != nil {
		return nil, err
	}
	nn.leases.renew(req.GetClientName(), nn.cfg.now())
	var (
		f  namespace.FileBlocks
		ok bool
	)
	nn.read(func(ns *namespace.Namespace) { f, ok = ns.FileByID(res.Inode) })
	if !ok {
		return nil, exception(fileNotFound, "File does not exist: %s: it was deleted at once", req.GetSrc())
	}
	out := &hdfspb.AppendResponseProto{Stat: statusPB(f.Status, "")}
	if n := len(f.Blocks); n > 0 && f.Blocks[n-1].Construction != nil {
		last := f.Blocks[n-1]
		nn.blocks.mu.Lock()
		defer nn.blocks.mu.Unlock()
		out.Block = nn.blocks.pipelinePB(last, f.Status.Length-last.Length)
	}
	return out, nil
}

// holdersOf returns the DataNodes with good replicas of the block that pick
// chooses; there must be one. Nothing is decided here if the file can't be
// changed at all: that the operation finds out itself.
func (nn *NameNode) holdersOf(c *call, src string, pick func(namespace.FileBlocks) *namespace.Block) ([]string, error) {
	var (
		f   namespace.FileBlocks
		err error
	)
	nn.read(func(ns *namespace.Namespace) { f, err = ns.File(c.who(), src, namespace.Write) })
	if err != nil || f.Status.Open {
		return nil, nil
	}
	b := pick(f)
	if b == nil {
		return nil, nil
	}
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.locate(b.ID, *b, c.host)
	if len(l.nodes) == 0 || l.corrupt {
		return nil, exception(ioException, "%s: no good replica of its block %d is known now; try again when a DataNode has reported it", src, b.ID)
	}
	return uuids(l.nodes), nil
}

func (nn *NameNode) truncate(ctx context.Context, req *hdfspb.TruncateRequestProto) (*hdfspb.TruncateResponseProto, error) {
	c := nn.callFrom(ctx)
	op := &nspb.Truncate{Path: req.Src, Holder: req.ClientName, Length: req.NewLength}
	var err error
	op.Targets, err = nn.holdersOf(c, req.GetSrc(), func(f namespace.FileBlocks) *namespace.Block {
		rest := req.GetNewLength()
		for i, b := range f.Blocks {
			if rest < b.Length {
				if rest == 0 {
					return nil
				}
				return &f.Blocks[i]
			}
			rest -= b.Length
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	stamp, err := nn.stamp(ctx)
	if err != nil {
		return nil, err
	}
	op.Generation = &stamp
	res, err := nn.changeUnlessLeased(ctx, c, "TRUNCATE_FILE", req.GetSrc(), req.GetClientName(), &nspb.Entry{Op: &nspb.Entry_Truncate{Truncate: op}})
	if err != nil {
		return nil, err
	}
	if !res.OK {
		nn.leases.renew(req.GetClientName(), nn.cfg.now())
		nn.wakeMonitor()
	}
	return &hdfspb.TruncateResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) rename(ctx context.Context, req *hdfspb.RenameRequestProto) (*hdfspb.RenameResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{From: req.Src, To: req.Dst}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.RenameResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) rename2(ctx context.Context, req *hdfspb.Rename2RequestProto) (*hdfspb.Rename2ResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{
		From: req.Src, To: req.Dst, Strict: proto.Bool(true), Overwrite: req.OverwriteDest,
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.Rename2ResponseProto{}, nil
}

func (nn *NameNode) delete(ctx context.Context, req *hdfspb.DeleteRequestProto) (*hdfspb.DeleteResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: req.Src, Recursive: req.Recursive}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.DeleteResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) concat(ctx context.Context, req *hdfspb.ConcatRequestProto) (*hdfspb.ConcatResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Concat{Concat: &nspb.Concat{Path: req.Trg, Sources: req.GetSrcs()}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.ConcatResponseProto{}, nil
}

func (nn *NameNode) setPermission(ctx context.Context, req *hdfspb.SetPermissionRequestProto) (*hdfspb.SetPermissionResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: req.Src, Mode: req.GetPermission().Perm}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetPermissionResponseProto{}, nil
}

func (nn *NameNode) setOwner(ctx context.Context, req *hdfspb.SetOwnerRequestProto) (*hdfspb.SetOwnerResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetOwner{SetOwner: &nspb.SetOwner{Path: req.Src, Owner: req.Username, Group: req.Groupname}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetOwnerResponseProto{}, nil
}

func (nn *NameNode) setTimes(ctx context.Context, req *hdfspb.SetTimesRequestProto) (*hdfspb.SetTimesResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetTimes{SetTimes: &nspb.SetTimes{
		Path: req.Src, MtimeMs: proto.Int64(int64(req.GetMtime())), AtimeMs: proto.Int64(int64(req.GetAtime())),
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetTimesResponseProto{}, nil
}

func (nn *NameNode) setReplication(ctx context.Context, req *hdfspb.SetReplicationRequestProto) (*hdfspb.SetReplicationResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetReplication{SetReplication: &nspb.SetReplication{Path: req.Src, Replication: req.Replication}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetReplicationResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) getContentSummary(ctx context.Context, req *hdfspb.GetContentSummaryRequestProto) (*hdfspb.GetContentSummaryResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		sum *namespace.Summing
		err error
	)
	nn.read(func(ns *namespace.Namespace) { sum, err = ns.Sum(c.who(), req.GetPath()) })
	for done := false; err == nil && !done; {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("namenode: content summary of %s: %w", req.GetPath(), context.Cause(ctx))
		}
		nn.read(func(ns *namespace.Namespace) { done, err = sum.Step(ns, summaryStep) })
	}
	if err != nil {
		return nil, err
	}
	const none = math.MaxUint64 // -1: no quota
	return &hdfspb.GetContentSummaryResponseProto{Summary: &hdfspb.ContentSummaryProto{
		Length: &sum.Total.Length, FileCount: &sum.Total.Files, DirectoryCount: &sum.Total.Directories,
		Quota: proto.Uint64(none), SpaceConsumed: &sum.Total.Space, SpaceQuota: proto.Uint64(none),
	}}, nil
}

func (nn *NameNode) getFsStats(context.Context, *hdfspb.GetFsStatusRequestProto) (*hdfspb.GetFsStatsResponseProto, error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	var capacity, used, remaining, deletions uint64
	for _, n := range m.nodes {
		deletions += uint64(len(n.deletions))
		if n.alive {
			capacity, used, remaining = capacity+n.capacity, used+n.used, remaining+n.remaining
		}
	}
	under := len(m.copying)
	for id := range m.stuck {
		if len(m.copying[id]) == 0 {
			under++
		}
	}
	return &hdfspb.GetFsStatsResponseProto{
		Capacity: &capacity, Used: &used, Remaining: &remaining,
		UnderReplicated:       proto.Uint64(uint64(under)),
		CorruptBlocks:         proto.Uint64(uint64(len(m.corrupt))),
		MissingBlocks:         proto.Uint64(uint64(len(m.missing))),
		PendingDeletionBlocks: &deletions,
	}, nil
}

func (nn *NameNode) getDatanodeReport(_ context.Context, req *hdfspb.GetDatanodeReportRequestProto) (*hdfspb.GetDatanodeReportResponseProto, error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &hdfspb.GetDatanodeReportResponseProto{}
	for _, n := range m.byIndex {
		if m.nodes[n.dn.UUID] != n {
			continue
		}
		switch req.GetType() {
		case hdfspb.DatanodeReportTypeProto_ALL:
		case hdfspb.DatanodeReportTypeProto_LIVE:
			if !n.alive {
				continue
			}
		case hdfspb.DatanodeReportTypeProto_DEAD:
			if n.alive {
				continue
			}
		default:
			continue // none is ever decommissioned or in maintenance
		}
		out.Di = append(out.Di, m.infoPB(n))
	}
	return out, nil
}

func (nn *NameNode) reportBadBlocks(ctx context.Context, req *hdfspb.ReportBadBlocksRequestProto) (*hdfspb.ReportBadBlocksResponseProto, error) {
	for _, lb := range req.GetBlocks() {
		if err := nn.checkPool(lb.GetB()); err != nil {
			return nil, err
		}
	}
	nn.read(func(ns *namespace.Namespace) {
		m := nn.blocks
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, lb := range req.GetBlocks() {
			b, ok := ns.Block(lb.GetB().GetBlockId())
			if !ok || b.Generation != lb.GetB().GetGenerationStamp() {
				continue // of another time
			}
			for _, n := range m.nodesNamed(lb.GetLocs()) {
				m.markCorrupt(ns, b.ID, n)
			}
		}
	})
	nn.wakeMonitor()
	return &hdfspb.ReportBadBlocksResponseProto{}, nil
}

func (nn *NameNode) recoverLease(ctx context.Context, req *hdfspb.RecoverLeaseRequestProto) (*hdfspb.RecoverLeaseResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		f   namespace.FileBlocks
		err error
	)
	nn.read(func(ns *namespace.Namespace) { f, err = ns.File(c.who(), req.GetSrc(), namespace.Write) })
	if err != nil {
		return nil, err
	}
	closed := !f.Status.Open
	if !closed {
		if closed, err = nn.recoverFile(ctx, f.Status.ID); err != nil {
			return nil, err
		}
	}
	return &hdfspb.RecoverLeaseResponseProto{Result: proto.Bool(closed)}, nil
}

func (nn *NameNode) isFileClosed(ctx context.Context, req *hdfspb.IsFileClosedRequestProto) (*hdfspb.IsFileClosedResponseProto, error) {
	f, err := nn.file(ctx, req.GetSrc())
	if err != nil {
		return nil, err
	}
	return &hdfspb.IsFileClosedResponseProto{Result: proto.Bool(!f.Status.Open)}, nil
}

func (nn *NameNode) file(ctx context.Context, src string) (f namespace.FileBlocks, err error) {
	c := nn.callFrom(ctx)
	nn.read(func(ns *namespace.Namespace) { f, err = ns.File(c.who(), src, 0) })
	return f, err
}

func (nn *NameNode) getPreferredBlockSize(ctx context.Context, req *hdfspb.GetPreferredBlockSizeRequestProto) (*hdfspb.GetPreferredBlockSizeResponseProto, error) {
	f, err := nn.file(ctx, req.GetFilename())
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetPreferredBlockSizeResponseProto{Bsize: proto.Uint64(f.Status.BlockSize)}, nil
}

// setSafeMode tells whether the NameNode still waits for reports, or ends the
// wait. It can't be made to wait again.
func (nn *NameNode) setSafeMode(ctx context.Context, req *hdfspb.SetSafeModeRequestProto) (*hdfspb.SetSafeModeResponseProto, error) {
	switch req.GetAction() {
	case hdfspb.SafeModeActionProto_SAFEMODE_GET:
	case hdfspb.SafeModeActionProto_SAFEMODE_LEAVE, hdfspb.SafeModeActionProto_SAFEMODE_FORCE_EXIT:
		if c := nn.callFrom(ctx); !c.caller.GetSuperuser() {
			return nil, exception(accessControl, "Access denied for user %s. Superuser privilege is required for operation leaveSafeMode", c.caller.GetUser())
		}
		nn.read(func(ns *namespace.Namespace) {
			nn.blocks.mu.Lock()
			defer nn.blocks.mu.Unlock()
			if nn.blocks.safeMode {
				nn.blocks.leaveSafeMode(ns)
			}
		})
		nn.wakeMonitor()
	default:
		return nil, exception(unsupportedOperation, "setSafeMode(%s): this NameNode has safe mode only after its start", req.GetAction())
	}
	return &hdfspb.SetSafeModeResponseProto{Result: proto.Bool(nn.InSafeMode())}, nil
}

func (nn *NameNode) getDataEncryptionKey(context.Context, *hdfspb.GetDataEncryptionKeyRequestProto) (*hdfspb.GetDataEncryptionKeyResponseProto, error) {
	return &hdfspb.GetDataEncryptionKeyResponseProto{}, nil
}
