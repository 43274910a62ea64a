package rdmatest

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
)

// accessCases are about what a peer may not touch.
var accessCases = []testCase{
	{"BadKey", nil, accessCase(badKey)},
	{"ForeignDomain", nil, accessCase(foreignDomain)},
	{"OutOfBounds", nil, accessCase(outOfBounds)},
	{"MissingRight", nil, accessCase(missingRight)},
	{"Deregistered", nil, accessCase(deregistered)},
	{"Withdrawn", nil, accessCase(withdrawn)},
	{"WithdrawUnderWrites", nil, testWithdrawUnderWrites},
	{"UnalignedAtomics", []Feature{FeatureAtomics}, testUnalignedAtomics},
	{"DeregisterUnderWrites", nil, testDeregisterUnderWrites},
	{"LocalRights", nil, testLocalRights},
	{"SufficientRights", nil, testSufficientRights},
	{"RefusedBehindReads", nil, testRefusedBehindReads},
}

// A refusal is one access that the target must refuse.
type refusal struct {
	what   string
	remote rdma.Remote
	length int
	only   []rdma.Opcode // the operations it is meant for; empty means all
}

// regionSize is the size of the targets of refused accesses.
const regionSize = 8192

// accessCase tries every operation with every refusal, each on a connection of
// its own. The refusals may refer to region.
func accessCase(refusals func(e *env, region *memory) []refusal) func(*env) {
	return func(e *env) {
		ops := []rdma.Opcode{rdma.OpWrite, rdma.OpRead}
		if e.suite.has(FeatureWriteImmediate) {
			ops = append(ops, rdma.OpWriteImmediate)
		}
		if e.suite.has(FeatureAtomics) {
			ops = append(ops, rdma.OpCompareSwap, rdma.OpFetchAdd)
		}
		// Three neighbours, of which the middle one is aimed at.
		regions := []*memory{e.b().memory(regionSize), e.b().memory(regionSize), e.b().memory(regionSize)}
		for i, r := range refusals(e, regions[1]) {
			for j, op := range ops {
				if len(r.only) > 0 && !slices.Contains(r.only, op) {
					continue
				}
				refused(e, op, r, regions, (i+j)%2 == 0)
			}
		}
	}
}

