package datanode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	r, err := h.dn.store.Get(req.GetBlock().GetId())
	if errors.Is(err, store.ErrNotFound) {
		return &clusterpb.InitRecoveryResponse{}, nil
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
	return &clusterpb.InitRecoveryResponse{Replica: replicaOf(info)}, nil
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
	agreed, length, err := agree(all, cmd)
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	if len(agreed) == 0 && len(failures) > 0 && len(all) == 0 {
		// A holder that did not answer may have what is missing. If one that did
		// has an empty replica, no byte was ever acknowledged.
		return fmt.Errorf("no replica found, but not all holders answered: %w", errors.Join(failures...))
	}
	commit := &clusterpb.CommitRecoveryRequest{
		Block:         &clusterpb.Block{Id: block.Id, Generation: block.Generation, Length: &length},
		NewGeneration: &gen,
	}
	uuid := dn.UUID()
	commit.Uuid = &uuid
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
	p.replica = resp.GetReplica()
	return p, nil
}

// agree picks who takes part and the length, as HDFS does (syncBlock of its
// BlockRecoveryWorker): a finalized replica decides; otherwise the shortest of
// those in the best state, which has every byte that was acknowledged. A block
// that is to be cut is cut wherever it is long enough. Unlike in HDFS a finalized
// replica that is shorter than another of its generation has no say: the writer's
// last packet would have come to both, so it has lost bytes.
func agree(all []*participant, cmd *clusterpb.Command) (agreed []*participant, length uint64, err error) {
	if cmd.TruncateTo != nil {
		for _, p := range all {
			if p.length() >= cmd.GetTruncateTo() {
				agreed = append(agreed, p)
			}
		}
		if len(agreed) == 0 {
			return nil, 0, fmt.Errorf("truncate to %d bytes: no replica is that long", cmd.GetTruncateTo())
		}
		return agreed, cmd.GetTruncateTo(), nil
	}
	all = withoutLosers(all)
	best := clusterpb.ReplicaState_WAITING_RECOVERY
	found := false
	for _, p := range all {
		if p.length() > 0 {
			// FINALIZED, BEING_WRITTEN, WAITING_RECOVERY: the lower the better.
			best, found = min(best, p.replica.GetState()), true
		}
	}
	if !found {
		return nil, 0, nil
	}
	first := true
	for _, p := range all {
		if p.length() == 0 || p.replica.GetState() != best {
			continue
		}
		if best == clusterpb.ReplicaState_FINALIZED && !first && p.length() != length {
			return nil, 0, fmt.Errorf("finalized replicas of %d and of %d bytes; one of them is damaged", length, p.length())
		}
		if first || p.length() < length {
			first, length = false, p.length()
		}
	}
	for _, p := range all {
		switch state := p.replica.GetState(); {
		case p.length() == 0:
		case state == best,
			best == clusterpb.ReplicaState_FINALIZED && state == clusterpb.ReplicaState_BEING_WRITTEN && p.length() == length:
			agreed = append(agreed, p)
		}
	}
	return agreed, length, nil
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
