package datanode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// recoveryTimeout bounds one question to one holder. It covers a writer that
// has to be stopped and a replica of any size that has to be cut and synced.
const recoveryTimeout = time.Minute

// holder is this DataNode as [cluster.DataNode]: it answers the leaders of
// recoveries.
type holder struct{ dn *DataNode }

var _ cluster.DataNode = holder{}

// overtaken gives errors about generations the code by which the leader knows
// that a newer recovery has begun.
func overtaken(err error) error {
	if errors.Is(err, store.ErrGeneration) {
		return &cluster.Error{Code: cluster.CodeStale, Message: err.Error()}
	}
	return err
}

func (h holder) InitRecovery(_ context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	id := req.GetBlock().GetId()
	for {
		r, err := h.dn.store.Get(id)
		if errors.Is(err, store.ErrNotFound) {
			absent, err := h.dn.store.Promise(id, req.GetNewGeneration())
			if err != nil || absent {
				return &clusterpb.InitRecoveryResponse{}, err
			}
			continue // a writer has just come
		}
		if err != nil {
			return nil, err
		}
		if info := r.Info(); info.Generation < req.GetBlock().GetGeneration() {
			// It missed a change of the pipeline: what it has is old.
			return &clusterpb.InitRecoveryResponse{}, nil
		}
		info, err := r.InitRecovery(req.GetBlock().GetGeneration(), req.GetNewGeneration())
		if errors.Is(err, store.ErrNotFound) {
			return &clusterpb.InitRecoveryResponse{}, nil
		}
		if err != nil {
			return nil, overtaken(err)
		}
		return &clusterpb.InitRecoveryResponse{Replica: replicaOf(info), Whole: proto.Bool(!info.Torn)}, nil
	}
}

func (h holder) UpdateRecovery(_ context.Context, req *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	r, err := h.dn.store.Get(req.GetBlock().GetId())
	if err != nil {
		return nil, err
	}
	if req.GetLength() > store.MaxBlock {
		return nil, fmt.Errorf("settle block %d: length %d is beyond any block", req.GetBlock().GetId(), req.GetLength())
	}
	if err := r.Settle(req.GetNewGeneration(), int64(req.GetLength())); err != nil {
		return nil, overtaken(err)
	}
	h.dn.changed(clusterpb.ReplicaChange_RECEIVED, r.Info(), false)
	return &clusterpb.UpdateRecoveryResponse{}, nil
}

func (h holder) ExtendRecovery(_ context.Context, req *clusterpb.ExtendRecoveryRequest) (*clusterpb.ExtendRecoveryResponse, error) {
	r, err := h.dn.store.Get(req.GetBlock().GetId())
	if err != nil {
		return nil, err
	}
	sum, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto(req.GetChecksumType()), req.GetBytesPerChunk())
	if err != nil {
		return nil, fmt.Errorf("extend block %d: %w", req.GetBlock().GetId(), err)
	}
	if off := req.GetOffset(); off > store.MaxBlock || off%uint64(sum.BytesPerChunk) != 0 || sum.Size() == 0 {
		return nil, fmt.Errorf("extend block %d at %d: no offset of a chunk of %d bytes with a checksum", req.GetBlock().GetId(), off, sum.BytesPerChunk)
	}
	if err := r.Extend(req.GetNewGeneration(), int64(req.GetOffset()), req.GetData(), req.GetChecksums(), sum); err != nil {
		return nil, overtaken(err)
	}
	return &clusterpb.ExtendRecoveryResponse{}, nil
}

// A participant is a holder in the eyes of the leader.
type participant struct {
	node    *clusterpb.Datanode
	peer    cluster.DataNode
	replica *clusterpb.Replica
	whole   bool // has every byte that was ever acknowledged by it
}

func (p *participant) length() uint64 { return p.replica.GetBlock().GetLength() }

