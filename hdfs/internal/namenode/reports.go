package namenode

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// Limits on what a DataNode may send.
const (
	maxReportParts = 1 << 16
	// A replica reported by itself up to this long before a full report may be
	// newer than that report's list.
	reportSlack = 10 * time.Second
)

// partialReport is a full report of which parts are still to come.
type partialReport struct {
	id       uint64
	next     uint32
	parts    uint32
	begun    time.Time
	replicas map[uint64]struct{}
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
	done := false
	nn.read(func(ns *namespace.Namespace) { done, err = nn.blocks.reportPart(ns, req, parts) })
	if err != nil {
		return nil, err
	}
	if done {
		nn.wakeMonitor()
	}
	return &clusterpb.BlockReportResponse{}, nil
}

func (m *blockMap) reportPart(ns *namespace.Namespace, req *clusterpb.BlockReportRequest, parts uint32) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, again, err := m.reporting(req.GetUuid(), req.GetSession(), req.GetSequence())
	if err != nil || again {
		return false, err
	}
	now := n.lastSeen
	if req.GetPart() == 0 {
		n.report = &partialReport{id: req.GetReportId(), parts: parts, begun: now, replicas: make(map[uint64]struct{})}
	}
	rep := n.report
	if rep == nil || rep.id != req.GetReportId() || rep.parts != parts || rep.next != req.GetPart() {
		n.report = nil
		return false, fmt.Errorf("namenode: block report %d of DataNode %s: part %d of %d does not follow what came before: begin again with part 0", req.GetReportId(), req.GetUuid(), req.GetPart(), parts)
	}
	n.sequence++
	rep.next++
	for _, r := range req.GetReplicas() {
		b := r.GetBlock()
		rep.replicas[b.GetId()] = struct{}{}
		m.put(n, b.GetId(), b.GetGeneration(), b.GetLength(), r.GetState(), false)
		m.judge(ns, b.GetId())
	}
	if rep.next < rep.parts {
		return false, nil
	}
	n.report = nil
	n.reported, n.lastReport = true, now
	m.sweep(ns, n, rep)
	for id := range m.postponed {
		m.ready = append(m.ready, id)
	}
	clear(m.postponed)
	return true, nil
}

// sweep drops the replicas that a full report did not name.
func (m *blockMap) sweep(ns *namespace.Namespace, n *node, rep *partialReport) {
	before := rep.begun.Add(-reportSlack).UnixNano()
	for id := range n.deletions {
		if _, ok := rep.replicas[id]; !ok {
			delete(n.deletions, id)
		}
	}
	for id, rs := range m.replicas {
		if _, ok := rep.replicas[id]; ok {
			continue
		}
		for _, r := range rs {
			if r.node == n.index && (r.era != n.era || r.added < before) {
				m.drop(id, n)
				m.ready = append(m.ready, id)
				break
			}
		}
	}
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
	nn.read(func(ns *namespace.Namespace) { err = nn.blocks.blocksChanged(ns, req) })
	if err != nil {
		return nil, err
	}
	return &clusterpb.BlocksChangedResponse{}, nil
}

func (m *blockMap) blocksChanged(ns *namespace.Namespace, req *clusterpb.BlocksChangedRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, again, err := m.reporting(req.GetUuid(), req.GetSession(), req.GetSequence())
	if err != nil || again {
		return err
	}
	n.sequence++
	for _, c := range req.GetChanges() {
		b := c.GetReplica().GetBlock()
		id := b.GetId()
		switch c.GetKind() {
		case clusterpb.ReplicaChange_RECEIVING:
			m.put(n, id, b.GetGeneration(), b.GetLength(), clusterpb.ReplicaState_BEING_WRITTEN, true)
		case clusterpb.ReplicaChange_RECEIVED:
			m.put(n, id, b.GetGeneration(), b.GetLength(), clusterpb.ReplicaState_FINALIZED, true)
		case clusterpb.ReplicaChange_DELETED:
			delete(n.deletions, id)
			m.drop(id, n)
			if !m.safeMode {
				m.ready = append(m.ready, id)
			}
			continue
		case clusterpb.ReplicaChange_CORRUPT:
			if !slices.ContainsFunc(m.replicas[id], func(r replica) bool { return r.node == n.index }) {
				m.put(n, id, b.GetGeneration(), b.GetLength(), c.GetReplica().GetState(), true)
			}
			m.markCorrupt(ns, id, n)
		}
		m.judge(ns, id)
	}
	return nil
}
