package namenode

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

func (nn *NameNode) addBlock(ctx context.Context, req *hdfspb.AddBlockRequestProto) (*hdfspb.AddBlockResponseProto, error) {
	c := nn.callFrom(ctx)
	if err := nn.checkPool(req.GetPrevious()); err != nil {
		return nil, err
	}
	if _, err := nn.refusal(); err != nil {
		return nil, err
	}
	stamp, err := nn.stamp(ctx)
	if err != nil {
		return nil, err
	}
	op := &nspb.AddBlock{Path: req.Src, File: proto.Uint64(req.GetFileId()), Holder: req.ClientName, Previous: extended(req.GetPrevious()), Generation: &stamp}
	e := &nspb.Entry{Caller: c.caller, Op: &nspb.Entry_AddBlock{AddBlock: op}, Limits: nn.blockLimits}
	var (
		file    namespace.Status
		last    namespace.Block
		before  namespace.Block
		res     namespace.Result
		changes bool
	)
	nn.read(func(ns *namespace.Namespace) {
		if file, last, before, err = ns.WrittenEnd(c.who(), req.GetSrc(), req.GetFileId(), req.GetClientName()); err == nil {
			res, changes, err = ns.Check(e)
		}
	})
	if err != nil {
		return nil, err
	}
	if changes {
		if err := checkStorage(req.GetSrc(), file); err != nil {
			return nil, err
		}
		if err := nn.reportedSoon(ctx, req.GetSrc(), before); err != nil {
			return nil, err
		}
		if op.Targets, err = nn.placeSoon(ctx, req, file, c.host); err != nil {
			return nil, err
		}
		if res, err = nn.change(ctx, c, false, e); err != nil {
			nn.blocks.unplace(op.Targets)
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
	lb := nn.blocks.pipelinePB(res.Block, at)
	nn.blocks.mu.Unlock()
	nn.grant(c, blocktoken.Write, lb)
	return &hdfspb.AddBlockResponseProto{Block: lb}, nil
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

func (nn *NameNode) fsync(ctx context.Context, req *hdfspb.FsyncRequestProto) (*hdfspb.FsyncResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_Fsync{Fsync: &nspb.Fsync{
		Path: req.Src, File: proto.Uint64(req.GetFileId()), Holder: req.Client, LastBlockLength: proto.Int64(req.GetLastBlockLength()),
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.FsyncResponseProto{}, nil
}

func (nn *NameNode) complete(ctx context.Context, req *hdfspb.CompleteRequestProto) (*hdfspb.CompleteResponseProto, error) {
	c := nn.callFrom(ctx)
	if err := nn.checkPool(req.GetLast()); err != nil {
		return nil, err
	}
	if _, err := nn.refusal(); err != nil {
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

// reportedSoon waits until a DataNode has reported a replica of the block before a file's last one. As in HDFS
// a file grows no further before that: else a writer whose DataNodes lose what they take would go on for ever.
func (nn *NameNode) reportedSoon(ctx context.Context, src string, b namespace.Block) error {
	var limit <-chan time.Time
	for {
		wait, cancel := nn.unreported([]namespace.Block{b}, nil)
		if wait == nil {
			return nil
		}
		if limit == nil {
			limit = time.After(nn.cfg.CompleteWait)
		}
		select {
		case <-wait:
		case <-limit:
			cancel()
			return exception.New(exception.NotReplicatedYet, "Not replicated yet: %s", src)
		case <-ctx.Done():
			cancel()
			return fmt.Errorf("namenode: add a block to %s: wait for a DataNode to report block %d: %w", src, b.ID, context.Cause(ctx))
		}
	}
}

// unreported returns something to wait for if a block has no replica yet that its file needs to be closed.
func (nn *NameNode) unreported(blocks []namespace.Block, last *hdfspb.ExtendedBlockProto) (wait chan struct{}, cancel func()) {
	for _, b := range nn.blocks.unreportedOf(blocks) {
		if b.Construction != nil && last != nil {
			b.Generation, b.Length = last.GetGenerationStamp(), last.GetNumBytes()
		}
		if wait, cancel = nn.blocks.finalized(b.ID, b.Generation, b.Length); wait != nil {
			return wait, cancel
		}
	}
	return nil, nil
}
