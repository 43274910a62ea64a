package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/cq"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
)

// end is one of two engines that talk to each other over byte slices.
type end struct {
	t        testing.TB
	engine   *Engine
	table    *mem.Table
	owner    *owner
	receives *RecvQueue
	sends    *cq.Queue
	recvs    *cq.Queue
	region   *mem.Region
	role     bool
	wire     []byte // written and not yet fed to the other
	failed   bool
}

func newEnd(t testing.TB, table *mem.Table, size int, p Params) *end {
	o := &owner{}
	r, err := table.Allocate(o, size, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	n := &end{t: t, table: table, owner: o, region: r, sends: cq.New(256, nil, nil), recvs: cq.New(256, nil, nil)}
	n.receives = NewRecvQueue(o, 64, 4, 0, nil)
	n.engine = New(Config{Number: 1, Owner: o, Regions: table, SendCompletions: n.sends, RecvCompletions: n.recvs,
		Receives: n.receives, SendDepth: 32, MaxSGE: 4, MaxInline: 32, SinkTag: 0xFFFFFFF0,
		OnFail:    func(bool) { n.failed = true },
		OnReceive: func() { _, _ = n.engine.Resume() }})
	if n.role, err = n.engine.Start(p); err != nil {
		t.Fatal(err)
	}
	return n
}

// write moves what the engine wants written to the wire.
func (n *end) write() {
	n.role = n.engine.Kick() || n.role
	if !n.role {
		return
	}
	n.role = false
	b := NewBatch()
	for n.engine.Fill(b) {
		n.take(b)
	}
	b.Free()
}

// read takes up to limit bytes of the other's wire, some of them directly, unless a
// message waits for a receive.
func (n *end) read(from *end, limit int) {
	for left := min(limit, len(from.wire)); left > 0 && !n.failed && !n.engine.Waiting(); {
		part := from.wire[:left]
		if direct := n.engine.Direct(); direct != nil {
			k := copy(direct, part)
			n.engine.Placed(k)
			part = part[k:]
		}
		k := min(len(part), max(1, n.engine.Ahead(len(part))))
		err := n.engine.Feed(part[:k])
		from.wire = from.wire[left-len(part)+k:]
		left = len(part) - k
		if err != nil {
			from.wire = nil
		}
	}
}

// TestRandomPair runs random operations between two engines in every mode, cuts
// the streams anywhere, and compares memory and completions with a model.
func TestRandomPair(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomPair(t, seed, 250, 0) })
	}
}

// TestDamagedPair flips one bit of the streams. Either it does not matter or the
// connection ends; what completes is right in any case.
func TestDamagedPair(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomPair(t, seed, 250, 1+int(seed*997%60000)) })
	}
}

func FuzzPair(f *testing.F) {
	f.Add(uint64(1), uint16(100), uint32(0))
	f.Add(uint64(2), uint16(300), uint32(5000))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16, damage uint32) {
		randomPair(t, seed, int(steps%1000), int(damage%1000000))
	})
}

// randomParams is a mode that two ends may have agreed on, for the initiator and
// the responder.
func randomParams(r *rand.Rand, damage int) (a, b Params) {
	ord := 1 + r.IntN(4)
	a = Params{
		Initiator: true, CRC: r.IntN(4) > 0 || damage > 0, IRD: ord, ORD: ord,
		MaxULPDU: []int{128, 1442, 16 << 10, 65486}[r.IntN(4)], Ready: Ready(r.IntN(4)),
		SendMarkers: r.IntN(3) == 0, ReceiveMarkers: r.IntN(3) == 0,
	}
	b = a
	b.Initiator, b.SendMarkers, b.ReceiveMarkers = false, a.ReceiveMarkers, a.SendMarkers
	return a, b
}

const (
	half = 96 << 10 // what a side owns; the rest of its region belongs to the other
	slot = 4 << 10  // what an operation has of it
)

