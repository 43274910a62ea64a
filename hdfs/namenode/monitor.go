package namenode

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace/nspb"
)

// leases knows when writers were last heard of. That is soft state: after a
// start every lease counts as just renewed.
type leases struct {
	mu      sync.Mutex
	renewed map[string]time.Time // by holder
}

func (l *leases) renew(holder string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed[holder] = now
}

// age returns how long ago holder was heard of.
func (l *leases) age(holder string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.renewed[holder]
	if !ok {
		l.renewed[holder] = now
		return 0
	}
	return now.Sub(at)
}

// keep forgets all holders but these.
func (l *leases) keep(holders []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.renewed {
		if _, ok := slices.BinarySearch(holders, h); !ok {
			delete(l.renewed, h)
		}
	}
}

// recovery is one attempt to recover a block.
type recovery struct {
	generation uint64
	primary    *node
	deadline   time.Time
	attempts   int
}

// wakeMonitor has the monitor look now instead of at its next turn.
func (nn *NameNode) wakeMonitor() {
	select {
	case nn.kick <- struct{}{}:
	default:
	}
}

func (nn *NameNode) monitor(ctx context.Context) {
	tick := time.NewTicker(nn.cfg.CheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-nn.kick:
		}
		nn.check(ctx)
	}
}

// check is one turn of the monitor.
func (nn *NameNode) check(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		nn.read(func(ns *namespace.Namespace) { more = nn.blocks.check(ns) })
	}
	if nn.blocks.inSafeMode() {
		return
	}
	nn.checkLeases(ctx)
	nn.driveRecoveries(ctx)
}

// checkLeases takes the files of writers that have not been heard of for the
// hard limit.
func (nn *NameNode) checkLeases(ctx context.Context) {
	var holders []string
	nn.read(func(ns *namespace.Namespace) { holders = ns.Holders() })
	nn.leases.keep(holders)
	now := nn.cfg.now()
	for _, h := range holders {
		if h != namespace.RecoveryHolder() && nn.leases.age(h, now) <= nn.cfg.LeaseHardLimit {
			continue
		}
		var files []uint64
		nn.read(func(ns *namespace.Namespace) { files = ns.OpenFiles(h) })
		for _, id := range files {
			if ctx.Err() != nil {
				return
			}
			if h != namespace.RecoveryHolder() {
				nn.log.Warn("namenode: lease expired", "holder", h, "inode", id)
			}
			if _, err := nn.recoverFile(ctx, id); err != nil {
				nn.log.Warn("namenode: recover lease", "inode", id, "err", err)
			}
		}
	}
}

// recoverFile takes a file from its writer and closes it, at once if all its
// blocks are complete and else by a recovery of the last one, which it begins.
func (nn *NameNode) recoverFile(ctx context.Context, id uint64) (closed bool, err error) {
	var (
		f     namespace.FileBlocks
		ok    bool
		found bool // somebody has, or should have, the last block
	)
	nn.read(func(ns *namespace.Namespace) {
		if f, ok = ns.FileByID(id); !ok || len(f.Blocks) == 0 {
			return
		}
		last := f.Blocks[len(f.Blocks)-1]
		nn.blocks.mu.Lock()
		defer nn.blocks.mu.Unlock()
		found = last.Construction == nil || len(last.Construction.Targets) > 0 || len(nn.blocks.replicas[last.ID]) > 0
	})
	if !ok || !f.Status.Open {
		return true, nil
	}
	drop := false
	if len(f.Blocks) > 0 {
		last := f.Blocks[len(f.Blocks)-1]
		switch {
		case last.Construction == nil:
			changed, cancel := nn.blocks.finalized(last.ID, last.Generation, last.Length)
			if changed != nil {
				cancel()
				return false, nil // until a DataNode reports it
			}
		case last.Construction.Recovery != 0:
			return false, nil
		case found || last.Length > 0:
			_, err := nn.startRecovery(ctx, id, last.ID)
			nn.wakeMonitor()
			return false, err
		default:
			drop = true
		}
	}
	_, err = nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_CloseFile{CloseFile: &nspb.CloseFile{File: &id, DropLast: &drop}}})
	return err == nil, err
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
