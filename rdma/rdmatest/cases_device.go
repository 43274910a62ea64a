package rdmatest

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// deviceCases are about what one side does by itself.
var deviceCases = []testCase{
	{"Attributes", nil, testAttributes},
	{"Memory", nil, testMemory},
	{"Keys", []Feature{FeatureRandomKeys}, testKeys},
	{"Unsupported", nil, testUnsupported},
	{"Defaults", nil, testDefaults},
	{"InUse", nil, testInUse},
	{"ClosedDomain", nil, testClosedDomain},
}

func (e *env) sides() []*side { return []*side{e.a(), e.b()} }

func testAttributes(e *env) {
	for _, s := range e.sides() {
		a := s.attributes
		if a.Provider == "" || a.Name == "" {
			e.errorf("%s: provider %q, name %q: must not be empty", s.name, a.Provider, a.Name)
		}
		for what, n := range map[string]int64{
			"MaxSendSGE": int64(a.MaxSendSGE), "MaxReadSGE": int64(a.MaxReadSGE), "MaxRecvSGE": int64(a.MaxRecvSGE),
			"MaxQueueDepth": int64(a.MaxQueueDepth), "MaxCompletions": int64(a.MaxCompletions), "MaxReads": int64(a.MaxReads),
			"MaxMessage": a.MaxMessage, "MaxRegion": a.MaxRegion, "MemoryAlignment": int64(a.MemoryAlignment),
		} {
			if n < 1 {
				e.errorf("%s: %s is %d", s.name, what, n)
			}
		}
		if s.domain.Device().Attributes() != a {
			e.errorf("%s: the domain's device has other attributes", s.name)
		}
		if _, ok := s.device.(rdma.StreamDevice); !ok && a.Has(rdma.CapStreams) && !isRemote(s.device) && !e.suite.OverStream {
			e.errorf("%s: has CapStreams and is no StreamDevice", s.name)
		}
		if m, n := e.suite.initiator.Attributes().Class, e.suite.target.Attributes().Class; m != n {
			e.errorf("the sides are of the classes %s and %s", m, n)
		}
	}
}

func testMemory(e *env) {
	for _, s := range e.sides() {
		for _, size := range []int{1, 7, 4096, 4097, 1 << 20} {
			for round := range 3 {
				m := s.memory(size)
				if !is(m.read(0, size), 0) {
					e.fatalf("%s: new region of %d bytes is not zeroed (round %d)", s.name, size, round)
				}
				if m.Access() != s.all() {
					e.errorf("%s: Access is %b, want %b", s.name, m.Access(), s.all())
				}
				if b := m.Bytes(); !isRemote(s.device) {
					if len(b) != size || cap(b) != size {
						e.errorf("%s: Bytes has length %d and capacity %d, want %d", s.name, len(b), cap(b), size)
					}
					if at := addressOf(b); at%uintptr(s.attributes.MemoryAlignment) != 0 {
						e.errorf("%s: region at %#x is not aligned to %d", s.name, at, s.attributes.MemoryAlignment)
					}
				}
				if m.Address()+uint64(size) < m.Address() {
					e.errorf("%s: region at %#x wraps around", s.name, m.Address())
				}
				if m.Address()%8 != 0 {
					e.errorf("%s: region at remote address %#x is not aligned for atomics", s.name, m.Address())
				}
				m.fill(0, size, 0xA5)
				e.check(m.Close(), "Region.Close")
			}
		}
		for _, size := range []int{0, -1, -1 << 40} {
			if r, err := s.domain.Allocate(size, readWrite); err == nil {
				e.errorf("%s: Allocate(%d) succeeds: %d bytes", s.name, size, len(r.Bytes()))
			}
		}
		if s.attributes.MaxRegion < 1<<62 {
			if _, err := s.domain.Allocate(int(s.attributes.MaxRegion)+1, readWrite); err == nil {
				e.errorf("%s: Allocate succeeds beyond MaxRegion", s.name)
			}
		}
	}
}

