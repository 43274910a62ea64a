package namenode

import (
	"slices"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// What one DataNode may be told to copy at a time.
const (
	maxCopies    = 64
	maxCopyBytes = 512 << 20
	maxDeletes   = 4096 // in one heartbeat
)

// judge decides after a report whether a block needs to be looked at.
func (m *blockMap) judge(ns *namespace.Namespace, id uint64) {
	if m.safeMode {
		return
	}
	b, ok := ns.Block(id)
	if !ok || b.Writing {
		if !ok {
			m.ready = append(m.ready, id)
		}
		return
	}
	good := 0
	for _, r := range m.replicas[id] {
		if m.good(b, r) {
			good++
		} else if r.state != clusterpb.ReplicaState_BEING_WRITTEN || r.generation != b.Generation {
			// A replica being written of a complete block, as HDFS has it, only
			// lacks its last report, unless it is of another generation.
			m.ready = append(m.ready, id)
			return
		}
	}
	if good > b.Replication || m.missing[id] || m.stuck[id] {
		m.ready = append(m.ready, id)
	}
}

// check does what time demands, and what has been queued, in bounded steps.
// The caller calls again if it returns true.
func (m *blockMap) check(ns *namespace.Namespace) (more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.cfg.now()
	m.checkNodes(now)
	if m.safeMode {
		m.checkSafeMode(ns, now)
		if m.safeMode {
			return false
		}
	}
	for len(m.delayed) > 0 && !m.delayed[0].at.After(now) {
		m.ready = append(m.ready, m.delayed[0].block)
		m.delayed = m.delayed[1:]
	}
	for id, tasks := range m.copying {
		late := false
		tasks = slices.DeleteFunc(tasks, func(t copyTask) bool {
			if now.Before(t.deadline) && t.source.alive && t.target.alive {
				return false
			}
			t.source.copied(t)
			late = true
			return true
		})
		if late {
			m.copying[id] = tasks
			if len(tasks) == 0 {
				delete(m.copying, id)
			}
			m.ready = append(m.ready, id)
		}
	}
	n := min(len(m.ready), 2000)
	batch := m.ready[:n]
	m.ready = m.ready[n:]
	for _, id := range batch {
		m.settle(ns, id, now)
	}
	if len(m.ready) == 0 {
		m.ready = nil
	}
	return len(m.ready) > 0
}

func (m *blockMap) checkNodes(now time.Time) {
	for _, n := range m.nodes {
		if !n.alive || now.Sub(n.lastSeen) <= m.cfg.DeadAfter {
			continue
		}
		n.alive, n.reported = false, false
		n.commands, n.report = nil, nil
		m.cfg.Logger.Warn("namenode: DataNode is dead", "uuid", n.dn.UUID, "host", n.dn.Host, "port", n.dn.Port, "silent", now.Sub(n.lastSeen))
		for id, rs := range m.replicas {
			if slices.ContainsFunc(rs, func(r replica) bool { return r.node == n.index }) {
				m.ready = append(m.ready, id)
			}
		}
	}
}

// settle compares a block's replicas with what is wanted. It orders copies, and
// deletions of surplus and of bad replicas. It never orders the deletion of the
// last good replica, nor of a bad one before a good one is known. As in HDFS it
// deletes nothing while a DataNode that is thought to hold the block has yet to
// report in full.
func (m *blockMap) settle(ns *namespace.Namespace, id uint64, now time.Time) {
	b, ok := ns.Block(id)
	if !ok {
		m.orphan(id)
		return
	}
	if b.Writing {
		return
	}
	var good, bad []*node
	var corrupt, stale bool
	for _, r := range m.replicas[id] {
		n := m.byIndex[r.node]
		corrupt = corrupt || r.corrupt
		stale = stale || n.alive && !n.reported
		switch {
		case !n.alive:
		case m.good(b, r):
			good = append(good, n)
		default:
			bad = append(bad, n)
		}
	}
	setIf(m.corrupt, id, corrupt)
	setIf(m.missing, id, len(good) == 0)
	delete(m.stuck, id)
	if len(good) == 0 {
		return // a report will bring it back here
	}
	have := len(good) + len(m.copying[id])
	if stale && (len(good) > b.Replication || len(bad) > 0) {
		m.postponed[id] = struct{}{}
	}
	switch {
	case have < b.Replication || len(m.copying[id]) == 0 && !m.enoughRacks(good, b.Replication):
		if stale {
			bad = nil // copy deletes a bad one if it stands in the way
		}
		m.copy(b, good, bad, max(b.Replication-have, 1), now)
	case len(good) > b.Replication && !stale:
		m.trim(b, good)
	}
	if len(good) >= b.Replication && !stale {
		for _, n := range bad {
			m.deleteReplica(id, n)
		}
		delete(m.corrupt, id)
	}
}

func setIf(set map[uint64]bool, id uint64, in bool) {
	if in {
		set[id] = true
	} else {
		delete(set, id)
	}
}

// orphan orders the deletion of the replicas of a block that is in no file, as
// HDFS invalidates what its block map lacks.
func (m *blockMap) orphan(id uint64) {
	for _, r := range m.replicas[id] {
		m.deleteFrom(m.byIndex[r.node], id, r.generation)
	}
	m.forget(id)
}

func (m *blockMap) deleteReplica(id uint64, n *node) {
	for _, r := range m.replicas[id] {
		if r.node == n.index {
			m.deleteFrom(n, id, r.generation)
		}
	}
	m.drop(id, n)
}

// trim deletes surplus replicas by HDFS's rule: while a rack has more than one, one
// of those goes, else any; of these the silent ones first, then the fullest.
func (m *blockMap) trim(b namespace.BlockInfo, good []*node) {
	now := m.cfg.now()
	for len(good) > b.Replication {
		racks := make(map[string]int)
		for _, n := range good {
			racks[n.rack]++
		}
		shared := slices.ContainsFunc(good, func(n *node) bool { return racks[n.rack] > 1 })
		worst := -1
		for i, n := range good {
			if shared && racks[n.rack] == 1 {
				continue
			}
			if worst < 0 || m.worse(n, good[worst], now) {
				worst = i
			}
		}
		m.deleteReplica(b.ID, good[worst])
		good = slices.Delete(good, worst, worst+1)
	}
}

func (m *blockMap) worse(a, b *node, now time.Time) bool {
	if sa, sb := now.Sub(a.lastSeen) > m.cfg.StaleAfter, now.Sub(b.lastSeen) > m.cfg.StaleAfter; sa != sb {
		return sa
	}
	return a.remaining < b.remaining
}

func (m *blockMap) copy(b namespace.BlockInfo, good, bad []*node, count int, now time.Time) {
	exclude := make(map[*node]bool)
	for _, r := range m.replicas[b.ID] {
		exclude[m.byIndex[r.node]] = true
	}
	chosen := slices.Clone(good)
	for _, t := range m.copying[b.ID] {
		chosen = append(chosen, t.target)
	}
	for _, n := range m.nodes {
		if n.deletions[b.ID] != nil {
			exclude[n] = true
		}
	}
	// Another rack is wanted, or else any: then there is nothing to gain.
	targets := m.choose(want{count: count, writer: place{good[0].dn.Host, good[0].rack}, chosen: chosen, exclude: exclude, size: b.Length})
	if len(chosen) >= b.Replication && !slices.ContainsFunc(targets, func(n *node) bool { return n.rack != good[0].rack }) {
		return
	}
	if len(targets) == 0 {
		m.stuck[b.ID] = true
		if len(m.copying[b.ID]) == 0 && len(bad) > 0 {
			// Only a DataNode with a bad replica has room. The bad replica goes;
			// the report of that brings the block back here.
			m.deleteReplica(b.ID, bad[0])
		}
		return
	}
	var source *node
	for _, n := range good {
		if n.copies < maxCopies && (n.copies == 0 || n.copyingBytes+b.Length <= maxCopyBytes) &&
			(source == nil || n.reported && !source.reported || n.reported == source.reported && n.copies < source.copies) {
			source = n
		}
	}
	if source == nil {
		m.later(b.ID, now)
		return
	}
	cmd := &clusterpb.Command{Kind: clusterpb.Command_REPLICATE.Enum(), Block: blockPB(b.ID, b.Generation, b.Length)}
	for _, n := range targets {
		cmd.Targets = append(cmd.Targets, datanodePB(n.dn))
		m.copying[b.ID] = append(m.copying[b.ID], copyTask{source: source, target: n, length: b.Length, deadline: now.Add(m.cfg.CopyTimeout)})
		n.scheduled.add(now)
		source.copies++
		source.copyingBytes += b.Length
	}
	source.commands = append(source.commands, cmd)
	if len(targets) < count {
		m.stuck[b.ID] = true
	}
}

// later puts a block at the end of the delayed ones, which are ordered by time:
// it may come a little late.
func (m *blockMap) later(id uint64, now time.Time) {
	at := now.Add(m.cfg.CheckInterval)
	if n := len(m.delayed); n > 0 && m.delayed[n-1].at.After(at) {
		at = m.delayed[n-1].at
	}
	m.delayed = append(m.delayed, delayed{id, at})
}
