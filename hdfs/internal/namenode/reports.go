package namenode

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// Limits on what a DataNode may send.
const (
	maxReportParts = 1 << 16
	// So many replicas are taken with one hold of the lock: less than a millisecond.
	reportBatch = 512
	// A replica reported by itself up to this long before a full report may be
	// newer than that report's list.
	reportSlack = 10 * time.Second
)

// partialReport is a full report of which parts are still to come.
type partialReport struct {
	id    uint64
	next  uint32
	parts uint32
	begun time.Time
}

// reporting returns the DataNode that sends a report, and whether the report is one
// that it has sent before. Reports of a session are carried out once each, in order:
// their sender may not know whether one has come, and sends it again.
func (m *blockMap) reporting(uuid string, session, sequence uint64) (n *node, again bool, err error) {
	n = m.inSession(uuid, session)
	if n == nil {
		return nil, false, fmt.Errorf("namenode: report of DataNode %s in no session of this NameNode: %w: register first", uuid, cluster.ErrNotRegistered)
	}
	n.lastSeen = m.cfg.now()
	switch {
	case sequence == n.sequence+1:
		return n, false, nil
	case sequence > 0 && sequence <= n.sequence:
		return n, true, nil
	}
	return nil, false, fmt.Errorf("namenode: report %d of DataNode %s follows its report %d: %w: register again", sequence, uuid, n.sequence, cluster.ErrNotRegistered)
}