// recover leads the recovery of a block: all holders stop writing and agree on
// a length and a generation stamp.
func (dn *DataNode) recover(ctx context.Context, cmd *clusterpb.Command) error {
	block, gen := cmd.GetBlock(), cmd.GetNewGeneration()
	var all []*participant
	var failures []error
	for _, t := range cmd.GetTargets() {
		p, err := dn.ask(ctx, t, block, gen)
		if err != nil {
			if errors.Is(err, cluster.ErrStale) {
				return fmt.Errorf("DataNode %s: %w", address(t.GetHost(), t.GetPort()), err)
			}
			failures = append(failures, fmt.Errorf("DataNode %s: %w", address(t.GetHost(), t.GetPort()), err))
			continue
		}
		if p != nil {
			all = append(all, p)
		}
	}
	if n := cmd.GetMissing(); n > 0 {
		failures = append(failures, fmt.Errorf("%d DataNodes of the pipeline can't be asked", n))
	}
	// Every byte that was acknowledged was so by all of the pipeline. One that has lost
	// nothing therefore speaks for those that do not answer; nobody else does.
	whole := slices.ContainsFunc(all, func(p *participant) bool { return p.whole })
	if len(failures) > 0 && !whole && !cmd.GetLate() {
		return fmt.Errorf("who does not answer may have bytes that those who do have lost: %w", errors.Join(failures...))
	}
	agreed, length, err := agree(all, cmd)
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	settled, errs := dn.settleOn(ctx, cmd, agreed, length)
	failures = append(failures, errs...)
	if len(agreed) > 0 && len(settled) == 0 {
		return fmt.Errorf("no holder could settle on %d bytes: %w", length, errors.Join(failures...))
	}
	// Unlike in HDFS: acknowledged bytes that two disks have stay on two. The replicas of
	// others are old from now on, and will be deleted.
	behind := lacking(all, agreed, length, cmd)
	if len(settled) == 1 && len(behind) > 0 && !cmd.GetLate() {
		longer, errs := dn.extend(ctx, cmd, settled[0], behind, length)
		settled, failures = append(settled, longer...), append(failures, errs...)
	}
	if len(settled) < min(2, len(agreed)+len(behind)) && !cmd.GetLate() {
		return fmt.Errorf("of %d DataNodes with bytes %d could settle on %d of them, too few to go on without the others yet: %w",
			len(agreed)+len(behind), len(settled), length, errors.Join(failures...))
	}
	for _, err := range failures {
		dn.log.Warn("block recovery goes on without a holder", "block", block.GetId(), "err", err)
	}
	commit := &clusterpb.CommitRecoveryRequest{
		Uuid: proto.String(dn.UUID()), NewGeneration: &gen, Unwritten: proto.Bool(len(agreed) == 0 && whole),
		Block: &clusterpb.Block{Id: block.Id, Generation: block.Generation, Length: &length},
	}
	for _, p := range settled {
		commit.Datanodes = append(commit.Datanodes, p.node)
	}
	if _, err := call(ctx, dn.cfg.NameNode.CommitRecovery, commit); err != nil {
		return fmt.Errorf("commit to the NameNode: %w", err)
	}
	dn.log.Info("block recovered", "block", block.GetId(), "generation", gen, "length", length, "replicas", len(commit.Datanodes))
	return nil
}

// settleOn has holders settle on a length, and returns those that have.
func (dn *DataNode) settleOn(ctx context.Context, cmd *clusterpb.Command, holders []*participant, length uint64) (settled []*participant, errs []error) {
	for _, p := range holders {
		ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
		_, err := p.peer.UpdateRecovery(ctx, &clusterpb.UpdateRecoveryRequest{Block: cmd.GetBlock(), NewGeneration: cmd.NewGeneration, Length: &length})
		cancel()
		if err != nil {
			errs = append(errs, p.failed(err))
			continue
		}
		settled = append(settled, p)
	}
	return settled, errs
}

func (p *participant) failed(err error) error {
	return fmt.Errorf("DataNode %s: %w", address(p.node.GetHost(), p.node.GetPort()), err)
}

