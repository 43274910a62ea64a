package namenode

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace"
)

// blockMap knows which DataNodes there are and which replicas they have said
// to hold. All of it is soft state. Where it needs the namespace it takes it as
// an argument, held by the caller at least for reading: the namespace's lock always comes
// before this one.
type blockMap struct {
	cfg *Config

	mu       sync.Mutex
	nodes    map[string]*node
	byIndex  []*node
	replicas map[uint64][]replica

	started  time.Time
	safeMode bool

	ready   []uint64        // blocks to be looked at now
	delayed []delayed       // those to be looked at later, in that order
	stuck   map[uint64]bool // under-replicated, and no DataNode could take a replica
	missing map[uint64]bool // no good replica known
	corrupt map[uint64]bool // with a replica marked corrupt
	copying map[uint64][]copyTask
	waiting map[uint64][]chan struct{}
	grown   chan struct{} // closed, and made anew, when a DataNode can take blocks for the first time

	clusterID, poolID string
}

type delayed struct {
	block uint64
	at    time.Time
}

// node is one DataNode.
type node struct {
	index      uint32
	dn         namespace.Datanode
	alive      bool
	registered bool // since this NameNode's start
	reported   bool // all its replicas, since it registered

	registeredAt time.Time
	lastSeen     time.Time
	lastReport   time.Time

	capacity, used, remaining uint64
	transfers                 uint32
	replicas                  int

	deletions    map[uint64]*deletion
	commands     []*clusterpb.Command
	copies       int    // replications it is the source of
	copyingBytes uint64 // of these
	report       *partialReport
}

type deletion struct {
	generation uint64
	sent       time.Time
}

type copyTask struct {
	source, target *node
	length         uint64
	deadline       time.Time
}

// replica is one DataNode's copy of a block, as last reported.
type replica struct {
	generation uint64
	length     uint64
	added      int64 // Unix seconds
	node       uint32
	state      clusterpb.ReplicaState
	corrupt    bool
}

// What one DataNode may be told to copy at a time.
const (
	maxCopies    = 64
	maxCopyBytes = 512 << 20
	maxDeletes   = 4096 // in one heartbeat
)

func newBlockMap(cfg *Config) *blockMap {
	return &blockMap{
		cfg:      cfg,
		nodes:    make(map[string]*node),
		replicas: make(map[uint64][]replica),
		stuck:    make(map[uint64]bool),
		missing:  make(map[uint64]bool),
		corrupt:  make(map[uint64]bool),
		copying:  make(map[uint64][]copyTask),
		waiting:  make(map[uint64][]chan struct{}),
		grown:    make(chan struct{}),
	}
}

// start begins safe mode: known are the DataNodes to wait for.
func (m *blockMap) start(known []namespace.Datanode, clusterID, poolID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clusterID, m.poolID = clusterID, poolID
	m.started = m.cfg.now()
	m.safeMode = true
	for _, dn := range known {
		m.addNode(dn)
	}
}

func (m *blockMap) inSafeMode() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.safeMode
}

func (m *blockMap) addNode(dn namespace.Datanode) *node {
	n := &node{index: uint32(len(m.byIndex)), dn: dn, deletions: make(map[uint64]*deletion)}
	m.nodes[dn.UUID] = n
	m.byIndex = append(m.byIndex, n)
	return n
}

// good tells whether a replica is one of the block as it should be.
func (m *blockMap) good(b namespace.BlockInfo, r replica) bool {
	return !r.corrupt && r.state == clusterpb.ReplicaState_FINALIZED &&
		r.generation == b.Generation && r.length == b.Length && m.byIndex[r.node].alive
}

// changed follows the namespace; it runs within the application of an entry.
func (m *blockMap) changed(ns *namespace.Namespace, touched, removed []uint64) {
	if len(touched) == 0 && len(removed) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started.IsZero() {
		return // replaying the log: nobody has reported anything yet
	}
	for _, id := range removed {
		for _, r := range m.replicas[id] {
			m.deleteFrom(m.byIndex[r.node], id, r.generation)
		}
		m.forget(id)
	}
	at := m.cfg.now().Add(m.cfg.RepairDelay)
	for _, id := range touched {
		m.delayed = append(m.delayed, delayed{id, at})
	}
}