func testKeys(e *env) {
	for _, s := range e.sides() {
		n := 1000
		if isRemote(s.device) {
			n = 100
		}
		seen := map[uint32]bool{}
		steps := map[uint32]int{}
		ones := [32]int{}
		last := uint32(0)
		for range n {
			r, err := s.domain.Allocate(64, readWrite)
			e.check(err, "Allocate")
			key := r.Key()
			if seen[key] {
				e.fatalf("%s: two of %d regions have the key %#x", s.name, n, key)
			}
			seen[key] = true
			steps[key-last]++
			last = key
			for bit := range ones {
				ones[bit] += int(key >> bit & 1)
			}
		}
		for step, times := range steps {
			if times > n/20 {
				e.errorf("%s: %d of %d keys follow the one before by %#x: they can be guessed", s.name, times, n, step)
			}
		}
		random := 0
		for _, times := range ones {
			if times > n/4 && times < 3*n/4 {
				random++
			}
		}
		if random < 20 {
			e.errorf("%s: only %d bits of the keys look random", s.name, random)
		}
	}
}

// testUnsupported asks for more than the device has.
func testUnsupported(e *env) {
	for _, s := range e.sides() {
		a := s.attributes
		sends, recvs := s.queue(16), s.queue(16)
		for what, adjust := range map[string]func(*rdma.QueuePairConfig){
			"SendDepth": func(c *rdma.QueuePairConfig) { c.SendDepth = a.MaxQueueDepth + 1 },
			"RecvDepth": func(c *rdma.QueuePairConfig) { c.RecvDepth = a.MaxQueueDepth + 1 },
			"MaxSGE":    func(c *rdma.QueuePairConfig) { c.MaxSGE = max(a.MaxSendSGE, a.MaxReadSGE, a.MaxRecvSGE) + 1 },
			"MaxInline": func(c *rdma.QueuePairConfig) { c.MaxInline = a.MaxInline + 1 },
			"negative":  func(c *rdma.QueuePairConfig) { c.SendDepth = -1 },
		} {
			c := rdma.QueuePairConfig{SendCompletions: sends.CompletionQueue, RecvCompletions: recvs.CompletionQueue, SendDepth: 4, RecvDepth: 4}
			adjust(&c)
			_, err := s.domain.NewQueuePair(c)
			e.wants(err, s.name+": NewQueuePair with too much "+what, rdma.ErrUnsupported, rdma.ErrInvalid)
		}
		for _, depth := range []int{0, -1, a.MaxCompletions + 1} {
			_, err := s.domain.NewCompletionQueue(depth)
			e.wants(err, s.name+": NewCompletionQueue of a bad depth", rdma.ErrUnsupported, rdma.ErrInvalid)
		}
		// A queue of another domain.
		other := e.newSide("other domain", s.device)
		_, err := other.domain.NewQueuePair(rdma.QueuePairConfig{
			SendCompletions: sends.CompletionQueue, RecvCompletions: recvs.CompletionQueue, SendDepth: 4, RecvDepth: 4,
		})
		e.wants(err, s.name+": NewQueuePair with the queues of another domain", rdma.ErrInvalid)
		_, err = s.domain.NewQueuePair(rdma.QueuePairConfig{SendDepth: 4, RecvDepth: 4})
		e.wants(err, s.name+": NewQueuePair without completion queues", rdma.ErrInvalid)
		if !a.Has(rdma.CapSharedReceive) {
			_, err := s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: 4, MaxSGE: 1})
			e.wants(err, s.name+": NewSharedReceiveQueue", rdma.ErrUnsupported)
		}
	}
}

// testDefaults leaves out what may be left out.
func testDefaults(e *env) {
	bare := func(c *rdma.QueuePairConfig) {
		*c = rdma.QueuePairConfig{SendDepth: 4, RecvDepth: 4}
	}
	a, b := e.connectEach(bare, bare)
	m, n := a.s.memory(64), b.s.memory(64)
	m.fill(0, 64, 8)
	b.recv(1, n.sge(0, 64))
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: m.sge(0, 64)})
	a.sends.success(1)
	b.recvs.success(1)
	if !is(n.read(0, 64), 8) {
		e.errorf("a Send with default limits carries something else")
	}
	m.fill(0, 64, 0)
	a.send(rdma.SendRequest{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: n.at(0), SGEs: m.sge(0, 64)})
	a.sends.success(2)
	if !is(m.read(0, 64), 8) {
		e.errorf("a Read with default limits brings something else")
	}
}

