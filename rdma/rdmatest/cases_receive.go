package rdmatest

import (
	"context"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// receiveCases are about receives, shared ones, and their lack.
var receiveCases = []testCase{
	{"SharedReceive", []Feature{FeatureSharedReceive}, testSharedReceive},
	{"SharedReceiveLimit", []Feature{FeatureSharedReceive}, testSharedReceiveLimit},
	{"SharedReceiveSurvives", []Feature{FeatureSharedReceive}, testSharedReceiveSurvives},
	{"SharedReceiveKeepsAll", []Feature{FeatureSharedReceive}, testSharedReceiveKeepsAll},
	{"SharedReceiveSleeper", []Feature{FeatureSharedReceive}, testSharedReceiveSleeper},
	{"ReceiverLate", []Feature{FeatureReceiverNotReady}, testReceiverLate},
	{"ReceiverNeverReady", []Feature{FeatureReceiverNotReady}, testReceiverNeverReady},
	{"NoReceive", nil, testNoReceive},
	{"MessageTooLong", nil, testMessageTooLong},
	{"ReceiveWithoutMemory", nil, testReceiveWithoutMemory},
	{"SendsFlushed", []Feature{FeatureReceiverNotReady}, testSendsFlushed},
}

// shared makes a shared receive queue and n connections that use it at the
// target, with one queue of receive completions.
func (e *env) shared(n int, config rdma.SharedReceiveConfig) (srq rdma.SharedReceiveQueue, a, b []*conn) {
	e.t.Helper()
	srq, err := e.b().domain.NewSharedReceiveQueue(config)
	e.check(err, "NewSharedReceiveQueue")
	q := e.b().queue(256)
	for range n {
		c, d := e.connectEach(nil, func(c *rdma.QueuePairConfig) {
			c.SharedReceive = srq
			c.RecvCompletions = q.CompletionQueue
		})
		d.recvs = q
		a, b = append(a, c), append(b, d)
	}
	return srq, a, b
}

func (e *env) postShared(srq rdma.SharedReceiveQueue, id uint64, sges []rdma.SGE) {
	e.t.Helper()
	if n, err := srq.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: sges}}); n != 1 || err != nil {
		e.fatalf("SharedReceiveQueue.PostRecv: %d, %v", n, err)
	}
}

func testSharedReceive(e *env) {
	const pairs, depth = 3, 32
	srq, a, b := e.shared(pairs, rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1})
	e.wants(srq.Close(), "close of a shared receive queue in use", rdma.ErrInUse)
	n, err := b[0].PostRecv([]rdma.RecvRequest{{}})
	if n != 0 || err == nil {
		e.errorf("PostRecv to a queue pair with a shared receive queue: %d, %v", n, err)
	}
	source, sink := a[0].s.memory(8), b[0].s.memory(8*depth)
	for i := range depth {
		e.postShared(srq, uint64(i), sink.sge(8*i, 8))
	}
	rounds := e.rounds(400)
	counts := [pairs]uint64{}
	for i := range rounds {
		// Uneven turns: 0 0 0 1 1 2.
		p := [...]int{0, 0, 0, 1, 1, 2}[i%6]
		message := counts[p]<<8 | uint64(p)
		source.write(0, wordBytes(message))
		a[p].send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 8)})
		a[p].sends.success(uint64(i))
		counts[p]++
		c := b[0].recvs.next()
		if c.Status != rdma.StatusSuccess || c.ID >= depth || c.Length != 8 {
			e.fatalf("receive %d completes as %+v", i, c)
		}
		if c.QueuePair != b[p].Number() {
			e.fatalf("message over queue pair %d completes with the number %d", b[p].Number(), c.QueuePair)
		}
		if got := word(sink.read(int(c.ID)*8, 8)); got != message {
			e.fatalf("receive %d holds message %#x, want %#x", c.ID, got, message)
		}
		e.postShared(srq, c.ID, sink.sge(int(c.ID)*8, 8))
	}
	for _, c := range b {
		e.check(c.Close(), "Close")
	}
	e.check(srq.Close(), "SharedReceiveQueue.Close")
}

