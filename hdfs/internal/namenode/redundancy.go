package namenode

import (
	"slices"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// Short blocks are copied in numbers: what limits them is not the network.
const (
	shortBlock  = 1 << 20 // bytes; a shorter block counts a sixteenth
	shortShare  = 1.0 / 16
	shortCopies = 64       // at a time from one DataNode, beyond its streams
	shortBytes  = 16 << 20 // and so many bytes of them
)

// How urgent a block's copies are, as HDFS's queues.
const (
	oneLeft   = iota // one replica left, or only on DataNodes that leave
	fewLeft          // less than a third of those wanted
	someLeft         // fewer than wanted
	oneRack          // enough, but on too few racks
	urgencies        // how many there are
)

// needs are the blocks that lack replicas, by urgency. Those of an urgency take turns, in the order of
// their ids.
type needs struct {
	sets [urgencies]blockSet
	turn [urgencies]uint64 // the id from which the next one is taken
}

func (s *needs) len() (n int) {
	for u := range s.sets {
		n += s.sets[u].len()
	}
	return n
}

func (s *needs) has(id uint64) bool {
	for u := range s.sets {
		if s.sets[u].has(id) {
			return true
		}
	}
	return false
}

func (s *needs) add(id uint64, urgency int) {
	for u := range s.sets {
		s.sets[u].set(id, u == urgency)
	}
}

func (s *needs) remove(id uint64) {
	for u := range s.sets {
		s.sets[u].remove(id)
	}
}

// take takes the block of an urgency whose turn it is.
func (s *needs) take(urgency int) (id uint64, ok bool) {
	set := &s.sets[urgency]
	if id, ok = set.next(s.turn[urgency]); !ok {
		if id, ok = set.next(0); !ok {
			return 0, false
		}
	}
	set.remove(id)
	s.turn[urgency] = id + 1
	return id, true
}

// blockQueue is a queue of blocks in chunks, so that no push copies what is there.
type blockQueue struct {
	chunks [][]uint64 // none is empty
	count  int
}

const queueChunk = 4096 // blocks

func (q *blockQueue) push(id uint64) {
	last := len(q.chunks) - 1
	if last < 0 || len(q.chunks[last]) == cap(q.chunks[last]) {
		q.chunks = append(q.chunks, make([]uint64, 0, queueChunk))
		last++
	}
	q.chunks[last] = append(q.chunks[last], id)
	q.count++
}

func (q *blockQueue) pop() (id uint64, ok bool) {
	if q.count == 0 {
		return 0, false
	}
	id = q.chunks[0][0]
	if q.chunks[0] = q.chunks[0][1:]; len(q.chunks[0]) == 0 {
		q.chunks[0] = nil
		q.chunks = q.chunks[1:]
	}
	if q.count--; q.count == 0 {
		*q = blockQueue{}
	}
	return id, true
}

// copyNeeded orders copies of the most urgent blocks, at HDFS's pace: at each
// RedundancyInterval as many blocks as there are DataNodes in service, times ReplicationWork,
// and from each DataNode ReplicationStreams at a time. It tells whether it has more to look at
// before it has used that up; the caller lets go of the lock and calls again.
func (m *blockMap) copyNeeded(ns *namespace.Namespace, now time.Time) (more bool) {
	if now.Sub(m.copied) >= m.cfg.RedundancyInterval {
		m.copied = now
		m.copyBudget = 0
		for _, n := range m.nodes {
			if n.alive && n.inService() {
				m.copyBudget += float64(m.cfg.ReplicationWork)
			}
		}
	}
	left := settleBatch
	for urgency := range urgencies {
		// Those that come back wait for the next time.
		for range m.needed.sets[urgency].len() {
			if m.copyBudget <= 0 {
				return false
			}
			if left--; left < 0 {
				return true
			}
			id, ok := m.needed.take(urgency)
			if !ok {
				break
			}
			b, ok := ns.Block(id)
			if !ok || b.Writing {
				continue
			}
			if b.Length < shortBlock {
				m.copyBudget -= shortShare
			} else {
				m.copyBudget--
			}
			s := m.standing(b)
			if want := s.lacks(m, b); want > 0 {
				m.copy(b, &s, want, urgency, now)
			}
		}
	}
	m.copyBudget = 0 // those that came back wait for the next time
	return false
}

// waitsForReturn tells whether, after a start, DataNodes may still come back: until
// DeadAfter nobody knows that they will not, and copies of all that they have
// would be made for nothing.
func (m *blockMap) waitsForReturn(now time.Time) bool {
	if now.Sub(m.started) >= m.cfg.DeadAfter {
		return false
	}
	for _, n := range m.nodes {
		if n.expected && !n.reported && n.inService() {
			return true
		}
	}
	return false
}

// copy orders count more replicas of a block.
func (m *blockMap) copy(b namespace.BlockInfo, s *standing, count, urgency int, now time.Time) {
	exclude := make(map[*node]bool)
	for r := range m.replicas.of(b.ID) {
		exclude[m.byIndex[r.node]] = true
	}
	chosen := slices.Clone(s.live)
	for _, t := range m.copying[b.ID] {
		chosen = append(chosen, t.target)
	}
	for _, n := range m.nodes {
		if _, ok := n.deletions[b.ID]; ok {
			exclude[n] = true
		}
	}
	source := m.source(b, s, urgency)
	if source == nil {
		m.needed.add(b.ID, urgency)
		return
	}
	targets := m.choose(want{count: count, writer: place{source.dn.Host, source.rack}, chosen: chosen, exclude: exclude, size: b.Length})
	if urgency == oneRack && !slices.ContainsFunc(targets, func(n *node) bool { return n.rack != s.live[0].rack }) {
		m.needed.add(b.ID, urgency) // another one on the same rack is no use
		return
	}
	if len(targets) == 0 {
		m.needed.add(b.ID, urgency)
		if len(m.copying[b.ID]) == 0 && len(s.bad) > 0 && !s.stale {
			// Only a DataNode with a bad replica has room. The bad replica goes;
			// the report of that brings the block back here.
			m.deleteReplica(b.ID, s.bad[0])
		}
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
		m.needed.add(b.ID, urgency)
	}
}

// source picks the DataNode to copy from: one that has reported, then one that leaves
// the service, which has no writers, then the one with the fewest copies. DataNodes in
// maintenance may go at any time.
func (m *blockMap) source(b namespace.BlockInfo, s *standing, urgency int) *node {
	streams := m.cfg.ReplicationStreams
	if urgency == oneLeft {
		streams *= 2 // HDFS's hard limit
	}
	var best *node
	better := func(n *node) bool {
		switch {
		case best == nil:
			return true
		case n.reported != best.reported:
			return n.reported
		case n.inService() != best.inService():
			return !n.inService()
		}
		return n.copies < best.copies
	}
	for _, n := range slices.Concat(s.live, s.leaving) {
		free := n.copies < streams || b.Length < shortBlock && n.copies < shortCopies && n.copyingBytes+b.Length <= shortBytes
		if n.registered && free && better(n) {
			best = n
		}
	}
	return best
}
