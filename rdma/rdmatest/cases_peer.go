package rdmatest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// peerCases have a target that is killed or stopped.
var peerCases = []testCase{
	{"KilledUnderWrites", []Feature{FeaturePeer}, func(e *env) { testKilledUnderStream(e, rdma.OpWrite) }},
	{"KilledUnderReads", []Feature{FeaturePeer}, func(e *env) { testKilledUnderStream(e, rdma.OpRead) }},
	{"KilledWhileSending", []Feature{FeaturePeer}, testKilledWhileSending},
	{"KilledWhileWriting", []Feature{FeaturePeer}, testKilledWhileWriting},
	{"KilledInitiator", []Feature{FeaturePeer}, testKilledInitiator},
	{"KilledWhileIdle", []Feature{FeaturePeer}, testKilledWhileIdle},
	{"KilledWhileConnecting", []Feature{FeaturePeer}, testKilledWhileConnecting},
	{"Stopped", []Feature{FeaturePeer}, testStopped},
}

// peer starts a peer, which is the case's target from then on.
func (e *env) peer() *Peer {
	e.t.Helper()
	p := e.suite.Peer(e.t)
	if p == nil {
		e.fatalf("Suite.Peer returns nothing")
	}
	device := p.Device
	if e.suite.OverStream {
		var err error
		device, err = overTCP(device)
		e.check(err, "peer")
	}
	e.sideB = e.newSide("peer", device)
	e.cleanup(p.Kill)
	return p
}

func testKilledUnderStream(e *env, op rdma.Opcode) {
	for _, after := range []int64{1, 50, 333} {
		killUnderStream(e, op, after)
	}
}

// killUnderStream kills the peer when so many requests have been done.
func killUnderStream(e *env, op rdma.Opcode, after int64) {
	p := e.peer()
	a, b := e.connect(nil)
	const size = 64 << 10
	local, remote := a.s.memory(size), b.s.memory(size)
	local.fill(0, size, 1)
	remote.fill(0, size, 2)
	a.recv(1, nil)
	a.recv(2, nil)
	var landed atomic.Int64
	var status rdma.Status
	e.together(func() {
		status = a.streamWrites(rdma.SendRequest{Op: op, Remote: remote.at(0), SGEs: local.sge(0, size)}, &landed)
	}, func() {
		e.poll("requests under way", func() bool { return landed.Load() >= after || a.State() != rdma.StateConnected })
		p.Kill()
	})
	a.died(2, status)
	a.postsFail()
	if op == rdma.OpRead && landed.Load() > 0 && !is(local.read(0, size), 2) {
		e.errorf("%d Reads of a peer that is killed succeed and bring something else", landed.Load())
	}
	e.check(a.Close(), "Close")
}

// died is gone for a peer whose memory this side was reaching into when it was
// killed. Its device may have refused that before the connection ended: then the
// request that was refused, with the status, says so, and so does Err.
func (c *conn) died(receives int, status rdma.Status) {
	c.s.e.t.Helper()
	if c.ended(); c.s.e.suite.has(FeatureDeathTold) || status != rdma.StatusRemoteAccess {
		c.gone(receives)
		return
	}
	c.s.e.wants(c.Err(), c.s.name+": Err after the peer's death", rdma.ErrRemoteAccess, rdma.ErrDisconnected)
	c.s.event("the end", func(event rdma.Event) bool {
		return (event.Kind == rdma.EventDisconnected || event.Kind == rdma.EventQueuePairError) &&
			event.QueuePair != nil && event.QueuePair.Number() == c.Number()
	})
	c.flushed(receives)
}

// testKilledWhileSending kills a peer that sends to this side.
func testKilledWhileSending(e *env) {
	p := e.peer()
	a, b := e.connectBothWays()
	// The initiator takes what the peer sends, at its own pace.
	local, remote := a.s.memory(8<<10), b.s.memory(8<<10)
	var received atomic.Int64
	killed := make(chan struct{})
	e.together(func() {
		for id := range uint64(32) {
			a.recv(id, local.sge(0, 8<<10))
		}
		b.flood(rdma.SendRequest{Op: rdma.OpSend, SGEs: remote.sge(0, 8<<10)}, 32)
		next := uint64(0)
		for ; ; next++ {
			c := a.recvs.next()
			if c.ID != next {
				e.fatalf("receive %d completes where %d should", c.ID, next)
			}
			if c.Status != rdma.StatusSuccess {
				if c.Status != rdma.StatusFlushed {
					e.errorf("receive of a killed peer's message: %s", c.Status)
				}
				break
			}
			received.Add(1)
		}
		for next++; next < 32; next++ {
			if c := a.recvs.next(); c.ID != next || c.Status != rdma.StatusFlushed {
				e.fatalf("receive %d: %s; want %d flushed", c.ID, c.Status, next)
			}
		}
	}, func() {
		e.poll("messages under way", func() bool { return received.Load() > 10 })
		p.Kill()
		close(killed)
	})
	<-killed
	a.gone(0)
}

// flood posts n requests of c at once.
func (c *conn) flood(request rdma.SendRequest, n int) {
	c.s.e.t.Helper()
	batch := make([]rdma.SendRequest, n-1)
	for i := range batch {
		batch[i] = request
		batch[i].ID = uint64(i)
	}
	// One fewer than the receives, so that the last of them is flushed.
	taken, err := c.PostSend(batch)
	if taken != len(batch) {
		c.s.e.fatalf("PostSend of %d requests: %d, %v", len(batch), taken, err)
	}
}

