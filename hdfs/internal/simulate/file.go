package simulate

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// model is what has been acknowledged to the clients.
type model struct {
	mu      sync.Mutex
	files   []*modelFile
	losses  map[string]losses      // by host
	damaged map[string]time.Time   // by host: when its disk last was
	harmed  map[string]bool        // hosts whose disk was, in this round
	lost    map[string]time.Time   // by host: when that was so, or it lost power
	settled map[uint64]*settlement // by block: its last recovery
}

func newModel() *model {
	return &model{losses: map[string]losses{}, damaged: map[string]time.Time{}, harmed: map[string]bool{}, lost: map[string]time.Time{}, settled: map[uint64]*settlement{}}
}

// losses are how often a machine has lost something.
type losses struct {
	power  int // what was not synced
	damage int // anything
}

// A settlement is the end of a block's recovery: on these hosts, of which some have had their disks
// damaged since, or lost power, if not both. Without hosts a pipeline has gone on under that generation.
type settlement struct {
	generation uint64
	hosts      map[string]bool
	damaged    map[string]bool
	lost       map[string]bool
}

// settlesWithin is how long before a recovery is committed its hosts may have settled.
const settlesWithin = time.Minute

// recovered tells on which hosts a recovery has settled a block. As in HDFS it goes on with those that
// answer, so that one whose disk is damaged a moment later may have been the only one. What the others
// have is of an older generation from then on, and nobody uses it.
func (m *model) recovered(id, generation uint64, hosts []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.settled[id]; last != nil && last.generation >= generation {
		return // told again
	}
	s := &settlement{generation: generation, hosts: map[string]bool{}, damaged: map[string]bool{}, lost: map[string]bool{}}
	for _, h := range hosts {
		s.hosts[h] = true
		if at, ok := m.damaged[h]; ok && time.Since(at) < settlesWithin {
			s.damaged[h] = true
		}
		if at, ok := m.lost[h]; ok && time.Since(at) < settlesWithin {
			s.lost[h] = true
		}
	}
	m.settled[id] = s
	m.findAdrift()
}

// findAdrift marks the blocks whose last recovery went on with hosts that have all lost power since,
// or more. mu is held.
func (m *model) findAdrift() {
	for _, f := range m.files {
		for _, b := range f.blocks {
			s := m.settled[b.id]
			b.adrift = s != nil && len(s.hosts) > 0 && !anyBut(s.hosts, s.lost)
		}
	}
}

// gone tells that all hosts which the last recovery of a block settled on have had their disks damaged.
// mu is held.
func (m *model) gone(id uint64) bool {
	s := m.settled[id]
	return s != nil && len(s.hosts) > 0 && !anyBut(s.hosts, s.damaged)
}

func (m *model) forgetRecoveries() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.settled)
	clear(m.harmed)
}

// promised is f's promised, with what recoveries have given up of the blocks that it has, and
// the record that says why. Recoveries may go on meanwhile, as with judge, excuse and settle.
func (m *model) promised(f *modelFile, blocks []*hdfspb.LocatedBlockProto) (bytes int, all bool, record string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.lostFrom = nil
	at := 0
	for _, b := range blocks {
		if m.gone(b.GetB().GetBlockId()) {
			f.lostFrom = &at
			break
		}
		at += int(b.GetB().GetNumBytes())
	}
	bytes, all = f.promised()
	return bytes, all, f.record()
}

func (m *model) judge(f *modelFile, got []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f.judge(got)
}

func (m *model) excuse(f *modelFile) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f.excuse()
}

func (m *model) settle(f *modelFile, path string, length int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.settle(path, length)
}

// modelFile is a file as its only writer knows it. The writer changes it with the
// model's lock held.
type modelFile struct {
	paths  []string // it is at one of them
	maybe  bool     // it may not exist: its creation or its deletion had no answer
	data   []byte   // all that was ever written, acknowledged or not
	least  int      // bytes that were there before the blocks below
	blocks []*modelBlock
	closed bool // with just the length of data
	open   bool // somebody writes it
	failed bool // its writer was refused or lost; it may be open still
	gone   bool
	// lostFrom is the first byte that may be gone because a recovery settled on hosts that have all been
	// damaged since, nil: there is none.
	lostFrom *int
}

// modelBlock is a block that was written in this round.
type modelBlock struct {
	id            uint64
	start         int
	acked, synced int             // bytes of it
	nodes         map[string]bool // hosts of the last pipeline that has acknowledged
	syncedNodes   map[string]bool // and that of the last hsync
	lost          map[string]bool // of these have lost what was not synced
	damaged       map[string]bool // and these anything
	adrift        bool            // see findAdrift
	more          bool            // a truncation that may not have been carried out has taken bytes from acked
}

// powerless tells whether all who have acknowledged, or that a recovery has gone on with, have
// lost what was not synced.
func (b *modelBlock) powerless() bool { return !anyBut(b.nodes, b.lost) || b.adrift }

func (f *modelFile) String() string { return f.paths[0] }

// lastBlock returns the record of a block, a new one if it is new.
func (f *modelFile) block(id uint64, start int) *modelBlock {
	for _, b := range f.blocks {
		if b.id == id {
			return b
		}
	}
	b := &modelBlock{id: id, start: start, lost: map[string]bool{}, damaged: map[string]bool{}}
	f.blocks = append(f.blocks, b)
	return b
}

