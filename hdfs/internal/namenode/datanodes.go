package namenode

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/hosts"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

var _ cluster.NameNode = (*NameNode)(nil)

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
	if err := checkStorages(req.GetStorages()); err != nil {
		return nil, fmt.Errorf("namenode: register DataNode %s: %w", d.GetUuid(), err)
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
	if !nn.blocks.admits(dn) {
		return nil, fmt.Errorf("namenode: register DataNode %s: the list of hosts (dfs.hosts) does not name %s: add it there, and have the NameNode read the list with hdfs dfsadmin -refreshNodes", dn.UUID, dn.Host)
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
	rack := nn.topology.Rack(ctx, dn.Host, dn.Hostname)
	keys, err := nn.blockKeys(nil)
	if err != nil {
		return nil, err
	}
	session := nn.blocks.register(dn, rack, req.GetStorages()...)
	nn.log.Info("namenode: DataNode registered", "uuid", dn.UUID, "host", dn.Host, "port", dn.Port, "rack", rack)
	return &clusterpb.RegisterResponse{
		ClusterId: &clusterID, BlockPoolId: &poolID,
		HeartbeatIntervalMs: proto.Uint32(uint32(nn.blocks.heartbeatInterval().Milliseconds())), Session: &session, BlockKeys: keys,
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

// admits tells whether the lists of hosts let a DataNode register.
func (m *blockMap) admits(dn namespace.Datanode) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ruleFor(dn).State != hosts.Refused
}

// register begins a session.
func (m *blockMap) register(dn namespace.Datanode, rack string, storages ...*clusterpb.Storage) (session uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[dn.UUID]
	if n == nil {
		n = m.addNode(dn)
	}
	for uuid, other := range m.nodes {
		// The namespace has dropped the DataNode that had this address.
		if other != n && other.dn.Host == dn.Host && other.dn.Port == dn.Port {
			other.alive, other.registered = false, false
			m.eachOf(other, func(id uint64) {
				m.drop(id, other)
				m.look(id)
			})
			delete(m.nodes, uuid)
			if m.wakeMonitor != nil {
				m.wakeMonitor()
			}
		}
	}
	now := m.cfg.now()
	n.dn = dn
	n.storages.register(dn.UUID, storages)
	n.reported = false
	n.era++
	n.session, n.sequence = rand.Uint64()|1, 0 // not 0, which is none
	n.askedAt, n.lastSeen = now, now
	n.report, n.commands = nil, nil
	wasMany := m.manyRacks()
	n.registered, n.rack = true, rack
	m.measure(n)
	m.revive(n)
	if n.service == decommissioned {
		n.service = inService // it was dead; now it has something to hand over
	}
	m.applyRule(n)
	if !wasMany && m.manyRacks() {
		m.begin(nil, &scan{visit: m.look}) // all may be on one rack
	}
	return n.session
}

// inSession returns a DataNode that has registered and says so, or nil. Whatever was
// said in an earlier session says nothing in this one, however late it comes.
func (m *blockMap) inSession(uuid string, session uint64) *node {
	if n := m.nodes[uuid]; n != nil && n.registered && session != 0 && n.session == session {
		return n
	}
	return nil
}

// revive counts a DataNode's replicas again.
func (m *blockMap) revive(n *node) {
	if n.alive {
		return
	}
	n.alive = true
	m.eachOf(n, m.look)
	for id := range m.waiting {
		if _, ok := m.replicas.find(id, n.index); ok {
			m.wake(id)
		}
	}
}

// Heartbeat notes that a DataNode lives and answers with its commands.
func (nn *NameNode) Heartbeat(_ context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	known := req.GetBlockKey()
	keys, err := nn.blockKeys(&known)
	if err != nil {
		return nil, err
	}
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.held.end(holdHeartbeat, m.held.begin())
	n := m.inSession(req.GetUuid(), req.GetSession())
	if n == nil {
		return &clusterpb.HeartbeatResponse{Commands: []*clusterpb.Command{{Kind: clusterpb.Command_REGISTER.Enum()}}}, nil
	}
	now := m.cfg.now()
	n.lastSeen = now
	for _, index := range n.storages.report(req.GetStorages()) {
		m.dropFailed(n, index)
	}
	m.measure(n)
	n.transfers = req.GetTransfers()
	m.revive(n)
	cmds := m.commandsFor(n, now)
	if (n.recount || !n.reported && n.report == nil) && now.Sub(n.askedAt) > m.cfg.DeleteRetry {
		cmds = append(cmds, &clusterpb.Command{Kind: clusterpb.Command_REPORT.Enum()})
		n.askedAt = now
	}
	return &clusterpb.HeartbeatResponse{Commands: cmds, BlockKeys: keys}, nil
}

// commandsFor empties a DataNode's queue, and repeats deletions that it has not
// confirmed within DeleteRetry. While changes are refused, all of that waits.
func (m *blockMap) commandsFor(n *node, now time.Time) (out []*clusterpb.Command) {
	if !m.frozen {
		out = slices.DeleteFunc(n.commands, func(cmd *clusterpb.Command) bool { return m.givenUp(n, cmd) })
		n.commands = nil
	}
	if m.safeMode {
		return out
	}
	count := 0
	left := scanStep // to be looked at; a map begins anywhere each time
	for id, d := range n.deletions {
		if left--; left < 0 || count == m.cfg.DeletesPerHeartbeat {
			break
		}
		if !d.sent.IsZero() && now.Sub(d.sent) < m.cfg.DeleteRetry {
			continue
		}
		if !m.mayGo(n, id, d) || m.frozen {
			continue
		}
		d.sent = now
		n.deletions[id] = d
		count++
		out = append(out, &clusterpb.Command{Kind: clusterpb.Command_DELETE.Enum(), Block: blockPB(id, d.generation, 0)})
	}
	return out
}

// givenUp tells whether a command orders a copy that nobody waits for any more, because changes were
// refused for longer than a copy may take. It takes such targets from others.
func (m *blockMap) givenUp(source *node, cmd *clusterpb.Command) bool {
	if cmd.GetKind() != clusterpb.Command_REPLICATE {
		return false
	}
	tasks := m.copying[cmd.GetBlock().GetId()]
	cmd.Targets = slices.DeleteFunc(cmd.Targets, func(d *clusterpb.Datanode) bool {
		return !slices.ContainsFunc(tasks, func(t copyTask) bool { return t.source == source && t.target.dn.UUID == d.GetUuid() })
	})
	return len(cmd.Targets) == 0
}
