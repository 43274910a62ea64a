package rdmatest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/verbena-data/verbena/rdma"
)

// operationCases are about what each operation does.
var operationCases = []testCase{
	{"Send", nil, func(e *env) { testSizes(e, rdma.OpSend) }},
	{"SendImmediate", []Feature{FeatureSendImmediate}, func(e *env) { testSizes(e, rdma.OpSendImmediate) }},
	{"Write", nil, func(e *env) { testSizes(e, rdma.OpWrite) }},
	{"WriteImmediate", []Feature{FeatureWriteImmediate}, func(e *env) { testSizes(e, rdma.OpWriteImmediate) }},
	{"Read", nil, func(e *env) { testSizes(e, rdma.OpRead) }},
	{"ReadSteady", nil, testReadSteady},
	{"ScatterGather", nil, testScatterGather},
	{"ReadScatter", []Feature{FeatureReadScatter}, testReadScatter},
	{"CompareSwap", []Feature{FeatureAtomics}, testCompareSwap},
	{"FetchAdd", []Feature{FeatureAtomics}, testFetchAdd},
	{"AtomicsCompete", []Feature{FeatureAtomics}, testAtomicsCompete},
	{"Inline", []Feature{FeatureInline}, testInline},
	{"InlineReuse", []Feature{FeatureInline, FeatureReceiverNotReady}, testInlineReuse},
	{"ManyReads", nil, testManyReads},
	{"PolledWrites", []Feature{FeaturePolledWrites, FeatureMemory}, testPolledWrites},
}

// sizes are the message sizes to try, the largest last.
func (e *env) sizes() []int {
	most := e.suite.MaxMessage
	for _, s := range e.sides() {
		most = int(min(int64(most), s.attributes.MaxMessage, s.attributes.MaxRegion-2*guard))
	}
	all := []int{0, 1, 7, 8, 63, 64, 65, 1 << 10, 4<<10 - 1, 4 << 10, 4<<10 + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 + 3, 64 << 20}
	all = slices.DeleteFunc(all, func(n int) bool { return n > most })
	if all[len(all)-1] < most {
		all = append(all, most)
	}
	return all
}

// guard is how much memory beside a message is checked to be left alone.
const guard = 64

// testSizes moves messages of all sizes by one operation.
func testSizes(e *env, op rdma.Opcode) {
	a, b := e.connect(nil)
	sizes := e.sizes()
	largest := sizes[len(sizes)-1]
	from, to := a, b
	if op == rdma.OpRead {
		from, to = b, a
	}
	source, sink := from.s.memory(largest+2*guard), to.s.memory(largest+2*guard)
	data := patterned(largest+guard, 7)
	source.write(0, data)
	for i, n := range sizes {
		// Sources and sinks at all alignments, but for the largest, where only
		// the time would tell.
		at, put := i%9, guard-i%5
		sink.fill(put-min(put, guard), n+min(put, guard)+guard, 0xA5)
		id := uint64(1000 + i)
		request := rdma.SendRequest{
			ID: id, Op: op, Flags: rdma.Signaled, Immediate: 0xA0000000 + uint32(i), Remote: sink.at(put), SGEs: source.sge(at, n),
		}
		received := 0
		switch op {
		case rdma.OpRead:
			request.Remote, request.SGEs = source.at(at), sink.sge(put, n)
		case rdma.OpSend, rdma.OpSendImmediate:
			// Receives that fit exactly, and larger ones.
			b.recv(id, sink.sge(put, n+i%2*guard/2))
			request.Remote = rdma.Remote{}
			received = n
		case rdma.OpWriteImmediate:
			b.recv(id, nil)
			received = n
		}
		a.send(request)
		if op != rdma.OpWrite && op != rdma.OpRead {
			c := b.recvs.success(id)
			want := rdma.Completion{ID: id, QueuePair: b.Number(), Length: uint32(received), Op: rdma.OpRecv}
			if op != rdma.OpSend {
				want.Immediate, want.HasImmediate = request.Immediate, true
			}
			if op == rdma.OpWriteImmediate {
				want.Op = rdma.OpRecvWriteImmediate
			}
			if c != want {
				e.fatalf("%s of %d bytes: receive completes as %+v, want %+v", op, n, c, want)
			}
		}
		c := a.sends.success(id)
		if c.Op != op || c.QueuePair != a.Number() || c.HasImmediate {
			e.fatalf("%s of %d bytes completes as %+v", op, n, c)
		}
		if op == rdma.OpRead && c.Length != uint32(n) {
			e.fatalf("Read of %d bytes completes with length %d", n, c.Length)
		}
		if op == rdma.OpWrite {
			a.signal(b)
		}
		got := sink.read(0, put+n+guard)
		e.same(got[put:put+n], data[at:at+n], fmt.Sprintf("%s of %d bytes", op, n))
		if !is(got[:put], 0xA5) || !is(got[put+n:], 0xA5) {
			e.fatalf("%s of %d bytes touches memory beside its target", op, n)
		}
	}
	for _, c := range []*conn{a, b} {
		c.sends.quiet("one completion for each request")
		c.recvs.quiet("one completion for each receive")
	}
}