// refused posts one access that must be refused, with good requests before and
// behind it, and checks how it all ends.
func refused(e *env, op rdma.Opcode, r refusal, regions []*memory, signalled bool) {
	e.t.Helper()
	what := fmt.Sprintf("%s, %s", op, r.what)
	a, b := e.connect(nil)
	good := b.s.memory(64)
	local := a.s.memory(max(r.length, 64))
	local.fill(0, local.size, 0x5A)
	for _, m := range regions {
		if m.Region != nil {
			m.fill(0, m.size, 0xA5)
		}
	}
	a.recv(1, nil)
	a.recv(2, nil)
	for id := range uint64(4) {
		b.recv(id+1, nil)
	}
	length := r.length
	if op == rdma.OpCompareSwap || op == rdma.OpFetchAdd {
		length = 8
	}
	const bad = 100
	flags := rdma.Flags(0)
	if signalled || a.s.attributes.Class == rdma.ClassIWARP {
		flags = rdma.Signaled
	}
	a.send(rdma.SendRequest{ID: 99, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: good.at(0), SGEs: local.sge(0, 64)})
	a.send(rdma.SendRequest{
		ID: bad, Op: op, Flags: flags, Remote: r.remote, SGEs: local.sge(0, length),
		CompareAdd: 0xA5A5A5A5A5A5A5A5, Swap: 1,
	})
	behind := uint64(0)
	for id := range uint64(4) {
		request := rdma.SendRequest{ID: bad + 1 + id, Op: rdma.OpSend, Flags: rdma.Signaled}
		if id == 1 {
			request = rdma.SendRequest{ID: request.ID, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: good.at(0), SGEs: local.sge(0, 64)}
		}
		if n, err := a.PostSend([]rdma.SendRequest{request}); n != 1 {
			e.wants(err, what+": PostSend behind it", rdma.ErrState)
			break
		}
		behind++
	}

	spent := 0
	if op == rdma.OpRead && !e.suite.has(FeatureRefusedReadStops) {
		spent = 3 // the Sends behind it
	}
	e.together(func() {
		if a.s.attributes.Class == rdma.ClassInfiniBand {
			a.infiniBandRefused(what, op, r, bad, behind)
		} else {
			a.iwarpRefused(what, op, bad, behind)
		}
		a.ended()
		if a.s.attributes.Class == rdma.ClassIWARP {
			if e.suite.has(FeatureRefusalReason) {
				e.wants(a.Err(), what+": Err", rdma.ErrRemoteAccess)
			}
			a.s.event("queue pair error", func(event rdma.Event) bool {
				// Who is not told of the refusal sees that the peer has left.
				told := event.Kind == rdma.EventQueuePairError || event.Kind == rdma.EventDisconnected && !e.suite.has(FeatureRefusalReason)
				return told && event.QueuePair != nil && event.QueuePair.Number() == a.Number()
			})
		}
		a.flushed(2)
		a.postsFail()
		if more := a.sends.poll(); len(more) > 0 {
			e.fatalf("%s: all has completed, and %+v comes", what, more[0])
		}
		e.check(a.Close(), "Close")
	}, func() {
		// Nothing behind the refused request has been carried out, and no receive
		// was spent: all of them are flushed.
		b.spentOrFlushed(4, spent)
		b.ended()
	})
	for i, m := range regions {
		if i == 1 && op == rdma.OpWrite && r.length > m.size && !e.suite.has(FeatureWholeRefusal) {
			continue // what fits may be there
		}
		if m.Region != nil && !is(m.read(0, m.size), 0xA5) {
			e.fatalf("%s: changes memory of region %d of the target", what, i)
		}
	}
	if op != rdma.OpWrite && op != rdma.OpWriteImmediate {
		if !is(local.read(0, local.size), 0x5A) {
			e.fatalf("%s: brings something", what)
		}
	}
	e.check(b.Close(), "Close")
	e.check(good.Close(), "Region.Close")
	e.check(local.Close(), "Region.Close")
}

// spentOrFlushed takes the completions of receives with the IDs from 1 on: at
// most so many have succeeded, and all others are flushed.
func (c *conn) spentOrFlushed(receives, spent int) {
	c.s.e.t.Helper()
	for id := range uint64(receives) {
		got := c.recvs.next()
		if got.ID == id+1 && got.Status == rdma.StatusSuccess && id < uint64(spent) {
			continue
		}
		spent = 0
		if got.ID != id+1 || got.Status != rdma.StatusFlushed || got.QueuePair != c.Number() {
			c.s.e.fatalf("%s: receive %d of queue pair %d: %s; want %d of %d flushed", c.s.name, got.ID, got.QueuePair, got.Status, id+1, c.Number())
		}
	}
}

// infiniBandRefused takes the completions of a refused request of the InfiniBand
// class: it has the status, and all behind it are flushed.
func (c *conn) infiniBandRefused(what string, op rdma.Opcode, r refusal, bad, behind uint64) {
	c.s.e.t.Helper()
	e := c.s.e
	c.sends.success(99)
	done := c.sends.next()
	want := rdma.StatusRemoteAccess
	switch {
	case r.remote.Address%8 != 0 && (op == rdma.OpCompareSwap || op == rdma.OpFetchAdd) && done.Status == rdma.StatusRemoteInvalid:
		want = done.Status
	case e.suite.Lossy && (done.Status == rdma.StatusRetryExceeded || done.Status == rdma.StatusFlushed):
		want = done.Status
	}
	if done.ID != bad || done.Status != want || done.QueuePair != c.Number() {
		e.fatalf("%s: completion of %d: %s; want %d: %s", what, done.ID, done.Status, bad, want)
	}
	for id := range behind {
		if done := c.sends.next(); done.ID != bad+1+id || done.Status != rdma.StatusFlushed {
			e.fatalf("%s: behind it: completion of %d: %s; want %d flushed", what, done.ID, done.Status, bad+1+id)
		}
	}
}