func testSharedReceiveLimit(e *env) {
	const depth, limit = 16, 5
	srq, a, b := e.shared(2, rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1, LimitEvent: limit})
	for i := range uint64(depth) {
		e.postShared(srq, i, nil)
	}
	low := func(event rdma.Event) bool { return event.Kind == rdma.EventReceiveLimit }
	for i := range depth {
		left := depth - i - 1
		a[i%2].send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
		a[i%2].sends.success(1)
		if c := b[0].recvs.next(); c.Status != rdma.StatusSuccess {
			e.fatalf("receive %d: %s", c.ID, c.Status)
		}
		if left >= limit && e.b().count(low) > 0 {
			e.fatalf("event of the limit %d while %d receives are left", limit, left)
		}
	}
	event := e.b().event("shared receive queue runs low", low)
	if event.SharedReceive != srq {
		e.errorf("the event names another shared receive queue")
	}
	a[0].s.queue(1).quiet("time for a second event")
	if n := e.b().count(low); n != 1 {
		e.errorf("%d events of the limit, want one", n)
	}
}

// testSharedReceiveSurvives fails one of the queue pairs.
func testSharedReceiveSurvives(e *env) {
	const depth = 8
	srq, a, b := e.shared(3, rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1})
	for i := range uint64(depth) {
		e.postShared(srq, i, nil)
	}
	e.check(a[0].Disconnect(), "Disconnect")
	b[0].ended()
	e.check(b[1].Close(), "Close")
	a[1].ended()
	seen := map[uint64]bool{}
	for i := range depth {
		a[2].send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
		a[2].sends.success(1)
		c := b[2].recvs.next()
		if c.Status != rdma.StatusSuccess || seen[c.ID] || c.QueuePair != b[2].Number() {
			e.fatalf("message %d after the others have failed: %+v", i, c)
		}
		seen[c.ID] = true
	}
	b[2].recvs.quiet("no receive is flushed")
}

// testSharedReceiveSleeper has a goroutine sleep for messages of shared receives, as
// servers do. Each message wakes it, and closing the queue ends it: the end of a
// connection need not wake it, since shared receives are not flushed.
func testSharedReceiveSleeper(e *env) {
	const depth = 8
	srq, a, b := e.shared(2, rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1})
	q := b[0].recvs
	for id := range uint64(depth) {
		e.postShared(srq, id, nil)
	}
	messages, over := make(chan rdma.Completion, depth), make(chan error, 1)
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	go func() {
		defer close(messages)
		batch := make([]rdma.Completion, depth)
		for {
			if err := q.Arm(false); err != nil {
				over <- err
				return
			}
			n, err := q.Poll(batch)
			for _, c := range batch[:n] {
				messages <- c
			}
			if n == 0 && err == nil {
				err = q.Wait(ctx)
			}
			if err != nil {
				over <- err
				return
			}
		}
	}()
	bounded, done := e.bound()
	defer done()
	for id := range uint64(depth / 2) {
		p := id % 2
		a[p].send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled})
		a[p].sends.success(id)
		select {
		case c, ok := <-messages:
			if !ok {
				e.fatalf("waiting for message %d: %v", id, <-over)
			}
			if c.Status != rdma.StatusSuccess || c.QueuePair != b[p].Number() {
				e.fatalf("message %d completes as %+v", id, c)
			}
		case <-bounded.Done():
			e.fatalf("message %d wakes nobody", id)
		}
	}
	for _, c := range b {
		e.check(c.Disconnect(), "Disconnect")
		e.check(c.Close(), "Close")
	}
	e.check(q.Close(), "CompletionQueue.Close")
	select {
	case err := <-over:
		e.wants(err, "waiting over CompletionQueue.Close", rdma.ErrClosed)
	case <-bounded.Done():
		e.fatalf("Wait does not end when its queue is closed")
	}
	e.check(srq.Close(), "SharedReceiveQueue.Close")
}

