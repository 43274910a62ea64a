package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// connectionCases are about how connections begin and end.
var connectionCases = []testCase{
	{"Connect", nil, testConnect},
	{"ConnectToNobody", nil, testConnectToNobody},
	{"PrivateData", []Feature{FeaturePrivateData}, testPrivateData},
	{"Reject", nil, testReject},
	{"Listener", nil, testListener},
	{"AcceptNobodyWaits", nil, testAcceptNobodyWaits},
	{"SilentTarget", nil, testSilentTarget},
	{"SilentInitiator", nil, testSilentInitiator},
	{"Disconnect", nil, testDisconnect},
	{"CloseIsSeen", nil, testCloseIsSeen},
	{"ManyConnections", nil, testManyConnections},
	{"SameDomain", nil, testSameDomain},
	{"Relisten", nil, testRelisten},
	{"Leaks", []Feature{FeatureMemory}, testLeaks},
	{"ConnectAllAtOnce", nil, testConnectAllAtOnce},
	{"TargetFirst", []Feature{FeatureTargetFirst}, testTargetFirst},
}

func testConnect(e *env) {
	a, b := e.connect(nil)
	ctx, cancel := e.bound()
	defer cancel()
	_, err := a.Connect(ctx, b.s.listen().Address(), nil)
	e.wants(err, "second Connect", rdma.ErrState)
	if a.State() != rdma.StateConnected {
		e.errorf("a second Connect harms the queue pair: %s", a.State())
	}
	select {
	case <-a.Done():
		e.errorf("Done is closed while connected")
	default:
	}
	if err := a.Err(); err != nil {
		e.errorf("Err while connected: %v", err)
	}
	a.signal(b)
	b.signal(a)
	// A second connection of the same domains has its own numbers.
	c, d := e.connect(nil)
	if a.Number() == c.Number() || b.Number() == d.Number() {
		e.errorf("two queue pairs of one device have the same number")
	}
	c.signal(d)
	a.signal(b)
}

func testConnectToNobody(e *env) {
	l, err := e.b().device.Listen(e.ctx, e.suite.Address)
	e.check(err, "Listen")
	address := l.Address()
	e.check(l.Close(), "Listener.Close")
	a := e.a().newConn(nil)
	a.recv(5, nil)
	ctx, cancel := e.bound()
	defer cancel()
	if _, err := a.Connect(ctx, address, nil); err == nil {
		e.fatalf("Connect to a closed listener succeeds")
	}
	if err := e.ctx.Err(); err != nil {
		e.fatalf("Connect to a closed listener: no answer before %v", err)
	}
	if state := a.State(); state == rdma.StateConnected {
		e.errorf("queue pair is %s after a failed Connect", state)
	}
	e.check(a.Close(), "Close")
	if _, err := e.a().newConn(nil).Connect(ctx, "not an address \x00 at all", nil); err == nil {
		e.errorf("Connect to nonsense succeeds")
	}
}

// exchange connects with private data both ways.
func (e *env) exchange(there, back []byte) {
	e.t.Helper()
	a, b := e.a().newConn(nil), e.b().newConn(nil)
	l := b.s.listen()
	ctx, cancel := e.bound()
	defer cancel()
	e.together(func() {
		reply, err := a.Connect(ctx, l.Address(), there)
		e.check(err, "Connect")
		e.same(reply, back, "private data of the answer")
	}, func() {
		request, err := l.Accept(ctx)
		e.check(err, "Accept")
		e.same(request.PrivateData(), there, "private data of the request")
		if request.RemoteAddress() == "" {
			e.errorf("RemoteAddress is empty")
		}
		e.check(request.Accept(ctx, b.QueuePair, back), "ConnectRequest.Accept")
	})
	a.signal(b)
	e.check(a.Close(), "Close")
	e.check(b.Close(), "Close")
}

