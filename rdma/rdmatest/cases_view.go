package rdmatest

import (
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
)

// viewCases are about queue pairs that show the peer's memory where it lies.
var viewCases = []testCase{
	{"View", nil, testView},
	{"ViewRefused", nil, testViewRefused},
	{"ViewOutlives", nil, testViewOutlives},
	{"PassOn", nil, testPassOn},
}

// views is the conn's, or nil if the device shows nothing.
func (c *conn) views() rdma.ViewingQueuePair {
	v, ok := c.QueuePair.(rdma.ViewingQueuePair)
	if !ok {
		c.s.e.logf("%s: the device shows no memory of the peer", c.s.name)
		return nil
	}
	return v
}

// testView looks at pieces of all sizes. A view shows what the peer has written since, too.
func testView(e *env) {
	a, b := e.connect(nil)
	v := a.views()
	if v == nil {
		return
	}
	sizes := e.sizes()
	m := b.s.memory(sizes[len(sizes)-1] + guard)
	a.known(rdma.OpRead, m.at(0))
	for i, n := range sizes {
		if n == 0 {
			continue
		}
		at := i % 9
		m.fill(at, n, byte(i))
		memory, pin, ok := v.View(m.at(at), n)
		if !ok {
			e.fatalf("a view of %d bytes of memory that was read just now is refused", n)
		}
		if len(memory) != n || cap(memory) != n || !is(memory, byte(i)) {
			e.fatalf("a view of %d bytes shows %d others", n, len(memory))
		}
		m.fill(at, n, byte(i+100))
		a.signal(b)
		if !is(memory, byte(i+100)) {
			e.fatalf("a view of %d bytes does not show what was written since", n)
		}
		if !v.ViewsHold() {
			e.fatalf("views do not hold while both ends are connected")
		}
		pin.Release()
	}
	a.sends.quiet("a completion of what was not posted")
}

