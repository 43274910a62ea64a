package namenode

import (
	"slices"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// judge decides after a report whether a block needs to be looked at.
func (m *blockMap) judge(ns *namespace.Namespace, id uint64) {
	if m.unreported.has(id) {
		if b, ok := ns.Block(id); ok && !b.Writing {
			m.noteReported(b)
		}
	}
	if m.safeMode {
		return
	}
	b, ok := ns.Block(id)
	if !ok || b.Writing {
		if !ok {
			m.look(id)
		}
		return
	}
	good := 0
	for r := range m.replicas.of(id) {
		if m.good(b, r) {
			good++
		} else if r.state != clusterpb.ReplicaState_BEING_WRITTEN || r.generation != b.Generation {
			// A replica being written of a complete block, as HDFS has it, only
			// lacks its last report, unless it is of another generation.
			m.look(id)
			return
		}
	}
	if good > b.Replication || m.missing.has(id) || m.needed.has(id) {
		m.look(id)
	}
}

// settleBatch is how many blocks are looked at with one hold of the lock: about a millisecond.
const settleBatch = 500

// check does what time demands, and what has been queued, in bounded steps.
// The caller calls again if it returns true.
func (m *blockMap) check(ns *namespace.Namespace) (more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.held.end(holdMonitor, m.held.begin())
	now := m.cfg.now()
	m.checkNodes(now)
	m.scanOn(ns)
	if m.safeMode {
		m.checkSafeMode(ns, now)
		if m.safeMode {
			return len(m.scans) > 0
		}
	}
	if m.waits.len() > 0 && !m.waitsForReturn(now) {
		m.waits = blockSet{}
		m.begin(ns, &scan{files: true, visit: m.look})
	}
	for left := scanStep; left > 0 && len(m.delayed) > 0 && !m.delayed[0].at.After(now); left-- {
		m.look(m.delayed[0].block)
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
			m.look(id)
		}
	}
	m.takeDue()
	for range min(m.ready.count, settleBatch) {
		id, _ := m.ready.pop()
		m.settle(ns, id, now)
	}
	if m.ready.count > 0 || len(m.scans) > 0 || len(m.due) > 0 {
		return true
	}
	m.checkService()
	if m.frozen {
		return false
	}
	more = m.copyNeeded(ns, now)
	return more || m.ready.count > 0
}

// freeze tells whether changes are refused from now on. What was postponed because of that is looked at afterwards.
func (m *blockMap) freeze(frozen bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.frozen && !frozen {
		m.nowDue()
		if m.wakeMonitor != nil {
			m.wakeMonitor()
		}
	}
	m.frozen = frozen
}

// nowDue has the blocks looked at that were postponed. The caller has m.mu.
func (m *blockMap) nowDue() {
	if m.postponed.len() > 0 {
		m.due = append(m.due, m.postponed)
		m.postponed = new(blockSet)
	}
}

// takeDue has some of the blocks looked at that were postponed.
func (m *blockMap) takeDue() {
	if len(m.due) == 0 {
		return
	}
	due := m.due[0]
	for range settleBatch {
		id, ok := due.next(0)
		if !ok {
			m.due[0] = nil
			m.due = m.due[1:]
			return
		}
		due.remove(id)
		m.look(id)
	}
}

func (m *blockMap) checkNodes(now time.Time) {
	for _, n := range m.nodes {
		if !n.alive || now.Sub(n.lastSeen) <= m.cfg.DeadAfter {
			continue
		}
		m.cfg.Logger.Warn("namenode: DataNode is dead", "uuid", n.dn.UUID, "host", n.dn.Host, "port", n.dn.Port, "silent", now.Sub(n.lastSeen))
		m.lose(n)
	}
}

// queueBlocksOf has all blocks looked at that a DataNode is thought to hold.
func (m *blockMap) queueBlocksOf(n *node) {
	m.eachOf(n, m.look)
}

