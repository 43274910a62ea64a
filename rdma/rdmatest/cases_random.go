package rdmatest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/verbena-data/verbena/rdma"
)

// randomCases compare random operations with a model of the memory.
var randomCases = []testCase{
	{"Random", nil, func(e *env) { testRandom(e, false) }},
	{"RandomShared", []Feature{FeatureSharedReceive}, func(e *env) { testRandom(e, true) }},
}

// span is a part of a memory.
type span struct{ from, to int }

func overlaps(spans []span, s span) bool {
	for _, each := range spans {
		if s.from < each.to && each.from < s.to {
			return true
		}
	}
	return false
}

// A model is what the memory of both sides must hold, and what is outstanding
// and must not be disturbed.
type model struct {
	local, remote, inbox []byte
	// Sources and targets at this side of requests that have not completed.
	sources, targets []span
	// What at the peer a Read that may still be late looks at.
	looked []span
	// The targets, at this side, of Reads and atomics with no fence after them.
	late []span
}

const (
	randomMemory = 32 << 10
	randomSlots  = 24 // receives, and messages between two comparisons
	randomSlot   = 2048
)

func testRandom(e *env, shared bool) {
	batches := e.rounds(60)
	var work []func()
	for i := range 3 {
		seed := e.suite.Seed + uint64(i)
		e.logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 7))
		var a, b *conn
		post := func(id uint64, sges []rdma.SGE) { b.recv(id, sges) }
		if shared {
			srq, as, bs := e.shared(1, rdma.SharedReceiveConfig{Depth: 64, MaxSGE: 1})
			a, b = as[0], bs[0]
			post = func(id uint64, sges []rdma.SGE) { e.postShared(srq, id, sges) }
		} else {
			a, b = e.connect(nil)
			if i == 1 {
				// The other way round, once the initiator has begun.
				a.signal(b)
				a, b = b, a
			}
		}
		local, remote, inbox := a.s.memory(randomMemory), b.s.memory(randomMemory), b.s.memory(randomSlots*randomSlot)
		m := &model{local: make([]byte, randomMemory), remote: make([]byte, randomMemory), inbox: make([]byte, inbox.size)}
		pattern(m.local, seed)
		pattern(m.remote, seed+1)
		local.write(0, m.local)
		remote.write(0, m.remote)
		work = append(work, func() {
			for batch := range batches {
				what := fmt.Sprintf("seed %d, batch %d", seed, batch)
				for slot := range randomSlots {
					post(uint64(slot), inbox.sge(slot*randomSlot, randomSlot))
				}
				messages := randomBatch(e, random, m, a, local, remote)
				// The rest of the receives is used up by empty messages, the last of
				// which makes everything visible.
				for len(messages) < randomSlots {
					messages = append(messages, message{})
					flags := rdma.Fence
					if len(messages) == randomSlots {
						flags |= rdma.Signaled
					}
					a.send(rdma.SendRequest{ID: 1 << 40, Op: rdma.OpSend, Flags: flags})
				}
				for slot, want := range messages {
					c := b.recvs.success(uint64(slot))
					if int(c.Length) != want.length || c.HasImmediate != want.immediate || want.immediate && c.Immediate != want.value {
						e.fatalf("%s: message %d completes as %+v, want %+v", what, slot, c, want)
					}
				}
				for {
					c := a.sends.next()
					if c.Status != rdma.StatusSuccess {
						e.fatalf("%s: request %d: %s", what, c.ID, c.Status)
					}
					if c.ID == 1<<40 {
						break
					}
				}
				e.same(local.read(0, randomMemory), m.local, what+": memory of the initiator")
				e.same(remote.read(0, randomMemory), m.remote, what+": memory of the target")
				e.same(inbox.read(0, inbox.size), m.inbox, what+": messages at the target")
				m.sources, m.targets, m.looked, m.late = nil, nil, nil, nil
			}
			e.check(a.Close(), "Close")
			e.check(b.Close(), "Close")
		})
	}
	e.together(work...)
}

// A message is what the target must receive.
type message struct {
	length    int
	immediate bool
	value     uint32
}

