package rdmatest

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// invalidateCases are about Sends that revoke a key of the peer.
var invalidateCases = []testCase{
	{"SendInvalidate", []Feature{FeatureSendInvalidate}, testSendInvalidate},
	{"SendInvalidateSolicited", []Feature{FeatureSendInvalidate}, testSendInvalidateSolicited},
	{"InvalidateRefused", []Feature{FeatureSendInvalidate}, testInvalidateRefused},
}

// revocable allocates with all rights and that to be invalidated.
func (s *side) revocable(size int) *memory {
	s.e.t.Helper()
	return s.allocate(size, s.all()|rdma.AccessRemoteInvalidate)
}

// testSendInvalidate revokes keys by messages of several sizes. What the key
// opened is refused from then on, on every queue pair, and remains the target's
// own; other regions are not concerned.
func testSendInvalidate(e *env) {
	a, b := e.connect(nil)
	source, sink := a.s.memory(64<<10), b.s.memory(64<<10)
	data := patterned(64<<10, 11)
	source.write(0, data)
	var revoked []*memory
	for i, n := range []int{0, 1, 60, 64 << 10} {
		m := b.s.revocable(regionSize)
		id := uint64(i)
		flags := rdma.Signaled
		if n <= a.config.MaxInline {
			flags |= rdma.Inline
		}
		a.send(rdma.SendRequest{ID: 100 + id, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: m.at(8), SGEs: source.sge(0, 100)})
		b.recv(id, sink.sge(0, n))
		a.send(rdma.SendRequest{ID: id, Op: rdma.OpSendInvalidate, Flags: flags, Remote: rdma.Remote{Key: m.Key()}, SGEs: source.sge(0, n)})
		want := rdma.Completion{ID: id, QueuePair: b.Number(), Length: uint32(n), Op: rdma.OpRecv, Invalidated: true, Immediate: m.Key()}
		if c := b.recvs.success(id); c != want {
			e.fatalf("Send with invalidate of %d bytes: receive completes as %+v, want %+v", n, c, want)
		}
		a.sends.success(100 + id)
		if c := a.sends.success(id); c.Op != rdma.OpSendInvalidate || c.Invalidated || c.HasImmediate {
			e.fatalf("Send with invalidate of %d bytes completes as %+v", n, c)
		}
		e.same(sink.read(0, n), data[:n], "Send with invalidate")
		e.same(m.read(8, 100), data[:100], "Write before it")
		revoked = append(revoked, m)
	}
	// Requests of the target that name the region still work.
	own := revoked[0]
	own.write(0, data[:200])
	back := a.s.memory(200)
	a.recv(7, back.sge(0, 200))
	b.send(rdma.SendRequest{ID: 7, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: own.sge(0, 200)})
	a.recvs.success(7)
	b.sends.success(7)
	e.same(back.read(0, 200), data[:200], "Send from an invalidated region")
	// Other keys do, too.
	a.send(rdma.SendRequest{ID: 8, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 100)})
	a.sends.success(8)
	a.signal(b)

	ops := []rdma.Opcode{rdma.OpWrite, rdma.OpRead}
	if e.suite.has(FeatureAtomics) {
		ops = append(ops, rdma.OpFetchAdd)
	}
	for i, op := range ops {
		refused(e, op, refusal{what: "invalidated key", remote: own.at(0), length: 64}, revoked, i%2 == 0)
	}
	for _, m := range revoked {
		e.check(m.Close(), "Region.Close of an invalidated region")
	}
	a.signal(b)
}

// testSendInvalidateSolicited wakes one who waits for solicited events alone.
func testSendInvalidateSolicited(e *env) {
	a, b := e.connect(nil)
	for id, flags := range []rdma.Flags{0, rdma.Solicited} {
		m := b.s.revocable(64)
		b.recv(uint64(id), nil)
		e.check(b.recvs.Arm(true), "Arm")
		a.send(rdma.SendRequest{ID: uint64(id), Op: rdma.OpSendInvalidate, Flags: rdma.Signaled | flags, Remote: rdma.Remote{Key: m.Key()}})
		a.sends.success(uint64(id))
		if flags == 0 {
			ctx, cancel := e.soon()
			if b.recvs.Wait(ctx) == nil {
				e.errorf("a Send with invalidate that is not solicited raises a solicited event")
			}
			cancel()
		} else {
			ctx, cancel := e.bound()
			e.check(b.recvs.Wait(ctx), "Wait for a solicited Send with invalidate")
			cancel()
		}
		if c := b.recvs.success(uint64(id)); !c.Invalidated || c.Immediate != m.Key() {
			e.fatalf("receive completes as %+v, want key %#x invalidated", c, m.Key())
		}
	}
}

// testInvalidateRefused tries to revoke what may not be: the connection fails,
// and the key lives.
func testInvalidateRefused(e *env) {
	fixed := e.b().memory(regionSize)
	foreign := e.newSide("foreign domain", e.suite.target).revocable(regionSize)
	closed := e.b().revocable(64)
	stale := closed.Key()
	e.check(closed.Close(), "Region.Close")
	for _, c := range []struct {
		what string
		key  uint32
	}{
		{"key without the right", fixed.Key()},
		{"key of another domain", foreign.Key()},
		{"closed region", stale},
		{"key 0", 0},
	} {
		what := fmt.Sprintf("Send with invalidate, %s", c.what)
		a, b := e.connect(nil)
		local := a.s.memory(64)
		sink := b.s.memory(64)
		sink.fill(0, 64, 0xA5)
		b.recv(1, sink.sge(0, 64))
		b.recv(2, nil)
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSendInvalidate, Flags: rdma.Signaled, Remote: rdma.Remote{Key: c.key}, SGEs: local.sge(0, 64)})
		done := a.sends.next()
		switch {
		case done.ID != 1:
			e.fatalf("%s: completion of %d", what, done.ID)
		case a.s.attributes.Class == rdma.ClassIWARP:
			if done.Status != rdma.StatusSuccess && done.Status != rdma.StatusFlushed {
				e.fatalf("%s: %s", what, done.Status)
			}
		case done.Status != rdma.StatusRemoteAccess && done.Status != rdma.StatusRemoteInvalid && done.Status != rdma.StatusRemoteOperation:
			e.fatalf("%s: %s", what, done.Status)
		}
		a.ended()
		b.ended()
		if a.s.attributes.Class == rdma.ClassIWARP && e.suite.has(FeatureRefusalReason) {
			e.wants(a.Err(), what+": Err", rdma.ErrRemoteAccess)
		}
		for _, id := range []uint64{1, 2} {
			if done := b.recvs.next(); done.ID != id || done.Status == rdma.StatusSuccess {
				e.fatalf("%s: receive %d: %s; want %d to fail", what, done.ID, done.Status, id)
			}
		}
		e.check(a.Close(), "Close")
		e.check(b.Close(), "Close")
	}
	// What has the key still works.
	a, b := e.connect(nil)
	source := a.s.memory(64)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: fixed.at(0), SGEs: source.sge(0, 64)})
	a.sends.success(1)
	a.signal(b)
}