// settle compares a block's replicas with what is wanted. It orders copies, and
// deletions of surplus and of bad replicas. It never orders the deletion of the
// last good replica, nor of a bad one before a good one is known. As in HDFS it
// deletes nothing while a DataNode that is thought to hold the block has yet to
// report in full, nor while changes are refused.
func (m *blockMap) settle(ns *namespace.Namespace, id uint64, now time.Time) {
	b, ok := ns.Block(id)
	if !ok {
		m.endDoubt(id, false, false)
		if m.frozen {
			m.postponed.add(id)
			return
		}
		m.orphan(id)
		return
	}
	if b.Writing {
		m.endDoubt(id, true, !m.replicas.any(id, func(r replica) bool { return m.byIndex[r.node].alive && r.generation >= b.Generation }))
		m.needed.remove(id)
		// As in HDFS a DataNode may leave once another one has the block, too.
		if m.replicas.any(id, func(r replica) bool {
			n := m.byIndex[r.node]
			return n.alive && n.inService() && r.generation >= b.Generation
		}) {
			m.release(id)
		}
		return
	}
	s := m.standing(b)
	live := len(s.live)
	m.corrupt.set(id, s.corrupt)
	m.missing.set(id, live+len(s.leaving) == 0)
	m.endDoubt(id, true, live+len(s.leaving) == 0)
	m.needed.remove(id)
	m.waits.remove(id)
	m.letGo(b, &s)
	if live+len(s.leaving) == 0 {
		return // a report will bring it back here
	}
	keep := s.stale || m.frozen
	if keep && (live > b.Replication || len(s.bad) > 0) {
		m.postponed.add(id)
	}
	switch {
	case s.lacks(m, b) > 0 && m.waitsForReturn(now):
		m.waits.add(id)
	case s.lacks(m, b) > 0:
		m.needed.add(id, s.urgency(m, b))
	case live > b.Replication && !keep:
		m.trim(b, s.live)
	}
	if live >= b.Replication && !keep {
		for _, n := range s.bad {
			m.deleteReplica(id, n)
		}
		m.corrupt.remove(id)
	}
}

// orphan orders the deletion of the replicas of a block that is in no file, as
// HDFS invalidates what its block map lacks.
func (m *blockMap) orphan(id uint64) {
	for r := range m.replicas.of(id) {
		m.deleteFrom(m.byIndex[r.node], id, r.generation)
	}
	m.forget(id)
}

func (m *blockMap) deleteReplica(id uint64, n *node) {
	for r := range m.replicas.of(id) {
		if r.node == n.index {
			m.deleteFrom(n, id, r.generation)
			d := n.deletions[id]
			d.inFile = true
			n.deletions[id] = d
		}
	}
	m.drop(id, n)
}

// mayGo tells whether the deletion of a replica may be sent. Not if the block is in a file and no
// other good replica is known any more: time has passed since the deletion was ordered. The block is
// looked at then, which ends the doubt.
func (m *blockMap) mayGo(n *node, id uint64, d deletion) bool {
	if d.doubted {
		return false
	}
	if !d.inFile || !m.missing.has(id) && m.replicas.any(id, func(r replica) bool {
		return r.state == clusterpb.ReplicaState_FINALIZED && !r.corrupt && m.byIndex[r.node].alive
	}) {
		return true
	}
	d.doubted = true
	n.deletions[id] = d
	m.doubted[id] = append(m.doubted[id], n)
	m.look(id)
	return false
}

// endDoubt ends the doubt about deletions of a block's replicas. If these are the last, it gives the
// deletions up. Their DataNodes report in full then: the replicas are not known any more, and may be gone.
func (m *blockMap) endDoubt(id uint64, inFile, last bool) {
	nodes, ok := m.doubted[id]
	if !ok {
		return
	}
	delete(m.doubted, id)
	for _, n := range nodes {
		d := n.deletions[id]
		if !d.doubted {
			continue // it was lost meanwhile
		}
		if last {
			delete(n.deletions, id)
			n.recount = true
			m.cfg.Logger.Warn("namenode: a deletion is given up, no other replica is left", "block", id, "datanode", n.dn.UUID, "host", n.dn.Host, "port", n.dn.Port)
			continue
		}
		d.doubted, d.inFile = false, inFile
		n.deletions[id] = d
	}
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