// pairOperations are chosen from: sends, Writes and Reads more often.
var pairOperations = []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead, rdma.OpSend, rdma.OpWrite, rdma.OpRead,
	rdma.OpSendInvalidate, rdma.OpWriteImmediate, rdma.OpFetchAdd, rdma.OpCompareSwap}

// A pairStory is two ends that do random things, and the model: what each side's memory
// must be, once everything has settled. Operations of one direction use places of their own
// until they are done.
type pairStory struct {
	t       *testing.T
	r       *rand.Rand
	table   *mem.Table
	ends    [2]*end
	damage  int // bytes until one is damaged
	damaged bool

	outstanding [2][]pending
	messages    [2][]coming           // what comes, at the receiver
	late        [2][]rdma.RecvRequest // the receives of the last of them, not yet posted
	writes      [2][]coming           // by this side: what must be there in the end
	busy        [2]map[int]bool       // slots
}

// pending is a request that has not completed.
type pending struct {
	op     rdma.Opcode
	offset int // in the poster's own half, and at the same place at the other's
	length int
	was    uint64 // of an atomic operation
	now    uint64
}

// coming is what completes a receive.
type coming struct {
	op        rdma.Opcode
	data      []byte
	offset    int
	immediate uint32
}

func randomPair(t *testing.T, seed uint64, steps, damage int) {
	r := rand.New(rand.NewPCG(seed, 7))
	p := &pairStory{t: t, r: r, table: mem.NewTable(), damage: damage, damaged: damage > 0}
	pa, pb := randomParams(r, damage)
	p.ends = [2]*end{newEnd(t, p.table, 2*half, pa), newEnd(t, p.table, 2*half, pb)}
	for i, n := range p.ends {
		p.busy[i] = map[int]bool{}
		for k := range n.region.Bytes() {
			n.region.Bytes()[k] = byte(r.Uint32())
		}
	}
	for range steps {
		p.step()
	}
	p.settle()
	if p.damaged {
		p.flush()
		return
	}
	if p.ends[0].failed || p.ends[1].failed {
		t.Fatalf("failed: %v, %v", p.ends[0].engine.Err(), p.ends[1].engine.Err())
	}
	for side := range p.ends {
		if len(p.outstanding[side]) != 0 || len(p.messages[side]) != 0 {
			t.Fatalf("side %d: %d requests and %d receives did not complete; %v", side, len(p.outstanding[side]), len(p.messages[side]), p.ends[side].engine.Err())
		}
		for _, m := range p.writes[side] {
			if got := p.ends[1-side].region.Bytes()[m.offset:][:len(m.data)]; !bytes.Equal(got, m.data) {
				t.Fatalf("side %d: a %s of %d bytes left something else", side, m.op, len(m.data))
			}
		}
	}
}

// step does something at one of the ends.
func (p *pairStory) step() {
	r := p.r
	side := r.IntN(2)
	if n := len(p.late[side]); n > 0 && r.IntN(3) == 0 {
		p.receive(side, 1+r.IntN(n))
	}
	switch r.IntN(6) {
	case 0, 1:
		p.post(side)
	case 2:
		p.ends[side].write()
	case 3, 4:
		p.read(side, 1+r.IntN([]int{4, 100, 5000, 100000}[r.IntN(4)]))
	case 5:
		p.check(side)
	}
}

// settle goes on until nothing happens any more. Damaged ends may never be done.
func (p *pairStory) settle() {
	const most = 10_000
	rounds := 0
	for settled := 0; settled < 4; settled++ {
		if rounds++; rounds > most && p.damaged {
			return
		} else if rounds > most {
			p.t.Fatalf("after %d rounds there is still something to do", most)
		}
		for side, n := range p.ends {
			p.receive(side, len(p.late[side]))
			n.write()
			if len(n.wire) > 0 && !p.ends[1-side].failed {
				settled = 0
			}
			p.read(1-side, 1<<20)
			p.check(side)
		}
	}
}

