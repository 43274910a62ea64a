package rdmatest

import (
	"math"

	"github.com/verbena-data/verbena/rdma"
)

// postCases are about requests that this side can see are wrong.
var postCases = []testCase{
	{"InvalidPosts", nil, testInvalidPosts},
	{"PostBeforeConnect", nil, testPostBeforeConnect},
	{"PartialBatch", nil, testPartialBatch},
	{"UnsupportedOperations", nil, testUnsupportedOperations},
}

// badEntries are lists of entries that no request may have.
func badEntries(s *side, most int) map[string][]rdma.SGE {
	const size = 4096
	m := s.memory(size)
	foreign := s.e.newSide("foreign domain", s.device).memory(size)
	at := func(offset, length int) []rdma.SGE { return m.sge(offset, length) }
	var many []rdma.SGE
	for range most + 1 {
		many = append(many, at(0, 1)...)
	}
	return map[string][]rdma.SGE{
		"entry past its region":               at(1, size),
		"entry that begins past its region":   at(size+1, 0),
		"entry far past its region":           at(1<<40, 8),
		"entry before its region":             at(-1, 8),
		"entry of negative length":            at(8, -1),
		"entry of all negative":               at(math.MinInt, math.MinInt),
		"entry whose end overflows":           at(8, math.MaxInt),
		"entry whose offset and end overflow": at(math.MaxInt, math.MaxInt),
		"second entry past its region":        append(at(0, 8), at(size, 1)...),
		"lengths that overflow together":      append(at(0, math.MaxInt), at(0, math.MaxInt)...),
		"entry of another domain's region":    foreign.sge(0, 8),
		"entry without a region":              {{Length: 8}},
		"too many entries":                    many,
	}
}

func testInvalidPosts(e *env) {
	a, b := e.connectEach(func(c *rdma.QueuePairConfig) { c.MaxSGE = 2 }, nil)
	remote := b.s.memory(4096)
	local := a.s.memory(4096)
	// The provider may allow more entries than were asked for, up to the limits.
	most := max(a.s.attributes.MaxSendSGE, a.s.attributes.MaxReadSGE, a.s.attributes.MaxRecvSGE)
	rejects := func(what string, request rdma.SendRequest, any ...error) {
		e.t.Helper()
		request.ID = 666
		request.Flags |= rdma.Signaled
		n, err := a.PostSend([]rdma.SendRequest{request})
		if n != 0 {
			e.fatalf("%s: PostSend of a %s takes it", what, request.Op)
		}
		e.wants(err, what+": PostSend of a "+request.Op.String(), any...)
		if state := a.State(); state != rdma.StateConnected {
			e.fatalf("%s: the queue pair is %s: %v", what, state, a.Err())
		}
	}
	for what, sges := range badEntries(a.s, most) {
		for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead} {
			rejects(what, rdma.SendRequest{Op: op, Remote: remote.at(0), SGEs: sges}, rdma.ErrInvalid)
		}
		n, err := a.PostRecv([]rdma.RecvRequest{{ID: 666, SGEs: sges}})
		if n != 0 {
			e.fatalf("%s: PostRecv takes it", what)
		}
		e.wants(err, what+": PostRecv", rdma.ErrInvalid)
	}
	// Such a request does not reach what stands beside it, either.
	if limit := a.s.attributes.MaxInline; limit < 4096 {
		rejects("too much inline", rdma.SendRequest{
			Op: rdma.OpWrite, Flags: rdma.Inline, Remote: remote.at(0), SGEs: local.sge(0, limit+1),
		}, rdma.ErrInvalid, rdma.ErrUnsupported)
	}
	rejects("inline Read", rdma.SendRequest{Op: rdma.OpRead, Flags: rdma.Inline, Remote: remote.at(0), SGEs: local.sge(0, 8)}, rdma.ErrInvalid, rdma.ErrUnsupported)
	for _, op := range []rdma.Opcode{rdma.OpRecv, rdma.OpRecvWriteImmediate, 200, 255} {
		rejects("no send operation", rdma.SendRequest{Op: op, Remote: remote.at(0), SGEs: local.sge(0, 8)}, rdma.ErrInvalid, rdma.ErrUnsupported)
	}
	if e.suite.has(FeatureAtomics) {
		foreign := e.newSide("foreign domain", a.s.device).memory(64)
		for _, op := range []rdma.Opcode{rdma.OpCompareSwap, rdma.OpFetchAdd} {
			for what, sges := range map[string][]rdma.SGE{
				"atomic without an entry":  nil,
				"atomic of 4 bytes":        local.sge(0, 4),
				"atomic of 16 bytes":       local.sge(0, 16),
				"atomic with two entries":  append(local.sge(0, 4), local.sge(8, 4)...),
				"atomic past the region":   local.sge(4092, 8),
				"atomic of another domain": foreign.sge(0, 8),
			} {
				rejects(what, rdma.SendRequest{Op: op, Remote: remote.at(0), SGEs: sges}, rdma.ErrInvalid)
			}
		}
	}
	if a.s.attributes.MaxMessage < 1<<20 {
		large := a.s.memory(int(a.s.attributes.MaxMessage) + 1)
		rejects("too long", rdma.SendRequest{Op: rdma.OpWrite, Remote: remote.at(0), SGEs: large.sge(0, large.size)}, rdma.ErrInvalid)
	}
	a.sends.quiet("what was not taken does not complete")

	// None of them harmed the queue pair, and an empty entry at the very end of
	// a region is valid.
	b.recv(1, nil)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: local.sge(4096, 0)})
	a.sends.success(1)
	b.recvs.success(1)
	a.signal(b)
	b.signal(a)
	if n, err := a.PostSend(nil); n != 0 || err != nil {
		e.errorf("PostSend of nothing: %d, %v", n, err)
	}
	if n, err := a.PostRecv(nil); n != 0 || err != nil {
		e.errorf("PostRecv of nothing: %d, %v", n, err)
	}
}