func testPrivateData(e *env) {
	most := min(e.a().attributes.MaxPrivateData, e.b().attributes.MaxPrivateData)
	for _, n := range []int{0, 1, most / 2, most} {
		e.exchange(patterned(n, 1), patterned(most-n, 2))
	}
	e.exchange(patterned(most, 3), patterned(most, 4))

	ctx, cancel := e.bound()
	defer cancel()
	a := e.a().newConn(nil)
	_, err := a.Connect(ctx, e.b().listen().Address(), make([]byte, a.s.attributes.MaxPrivateData+1))
	e.wants(err, "Connect with too much private data", rdma.ErrInvalid)
}

func testReject(e *env) {
	most := 0
	if e.suite.has(FeaturePrivateData) {
		most = min(e.a().attributes.MaxPrivateData, e.b().attributes.MaxPrivateData)
	}
	l := e.b().listen()
	for _, n := range []int{0, most} {
		ctx, cancel := e.bound()
		defer cancel()
		why := patterned(n, 5)
		a := e.a().newConn(nil)
		e.together(func() {
			_, err := a.Connect(ctx, l.Address(), nil)
			var rejected *rdma.RejectedError
			if !errors.As(err, &rejected) {
				e.fatalf("Connect: %v, want a RejectedError", err)
			}
			e.same(rejected.PrivateData, why, "private data of the refusal")
		}, func() {
			request, err := l.Accept(ctx)
			e.check(err, "Accept")
			e.check(request.Reject(why), "Reject")
		})
		if a.State() == rdma.StateConnected {
			e.errorf("rejected queue pair is %s", a.State())
		}
		e.check(a.Close(), "Close of a rejected queue pair")
	}
}

func testListener(e *env) {
	s := e.b()
	l, err := s.device.Listen(e.ctx, e.suite.Address)
	e.check(err, "Listen")
	if l.Address() == "" {
		e.errorf("Address is empty")
	}
	ctx, cancel := e.soon()
	_, err = l.Accept(ctx)
	cancel()
	e.wants(err, "Accept with a deadline", context.DeadlineExceeded, rdma.ErrTimeout)

	// One that waits when the listener is closed.
	ended := make(chan error, 1)
	go func() {
		request, err := l.Accept(e.ctx)
		if err == nil {
			e.cleanup(func() { _ = request.Reject(nil) }) // nobody waits for it any more
		}
		ended <- err
	}()
	s.listener = l
	a, b := e.a().newConn(nil), s.newConn(nil)
	connected := make(chan error, 1)
	bounded, cancel := e.bound()
	defer cancel()
	go func() {
		_, err := a.Connect(bounded, l.Address(), nil)
		connected <- err
	}()
	// The request has been taken and stays without an answer.
	if err := <-ended; err != nil {
		e.fatalf("Accept: %v", err)
	}
	e.check(a.Close(), "Close of a queue pair that connects")
	select {
	case err := <-connected:
		if err == nil {
			e.errorf("Connect succeeds on a queue pair that was closed meanwhile")
		}
	case <-bounded.Done():
		e.fatalf("Connect does not end when its queue pair is closed")
	}
	e.check(b.Close(), "Close")

	c, d := e.connect(nil)
	go func() {
		_, err := l.Accept(e.ctx)
		ended <- err
	}()
	e.check(l.Close(), "Listener.Close")
	select {
	case err := <-ended:
		e.wants(err, "Accept at a closed listener", rdma.ErrClosed)
	case <-bounded.Done():
		e.fatalf("Accept does not end when the listener is closed")
	}
	_, err = l.Accept(bounded)
	e.wants(err, "Accept after Close", rdma.ErrClosed)
	c.signal(d) // established connections are left alone
	d.signal(c)
	s.listener = nil
}