// loses tells of a power cut, or, if it is for good, of a disk that has lost what was synced.
func (m *model) loses(host string, forGood bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.losses[host]
	if forGood {
		l.damage++
	} else {
		l.power++
	}
	m.losses[host] = l
	if forGood {
		m.damaged[host], m.harmed[host] = time.Now(), true
		for _, s := range m.settled {
			s.damaged[host] = true
		}
	}
	m.lost[host] = time.Now()
	for _, s := range m.settled {
		s.lost[host] = true
	}
	m.findAdrift()
	for _, f := range m.files {
		for _, b := range f.blocks {
			b.lost[host] = true
			if forGood {
				b.damaged[host] = true
			}
		}
	}
}

// promised is how many bytes of the file must be there, and whether all that were ever
// acknowledged: false if all machines that had acknowledged some of them lost power
// before these were synced, or all that a recovery went on with were damaged.
func (f *modelFile) promised() (bytes int, all bool) {
	bytes, all = f.promisedByWriters()
	if f.lostFrom != nil {
		return min(bytes, *f.lostFrom), false
	}
	return bytes, all
}

// promisedByWriters is promised as the pipelines have acknowledged.
func (f *modelFile) promisedByWriters() (bytes int, all bool) {
	bytes = f.least
	for _, b := range f.blocks {
		kept := b.acked
		if b.powerless() {
			kept = 0
			if anyBut(b.syncedNodes, b.damaged) {
				kept = b.synced
			}
		}
		switch {
		case kept > 0:
			bytes = max(bytes, b.start+kept)
		case !anyBut(b.nodes, b.damaged):
			bytes = min(bytes, b.start) // what was there before is under an older generation
		}
		if kept < b.acked || b.more && b.powerless() {
			return bytes, false
		}
	}
	return bytes, true
}

// excuse tells why acknowledged bytes of a file may be gone: what became of those that had
// acknowledged the first block of which some may be.
func (f *modelFile) excuse() string {
	for _, b := range f.blocks {
		switch damaged := len(b.damaged) > 0 && anyOf(b.nodes, b.damaged); {
		case !b.powerless():
		case b.synced == b.acked && anyBut(b.syncedNodes, b.damaged):
		case !anyBut(b.nodes, b.damaged):
			return "every holder's disk was damaged"
		case damaged:
			return "a holder's disk was damaged, the others lost power before an hsync"
		default:
			return "every holder lost power before an hsync"
		}
	}
	if f.lostFrom != nil {
		return "the disks of all that a recovery went on with were damaged"
	}
	return "none"
}

// acknowledged is how many bytes of the file were ever acknowledged.
func (f *modelFile) acknowledged() int {
	n := f.least
	for _, b := range f.blocks {
		n = max(n, b.start+b.acked)
	}
	return n
}

// anyOf tells whether some of the hosts are in a set.
func anyOf(hosts, set map[string]bool) bool {
	for h := range hosts {
		if set[h] {
			return true
		}
	}
	return false
}

// anyBut tells whether there are others than those in but.
func anyBut(hosts, but map[string]bool) bool {
	for h := range hosts {
		if !but[h] {
			return true
		}
	}
	return false
}

// settle begins a new round: all is as it was read.
func (f *modelFile) settle(path string, length int) {
	f.paths, f.maybe = []string{path}, false
	f.data = f.data[:length]
	f.least, f.blocks = length, nil
	f.closed, f.open, f.failed = true, false, false
	f.lostFrom = nil
}

// judge compares what was read of a file with what was promised.
func (f *modelFile) judge(got []byte) error {
	least, _ := f.promised()
	if len(got) < least {
		return fmt.Errorf("LOST BYTES: %s has %d bytes, %d were acknowledged (%s)", f, len(got), least, f.record())
	}
	if len(got) > len(f.data) {
		return fmt.Errorf("WRONG BYTES: %s has %d bytes, %d were ever written", f, len(got), len(f.data))
	}
	if err := sameBytes(f.data, got, 0); err != nil {
		return fmt.Errorf("%w of %s", err, f)
	}
	if _, all := f.promised(); f.closed && all && len(got) != len(f.data) {
		return fmt.Errorf("LOST BYTES: %s was closed with %d bytes and has %d", f, len(f.data), len(got))
	}
	return nil
}

func (f *modelFile) record() string {
	out := fmt.Sprintf("before this round %d", f.least)
	for _, b := range f.blocks {
		out += fmt.Sprintf("; block %d from %d: %d acknowledged by %v, %d synced", b.id, b.start, b.acked, slices.Sorted(maps.Keys(b.nodes)), b.synced)
	}
	return out
}

// sameBytes compares bytes at an offset with those written.
func sameBytes(written, got []byte, at int) error {
	if at+len(got) > len(written) {
		return fmt.Errorf("WRONG BYTES: bytes %d to %d, %d were ever written", at, at+len(got), len(written))
	}
	for i, c := range got {
		if c != written[at+i] {
			return fmt.Errorf("WRONG BYTES: byte %d is %#x, %#x was written", at+i, c, written[at+i])
		}
	}
	return nil
}
