package namenode

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/hosts"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/topology"
)

// blockMap knows which DataNodes there are and which replicas they have said
// to hold. All of it is soft state. A method that needs the namespace takes it
// as an argument, and its caller holds the namespace's lock, at least for
// reading: that lock comes before this one.
type blockMap struct {
	cfg *Config

	mu       sync.Mutex
	held     holds
	nodes    map[string]*node
	byIndex  []*node
	replicas replicaMap

	started  time.Time
	safeMode bool
	safe     safeCount
	// frozen says that changes are refused, by an operator or for want of room: as in HDFS no
	// DataNode is told to copy or to delete anything meanwhile.
	frozen bool

	ready      blockQueue // blocks to be looked at now
	scans      []*scan    // under way, oldest first
	delayed    []delayed  // blocks to be looked at later, ordered by time
	needed     needs      // blocks that lack replicas
	waits      blockSet   // lack replicas that may be on DataNodes yet to return after a start
	copied     time.Time  // when copies were last ordered
	copyBudget float64    // how many blocks may still be copied until the next time
	missing    blockSet   // no good replica known
	corrupt    blockSet   // with a replica marked corrupt
	copying    map[uint64][]copyTask
	// postponed have something to delete that waits for a full report, or for changes to be taken again.
	postponed *blockSet
	// due are blocks that were postponed until what has come.
	due     []*blockSet
	waiting map[uint64][]chan struct{}
	// unreported are blocks that have been followed by another one since the start while no good
	// replica was known, until one is. As in HDFS a file is not closed before, and what becomes of
	// the replicas later is in nobody's way.
	unreported blockSet
	// recovering tells since when a block\'s recovery is tried.
	recovering map[uint64]time.Time
	// doubted are blocks of which replicas were to be deleted when no other good one was known any
	// more, until they have been looked at, with the DataNodes of those replicas.
	doubted map[uint64][]*node
	// asked are the DataNodes that the recovery of a block has to ask.
	asked map[uint64][]*node
	grown chan struct{} // closed, and made anew, when a DataNode can take blocks for the first time

	hosts *hosts.List // nil: all are admitted

	wakeMonitor func() // may be nil

	poolID string
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
	// reported says that it has listed all its replicas since it registered or
	// was last dead. Until then nothing is deleted on its word; HDFS calls what
	// is known of it stale.
	reported bool
	era      uint16 // counts its registrations

	session  uint64 // since it registered
	sequence uint64 // of the session's last report that was carried out

	askedAt    time.Time // to report in full; registering is that, too
	lastSeen   time.Time
	lastReport time.Time

	storages                  storages
	capacity, used, remaining uint64 // of all of them
	transfers                 uint32
	rack                      string
	scheduled                 scheduled

	service hdfspb.DatanodeInfoProto_AdminState
	refused bool // the lists of hosts do not admit it
	// leaving are the blocks that need this DataNode's replica while it leaves the
	// service, nil if it does not.
	leaving *blockSet
	// expected says that it is known from before the start, was not dead then, and
	// has not been since.
	expected bool

	replicas int

	deletions    map[uint64]deletion
	commands     []*clusterpb.Command
	copies       int    // replications under way of which it is the source
	copyingBytes uint64 // bytes of these
	report       *partialReport
	// mark is the number of the full report that comes or came last, never 0.
	mark uint16
	// reporting is held while a report of it is carried out, which takes several holds of
	// the map's lock. It comes before both locks.
	reporting sync.Mutex
	// recount says that it has to report in full, because it may have replicas that were given up.
	recount bool
}

type deletion struct {
	generation uint64
	mark       uint16 // of the last full report that named the replica, or that came when the deletion was ordered
	// inFile says that the block was in a file, which must have another good replica when this one goes.
	inFile  bool
	doubted bool // in blockMap.doubted
	sent    time.Time
}

type copyTask struct {
	source, target *node
	length         uint64
	deadline       time.Time
}

func newBlockMap(cfg *Config) *blockMap {
	return &blockMap{
		cfg:        cfg,
		nodes:      make(map[string]*node),
		replicas:   newReplicaMap(),
		copying:    make(map[uint64][]copyTask),
		postponed:  new(blockSet),
		waiting:    make(map[uint64][]chan struct{}),
		recovering: make(map[uint64]time.Time),
		doubted:    make(map[uint64][]*node),
		asked:      make(map[uint64][]*node),
		grown:      make(chan struct{}),
	}
}

// start begins safe mode: known are the DataNodes to wait for.
func (m *blockMap) start(known []namespace.Datanode, poolID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.poolID = poolID
	m.started = m.cfg.now()
	m.safeMode = true
	for _, dn := range known {
		m.addNode(dn).expected = dn.GoneMillis == 0
	}
}

// knows tells whether a DataNode has registered, or is known from the log.
func (m *blockMap) knows(uuid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[uuid] != nil
}

func (m *blockMap) addNode(dn namespace.Datanode) *node {
	n := &node{index: uint32(len(m.byIndex)), dn: dn, rack: topology.DefaultRack, deletions: make(map[uint64]deletion)}
	m.nodes[dn.UUID] = n
	m.byIndex = append(m.byIndex, n)
	return n
}