// testAcceptNobodyWaits answers an initiator that has gone.
func testAcceptNobodyWaits(e *env) {
	a, b := e.a().newConn(nil), e.b().newConn(nil)
	l := b.s.listen()
	connected := make(chan error, 1)
	short, cancelShort := context.WithCancel(e.ctx)
	defer cancelShort()
	go func() {
		_, err := a.Connect(short, l.Address(), nil)
		connected <- err
	}()
	ctx, cancel := e.bound()
	defer cancel()
	request, err := l.Accept(ctx)
	e.check(err, "Accept")
	cancelShort()
	select {
	case err := <-connected:
		if err == nil {
			e.errorf("Connect succeeds without an answer")
		}
	case <-ctx.Done():
		e.fatalf("Connect does not end when its context is cancelled")
	}
	e.check(a.Close(), "Close")
	// Whether the target notices at once or by a connection that ends at once
	// depends on the path; it must do one of the two.
	b.recv(1, nil)
	if err := request.Accept(ctx, b.QueuePair, nil); err == nil {
		b.ended()
	}
	e.check(b.Close(), "Close")
}

// testSilentTarget connects to one that takes the transport and says nothing.
func testSilentTarget(e *env) {
	l := e.b().listen()
	for range 3 {
		a := e.a().newConn(nil)
		ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
		_, err := a.Connect(ctx, l.Address(), nil)
		cancel()
		e.wants(err, "Connect with a deadline to a silent target", rdma.ErrTimeout, context.DeadlineExceeded)
		if a.State() == rdma.StateConnected {
			e.errorf("queue pair is %s after a failed Connect", a.State())
		}
		e.check(a.Close(), "Close")
	}
}

// testSilentInitiator has initiators that open the transport and say nothing
// or nonsense. They must not keep others from connecting.
func testSilentInitiator(e *env) {
	l := e.b().listen()
	if e.suite.Dial != nil {
		for i := range 8 {
			ctx, cancel := e.bound()
			raw, err := e.suite.Dial(ctx, l.Address())
			cancel()
			e.check(err, "Suite.Dial")
			e.cleanup(func() { raw.Close() })
			if i%2 == 1 {
				// The target may close before all of it is written.
				_, _ = raw.Write(patterned(4096, uint64(i)))
			}
		}
		if !e.suite.OverStream {
			e.connectFirst(l)
		}
	}
	for _, s := range e.sides() {
		streams, ok := s.device.(rdma.StreamDevice)
		if !ok || !s.attributes.Has(rdma.CapStreams) {
			continue
		}
		for _, garbage := range [][]byte{nil, patterned(4096, 9), make([]byte, 64)} {
			here, there := e.tcpPair()
			ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
			_, _ = here.Write(garbage)
			_, err := streams.RequestFromStream(ctx, there)
			if err == nil {
				e.errorf("%s: RequestFromStream takes %d bytes of nonsense", s.name, len(garbage))
			} else if len(garbage) == 0 {
				e.wants(err, s.name+": RequestFromStream with a deadline", rdma.ErrTimeout, context.DeadlineExceeded)
			}
			cancel()
			here.Close()
			there.Close()
		}
		here, there := e.tcpPair()
		here.Close()
		if _, err := streams.RequestFromStream(e.ctx, there); err == nil {
			e.errorf("%s: RequestFromStream takes an ended stream", s.name)
		}
		there.Close()
		// A stream whose other end takes it and says nothing.
		here, there = e.tcpPair()
		c := s.newConn(nil)
		ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
		_, err := streams.ConnectStream(ctx, c.QueuePair, here, nil)
		e.wants(err, s.name+": ConnectStream with a deadline", rdma.ErrTimeout, context.DeadlineExceeded)
		cancel()
		e.check(c.Close(), "Close")
		here.Close()
		there.Close()
		// One whose other end answers nonsense, and one that it ends.
		for _, garbage := range [][]byte{patterned(4096, 11), nil} {
			here, there = e.tcpPair()
			_, _ = there.Write(garbage)
			there.Close()
			c = s.newConn(nil)
			ctx, cancel := e.bound()
			if _, err := streams.ConnectStream(ctx, c.QueuePair, here, nil); err == nil {
				e.errorf("%s: ConnectStream succeeds on nonsense", s.name)
			}
			cancel()
			e.check(c.Close(), "Close")
			here.Close()
		}
	}
}

