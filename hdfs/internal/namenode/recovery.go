package namenode

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// recovery is one attempt to recover a block.
type recovery struct {
	generation uint64
	primary    *node
	deadline   time.Time
	attempts   int
}

func (nn *NameNode) startRecovery(ctx context.Context, file, block uint64) (generation uint64, err error) {
	if generation, err = nn.stamp(ctx); err != nil {
		return 0, err
	}
	_, err = nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_StartRecovery{StartRecovery: &nspb.StartRecovery{
		File: &file, Block: &block, Generation: &generation,
	}}})
	return generation, err
}

// driveRecoveries has a DataNode lead each recovery that is under way, and
// another one, under a new generation stamp, when that takes too long.
func (nn *NameNode) driveRecoveries(ctx context.Context) {
	var (
		blocks []namespace.Block
		files  []uint64
	)
	nn.read(func(ns *namespace.Namespace) { blocks, files = ns.Recovering() })
	current := make(map[uint64]recovery, len(blocks))
	now := nn.cfg.now()
	for i, b := range blocks {
		r, sent := nn.recoveries[b.ID]
		sent = sent && r.generation == b.Construction.Recovery
		if sent && now.Before(r.deadline) && nn.blocks.lives(r.primary) {
			current[b.ID] = r
			continue
		}
		if sent {
			generation, err := nn.startRecovery(ctx, files[i], b.ID)
			if err != nil {
				nn.log.Warn("namenode: start another recovery", "block", b.ID, "err", err)
				current[b.ID] = r
				continue
			}
			b.Construction.Recovery = generation
		}
		r.generation = b.Construction.Recovery
		if nn.blocks.lead(b, &r, now) {
			nn.log.Info("namenode: recover block", "block", b.ID, "generation", r.generation, "primary", r.primary.dn.UUID, "attempt", r.attempts)
		} else {
			r = recovery{attempts: r.attempts}
		}
		current[b.ID] = r
	}
	nn.recoveries = current
}

func (m *blockMap) lives(n *node) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return n != nil && n.alive
}

// lead hands the recovery of a block to one of its holders; false if none
// lives.
func (m *blockMap) lead(b namespace.Block, r *recovery, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	holders := m.locate(b.ID, b, "").nodes
	holders = slices.DeleteFunc(holders, func(n *node) bool { return !n.registered })
	if len(holders) == 0 {
		return false
	}
	r.primary = holders[r.attempts%len(holders)]
	r.attempts++
	r.deadline = now.Add(m.cfg.RecoveryTimeout)
	cmd := &clusterpb.Command{
		Kind:          clusterpb.Command_RECOVER.Enum(),
		Block:         blockPB(b.ID, b.Generation, b.Length),
		NewGeneration: proto.Uint64(r.generation),
	}
	if b.Construction.Truncate {
		cmd.TruncateTo = proto.Uint64(b.Construction.TruncateTo)
	}
	for _, n := range holders {
		cmd.Targets = append(cmd.Targets, datanodePB(n.dn))
	}
	r.primary.commands = append(r.primary.commands, cmd)
	return true
}

// CommitRecovery ends the recovery of a file's last block and closes the file.
func (nn *NameNode) CommitRecovery(ctx context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
	id, generation, length := req.GetBlock().GetId(), req.GetNewGeneration(), req.GetBlock().GetLength()
	op := &nspb.CommitRecovery{Block: &id, Generation: &generation, Length: &length}
	for _, dn := range req.GetDatanodes() {
		op.Targets = append(op.Targets, dn.GetUuid())
	}
	if len(op.Targets) == 0 {
		if err := nn.mayDrop(id); err != nil {
			return nil, err
		}
	}
	e := &nspb.Entry{Op: &nspb.Entry_CommitRecovery{CommitRecovery: op}}
	var (
		changes bool
		err     error
	)
	nn.read(func(ns *namespace.Namespace) { _, changes, err = ns.Check(e) })
	if err == nil && changes {
		_, err = nn.propose(ctx, e)
	}
	if err != nil {
		if nn.overtaken(id, generation) {
			err = fmt.Errorf("%w: %w", cluster.ErrStale, err)
		}
		return nil, fmt.Errorf("namenode: commit the recovery of block %d: %w", id, err)
	}
	if !changes {
		return &clusterpb.CommitRecoveryResponse{}, nil // told again: what has become of the replicas since is known
	}
	nn.log.Info("namenode: block recovered", "block", id, "generation", generation, "length", length, "datanodes", len(op.Targets))
	nn.read(func(ns *namespace.Namespace) { nn.blocks.recovered(ns, op) })
	return &clusterpb.CommitRecoveryResponse{}, nil
}

// overtaken tells that a block is no longer recovered under that generation.
func (nn *NameNode) overtaken(id, generation uint64) (yes bool) {
	nn.read(func(ns *namespace.Namespace) {
		b, ok := ns.Recovery(id)
		yes = !ok || b.Construction.Recovery != generation
	})
	return yes
}

// mayDrop refuses to give a block up while a DataNode that may have it could not
// be asked.
func (nn *NameNode) mayDrop(id uint64) error {
	var (
		b  namespace.Block
		ok bool
	)
	nn.read(func(ns *namespace.Namespace) { b, ok = ns.Recovery(id) })
	if !ok {
		return nil // the commit finds out
	}
	if b.Length > 0 {
		return fmt.Errorf("namenode: commit the recovery of block %d: %d bytes of it are known to be flushed, so it can't be dropped", id, b.Length)
	}
	nn.blocks.mu.Lock()
	defer nn.blocks.mu.Unlock()
	for _, uuid := range b.Construction.Targets {
		if n := nn.blocks.nodes[uuid]; n == nil || !n.alive {
			return fmt.Errorf("namenode: commit the recovery of block %d: DataNode %s of its pipeline could not be asked", id, uuid)
		}
	}
	return nil
}

func (m *blockMap) recovered(ns *namespace.Namespace, op *nspb.CommitRecovery) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uuid := range op.GetTargets() {
		if n := m.nodes[uuid]; n != nil {
			m.put(n, op.GetBlock(), op.GetGeneration(), op.GetLength(), clusterpb.ReplicaState_FINALIZED, true)
		}
	}
	m.judge(ns, op.GetBlock())
}
