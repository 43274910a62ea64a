package rdmatest

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
)

// orderCases are about what happens before what.
var orderCases = []testCase{
	{"SendsInOrder", nil, testSendsInOrder},
	{"WriteThenSend", nil, testWriteThenSend},
	{"WriteThenRead", nil, testWriteThenRead},
	{"FencedSend", nil, testFencedSend},
	{"FencedAtomic", []Feature{FeatureAtomics}, testFencedAtomic},
	{"MemoryReuse", nil, testMemoryReuse},
	{"ConcurrentPosts", nil, testConcurrentPosts},
	{"BothWays", nil, testBothWays},
}

// rounds is fewer when a side is remote or the tests are short, and fewest when they
// are brief.
func (e *env) rounds(n int) int {
	if *briefFlag {
		return min(n, max(n/20, 3))
	}
	most, least := n, 10
	if isRemote(e.suite.initiator) || isRemote(e.suite.target) {
		least = 4
		n = max(n/10, least)
	}
	if testingShort() {
		n = max(n/4, least)
	}
	return min(n, most)
}

func testSendsInOrder(e *env) {
	a, b := e.connect(nil)
	const window = 32
	n := e.rounds(2000) / window * window
	source, sink := a.s.memory(8*window), b.s.memory(8*window)
	post := func(i int) { b.recv(uint64(i), sink.sge(i%window*8, 8)) }
	for i := range window {
		post(i)
	}
	done := 0
	for i := range n {
		if i >= window {
			// Receive i-window frees the receive that message i needs.
			c := b.recvs.success(uint64(done))
			if got := word(sink.read(done%window*8, 8)); got != uint64(done) || c.Length != 8 {
				e.fatalf("message %d carries %d", done, got)
			}
			done++
			post(i)
			a.sends.success(uint64(i - window))
		}
		source.write(i%window*8, wordBytes(uint64(i)))
		a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(i%window*8, 8)})
	}
	for ; done < n; done++ {
		b.recvs.success(uint64(done))
		a.sends.success(uint64(done))
		if got := word(sink.read(done%window*8, 8)); got != uint64(done) {
			e.fatalf("message %d carries %d", done, got)
		}
	}
}

// testWriteThenSend checks that a Send makes the Writes before it visible, at
// the moment that it is received.
func testWriteThenSend(e *env) {
	a, b := e.connect(nil)
	const parts, size = 4, 120_000
	source, sink := a.s.memory(size), b.s.memory(size)
	for i := range e.rounds(200) {
		value := byte(i%255 + 1)
		id := uint64(i)
		source.fill(0, size, value)
		b.recv(id, nil)
		e.together(func() {
			for part := range parts {
				at, length := part*size/parts, size/parts
				a.send(rdma.SendRequest{Op: rdma.OpWrite, Remote: sink.at(at), SGEs: source.sge(at, length)})
			}
			a.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled})
		}, func() {
			b.recvs.spin(id)
			// What was written last is looked at first.
			for part := parts - 1; part >= 0; part-- {
				if !is(sink.read(part*size/parts, size/parts), value) {
					e.fatalf("round %d: a Send was received before the Writes in front of it were there", i)
				}
			}
		})
		a.sends.success(id)
	}
	if e.suite.has(FeatureWriteImmediate) {
		for i := range e.rounds(50) {
			value := byte(i%255 + 1)
			source.fill(0, size, ^value)
			b.recv(1, nil)
			a.send(rdma.SendRequest{Op: rdma.OpWrite, Remote: sink.at(0), SGEs: source.sge(0, size/2)})
			a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWriteImmediate, Flags: rdma.Signaled, Remote: sink.at(size / 2), SGEs: source.sge(0, size/2)})
			b.recvs.success(1)
			if !is(sink.read(0, size), ^value) {
				e.fatalf("round %d: an immediate was received before the data was there", i)
			}
			a.sends.success(1)
		}
	}
}

// testWriteThenRead reads back what was just written.
func testWriteThenRead(e *env) {
	a, b := e.connect(nil)
	const size = 20000
	source, back, sink := a.s.memory(size), a.s.memory(size), b.s.memory(size)
	for i := range e.rounds(50) {
		value := byte(i%255 + 1)
		source.fill(0, size, value)
		a.send(rdma.SendRequest{Op: rdma.OpWrite, Remote: sink.at(0), SGEs: source.sge(0, size)})
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: back.sge(0, size)})
		a.sends.success(1)
		if !is(back.read(0, size), value) {
			e.fatalf("round %d: a Read does not see the Write before it", i)
		}
	}
}

// testFencedSend sends on what a Read fetches, without waiting in between.
func testFencedSend(e *env) {
	a, b := e.connect(nil)
	const size = 16 << 10
	origin, between, sink := b.s.memory(size), a.s.memory(size), b.s.memory(2*size)
	for i := range e.rounds(40) {
		value := byte(i%255 + 1)
		origin.fill(0, size, value)
		b.recv(1, sink.sge(0, size))
		a.send(rdma.SendRequest{Op: rdma.OpRead, Remote: origin.at(0), SGEs: between.sge(0, size)})
		a.send(rdma.SendRequest{Op: rdma.OpWrite, Flags: rdma.Fence, Remote: sink.at(size), SGEs: between.sge(0, size)})
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Fence, SGEs: between.sge(0, size)})
		b.recvs.success(1)
		got := sink.read(0, 2*size)
		if !is(got[:size], value) {
			e.fatalf("round %d: a fenced Send carries what was there before the Read", i)
		}
		if !is(got[size:], value) {
			e.fatalf("round %d: a fenced Write carries what was there before the Read", i)
		}
		a.sends.success(1)
	}
}

