package namenode

import "github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"

// scanStep is how many blocks a scan visits with one hold of the lock: about a millisecond.
const scanStep = 4000

// scan is a walk over all blocks, for what concerns those of one DataNode or all: a map has
// no list of a DataNode's blocks, which would cost it more than all else. The monitor
// walks on between other things. Blocks that come while it walks may be visited or not.
type scan struct {
	next uint64
	// files says that it walks over the blocks of the namespace instead of those that
	// have replicas.
	files   bool
	visit   func(id uint64)
	over    func()      // after the last one, may be nil
	useless func() bool // it need not go on, and over is not called; may be nil
}

// begin starts a scan. A small one is over when it returns. The caller has m.mu, and of
// a scan over files the namespace's lock.
func (m *blockMap) begin(ns *namespace.Namespace, s *scan) {
	if m.advance(ns, s) {
		return
	}
	m.scans = append(m.scans, s)
	if m.wakeMonitor != nil {
		m.wakeMonitor()
	}
}

// advance takes a scan one step further and tells whether it is over.
func (m *blockMap) advance(ns *namespace.Namespace, s *scan) (over bool) {
	if s.useless != nil && s.useless() {
		return true
	}
	if s.files {
		left := scanStep
		over = true
		ns.EachBlock(s.next, func(id uint64) bool {
			if left--; left < 0 {
				over = false
				return false
			}
			s.next = id + 1
			s.visit(id)
			return true
		})
	} else {
		s.next, over = m.replicas.walk(s.next, scanStep, s.visit)
	}
	if over && s.over != nil {
		s.over()
	}
	return over
}

// scanOn takes the oldest scan one step further, if what it finds can be looked at.
func (m *blockMap) scanOn(ns *namespace.Namespace) {
	if len(m.scans) == 0 || !m.safeMode && m.ready.count >= settleBatch {
		return
	}
	s := m.scans[0]
	m.scans[0] = nil
	m.scans = m.scans[1:]
	if !m.advance(ns, s) {
		m.scans = append([]*scan{s}, m.scans...)
	}
}

// look has a block looked at by the monitor.
func (m *blockMap) look(id uint64) { m.ready.push(id) }

// eachOf has visit see all blocks that a DataNode is thought to hold.
func (m *blockMap) eachOf(n *node, visit func(id uint64)) {
	if n.replicas == 0 {
		return
	}
	m.begin(nil, &scan{visit: func(id uint64) {
		if _, ok := m.replicas.find(id, n.index); ok {
			visit(id)
		}
	}})
}
