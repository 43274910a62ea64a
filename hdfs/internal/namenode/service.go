package namenode

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/hosts"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// The states of a DataNode's service, as clients are told them.
const (
	inService           = hdfspb.DatanodeInfoProto_NORMAL
	decommissioning     = hdfspb.DatanodeInfoProto_DECOMMISSION_INPROGRESS
	decommissioned      = hdfspb.DatanodeInfoProto_DECOMMISSIONED
	enteringMaintenance = hdfspb.DatanodeInfoProto_ENTERING_MAINTENANCE
	inMaintenance       = hdfspb.DatanodeInfoProto_IN_MAINTENANCE
)

// inService tells whether blocks may be placed on a DataNode and its replicas count.
func (n *node) inService() bool { return n.service == inService && !n.refused }

// leaves tells whether the DataNode waits for its blocks to have enough replicas
// elsewhere.
func (n *node) leaves() bool {
	return n.service == decommissioning || n.service == enteringMaintenance
}

// refreshNodes reads the lists of hosts and the racks again.
func (nn *NameNode) refreshNodes(ctx context.Context, _ *hdfspb.RefreshNodesRequestProto) (*hdfspb.RefreshNodesResponseProto, error) {
	if err := nn.superuser(ctx, "refreshNodes"); err != nil {
		return nil, err
	}
	if err := nn.topology.Reload(); err != nil {
		return nil, exception.New(exception.IO, "%v", err)
	}
	if err := nn.readHosts(ctx); err != nil {
		return nil, exception.New(exception.IO, "%v", err)
	}
	nn.wakeMonitor()
	return &hdfspb.RefreshNodesResponseProto{}, nil
}

// superuser refuses everybody else.
func (nn *NameNode) superuser(ctx context.Context, what string) error {
	if c := nn.callFrom(ctx); !c.caller.GetSuperuser() {
		return exception.New(exception.AccessControl, "Access denied for user %s. Superuser privilege is required for operation %s", c.caller.GetUser(), what)
	}
	return nil
}

func (nn *NameNode) readHosts(ctx context.Context) error {
	list, err := hosts.Read(ctx, hosts.Config{Include: nn.cfg.Hosts, Exclude: nn.cfg.HostsExclude, Combined: nn.cfg.HostsCombined, Logger: nn.log})
	if err != nil {
		return err
	}
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hosts = list
	for _, n := range m.nodes {
		m.applyRule(n)
	}
	return nil
}

func (m *blockMap) ruleFor(dn namespace.Datanode) hosts.Rule {
	return m.hosts.Rule(dn.Host, dn.Hostname, dn.Port, m.cfg.now())
}

// applyRule brings a DataNode to the state that the lists of hosts want.
func (m *blockMap) applyRule(n *node) {
	rule := m.ruleFor(n.dn)
	was := n.service
	switch rule.State {
	case hosts.Refused:
		n.refused = true
		if n.alive {
			m.cfg.Logger.Warn("namenode: DataNode is no longer admitted", "uuid", n.dn.UUID, "host", n.dn.Host)
			m.lose(n)
		}
		return
	case hosts.Decommissioned:
		switch {
		case n.service == decommissioning, n.service == decommissioned:
		case n.alive:
			n.service = decommissioning
		default:
			n.service = decommissioned // as HDFS: a dead one has nothing to hand over
		}
	case hosts.Maintenance:
		switch {
		case n.service == enteringMaintenance, n.service == inMaintenance:
		case n.alive:
			n.service = enteringMaintenance
		default:
			n.service = inMaintenance
		}
	case hosts.InService:
		n.service = inService
	}
	n.refused = false
	if n.service != was {
		m.cfg.Logger.Info("namenode: DataNode changes its state", "uuid", n.dn.UUID, "host", n.dn.Host, "from", was, "to", n.service)
		m.reconsider(n)
	}
}

// reconsider looks at all blocks of a DataNode whose state has changed.
func (m *blockMap) reconsider(n *node) {
	n.leaving = nil
	if n.leaves() {
		n.leaving = new(blockSet)
	}
	m.eachOf(n, func(id uint64) {
		m.look(id)
		if n.leaving != nil {
			n.leaving.add(id)
		}
	})
}

// checkService ends what is over: maintenances, and the departure of DataNodes all of
// whose blocks have enough replicas elsewhere.
func (m *blockMap) checkService() {
	for _, n := range m.nodes {
		if n.service == enteringMaintenance || n.service == inMaintenance {
			m.applyRule(n) // it may have expired
		}
		if !n.leaves() || n.leaving.len() > 0 || n.alive && !n.reported || m.ready.count > 0 || len(m.scans) > 0 {
			continue
		}
		n.leaving = nil
		if n.service == decommissioning {
			n.service = decommissioned
		} else {
			n.service = inMaintenance
		}
		m.cfg.Logger.Info("namenode: all blocks of a DataNode have enough replicas elsewhere; it may be stopped", "uuid", n.dn.UUID, "host", n.dn.Host, "state", n.service)
	}
}