func testInUse(e *env) {
	for _, s := range e.sides() {
		c := s.newConn(nil)
		e.wants(c.sends.Close(), s.name+": close of a completion queue in use", rdma.ErrInUse)
		e.wants(c.recvs.Close(), s.name+": close of a completion queue in use", rdma.ErrInUse)
		e.check(c.Close(), "QueuePair.Close")
		if state := c.State(); state != rdma.StateClosed {
			e.errorf("%s: closed queue pair is in state %s", s.name, state)
		}
		n, err := c.PostRecv([]rdma.RecvRequest{{}})
		if n != 0 {
			e.errorf("%s: a closed queue pair takes a receive", s.name)
		}
		e.wants(err, s.name+": PostRecv after Close", rdma.ErrState, rdma.ErrClosed)
		n, err = c.PostSend([]rdma.SendRequest{{}})
		if n != 0 {
			e.errorf("%s: a closed queue pair takes a send", s.name)
		}
		e.wants(err, s.name+": PostSend after Close", rdma.ErrState, rdma.ErrClosed)
		if err := c.Close(); err != nil && !errors.Is(err, rdma.ErrClosed) {
			e.errorf("%s: second Close: %v", s.name, err)
		}
		for _, q := range []*queue{c.sends, c.recvs} {
			e.check(q.Close(), s.name+": CompletionQueue.Close")
			_, err := q.Poll(make([]rdma.Completion, 1))
			e.wants(err, s.name+": Poll after Close", rdma.ErrClosed)
			ctx, cancel := e.bound()
			e.wants(q.Wait(ctx), s.name+": Wait after Close", rdma.ErrClosed)
			cancel()
		}
	}
}

// testClosedDomain uses what a domain made after the domain is closed.
func testClosedDomain(e *env) {
	for _, device := range []rdma.Device{e.suite.initiator, e.suite.target} {
		s := e.newSide("closed domain", device)
		c := s.newConn(nil)
		m := s.memory(4096)
		waits := make(chan error, 1)
		e.check(c.recvs.Arm(false), "Arm")
		go func() { waits <- c.recvs.Wait(e.ctx) }()
		c.recv(1, m.sge(0, 8))
		e.check(s.domain.Close(), "Domain.Close")
		select {
		case err := <-waits:
			// The flushed receive may have been what woke it.
			if err != nil {
				e.wants(err, "Wait over Domain.Close", rdma.ErrClosed)
			}
		case <-time.After(e.suite.Bound):
			e.fatalf("Wait does not end when the domain is closed")
		}
		_, err := s.domain.Allocate(64, readWrite)
		e.wants(err, "Allocate after Domain.Close", rdma.ErrClosed)
		_, err = s.domain.NewCompletionQueue(4)
		e.wants(err, "NewCompletionQueue after Domain.Close", rdma.ErrClosed)
		_, err = s.domain.NewQueuePair(c.config)
		e.wants(err, "NewQueuePair after Domain.Close", rdma.ErrClosed)
		_, err = c.recvs.Poll(make([]rdma.Completion, 1))
		e.wants(err, "Poll after Domain.Close", rdma.ErrClosed)
		_, err = c.PostRecv([]rdma.RecvRequest{{}})
		e.wants(err, "PostRecv after Domain.Close", rdma.ErrClosed, rdma.ErrState)
		ctx, cancel := context.WithTimeout(e.ctx, e.suite.Bound)
		if _, err := c.Connect(ctx, "nowhere", nil); err == nil {
			e.errorf("Connect after Domain.Close succeeds")
		}
		cancel()
		if isRemote(device) {
			c.ended() // it is told a moment later
			continue
		}
		select {
		case <-c.Done():
		default:
			e.errorf("Done is open after Domain.Close")
		}
	}
}