func (m *blockMap) forget(id uint64) {
	for _, r := range m.replicas[id] {
		m.byIndex[r.node].replicas--
	}
	delete(m.replicas, id)
	delete(m.stuck, id)
	delete(m.missing, id)
	delete(m.corrupt, id)
	for _, t := range m.copying[id] {
		t.source.copied(t)
	}
	delete(m.copying, id)
	m.wake(id)
}

func (n *node) copied(t copyTask) {
	n.copies--
	n.copyingBytes -= t.length
}

func (m *blockMap) deleteFrom(n *node, id, generation uint64) {
	if d := n.deletions[id]; d == nil || d.generation != generation {
		n.deletions[id] = &deletion{generation: generation}
	}
}

// drop takes a replica off the map.
func (m *blockMap) drop(id uint64, n *node) {
	rs := m.replicas[id]
	i := slices.IndexFunc(rs, func(r replica) bool { return r.node == n.index })
	if i < 0 {
		return
	}
	n.replicas--
	rs[i] = rs[len(rs)-1]
	rs = rs[:len(rs)-1]
	if len(rs) == 0 {
		delete(m.replicas, id)
		return
	}
	m.replicas[id] = rs
}

// put records what a DataNode says of a replica.
func (m *blockMap) put(n *node, id, generation, length uint64, st clusterpb.ReplicaState, fresh bool) {
	if d := n.deletions[id]; d != nil {
		if !fresh {
			return // it has not got to the deletion yet
		}
		if generation > d.generation {
			delete(n.deletions, id)
		}
	}
	rs := m.replicas[id]
	i := slices.IndexFunc(rs, func(r replica) bool { return r.node == n.index })
	r := replica{generation: generation, length: length, node: n.index, state: st, added: m.cfg.now().Unix()}
	if i >= 0 {
		// A report of what has been there all the time does not heal it.
		r.corrupt = rs[i].corrupt && !fresh && rs[i].generation == generation
		rs[i] = r
	} else {
		n.replicas++
		m.replicas[id] = append(rs, r)
	}
	if st == clusterpb.ReplicaState_FINALIZED {
		m.arrived(id, n)
		m.wake(id)
	}
}

// arrived ends the copy that a DataNode was the target of.
func (m *blockMap) arrived(id uint64, n *node) {
	tasks := m.copying[id]
	if len(tasks) == 0 {
		return
	}
	tasks = slices.DeleteFunc(tasks, func(t copyTask) bool {
		if t.target == n {
			t.source.copied(t)
			return true
		}
		return false
	})
	if len(tasks) == 0 {
		delete(m.copying, id)
		return
	}
	m.copying[id] = tasks
}

func (m *blockMap) wake(id uint64) {
	for _, c := range m.waiting[id] {
		close(c)
	}
	delete(m.waiting, id)
}

// finalized returns nil if a live DataNode has reported such a replica, and otherwise
// a channel that closes when something about the block has changed, and what to call when no longer interested.
func (m *blockMap) finalized(id, generation, length uint64) (changed chan struct{}, cancel func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	want := namespace.BlockInfo{ID: id, Generation: generation, Length: length}
	for _, r := range m.replicas[id] {
		if m.good(want, r) {
			return nil, nil
		}
	}
	c := make(chan struct{})
	m.waiting[id] = append(m.waiting[id], c)
	return c, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		ws := slices.DeleteFunc(m.waiting[id], func(w chan struct{}) bool { return w == c })
		if len(ws) == 0 {
			delete(m.waiting, id)
		} else {
			m.waiting[id] = ws
		}
	}
}

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
		} else if r.state != clusterpb.ReplicaState_BEING_WRITTEN {
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
		n.alive = false
		n.commands, n.report = nil, nil
		m.cfg.Logger.Warn("namenode: DataNode is dead", "uuid", n.dn.UUID, "host", n.dn.Host, "port", n.dn.Port, "silent", now.Sub(n.lastSeen))
		for id, rs := range m.replicas {
			if slices.ContainsFunc(rs, func(r replica) bool { return r.node == n.index }) {
				m.ready = append(m.ready, id)
			}
		}
	}
}

func (m *blockMap) checkSafeMode(ns *namespace.Namespace, now time.Time) {
	if now.Sub(m.started) < m.cfg.SafeModeTimeout {
		for _, dn := range ns.Datanodes() {
			if n := m.nodes[dn.UUID]; n == nil || !n.reported {
				return
			}
		}
	}
	m.leaveSafeMode(ns)
}