// lacking returns the holders that have bytes, and fewer than those that take part: they
// have lost the rest with their machines. A block that is to be cut has none.
func lacking(all, agreed []*participant, length uint64, cmd *clusterpb.Command) (some []*participant) {
	for _, p := range all {
		if cmd.TruncateTo == nil && p.length() > 0 && p.length() < length && p.replica.GetState() != clusterpb.ReplicaState_FINALIZED && !slices.Contains(agreed, p) {
			some = append(some, p)
		}
	}
	return some
}

// extendPiece is what one call of ExtendRecovery brings, at most, in bytes.
const extendPiece = 512 << 10

// extend brings what the only holder that has settled has to those that lack it, and has
// them settle, too. It returns those that have. That holder must be this DataNode: another
// one leads the next attempt.
func (dn *DataNode) extend(ctx context.Context, cmd *clusterpb.Command, from *participant, to []*participant, length uint64) (settled []*participant, errs []error) {
	if from.node.GetUuid() != dn.UUID() {
		return nil, []error{from.failed(errors.New("it alone has all bytes; the others get them when it leads"))}
	}
	for _, p := range to {
		if err := dn.extendOne(ctx, cmd, p); err != nil {
			errs = append(errs, p.failed(err))
			continue
		}
		longer, failed := dn.settleOn(ctx, cmd, []*participant{p}, length)
		settled, errs = append(settled, longer...), append(errs, failed...)
	}
	return settled, errs
}

