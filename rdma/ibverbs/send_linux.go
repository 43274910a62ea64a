//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

const (
	// chain is how many requests go to the driver in one call.
	chain = 32
	// briefBytes is how much such a call may carry for the driver to return soon.
	briefBytes = 4096
)

// PostSend implements [rdma.QueuePair].
func (p *queuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	taken := 0
	for taken < len(requests) {
		if rdma.State(p.state.Load()) != rdma.StateConnected {
			return taken, p.stateError("post to")
		}
		owed := p.owesFence
		n, places, wrong := p.prepareSends(requests[taken:])
		if n > 0 {
			// A completion may be polled before the post has returned.
			tail := p.sends.tail.Load()
			p.sends.tail.Store(tail + uint32(n))
			posted, err := p.hw.PostSend(p.sendList, places)
			if places > n {
				posted = p.whole(posted, places)
			}
			taken += posted
			if err != nil {
				p.sends.tail.Store(tail + uint32(posted))
				p.owesFence = p.owesFence || owed // the request that took the fence may be the refused one
				return taken, p.refused("post to", err, p.errFull)
			}
		}
		if wrong != nil {
			return taken, wrong
		}
	}
	if taken == 0 && rdma.State(p.state.Load()) != rdma.StateConnected {
		return 0, p.stateError("post to")
	}
	return taken, nil
}

// prepareSends fills the list with requests, as many as there is room for. It
// returns how many, and how many places of the list they take; the error is about
// the next one.
func (p *queuePair) prepareSends(requests []rdma.SendRequest) (n, places int, err error) {
	room := p.sends.room()
	tail := p.sends.tail.Load()
	bytes := 0
	p.sendList.Brief = true
	for n < len(requests) && places < p.sendList.Len() {
		if room == 0 {
			return n, places, p.errFull
		}
		used, err := p.prepare(places, tail+uint32(n), &requests[n])
		if err != nil {
			return n, places, err
		}
		if used == 0 {
			break // it needs more places than are left
		}
		for _, e := range requests[n].SGEs {
			bytes += e.Length
		}
		p.sendList.Brief = bytes <= briefBytes
		places += used
		n++
		room--
	}
	return n, places, nil
}

// whole is how many requests are complete within the first posted places of the list.
// Of a Read in two parts the driver may have taken the first part alone. Such a Read
// counts as not taken, and its part completes without a completion.
func (p *queuePair) whole(posted, places int) (n int) {
	for i := range posted {
		if i+1 == places || p.sendList.At(i+1).ID != p.sendList.At(i).ID {
			n++
		}
	}
	return n
}

// operations says how each operation goes to the device.
var operations = [...]struct {
	opcode  verbs.WROpcode
	needs   rdma.Capabilities
	fetches bool // it brings data from the peer
	atomic  bool
	known   bool
}{
	rdma.OpSend:           {opcode: verbs.WRSend, known: true},
	rdma.OpSendImmediate:  {opcode: verbs.WRSendWithImmediate, needs: rdma.CapSendImmediate, known: true},
	rdma.OpWrite:          {opcode: verbs.WRWrite, known: true},
	rdma.OpWriteImmediate: {opcode: verbs.WRWriteWithImmediate, needs: rdma.CapWriteImmediate, known: true},
	rdma.OpRead:           {opcode: verbs.WRRead, fetches: true, known: true},
	rdma.OpCompareSwap:    {opcode: verbs.WRCompareSwap, needs: rdma.CapAtomics, fetches: true, atomic: true, known: true},
	rdma.OpFetchAdd:       {opcode: verbs.WRFetchAdd, needs: rdma.CapAtomics, fetches: true, atomic: true, known: true},
	rdma.OpSendInvalidate: {opcode: verbs.WRSendWithInvalidate, needs: rdma.CapSendInvalidate, known: true},
}

