package shm

import (
	"unsafe"

	"github.com/verbena-data/verbena/internal/longcopy"
	"github.com/verbena-data/verbena/internal/prefetch"
	"github.com/verbena-data/verbena/rdma"
)

// The short paths of PostSend. Most requests are a Send, Write or Read of one entry that
// need not wait and are right in every way.

// quick carries out such a request. If it is anything else, quick reports false and
// has done nothing. sendMu is held.
func (qp *queuePair) quick(r *rdma.SendRequest) bool {
	if len(r.SGEs) != 1 || qp.State() != rdma.StateConnected {
		return false
	}
	e := &r.SGEs[0]
	from, ok := e.Region.(*region)
	if !ok || from == nil || from.domain != qp.domain || uint(e.Offset) > uint(len(from.bytes)) ||
		uint(e.Length) > uint(len(from.bytes)-e.Offset) || e.Length > maxMessage || from.closed.Load() {
		return false
	}
	source := from.bytes[e.Offset:][:e.Length]
	switch {
	case r.Flags&rdma.Inline != 0 && len(source) > slotInline:
		return false
	case r.Op == rdma.OpWrite && len(source) > 0:
		to := qp.openQuick(r.Remote, len(source), rdma.AccessRemoteWrite)
		if to == nil {
			return false
		}
		copyTailLast(to, source)
		qp.leave()
		return true
	case r.Op == rdma.OpRead && len(source) > 0 && r.Flags&rdma.Inline == 0 && from.access&rdma.AccessLocalWrite != 0:
		memory := qp.openQuick(r.Remote, len(source), rdma.AccessRemoteRead)
		if memory == nil {
			return false
		}
		longcopy.Fill(source, memory)
		qp.leave()
		return true
	case r.Op == rdma.OpSend && len(source) <= slotInline:
		return qp.quickShort(r.Flags, nil, source)
	case r.Op == rdma.OpSend:
		return qp.quickPlaced(r.Flags, nil, source)
	}
	return false
}

var _ rdma.PromptQueuePair = (*queuePair)(nil)

// ReadNow implements [rdma.PromptQueuePair].
func (qp *queuePair) ReadNow(into []byte, from rdma.Remote) bool {
	qp.sendMu.Lock()
	var memory []byte
	if qp.queueCount == 0 && len(into) > 0 && len(into) <= maxMessage && qp.State() == rdma.StateConnected {
		memory = qp.openQuick(from, len(into), rdma.AccessRemoteRead)
	}
	if memory != nil {
		longcopy.Fill(into, memory)
		qp.leave()
	}
	qp.sendMu.Unlock()
	return memory != nil
}

// WriteNow implements [rdma.PromptQueuePair].
func (qp *queuePair) WriteNow(to rdma.Remote, data []byte) bool {
	qp.sendMu.Lock()
	var memory []byte
	if qp.queueCount == 0 && len(data) > 0 && len(data) <= maxMessage && qp.State() == rdma.StateConnected {
		memory = qp.openQuick(to, len(data), rdma.AccessRemoteWrite)
	}
	if memory != nil {
		copyTailLast(memory, data)
		qp.leave()
	}
	qp.sendMu.Unlock()
	return memory != nil
}

// SendNow implements [rdma.PromptQueuePair].
func (qp *queuePair) SendNow(header, payload []byte) bool {
	_ = touch(payload)
	qp.sendMu.Lock()
	sent := false
	if qp.queueCount == 0 && qp.State() == rdma.StateConnected {
		switch total := len(header) + len(payload); {
		case total <= slotInline:
			sent = qp.quickShort(0, header, payload)
		case total <= maxMessage:
			sent = qp.quickPlaced(0, header, payload)
		}
	}
	qp.sendMu.Unlock()
	return sent
}

// touch reads a byte of each page. Memory of the program may be a mapped file that is slow to
// come, or has become shorter. Others wait for who holds sendMu or is inside an access, so the
// page comes, or the program dies, before. One that goes again in between holds them up.
//
//go:noinline
func touch(b []byte) (all byte) {
	for i := 0; i < len(b); i += 4096 {
		all |= b[i]
	}
	if len(b) > 0 {
		all |= b[len(b)-1]
	}
	return all
}

var _ rdma.ViewingQueuePair = (*queuePair)(nil)

// View implements [rdma.ViewingQueuePair].
func (qp *queuePair) View(from rdma.Remote, length int) (memory []byte, pin rdma.Pin, ok bool) {
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	if length <= 0 || length > maxMessage || qp.State() != rdma.StateConnected {
		return nil, nil, false
	}
	cache := &qp.cache[from.Key%uint32(len(qp.cache))]
	region := *cache
	if region == nil || region.key != from.Key {
		if region = qp.peer.Load().find(want{value: from.Key}); region != nil {
			*cache = region
		}
	}
	if region == nil || !region.has(rdma.AccessRemoteRead) || region.kept != nil {
		return nil, nil, false // ViewsHold does not tell of what another process has promised
	}
	if memory = region.at(from.Address, length); memory == nil {
		return nil, nil, false
	}
	defer qp.leave()
	if qp.enter()&gateClosed != 0 || !region.open() {
		return nil, nil, false
	}
	// Whoever unmaps it asks this queue pair to forget it first, which needs sendMu.
	region.users.Add(1)
	return memory, region, true
}

// ViewsHold implements [rdma.ViewingQueuePair]. The peer shuts its gate before it does
// anything else to end the connection.
func (qp *queuePair) ViewsHold() bool {
	keepOrder() // what the caller has read stays before
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	return qp.State() == rdma.StateConnected && qp.out.gate().Load()&gateClosed == 0
}