// connectFirst connects at a listener that has garbage before the request;
// Accept may report it as an error.
func (e *env) connectFirst(l rdma.Listener) {
	e.t.Helper()
	a, b := e.a().newConn(nil), e.b().newConn(nil)
	ctx, cancel := e.bound()
	defer cancel()
	e.together(func() {
		_, err := a.Connect(ctx, l.Address(), nil)
		e.check(err, "Connect beside silent ones")
	}, func() {
		for {
			request, err := l.Accept(ctx)
			if err != nil && ctx.Err() == nil && !errors.Is(err, rdma.ErrClosed) {
				e.logf("Accept beside silent ones: %v", err)
				continue
			}
			e.check(err, "Accept beside silent ones")
			e.check(request.Accept(ctx, b.QueuePair, nil), "ConnectRequest.Accept")
			return
		}
	})
	a.signal(b)
}

func (e *env) tcpPair() (a, b net.Conn) {
	e.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	e.check(err, "net.Listen")
	defer l.Close()
	a, err = net.Dial("tcp", l.Addr().String())
	e.check(err, "net.Dial")
	b, err = l.Accept()
	e.check(err, "net.Listener.Accept")
	return a, b
}

// gone checks that the peer's end was seen: the receives with the IDs from 1 to
// receives are flushed in order.
func (c *conn) gone(receives int) {
	c.s.e.t.Helper()
	e := c.s.e
	c.ended()
	e.wants(c.Err(), c.s.name+": Err after the peer left", rdma.ErrDisconnected)
	c.s.event("disconnected", func(event rdma.Event) bool {
		return event.Kind == rdma.EventDisconnected && event.QueuePair != nil && event.QueuePair.Number() == c.Number()
	})
	c.flushed(receives)
}

// flushed takes the flushed receives with the IDs from 1 on.
func (c *conn) flushed(receives int) {
	c.s.e.t.Helper()
	for id := range uint64(receives) {
		if got := c.recvs.next(); got.ID != id+1 || got.Status != rdma.StatusFlushed || got.QueuePair != c.Number() {
			c.s.e.fatalf("%s: receive %d of queue pair %d: %s; want %d of %d flushed", c.s.name, got.ID, got.QueuePair, got.Status, id+1, c.Number())
		}
	}
}

// postsFail checks that a failed queue pair takes nothing.
func (c *conn) postsFail() {
	c.s.e.t.Helper()
	n, err := c.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled}})
	if n != 0 {
		c.s.e.errorf("%s: a failed queue pair takes a send", c.s.name)
	}
	c.s.e.wants(err, c.s.name+": PostSend after the failure", rdma.ErrState, rdma.ErrClosed)
	if n, err = c.PostRecv([]rdma.RecvRequest{{}}); n != 0 {
		c.s.e.errorf("%s: a failed queue pair takes a receive", c.s.name)
	}
	c.s.e.wants(err, c.s.name+": PostRecv after the failure", rdma.ErrState, rdma.ErrClosed)
}

func testDisconnect(e *env) {
	for round := range 4 {
		a, b := e.connect(nil)
		if round > 1 {
			a.signal(b) // without it a target may have to wait with its Write (RFC 5044)
		}
		if round%2 == 1 {
			a, b = b, a
		}
		for id := range uint64(3) {
			a.recv(id+1, nil)
			b.recv(id+1, nil)
		}
		if round > 1 {
			// A Write before it, whose completion has been seen, has been done.
			m, n := a.s.memory(64), b.s.memory(64)
			a.send(rdma.SendRequest{ID: 9, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: n.at(0), SGEs: m.sge(0, 64)})
			a.sends.success(9)
		}
		e.check(a.Disconnect(), "Disconnect")
		a.ended()
		a.flushed(3)
		b.gone(3)
		a.postsFail()
		b.postsFail()
		a.recvs.quiet("all is flushed")
		e.check(a.Close(), "Close")
		e.check(b.Close(), "Close")
	}
}

