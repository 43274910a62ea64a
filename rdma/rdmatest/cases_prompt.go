package rdmatest

import (
	"github.com/verbena-data/verbena/rdma"
)

// promptCases are about queue pairs that carry out Reads, Writes and Sends within a call.
var promptCases = []testCase{
	{"Prompt", nil, testPrompt},
	{"PromptSends", nil, testPromptSends},
	{"PromptSendsRefused", nil, testPromptSendsRefused},
	{"PromptRefused", nil, testPromptRefused},
	{"PromptUnderWithdrawal", nil, testPromptUnderWithdrawal},
}

// prompt is the conn's, or nil if the device only takes posts.
func (c *conn) prompt() rdma.PromptQueuePair {
	p, ok := c.QueuePair.(rdma.PromptQueuePair)
	if !ok {
		c.s.e.logf("%s: the device only takes posts", c.s.name)
		return nil
	}
	return p
}

// known has the device look at a region by a usual Read or Write, so that it is ready for
// others.
func (c *conn) known(op rdma.Opcode, remote rdma.Remote) {
	m := c.s.memory(64)
	c.send(rdma.SendRequest{ID: 1, Op: op, Flags: rdma.Signaled, Remote: remote, SGEs: m.sge(0, 8)})
	c.sends.success(1)
}

// testPrompt writes and reads pieces of all sizes. Nothing beside them changes, and no
// completion comes.
func testPrompt(e *env) {
	a, b := e.connect(nil)
	p := a.prompt()
	if p == nil {
		return
	}
	sizes := e.sizes()
	largest := sizes[len(sizes)-1]
	m := b.s.memory(largest + 2*guard)
	data, into := patterned(largest+guard, 11), make([]byte, largest+guard)
	for i, n := range sizes {
		if n == 0 {
			continue
		}
		at, from := guard-i%5, i%9 // at all alignments
		m.fill(0, n+2*guard, 0xA5)
		a.known(rdma.OpRead, m.at(0))
		if !p.WriteNow(m.at(at), data[from:from+n]) {
			e.fatalf("WriteNow of %d bytes to memory that was read just now is refused", n)
		}
		// What is posted behind it finds it.
		a.signal(b)
		e.same(m.read(at, n), data[from:from+n], "what WriteNow has written")
		if !is(m.read(0, at), 0xA5) || !is(m.read(at+n, guard), 0xA5) {
			e.fatalf("WriteNow of %d bytes writes beside its memory", n)
		}
		clear(into[:n+guard])
		if !p.ReadNow(into[from:from+n], m.at(at)) {
			e.fatalf("ReadNow of %d bytes from memory that was read just now is refused", n)
		}
		e.same(into[from:from+n], data[from:from+n], "what ReadNow has read")
		if !is(into[:from], 0) || !is(into[from+n:n+guard], 0) {
			e.fatalf("ReadNow of %d bytes writes beside its memory", n)
		}
	}
	a.sends.quiet("a completion of what was not posted")
}

// testPromptSends sends messages of all sizes in two parts, between others that are
// posted. They arrive in order, nothing beside them changes, and no completion comes.
func testPromptSends(e *env) {
	a, b := e.connect(nil)
	p := a.prompt()
	if p == nil {
		return
	}
	sizes := e.sizes()
	largest := sizes[len(sizes)-1]
	source, sink := a.s.memory(1024), b.s.memory(largest+2*guard)
	data := patterned(largest+2*guard, 13)
	// The device looks at the receives' memory by a usual Send, too long for a slot.
	b.recv(0, sink.sge(0, 1024))
	a.send(rdma.SendRequest{ID: 0, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 1024)})
	b.recvs.success(0)
	a.sends.success(0)
	id := uint64(1)
	for i, n := range sizes {
		for _, head := range []int{0, 1, 16, 32, 100, n} {
			if head > n {
				continue
			}
			at, from := guard-i%5, i%9 // at all alignments
			sink.fill(0, n+2*guard, 0xA5)
			b.recv(id, sink.sge(at, n))
			b.recv(id+1, sink.sge(at, n)) // gets nothing; a shorter one would make the device look at each receive
			header := append([]byte(nil), data[from:from+head]...)
			payload := append([]byte(nil), data[from+head:from+n]...)
			if !p.SendNow(header, payload) {
				e.fatalf("SendNow of %d and %d bytes is refused, where a receive is posted and nothing under way", head, n-head)
			}
			clear(header) // both are the caller's again
			clear(payload)
			a.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 0)})
			if c := b.recvs.success(id); int(c.Length) != n || c.Op != rdma.OpRecv || c.HasImmediate {
				e.fatalf("a message of %d bytes by SendNow completes a receive with %+v", n, c)
			}
			e.same(sink.read(at, n), data[from:from+n], "what SendNow has sent")
			if !is(sink.read(0, at), 0xA5) || !is(sink.read(at+n, guard), 0xA5) {
				e.fatalf("SendNow of %d bytes writes beside the receive", n)
			}
			b.recvs.success(id + 1)
			a.sends.success(id)
			id += 2
		}
	}
	a.sends.quiet("a completion of what was not posted")
}