// good tells whether a replica can be read: it is final, alive, not corrupt, and
// has the block's generation and length.
func (m *blockMap) good(b namespace.BlockInfo, r replica) bool {
	return !r.corrupt && r.state == clusterpb.ReplicaState_FINALIZED &&
		r.generation == b.Generation && r.length == b.Length && m.byIndex[r.node].alive
}

// changed follows a change of the namespace. It runs while the entry is applied.
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
		for r := range m.replicas.of(id) {
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
	m.release(id)
	for r := range m.replicas.of(id) {
		m.byIndex[r.node].replicas--
	}
	m.replicas.forget(id)
	m.needed.remove(id)
	m.waits.remove(id)
	m.missing.remove(id)
	m.corrupt.remove(id)
	m.postponed.remove(id)
	m.unreported.remove(id)
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
	if d, ok := n.deletions[id]; !ok || d.generation != generation {
		n.deletions[id] = deletion{generation: generation, mark: n.mark}
	}
}

// drop takes a replica off the map.
func (m *blockMap) drop(id uint64, n *node) {
	if m.replicas.drop(id, n.index) {
		n.replicas--
		n.leaving.remove(id)
	}
}

// put records what a DataNode says of a replica.
func (m *blockMap) put(n *node, id, generation, length uint64, st clusterpb.ReplicaState, storage uint8, fresh bool) {
	if n.storages.failed(storage) {
		return // it was said before the storage failed
	}
	was, held := m.replicas.find(id, n.index)
	r := replica{generation: generation, length: length, node: n.index, state: st, storage: storage, added: tickOf(m.cfg.now()), era: n.era, mark: was.mark}
	if held && storage == unknownStorage {
		r.storage = was.storage
	}
	if !fresh {
		r.mark = n.mark
	}
	if d, ok := n.deletions[id]; ok {
		// The DataNode has not carried out the deletion yet, whatever it says of the replica: once it
		// has, it says DELETED first. Were the replica counted, another one could go in its place.
		if generation <= d.generation {
			d.mark = n.mark
			n.deletions[id] = d
			if held {
				was.mark = n.mark
				m.replicas.put(id, was)
			}
			return
		}
		delete(n.deletions, id)
	}
	if held {
		// A full report repeats what was there before: it heals nothing.
		r.corrupt = was.corrupt && !fresh && was.generation == generation
	} else {
		n.replicas++
	}
	m.replicas.put(id, r)
	if fresh && st == clusterpb.ReplicaState_FINALIZED && (!held || was.state != st) {
		n.scheduled.done(m.cfg.now())
	}
	if n.leaving != nil {
		n.leaving.add(id)
		m.look(id)
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

// followed notes that another block follows this one, whose generation and length are final from now on. It
// runs while the entry is applied: also of a call that did not wait for that.
func (m *blockMap) followed(b namespace.BlockInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started.IsZero() {
		return // replaying the log
	}
	m.unreported.add(b.ID)
	m.noteReported(b)
}

// noteReported notes that a block has a good replica, if so. The caller has m.mu.
func (m *blockMap) noteReported(b namespace.BlockInfo) {
	if m.unreported.has(b.ID) && m.replicas.any(b.ID, func(r replica) bool { return m.good(b, r) }) {
		m.unreported.remove(b.ID)
	}
}

// unreportedOf returns those of a file's blocks that are to be reported before the file is closed. As in
// HDFS these are the one being written and what has never been reported.
func (m *blockMap) unreportedOf(blocks []namespace.Block) (out []namespace.Block) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range blocks {
		if b.Construction != nil || m.unreported.has(b.ID) {
			out = append(out, b)
		}
	}
	return out
}

// finalized returns nil if a live DataNode has reported such a replica. Otherwise
// it returns a channel that closes when something about the block's replicas has
// changed. Whoever stops waiting before that calls cancel.
func (m *blockMap) finalized(id, generation, length uint64) (changed chan struct{}, cancel func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	want := namespace.BlockInfo{ID: id, Generation: generation, Length: length}
	for r := range m.replicas.of(id) {
		if m.good(want, r) {
			return nil, nil
		}
	}
	c := make(chan struct{})
	m.waiting[id] = append(m.waiting[id], c)
	return c, func() { m.stopWaiting(id, c) }
}

func (m *blockMap) stopWaiting(id uint64, c chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ws := slices.DeleteFunc(m.waiting[id], func(w chan struct{}) bool { return w == c })
	if len(ws) == 0 {
		delete(m.waiting, id)
	} else {
		m.waiting[id] = ws
	}
}

// markCorrupt marks a replica that failed its checksums.
func (m *blockMap) markCorrupt(ns *namespace.Namespace, id uint64, n *node) {
	if r, ok := m.replicas.find(id, n.index); ok && !r.corrupt {
		r.corrupt = true
		m.replicas.put(id, r)
		m.corrupt.add(id)
		m.look(id)
		m.cfg.Logger.Warn("namenode: corrupt replica", "block", id, "datanode", n.dn.UUID, "host", n.dn.Host, "port", n.dn.Port)
	}
}

func (n *node) String() string { return fmt.Sprintf("%s (%s:%d)", n.dn.UUID, n.dn.Host, n.dn.Port) }