func testCloseIsSeen(e *env) {
	a, b := e.connect(nil)
	for id := range uint64(3) {
		b.recv(id+1, nil)
		a.recv(id+1, nil)
	}
	e.check(a.Close(), "Close")
	b.gone(3)
	b.postsFail()
	if n, err := a.recvs.Poll(make([]rdma.Completion, 8)); err != nil || n > 3 {
		e.errorf("Poll after QueuePair.Close: %d, %v", n, err)
	}
	a.recvs.quiet("after QueuePair.Close")

	// A domain that is closed ends its connections.
	other := e.newSide("short-lived", e.suite.target)
	c, d := e.a().newConn(nil), other.newConn(nil)
	e.join(c, d)
	c.recv(1, nil)
	e.check(other.domain.Close(), "Domain.Close")
	c.gone(1)
}

func testManyConnections(e *env) {
	n := 64
	sides := [2]*side{e.a(), e.b()}
	var cqs [2]*queue
	var conns [2][]*conn
	for i, s := range sides {
		cqs[i] = s.queue(min(16*n, s.attributes.MaxCompletions))
		for range n {
			c := s.newConn(using(cqs[i], cqs[i]))
			c.sends, c.recvs = cqs[i], cqs[i]
			conns[i] = append(conns[i], c)
		}
	}
	for i := range n {
		e.join(conns[0][i], conns[1][i])
	}
	m, r := sides[0].memory(8*n), sides[1].memory(8*n)
	data := patterned(8*n, 6)
	m.write(0, data)
	for i := range n {
		conns[1][i].recv(uint64(i), nil)
	}
	for i, c := range conns[0] {
		c.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpWrite, Remote: r.at(8 * i), SGEs: m.sge(8*i, 8)})
		c.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled})
	}
	for i, q := range cqs {
		seen := map[uint64]bool{}
		for range n {
			c := q.next()
			if c.Status != rdma.StatusSuccess || c.ID >= uint64(n) || seen[c.ID] || c.QueuePair != conns[i][c.ID].Number() {
				e.fatalf("%s: completion %+v", sides[i].name, c)
			}
			seen[c.ID] = true
		}
		q.quiet("all have completed")
	}
	e.same(r.read(0, 8*n), data, fmt.Sprintf("what %d connections wrote", n))
}

// testConnectAllAtOnce has many Connects under way at one listener.
func testConnectAllAtOnce(e *env) {
	const n = 16
	l := e.b().listen()
	ctx, cancel := e.bound()
	defer cancel()
	var work []func()
	var a, b [n]*conn
	for i := range n {
		a[i], b[i] = e.a().newConn(nil), e.b().newConn(nil)
		work = append(work, func() {
			_, err := a[i].Connect(ctx, l.Address(), nil)
			e.check(err, "Connect")
		}, func() {
			request, err := l.Accept(ctx)
			e.check(err, "Accept")
			e.check(request.Accept(ctx, b[i].QueuePair, nil), "ConnectRequest.Accept")
		})
	}
	e.together(work...)
	// Who is connected to whom is found out by what arrives.
	m, sink := e.a().memory(8*n), e.b().memory(8*n)
	for i := range n {
		m.write(8*i, wordBytes(uint64(i)))
		b[i].recv(uint64(i), sink.sge(8*i, 8))
	}
	for i := range n {
		a[i].send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: m.sge(8*i, 8)})
		a[i].sends.success(uint64(i))
	}
	seen := [n]bool{}
	for i := range n {
		b[i].recvs.success(uint64(i))
		peer := word(sink.read(8*i, 8))
		if peer >= n || seen[peer] {
			e.fatalf("message %d arrives twice", peer)
		}
		seen[peer] = true
	}
}