// lose counts a DataNode as dead: its replicas count no longer, but are remembered, and
// it has to register again. As in HDFS its deletions are forgotten, which were ordered while others had
// the blocks, too: when it returns it tells what it has.
func (m *blockMap) lose(n *node) {
	n.alive, n.reported, n.expected, n.recount = false, false, false, false
	n.session = 0
	n.commands, n.report = nil, nil
	n.deletions = make(map[uint64]deletion)
	m.queueBlocksOf(n)
}

// noteGone writes into the log which DataNodes are dead, so that no start waits for
// them, and forgets those that have been for ForgetAfter, or that the lists of
// hosts do not name any more.
func (nn *NameNode) noteGone(ctx context.Context) {
	var entries []*nspb.DatanodeGone
	nn.read(func(ns *namespace.Namespace) { entries = nn.blocks.gone(ns.Datanodes()) })
	for _, e := range entries {
		if _, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_DatanodeGone{DatanodeGone: e}}); err != nil {
			nn.log.Warn("namenode: note that a DataNode is dead", "uuid", e.GetUuid(), "err", err)
			return
		}
		if e.GetForget() {
			nn.log.Info("namenode: DataNode is forgotten", "uuid", e.GetUuid())
			nn.blocks.forgetNode(e.GetUuid())
		}
	}
}

func (m *blockMap) gone(known []namespace.Datanode) (out []*nspb.DatanodeGone) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.cfg.now()
	for _, dn := range known {
		n := m.nodes[dn.UUID]
		if n == nil || n.alive {
			continue
		}
		seen := n.lastSeen
		if seen.IsZero() {
			seen = m.started
		}
		switch {
		case n.refused && m.hosts.Names(), dn.GoneMillis != 0 && m.cfg.Clock().Sub(time.UnixMilli(dn.GoneMillis)) > m.cfg.ForgetAfter && n.service != inMaintenance:
			out = append(out, &nspb.DatanodeGone{Uuid: &dn.UUID, Forget: proto.Bool(true)})
		case dn.GoneMillis == 0 && now.Sub(seen) > m.cfg.DeadAfter:
			out = append(out, &nspb.DatanodeGone{Uuid: &dn.UUID, SinceMs: proto.Int64(seen.UnixMilli())})
		}
	}
	return out
}

// forgetNode drops a dead DataNode with all that it was thought to hold.
func (m *blockMap) forgetNode(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[uuid]
	if n == nil || n.alive {
		return
	}
	m.eachOf(n, func(id uint64) {
		m.drop(id, n)
		m.look(id)
	})
	delete(m.nodes, uuid)
}

// standing is how the replicas of a block stand. What is in maintenance is
// neither lost nor of use to others.
type standing struct {
	live        []*node // good, on DataNodes in service
	leaving     []*node // good, on DataNodes that leave the service or have left
	bad         []*node
	maintenance int // replicas on DataNodes in maintenance, or on the way
	corrupt     bool
	stale       bool // a holder has yet to report in full
}

func (m *blockMap) standing(b namespace.BlockInfo) (s standing) {
	for r := range m.replicas.of(b.ID) {
		n := m.byIndex[r.node]
		s.corrupt = s.corrupt || r.corrupt
		s.stale = s.stale || n.alive && !n.reported
		if n.service == inMaintenance && !r.corrupt && r.generation == b.Generation && r.length == b.Length && r.state == clusterpb.ReplicaState_FINALIZED {
			s.maintenance++
			continue
		}
		switch {
		case !n.alive:
		case !m.good(b, r):
			s.bad = append(s.bad, n)
		case n.inService():
			s.live = append(s.live, n)
		default:
			s.leaving = append(s.leaving, n)
			if n.service == enteringMaintenance {
				s.maintenance++
			}
		}
	}
	return s
}

// expected is how many live replicas a block must have: what is in maintenance
// counts, but for a least number.
func (s *standing) expected(m *blockMap, b namespace.BlockInfo) int {
	if s.maintenance == 0 {
		return b.Replication
	}
	return max(b.Replication-s.maintenance, min(m.cfg.MaintenanceReplication, b.Replication))
}

// lacks is how many replicas are to be made.
func (s *standing) lacks(m *blockMap, b namespace.BlockInfo) int {
	copying := len(m.copying[b.ID])
	switch want := s.expected(m, b) - len(s.live) - copying; {
	case want > 0:
		return want
	case copying == 0 && len(s.live) >= 1 && !m.enoughRacks(s.live, b.Replication):
		return 1
	}
	return 0
}

func (s *standing) urgency(m *blockMap, b namespace.BlockInfo) int {
	switch expected := s.expected(m, b); {
	case len(s.live) >= expected:
		return oneRack
	case len(s.live) == 0 || len(s.live) == 1 && b.Replication > 1:
		return oneLeft
	case 3*len(s.live) < expected:
		return fewLeft
	}
	return someLeft
}

// letGo tells the DataNodes that leave and hold this block that it does not need
// them any more, if so. As in HDFS the default replication is enough for that.
func (m *blockMap) letGo(b namespace.BlockInfo, s *standing) {
	if len(s.live) < s.expected(m, b) && len(s.live) < int(m.cfg.Replication) {
		return
	}
	m.release(b.ID)
}

func (m *blockMap) release(id uint64) {
	for r := range m.replicas.of(id) {
		m.byIndex[r.node].leaving.remove(id)
	}
}
