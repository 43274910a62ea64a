package namenode

import (
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/internal/cow"
)

// replica is one DataNode's copy of a block, as last reported.
type replica struct {
	generation uint64
	length     uint64
	added      tick
	node       uint32
	era        uint16 // of its DataNode when this was said
	// mark is the number of its DataNode's last full report that named it.
	mark    uint16
	state   clusterpb.ReplicaState
	corrupt bool
	storage uint8 // of its DataNode, see [storages]
}

// tick is a time in tenths of a second, of which it has the lower 32 bits.
type tick uint32

func tickOf(t time.Time) tick { return tick(t.UnixMilli() / 100) }

// before compares times that are less than six years apart.
func (t tick) before(other tick) bool { return int32(t-other) < 0 }

// replicaMap has the replicas of all blocks. A block with the usual ones, at most three
// that agree in generation and length, takes 56 bytes; the others have lists. It does not
// know which blocks a DataNode holds: that is found out by [blockMap.begin].
type replicaMap struct {
	pages cow.Map[replicaPage] // by block id / 64
	lists map[uint64][]replica
	count int // blocks
}

// replicaPage has what is known of 64 blocks: a bit for each that has something, and
// that in the order of ids.
type replicaPage struct {
	used  uint64
	slots []slot
}

// slot has a block's replicas.
type slot struct {
	generation, length uint64
	at                 [3]location
	count              uint8 // 0: they are in lists
}

type location struct {
	added     tick
	node      uint16
	era, mark uint16
	state     uint8 // the highest bit: it is corrupt
	storage   uint8
}

const corruptBit = 1 << 7

func newReplicaMap() replicaMap { return replicaMap{lists: make(map[uint64][]replica)} }

func (p *replicaPage) index(id uint64) int {
	return bits.OnesCount64(p.used & (1<<(id&63) - 1))
}

func (m *replicaMap) slot(id uint64) *slot {
	p := m.pages.Get(id >> 6)
	if p == nil || p.used>>(id&63)&1 == 0 {
		return nil
	}
	return &p.slots[p.index(id)]
}

func (s *slot) replica(i int) replica {
	l := &s.at[i]
	return replica{
		generation: s.generation, length: s.length, added: l.added, node: uint32(l.node), era: l.era, mark: l.mark,
		state: clusterpb.ReplicaState(l.state &^ corruptBit), corrupt: l.state&corruptBit != 0, storage: l.storage,
	}
}

// of iterates over a block's replicas as they are at its beginning.
func (m *replicaMap) of(id uint64) iter.Seq[replica] {
	return func(yield func(replica) bool) {
		found := m.slot(id)
		if found == nil {
			return
		}
		s := *found
		if s.count == 0 {
			for _, r := range slices.Clone(m.lists[id]) {
				if !yield(r) {
					return
				}
			}
		}
		for i := range int(s.count) {
			if !yield(s.replica(i)) {
				return
			}
		}
	}
}

// find returns the replica that a DataNode has of a block.
func (m *replicaMap) find(id uint64, node uint32) (replica, bool) {
	s := m.slot(id)
	if s == nil {
		return replica{}, false
	}
	for i := range int(s.count) {
		if uint32(s.at[i].node) == node {
			return s.replica(i), true
		}
	}
	if s.count == 0 {
		for _, r := range m.lists[id] {
			if r.node == node {
				return r, true
			}
		}
	}
	return replica{}, false
}

// put sets the replica that a DataNode has of a block.
func (m *replicaMap) put(id uint64, r replica) {
	switch s := m.slot(id); {
	case s == nil:
		s := slot{generation: r.generation, length: r.length}
		if s.place(r) {
			m.set(id, s)
			return
		}
	case s.count > 0 && s.generation == r.generation && s.length == r.length && s.place(r):
		return
	}
	rs := slices.AppendSeq(make([]replica, 0, 4), m.of(id))
	if i := slices.IndexFunc(rs, func(o replica) bool { return o.node == r.node }); i >= 0 {
		rs[i] = r
	} else {
		rs = append(rs, r)
	}
	m.store(id, rs)
}

// place puts a replica among those of a slot that it agrees with, if there is room.
func (s *slot) place(r replica) bool {
	if r.node > 1<<16-1 || r.state >= corruptBit || r.state < 0 {
		return false
	}
	i := 0
	for i < int(s.count) && uint32(s.at[i].node) != r.node {
		i++
	}
	if i == len(s.at) {
		return false
	}
	s.at[i] = location{added: r.added, node: uint16(r.node), era: r.era, mark: r.mark, state: uint8(r.state), storage: r.storage}
	if r.corrupt {
		s.at[i].state |= corruptBit
	}
	s.count = max(s.count, uint8(i)+1)
	return true
}

