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
	commit := &clusterpb.CommitRecoveryRequest{
		Block:         &clusterpb.Block{Id: block.Id, Generation: block.Generation, Length: &length},
		NewGeneration: &gen,
	}
	uuid := dn.UUID()
	commit.Uuid, commit.Unwritten = &uuid, proto.Bool(len(agreed) == 0 && whole)
	for _, p := range agreed {
		ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
		_, err := p.peer.UpdateRecovery(ctx, &clusterpb.UpdateRecoveryRequest{Block: block, NewGeneration: &gen, Length: &length})
		cancel()
		if err != nil {
			failures = append(failures, fmt.Errorf("DataNode %s: %w", address(p.node.GetHost(), p.node.GetPort()), err))
			continue
		}
		commit.Datanodes = append(commit.Datanodes, p.node)
	}
	if len(agreed) > 0 && len(commit.Datanodes) == 0 {
		return fmt.Errorf("no holder could settle on %d bytes: %w", length, errors.Join(failures...))
	}
	// Unlike in HDFS: bytes that two disks have stay on two. The replica of who could not
	// settle, because its disk is full, say, would be old from now on.
	if len(commit.Datanodes) < min(2, len(agreed)) && !cmd.GetLate() {
		return fmt.Errorf("of %d DataNodes with %d bytes %d could settle on them, too few to go on without the others yet: %w",
			len(agreed), length, len(commit.Datanodes), errors.Join(failures...))
	}
	for _, err := range failures {
		dn.log.Warn("block recovery goes on without a holder", "block", block.GetId(), "err", err)
	}
	if _, err := call(ctx, dn.cfg.NameNode.CommitRecovery, commit); err != nil {
		return fmt.Errorf("commit to the NameNode: %w", err)
	}
	dn.log.Info("block recovered", "block", block.GetId(), "generation", gen, "length", length, "replicas", len(commit.Datanodes))
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
	if p := settled(all, cmd.GetBlock()); p != nil {
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

// settled returns the participant that an attempt to recover the block has settled, of the
// last such attempt; nil if there was none.
func settled(all []*participant, block *clusterpb.Block) (last *participant) {
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