// prepare fills the i-th place of the list, and for a Read in two parts the one
// behind it, and returns how many. It is 0 if the list has no second place left.
func (p *queuePair) prepare(i int, seq uint32, r *rdma.SendRequest) (places int, err error) {
	a := &p.domain.device.attributes
	if int(r.Op) >= len(operations) || !operations[r.Op].known {
		return 0, p.invalid(r.Op, "it is no operation of a send queue")
	}
	op := &operations[r.Op]
	if !a.Has(op.needs) {
		return 0, fmt.Errorf("ibverbs: post to queue pair %d: %w: %s on %s", p.number, rdma.ErrUnsupported, r.Op, a.Name)
	}
	most := p.config.MaxSGE
	if op.fetches {
		most = p.readSGE
	}
	if len(r.SGEs) > most {
		return 0, p.invalid(r.Op, "it has too many entries")
	}
	wr, entries := p.sendList.At(i), p.sendList.SGEs(i)
	total, used, wrong := p.entries(entries, r.SGEs, op.fetches)
	if wrong != "" {
		return 0, p.invalid(r.Op, wrong)
	}
	if int64(total) > a.MaxMessage {
		return 0, p.invalid(r.Op, "it is longer than the device's messages")
	}
	cut := 0
	if p.quirks.Garbles.Length > 0 {
		if cut = p.cut(entries, used, r, op.fetches); cut > 0 && op.fetches && i+1 == p.sendList.Len() {
			return 0, nil
		}
	}
	wr.Flags = 0
	if r.Flags&rdma.Inline != 0 {
		if op.fetches {
			return 0, p.invalid(r.Op, "nothing of it can be inline")
		}
		if total > p.config.MaxInline {
			return 0, p.invalid(r.Op, "it is longer than MaxInline")
		}
		wr.Flags |= verbs.SendInline
	}
	switch {
	case op.atomic:
		if len(r.SGEs) != 1 || total != 8 {
			return 0, p.invalid(r.Op, "it needs one entry of 8 bytes")
		}
		if r.Remote.Address%8 != 0 {
			return 0, p.invalid(r.Op, "its target is not aligned to 8 bytes")
		}
		wr.SetAtomic(r.Remote.Address, r.Remote.Key, r.CompareAdd, r.Swap)
	default:
		wr.SetRemote(r.Remote.Address, r.Remote.Key)
		wr.SetImmediate(r.Immediate)
	}
	if op.fetches {
		used = p.domain.atLeastOne(entries, used)
	} else if cut > 0 {
		cutEntry(entries, uint32(cut))
		used = 2
	}
	wr.ID = kindSend | p.tag | uint64(seq)
	wr.NumSGE = int32(used)
	wr.Opcode = op.opcode
	if op.fetches && total == 0 && p.quirks.EmptyReadsAreWrites {
		wr.Opcode, wr.NumSGE = verbs.WRWrite, 0
	}
	// On iWARP Reads are answered in order. So a Read needs no fence behind another
	// Read, and some drivers refuse a fenced one. But later requests may rely on its
	// fence: the next request that is no Read carries it instead.
	switch {
	case op.fetches && a.Class == rdma.ClassIWARP:
		p.owesFence = p.owesFence || r.Flags&rdma.Fence != 0
	case r.Flags&rdma.Fence != 0 || p.owesFence:
		wr.Flags |= verbs.SendFence
		p.owesFence = false
	}
	if r.Flags&rdma.Solicited != 0 {
		wr.Flags |= verbs.SendSolicited
	}
	s := &p.sends.slots[seq&p.sends.mask]
	s.id, s.op, s.length, s.done = r.ID, r.Op, 0, false
	if op.fetches {
		s.length = uint32(total)
	}
	s.signaled = r.Flags&rdma.Signaled != 0
	// iWARP devices complete a later Send before an earlier Read. A completion
	// promises that all before it are done, so there each Read has to be reported.
	s.reports = s.signaled || op.fetches && a.Class == rdma.ClassIWARP
	if p.quirks.BorrowsPages && total >= pageSize {
		s.reports = true
	}
	if cut > 0 && op.fetches {
		p.readInParts(i, cut, &r.Remote)
		i, places = i+1, 1
		wr = p.sendList.At(i)
	}
	if s.reports {
		wr.Flags |= verbs.SendSignaled
	}
	return places + 1, nil
}

// cut is after how many bytes a request has to be cut in two, because the driver
// may garble its source as it is; 0 is nowhere. A Send or Write gets two entries. Of
// a Read, whose source is the peer's, there must be two.
func (p *queuePair) cut(entries []verbs.SGE, used int, r *rdma.SendRequest, fetches bool) int {
	if used != 1 || r.Flags&rdma.Inline != 0 {
		return 0
	}
	source := entries[0].Address
	if fetches {
		source = r.Remote.Address
	}
	return p.quirks.Garbles.Cut(source, int(entries[0].Length))
}

// cutEntry makes two entries of one.
func cutEntry(entries []verbs.SGE, first uint32) {
	entries[1] = verbs.SGE{Address: entries[0].Address + uint64(first), Length: entries[0].Length - first, LKey: entries[0].LKey}
	entries[0].Length = first
}

// readInParts makes two Reads of the one at the i-th place. They have the same
// number. The first is reported only if it fails: Reads complete in order.
func (p *queuePair) readInParts(i, first int, from *rdma.Remote) {
	wr, entries, next, rest := p.sendList.At(i), p.sendList.SGEs(i), p.sendList.At(i+1), p.sendList.SGEs(i+1)
	e := entries[0]
	rest[0] = verbs.SGE{Address: e.Address + uint64(first), Length: e.Length - uint32(first), LKey: e.LKey}
	entries[0].Length = uint32(first)
	next.ID, next.NumSGE, next.Opcode, next.Flags = wr.ID, 1, wr.Opcode, wr.Flags
	next.SetRemote(from.Address+uint64(first), from.Key)
	next.SetImmediate(0)
}
