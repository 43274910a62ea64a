package namenode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace/nspb"
)

var _ cluster.NameNode = (*NameNode)(nil)

// Limits on what a DataNode may send.
const (
	maxReportParts = 1 << 16
	// What was reported singly this long before a full report may have come
	// after the DataNode made that report's list.
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

// Register makes a DataNode known. One that belongs to another file system is
// refused.
func (nn *NameNode) Register(ctx context.Context, req *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error) {
	d := req.GetDatanode()
	host, err := addressOf(ctx, d.GetHost())
	if err != nil {
		return nil, fmt.Errorf("namenode: register DataNode %q: %w", d.GetUuid(), err)
	}
	if d.GetUuid() == "" || d.GetPort() == 0 || d.GetPort() > 65535 {
		return nil, fmt.Errorf("namenode: register DataNode %q at %s: it needs a uuid and a port, got port %d", d.GetUuid(), host, d.GetPort())
	}
	clusterID, poolID := nn.ClusterID(), nn.BlockPoolID()
	if id := req.GetClusterId(); id != "" && id != clusterID {
		return nil, fmt.Errorf("namenode: register DataNode %s: %w: it has cluster id %s, here it is %s: start it with an empty directory or against its own NameNode", d.GetUuid(), cluster.ErrForeign, id, clusterID)
	}
	if id := req.GetBlockPoolId(); id != "" && id != poolID {
		return nil, fmt.Errorf("namenode: register DataNode %s: %w: it has block pool %s, here it is %s: start it with an empty directory or against its own NameNode", d.GetUuid(), cluster.ErrForeign, id, poolID)
	}
	dn := namespace.Datanode{UUID: d.GetUuid(), Host: host, Port: d.GetPort(), Hostname: d.GetHostname()}
	if dn.Hostname == "" {
		dn.Hostname = d.GetHost()
	}
	e := &nspb.Entry{Op: &nspb.Entry_RegisterDatanode{RegisterDatanode: &nspb.RegisterDatanode{
		Uuid: &dn.UUID, Host: &dn.Host, Port: &dn.Port, Hostname: &dn.Hostname,
	}}}
	var changes bool
	nn.read(func(ns *namespace.Namespace) { _, changes, err = ns.Check(e) })
	if err == nil && changes {
		_, err = nn.propose(ctx, e)
	}
	if err != nil {
		return nil, fmt.Errorf("namenode: register DataNode %s: %w", dn.UUID, err)
	}
	nn.blocks.register(dn)
	nn.log.Info("namenode: DataNode registered", "uuid", dn.UUID, "host", dn.Host, "port", dn.Port)
	return &clusterpb.RegisterResponse{
		ClusterId: &clusterID, BlockPoolId: &poolID,
		HeartbeatIntervalMs: proto.Uint32(uint32(nn.cfg.HeartbeatInterval.Milliseconds())),
	}, nil
}

// addressOf returns the IP address that clients are told, which a DataNode may
// give by name.
func addressOf(ctx context.Context, host string) (string, error) {
	if net.ParseIP(host) != nil {
		return host, nil
	}
	if host == "" {
		return "", errors.New("it names no host that clients could reach")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", fmt.Errorf("look up its host, that clients are to be told: %w", err)
	}
	for _, a := range addrs {
		if a.Unmap().Is4() {
			return a.Unmap().String(), nil
		}
	}
	return addrs[0].String(), nil
}

func (m *blockMap) register(dn namespace.Datanode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[dn.UUID]
	if n == nil {
		n = m.addNode(dn)
	}
	for uuid, other := range m.nodes {
		// The log has dropped the one that had this address; so does this.
		if other != n && other.dn.Host == dn.Host && other.dn.Port == dn.Port {
			other.alive, other.registered = false, false
			for id := range m.replicas {
				m.drop(id, other)
			}
			delete(m.nodes, uuid)
		}
	}
	now := m.cfg.now()
	n.dn = dn
	n.registered, n.reported = true, false
	n.registeredAt, n.lastSeen = now, now
	n.report, n.commands = nil, nil
	m.revive(n)
}

// revive counts a DataNode's replicas again.
func (m *blockMap) revive(n *node) {
	if n.alive {
		return
	}
	n.alive = true
	for id := range m.stuck {
		m.ready = append(m.ready, id)
	}
	for id, rs := range m.replicas {
		if slices.ContainsFunc(rs, func(r replica) bool { return r.node == n.index }) {
			m.ready = append(m.ready, id)
			m.wake(id)
		}
	}
}

// Heartbeat says that a DataNode lives, and takes it its commands.
func (nn *NameNode) Heartbeat(_ context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[req.GetUuid()]
	if n == nil || !n.registered {
		return &clusterpb.HeartbeatResponse{Commands: []*clusterpb.Command{{Kind: clusterpb.Command_REGISTER.Enum()}}}, nil
	}
	now := m.cfg.now()
	n.lastSeen = now
	if n.capacity == 0 {
		close(m.grown)
		m.grown = make(chan struct{})
	}
	n.capacity, n.used, n.remaining = req.GetCapacity(), req.GetUsed(), req.GetRemaining()
	n.transfers = req.GetTransfers()
	m.revive(n)
	cmds := m.commandsFor(n, now)
	if !n.reported && n.report == nil && now.Sub(n.registeredAt) > m.cfg.DeleteRetry {
		cmds = append(cmds, &clusterpb.Command{Kind: clusterpb.Command_REPORT.Enum()})
		n.registeredAt = now
	}
	return &clusterpb.HeartbeatResponse{Commands: cmds}, nil
}

// BlockReport takes a part of a DataNode's list of all its replicas.
func (nn *NameNode) BlockReport(_ context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	parts := max(req.GetParts(), 1)
	if req.GetPart() >= parts || parts > maxReportParts {
		return nil, fmt.Errorf("namenode: block report of DataNode %s: part %d of %d", req.GetUuid(), req.GetPart(), parts)
	}
	var err error
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
	n := m.nodes[req.GetUuid()]
	if n == nil || !n.registered {
		return false, fmt.Errorf("namenode: block report of DataNode %s since this NameNode's start: %w: register first", req.GetUuid(), cluster.ErrNotRegistered)
	}
	now := m.cfg.now()
	n.lastSeen = now
	if req.GetPart() == 0 {
		n.report = &partialReport{id: req.GetReportId(), parts: parts, begun: now, replicas: make(map[uint64]struct{})}
	}
	rep := n.report
	if rep == nil || rep.id != req.GetReportId() || rep.parts != parts || rep.next != req.GetPart() {
		n.report = nil
		return false, fmt.Errorf("namenode: block report %d of DataNode %s: part %d of %d does not follow what came before: begin again with part 0", req.GetReportId(), req.GetUuid(), req.GetPart(), parts)
	}
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
	return true, nil
}

// sweep takes off what a full report did not name.
func (m *blockMap) sweep(ns *namespace.Namespace, n *node, rep *partialReport) {
	before := rep.begun.Add(-reportSlack)
	if n.registeredAt.After(before) {
		before = n.registeredAt
	}
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
			if r.node == n.index && r.added < before.Unix() {
				m.drop(id, n)
				m.ready = append(m.ready, id)
				break
			}
		}
	}
}

// BlocksChanged takes what has happened to single replicas.
func (nn *NameNode) BlocksChanged(_ context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	var err error
	nn.read(func(ns *namespace.Namespace) { err = nn.blocks.blocksChanged(ns, req) })
	if err != nil {
		return nil, err
	}
	return &clusterpb.BlocksChangedResponse{}, nil
}

func (m *blockMap) blocksChanged(ns *namespace.Namespace, req *clusterpb.BlocksChangedRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[req.GetUuid()]
	if n == nil {
		return fmt.Errorf("namenode: changed replicas of DataNode %s: %w: register first", req.GetUuid(), cluster.ErrNotRegistered)
	}
	n.lastSeen = m.cfg.now()
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

// mayDrop guards against giving a block up because those that have it could
// not be asked.
func (nn *NameNode) mayDrop(id uint64) error {
	var (
		b  namespace.Block
		ok bool
	)
	nn.read(func(ns *namespace.Namespace) { b, ok = ns.Recovery(id) })
	if !ok {
		return nil // that the commit will find out
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