// testKilledWhileWriting kills a peer that writes to this side's memory.
func testKilledWhileWriting(e *env) {
	const size = 1 << 20
	for range 2 {
		p := e.peer()
		a, b := e.connectBothWays()
		m, source := a.s.memory(size), b.s.memory(size)
		source.fill(0, size, 0xFF)
		a.recv(1, nil)
		b.flood(rdma.SendRequest{Op: rdma.OpWrite, Remote: m.at(0), SGEs: source.sge(0, size)}, 32)
		p.Kill()
		a.gone(1)
		e.check(m.Close(), "Region.Close after the peer's death")
		later := a.s.memory(size)
		e.check(a.Close(), "Close")
		if !is(later.read(0, size), 0) {
			e.errorf("a dead peer's Write lands in memory that was allocated later")
		}
		e.check(later.Close(), "Region.Close")
	}
}

// testKilledInitiator kills the one who has connected to this side.
func testKilledInitiator(e *env) {
	p := e.peer()
	a, b := e.a().newConn(nil), e.b().newConn(nil)
	e.join(b, a)
	b.signal(a)
	a.signal(b)
	a.recv(1, nil)
	p.Kill()
	a.gone(1)
	e.check(a.Close(), "Close")
	// The listener goes on.
	e.peer()
	a, b = e.a().newConn(nil), e.b().newConn(nil)
	e.join(b, a)
	b.signal(a)
}

// testKilledWhileIdle has nothing going on but a waiting receiver.
func testKilledWhileIdle(e *env) {
	p := e.peer()
	a, b := e.connect(nil)
	c, d := e.connectBothWays()
	a.signal(b)
	d.signal(c)
	a.recv(1, nil)
	c.recv(1, nil)
	e.check(a.recvs.Arm(true), "Arm")
	ctx, cancel := e.bound()
	defer cancel()
	e.together(func() {
		e.check(a.recvs.Wait(ctx), "Wait while the peer dies")
	}, p.Kill)
	a.gone(1)
	c.gone(1)
}

func testKilledWhileConnecting(e *env) {
	p := e.peer()
	l := e.b().listen()
	address := l.Address()
	a := e.a().newConn(nil)
	failed := make(chan error, 1)
	// Some paths tell nothing of the death: the deadline is what ends it there.
	ctx, cancel := context.WithTimeout(e.ctx, 3*time.Second)
	defer cancel()
	p.Stop()
	go func() {
		_, err := a.Connect(ctx, address, nil)
		failed <- err
	}()
	soon, cancel := e.soon()
	defer cancel()
	select {
	case err := <-failed:
		e.errorf("Connect to a stopped peer: %v", err)
		return
	case <-soon.Done():
	}
	p.Kill()
	select {
	case err := <-failed:
		if err == nil {
			e.errorf("Connect to a killed peer succeeds")
		}
	case <-e.ctx.Done():
		e.fatalf("Connect to a killed peer does not end")
	}
	// Nobody is there any more.
	c := e.a().newConn(nil)
	if _, err := c.Connect(ctx, address, nil); err == nil {
		e.errorf("Connect to a dead peer succeeds")
	}
}

// testStopped has a peer that does not move. Waits and Connect keep their
// deadlines; when it moves on, so does everything.
func testStopped(e *env) {
	p := e.peer()
	a, b := e.connect(nil)
	m, sink := b.s.memory(4096), a.s.memory(4096)
	m.fill(0, 4096, 4)
	address := b.s.listen().Address()
	a.recv(7, nil)
	p.Stop()
	e.check(a.recvs.Arm(false), "Arm")
	ctx, cancel := e.soon()
	e.wants(a.recvs.Wait(ctx), "Wait on a stopped peer", context.DeadlineExceeded)
	cancel()
	c := e.a().newConn(nil)
	ctx, cancel = context.WithTimeout(e.ctx, 100*time.Millisecond)
	_, err := c.Connect(ctx, address, nil)
	e.wants(err, "Connect to a stopped peer", rdma.ErrTimeout, context.DeadlineExceeded)
	cancel()
	e.check(c.Close(), "Close")
	// Posts do not block on it. What it takes without the peer is its own affair.
	for id := range uint64(8) {
		a.send(rdma.SendRequest{ID: id, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: m.at(0), SGEs: sink.sge(0, 4096)})
	}
	p.Continue()
	for id := range uint64(8) {
		a.sends.success(id)
	}
	if !is(sink.read(0, 4096), 4) {
		e.errorf("a Read of a peer that was stopped brings something else")
	}
	b.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
	a.recvs.success(7)
	// Stopped for good, it does not keep this side from closing.
	a.recv(8, nil)
	p.Stop()
	e.check(a.Disconnect(), "Disconnect")
	a.ended()
	if c := a.recvs.next(); c.ID != 8 || c.Status != rdma.StatusFlushed {
		e.errorf("receive %d: %s", c.ID, c.Status)
	}
	e.check(a.Close(), "Close")
	e.check(a.s.domain.Close(), "Domain.Close")
	p.Kill()
}