// randomBatch posts a batch and carries it out in the model. It uses each byte
// only in ways whose outcome the rules determine.
func randomBatch(e *env, random *rand.Rand, m *model, a *conn, local, remote *memory) (messages []message) {
	ops := []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpWrite, rdma.OpRead, rdma.OpRead}
	if e.suite.has(FeatureSendImmediate) {
		ops = append(ops, rdma.OpSendImmediate)
	}
	if e.suite.has(FeatureWriteImmediate) {
		ops = append(ops, rdma.OpWriteImmediate)
	}
	if e.suite.has(FeatureAtomics) && !e.suite.atomicsTwice() {
		ops = append(ops, rdma.OpCompareSwap, rdma.OpFetchAdd)
	}
	unfenced := e.suite.unfenced()
	n := 1 + random.IntN(a.config.SendDepth-randomSlots-1)
	for id := range uint64(n) {
		op := ops[random.IntN(len(ops))]
		if len(messages) == randomSlots-1 && op != rdma.OpRead && op < rdma.OpCompareSwap {
			op = rdma.OpWrite
		}
		length := random.IntN(64)
		if random.IntN(4) == 0 {
			length = random.IntN(randomSlot)
		}
		at := random.IntN(randomMemory - length + 1)
		isAtomic := op == rdma.OpCompareSwap || op == rdma.OpFetchAdd
		if isAtomic {
			length, at = 8, random.IntN(randomMemory/8)*8
		}
		entries := 1
		if op == rdma.OpRead && a.s.attributes.MaxReadSGE > 1 || op < rdma.OpRead {
			entries = 1 + random.IntN(a.config.MaxSGE)
		}
		if op == rdma.OpRead {
			entries = min(entries, a.s.attributes.MaxReadSGE)
		}
		fetches := op == rdma.OpRead || isAtomic
		r := rdma.SendRequest{ID: id, Op: op, Remote: remote.at(at)}
		there := span{at, at + length}

		// The local entries.
		var spans []span
		left := length
		for i := range entries {
			part := left
			if i < entries-1 {
				part = random.IntN(left + 1)
			}
			from := random.IntN(randomMemory - part + 1)
			spans = append(spans, span{from, from + part})
			r.SGEs = append(r.SGEs, rdma.SGE{Region: local.Region, Offset: from, Length: part})
			left -= part
		}
		fence, skip, inline := false, false, !fetches && length <= a.config.MaxInline
		for i, s := range spans {
			if fetches {
				// Nothing else may use a target until the Read completes.
				skip = skip || overlaps(m.sources, s) || overlaps(m.targets, s) || overlaps(spans[:i], s)
			} else {
				// What a Read brings may be sent on, behind a fence.
				fence = fence || overlaps(m.late, s)
				// But inline data is taken by the post.
				inline = inline && !overlaps(m.targets, s)
			}
		}
		if skip {
			continue
		}
		if !fetches && op != rdma.OpSend && op != rdma.OpSendImmediate || isAtomic {
			// A late Read must not see what comes after it.
			fence = fence || overlaps(m.looked, there)
		}
		if fence && unfenced {
			continue
		}
		if fence || !unfenced && random.IntN(10) == 0 {
			r.Flags |= rdma.Fence
			m.late, m.looked = nil, nil
		}
		if random.IntN(3) == 0 {
			r.Flags |= rdma.Signaled
		}
		if random.IntN(3) == 0 {
			r.Flags |= rdma.Solicited
		}
		if inline && random.IntN(2) == 0 {
			r.Flags |= rdma.Inline
		}

		// The model.
		var payload []byte
		for _, s := range spans {
			payload = append(payload, m.local[s.from:s.to]...)
		}
		scatter := func(data []byte) {
			for _, s := range spans {
				data = data[copy(m.local[s.from:s.to], data):]
			}
		}
		switch op {
		case rdma.OpSend, rdma.OpSendImmediate:
			copy(m.inbox[len(messages)*randomSlot:], payload)
			r.Remote = rdma.Remote{}
		case rdma.OpWrite, rdma.OpWriteImmediate:
			copy(m.remote[at:], payload)
		case rdma.OpRead:
			scatter(m.remote[at : at+length])
		case rdma.OpCompareSwap, rdma.OpFetchAdd:
			was := binary.NativeEndian.Uint64(m.remote[at:])
			now := was
			r.CompareAdd, r.Swap = random.Uint64(), random.Uint64()
			if op == rdma.OpFetchAdd {
				now += r.CompareAdd
			} else if random.IntN(2) == 0 {
				r.CompareAdd, now = was, r.Swap
			}
			binary.NativeEndian.PutUint64(m.remote[at:], now)
			scatter(binary.NativeEndian.AppendUint64(nil, was))
		}
		switch op {
		case rdma.OpSend:
			messages = append(messages, message{length: length})
		case rdma.OpSendImmediate, rdma.OpWriteImmediate:
			r.Immediate = random.Uint32()
			messages = append(messages, message{length: length, immediate: true, value: r.Immediate})
		}
		if fetches {
			m.targets = append(m.targets, spans...)
			m.late = append(m.late, spans...)
			m.looked = append(m.looked, there)
		} else {
			m.sources = append(m.sources, spans...)
		}
		a.send(r)
	}
	return messages
}