// testSharedReceiveKeepsAll ends a queue pair in the middle of messages. Each
// receive then has been told of, once, or is still there for the other.
func testSharedReceiveKeepsAll(e *env) {
	const depth = 8
	size := min(64<<10, e.suite.MaxMessage)
	for round := range e.rounds(24) {
		srq, a, b := e.shared(2, rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1})
		source, sink := a[0].s.memory(size), b[0].s.memory(size*depth)
		for i := range depth {
			e.postShared(srq, uint64(i), sink.sge(i*size, size))
		}
		batch := make([]rdma.SendRequest, depth)
		for i := range batch {
			batch[i] = rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, SGEs: source.sge(0, size)}
		}
		if n, err := a[0].PostSend(batch); n != depth {
			e.fatalf("PostSend of %d: %d, %v", depth, n, err)
		}
		told := map[uint64]bool{}
		tell := func(c rdma.Completion, of *conn) {
			if c.QueuePair != of.Number() || c.ID >= depth || told[c.ID] {
				e.fatalf("round %d: completion %+v, after those of %v", round, c, told)
			}
			told[c.ID] = true
		}
		for range round % (depth - 1) {
			c := b[0].recvs.next()
			if tell(c, b[0]); c.Status != rdma.StatusSuccess {
				e.fatalf("round %d: %+v", round, c)
			}
		}
		if round%2 == 0 {
			e.check(b[0].Disconnect(), "Disconnect")
			b[0].ended()
		}
		e.check(b[0].Close(), "Close")
		// No completion of it is added from here on.
		q := b[0].recvs
		for late := append(q.pending, q.poll()...); len(late) > 0; late = q.poll() {
			q.pending = nil
			for _, c := range late {
				if tell(c, b[0]); c.Status != rdma.StatusSuccess && c.Status != rdma.StatusFlushed {
					e.fatalf("round %d: %+v", round, c)
				}
			}
		}
		for len(told) < depth {
			a[1].send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
			a[1].sends.success(1)
			c := b[1].recvs.next()
			if tell(c, b[1]); c.Status != rdma.StatusSuccess {
				e.fatalf("round %d: %+v", round, c)
			}
		}
		a[0].ended()
		for _, c := range []*conn{a[0], a[1], b[1]} {
			e.check(c.Close(), "Close")
		}
		e.check(srq.Close(), "SharedReceiveQueue.Close")
		e.check(source.Close(), "Region.Close")
		e.check(sink.Close(), "Region.Close")
	}
}

// testReceiverLate posts receives after the messages.
func testReceiverLate(e *env) {
	for _, retry := range []time.Duration{-1, time.Hour} {
		a, b := e.connect(func(c *rdma.QueuePairConfig) { c.ReceiverNotReadyRetry = retry })
		source, sink := a.s.memory(64), b.s.memory(64)
		for i := range uint64(3) {
			source.write(0, patterned(64, i))
			a.send(rdma.SendRequest{ID: 2 * i, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 64)})
			a.send(rdma.SendRequest{ID: 2*i + 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 0)})
			a.sends.quiet("nothing completes before the receive is there")
			b.recv(i, sink.sge(0, 64))
			b.recvs.success(i)
			e.same(sink.read(0, 64), patterned(64, i), "late message")
			a.signalled(2*i, 2*i+1)
		}
		if e.suite.has(FeatureWriteImmediate) {
			a.send(rdma.SendRequest{ID: 9, Op: rdma.OpWriteImmediate, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 8)})
			a.sends.quiet("nothing completes before the receive is there")
			b.recv(9, nil)
			b.recvs.success(9)
			a.sends.success(9)
		}
	}
}

func testReceiverNeverReady(e *env) {
	for _, retry := range []time.Duration{0, 50 * time.Millisecond} {
		a, b := e.connect(func(c *rdma.QueuePairConfig) { c.ReceiverNotReadyRetry = retry })
		a.recv(1, nil)
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend}) // not signalled, and completes all the same
		flushed := 0
		for id := range uint64(3) {
			if n, err := a.PostSend([]rdma.SendRequest{{ID: id + 2, Op: rdma.OpSend, Flags: rdma.Signaled}}); n != 1 {
				e.wants(err, "PostSend after the failure", rdma.ErrState)
				break
			}
			flushed++
		}
		if c := a.sends.next(); c.ID != 1 || c.Status != rdma.StatusReceiverNotReady {
			e.fatalf("Send without a receive, retry time %v: completion of %d: %s", retry, c.ID, c.Status)
		}
		for id := range uint64(flushed) {
			if c := a.sends.next(); c.ID != id+2 || c.Status != rdma.StatusFlushed {
				e.fatalf("behind the failed Send: completion of %d: %s; want %d flushed", c.ID, c.Status, id+2)
			}
		}
		a.ended()
		a.flushed(1)
		a.postsFail()
		e.check(a.Close(), "Close")
		b.ended()
	}
}

// testNoReceive sends to a peer without receives where the device does not
// wait: the connection fails, at both ends.
func testNoReceive(e *env) {
	if e.suite.has(FeatureReceiverNotReady) || e.b().attributes.Has(rdma.CapReceiverWaits) {
		return // testReceiverNeverReady is its case, or testReceiverWaits
	}
	a, b := e.connect(nil)
	a.recv(1, nil)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
	a.ended()
	b.ended()
	a.sends.next() // success or not, it completes
	a.flushed(1)
	a.postsFail()
	b.postsFail()
	b.recvs.quiet("there was no receive")
}