// split lists entries for n bytes of m, of uneven lengths, one of them empty,
// in an order that is not the memory's; and the offsets of the bytes.
func split(m *memory, n, entries int) (sges []rdma.SGE, offsets []int) {
	left := n
	for i := range entries {
		length := left
		if i < entries-1 {
			length = left * [...]int{1, 0, 2, 1, 1, 3, 2}[i%7] / 5
		}
		// The entries' places go backwards, with gaps.
		at := (entries - 1 - i) * (n + 5)
		sges = append(sges, rdma.SGE{Region: m.Region, Offset: at, Length: length})
		for b := range length {
			offsets = append(offsets, at+b)
		}
		left -= length
	}
	return sges, offsets
}

func pick(b []byte, offsets []int) []byte {
	out := make([]byte, len(offsets))
	for i, at := range offsets {
		out[i] = b[at]
	}
	return out
}

func testScatterGather(e *env) {
	a, b := e.connect(func(c *rdma.QueuePairConfig) {
		c.MaxSGE = 16
		for _, s := range e.sides() {
			c.MaxSGE = min(c.MaxSGE, s.attributes.MaxSendSGE, s.attributes.MaxRecvSGE)
		}
	})
	most := a.config.MaxSGE
	ops := []rdma.Opcode{rdma.OpSend, rdma.OpWrite}
	if e.suite.has(FeatureSendImmediate) {
		ops = append(ops, rdma.OpSendImmediate)
	}
	if e.suite.has(FeatureWriteImmediate) {
		ops = append(ops, rdma.OpWriteImmediate)
	}
	const largest = 5000
	source, sink := a.s.memory(most*(largest+5)), b.s.memory(most*(largest+5))
	data := patterned(source.size, 8)
	source.write(0, data)
	for _, op := range ops {
		for _, n := range []int{0, 1, 2, 100, largest} {
			for _, entries := range []int{1, 2, most} {
				if entries > most {
					continue
				}
				from, fromAt := split(source, n, entries)
				into, intoAt := split(sink, n, most+1-entries)
				sink.fill(0, sink.size, 0)
				id := uint64(n*100 + entries)
				request := rdma.SendRequest{ID: id, Op: op, Flags: rdma.Signaled, SGEs: from}
				got := intoAt
				if op == rdma.OpSend || op == rdma.OpSendImmediate {
					b.recv(id, into)
				} else {
					request.Remote = sink.at(3)
					got = nil
					for i := range n {
						got = append(got, 3+i)
					}
					if op == rdma.OpWriteImmediate {
						b.recv(id, nil)
					}
				}
				a.send(request)
				a.sends.success(id)
				if op == rdma.OpWrite {
					a.signal(b)
				} else {
					b.recvs.success(id)
				}
				e.same(pick(sink.read(0, sink.size), got), pick(data, fromAt), fmt.Sprintf("%s of %d bytes in %d entries", op, n, entries))
			}
		}
	}
}

func testReadScatter(e *env) {
	a, b := e.connect(func(c *rdma.QueuePairConfig) { c.MaxSGE = min(e.a().attributes.MaxReadSGE, 8) })
	const largest = 5000
	source, sink := b.s.memory(largest), a.s.memory(a.config.MaxSGE*(largest+5))
	data := patterned(largest, 9)
	source.write(0, data)
	for _, n := range []int{0, 1, 2, 100, largest} {
		into, at := split(sink, n, a.config.MaxSGE)
		a.send(rdma.SendRequest{ID: uint64(n), Op: rdma.OpRead, Flags: rdma.Signaled, Remote: source.at(0), SGEs: into})
		a.sends.success(uint64(n))
		e.same(pick(sink.read(0, sink.size), at), data[:n], fmt.Sprintf("Read of %d bytes in %d entries", n, len(into)))
	}
}

