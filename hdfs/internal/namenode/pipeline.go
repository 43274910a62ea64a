package namenode

import (
	"context"
	"errors"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

func (nn *NameNode) checkPool(b *hdfspb.ExtendedBlockProto) error {
	if b == nil || b.GetPoolId() == nn.blocks.poolID {
		return nil
	}
	return exception.New(exception.IO, "Unexpected BlockPoolId %q - expected %q", b.GetPoolId(), nn.blocks.poolID)
}

func (nn *NameNode) updateBlockForPipeline(ctx context.Context, req *hdfspb.UpdateBlockForPipelineRequestProto) (*hdfspb.UpdateBlockForPipelineResponseProto, error) {
	if err := nn.checkPool(req.GetBlock()); err != nil {
		return nil, err
	}
	if _, err := nn.refusal(); err != nil {
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
	lb := nn.blocks.pipelinePB(b, 0)
	nn.blocks.mu.Unlock()
	nn.grant(nn.callFrom(ctx), blocktoken.Write, lb)
	return &hdfspb.UpdateBlockForPipelineResponseProto{Block: lb}, nil
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
	if _, err := nn.refusal(); err != nil {
		return nil, err
	}
	var (
		file namespace.Status
		last namespace.Block
		err  error
	)
	nn.read(func(ns *namespace.Namespace) {
		file, last, _, err = ns.WrittenEnd(c.who(), req.GetSrc(), req.GetFileId(), req.GetClientName())
	})
	if err != nil {
		return nil, err
	}
	from := nn.placeOf(ctx, c.host)
	m := nn.blocks
	m.mu.Lock()
	existing := m.nodesNamed(req.GetExistings())
	chosen := m.choose(want{
		count: min(int(req.GetNumAdditionalNodes()), namespace.MaxReplication), writer: from, chosen: existing,
		exclude: exclusion(m.nodesNamed(req.GetExcludes())), size: file.BlockSize,
	})
	for _, n := range chosen {
		n.scheduled.add(m.cfg.now())
	}
	b := namespace.Block{ID: req.GetBlk().GetBlockId(), Generation: req.GetBlk().GetGenerationStamp(), Length: req.GetBlk().GetNumBytes()}
	lb := m.locatedPB(b, 0, located{nodes: append(existing, chosen...)})
	m.mu.Unlock()
	if b.ID == last.ID { // no token for blocks of other files
		nn.grant(c, blocktoken.Copy, lb)
	}
	return &hdfspb.GetAdditionalDatanodeResponseProto{Block: lb}, nil
}
