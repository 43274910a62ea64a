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
		for _, v := range b.Vectors {
			n.wire = append(n.wire, v...)
		}
		n.engine.Written(b)
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

func randomPair(t *testing.T, seed uint64, steps, damage int) {
	const (
		half = 96 << 10 // what a side owns; the rest of its region belongs to the other
		size = 2 * half
	)
	r := rand.New(rand.NewPCG(seed, 7))
	table := mem.NewTable()
	pa, pb := randomParams(r, damage)
	ends := [2]*end{newEnd(t, table, size, pa), newEnd(t, table, size, pb)}
	damaged := damage > 0

	// The model: what each side's memory must be, once everything has settled.
	// Operations of one direction use places of their own until they are done.
	type pending struct {
		op     rdma.Opcode
		offset int // in the poster's own half, and at the same place at the other's
		length int
		was    uint64 // of an atomic operation
		now    uint64
	}
	type message struct {
		op        rdma.Opcode
		data      []byte
		offset    int
		immediate uint32
	}
	var outstanding [2][]pending
	var messages [2][]message      // what comes, at the receiver
	var late [2][]rdma.RecvRequest // the receives of the last of them, not yet posted
	var busy [2]map[int]bool
	for i, n := range ends {
		busy[i] = map[int]bool{}
		for k := range n.region.Bytes() {
			n.region.Bytes()[k] = byte(r.Uint32())
		}
	}
	const slot = 4 << 10
	place := func(side int) (int, bool) {
		for range 8 {
			s := r.IntN(half / slot)
			if !busy[side][s] {
				busy[side][s] = true
				return s * slot, true
			}
		}
		return 0, false
	}
	pieces := func(region *mem.Region, offset, length int) []rdma.SGE {
		var list []rdma.SGE
		for length > 0 && len(list) < 3 && r.IntN(3) > 0 {
			k := 1 + r.IntN(length)
			list = append(list, rdma.SGE{Region: region, Offset: offset, Length: k})
			offset, length = offset+k, length-k
		}
		return append(list, rdma.SGE{Region: region, Offset: offset, Length: length})
	}
	word := func(n *end, at int) uint64 { return binary.NativeEndian.Uint64(n.region.Bytes()[at:]) }
	check := func(side int) {
		self, other := ends[side], ends[1-side]
		var c [16]rdma.Completion
		k, err := self.sends.Poll(c[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range c[:k] {
			o := outstanding[side][0]
			outstanding[side] = outstanding[side][1:]
			if c.Status != rdma.StatusSuccess && damaged {
				continue
			}
			if c.Status != rdma.StatusSuccess || c.Op != o.op {
				t.Fatalf("completion %+v, want %+v: %v", c, o, self.engine.Err())
			}
			switch o.op {
			case rdma.OpRead:
				if int(c.Length) != o.length || !bytes.Equal(self.region.Bytes()[o.offset:o.offset+o.length], other.region.Bytes()[half+o.offset:half+o.offset+o.length]) {
					t.Fatalf("a Read of %d bytes brought something else", o.length)
				}
			case rdma.OpFetchAdd, rdma.OpCompareSwap:
				if was, now := word(self, o.offset), word(other, half+o.offset); was != o.was || now != o.now {
					t.Fatalf("a %s returned %x and left %x, want %x and %x", o.op, was, now, o.was, o.now)
				}
			}
			if o.op != rdma.OpWrite && o.op != rdma.OpWriteImmediate && o.length > 0 {
				delete(busy[side], o.offset/slot)
			}
		}
		k, err = self.recvs.Poll(c[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range c[:k] {
			m := messages[side][0]
			messages[side] = messages[side][1:]
			if c.Status != rdma.StatusSuccess && damaged {
				continue
			}
			want := rdma.OpRecv
			if m.op == rdma.OpWriteImmediate {
				want = rdma.OpRecvWriteImmediate
			}
			if c.Status != rdma.StatusSuccess || int(c.Length) != len(m.data) || c.Op != want || c.Immediate != m.immediate ||
				c.HasImmediate != (m.op == rdma.OpWriteImmediate) || c.Invalidated != (m.op == rdma.OpSendInvalidate) {
				t.Fatalf("receive %+v of %d bytes by a %s: %v", c, len(m.data), m.op, self.engine.Err())
			}
			if got := self.region.Bytes()[m.offset : m.offset+len(m.data)]; !bytes.Equal(got, m.data) {
				t.Fatalf("a %s of %d bytes brought something else", m.op, len(m.data))
			}
			if c.Invalidated && table.Lookup(m.immediate) != nil {
				t.Fatalf("key %#x is invalidated and names a region", m.immediate)
			}
			if m.op != rdma.OpWriteImmediate {
				delete(busy[side], m.offset/slot)
			}
		}
	}
	ops := []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead, rdma.OpSend, rdma.OpWrite, rdma.OpRead,
		rdma.OpSendInvalidate, rdma.OpWriteImmediate, rdma.OpFetchAdd, rdma.OpCompareSwap}
	post := func(side int) {
		self, other := ends[side], ends[1-side]
		if len(outstanding[side]) > 20 || self.failed || other.failed {
			return
		}
		at, ok := place(side)
		if !ok {
			return
		}
		n := r.IntN(slot + 1)
		if r.IntN(3) == 0 {
			n = r.IntN(33)
		}
		p := pending{op: ops[r.IntN(len(ops))], offset: at, length: n}
		q := rdma.SendRequest{Op: p.op, Flags: rdma.Signaled,
			Remote: rdma.Remote{Key: other.region.Key(), Address: other.region.Address() + half + uint64(at)}}
		if r.IntN(4) == 0 {
			q.Flags |= rdma.Fence
		}
		m := message{op: p.op}
		switch p.op {
		case rdma.OpRead:
			q.SGEs = []rdma.SGE{{Region: self.region, Offset: at, Length: n}}
		case rdma.OpFetchAdd, rdma.OpCompareSwap:
			p.length = 8
			q.SGEs = []rdma.SGE{{Region: self.region, Offset: at, Length: 8}}
			p.was = word(other, half+at)
			q.CompareAdd, q.Swap = r.Uint64(), r.Uint64()
			p.now = p.was + q.CompareAdd
			if p.op == rdma.OpCompareSwap {
				p.now = p.was
				if r.IntN(2) == 0 {
					q.CompareAdd, p.now = p.was, q.Swap
				}
			}
		default:
			q.SGEs = pieces(self.region, at, n)
			if n <= 32 && r.IntN(2) == 0 {
				q.Flags |= rdma.Inline
			}
			m.data = bytes.Clone(self.region.Bytes()[at : at+n])
		}
		switch p.op {
		case rdma.OpSendInvalidate:
			revocable, err := table.Allocate(other.owner, 64, rdma.AccessRemoteInvalidate)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = revocable.Close() })
			q.Remote = rdma.Remote{Key: revocable.Key()}
			m.immediate = revocable.Key()
			fallthrough
		case rdma.OpSend:
			to, ok := place(1 - side)
			if !ok {
				delete(busy[side], at/slot)
				return
			}
			late[1-side] = append(late[1-side], rdma.RecvRequest{SGEs: pieces(other.region, to, slot)})
			m.offset = to
			messages[1-side] = append(messages[1-side], m)
		case rdma.OpWriteImmediate:
			late[1-side] = append(late[1-side], rdma.RecvRequest{})
			q.Immediate = r.Uint32()
			m.offset, m.immediate = half+at, q.Immediate
			messages[1-side] = append(messages[1-side], m)
		}
		_, kick, err := self.engine.PostSend([]rdma.SendRequest{q})
		if err != nil {
			t.Fatal(err)
		}
		self.role = self.role || kick
		outstanding[side] = append(outstanding[side], p)
		if p.length == 0 {
			delete(busy[side], at/slot)
		}
		// A Write keeps its place until the end: the model compares then.
	}
	read := func(side, limit int) {
		from := ends[1-side]
		if n := min(limit, len(from.wire)); damage > 0 && n > 0 {
			if damage <= n {
				from.wire[damage-1] ^= 1 << r.IntN(8)
			}
			damage = max(damage-n, 0)
		}
		ends[side].read(from, limit)
	}
	receive := func(side, n int) {
		k, err := ends[side].receives.Post(late[side][:n])
		late[side] = late[side][k:]
		if err == nil {
			return
		}
		if !ends[side].failed {
			t.Fatal(err)
		}
		messages[side] = messages[side][:len(messages[side])-len(late[side])]
		late[side] = nil
	}
	for range steps {
		side := r.IntN(2)
		if n := len(late[side]); n > 0 && r.IntN(3) == 0 {
			receive(side, 1+r.IntN(n))
		}
		switch r.IntN(6) {
		case 0, 1:
			post(side)
		case 2:
			ends[side].write()
		case 3, 4:
			read(side, 1+r.IntN([]int{4, 100, 5000, 100000}[r.IntN(4)]))
		case 5:
			check(side)
		}
	}
	for settled := 0; settled < 4; settled++ {
		for side, n := range ends {
			receive(side, len(late[side]))
			n.write()
			if len(n.wire) > 0 && !ends[1-side].failed {
				settled = 0
			}
			read(1-side, 1<<20)
			check(side)
		}
	}
	if !damaged && (ends[0].failed || ends[1].failed) {
		t.Fatalf("failed: %v, %v", ends[0].engine.Err(), ends[1].engine.Err())
	}
	if damaged {
		// A damaged length may have made a side wait for more than will come.
		for side, n := range ends {
			n.engine.End(io.EOF)
			n.write()
			<-n.engine.Stopped()
			n.engine.Flush()
			for len(outstanding[side])+len(messages[side]) > 0 {
				before := len(outstanding[side]) + len(messages[side])
				check(side)
				if len(outstanding[side])+len(messages[side]) == before {
					t.Fatalf("side %d: %d requests and %d receives are not flushed", side, len(outstanding[side]), len(messages[side]))
				}
			}
		}
		return
	}
	for side := range ends {
		if len(outstanding[side]) != 0 || len(messages[side]) != 0 {
			t.Fatalf("side %d: %d requests and %d receives did not complete; %v", side, len(outstanding[side]), len(messages[side]), ends[side].engine.Err())
		}
	}
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