// testReadSteady reads regions that keep still, if the device has such, and again after they have
// changed between two Reads.
func testReadSteady(e *env) {
	a, b := e.connect(nil)
	for _, n := range e.sizes() {
		if n == 0 || n > 4<<20 {
			continue
		}
		source, sink := b.s.memory(n), a.s.memory(n)
		if still, ok := source.Region.(rdma.SteadyRegion); ok {
			still.Steady()
		}
		for round := range 2 {
			data := patterned(n, uint64(n+round))
			source.write(0, data)
			a.send(rdma.SendRequest{ID: uint64(round), Op: rdma.OpRead, Flags: rdma.Signaled, Remote: source.at(0), SGEs: sink.sge(0, n)})
			a.sends.success(uint64(round))
			e.same(sink.read(0, n), data, fmt.Sprintf("Read %d of %d bytes that keep still", round, n))
		}
	}
}

func word(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

func wordBytes(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// atomic carries out one atomic and returns what was there.
func (c *conn) atomic(request rdma.SendRequest, result *memory) uint64 {
	c.s.e.t.Helper()
	result.write(0, wordBytes(^uint64(0)))
	request.Flags |= rdma.Signaled
	request.SGEs = result.sge(0, 8)
	c.send(request)
	if done := c.sends.success(request.ID); done.Op != request.Op {
		c.s.e.fatalf("%s completes as %s", request.Op, done.Op)
	}
	return word(result.read(0, 8))
}

func testCompareSwap(e *env) {
	a, b := e.connect(nil)
	m, result := b.s.memory(4096), a.s.memory(8)
	for i, at := range []int{0, 8, 2048, 4088} {
		m.fill(0, 4096, 0xA5)
		m.write(at, wordBytes(41))
		for j, c := range []struct{ compare, swap, was, now uint64 }{
			{41, 42, 41, 42},
			{41, 43, 42, 42},
			{42, math.MaxUint64, 42, math.MaxUint64},
			{math.MaxUint64, 0, math.MaxUint64, 0},
			{1 << 63, 7, 0, 0},
		} {
			was := a.atomic(rdma.SendRequest{ID: uint64(i*10 + j), Op: rdma.OpCompareSwap, Remote: m.at(at), CompareAdd: c.compare, Swap: c.swap}, result)
			a.signal(b)
			if now := word(m.read(at, 8)); was != c.was || now != c.now {
				e.fatalf("Compare-and-swap of %d by %d if %d: returned %d, left %d; want %d, %d", c.was, c.swap, c.compare, was, now, c.was, c.now)
			}
		}
		if !is(m.read(0, at), 0xA5) || !is(m.read(at+8, 4096-at-8), 0xA5) {
			e.errorf("Compare-and-swap touches memory beside its 8 bytes")
		}
	}
}

func testFetchAdd(e *env) {
	a, b := e.connect(nil)
	m, result := b.s.memory(64), a.s.memory(8)
	m.fill(0, 64, 0xA5)
	m.write(8, wordBytes(5))
	want := uint64(5)
	for i, add := range []uint64{0, 1, 1 << 40, math.MaxUint64, math.MaxUint64 - 5, 1 << 63, 1 << 63} {
		was := a.atomic(rdma.SendRequest{ID: uint64(i), Op: rdma.OpFetchAdd, Remote: m.at(8), CompareAdd: add, Swap: 99}, result)
		a.signal(b)
		if now := word(m.read(8, 8)); was != want || now != want+add {
			e.fatalf("Fetch-and-add of %d to %d: returned %d, left %d", add, want, was, now)
		}
		want += add
	}
	if !is(m.read(0, 8), 0xA5) || !is(m.read(16, 48), 0xA5) {
		e.errorf("Fetch-and-add touches memory beside its 8 bytes")
	}
}

// testAtomicsCompete lets several queue pairs add to one word.
func testAtomicsCompete(e *env) {
	const pairs, each = 3, 100
	m := e.b().memory(8)
	seen := make([][]uint64, pairs)
	var work []func()
	for i := range pairs {
		a, _ := e.connect(nil)
		result := a.s.memory(8)
		work = append(work, func() {
			for id := range uint64(each) {
				seen[i] = append(seen[i], a.atomic(rdma.SendRequest{ID: id, Op: rdma.OpFetchAdd, Remote: m.at(0), CompareAdd: 1}, result))
			}
		})
	}
	e.together(work...)
	all := slices.Concat(seen...)
	slices.Sort(all)
	for i, v := range all {
		if v != uint64(i) {
			e.fatalf("%d additions of 1: the returned values have %d at place %d", pairs*each, v, i)
		}
	}
	if v := word(m.read(0, 8)); v != pairs*each {
		e.errorf("%d additions of 1 leave %d", pairs*each, v)
	}
}

func testInline(e *env) {
	most := min(e.a().attributes.MaxInline, 256)
	a, b := e.connectEach(func(c *rdma.QueuePairConfig) { c.MaxInline = most }, nil)
	const slot = 256
	rounds := []int{0, 1, most / 2, most}
	source, sink := a.s.memory(slot), b.s.memory(2*slot*len(rounds))
	for i := range rounds {
		b.recv(uint64(i), sink.sge(i*slot, slot))
	}
	for i, n := range rounds {
		data := patterned(n, uint64(i))
		written := sink.at((len(rounds) + i) * slot)
		source.write(0, data)
		a.send(rdma.SendRequest{ID: 7, Op: rdma.OpWrite, Flags: rdma.Inline, Remote: written, SGEs: source.sge(0, n)})
		source.fill(0, slot, 0xEE) // the memory is ours again
		source.write(0, data)
		a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline, SGEs: source.sge(0, n)})
		source.fill(0, slot, 0xEE)
	}
	for i, n := range rounds {
		a.sends.success(uint64(i))
		b.recvs.success(uint64(i))
		e.same(sink.read(i*slot, n), patterned(n, uint64(i)), fmt.Sprintf("inline Send of %d bytes", n))
		e.same(sink.read((len(rounds)+i)*slot, n), patterned(n, uint64(i)), fmt.Sprintf("inline Write of %d bytes", n))
	}
	// In several entries.
	if a.config.MaxSGE > 1 && most > 1 {
		data := patterned(most, 77)
		source.write(0, data)
		b.recv(50, sink.sge(0, slot))
		a.send(rdma.SendRequest{ID: 50, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline, SGEs: []rdma.SGE{
			{Region: source.Region, Offset: most / 2, Length: most - most/2}, {Region: source.Region, Length: most / 2},
		}})
		source.fill(0, slot, 0xEE)
		a.sends.success(50)
		b.recvs.success(50)
		e.same(sink.read(0, most), slices.Concat(data[most/2:], data[:most/2]), "inline Send in two entries")
	}
}