// iwarpRefused takes the completions of a refused request of the iWARP class:
// Writes and Sends may have succeeded, since the stream had them, up to some
// request, and all behind it are flushed.
func (c *conn) iwarpRefused(what string, op rdma.Opcode, bad, behind uint64) {
	c.s.e.t.Helper()
	e := c.s.e
	ids := []uint64{99, bad}
	for id := range behind {
		ids = append(ids, bad+1+id)
	}
	failed := false
	for _, id := range ids {
		done := c.sends.next()
		switch {
		case done.ID != id || done.QueuePair != c.Number():
			e.fatalf("%s: completion of %d: %s; want %d", what, done.ID, done.Status, id)
		case done.Status == rdma.StatusSuccess && failed:
			e.fatalf("%s: %d succeeds behind a failed request", what, id)
		case done.Status == rdma.StatusSuccess && id == bad && op != rdma.OpWrite && op != rdma.OpWriteImmediate:
			e.fatalf("%s: succeeds", what)
		case done.Status != rdma.StatusSuccess && done.Status != rdma.StatusFlushed && (failed || id != bad):
			e.fatalf("%s: completion of %d: %s; want it flushed", what, id, done.Status)
		}
		failed = failed || done.Status != rdma.StatusSuccess
	}
}

func badKey(e *env, m *memory) []refusal {
	return []refusal{
		{what: "one bit of the key is wrong", remote: rdma.Remote{Address: m.Address(), Key: m.Key() ^ 1}, length: 64},
		{what: "the highest bit of the key is wrong", remote: rdma.Remote{Address: m.Address(), Key: m.Key() ^ 1<<31}, length: 64},
		{what: "key 0", remote: rdma.Remote{Address: m.Address()}, length: 64},
		{what: "key ^0", remote: rdma.Remote{Address: m.Address(), Key: math.MaxUint32}, length: 64},
	}
}

func foreignDomain(e *env, m *memory) []refusal {
	foreign := e.newSide("foreign domain", e.suite.target).memory(regionSize)
	return []refusal{
		{what: "key of another domain", remote: foreign.at(0), length: 64},
		{what: "key of another domain, own address", remote: rdma.Remote{Address: m.Address(), Key: foreign.Key()}, length: 64},
	}
}

func outOfBounds(e *env, m *memory) []refusal {
	at := func(address uint64) rdma.Remote { return rdma.Remote{Address: address, Key: m.Key()} }
	start, end := m.Address(), m.Address()+regionSize
	one := []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpWriteImmediate}
	return []refusal{
		{what: "begins 8 bytes before the region", remote: at(start - 8), length: 16},
		{what: "begins one byte before the region", remote: at(start - 1), length: 1, only: one},
		{what: "is all before the region", remote: at(start - 4096), length: 64},
		{what: "ends one byte past the region", remote: at(end - 63), length: 64, only: one},
		{what: "begins at the end of the region", remote: at(end), length: 8},
		{what: "is far past the region", remote: at(end + 1<<20), length: 8},
		{what: "is larger than the region", remote: at(start), length: regionSize + 1, only: one},
		{what: "wraps around 2^64", remote: at(math.MaxUint64 - 7), length: 16},
		{what: "wraps around 2^64 by one byte", remote: at(math.MaxUint64), length: 2, only: one},
		{what: "ends at 2^64", remote: at(math.MaxUint64 - 7), length: 8},
		{what: "the sign bit of the address is set", remote: at(start | 1<<63), length: 8},
	}
}