// testPromptSendsRefused sends what would have to wait or fail. Nothing comes of it, and
// the queue pair is as it was.
func testPromptSendsRefused(e *env) {
	a, b := e.connect(nil)
	p := a.prompt()
	if p == nil {
		return
	}
	source, sink := a.s.memory(4096), b.s.memory(4096)
	sink.fill(0, 4096, 0xA5)
	data := make([]byte, 4096)
	for _, n := range []int{0, 8, 4096} {
		if p.SendNow(nil, data[:n]) {
			e.fatalf("SendNow of %d bytes, for which no receive is posted: done", n)
		}
	}
	// What waits is not overtaken.
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 8)})
	if p.SendNow(data[:16], data[:16]) {
		e.fatalf("SendNow overtakes a Send that waits for a receive")
	}
	b.recv(1, sink.sge(0, 8))
	b.recvs.success(1)
	a.sends.success(1)
	for i, n := range []int{9, 16 + 128, 4096} {
		id := uint64(2 + i)
		b.recv(id, sink.sge(0, 8))
		if p.SendNow(data[:1], data[1:n]) {
			e.fatalf("SendNow of %d bytes to a receive of 8: done", n)
		}
		if !is(sink.read(8, 4096-8), 0xA5) {
			e.fatalf("SendNow of %d bytes that was refused writes behind a receive of 8", n)
		}
		if !p.SendNow(data[:1], data[1:8]) {
			e.fatalf("SendNow after one that was refused: refused")
		}
		if c := b.recvs.success(id); c.Length != 8 {
			e.fatalf("a message of 8 bytes completes a receive of %d", c.Length)
		}
	}
	b.recv(9, sink.sge(0, 8))
	e.check(a.Disconnect(), "Disconnect")
	if p.SendNow(nil, data[:8]) {
		e.fatalf("a message leaves after Disconnect")
	}
	b.ended()
	e.check(a.Close(), "Close")
	if p.SendNow(nil, data[:8]) {
		e.fatalf("a message leaves after Close")
	}
}

// testPromptRefused asks for what may not be had. Nothing happens, and the queue pair is
// as it was.
func testPromptRefused(e *env) {
	a, b := e.connect(nil)
	p := a.prompt()
	if p == nil {
		return
	}
	const size = 4096
	whole := b.s.memory(size)
	readable := b.s.allocate(size, rdma.AccessLocalWrite|rdma.AccessRemoteRead)
	writable := b.s.allocate(size, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	gone := b.s.memory(size)
	closed := gone.at(0)
	for _, m := range []*memory{whole, readable, writable, gone} {
		m.fill(0, size, 0xA5)
	}
	var eight [8]byte
	wrong := whole.at(0)
	wrong.Key++
	for _, r := range []struct {
		what          string
		know          rdma.Opcode // how the device gets to know
		region        *memory
		remote        rdma.Remote
		length        int
		reads, writes bool // which of them must be refused
	}{
		{"nothing", rdma.OpRead, whole, whole.at(0), 0, true, true},
		{"another key", rdma.OpRead, whole, wrong, 8, true, true},
		{"beyond the end", rdma.OpRead, whole, whole.at(size - 4), 8, true, true},
		{"before the beginning", rdma.OpRead, whole, rdma.Remote{Address: whole.Address() - 4, Key: whole.Key()}, 8, true, true},
		{"memory for reading", rdma.OpRead, readable, readable.at(0), 8, false, true},
		{"memory for writing", rdma.OpWrite, writable, writable.at(8), 8, true, false},
		{"a region that is closed", rdma.OpRead, gone, closed, 8, true, true},
	} {
		a.known(r.know, r.region.at(0))
		if r.region == gone {
			e.check(gone.Close(), "Region.Close")
		}
		if r.writes && p.WriteNow(r.remote, eight[:r.length]) {
			e.fatalf("WriteNow of %d bytes: %s: done", r.length, r.what)
		}
		if r.reads && p.ReadNow(eight[:r.length], r.remote) {
			e.fatalf("ReadNow of %d bytes: %s: done", r.length, r.what)
		}
	}
	if !is(eight[:], 0) || !is(whole.read(0, size), 0xA5) || !is(readable.read(0, size), 0xA5) {
		e.fatalf("what was refused has been carried out")
	}
	a.known(rdma.OpRead, whole.at(0))
	if !p.ReadNow(eight[:], whole.at(0)) {
		e.fatalf("ReadNow after others were refused: refused")
	}
	e.check(a.Disconnect(), "Disconnect")
	if p.ReadNow(eight[:], whole.at(0)) || p.WriteNow(whole.at(0), eight[:]) {
		e.fatalf("memory is reached after Disconnect")
	}
	b.ended()
	e.check(a.Close(), "Close")
	if p.ReadNow(eight[:], whole.at(0)) || p.WriteNow(whole.at(0), eight[:]) {
		e.fatalf("memory is reached after Close")
	}
}

// testPromptUnderWithdrawal withdraws a region that a peer writes to all the time. What
// its owner puts there afterwards stays.
func testPromptUnderWithdrawal(e *env) {
	const size = 64 << 10
	data := patterned(size, 3)
	for range e.rounds(8) {
		a, b := e.connect(nil)
		p := a.prompt()
		if p == nil {
			return
		}
		m := b.s.memory(size)
		a.known(rdma.OpRead, m.at(0))
		begun, able := make(chan struct{}), true
		e.together(func() {
			for n := 0; p.WriteNow(m.at(0), data); n++ {
				if n == 0 {
					close(begun)
				}
				select {
				case <-e.ctx.Done():
					e.fatalf("a withdrawn region is written to")
				default:
				}
			}
		}, func() {
			select {
			case <-begun:
			case <-e.ctx.Done():
				e.fatalf("nothing is written")
			}
			if able = e.withdraw(m); !able {
				e.check(m.Close(), "Region.Close")
				return
			}
			m.fill(0, size, 0x3C)
		})
		if able && !is(m.read(0, size), 0x3C) {
			e.fatalf("a withdrawn region has changed")
		}
	}
}