// testInlineReuse reuses inline memory while the request certainly waits: for a
// receive.
func testInlineReuse(e *env) {
	a, b := e.connect(nil)
	n := a.config.MaxInline
	source, sink := a.s.memory(n), b.s.memory(n)
	source.fill(0, n, 1)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline, SGEs: source.sge(0, n)})
	source.fill(0, n, 2)
	b.recv(1, sink.sge(0, n))
	a.sends.success(1)
	b.recvs.success(1)
	if !is(sink.read(0, n), 1) {
		e.errorf("an inline Send carries what its memory held after the post")
	}
}

// testManyReads posts more Reads than may be outstanding on the wire, and looks
// at what each has brought at the moment that it completes.
func testManyReads(e *env) {
	const reads, size = 48, 32 << 10
	a, b := e.connect(func(c *rdma.QueuePairConfig) {
		c.MaxReads = min(2, e.a().attributes.MaxReads, e.b().attributes.MaxReads)
	})
	source, sink := b.s.memory(reads*size), a.s.memory(reads*size)
	data := patterned(reads*size, 10)
	source.write(0, data)
	e.together(func() {
		for i := range reads {
			a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, Remote: source.at(i * size), SGEs: sink.sge(i*size, size)})
		}
	}, func() {
		for i := range reads {
			a.sends.spin(uint64(i))
			e.same(sink.read(i*size, size), data[i*size:(i+1)*size], fmt.Sprintf("Read %d when it completes", i))
		}
	})
}

func testPolledWrites(e *env) {
	const size = 8 << 10
	a, b := e.connect(nil)
	source, sink := a.s.memory(size), b.s.memory(size)
	flag := wordPointer(sink.Bytes()[size-8:])
	for i := range uint64(200) {
		source.fill(0, size-8, byte(i))
		source.write(size-8, wordBytes(i+1))
		a.send(rdma.SendRequest{ID: i, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, size)})
		e.poll(fmt.Sprintf("flag of Write %d", i), func() bool { return loadWord(flag) == i+1 })
		if !is(sink.Bytes()[:size-8], byte(i)) {
			e.fatalf("Write %d: its last bytes are there before the others", i)
		}
		a.sends.success(i)
	}
}