func testMessageTooLong(e *env) {
	for _, sizes := range [][2]int{{1, 0}, {65, 64}, {100_000, 99_999}} {
		a, b := e.connect(nil)
		source, sink := a.s.memory(sizes[0]), b.s.memory(sizes[0]+guard)
		sink.fill(0, sink.size, 0xA5)
		b.recv(1, sink.sge(0, sizes[1]))
		b.recv(2, sink.sge(0, sizes[1]))
		a.recv(1, nil)
		what := fmt.Sprintf("Send of %d bytes to a receive of %d", sizes[0], sizes[1])
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, sizes[0])})
		strict := e.suite.has(FeatureLengthStatus)
		c := b.recvs.next()
		if c.ID != 1 || c.Status == rdma.StatusSuccess || strict && c.Status != rdma.StatusLocalLength {
			e.errorf("%s: receive %d: %s, want %s", what, c.ID, c.Status, rdma.StatusLocalLength)
		}
		if c := b.recvs.next(); c.ID != 2 || c.Status != rdma.StatusFlushed {
			e.errorf("%s: receive %d behind it: %s", what, c.ID, c.Status)
		}
		c = a.sends.next()
		if a.s.attributes.Class == rdma.ClassInfiniBand && (c.Status == rdma.StatusSuccess || strict && c.Status != rdma.StatusRemoteInvalid) {
			e.errorf("%s: %s, want %s", what, c.Status, rdma.StatusRemoteInvalid)
		}
		a.ended()
		b.ended()
		a.flushed(1)
		if !is(sink.read(sizes[1], sink.size-sizes[1]), 0xA5) {
			e.errorf("%s: lands outside of the receive", what)
		}
	}
}

// testReceiveWithoutMemory receives into memory that is gone, or may not be
// written.
func testReceiveWithoutMemory(e *env) {
	fails := func(a, b *conn) {
		e.t.Helper()
		a.recv(1, nil)
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.s.memory(8).sge(0, 8)})
		if c := b.recvs.next(); c.ID != 1 || c.Status == rdma.StatusSuccess {
			e.errorf("receive %d into memory that may not be used: %s", c.ID, c.Status)
		}
		b.ended()
		a.ended()
		c := a.sends.next()
		if a.s.attributes.Class == rdma.ClassInfiniBand && c.Status == rdma.StatusSuccess {
			e.errorf("Send to such a receive: %s", c.Status)
		}
		a.flushed(1)
	}
	a, b := e.connect(nil)
	m := b.s.memory(64)
	b.recv(1, m.sge(0, 64))
	e.check(m.Close(), "Region.Close")
	fails(a, b)

	a, b = e.connect(nil)
	n, err := b.PostRecv([]rdma.RecvRequest{{ID: 1, SGEs: b.s.allocate(64, rdma.AccessRemoteRead).sge(0, 64)}})
	if n == 1 {
		fails(a, b)
		return
	}
	e.wants(err, "PostRecv without the right of local write", rdma.ErrInvalid)
	a.signal(b)
}

// testSendsFlushed disconnects while Sends wait for receives.
func testSendsFlushed(e *env) {
	for _, byPeer := range []bool{false, true} {
		a, b := e.connect(nil)
		const n = 20
		for id := range uint64(n) {
			flags := rdma.Flags(0)
			if id%3 == 0 {
				flags = rdma.Signaled
			}
			a.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: flags})
			a.recv(id+1, nil)
		}
		if byPeer {
			e.check(b.Disconnect(), "Disconnect")
		} else {
			e.check(a.Disconnect(), "Disconnect")
		}
		for id := range uint64(n) {
			c := a.sends.next()
			first := id == 0 && byPeer && (c.Status == rdma.StatusRetryExceeded || c.Status == rdma.StatusRemoteOperation)
			if c.ID != id || c.Status != rdma.StatusFlushed && !first {
				e.fatalf("disconnected (by the peer: %v): completion of %d: %s; want %d flushed", byPeer, c.ID, c.Status, id)
			}
		}
		a.flushed(n)
		a.sends.quiet("all is flushed")
		a.ended()
		b.ended()
	}
}