func testFencedAtomic(e *env) {
	a, b := e.connect(nil)
	counter, result, sink := b.s.memory(8), a.s.memory(8), b.s.memory(8)
	for i := range uint64(e.rounds(40)) {
		b.recv(i, sink.sge(0, 8))
		a.send(rdma.SendRequest{Op: rdma.OpFetchAdd, Remote: counter.at(0), CompareAdd: 1, SGEs: result.sge(0, 8)})
		a.send(rdma.SendRequest{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Fence, SGEs: result.sge(0, 8)})
		b.recvs.success(i)
		a.sends.success(i)
		if got := word(sink.read(0, 8)); got != i {
			e.fatalf("a fenced Send after Fetch-and-add %d carries %d", i, got)
		}
	}
}

// testMemoryReuse overwrites the source of unsignalled requests as soon as a
// later one completes.
func testMemoryReuse(e *env) {
	a, b := e.connect(nil)
	const parts, size = 7, 3000
	source, sink := a.s.memory(parts*size), b.s.memory(parts*size)
	for i := range e.rounds(200) {
		value := byte(i%250 + 1)
		source.fill(0, parts*size, value)
		for part := range parts {
			request := rdma.SendRequest{ID: uint64(part), Op: rdma.OpWrite, Remote: sink.at(part * size), SGEs: source.sge(part*size, size)}
			if part == parts-1 {
				request.Flags = rdma.Signaled
			}
			a.send(request)
		}
		a.sends.success(parts - 1)
		source.fill(0, parts*size, 0xFF)
		a.signal(b)
		if !is(sink.read(0, parts*size), value) {
			e.fatalf("round %d: a completed Write carries what its memory held later", i)
		}
	}
}

// testConcurrentPosts posts from many goroutines. All completions come exactly
// once, and those of one goroutine in its order, at both ends.
func testConcurrentPosts(e *env) {
	const posters = 4
	each := min(e.rounds(250), e.b().attributes.MaxQueueDepth/posters, e.b().attributes.MaxCompletions/posters)
	total := posters * each
	a, b := e.connectEach(nil, func(c *rdma.QueuePairConfig) { c.RecvDepth = total })
	source, sink := a.s.memory(8*total), b.s.memory(8*total)
	for i := range total {
		b.recv(uint64(i), sink.sge(8*i, 8))
		source.write(8*i, wordBytes(uint64(i)))
	}
	var stop atomic.Bool
	defer stop.Store(true)
	var work []func()
	for p := range posters {
		work = append(work, func() {
			request := make([]rdma.SendRequest, 1)
			sges := make([]rdma.SGE, 1)
			for i := range each {
				id := p*each + i
				sges[0] = rdma.SGE{Region: source.Region, Offset: 8 * id, Length: 8}
				request[0] = rdma.SendRequest{ID: uint64(id), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: sges}
				e.poll("room in the send queue", func() bool {
					n, err := a.PostSend(request)
					if err != nil && !errorIs(err, rdma.ErrQueueFull) || n != 1 && err == nil {
						e.fatalf("PostSend: %d, %v", n, err)
					}
					return n == 1 || stop.Load()
				})
				// What the post was given is reused at once.
				sges[0], request[0] = rdma.SGE{}, rdma.SendRequest{}
			}
		})
	}
	inOrder := func(what string, next func() uint64) {
		last := [posters]int{}
		for range total {
			id := int(next())
			if id >= total {
				e.fatalf("%s: ID %d was never posted", what, id)
			}
			if p, i := id/each, id%each; last[p] != i {
				e.fatalf("%s: poster %d: %d comes where %d should", what, p, i, last[p])
			}
			last[id/each]++
		}
	}
	work = append(work, func() {
		inOrder("send completions", func() uint64 {
			c := a.sends.next()
			if c.Status != rdma.StatusSuccess {
				e.fatalf("Send %d: %s", c.ID, c.Status)
			}
			return c.ID
		})
	}, func() {
		received := uint64(0)
		inOrder("messages", func() uint64 {
			b.recvs.success(received)
			received++
			return word(sink.read(int(received-1)*8, 8))
		})
	})
	e.together(work...)
	a.sends.quiet("every request has completed")
	b.recvs.quiet("every receive has completed")
}

// testBothWays streams in both directions at once.
func testBothWays(e *env) {
	a, b := e.connect(nil)
	const window, size = 16, 1000
	n := e.rounds(400)
	stream := func(from, to *conn) []func() {
		source, sink := from.s.memory(size), to.s.memory(window*size)
		source.write(0, patterned(size, 12))
		want := patterned(size, 12)
		credits := make(chan struct{}, n+window)
		for i := range window {
			to.recv(uint64(i), sink.sge(i*size, size))
			credits <- struct{}{}
		}
		return []func(){
			func() {
				for i := range n {
					select {
					case <-credits:
					case <-e.ctx.Done():
						e.fatalf("no credit for message %d", i)
					}
					from.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, size)})
					from.sends.success(uint64(i))
				}
			},
			func() {
				for i := range n {
					to.recvs.success(uint64(i))
					e.same(sink.read(i%window*size, size), want, fmt.Sprintf("message %d from the %s", i, from.s.name))
					to.recv(uint64(i+window), sink.sge(i%window*size, size))
					credits <- struct{}{}
				}
			},
		}
	}
	e.together(append(stream(a, b), stream(b, a)...)...)
}