// flush ends both sides: a damaged length may have made one wait for more than will come.
func (p *pairStory) flush() {
	for side, n := range p.ends {
		n.engine.End(io.EOF)
		n.write()
		<-n.engine.Stopped()
		n.engine.Flush()
		for len(p.outstanding[side])+len(p.messages[side]) > 0 {
			before := len(p.outstanding[side]) + len(p.messages[side])
			p.check(side)
			if len(p.outstanding[side])+len(p.messages[side]) == before {
				p.t.Fatalf("side %d: %d requests and %d receives are not flushed", side, len(p.outstanding[side]), len(p.messages[side]))
			}
		}
	}
}

// place is a slot of a side that nobody uses.
func (p *pairStory) place(side int) (int, bool) {
	for range 8 {
		s := p.r.IntN(half / slot)
		if !p.busy[side][s] {
			p.busy[side][s] = true
			return s * slot, true
		}
	}
	return 0, false
}

// pieces cuts memory into up to four entries.
func (p *pairStory) pieces(region *mem.Region, offset, length int) []rdma.SGE {
	var list []rdma.SGE
	for length > 0 && len(list) < 3 && p.r.IntN(3) > 0 {
		k := 1 + p.r.IntN(length)
		list = append(list, rdma.SGE{Region: region, Offset: offset, Length: k})
		offset, length = offset+k, length-k
	}
	return append(list, rdma.SGE{Region: region, Offset: offset, Length: length})
}

func word(n *end, at int) uint64 { return binary.NativeEndian.Uint64(n.region.Bytes()[at:]) }

// check compares what has completed at a side with the model.
func (p *pairStory) check(side int) {
	p.checkSends(side)
	p.checkReceives(side)
}

func (p *pairStory) checkSends(side int) {
	self, other := p.ends[side], p.ends[1-side]
	var c [16]rdma.Completion
	k, err := self.sends.Poll(c[:])
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range c[:k] {
		o := p.outstanding[side][0]
		p.outstanding[side] = p.outstanding[side][1:]
		if c.Status != rdma.StatusSuccess && p.damaged {
			continue
		}
		if c.Status != rdma.StatusSuccess || c.Op != o.op {
			p.t.Fatalf("completion %+v, want %+v: %v", c, o, self.engine.Err())
		}
		switch o.op {
		case rdma.OpRead:
			if int(c.Length) != o.length || !bytes.Equal(self.region.Bytes()[o.offset:o.offset+o.length], other.region.Bytes()[half+o.offset:half+o.offset+o.length]) {
				p.t.Fatalf("a Read of %d bytes brought something else", o.length)
			}
		case rdma.OpFetchAdd, rdma.OpCompareSwap:
			if was, now := word(self, o.offset), word(other, half+o.offset); was != o.was || now != o.now {
				p.t.Fatalf("a %s returned %x and left %x, want %x and %x", o.op, was, now, o.was, o.now)
			}
		}
		if o.op != rdma.OpWrite && o.op != rdma.OpWriteImmediate && o.length > 0 {
			delete(p.busy[side], o.offset/slot)
		}
	}
}

func (p *pairStory) checkReceives(side int) {
	self := p.ends[side]
	var c [16]rdma.Completion
	k, err := self.recvs.Poll(c[:])
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range c[:k] {
		m := p.messages[side][0]
		p.messages[side] = p.messages[side][1:]
		if c.Status != rdma.StatusSuccess && p.damaged {
			continue
		}
		want := rdma.OpRecv
		if m.op == rdma.OpWriteImmediate {
			want = rdma.OpRecvWriteImmediate
		}
		if c.Status != rdma.StatusSuccess || int(c.Length) != len(m.data) || c.Op != want || c.Immediate != m.immediate ||
			c.HasImmediate != (m.op == rdma.OpWriteImmediate) || c.Invalidated != (m.op == rdma.OpSendInvalidate) {
			p.t.Fatalf("receive %+v of %d bytes by a %s: %v", c, len(m.data), m.op, self.engine.Err())
		}
		if got := self.region.Bytes()[m.offset : m.offset+len(m.data)]; !bytes.Equal(got, m.data) {
			p.t.Fatalf("a %s of %d bytes brought something else", m.op, len(m.data))
		}
		if c.Invalidated && p.table.Lookup(m.immediate) != nil {
			p.t.Fatalf("key %#x is invalidated and names a region", m.immediate)
		}
		if m.op != rdma.OpWriteImmediate {
			delete(p.busy[side], m.offset/slot)
		}
	}
}