func testPostBeforeConnect(e *env) {
	a := e.a().newConn(nil)
	b := e.b().newConn(nil)
	if state := a.State(); state != rdma.StateInit {
		e.errorf("new queue pair is %s", state)
	}
	m, sink := a.s.memory(64), b.s.memory(64)
	m.fill(0, 64, 3)
	n, err := a.PostSend([]rdma.SendRequest{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: m.sge(0, 64)}})
	if n != 0 {
		e.errorf("an unconnected queue pair takes a send")
	}
	e.wants(err, "PostSend before Connect", rdma.ErrState)
	b.recv(1, sink.sge(0, 64)) // receives it does take
	e.join(a, b)
	a.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: m.sge(0, 64)})
	a.sends.success(2)
	b.recvs.success(1)
	if !is(sink.read(0, 64), 3) {
		e.errorf("a receive posted before Connect has other data")
	}
	e.wants(e.a().newConn(nil).Disconnect(), "Disconnect before Connect", nil, rdma.ErrState)
}

// testPartialBatch posts batches with a wrong request in the middle.
func testPartialBatch(e *env) {
	a, b := e.connect(nil)
	m, sink := a.s.memory(64), b.s.memory(64)
	good := func(id uint64) rdma.SendRequest {
		return rdma.SendRequest{ID: id, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: m.sge(0, 8)}
	}
	bad := good(2)
	bad.SGEs = m.sge(60, 8)
	n, err := a.PostSend([]rdma.SendRequest{good(0), good(1), bad, good(3)})
	if n != 2 {
		e.fatalf("PostSend of two good requests, a bad one and a good one: %d, %v", n, err)
	}
	e.wants(err, "PostSend of a partly bad batch", rdma.ErrInvalid)
	a.signalled(0, 1)
	a.sends.quiet("what was not taken does not complete")
	n, err = a.PostRecv([]rdma.RecvRequest{{ID: 1}, {ID: 2, SGEs: m.sge(64, 1)}, {ID: 3}})
	if n != 1 {
		e.fatalf("PostRecv of a good receive, a bad one and a good one: %d, %v", n, err)
	}
	e.wants(err, "PostRecv of a partly bad batch", rdma.ErrInvalid)
	b.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
	a.recvs.success(1)
	b.sends.success(1)
	a.recvs.quiet("what was not taken does not complete")
}

// testUnsupportedOperations posts what the device lacks.
func testUnsupportedOperations(e *env) {
	a, b := e.connect(nil)
	m, sink := a.s.memory(8), b.s.memory(8)
	for op, f := range map[rdma.Opcode]Feature{
		rdma.OpSendImmediate: FeatureSendImmediate, rdma.OpWriteImmediate: FeatureWriteImmediate,
		rdma.OpCompareSwap: FeatureAtomics, rdma.OpFetchAdd: FeatureAtomics, rdma.OpSendInvalidate: FeatureSendInvalidate,
	} {
		if e.suite.deviceHas(a.s.device, f) { // of the peer's lack a post need not know
			continue
		}
		n, err := a.PostSend([]rdma.SendRequest{{ID: 666, Op: op, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: m.sge(0, 8)}})
		if n != 0 {
			e.fatalf("PostSend takes a %s, which the device lacks", op)
		}
		e.wants(err, "PostSend of a "+op.String(), rdma.ErrUnsupported)
	}
	if limit := a.s.attributes.MaxReadSGE; limit < a.s.attributes.MaxSendSGE {
		entries := make([]rdma.SGE, limit+1)
		for i := range entries {
			entries[i] = rdma.SGE{Region: m.Region, Length: 1}
		}
		n, err := a.PostSend([]rdma.SendRequest{{ID: 666, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: entries}})
		if n != 0 {
			e.fatalf("PostSend takes a Read with %d entries, at most %d", limit+1, limit)
		}
		e.wants(err, "PostSend of a Read with too many entries", rdma.ErrUnsupported, rdma.ErrInvalid)
	}
	if !e.suite.deviceHas(a.s.device, FeatureInline) {
		n, err := a.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Inline, SGEs: m.sge(0, 8)}})
		if n != 0 {
			e.fatalf("PostSend takes inline data, which the device lacks")
		}
		e.wants(err, "inline PostSend", rdma.ErrUnsupported, rdma.ErrInvalid)
	}
	a.signal(b)
}