// testTargetFirst sends from the target before the initiator has sent anything.
func testTargetFirst(e *env) {
	a, b := e.a().newConn(nil), e.b().newConn(nil)
	m, n := a.s.memory(64), b.s.memory(64)
	n.fill(0, 64, 6)
	a.recv(1, m.sge(0, 64))
	e.join(a, b)
	b.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: n.sge(0, 64)})
	a.recvs.success(1)
	b.sends.success(1)
	if !is(m.read(0, 64), 6) {
		e.errorf("the target's first message carries something else")
	}
	a.signal(b)
}

// testSameDomain connects two queue pairs of one domain.
func testSameDomain(e *env) {
	for _, s := range e.sides() {
		a, b := s.newConn(nil), s.newConn(nil)
		e.join(a, b)
		a.signal(b)
		b.signal(a)
		m, n := s.memory(4096), s.memory(4096)
		data := patterned(4096, 13)
		m.write(0, data)
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: n.at(0), SGEs: m.sge(0, 4096)})
		a.sends.success(1)
		a.signal(b)
		e.same(n.read(0, 4096), data, s.name+": Write within a domain")
		m.fill(0, 4096, 0)
		b.send(rdma.SendRequest{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: n.at(0), SGEs: m.sge(0, 4096)})
		b.sends.success(2)
		e.same(m.read(0, 4096), data, s.name+": Read within a domain")
		b.recv(1, nil)
		e.check(a.Close(), "Close")
		b.gone(1)
	}
}

// testRelisten listens at an address again.
func testRelisten(e *env) {
	for _, s := range e.sides() {
		first, err := s.device.Listen(e.ctx, s.address())
		e.check(err, "Listen")
		address := first.Address()
		if second, err := s.device.Listen(e.ctx, address); err == nil {
			e.errorf("%s: two listeners at %s", s.name, address)
			second.Close()
		}
		e.check(first.Close(), "Listener.Close")
		second, err := s.device.Listen(e.ctx, address)
		e.check(err, s.name+": Listen at an address that was used before")
		e.check(second.Close(), "Listener.Close")
	}
}

// testLeaks opens and closes everything many times, and counts what the process
// has open, where the system tells.
func testLeaks(e *env) {
	const region = 8 << 20
	round := func() {
		a, b := e.newSide("short-lived initiator", e.suite.initiator), e.newSide("short-lived target", e.suite.target)
		c, d := a.newConn(nil), b.newConn(nil)
		e.join(c, d)
		c.signal(d)
		m, n := a.memory(region), b.memory(region)
		c.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: n.at(0), SGEs: m.sge(0, 64<<10)})
		c.sends.success(1)
		c.send(rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: n.at(0), SGEs: m.sge(0, 64<<10)})
		c.sends.success(1)
		e.check(b.listener.Close(), "Listener.Close")
		e.check(a.domain.Close(), "Domain.Close")
		e.check(b.domain.Close(), "Domain.Close")
	}
	const slack = 15
	rounds := 40
	if *briefFlag {
		rounds = slack + 5
	}
	for range 3 {
		round()
	}
	before := held()
	for range rounds {
		round()
	}
	e.eventually(fmt.Sprintf("what %d rounds of opening and closing leave: beside %v", rounds, before), func() bool {
		now := held()
		// The runtime, too, maps memory, but not as much; the race detector's
		// shadow of it is several times as large.
		return now.files < before.files+slack && now.mappings < before.mappings+slack &&
			(race.Enabled || now.bytes < before.bytes+rounds*region)
	})
}

// holdings are what a process has open.
type holdings struct{ files, mappings, bytes int }

func (h holdings) String() string {
	return fmt.Sprintf("%d descriptors, %d mappings, %d bytes of address space", h.files, h.mappings, h.bytes)
}

// held returns zeros on a system that does not tell.
func held() (h holdings) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return holdings{}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return holdings{}
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return holdings{}
	}
	if _, err := fmt.Sscan(string(statm), &h.bytes); err != nil {
		return holdings{}
	}
	h.bytes *= os.Getpagesize()
	h.files, h.mappings = len(entries), bytes.Count(maps, []byte{'\n'})
	return h
}