// post posts a random request.
func (p *pairStory) post(side int) {
	self, other := p.ends[side], p.ends[1-side]
	if len(p.outstanding[side]) > 20 || self.failed || other.failed {
		return
	}
	at, ok := p.place(side)
	if !ok {
		return
	}
	n := p.r.IntN(slot + 1)
	if p.r.IntN(3) == 0 {
		n = p.r.IntN(33)
	}
	o := pending{op: pairOperations[p.r.IntN(len(pairOperations))], offset: at, length: n}
	q := rdma.SendRequest{Op: o.op, Flags: rdma.Signaled,
		Remote: rdma.Remote{Key: other.region.Key(), Address: other.region.Address() + half + uint64(at)}}
	if p.r.IntN(4) == 0 {
		q.Flags |= rdma.Fence
	}
	m := coming{op: o.op, offset: half + at}
	switch o.op {
	case rdma.OpRead:
		q.SGEs = []rdma.SGE{{Region: self.region, Offset: at, Length: n}}
	case rdma.OpFetchAdd, rdma.OpCompareSwap:
		o.length = 8
		q.SGEs = []rdma.SGE{{Region: self.region, Offset: at, Length: 8}}
		o.was = word(other, half+at)
		q.CompareAdd, q.Swap = p.r.Uint64(), p.r.Uint64()
		o.now = o.was + q.CompareAdd
		if o.op == rdma.OpCompareSwap {
			o.now = o.was
			if p.r.IntN(2) == 0 {
				q.CompareAdd, o.now = o.was, q.Swap
			}
		}
	default:
		q.SGEs = p.pieces(self.region, at, n)
		if n <= 32 && p.r.IntN(2) == 0 {
			q.Flags |= rdma.Inline
		}
		m.data = bytes.Clone(self.region.Bytes()[at : at+n])
	}
	if !p.expect(side, &q, &m) {
		delete(p.busy[side], at/slot)
		return
	}
	_, kick, err := self.engine.PostSend([]rdma.SendRequest{q})
	if err != nil {
		p.t.Fatal(err)
	}
	self.role = self.role || kick
	p.outstanding[side] = append(p.outstanding[side], o)
	if o.length == 0 {
		delete(p.busy[side], at/slot)
	}
	if o.op == rdma.OpWrite || o.op == rdma.OpWriteImmediate { // it keeps its place until the end
		p.writes[side] = append(p.writes[side], m)
	}
}

// expect notes what a request brings the other side as a message, and what receive it
// needs. It reports false if there is no place for it.
func (p *pairStory) expect(side int, q *rdma.SendRequest, m *coming) bool {
	other := p.ends[1-side]
	switch m.op {
	case rdma.OpSendInvalidate:
		revocable, err := p.table.Allocate(other.owner, 64, rdma.AccessRemoteInvalidate)
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { _ = revocable.Close() })
		q.Remote = rdma.Remote{Key: revocable.Key()}
		m.immediate = revocable.Key()
		fallthrough
	case rdma.OpSend:
		to, ok := p.place(1 - side)
		if !ok {
			return false
		}
		p.late[1-side] = append(p.late[1-side], rdma.RecvRequest{SGEs: p.pieces(other.region, to, slot)})
		m.offset = to
		p.messages[1-side] = append(p.messages[1-side], *m)
	case rdma.OpWriteImmediate:
		p.late[1-side] = append(p.late[1-side], rdma.RecvRequest{})
		q.Immediate = p.r.Uint32()
		m.immediate = q.Immediate
		p.messages[1-side] = append(p.messages[1-side], *m)
	}
	return true
}