// drop takes a DataNode's replica of a block away and tells whether there was one.
func (m *replicaMap) drop(id uint64, node uint32) bool {
	s := m.slot(id)
	if s == nil {
		return false
	}
	rs := slices.AppendSeq(make([]replica, 0, 4), m.of(id))
	i := slices.IndexFunc(rs, func(o replica) bool { return o.node == node })
	if i < 0 {
		return false
	}
	m.store(id, slices.Delete(rs, i, i+1))
	return true
}

// store makes rs the replicas of a block.
func (m *replicaMap) store(id uint64, rs []replica) {
	if len(rs) == 0 {
		m.forget(id)
		return
	}
	s := slot{generation: rs[0].generation, length: rs[0].length}
	for _, r := range rs {
		if r.generation != s.generation || r.length != s.length || !s.place(r) {
			s = slot{}
			break
		}
	}
	if s.count == 0 {
		m.lists[id] = rs
	} else {
		delete(m.lists, id)
	}
	m.set(id, s)
}

func (m *replicaMap) set(id uint64, s slot) {
	p := m.pages.Change(id >> 6)
	if p == nil {
		p = m.pages.Put(id>>6, replicaPage{})
	}
	i := p.index(id)
	if p.used>>(id&63)&1 == 1 {
		p.slots[i] = s
		return
	}
	m.count++
	p.used |= 1 << (id & 63)
	if len(p.slots) == cap(p.slots) {
		p.slots = append(make([]slot, 0, min(64, 4*cap(p.slots)+1)), p.slots...)
	}
	p.slots = slices.Insert(p.slots, i, s)
}

// sparePages is memory for pages that a report will fill, made while no lock is held.
type sparePages struct {
	wanted []uint64 // the pages of which the report names so many blocks that they will be full
	free   [][]slot // of 64 each
}

// fullPage is from how many blocks of a page on it gets room for all 64 at once.
const fullPage = 48

// provide makes what replicas, in the order of their blocks, may need.
func (s *sparePages) provide(replicas []*clusterpb.Replica) {
	s.wanted = s.wanted[:0]
	for len(replicas) > 0 {
		page := replicas[0].GetBlock().GetId() >> 6
		n := 1
		for n < len(replicas) && replicas[n].GetBlock().GetId()>>6 == page {
			n++
		}
		if n >= fullPage {
			s.wanted = append(s.wanted, page)
		}
		replicas = replicas[n:]
	}
	for len(s.free) < len(s.wanted) {
		page := make([]slot, 64)
		page[0].count, page[63].count = 1, 1 // the system finds memory at the first touch: now, not under the lock
		s.free = append(s.free, page[:0])
	}
}

// reserve gives a page that is not there yet room for all its blocks.
func (m *replicaMap) reserve(page uint64, spare *sparePages) {
	if m.pages.Get(page) != nil {
		return
	}
	last := len(spare.free) - 1
	m.pages.Put(page, replicaPage{slots: spare.free[last]})
	spare.free = spare.free[:last]
}

// tidy drops a page that was reserved and has stayed empty.
func (m *replicaMap) tidy(page uint64) {
	if p := m.pages.Get(page); p != nil && p.used == 0 {
		m.pages.Delete(page)
	}
}

// forget drops all replicas of a block.
func (m *replicaMap) forget(id uint64) {
	p := m.pages.Change(id >> 6)
	if p == nil || p.used>>(id&63)&1 == 0 {
		return
	}
	m.count--
	delete(m.lists, id)
	i := p.index(id)
	p.used &^= 1 << (id & 63)
	if p.used == 0 {
		m.pages.Delete(id >> 6)
		return
	}
	p.slots = slices.Delete(p.slots, i, i+1)
	if len(p.slots) <= cap(p.slots)/4 {
		p.slots = slices.Clone(p.slots)
	}
}

// any tells whether a replica of a block is as asked for.
func (m *replicaMap) any(id uint64, is func(replica) bool) bool {
	for r := range m.of(id) {
		if is(r) {
			return true
		}
	}
	return false
}

// walk visits about limit blocks from start on, in the order of their ids, and returns
// where to go on; done is true if there are no more. What visit drops is not visited again.
func (m *replicaMap) walk(start uint64, limit int, visit func(id uint64)) (next uint64, done bool) {
	var ids [64]uint64
	for limit > 0 {
		var page uint64
		n := 0
		for at, p := range m.pages.From(start >> 6) {
			page = at
			for used := p.used; used != 0; used &= used - 1 {
				ids[n] = at<<6 | uint64(bits.TrailingZeros64(used))
				n++
			}
			break
		}
		if n == 0 {
			return 0, true
		}
		for _, id := range ids[:n] {
			visit(id)
		}
		limit -= n
		if page == 1<<58-1 {
			return 0, true
		}
		start = (page + 1) << 6
	}
	return start, false
}