func missingRight(e *env, _ *memory) []refusal {
	var all []refusal
	for _, each := range []struct {
		what   string
		rights rdma.Access
		only   []rdma.Opcode
	}{
		{"no right of remote write", rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteAtomic, []rdma.Opcode{rdma.OpWrite, rdma.OpWriteImmediate}},
		{"no right of remote read", rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic, []rdma.Opcode{rdma.OpRead}},
		{"no right of remote atomics", rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite, []rdma.Opcode{rdma.OpCompareSwap, rdma.OpFetchAdd}},
		{"local rights alone", rdma.AccessLocalWrite, nil},
	} {
		if !e.suite.has(FeatureReadRight) {
			if len(each.only) == 0 {
				each.only = []rdma.Opcode{rdma.OpWrite, rdma.OpWriteImmediate, rdma.OpCompareSwap, rdma.OpFetchAdd}
			}
			each.only = slices.DeleteFunc(slices.Clone(each.only), func(op rdma.Opcode) bool { return op == rdma.OpRead })
			if len(each.only) == 0 {
				continue
			}
		}
		m := e.b().allocate(regionSize, each.rights&e.b().all())
		all = append(all, refusal{what: each.what, remote: m.at(0), length: 64, only: each.only})
	}
	return all
}

func deregistered(e *env, _ *memory) []refusal {
	m := e.b().memory(regionSize)
	r := refusal{what: "deregistered region", remote: m.at(0), length: 64}
	e.check(m.Close(), "Region.Close")
	// Its memory may be another region's by now.
	e.b().memory(regionSize)
	return []refusal{r}
}

// withdraw ends the access to a region. Those of another process cannot be asked.
func (e *env) withdraw(m *memory) bool {
	r, ok := m.Region.(rdma.WithdrawableRegion)
	if ok {
		e.check(r.Withdraw(), "Region.Withdraw")
	}
	return ok
}

func withdrawn(e *env, _ *memory) []refusal {
	m := e.b().memory(regionSize)
	m.fill(0, regionSize, 0x3C)
	r := refusal{what: "withdrawn region", remote: m.at(0), length: 64}
	if !e.withdraw(m) {
		return nil
	}
	if !is(m.read(0, regionSize), 0x3C) {
		e.fatalf("a withdrawn region is not its owner's any more")
	}
	return []refusal{r}
}

// testWithdrawUnderWrites withdraws a region that a peer writes to all the time.
// What its owner puts there afterwards stays.
func testWithdrawUnderWrites(e *env) {
	const size = 64 << 10
	for range e.rounds(8) {
		a, b := e.connect(nil)
		m, source := b.s.memory(size), a.s.memory(size)
		source.fill(0, size, 0xFF)
		var landed atomic.Int64
		able := true
		e.together(func() {
			a.streamWrites(rdma.SendRequest{Op: rdma.OpWrite, Remote: m.at(0), SGEs: source.sge(0, size)}, &landed)
		}, func() {
			e.poll("Writes under way", func() bool { return landed.Load() > 20 || a.State() != rdma.StateConnected })
			if able = e.withdraw(m); !able {
				e.check(m.Close(), "Region.Close") // ends the Writes as well
				return
			}
			m.fill(0, size, 0x3C)
		})
		a.ended()
		e.check(a.Close(), "Close")
		b.ended()
		if able {
			if !is(m.read(0, size), 0x3C) {
				e.fatalf("a Write lands in a region that has been withdrawn")
			}
			e.check(m.Close(), "Region.Close")
		}
		e.check(b.Close(), "Close")
		e.check(source.Close(), "Region.Close")
	}
}

