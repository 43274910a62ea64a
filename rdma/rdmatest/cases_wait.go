package rdmatest

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// waitCases have messages wait for receives at the end that they have come to.
var waitCases = []testCase{
	{"ReceiverWaits", []Feature{FeatureReceiverWaits}, testReceiverWaits},
	{"ReceiverWaitsLong", []Feature{FeatureReceiverWaits}, testReceiverWaitsLong},
	{"ReceiverWaitsBothWays", []Feature{FeatureReceiverWaits}, testReceiverWaitsBothWays},
	{"SharedReceiverWaits", []Feature{FeatureReceiverWaits, FeatureSharedReceive}, testSharedReceiverWaits},
	{"SharedReceiverStarves", []Feature{FeatureReceiverWaits, FeatureSharedReceive}, testSharedReceiverStarves},
	{"WaitEnds", []Feature{FeatureReceiverWaits}, testWaitEnds},
	{"SharedWaitEnds", []Feature{FeatureReceiverWaits, FeatureSharedReceive}, testSharedWaitEnds},
	{"KilledWhileWaiting", []Feature{FeatureReceiverWaits, FeaturePeer}, testKilledWhileWaiting},
}

// testReceiverWaits posts receives after the messages. What is behind a message
// waits with it.
func testReceiverWaits(e *env) {
	a, b := e.connect(nil)
	source, sink, flag := a.s.memory(64), b.s.memory(64), b.s.memory(8)
	for i := range uint64(6) {
		source.write(0, patterned(64, i+1))
		flag.fill(0, 8, 0)
		a.send(rdma.SendRequest{ID: 2 * i, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 64)})
		a.send(rdma.SendRequest{ID: 2*i + 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: flag.at(0), SGEs: source.sge(0, 8)})
		b.recvs.quiet("there is no receive yet")
		if !is(flag.read(0, 8), 0) {
			e.fatalf("a Write overtakes the message that waits before it")
		}
		b.recv(i, sink.sge(0, 64))
		b.recvs.success(i)
		e.same(sink.read(0, 64), patterned(64, i+1), "late message")
		a.signalled(2*i, 2*i+1)
		a.signal(b)
		e.same(flag.read(0, 8), patterned(64, i+1)[:8], "Write behind the late message")
	}
	if e.suite.has(FeatureWriteImmediate) {
		a.send(rdma.SendRequest{ID: 90, Op: rdma.OpWriteImmediate, Flags: rdma.Signaled, Immediate: 7, Remote: sink.at(0), SGEs: source.sge(0, 8)})
		b.recvs.quiet("there is no receive yet")
		b.recv(90, nil)
		if c := b.recvs.success(90); !c.HasImmediate || c.Immediate != 7 || c.Length != 8 {
			e.errorf("late immediate data: %+v", c)
		}
		a.sends.success(90)
	}
	// A Read of the waiting end comes behind the message, too.
	a.send(rdma.SendRequest{ID: 91, Op: rdma.OpSend, SGEs: source.sge(0, 64)})
	a.send(rdma.SendRequest{ID: 92, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: flag.at(0), SGEs: source.sge(0, 8)})
	a.sends.quiet("the Read waits behind a message")
	b.recv(91, sink.sge(0, 64))
	b.recvs.success(91)
	a.sends.success(92)
}

// testReceiverWaitsLong sends more than the network holds, and has each message
// wait for its receive.
func testReceiverWaitsLong(e *env) {
	a, b := e.connect(nil)
	size := min(256<<10, e.suite.MaxMessage)
	source, sink := a.s.memory(2*size), b.s.memory(size)
	pattern := patterned(2*size, 3)
	source.write(0, pattern)
	n := e.rounds(300)
	lengths := func(i int) (offset, length int) {
		length = size
		if i%3 > 0 {
			length = (i*977)%3000 + i%2 // some are empty
		}
		return (i * 331) % size, length
	}
	e.together(func() {
		outstanding := 0
		for i := range n {
			offset, length := lengths(i)
			if outstanding == 32 {
				a.sends.success(uint64(i - outstanding))
				outstanding--
			}
			a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(offset, length)})
			outstanding++
		}
		for ; outstanding > 0; outstanding-- {
			a.sends.success(uint64(n - outstanding))
		}
	}, func() {
		for i := range n {
			offset, length := lengths(i)
			b.recv(uint64(i), sink.sge(0, size))
			if c := b.recvs.success(uint64(i)); int(c.Length) != length {
				e.fatalf("message %d has %d bytes, want %d", i, c.Length, length)
			}
			e.same(sink.read(0, length), pattern[offset:offset+length], fmt.Sprintf("message %d", i))
		}
	})
}

// testReceiverWaitsBothWays has both ends wait for receives at once.
func testReceiverWaitsBothWays(e *env) {
	a, b := e.connectBothWays()
	const n = 40
	for id := range uint64(n) {
		for _, c := range []*conn{a, b} {
			c.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled})
		}
	}
	a.recvs.quiet("there is no receive yet")
	for id := range uint64(n) {
		for _, c := range []*conn{b, a} {
			c.recv(id, nil)
			c.recvs.success(id)
		}
	}
	for id := range uint64(n) {
		a.sends.success(id)
		b.sends.success(id)
	}
}

