package engine

import (
	"bytes"
	"fmt"
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
	r, err := table.Allocate(o, size, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	n := &end{t: t, region: r, sends: cq.New(256, nil, nil), recvs: cq.New(256, nil, nil)}
	n.receives = NewRecvQueue(o, 64, 4, 0, nil)
	n.engine = New(Config{Number: 1, Owner: o, Regions: table, SendCompletions: n.sends, RecvCompletions: n.recvs,
		Receives: n.receives, SendDepth: 32, MaxSGE: 4, MaxInline: 32, SinkTag: 0xFFFFFFF0,
		OnFail: func(bool) { n.failed = true }})
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

// read takes up to limit bytes of the other's wire, some of them directly.
func (n *end) read(from *end, limit int) {
	part := from.wire[:min(limit, len(from.wire))]
	from.wire = from.wire[len(part):]
	for len(part) > 0 && !n.failed {
		if direct := n.engine.Direct(); direct != nil {
			k := copy(direct, part)
			n.engine.Placed(k)
			part = part[k:]
		}
		k := min(len(part), max(1, n.engine.Ahead(len(part))))
		if n.engine.Feed(part[:k]) != nil {
			return
		}
		part = part[k:]
	}
}

// TestRandomPair runs random operations between two engines, cuts the streams
// anywhere, and compares memory and completions with a model.
func TestRandomPair(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomPair(t, seed, 250) })
	}
}

func FuzzPair(f *testing.F) {
	f.Add(uint64(1), uint16(100))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16) { randomPair(t, seed, int(steps%1000)) })
}

func randomPair(t *testing.T, seed uint64, steps int) {
	const (
		half = 96 << 10 // what a side owns; the rest of its region belongs to the other
		size = 2 * half
	)
	r := rand.New(rand.NewPCG(seed, 7))
	table := mem.NewTable()
	ord := 1 + r.IntN(4)
	ulpdu := []int{128, 1442, 16 << 10, 65486}[r.IntN(4)]
	p := Params{CRC: r.IntN(4) > 0, IRD: ord, ORD: ord, MaxULPDU: ulpdu, Ready: Ready(1 + r.IntN(3))}
	a := newEnd(t, table, size, Params{Initiator: true, CRC: p.CRC, IRD: ord, ORD: ord, MaxULPDU: ulpdu, Ready: p.Ready})
	b := newEnd(t, table, size, p)
	ends := [2]*end{a, b}

	// The model: what each side's memory must be, once everything has settled.
	// Operations of one direction use places of their own until they are done.
	type pending struct {
		op     rdma.Opcode
		offset int // in the poster's own half, and at the same place at the other's
		length int
	}
	type message struct {
		data   []byte
		offset int
	}
	var outstanding [2][]pending
	var messages [2][]message // posted receives with what they must get, at the receiver
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
			if c.Status != rdma.StatusSuccess || c.Op != o.op {
				t.Fatalf("completion %+v, want %+v: %v", c, o, self.engine.Err())
			}
			if o.op == rdma.OpRead {
				if int(c.Length) != o.length || !bytes.Equal(self.region.Bytes()[o.offset:o.offset+o.length], other.region.Bytes()[half+o.offset:half+o.offset+o.length]) {
					t.Fatalf("a Read of %d bytes brought something else", o.length)
				}
			}
			if o.op != rdma.OpWrite && o.length > 0 {
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
			if c.Status != rdma.StatusSuccess || int(c.Length) != len(m.data) {
				t.Fatalf("receive %+v of %d bytes: %v", c, len(m.data), self.engine.Err())
			}
			if got := self.region.Bytes()[m.offset : m.offset+len(m.data)]; !bytes.Equal(got, m.data) {
				t.Fatalf("a Send of %d bytes brought something else", len(m.data))
			}
			delete(busy[side], m.offset/slot)
		}
	}
	for range steps {
		side := r.IntN(2)
		self, other := ends[side], ends[1-side]
		switch r.IntN(6) {
		case 0, 1:
			if len(outstanding[side]) > 20 {
				break
			}
			at, ok := place(side)
			if !ok {
				break
			}
			n := r.IntN(slot + 1)
			if r.IntN(3) == 0 {
				n = r.IntN(33)
			}
			q := rdma.SendRequest{Op: []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead}[r.IntN(3)], Flags: rdma.Signaled,
				Remote: rdma.Remote{Key: other.region.Key(), Address: other.region.Address() + half + uint64(at)},
				SGEs:   pieces(self.region, at, n)}
			if r.IntN(4) == 0 {
				q.Flags |= rdma.Fence
			}
			if q.Op == rdma.OpRead {
				q.SGEs = []rdma.SGE{{Region: self.region, Offset: at, Length: n}}
			} else if n <= 32 && r.IntN(2) == 0 {
				q.Flags |= rdma.Inline
			}
			if q.Op == rdma.OpSend {
				to, ok := place(1 - side)
				if !ok {
					delete(busy[side], at/slot)
					break
				}
				if _, err := other.receives.Post([]rdma.RecvRequest{{SGEs: pieces(other.region, to, slot)}}); err != nil {
					t.Fatal(err)
				}
				messages[1-side] = append(messages[1-side], message{bytes.Clone(self.region.Bytes()[at : at+n]), to})
			}
			_, kick, err := self.engine.PostSend([]rdma.SendRequest{q})
			if err != nil {
				t.Fatal(err)
			}
			self.role = self.role || kick
			outstanding[side] = append(outstanding[side], pending{q.Op, at, n})
			if n == 0 {
				delete(busy[side], at/slot)
			}
			// A Write keeps its place until the end: the model compares then.
		case 2:
			self.write()
		case 3, 4:
			self.read(other, 1+r.IntN([]int{4, 100, 5000, 100000}[r.IntN(4)]))
		case 5:
			check(side)
		}
	}
	for settled := 0; settled < 4; settled++ {
		for side, n := range ends {
			n.write()
			if len(n.wire) > 0 {
				settled = 0
			}
			ends[1-side].read(n, 1<<20)
			check(side)
		}
	}
	for side := range ends {
		if len(outstanding[side]) != 0 || len(messages[side]) != 0 {
			t.Fatalf("side %d: %d requests and %d receives did not complete; %v", side, len(outstanding[side]), len(messages[side]), ends[side].engine.Err())
		}
	}
}