func testUnalignedAtomics(e *env) {
	for _, op := range []rdma.Opcode{rdma.OpCompareSwap, rdma.OpFetchAdd} {
		for _, off := range []int{1, 4, 7} {
			a, b := e.connect(nil)
			m := b.s.memory(64)
			n, err := a.PostSend([]rdma.SendRequest{{
				ID: 1, Op: op, Flags: rdma.Signaled, Remote: m.at(off), CompareAdd: 0, Swap: 1, SGEs: a.s.memory(8).sge(0, 8),
			}})
			if n == 0 {
				e.wants(err, "post of an unaligned "+op.String(), rdma.ErrInvalid)
				a.signal(b)
			} else {
				if c := a.sends.next(); c.Status != rdma.StatusRemoteInvalid && c.Status != rdma.StatusRemoteAccess {
					e.errorf("unaligned %s: %s", op, c.Status)
				}
				a.ended()
			}
			if !is(m.read(0, 64), 0) {
				e.errorf("an unaligned %s changes memory", op)
			}
		}
	}
}

// testRefusedBehindReads fails while good Reads are outstanding. On the
// InfiniBand class they complete first, unless the network has lost an answer,
// which a target that has refused does not repeat; on the iWARP class the peer may
// end the stream with some of its answers still unsent.
func testRefusedBehindReads(e *env) {
	const reads = 4
	a, b := e.connect(nil)
	source, sink := b.s.memory(4096), a.s.memory(reads*4096)
	source.fill(0, 4096, 3)
	for i := range uint64(reads) {
		a.send(rdma.SendRequest{ID: i, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: source.at(0), SGEs: sink.sge(int(i)*4096, 4096)})
	}
	a.send(rdma.SendRequest{ID: reads, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: source.at(1), SGEs: sink.sge(0, 4096)})
	failed := false
	for i := range reads {
		c := a.sends.next()
		if c.ID != uint64(i) {
			e.fatalf("completion of %d: %s; want %d", c.ID, c.Status, i)
		}
		unanswered := c.Status == rdma.StatusFlushed && (a.s.attributes.Class == rdma.ClassIWARP || e.suite.Lossy)
		if unanswered || e.suite.Lossy && c.Status == rdma.StatusRetryExceeded && !failed {
			failed = true
			continue
		}
		if c.Status != rdma.StatusSuccess || failed {
			e.fatalf("Read %d in front of a refused one: %s", i, c.Status)
		}
		if c.Length != 4096 || i > 0 && !is(sink.read(i*4096, 4096), 3) {
			e.errorf("Read %d in front of a refused one completes with %d bytes", i, c.Length)
		}
	}
	if c := a.sends.next(); c.ID != reads || c.Status == rdma.StatusSuccess {
		e.errorf("Read out of bounds: completion of %d: %s", c.ID, c.Status)
	}
	a.ended()
}

// streamWrites posts Writes until the queue pair fails, and takes what
// completes. It returns when all has completed, with the status of the first that
// failed; landed counts the successes.
func (c *conn) streamWrites(request rdma.SendRequest, landed *atomic.Int64) (status rdma.Status) {
	e := c.s.e
	e.t.Helper()
	posted, completed := uint64(0), uint64(0)
	take := func(done rdma.Completion) {
		if done.ID != completed {
			e.fatalf("completion of %d: %s; want %d", done.ID, done.Status, completed)
		}
		switch {
		case status != rdma.StatusSuccess && done.Status != rdma.StatusFlushed:
			e.fatalf("%d behind a failed request: %s", done.ID, done.Status)
		case status == rdma.StatusSuccess && done.Status == rdma.StatusSuccess:
			landed.Add(1)
		case status == rdma.StatusSuccess:
			status = done.Status
		}
		completed++
	}
	request.Flags |= rdma.Signaled
	for {
		if err := e.ctx.Err(); err != nil {
			e.fatalf("stream of %s does not end: %v", request.Op, err)
		}
		request.ID = posted
		n, err := c.PostSend([]rdma.SendRequest{request})
		posted += uint64(n)
		if n == 0 && !errorIs(err, rdma.ErrQueueFull) {
			e.wants(err, "PostSend in a stream", rdma.ErrState, rdma.ErrClosed)
			break
		}
		if n == 0 {
			take(c.sends.next())
		}
	}
	for completed < posted {
		take(c.sends.next())
	}
	return status
}