func (m *blockMap) leaveSafeMode(ns *namespace.Namespace) {
	m.safeMode = false
	m.cfg.Logger.Info("namenode: leaving safe mode", "after", m.cfg.now().Sub(m.started))
	ns.EachBlock(func(id uint64) bool {
		m.ready = append(m.ready, id)
		return true
	})
	for id := range m.replicas {
		if _, ok := ns.Block(id); !ok {
			m.ready = append(m.ready, id)
		}
	}
}

// settle compares a block's replicas with what is wanted, and orders what is
// needed: copies, deletions of what is too much or bad. It never orders the
// deletion of the last good replica, nor of any bad one before a good one is known.
func (m *blockMap) settle(ns *namespace.Namespace, id uint64, now time.Time) {
	b, ok := ns.Block(id)
	if !ok {
		m.orphan(ns, id)
		return
	}
	if b.Writing {
		return
	}
	var good, bad []*node
	var corrupt bool
	for _, r := range m.replicas[id] {
		n := m.byIndex[r.node]
		corrupt = corrupt || r.corrupt
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
	switch {
	case have < b.Replication:
		m.copy(b, good, bad, b.Replication-have, now)
	case len(good) > b.Replication:
		m.trim(b, good)
	}
	if len(good) >= b.Replication {
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

// orphan orders the deletion of the replicas of a block that is in no file. An
// id that was never given out is left alone: the namespace may be older than
// the DataNode, and its replicas are then all there is of something.
func (m *blockMap) orphan(ns *namespace.Namespace, id uint64) {
	if id >= ns.NextBlock() {
		if len(m.replicas[id]) > 0 {
			m.cfg.Logger.Warn("namenode: DataNodes have a block that was never allocated here; it is kept. Is this namespace an old copy?", "block", id)
		}
		return
	}
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

func (m *blockMap) trim(b namespace.BlockInfo, good []*node) {
	// The fullest first.
	sort.Slice(good, func(i, j int) bool { return good[i].remaining < good[j].remaining })
	for _, n := range good[:len(good)-b.Replication] {
		m.deleteReplica(b.ID, n)
	}
}

func (m *blockMap) copy(b namespace.BlockInfo, good, bad []*node, want int, now time.Time) {
	exclude := make(map[*node]bool)
	for _, r := range m.replicas[b.ID] {
		exclude[m.byIndex[r.node]] = true
	}
	for _, t := range m.copying[b.ID] {
		exclude[t.target] = true
	}
	for _, n := range m.nodes {
		if n.deletions[b.ID] != nil {
			exclude[n] = true
		}
	}
	targets := m.choose(want, exclude, "", b.Length)
	if len(targets) == 0 {
		m.stuck[b.ID] = true
		if len(m.copying[b.ID]) == 0 && len(bad) > 0 {
			// Nowhere to go but where a bad replica stands: that goes, and the
			// report that it is gone brings the block back here.
			m.deleteReplica(b.ID, bad[0])
		}
		return
	}
	var source *node
	for _, n := range good {
		if n.copies < maxCopies && (n.copies == 0 || n.copyingBytes+b.Length <= maxCopyBytes) && (source == nil || n.copies < source.copies) {
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
		source.copies++
		source.copyingBytes += b.Length
	}
	source.commands = append(source.commands, cmd)
	if len(targets) < want {
		m.stuck[b.ID] = true
	}
}

// later puts a block at the end of the delayed ones. A little late does no harm; out of order would.
func (m *blockMap) later(id uint64, now time.Time) {
	at := now.Add(m.cfg.CheckInterval)
	if n := len(m.delayed); n > 0 && m.delayed[n-1].at.After(at) {
		at = m.delayed[n-1].at
	}
	m.delayed = append(m.delayed, delayed{id, at})
}

// choose picks up to want live DataNodes with room, at random but with favour for
// free space; the first one on the host local if there is one.
func (m *blockMap) choose(want int, exclude map[*node]bool, local string, room uint64) []*node {
	var candidates []*node
	for _, n := range m.byIndex {
		if n.alive && n.registered && !exclude[n] && n.remaining >= room && m.nodes[n.dn.UUID] == n {
			candidates = append(candidates, n)
		}
	}
	var out []*node
	take := func(i int) {
		out = append(out, candidates[i])
		candidates[i] = candidates[len(candidates)-1]
		candidates = candidates[:len(candidates)-1]
	}
	if local != "" && want > 0 {
		var here []int
		for i, n := range candidates {
			if n.dn.Host == local {
				here = append(here, i)
			}
		}
		if len(here) > 0 {
			take(here[rand.IntN(len(here))])
		}
	}
	for len(out) < want && len(candidates) > 0 {
		// The better of two at random fills evenly without everybody's writing
		// to the emptiest one.
		i, j := rand.IntN(len(candidates)), rand.IntN(len(candidates))
		if candidates[j].remaining > candidates[i].remaining {
			i = j
		}
		take(i)
	}
	return out
}

func blockPB(id, generation, length uint64) *clusterpb.Block {
	return &clusterpb.Block{Id: proto.Uint64(id), Generation: proto.Uint64(generation), Length: proto.Uint64(length)}
}

func datanodePB(dn namespace.Datanode) *clusterpb.Datanode {
	return &clusterpb.Datanode{Uuid: proto.String(dn.UUID), Host: proto.String(dn.Host), Port: proto.Uint32(dn.Port), Hostname: proto.String(dn.Hostname)}
}

// commandsFor empties a DataNode's queue, and repeats deletions that are late.
func (m *blockMap) commandsFor(n *node, now time.Time) []*clusterpb.Command {
	out := n.commands
	n.commands = nil
	if m.safeMode {
		return out
	}
	count := 0
	for id, d := range n.deletions {
		if count == maxDeletes {
			break
		}
		if !d.sent.IsZero() && now.Sub(d.sent) < m.cfg.DeleteRetry {
			continue
		}
		d.sent = now
		count++
		out = append(out, &clusterpb.Command{Kind: clusterpb.Command_DELETE.Enum(), Block: blockPB(id, d.generation, 0)})
	}
	return out
}

// located is a block's replicas as a client may use them.
type located struct {
	nodes   []*node
	corrupt bool // all of them
}

// locate returns where a block can be read, those on the reader's host first,
// or, while it is written, where that happens. The caller has m.mu.
func (m *blockMap) locate(id uint64, b namespace.Block, local string) located {
	var out located
	if b.Construction != nil {
		for _, uuid := range b.Construction.Targets {
			if n := m.nodes[uuid]; n != nil && n.alive {
				out.nodes = append(out.nodes, n)
			}
		}
		for _, r := range m.replicas[id] {
			n := m.byIndex[r.node]
			if n.alive && !r.corrupt && r.generation >= b.Generation && !slices.Contains(out.nodes, n) {
				out.nodes = append(out.nodes, n)
			}
		}
		return out
	}
	info := namespace.BlockInfo{ID: id, Generation: b.Generation, Length: b.Length}
	var bad []*node
	for _, r := range m.replicas[id] {
		switch n := m.byIndex[r.node]; {
		case m.good(info, r):
			out.nodes = append(out.nodes, n)
		case n.alive && r.corrupt && r.generation == b.Generation:
			bad = append(bad, n)
		}
	}
	if len(out.nodes) == 0 {
		out.nodes, out.corrupt = bad, len(bad) > 0
	}
	rand.Shuffle(len(out.nodes), func(i, j int) { out.nodes[i], out.nodes[j] = out.nodes[j], out.nodes[i] })
	if local != "" {
		slices.SortStableFunc(out.nodes, func(a, b *node) int {
			switch {
			case a.dn.Host == local && b.dn.Host != local:
				return -1
			case a.dn.Host != local && b.dn.Host == local:
				return 1
			}
			return 0
		})
	}
	return out
}

// markCorrupt marks a replica that failed its checksums.
func (m *blockMap) markCorrupt(ns *namespace.Namespace, id uint64, n *node) {
	for i := range m.replicas[id] {
		if r := &m.replicas[id][i]; r.node == n.index && !r.corrupt {
			r.corrupt = true
			m.corrupt[id] = true
			m.ready = append(m.ready, id)
			m.cfg.Logger.Warn("namenode: corrupt replica", "block", id, "datanode", n.dn.UUID, "host", n.dn.Host, "port", n.dn.Port)
		}
	}
}

func (n *node) String() string { return fmt.Sprintf("%s (%s:%d)", n.dn.UUID, n.dn.Host, n.dn.Port) }