// openQuick begins an access to memory of the peer that was used lately, and returns the
// memory. If anything is not as usual it returns nil, outside an access. sendMu is held.
func (qp *queuePair) openQuick(remote rdma.Remote, length int, right rdma.Access) []byte {
	memory, region := qp.remoteQuick(remote, length, right)
	if memory == nil {
		return nil
	}
	if qp.enter()&gateClosed != 0 || !region.open() {
		qp.leave()
		return nil
	}
	return memory
}

// remoteQuick returns the memory of the peer that a request names, if its region was used
// lately and has the right. Whether the region is open is still to be seen.
func (qp *queuePair) remoteQuick(remote rdma.Remote, length int, right rdma.Access) ([]byte, *peerRegion) {
	region := qp.cache[remote.Key%uint32(len(qp.cache))]
	if region == nil || region.key != remote.Key || !region.has(right) || region.kept != nil {
		return nil, nil // what is passed on is looked at again behind a Read
	}
	return region.at(remote.Address, length), region
}

// quickShort sends a message that fits into a slot. sendMu is held.
func (qp *queuePair) quickShort(flags rdma.Flags, header, payload []byte) bool {
	if qp.sent == qp.outLimit && qp.refresh() != outcomeDone {
		return false
	}
	total := len(header) + len(payload)
	if total > qp.outRoom {
		return false
	}
	lent := qp.remote.shared
	if lent {
		// The peer may take the receive back, but not while this side is inside an access
		// that began in the same epoch.
		if qp.enter()&^gateCold != qp.outEpoch {
			qp.leave()
			return false
		}
	} else if qp.out.gate().Load()&(gateClosed|gateLook) != 0 {
		return false
	}
	s := qp.out.slot(qp.sent)
	if to := s.payload(); len(header) == 0 {
		copyShort(to[:total], payload)
	} else {
		copyShort(to[:len(header)], header)
		copyShort(to[len(header):total], payload)
	}
	qp.publish(s, slotSend, flags, total)
	if lent {
		qp.leave()
	}
	qp.tell(slotSend, flags)
	return true
}

// quickPlaced copies a message that does not fit into a slot into its receive. sendMu is
// held.
func (qp *queuePair) quickPlaced(flags rdma.Flags, header, payload []byte) bool {
	if qp.sent == qp.outLimit && qp.refresh() != outcomeDone {
		return false
	}
	total := len(header) + len(payload)
	d := qp.out.descriptor(qp.sent)
	head := d.head()
	if !head.published(qp.sent) || head.entries() != 1 || total > head.length() {
		return false
	}
	place := place(word(d.base, 8).Load())
	region := qp.cached(place)
	if region == nil || !region.has(rdma.AccessLocalWrite) {
		return false
	}
	to := region.at(region.address+uint64(place.offset()), total)
	if to == nil {
		return false
	}
	if qp.enter()&^(gateCold|gateLook) != qp.outEpoch || !region.open() {
		qp.leave()
		return false
	}
	copyShort(to[:len(header)], header)
	longcopy.Fill(to[len(header):], payload)
	qp.publish(qp.out.slot(qp.sent), slotSend|slotPlaced, flags, total)
	qp.leave()
	qp.tell(slotSend, flags)
	if qp.sent%descriptorsAhead == 0 && qp.outLimit-qp.sent >= 2*descriptorsAhead {
		prefetch.LineToRead(qp.out.descriptor(qp.sent + descriptorsAhead).base)
	}
	if qp.alternates() && total < exchangeBelow {
		demote(unsafe.Pointer(&to[0]), lines(total))
		qp.fetchPlace(total)
	}
	return true
}

// alternates tells whether messages go to and fro: whether the message that is being
// sent answers the only one that has come since the last, and that one answered all
// before. Then each side waits for the other, and what the caches do meanwhile
// counts. In a stream the same care would halve the rate.
func (qp *queuePair) alternates() bool {
	taken := qp.taken.Load()
	came := taken - qp.answers
	qp.answers = taken
	qp.unanswered -= min(qp.unanswered, came)
	qp.unanswered++
	return came == 1 && qp.unanswered == 1
}

// Messages that alternate and are shorter than exchangeBelow are brought nearer to
// the processor that will use them. Longer ones are moved by an instruction that does
// not fetch what it overwrites.
const exchangeBelow = 2048

// fetchPlace asks for the lines of the next receive while both sides wait for the
// answer. The peer's processor has had them since it read what came there before.
// Nothing waits for them, and a receive that is gone by then does no harm.
func (qp *queuePair) fetchPlace(length int) {
	if qp.sent == qp.outLimit {
		return
	}
	place := place(word(qp.out.descriptor(qp.sent).base, 8).Load())
	region := qp.cached(place)
	if region == nil {
		return
	}
	if to := region.at(region.address+uint64(place.offset()), length); to != nil {
		prefetch.ToWrite(to, length)
	}
}

// cached is the region that a place of the peer is in, if it was used lately.
func (qp *queuePair) cached(p place) *peerRegion {
	if r := qp.cache[p.handle()%uint32(len(qp.cache))]; r != nil && r.handle == p.handle() {
		return r
	}
	return nil
}

// lines is how many lines of 64 bytes so many bytes fill, from the start of a line.
func lines(length int) int { return (length + 63) / 64 }

// descriptorsAhead is the number of one-entry descriptors in a line.
const descriptorsAhead = 4