// BlockReport takes a part of a DataNode's list of all its replicas.
func (nn *NameNode) BlockReport(ctx context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	parts := max(req.GetParts(), 1)
	if req.GetPart() >= parts || parts > maxReportParts {
		return nil, fmt.Errorf("namenode: block report of DataNode %s: part %d of %d", req.GetUuid(), req.GetPart(), parts)
	}
	err := nn.outrun(ctx, req.GetUuid(), func(yield func(*clusterpb.Block) bool) {
		for _, r := range req.GetReplicas() {
			if !yield(r.GetBlock()) {
				return
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("namenode: block report of DataNode %s: %w", req.GetUuid(), err)
	}
	defer nn.blocks.oneAtATime(req.GetUuid())()
	again := false
	nn.read(func(ns *namespace.Namespace) { again, err = nn.blocks.beginPart(req, parts) })
	if err != nil || again {
		return &clusterpb.BlockReportResponse{}, err
	}
	var spare sparePages
	for batch := range slices.Chunk(req.GetReplicas(), reportBatch) {
		spare.provide(batch)
		nn.read(func(ns *namespace.Namespace) { err = nn.blocks.listed(ns, req, batch, &spare) })
		if err != nil {
			return nil, err
		}
		giveWay()
	}
	done := false
	nn.read(func(ns *namespace.Namespace) { done, err = nn.blocks.endPart(req) })
	if err != nil {
		return nil, err
	}
	if done {
		nn.wakeMonitor()
	}
	return &clusterpb.BlockReportResponse{}, nil
}

// oneAtATime has the reports of a DataNode wait for each other, until the function that
// it returns is called.
func (m *blockMap) oneAtATime(uuid string) (release func()) {
	m.mu.Lock()
	n := m.nodes[uuid]
	m.mu.Unlock()
	if n == nil {
		return func() {} // it will be told to register
	}
	n.reporting.Lock()
	return n.reporting.Unlock
}

// beginPart checks that a part is the one that should come.
func (m *blockMap) beginPart(req *clusterpb.BlockReportRequest, parts uint32) (again bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, again, err := m.reporting(req.GetUuid(), req.GetSession(), req.GetSequence())
	if err != nil || again {
		return again, err
	}
	if req.GetPart() == 0 {
		n.report = &partialReport{id: req.GetReportId(), parts: parts, begun: n.lastSeen}
		n.mark = max(n.mark+1, 1)
		n.recount = false
	}
	rep := n.report
	if rep == nil || rep.id != req.GetReportId() || rep.parts != parts || rep.next != req.GetPart() {
		n.report = nil
		return false, fmt.Errorf("namenode: block report %d of DataNode %s: part %d of %d does not follow what came before: begin again with part 0", req.GetReportId(), req.GetUuid(), req.GetPart(), parts)
	}
	return false, nil
}

// listed takes some of a part's replicas.
func (m *blockMap) listed(ns *namespace.Namespace, req *clusterpb.BlockReportRequest, replicas []*clusterpb.Replica, spare *sparePages) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.held.end(holdReport, m.held.begin())
	n, _, err := m.reporting(req.GetUuid(), req.GetSession(), req.GetSequence())
	if err != nil {
		return err
	}
	for _, page := range spare.wanted {
		m.replicas.reserve(page, spare)
	}
	for _, r := range replicas {
		b := r.GetBlock()
		m.put(n, b.GetId(), b.GetGeneration(), b.GetLength(), r.GetState(), n.storages.of(r), false)
		m.judge(ns, b.GetId())
	}
	for _, page := range spare.wanted {
		m.replicas.tidy(page)
	}
	return nil
}

// endPart ends a part, and with the last one the report.
func (m *blockMap) endPart(req *clusterpb.BlockReportRequest) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _, err := m.reporting(req.GetUuid(), req.GetSession(), req.GetSequence())
	if err != nil {
		return false, err
	}
	n.sequence++
	rep := n.report
	if rep.next++; rep.next < rep.parts {
		return false, nil
	}
	n.report = nil
	m.sweep(n, rep.begun, n.lastSeen)
	return true, nil
}

// sweep drops the replicas that a full report did not name. Only then has its DataNode
// reported in full: what it has lost would count until then.
func (m *blockMap) sweep(n *node, begun, ended time.Time) {
	before := tickOf(begun.Add(-reportSlack))
	session, mark := n.session, n.mark
	m.begin(nil, &scan{
		useless: func() bool { return n.session != session || n.mark != mark },
		visit: func(id uint64) {
			r, ok := m.replicas.find(id, n.index)
			if ok && r.mark != mark && (r.era != n.era || r.added.before(before)) {
				m.drop(id, n)
				m.look(id)
			}
		},
		over: func() {
			n.reported, n.lastReport = true, ended
			// Where very many wait for the DataNode to confirm them, it will.
			if len(n.deletions) <= scanStep {
				maps.DeleteFunc(n.deletions, func(_ uint64, d deletion) bool { return d.mark != mark })
			}
			m.nowDue()
		},
	})
}

// BlocksChanged takes what has happened to single replicas.
func (nn *NameNode) BlocksChanged(ctx context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	err := nn.outrun(ctx, req.GetUuid(), func(yield func(*clusterpb.Block) bool) {
		for _, c := range req.GetChanges() {
			if !yield(c.GetReplica().GetBlock()) {
				return
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("namenode: changed replicas of DataNode %s: %w", req.GetUuid(), err)
	}
	defer nn.blocks.oneAtATime(req.GetUuid())()
	changes := req.GetChanges()
	for last := false; !last; {
		batch := changes[:min(len(changes), reportBatch)]
		changes = changes[len(batch):]
		last = len(changes) == 0
		again := false
		nn.read(func(ns *namespace.Namespace) { again, err = nn.blocks.blocksChanged(ns, req, batch, last) })
		if err != nil {
			return nil, err
		}
		if again {
			break
		}
		giveWay()
	}
	return &clusterpb.BlocksChangedResponse{}, nil
}

// blocksChanged takes some of the changes of a request, the last ones if last is set.
func (m *blockMap) blocksChanged(ns *namespace.Namespace, req *clusterpb.BlocksChangedRequest, changes []*clusterpb.ReplicaChange, last bool) (again bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.held.end(holdReport, m.held.begin())
	n, again, err := m.reporting(req.GetUuid(), req.GetSession(), req.GetSequence())
	if err != nil || again {
		return again, err
	}
	if last {
		n.sequence++
	}
	for _, c := range changes {
		b, in := c.GetReplica().GetBlock(), n.storages.of(c.GetReplica())
		id := b.GetId()
		switch c.GetKind() {
		case clusterpb.ReplicaChange_RECEIVING:
			m.put(n, id, b.GetGeneration(), b.GetLength(), clusterpb.ReplicaState_BEING_WRITTEN, in, true)
		case clusterpb.ReplicaChange_RECEIVED:
			m.put(n, id, b.GetGeneration(), b.GetLength(), clusterpb.ReplicaState_FINALIZED, in, true)
		case clusterpb.ReplicaChange_DELETED:
			delete(n.deletions, id)
			m.drop(id, n)
			if !m.safeMode {
				m.look(id)
			}
			continue
		case clusterpb.ReplicaChange_CORRUPT:
			if _, ok := m.replicas.find(id, n.index); !ok {
				m.put(n, id, b.GetGeneration(), b.GetLength(), c.GetReplica().GetState(), in, true)
			}
			m.markCorrupt(ns, id, n)
		}
		m.judge(ns, id)
	}
	return false, nil
}
