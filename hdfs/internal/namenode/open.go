package namenode

import (
	"context"
	"errors"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// Bits of CreateRequestProto.createFlag and AppendRequestProto.flag.
const (
	flagCreate    = 1
	flagOverwrite = 2
	flagNewBlock  = 0x20
	// flagLazyPersist asks for a replica in memory first; here it is only remembered.
	flagLazyPersist = 0x10
)

func (nn *NameNode) create(ctx context.Context, req *hdfspb.CreateRequestProto) (*hdfspb.CreateResponseProto, error) {
	c := nn.callFrom(ctx)
	flag := req.GetCreateFlag()
	e := &nspb.Entry{Op: &nspb.Entry_Create{Create: &nspb.Create{
		Path: req.Src, Mode: req.GetMasked().Perm, Unmasked: nn.unmasked(req.GetUnmasked()), Holder: req.ClientName,
		Overwrite: proto.Bool(flag&flagOverwrite != 0), MustExist: proto.Bool(flag&flagCreate == 0),
		CreateParent: req.CreateParent, Replication: req.Replication, BlockSize: req.BlockSize,
	}}}
	policy, policyErr := createdPolicy(req)
	e.GetCreate().StoragePolicy = policy
	if req.GetBlockSize() < nn.cfg.MinBlockSize || req.GetEcPolicyName() != "" || policyErr != nil {
		var err error
		nn.read(func(ns *namespace.Namespace) { err = ns.CheckCreate(c.who(), e.GetCreate()) })
		switch {
		case err != nil:
			return nil, err
		case req.GetBlockSize() < nn.cfg.MinBlockSize:
			return nil, exception.New(exception.IO, "Specified block size is less than configured minimum value (dfs.namenode.fs-limits.min-block-size): %d < %d", req.GetBlockSize(), nn.cfg.MinBlockSize)
		case policyErr != nil:
			return nil, policyErr
		default:
			return nil, disabledPolicy(req.GetEcPolicyName())
		}
	}
	if c.short {
		resp, err := changeAnd[*hdfspb.CreateResponseProto](ctx, nn, c, true, e, func(res namespace.Result) (proto.Message, error) { return nn.created(c, req, res) })
		if refusedAs(err, exception.AlreadyBeingCreated) {
			err = rpc.ErrLong // its writer may have gone
		}
		return resp, err
	}
	res, err := nn.changeUnlessLeased(ctx, c, "CREATE_FILE", req.GetSrc(), req.GetClientName(), e)
	if err != nil {
		return nil, err
	}
	return nn.created(c, req, res)
}

// created answers for a file that has been created.
func (nn *NameNode) created(c *call, req *hdfspb.CreateRequestProto, res namespace.Result) (*hdfspb.CreateResponseProto, error) {
	nn.leases.renew(req.GetClientName(), c.host, nn.cfg.now())
	var (
		s  namespace.Status
		ok bool
	)
	nn.read(func(ns *namespace.Namespace) { s, ok = ns.StatID(res.Inode) })
	if !ok {
		return nil, exception.New(exception.FileNotFound, "File does not exist: %s: it was deleted at once", req.GetSrc())
	}
	return &hdfspb.CreateResponseProto{Fs: namelessPB(&s)}, nil
}

func (nn *NameNode) append(ctx context.Context, req *hdfspb.AppendRequestProto) (*hdfspb.AppendResponseProto, error) {
	c := nn.callFrom(ctx)
	if err := nn.refusalOf(c); err != nil {
		return nil, err
	}
	op := &nspb.Append{Path: req.Src, Holder: req.ClientName, NewBlock: proto.Bool(req.GetFlag()&flagNewBlock != 0)}
	if !op.GetNewBlock() {
		var err error
		if op.Targets, err = nn.holdersOf(ctx, c, req.GetSrc(), func(f namespace.FileBlocks) *namespace.Block {
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
	nn.leases.renew(req.GetClientName(), c.host, nn.cfg.now())
	var (
		f  namespace.FileBlocks
		ok bool
	)
	nn.read(func(ns *namespace.Namespace) { f, ok = ns.FileByID(res.Inode) })
	if !ok {
		return nil, exception.New(exception.FileNotFound, "File does not exist: %s: it was deleted at once", req.GetSrc())
	}
	out := &hdfspb.AppendResponseProto{Stat: namelessPB(&f.Status)}
	switch n := len(f.Blocks); {
	case n > 0 && f.Blocks[n-1].Construction == nil && op.GetNewBlock():
		// The client names it as the one before the new block.
		last := f.Blocks[n-1]
		out.Block = nn.blocks.locatedPB(last, math.MaxUint64, located{})
	case n > 0 && f.Blocks[n-1].Construction != nil:
		last := f.Blocks[n-1]
		nn.blocks.mu.Lock()
		out.Block = nn.blocks.pipelinePB(last, f.Status.Length-last.Length)
		nn.blocks.mu.Unlock()
		nn.grant(c, blocktoken.Write, out.Block)
	}
	return out, nil
}

func (nn *NameNode) truncate(ctx context.Context, req *hdfspb.TruncateRequestProto) (*hdfspb.TruncateResponseProto, error) {
	c := nn.callFrom(ctx)
	err := nn.refusalOf(c)
	if err != nil {
		return nil, err
	}
	op := &nspb.Truncate{Path: req.Src, Holder: req.ClientName, Length: req.NewLength}
	op.Targets, err = nn.holdersOf(ctx, c, req.GetSrc(), func(f namespace.FileBlocks) *namespace.Block {
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
		nn.leases.renew(req.GetClientName(), c.host, nn.cfg.now())
		nn.wakeMonitor()
	}
	return &hdfspb.TruncateResponseProto{Result: proto.Bool(res.OK)}, nil
}

// changeUnlessLeased is change for operations that need the file to be closed. It
// takes the file from a writer that has been silent for longer than the soft limit.
func (nn *NameNode) changeUnlessLeased(ctx context.Context, c *call, what, src, holder string, e *nspb.Entry) (namespace.Result, error) {
	res, err := nn.change(ctx, c, true, e)
	var refused *exception.Error
	if !errors.As(err, &refused) || refused.Class != exception.AlreadyBeingCreated {
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
	return res, exception.New(exception.RecoveryInProgress, "Failed to %s %s for %s: lease recovery is in progress. Try again later.", what, src, holder)
}

// holdersOf returns the DataNodes that have good replicas of the block that pick
// chooses, or an error if there are none. If the file can't be changed, it returns
// nothing: the operation itself finds out why.
func (nn *NameNode) holdersOf(ctx context.Context, c *call, src string, pick func(namespace.FileBlocks) *namespace.Block) ([]string, error) {
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
	from := nn.placeOf(ctx, c.host)
	nn.waitForReplicas(ctx, *b, int(f.Status.Replication))
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.locate(b.ID, *b, from, nil)
	if len(l.nodes) == 0 || l.corrupt {
		return nil, exception.New(exception.IO, "%s: no good replica of its block %d is known now; try again when a DataNode has reported it", src, b.ID)
	}
	return uuids(l.nodes), nil
}

// waitForReplicas gives DataNodes a moment after a start to report their replicas of a
// block that is about to change: those that are not known then become old, and what
// was on count DataNodes is on fewer. HDFS refuses such changes after a start.
func (nn *NameNode) waitForReplicas(ctx context.Context, b namespace.Block, count int) {
	limit := time.NewTimer(nn.cfg.CompleteWait)
	defer limit.Stop()
	m := nn.blocks
	info := namespace.BlockInfo{ID: b.ID, Generation: b.Generation, Length: b.Length}
	for {
		good := 0
		m.mu.Lock()
		for r := range m.replicas.of(b.ID) {
			if m.good(info, r) {
				good++
			}
		}
		if !m.safeMode || good >= count {
			m.mu.Unlock()
			return
		}
		changed := make(chan struct{})
		m.waiting[b.ID] = append(m.waiting[b.ID], changed)
		m.mu.Unlock()
		select {
		case <-changed:
			continue
		case <-limit.C:
		case <-ctx.Done():
		}
		m.stopWaiting(b.ID, changed)
		return
	}
}