func (dn *DataNode) extendOne(ctx context.Context, cmd *clusterpb.Command, p *participant) error {
	r, err := dn.store.Get(cmd.GetBlock().GetId())
	if err != nil {
		return err
	}
	rd, err := r.Open()
	if err != nil {
		return err
	}
	defer rd.Close()
	chunk := int64(rd.Sum.BytesPerChunk)
	piece := max(extendPiece/chunk, 1) * chunk
	buf := transfer.GetBuffer(int(piece + 4*rd.Sum.Chunks(piece)))
	defer transfer.PutBuffer(buf)
	for off := int64(p.length()) / chunk * chunk; off < rd.Length; off += piece {
		n := min(piece, rd.Length-off)
		data, sums := (*buf)[:n], (*buf)[n:n+4*rd.Sum.Chunks(n)]
		if err := rd.ReadVerified(data, sums, off); err != nil {
			dn.noteCorrupt(rd, err)
			if errors.Is(err, store.ErrCorrupt) {
				r.NoteDamaged() // the next attempt goes by what others have
			}
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
		_, err := p.peer.ExtendRecovery(ctx, &clusterpb.ExtendRecoveryRequest{
			Block: cmd.GetBlock(), NewGeneration: cmd.NewGeneration, Offset: proto.Uint64(uint64(off)), Data: data, Checksums: sums,
			ChecksumType: proto.Uint32(uint32(rd.Sum.Type)), BytesPerChunk: proto.Uint32(uint32(chunk)),
		})
		cancel()
		if err != nil {
			return fmt.Errorf("bring bytes %d to %d: %w", off, off+n, err)
		}
	}
	return nil
}

// ask begins the recovery at one holder; nil says that it has no replica.
func (dn *DataNode) ask(ctx context.Context, t *clusterpb.Datanode, block *clusterpb.Block, gen uint64) (*participant, error) {
	p := &participant{node: t, peer: holder{dn}}
	if t.GetUuid() != dn.UUID() {
		if dn.cfg.Holder == nil {
			return nil, errors.New("this DataNode is not configured to reach others for recovery (Holder)")
		}
		p.peer = dn.cfg.Holder(address(t.GetHost(), t.GetPort()))
	}
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	resp, err := p.peer.InitRecovery(ctx, &clusterpb.InitRecoveryRequest{Block: block, NewGeneration: &gen})
	if err == nil && resp.GetReplica() != nil && resp.GetReplica().GetBlock().GetGeneration() < block.GetGeneration() {
		err = fmt.Errorf("answered with generation %d of a block with %d", resp.GetReplica().GetBlock().GetGeneration(), block.GetGeneration())
	}
	if err != nil || resp.GetReplica() == nil {
		return nil, err
	}
	p.replica, p.whole = resp.GetReplica(), resp.GetWhole()
	return p, nil
}

// agree picks who takes part and the length. A block that is to be cut is cut wherever
// it is long enough. Otherwise finalized replicas decide, and must agree. Without
// one the shortest of those that have lost nothing gives the length: each of them has
// every byte that was acknowledged. If all may have lost some, the longest does. All that
// are at least as long take part.
//
// HDFS (syncBlock of its BlockRecoveryWorker) takes the shortest in either case, so that a
// power cut on one machine takes flushed bytes from all. Unlike in HDFS, too, a finalized
// replica that is shorter than another of its generation has no say: the writer's
// last packet would have come to both, so it has lost bytes. And those that did not settle
// in an earlier attempt may still do so, at its length.
func agree(all []*participant, cmd *clusterpb.Command) (agreed []*participant, length uint64, err error) {
	if cmd.TruncateTo != nil {
		agreed = atLeast(all, cmd.GetTruncateTo())
		if len(agreed) == 0 && cmd.GetLate() {
			return nil, 0, nil // the block stays as it was known, and is missing
		}
		if len(agreed) == 0 {
			return nil, 0, fmt.Errorf("truncate to %d bytes: no replica is that long", cmd.GetTruncateTo())
		}
		return agreed, cmd.GetTruncateTo(), nil
	}
	all = slices.DeleteFunc(withoutLosers(all), func(p *participant) bool { return p.length() == 0 })
	if len(all) == 0 {
		return nil, 0, nil
	}
	// An earlier attempt that did not get to its end has settled the length already.
	if p := lastSettled(all, cmd.GetBlock()); p != nil {
		return atLeast(all, p.length()), p.length(), nil
	}
	final := func(p *participant) bool { return p.replica.GetState() == clusterpb.ReplicaState_FINALIZED }
	if i := slices.IndexFunc(all, final); i >= 0 {
		length = all[i].length()
		for _, p := range all {
			switch {
			case p.length() == length && p.replica.GetState() != clusterpb.ReplicaState_WAITING_RECOVERY:
				agreed = append(agreed, p)
			case final(p):
				return nil, 0, fmt.Errorf("finalized replicas of %d and of %d bytes; one of them is damaged", length, p.length())
			}
		}
		return agreed, length, nil
	}
	for _, p := range all {
		if p.whole && (length == 0 || p.length() < length) {
			length = p.length()
		}
	}
	if length == 0 {
		for _, p := range all {
			length = max(length, p.length())
		}
	}
	return atLeast(all, length), length, nil
}

// lastSettled returns the participant that an attempt to recover the block has settled, of the
// last such attempt; nil if there was none.
func lastSettled(all []*participant, block *clusterpb.Block) (last *participant) {
	for _, p := range all {
		gen := p.replica.GetBlock().GetGeneration()
		if p.replica.GetState() == clusterpb.ReplicaState_FINALIZED && gen > block.GetGeneration() &&
			(last == nil || gen > last.replica.GetBlock().GetGeneration()) {
			last = p
		}
	}
	return last
}

func atLeast(all []*participant, length uint64) (long []*participant) {
	for _, p := range all {
		if p.length() >= length {
			long = append(long, p)
		}
	}
	return long
}

// withoutLosers leaves out the finalized replicas that are shorter than one of
// their generation that is not finalized.
func withoutLosers(all []*participant) []*participant {
	return slices.DeleteFunc(slices.Clone(all), func(p *participant) bool {
		return p.replica.GetState() == clusterpb.ReplicaState_FINALIZED && slices.ContainsFunc(all, func(o *participant) bool {
			return o.replica.GetState() != clusterpb.ReplicaState_FINALIZED && o.length() > p.length() &&
				o.replica.GetBlock().GetGeneration() == p.replica.GetBlock().GetGeneration()
		})
	})
}
