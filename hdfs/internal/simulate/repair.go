package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// badNode is the error of a pipeline with a member that is to go.
type badNode struct {
	index int
	err   error
	// restarts says that it has told that it will be back.
	restarts bool
	// neverSetUp says that no DataNode has anything of the block, though packets were sent.
	neverSetUp bool
}

func (e *badNode) Error() string {
	return fmt.Sprintf("DataNode %d of the pipeline: %v", e.index, e.err)
}
func (e *badNode) Unwrap() error { return e.err }

// anew gives up a block whose pipeline was never set up, and begins another one in its place.
func (o *output) anew(ctx context.Context, bad *badNode) error {
	gone := o.nodes[bad.index]
	o.c.s.h.add("%s: block %d is begun anew without %s: %v", o.c.name, o.block.GetBlockId(), gone.GetId().GetIpAddr(), bad.err)
	o.c.s.h.count("blocks begun anew", 1)
	o.release()
	if err := o.abandon(ctx); err != nil {
		return err
	}
	return o.begin(ctx, []*hdfspb.DatanodeInfoProto{gone})
}

func (o *output) abandon(ctx context.Context) error {
	req := &hdfspb.AbandonBlockRequestProto{B: o.block, Src: &o.path, Holder: &o.c.name}
	if err := o.c.call(ctx, "abandonBlock", req, &hdfspb.AbandonBlockResponseProto{}, rpc.Idempotent); err != nil {
		return err
	}
	o.block = o.before
	return nil
}

// recover goes on without a DataNode, perhaps with another one in its place, under a
// new generation stamp.
func (o *output) recover(ctx context.Context, st stage, err error) error {
	for {
		var bad *badNode
		if !errors.As(err, &bad) {
			return err
		}
		gone := o.nodes[bad.index]
		waits := bad.restarts && (len(o.nodes) == 1 || o.rng.IntN(3) == 0)
		if waits {
			o.waitFor(ctx, gone)
		} else {
			o.nodes = slices.Delete(slices.Clone(o.nodes), bad.index, bad.index+1)
			if len(o.nodes) == 0 {
				return fmt.Errorf("all DataNodes of the pipeline are bad: %w", err)
			}
			o.c.s.h.add("%s: pipeline of block %d goes on without %s: %v", o.c.name, o.block.GetBlockId(), gone.GetId().GetIpAddr(), bad.err)
		}
		resp := &hdfspb.UpdateBlockForPipelineResponseProto{}
		if err := o.c.call(ctx, "updateBlockForPipeline", &hdfspb.UpdateBlockForPipelineRequestProto{Block: o.block, ClientName: &o.c.name}, resp, rpc.Idempotent); err != nil {
			return err
		}
		generation, token := resp.GetBlock().GetB().GetGenerationStamp(), resp.GetBlock().GetBlockToken()
		if st == streamingRecovery && !waits && o.rng.IntN(2) == 0 {
			o.replace(ctx, gone)
		}
		if err = o.setUp(ctx, st, generation, token); err != nil {
			continue
		}
		if err := o.update(ctx, generation); err != nil {
			return err
		}
		o.token = token
		return nil
	}
}

// update tells the NameNode of a new pipeline.
func (o *output) update(ctx context.Context, generation uint64) error {
	next := o.ofNow()
	next.GenerationStamp = &generation
	req := &hdfspb.UpdatePipelineRequestProto{ClientName: &o.c.name, OldBlock: o.ofNow(), NewBlock: next}
	for _, n := range o.nodes {
		req.NewNodes = append(req.NewNodes, n.GetId())
	}
	if err := o.c.call(ctx, "updatePipeline", req, &hdfspb.UpdatePipelineResponseProto{}, rpc.AtMostOnce); err != nil {
		return err
	}
	o.block = next
	return nil
}

// replace has another DataNode get what the first of the pipeline has.
func (o *output) replace(ctx context.Context, gone *hdfspb.DatanodeInfoProto) {
	resp := &hdfspb.GetAdditionalDatanodeResponseProto{}
	err := o.c.call(ctx, "getAdditionalDatanode", &hdfspb.GetAdditionalDatanodeRequestProto{
		Src: &o.path, Blk: o.block, Existings: o.nodes, Excludes: []*hdfspb.DatanodeInfoProto{gone}, NumAdditionalNodes: proto.Uint32(1), ClientName: &o.c.name,
	}, resp, rpc.Idempotent)
	locs := resp.GetBlock().GetLocs()
	if err != nil || len(locs) <= len(o.nodes) {
		return
	}
	more := locs[len(locs)-1]
	conn, _, err := o.c.ask(ctx, dataAddress(o.nodes[0]), transfer.OpTransferBlock, &hdfspb.OpTransferBlockProto{
		Header: o.c.header(o.ofNow(), resp.GetBlock().GetBlockToken()), Targets: []*hdfspb.DatanodeInfoProto{more},
	})
	if err != nil {
		return
	}
	conn.close()
	o.c.s.h.add("%s: block %d is copied to %s", o.c.name, o.block.GetBlockId(), more.GetId().GetIpAddr())
	o.c.s.model.mu.Lock()
	b, host := o.f.block(o.block.GetBlockId(), o.start), more.GetId().GetIpAddr()
	delete(b.lost, host)
	delete(b.damaged, host)
	if b.synced > 0 {
		b.syncedNodes[host] = true
	}
	o.c.s.model.mu.Unlock()
	o.nodes = append(slices.Clone(o.nodes), more)
}

// waitFor waits for a DataNode that has said that it will be back.
func (o *output) waitFor(ctx context.Context, n *hdfspb.DatanodeInfoProto) {
	o.c.s.h.count("DataNodes that restart waited for", 1)
	o.c.s.h.add("%s: block %d waits for %s to restart", o.c.name, o.block.GetBlockId(), n.GetId().GetIpAddr())
	sleep(ctx, 2*time.Second+time.Duration(o.rng.Int64N(int64(8*time.Second))))
}
