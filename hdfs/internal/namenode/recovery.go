package namenode

import (
	"context"
	"fmt"
	"maps"
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
	long := nn.blocks.noteRecoveries(blocks)
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
			if long[b.ID] && !b.Construction.Truncate && nn.blocks.forgotten(b) {
				// As HDFS after a start, when nobody is expected to have the block.
				nn.log.Warn("namenode: all DataNodes of a block's pipeline are forgotten; its file is closed", "block", b.ID, "inode", files[i], "bytes known", b.Length)
				end := &nspb.CloseFile{File: &files[i], DropLast: proto.Bool(b.Length == 0), KeepLast: proto.Bool(b.Length > 0)}
				if _, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_CloseFile{CloseFile: end}}); err != nil {
					nn.log.Warn("namenode: close a file whose writer is gone", "inode", files[i], "err", err)
				}
			}
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

// forgotten tells that no DataNode that may have the block is known any more. One that is
// only away may come back with bytes that were acknowledged: as in HDFS it is waited for.
func (m *blockMap) forgotten(b namespace.Block) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.replicas.any(b.ID, func(replica) bool { return true }) && !slices.ContainsFunc(b.Construction.Targets, func(uuid string) bool { return m.nodes[uuid] != nil })
}

// unaskable counts the known DataNodes that may have a block and are not among those asked.
// The caller has m.mu.
func (m *blockMap) unaskable(b namespace.Block, asked []*node) (count uint32) {
	for _, uuid := range b.Construction.Targets {
		if n := m.nodes[uuid]; n != nil && !slices.Contains(asked, n) {
			count++
		}
	}
	for r := range m.replicas.of(b.ID) {
		n := m.byIndex[r.node]
		if r.generation >= b.Generation && !slices.Contains(asked, n) && !slices.Contains(b.Construction.Targets, n.dn.UUID) {
			count++
		}
	}
	return count
}

// lead hands the recovery of a block to one of its holders; false if none
// lives.
func (m *blockMap) lead(b namespace.Block, r *recovery, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	holders := m.locate(b.ID, b, place{}, nil).nodes
	holders = slices.DeleteFunc(holders, func(n *node) bool { return !n.registered })
	if len(holders) == 0 {
		return false
	}
	m.asked[b.ID] = holders
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
	cmd.Missing, cmd.Late = proto.Uint32(m.unaskable(b, holders)), proto.Bool(m.triedLong(b.ID))
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
		keep, err := nn.giveUp(id, req.GetUnwritten())
		if err == nil && keep {
			if err = nn.closeWithout(ctx, id, generation); err == nil {
				return &clusterpb.CommitRecoveryResponse{}, nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("namenode: commit the recovery of block %d: %w", id, err)
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

// closeWithout ends the recovery of a block that no holder has any more, and
// closes its file: the block keeps its known length and counts as missing.
func (nn *NameNode) closeWithout(ctx context.Context, id, generation uint64) error {
	var (
		b    namespace.Block
		file uint64
		ok   bool
	)
	nn.read(func(ns *namespace.Namespace) { b, file, ok = ns.Recovery(id) })
	if !ok || b.Construction.Recovery != generation {
		return cluster.ErrStale
	}
	nn.log.Error("namenode: no DataNode has the last block of a file; it is closed and the block counts as missing", "block", id, "inode", file)
	_, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_CloseFile{CloseFile: &nspb.CloseFile{File: &file, KeepLast: proto.Bool(true)}}})
	return err
}

// overtaken tells that a block is no longer recovered under that generation.
func (nn *NameNode) overtaken(id, generation uint64) (yes bool) {
	nn.read(func(ns *namespace.Namespace) {
		b, _, ok := ns.Recovery(id)
		yes = !ok || b.Construction.Recovery != generation
	})
	return yes
}

// giveUp says what becomes of a block of which no holder that was asked has a byte: an
// error keeps the block and has the recovery try again, keep closes the file with it, and
// otherwise the block is dropped.
//
// It is dropped at once if all DataNodes that may have it were asked, or if one of its
// pipeline that has lost nothing has an empty replica (unwritten): no byte was ever
// acknowledged. Otherwise whoever was not asked may have what the others have lost, and
// keeps the block until the recovery has been tried for the lease's hard limit. Bytes
// that a client has told to be flushed are never dropped: after the limit the file is
// closed with them, and they are missing until a holder comes.
func (nn *NameNode) giveUp(id uint64, unwritten bool) (keep bool, err error) {
	var (
		b  namespace.Block
		ok bool
	)
	nn.read(func(ns *namespace.Namespace) { b, _, ok = ns.Recovery(id) })
	if !ok {
		return false, nil // the commit finds out
	}
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	late := m.triedLong(id)
	switch n := m.unaskable(b, m.asked[id]); {
	case b.Length > 0 && !late:
		return false, fmt.Errorf("%d bytes of it are known to be flushed, so it can't be dropped", b.Length)
	case b.Length > 0:
		return true, nil
	case n > 0 && !late && !unwritten:
		return false, fmt.Errorf("%d DataNodes that may have it were not asked", n)
	}
	return false, nil
}

// triedLong tells that a block's recovery has been tried for the lease's hard
// limit. The caller has m.mu.
func (m *blockMap) triedLong(id uint64) bool {
	since, ok := m.recovering[id]
	return ok && m.cfg.now().Sub(since) > m.cfg.LeaseHardLimit
}

// noteRecoveries keeps since when the recoveries under way are tried, and tells
// which of them have been tried for long.
func (m *blockMap) noteRecoveries(blocks []namespace.Block) (long map[uint64]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := make(map[uint64]time.Time, len(blocks))
	long = make(map[uint64]bool)
	for _, b := range blocks {
		at, ok := m.recovering[b.ID]
		if !ok {
			at = m.cfg.now()
		}
		since[b.ID] = at
		if m.triedLong(b.ID) {
			long[b.ID] = true
		}
	}
	m.recovering = since
	maps.DeleteFunc(m.asked, func(id uint64, _ []*node) bool { return since[id].IsZero() })
	return long
}

func (m *blockMap) recovered(ns *namespace.Namespace, op *nspb.CommitRecovery) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uuid := range op.GetTargets() {
		if n := m.nodes[uuid]; n != nil {
			m.put(n, op.GetBlock(), op.GetGeneration(), op.GetLength(), clusterpb.ReplicaState_FINALIZED, unknownStorage, true)
		}
	}
	m.judge(ns, op.GetBlock())
}