// testDeregisterUnderWrites closes a region while a stream of Writes goes to
// it. No Write may land anywhere after that.
func testDeregisterUnderWrites(e *env) {
	const size = 64 << 10
	for range e.rounds(8) {
		a, b := e.connect(nil)
		m, source := b.s.memory(size), a.s.memory(size)
		source.fill(0, size, 0xFF)
		var landed atomic.Int64
		var later []*memory
		e.together(func() {
			a.streamWrites(rdma.SendRequest{Op: rdma.OpWrite, Remote: m.at(0), SGEs: source.sge(0, size)}, &landed)
		}, func() {
			e.poll("Writes under way", func() bool { return landed.Load() > 20 || a.State() != rdma.StateConnected })
			e.check(m.Close(), "Region.Close")
			for range 4 {
				later = append(later, b.s.memory(size))
			}
		})
		a.ended()
		e.check(a.Close(), "Close")
		b.ended()
		for _, n := range later {
			if !is(n.read(0, size), 0) {
				e.fatalf("a Write to a closed region lands in memory that was allocated later")
			}
			e.check(n.Close(), "Region.Close")
		}
		e.check(b.Close(), "Close")
		e.check(source.Close(), "Region.Close")
	}
}

// testSufficientRights uses regions that have the right that is needed and no
// other of the peer's.
func testSufficientRights(e *env) {
	a, b := e.connect(nil)
	local := a.s.memory(64)
	local.fill(0, 64, 2)
	written := b.s.allocate(64, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: written.at(0), SGEs: local.sge(0, 64)})
	a.sends.success(1)
	a.signal(b)
	if !is(written.read(0, 64), 2) {
		e.errorf("a Write has written something else")
	}
	read := b.s.allocate(64, rdma.AccessRemoteRead)
	read.fill(0, 64, 5)
	a.send(rdma.SendRequest{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: read.at(0), SGEs: local.sge(0, 64)})
	a.sends.success(2)
	if !is(local.read(0, 64), 5) {
		e.errorf("a Read has read something else")
	}
	if e.suite.has(FeatureAtomics) {
		counter := b.s.allocate(64, rdma.AccessLocalWrite|rdma.AccessRemoteAtomic)
		if was := a.atomic(rdma.SendRequest{ID: 3, Op: rdma.OpFetchAdd, Remote: counter.at(56), CompareAdd: 4}, local); was != 0 {
			e.errorf("Fetch-and-add returns %d", was)
		}
		a.signal(b)
		if now := word(counter.read(56, 8)); now != 4 {
			e.errorf("Fetch-and-add leaves %d", now)
		}
	}
}

// testLocalRights reads into memory that this side may not write.
func testLocalRights(e *env) {
	a, b := e.connect(nil)
	source, sink := b.s.memory(64), a.s.allocate(64, rdma.AccessRemoteRead)
	source.fill(0, 64, 1)
	n, err := a.PostSend([]rdma.SendRequest{{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, Remote: source.at(0), SGEs: sink.sge(0, 64)}})
	if n == 0 {
		e.wants(err, "post of a Read without the right of local write", rdma.ErrInvalid)
		a.signal(b)
	} else {
		if c := a.sends.next(); c.ID != 1 || c.Status == rdma.StatusSuccess {
			e.errorf("Read without the right of local write: %s", c.Status)
		}
		a.ended()
	}
	if !is(sink.read(0, 64), 0) {
		e.errorf("a Read writes memory without the right of local write")
	}
	// No right at all is needed to send from memory.
	c, d := e.connect(nil)
	m := d.s.memory(64)
	d.recv(1, m.sge(0, 64))
	none := c.s.allocate(64, 0)
	none.fill(0, 64, 9)
	c.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: none.sge(0, 64)})
	d.recvs.success(1)
	c.sends.success(1)
	if !is(m.read(0, 64), 9) {
		e.errorf("a Send from memory without rights carries something else")
	}
}