// FuzzStream feeds an engine whatever the fuzzer likes, in pieces of any size:
// it must not panic, must not touch memory that was not granted and must end
// with an error or wait for more.
func FuzzStream(f *testing.F) {
	m := newMachine(f)
	m.params.CRC = false
	for _, line := range []string{
		"send data=hello", "write tag=1 offset=0 data=x", "read-request length=4 from-tag=0x1 from=0",
		"read-response tag=0x1000 data=1234", "terminate cause=1/1/0", "send-invalidate", "immediate data=12345678", "atomic-request zeros=52",
	} {
		f.Add(m.fpdu(line), uint8(3), false)
		f.Add(append(m.fpdu("send data=abc more"), m.fpdu(line)...), uint8(200), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, chunk uint8, crc bool) {
		m := newMachine(t)
		defer m.close()
		r, err := m.table.Allocate(m.owner, 4096, rdma.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		m.regions["a"] = r
		m.chunk = int(chunk) + 1
		extensions := ExtensionsOff
		if !crc {
			extensions = ExtensionsNegotiated
		}
		m.open(Params{Initiator: true, CRC: crc, IRD: 2, ORD: 2, MaxULPDU: 1000}, false, Config{SendDepth: 4, MaxSGE: 2, Extensions: extensions})
		m.post("recv id=1 to=a+0:16")
		m.post("recv id=2 to=a+32:16")
		m.post("read id=3 sge=a+64:16 tag=0x9")
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
			granted := i < 16 || i >= 32 && i < 48 || i >= 64 && i < 80
			if v != 0 && !granted {
				t.Fatalf("byte %d was written", i)
			}
		}
	})
}
