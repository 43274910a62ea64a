package datanode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// transferBlock serves TRANSFER_BLOCK: a client wants a replica copied to
// DataNodes that join its pipeline.
func (dn *DataNode) transferBlock(p *peer, op *hdfspb.OpTransferBlockProto) error {
	block := op.GetHeader().GetBaseHeader().GetBlock()
	if err := dn.checkBlock(block); err != nil {
		return dn.answered(p, nil, err)
	}
	if err := dn.allow(op.GetHeader().GetBaseHeader().GetToken(), blocktoken.Access{Block: block, Mode: blocktoken.Copy}); err != nil {
		return dn.answered(p, nil, err)
	}
	if n := len(op.GetTargets()); n == 0 || n > maxPipeline {
		return dn.answered(p, nil, fmt.Errorf("%w: a transfer to %d DataNodes", transfer.ErrMalformed, n))
	}
	asked := &clusterpb.Block{Id: block.BlockId, Generation: block.GenerationStamp, Length: block.NumBytes}
	if err := dn.copyBlock(dn.ctx, asked, op.GetHeader().GetClientName(), op.GetTargets()); err != nil {
		return dn.answered(p, nil, err)
	}
	return transfer.WriteMessage(p, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum()})
}

// copyBlock sends what is visible of a replica to a pipeline of DataNodes and
// returns when all of them have it. Without a client, who has them take part in the
// pipeline afterwards, the replica must be final and just the block asked for: a copy of one
// that is being written would soon lack acknowledged bytes, and in a recovery pass for one
// that has them.
func (dn *DataNode) copyBlock(ctx context.Context, asked *clusterpb.Block, client string, targets []*hdfspb.DatanodeInfoProto) error {
	pool, id, gen := dn.store.Identity().BlockPoolID, asked.GetId(), asked.GetGeneration()
	rd, err := dn.openReader(&hdfspb.ExtendedBlockProto{PoolId: &pool, BlockId: &id, GenerationStamp: &gen}, 0, false)
	if err != nil {
		return err
	}
	defer rd.Close()
	if i := rd.Info; client == "" && (i.State != store.Finalized || i.Generation != gen || uint64(i.Length) != asked.GetLength()) {
		return fmt.Errorf("copy block %d at generation %d with %d bytes: %w: here it is %v at generation %d with %d bytes", id, gen, asked.GetLength(), store.ErrState, i.State, i.Generation, i.Length)
	}
	if i := rd.Info; i.Torn || uint64(rd.Length) < asked.GetLength() {
		// The copy would not know that bytes are missing.
		return fmt.Errorf("copy block %d with %d bytes: %w: of %d bytes here some that were acknowledged may be missing", id, asked.GetLength(), store.ErrState, rd.Length)
	}
	stage := hdfspb.OpWriteBlockProto_TRANSFER_RBW
	if rd.Info.State == store.Finalized {
		stage = hdfspb.OpWriteBlockProto_TRANSFER_FINALIZED
	}
	n, zero, size := uint64(rd.Length), uint64(0), uint32(len(targets))
	here := rd.Info.Generation
	first := targets[0].GetId()
	addr := address(first.GetIpAddr(), first.GetXferPort())
	copied := &hdfspb.ExtendedBlockProto{PoolId: &pool, BlockId: &id, GenerationStamp: &here, NumBytes: &n}
	op := &hdfspb.OpWriteBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{
			BaseHeader: &hdfspb.BaseHeaderProto{Block: copied, Token: dn.keys.Grant(time.Now(), "DataNode "+dn.UUID(), blocktoken.Write, copied)},
			ClientName: &client,
		},
		Targets: targets[1:], Stage: stage.Enum(), PipelineSize: &size,
		MinBytesRcvd: &zero, MaxBytesRcvd: &n, LatestGenerationStamp: &here,
		RequestedChecksum: rd.Sum.Proto(),
	}
	if err := dn.sendCopy(ctx, rd, addr, op); err != nil {
		return fmt.Errorf("copy block %d to DataNode %s: %w", id, addr, err)
	}
	return nil
}

// sendCopy sends a replica by hdfs-data/1 or, where that does not do, by the data transfer
// protocol.
func (dn *DataNode) sendCopy(ctx context.Context, rd *store.Reader, addr string, op *hdfspb.OpWriteBlockProto) error {
	err := dn.sendNatively(ctx, rd, addr, op)
	var other *otherWayError
	if err == nil || !errors.As(err, &other) {
		if err == nil {
			dn.copied[byNative].add(rd.Length)
		}
		return err
	}
	if other.why != notConfigured {
		dn.fellBack[other.why].Add(1)
		dn.log.Info("a copy goes by the data transfer protocol", "block", op.GetHeader().GetBaseHeader().GetBlock().GetBlockId(), "datanode", addr, "reason", err)
	}
	for began, pause := time.Now(), firstBusyPause; ; pause = min(2*pause, time.Second) {
		err = dn.sendLegacy(ctx, rd, addr, op)
		// What the native path has begun there is gone when the other end, too, has noticed
		// that it failed.
		if !other.lingers() || !errors.Is(err, store.ErrExists) || time.Since(began) > settlingFor || !dn.sleep(pause) {
			break
		}
	}
	if err == nil {
		dn.copied[byLegacy].add(rd.Length)
	}
	return err
}

// sendLegacy sends a replica by the data transfer protocol.
func (dn *DataNode) sendLegacy(ctx context.Context, rd *store.Reader, addr string, op *hdfspb.OpWriteBlockProto) error {
	m, err := dn.openWrite(ctx, addr, op)
	if err != nil {
		return err
	}
	defer dn.untrack(m.Conn)
	defer m.r.Release()
	s := sender{p: m, rd: rd, end: rd.Length, sums: true, compare: true}
	if _, err := s.run(nil); err != nil {
		dn.noteCorrupt(rd, err)
		// The other end may have said why it stopped reading.
		if gone(err) {
			m.wait(lingering)
			if why := readFinalResponse(m); !gone(why) {
				err = why
			}
		}
		return err
	}
	return readFinalResponse(m)
}

// replicate obeys a REPLICATE command.
func (dn *DataNode) replicate(cmd *clusterpb.Command) error {
	if len(cmd.GetTargets()) == 0 || len(cmd.GetTargets()) > maxPipeline {
		return fmt.Errorf("copy of block %d to %d DataNodes", cmd.GetBlock().GetId(), len(cmd.GetTargets()))
	}
	targets := make([]*hdfspb.DatanodeInfoProto, len(cmd.GetTargets()))
	for i, t := range cmd.GetTargets() {
		targets[i] = infoOf(t)
	}
	return dn.copyBlock(dn.ctx, cmd.GetBlock(), "", targets)
}

func infoOf(d *clusterpb.Datanode) *hdfspb.DatanodeInfoProto {
	host, uuid, zero := d.GetHost(), d.GetUuid(), uint32(0)
	name, port := d.GetHostname(), d.GetPort()
	return &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{
		IpAddr: &host, HostName: &name, DatanodeUuid: &uuid, XferPort: &port, InfoPort: &zero, IpcPort: &port,
	}}
}