// testSharedReceiverWaits has several connections wait for the receives of one
// queue, which come one by one, or a few at a time.
func testSharedReceiverWaits(e *env) {
	const pairs, each = 3, 30
	srq, a, b := e.shared(pairs, rdma.SharedReceiveConfig{Depth: 8, MaxSGE: 1})
	source, sink := a[0].s.memory(8*pairs*each), b[0].s.memory(8*8)
	sources := []*memory{source, a[1].s.memory(8 * each), a[2].s.memory(8 * each)}
	number := map[uint32]int{}
	for p := range pairs {
		number[b[p].Number()] = p
		for i := range each {
			sources[p].write(8*i, wordBytes(uint64(i<<8|p)))
			a[p].send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: sources[p].sge(8*i, 8)})
		}
	}
	counts := [pairs]int{}
	for taken := 0; taken < pairs*each; {
		few := min(1+taken%4, pairs*each-taken)
		for id := range uint64(few) {
			e.postShared(srq, id, sink.sge(8*int(id), 8))
		}
		for range few {
			c := b[0].recvs.next()
			p, known := number[c.QueuePair]
			if c.Status != rdma.StatusSuccess || c.ID >= uint64(few) || !known {
				e.fatalf("message %d: completion %+v", taken, c)
			}
			if got, want := word(sink.read(8*int(c.ID), 8)), uint64(counts[p]<<8|p); got != want {
				e.fatalf("connection %d: message %#x, want %#x", p, got, want)
			}
			counts[p]++
			taken++
		}
	}
	for p := range pairs {
		for i := range uint64(each) {
			a[p].sends.success(i)
		}
	}
	b[0].recvs.quiet("all messages have come")
}

// testSharedReceiverStarves has one connection send without end, and another one
// message. It must get one of the shared receives.
func testSharedReceiverStarves(e *env) {
	srq, a, b := e.shared(2, rdma.SharedReceiveConfig{Depth: 8, MaxSGE: 1})
	e.together(func() {
		// Until the receiver disconnects.
		for id := uint64(0); ; id++ {
			if n, _ := a[0].PostSend([]rdma.SendRequest{{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled}}); n == 0 {
				return
			}
			if id >= 16 && a[0].sends.next().Status != rdma.StatusSuccess {
				return
			}
		}
	}, func() {
		defer func() { e.check(b[0].Disconnect(), "Disconnect") }()
		for i := 0; ; i++ {
			if i == 50 {
				a[1].send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
			}
			e.postShared(srq, 1, nil)
			c := b[0].recvs.next()
			if c.Status != rdma.StatusSuccess {
				e.fatalf("message %d: %+v", i, c)
			}
			if c.QueuePair == b[1].Number() {
				return
			}
		}
	})
}

// waitEnds are the ways in which a connection ends while messages wait at b.
var waitEnds = map[string]func(e *env, a, b *conn){
	"disconnected by the receiver": func(e *env, _, b *conn) { e.check(b.Disconnect(), "Disconnect") },
	"disconnected by the sender":   func(e *env, a, _ *conn) { e.check(a.Disconnect(), "Disconnect") },
	"closed by the receiver":       func(e *env, _, b *conn) { e.check(b.Close(), "Close") },
	"closed by the sender":         func(e *env, a, _ *conn) { e.check(a.Close(), "Close") },
}

// testWaitEnds ends connections while messages wait.
func testWaitEnds(e *env) {
	for name, end := range waitEnds {
		e.logf("%s", name)
		a, b := e.connect(nil)
		source := a.s.memory(4096)
		for id := range uint64(20) {
			a.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 4096)})
		}
		b.recvs.quiet("there is no receive yet")
		end(e, a, b)
		a.ended()
		b.ended()
		e.check(a.Close(), "Close")
		e.check(b.Close(), "Close")
	}
}

// testSharedWaitEnds ends a connection that waits for a shared receive. The
// receives that come afterwards are there for the other.
func testSharedWaitEnds(e *env) {
	for name, end := range waitEnds {
		e.logf("%s", name)
		srq, a, b := e.shared(2, rdma.SharedReceiveConfig{Depth: 8, MaxSGE: 1})
		for id := range uint64(5) {
			a[0].send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled})
		}
		b[0].recvs.quiet("there is no receive yet")
		end(e, a[0], b[0])
		a[0].ended()
		b[0].ended()
		e.check(a[0].Close(), "Close")
		e.check(b[0].Close(), "Close")
		for id := range uint64(8) {
			e.postShared(srq, id, nil)
		}
		for id := range uint64(8) {
			a[1].send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled})
			a[1].sends.success(id)
			if c := b[1].recvs.next(); c.Status != rdma.StatusSuccess || c.QueuePair != b[1].Number() {
				e.fatalf("receive after the end of another connection that waited: %+v", c)
			}
		}
		e.check(a[1].Close(), "Close")
		e.check(b[1].Close(), "Close")
		e.check(srq.Close(), "SharedReceiveQueue.Close")
	}
}

// testKilledWhileWaiting kills a peer whose messages wait at this side. If more is
// under way than the network holds, the end comes behind it: receives let it in.
func testKilledWhileWaiting(e *env) {
	for _, size := range []int{8, 64 << 10} {
		p := e.peer()
		a, b := e.connectBothWays()
		source, sink := b.s.memory(size), a.s.memory(size)
		b.flood(rdma.SendRequest{Op: rdma.OpSend, SGEs: source.sge(0, size)}, 32)
		a.recvs.quiet("there is no receive yet")
		p.Kill()
		for id := uint64(0); size > 8; id++ {
			if n, _ := a.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: sink.sge(0, size)}}); n == 0 {
				break
			}
			if c := a.recvs.next(); c.ID != id || c.Status != rdma.StatusSuccess {
				break
			}
		}
		a.gone(0)
		e.check(a.Close(), "Close")
	}
}