// testViewRefused asks for what may not be had. The queue pair is as it was.
func testViewRefused(e *env) {
	a, b := e.connect(nil)
	v := a.views()
	if v == nil {
		return
	}
	const size = 4096
	whole := b.s.memory(size)
	writable := b.s.allocate(size, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	gone := b.s.memory(size)
	closed := gone.at(0)
	wrong := whole.at(0)
	wrong.Key++
	a.known(rdma.OpRead, whole.at(0))
	a.known(rdma.OpWrite, writable.at(0))
	a.known(rdma.OpRead, gone.at(0))
	e.check(gone.Close(), "Region.Close")
	for _, r := range []struct {
		what   string
		remote rdma.Remote
		length int
	}{
		{"nothing", whole.at(0), 0},
		{"fewer bytes than none", whole.at(0), -8},
		{"another key", wrong, 8},
		{"beyond the end", whole.at(size - 4), 8},
		{"more than there is", whole.at(0), size + 1},
		{"before the beginning", rdma.Remote{Address: whole.Address() - 4, Key: whole.Key()}, 8},
		{"memory for writing", writable.at(8), 8},
		{"a region that is closed", closed, 8},
	} {
		if _, _, ok := v.View(r.remote, r.length); ok {
			e.fatalf("a view of %d bytes: %s: given", r.length, r.what)
		}
	}
	memory, pin, ok := v.View(whole.at(0), size)
	if !ok {
		e.fatalf("a view after others were refused: refused")
	}
	e.check(a.Disconnect(), "Disconnect")
	if _, _, ok := v.View(whole.at(0), 8); ok || v.ViewsHold() {
		e.fatalf("a view is given, or holds, after Disconnect")
	}
	b.ended()
	e.check(a.Close(), "Close")
	if _, _, ok := v.View(whole.at(0), 8); ok || v.ViewsHold() {
		e.fatalf("a view is given, or holds, after Close")
	}
	_ = memory[size-1] // it stays readable
	pin.Release()
}

// testViewOutlives ends the peer's region, its end of the connection, and this one, while a
// view is held. It shows what was there, and from the peer's end on it does not hold.
func testViewOutlives(e *env) {
	const size = 1 << 16
	for range e.rounds(4) {
		a, b := e.connect(nil)
		v := a.views()
		if v == nil {
			return
		}
		m := b.s.memory(size)
		m.fill(0, size, 0x5C)
		a.known(rdma.OpRead, m.at(0))
		memory, pin, ok := v.View(m.at(0), size)
		again, second, ok2 := v.View(m.at(0), size)
		if !ok || !ok2 {
			e.fatalf("a view of memory that was read just now is refused")
		}
		e.check(m.Close(), "Region.Close")
		if _, _, ok := v.View(m.at(0), size); ok {
			e.fatalf("a view of a region that is closed is given")
		}
		second.Release()
		if !is(memory, 0x5C) {
			e.fatalf("a view of a region that was closed since shows other bytes")
		}
		e.check(b.Close(), "Close")
		if v.ViewsHold() {
			e.fatalf("views hold after the peer's Close")
		}
		a.ended()
		e.check(a.Close(), "Close")
		if !is(memory, 0x5C) || &again[0] != &memory[0] {
			e.fatalf("a view shows other bytes after the end of both ends")
		}
		pin.Release()
	}
}

// testPassOn has another queue pair of the peer read memory of the peer's by a region of
// this side. It ends with the connection under which it was kept.
func testPassOn(e *env) {
	const size = 1 << 16
	for round := range e.rounds(4) {
		up, owner := e.connect(nil)
		v := up.views()
		p, ok := up.QueuePair.(rdma.PassingQueuePair)
		if v == nil || !ok {
			e.logf("%s: the device passes no memory on", up.s.name)
			return
		}
		down, reader := e.connect(nil)
		if !down.QueuePair.(rdma.PassingQueuePair).ReadsPassed() {
			e.fatalf("the peer does not read what is passed on")
		}
		m, into := owner.s.memory(size+guard), reader.s.memory(size)
		m.fill(guard, size, 0x5C)
		up.known(rdma.OpRead, m.at(0))
		memory, pin, ok := v.View(m.at(guard), size)
		if !ok {
			e.fatalf("a view of memory that was read just now is refused")
		}
		var region rdma.Region
		var use rdma.Pin
		e.eventually("the memory can be passed on", func() (ok bool) {
			region, use, ok = p.PassOn(pin)
			return ok
		})
		again, second, ok := p.PassOn(pin)
		if !ok || again != region || region.Access() != rdma.AccessRemoteRead {
			e.fatalf("it is passed on as another region the second time, or with rights %#x", region.Access())
		}
		second.Release()
		offset := uintptr(unsafe.Pointer(&memory[0])) - uintptr(unsafe.Pointer(&region.Bytes()[0]))
		from := rdma.Remote{Address: region.Address() + uint64(offset), Key: region.Key()}
		read := rdma.SendRequest{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: from, SGEs: into.sge(0, size)}
		for seed := range byte(4) {
			m.fill(guard, size, seed)
			reader.send(read)
			reader.sends.success(3)
			if !is(into.Bytes()[:size], seed) {
				e.fatalf("a Read of what is passed on has other bytes")
			}
		}
		switch round % 2 {
		case 0: // the owner ends, and may use its memory
			e.check(owner.Close(), "Close")
			m.fill(guard, size, 0xEE)
			reader.send(read)
			if c := reader.sends.next(); c.ID != 3 || c.Status == rdma.StatusSuccess {
				e.fatalf("after its owner's Close, memory that is passed on is read: %+v", c)
			}
			reader.ended()
		case 1: // this side takes it back
			use.Release()
			pin.Release()
			e.check(up.Close(), "Close")
			reader.send(read)
			if c := reader.sends.next(); c.ID != 3 || c.Status == rdma.StatusSuccess {
				e.fatalf("what is not passed on any more is read: %+v", c)
			}
			continue
		}
		e.check(up.Close(), "Close")
		use.Release()
		pin.Release()
	}
}