// read lets a side read what the other has written, and damages a byte when it is its turn.
func (p *pairStory) read(side, limit int) {
	from := p.ends[1-side]
	if n := min(limit, len(from.wire)); p.damage > 0 && n > 0 {
		if p.damage <= n {
			from.wire[p.damage-1] ^= 1 << p.r.IntN(8)
		}
		p.damage = max(p.damage-n, 0)
	}
	p.ends[side].read(from, limit)
}

// receive posts the next n receives of a side.
func (p *pairStory) receive(side, n int) {
	k, err := p.ends[side].receives.Post(p.late[side][:n])
	p.late[side] = p.late[side][k:]
	if err == nil {
		return
	}
	if !p.ends[side].failed {
		p.t.Fatal(err)
	}
	p.messages[side] = p.messages[side][:len(p.messages[side])-len(p.late[side])]
	p.late[side] = nil
}

// streamMode is a mode of FuzzStream, by the bits of a byte.
func streamMode(mode uint8) (Params, Extensions) {
	p := Params{
		CRC: mode&1 != 0, ReceiveMarkers: mode&2 != 0, SendMarkers: mode&4 != 0, Initiator: mode&8 == 0,
		Ready: Ready(mode >> 4 & 3), IRD: 2, ORD: 2, MaxULPDU: 1000,
	}
	if mode&64 != 0 {
		return p, ExtensionsOff
	}
	return p, ExtensionsNegotiated
}

// FuzzStream feeds an engine whatever the fuzzer likes, in pieces of any size and
// in any mode: it must not panic, must not touch memory that was not granted and
// must end with an error or wait for more.
func FuzzStream(f *testing.F) {
	for _, mode := range []uint8{0, 1, 2, 3, 7, 8, 24, 40, 64} {
		for _, line := range []string{
			"send data=hello", "write tag=1 offset=0 data=x", "read-request length=4 from-tag=0x1 from=0",
			"read-response tag=0x1000 data=1234", "terminate cause=1/1/0", "send-invalidate", "immediate data=12345678", "atomic-request zeros=52",
			"write tag=0x52464337 offset=0x56455242454e4101", "send zeros=900", "write bad-marker zeros=600",
		} {
			m := newMachine(f)
			m.params, _ = streamMode(mode)
			f.Add(m.fpdu(line), uint8(3), mode)
			m.marks = markerWriter{}
			f.Add(append(m.fpdu("send data=abc more"), m.fpdu(line)...), uint8(200), mode)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, chunk, mode uint8) {
		m := newMachine(t)
		defer m.close()
		r, err := m.table.Allocate(m.owner, 4096, rdma.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		m.regions["a"] = r
		m.chunk = int(chunk) + 1
		p, extensions := streamMode(mode)
		m.open(p, false, Config{SendDepth: 4, MaxSGE: 2, Extensions: extensions})
		m.post("recv id=1 to=a+0:16")
		m.post("recv id=2 to=a+32:16")
		m.post("read id=3 sge=a+64:16 tag=0x9")
		if extensions != ExtensionsOff {
			m.post("fetch-add id=4 sge=a+96:8 tag=0x9 at=8")
		}
		m.settle()
		m.feed(b)
		m.settle()
		if state := m.engine.State(); state == rdma.StateError {
			if m.engine.Err() == nil {
				t.Fatal("failed without a reason")
			}
			<-m.engine.Stopped()
			m.engine.Flush()
		}
		for i, v := range r.Bytes() {
			granted := i < 16 || i >= 32 && i < 48 || i >= 64 && i < 80 || i >= 96 && i < 104
			if v != 0 && !granted {
				t.Fatalf("byte %d was written", i)
			}
		}
	})
}
