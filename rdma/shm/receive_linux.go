package shm

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/rdma"
)

// A receive is what was posted. It is kept privately: the descriptor in shared
// memory is for the peer alone.
type receive struct {
	id     uint64
	length int
	count  int
}

// A span is a part of a region.
type span struct {
	region *region
	offset int
	length int
}

// A receiveRing holds the receives of a queue pair, or of a shared receive
// queue, at the same positions as their descriptors.
type receiveRing struct {
	receives []receive
	spans    []span // entries for each
	entries  int
}

func newReceiveRing(size uint32, entries int) receiveRing {
	return receiveRing{receives: make([]receive, size), spans: make([]span, int(size)*entries), entries: entries}
}

// double makes the ring twice as large and keeps the receives from first up to last.
func (r *receiveRing) double(first, last uint64) {
	larger := newReceiveRing(2*uint32(len(r.receives)), r.entries)
	for n := first; n != last; n++ {
		larger.move(n, r, n)
	}
	*r = larger
}

func (r *receiveRing) at(n uint64) *receive { return &r.receives[n&uint64(len(r.receives)-1)] }

func (r *receiveRing) spansAt(n uint64) []span {
	i := int(n&uint64(len(r.receives)-1)) * r.entries
	return r.spans[i : i+r.receives[n&uint64(len(r.receives)-1)].count]
}

// store keeps a checked request at position n.
func (r *receiveRing) store(n uint64, request *rdma.RecvRequest, length int) {
	i := int(n & uint64(len(r.receives)-1))
	receive := &r.receives[i]
	receive.id, receive.length, receive.count = request.ID, length, len(request.SGEs)
	spans := r.spans[i*r.entries:][:len(request.SGEs)]
	for j := range spans {
		sge := &request.SGEs[j]
		spans[j] = span{sge.Region.(*region), sge.Offset, sge.Length}
	}
}

// storeQuick is store for a receive of one entry that is right in every way. If it
// is anything else, storeQuick reports false and has done nothing.
func (r *receiveRing) storeQuick(n uint64, request *rdma.RecvRequest, d *domain) bool {
	if len(request.SGEs) != 1 {
		return false
	}
	e := &request.SGEs[0]
	to, ok := e.Region.(*region)
	if !ok || to == nil || to.domain != d || to.access&rdma.AccessLocalWrite == 0 || to.closed.Load() ||
		uint(e.Offset) > uint(len(to.bytes)) || uint(e.Length) > uint(len(to.bytes)-e.Offset) || e.Length > maxMessage {
		return false
	}
	i := int(n & uint64(len(r.receives)-1))
	receive := &r.receives[i]
	receive.id, receive.length, receive.count = request.ID, e.Length, 1
	span := &r.spans[i*r.entries]
	// Mostly the same regions come again, and storing a pointer has a price.
	if span.region != to {
		span.region = to
	}
	span.offset, span.length = e.Offset, e.Length
	return true
}

// move puts the receive at position m of another ring, of as many entries, at
// position n. It returns the length, and whether all its regions are open.
func (r *receiveRing) move(n uint64, other *receiveRing, m uint64) (length int, open bool) {
	i, j := int(n&uint64(len(r.receives)-1)), int(m&uint64(len(other.receives)-1))
	from := &other.receives[j]
	r.receives[i] = *from
	open = true
	for k := range from.count {
		to, span := &r.spans[i*r.entries+k], &other.spans[j*other.entries+k]
		if to.region != span.region { // as in storeQuick
			to.region = span.region
		}
		to.offset, to.length = span.offset, span.length
		open = open && !span.region.closed.Load()
	}
	return from.length, open
}

// moveQuick is move and announce for a receive of one entry. If it is any other,
// moveQuick returns a negative length and has done nothing.
func (r *receiveRing) moveQuick(n uint64, other *receiveRing, m uint64, d descriptor) (length int, open bool) {
	i, j := int(n&uint64(len(r.receives)-1)), int(m&uint64(len(other.receives)-1))
	from, to := &other.receives[j], &r.receives[i]
	if from.count != 1 {
		return -1, false
	}
	to.id, to.length, to.count = from.id, from.length, 1
	spanFrom, spanTo := &other.spans[j*other.entries], &r.spans[i*r.entries]
	region := spanFrom.region
	if spanTo.region != region { // as in storeQuick
		spanTo.region = region
	}
	spanTo.offset, spanTo.length = spanFrom.offset, spanFrom.length
	*(*uint64)(unsafe.Add(d.base, 8)) = uint64(makePlace(region.handle, spanFrom.offset))
	d.publish(makeDescriptorHead(n, 1, from.length))
	return from.length, !region.closed.Load()
}

// announce publishes the receive at position n.
func (r *receiveRing) announce(n uint64, d descriptor) {
	i := int(n & uint64(len(r.receives)-1))
	receive := &r.receives[i]
	spans := r.spans[i*r.entries:][:receive.count]
	for j := range spans {
		s := &spans[j]
		d.setEntry(j, len(spans), makePlace(s.region.handle, s.offset), s.length)
	}
	d.publish(makeDescriptorHead(n, len(spans), receive.length))
}

// scatter copies a payload that came in a slot into the receive.
func (r *receiveRing) scatter(n uint64, payload []byte) bool {
	for _, s := range r.spansAt(n) {
		if len(payload) == 0 {
			break
		}
		if s.region.closed.Load() {
			return false
		}
		payload = payload[copy(s.region.bytes[s.offset:s.offset+s.length], payload):]
	}
	return true
}

// A use is what happens to the entries of a request.
type use uint8

const (
	useRead    use = iota // this side copies from them
	useWrite              // this side copies to them
	useReceive            // the peer may copy to them
)

// checkEntries checks the entries of a request and returns their length.
func (d *domain) checkEntries(entries []rdma.SGE, most int, as use) (int, error) {
	if len(entries) > most {
		return 0, fmt.Errorf("%w: %d entries, at most %d", rdma.ErrInvalid, len(entries), most)
	}
	total := 0
	for i := range entries {
		e := &entries[i]
		r, ok := e.Region.(*region)
		switch {
		case !ok || r == nil || r.domain != d:
			return 0, fmt.Errorf("%w: entry %d is in no region of this domain", rdma.ErrInvalid, i)
		case e.Offset < 0 || e.Length < 0 || e.Offset > len(r.bytes) || e.Length > len(r.bytes)-e.Offset:
			return 0, fmt.Errorf("%w: entry %d, %d bytes at %d, lies outside its region of %d bytes", rdma.ErrInvalid, i, e.Length, e.Offset, len(r.bytes))
		case r.closed.Load():
			return 0, fmt.Errorf("%w: entry %d is in a region that has been closed", rdma.ErrInvalid, i)
		case as == useReceive && r.written:
			return 0, fmt.Errorf("%w: entry %d is in memory of the program, which takes no receives", rdma.ErrUnsupported, i)
		case as != useRead && r.access&rdma.AccessLocalWrite == 0 && !r.written:
			return 0, fmt.Errorf("%w: entry %d is in a region without local write", rdma.ErrInvalid, i)
		}
		total += e.Length
		if total > maxMessage {
			return 0, fmt.Errorf("%w: more than %d bytes", rdma.ErrInvalid, maxMessage)
		}
	}
	return total, nil
}

// PostRecv implements rdma.QueuePair.
func (qp *queuePair) PostRecv(requests []rdma.RecvRequest) (int, error) {
	if qp.srq != nil {
		return 0, fmt.Errorf("shm: post receive: %w: the queue pair has a shared receive queue; post there", rdma.ErrInvalid)
	}
	if len(requests) == 0 {
		return 0, nil
	}
	qp.recvMu.Lock()
	n, err := qp.postRecv(requests)
	qp.recvMu.Unlock()
	return n, err
}

func (qp *queuePair) postRecv(requests []rdma.RecvRequest) (n int, err error) {
	if state := qp.State(); state > rdma.StateConnected {
		return 0, qp.stateError("post receive", state)
	}
	posted, taken := qp.posted.Load(), qp.taken.Load()
	for n < len(requests) {
		if posted-taken >= uint64(qp.recvDepth) {
			if taken = qp.taken.Load(); posted-taken >= uint64(qp.recvDepth) {
				err = fmt.Errorf("shm: post receive: %w: %d are outstanding", rdma.ErrQueueFull, qp.recvDepth)
				break
			}
		}
		request := &requests[n]
		var length int
		if qp.receives.storeQuick(posted, request, qp.domain) {
			length = request.SGEs[0].Length
			d := qp.inbox.descriptor(posted)
			*(*uint64)(unsafe.Add(d.base, 8)) = uint64(makePlace(request.SGEs[0].Region.(*region).handle, request.SGEs[0].Offset))
			d.publish(makeDescriptorHead(posted, 1, length))
		} else {
			var invalid error
			if length, invalid = qp.domain.checkEntries(request.SGEs, qp.maxEntries, useReceive); invalid != nil {
				err = fmt.Errorf("shm: post receive: %w", invalid)
				break
			}
			qp.receives.store(posted, request, length)
			qp.receives.announce(posted, qp.inbox.descriptor(posted))
		}
		// Room shrinks before the limit admits a shorter receive. It grows when the
		// peer has used all that the limit admitted.
		if length < qp.room || length > qp.room && posted == taken {
			qp.room = length
			release.Store(qp.inbox.room(), uint64(length))
		}
		posted++
		n++
	}
	if n == 0 {
		return 0, err
	}
	// Posted before the limit: else a message could come for a receive that this side
	// does not know of.
	release.Store(&qp.posted, posted)
	release.Store(qp.inbox.limit(), posted)
	qp.ringIfWaiting()
	return n, err
}

// ringIfWaiting tells a peer that waits for a receive, or for a slot, to try
// again, after one has been published.
func (qp *queuePair) ringIfWaiting() {
	if !qp.lazy.Load() {
		qp.recvFence.order()
	}
	if qp.inbox.waiting().Load() == 0 {
		return
	}
	if peer := qp.peer.Load(); peer != nil && qp.inbox.waiting().Swap(0) != 0 {
		peer.bell.retries().set(qp.remote.retryBit)
		ringAgent(peer.bell)
	}
}

// receivesInto tells whether a receive that is outstanding here, or lent to here,
// names the region.
func (qp *queuePair) receivesInto(r *region) bool {
	qp.recvMu.Lock()
	defer qp.recvMu.Unlock()
	qp.recvCQ.mu.Lock()
	defer qp.recvCQ.mu.Unlock()
	for n := qp.taken.Load(); n != qp.posted.Load(); n++ {
		for _, s := range qp.receives.spansAt(n) {
			if s.region == r {
				return true
			}
		}
	}
	return false
}

// pending returns the header of the next message, if there is one. recvCQ.mu is held.
func (qp *queuePair) pending() (slotHeader, bool) {
	if qp.drained {
		return 0, false
	}
	if qp.srq != nil && qp.lent() == 0 && !qp.srq.hasFree() {
		return 0, false // what may be there has no receive
	}
	header := qp.inbox.slot(qp.arrived).header()
	return header, header.published(qp.arrived)
}

func (qp *queuePair) setCold(cold bool) {
	qp.cold, qp.warm = cold, 0
	if cold {
		qp.inbox.gate().Or(gateCold)
	} else {
		qp.inbox.gate().And(^gateCold)
	}
}

// keepPace notes that a harvest has taken messages. It decides whether the next
// harvests rest before they look (see closeLooks).
func (qp *queuePair) keepPace(messages int, rested bool) {
	switch {
	case rested && messages >= restWorth:
		qp.need = closeBehind
	case rested:
		qp.rests, qp.need = 0, min(2*qp.need, closeMost)
	case qp.idle > closeLooks:
		qp.behind, qp.rests = 0, 0
	case qp.idle > 0:
		if qp.behind++; qp.behind >= qp.need {
			qp.behind, qp.rests = 0, restsAtOnce
		}
	}
}

// warms counts messages that were taken while cold and without an Arm. It tells
// whether there are enough for the sender to stop ringing.
func (qp *queuePair) warms(messages int, arms uint64) bool {
	if qp.warmArms != arms {
		qp.warm, qp.warmArms = 0, arms
	}
	qp.warm += messages
	return qp.warm >= warmAfter
}

// harvest completes receives whose messages have arrived. recvCQ.mu is held.
func (qp *queuePair) harvest(into []rdma.Completion) int {
	if qp.drained {
		return 0
	}
	n := qp.harvestQuick(into)
	for n < len(into) {
		header := qp.inbox.slot(qp.arrived).header()
		if !header.published(qp.arrived) {
			break
		}
		if qp.srq != nil && qp.lent() == 0 && !qp.lendToMessage() {
			break // until a receive has been posted
		}
		c := &into[n]
		if err := qp.take(header, c); err != nil {
			qp.drained = true
			qp.failEvent(rdma.EventQueuePairError, fmt.Errorf("shm: %s wrote nonsense into shared memory: %w: %w", qp.peerName(), err, rdma.ErrDisconnected), "nonsense in the ring: "+err.Error())
			break
		}
		n++
		qp.arrived++
		if c.Status != rdma.StatusSuccess {
			qp.drained = true
			qp.fail(fmt.Errorf("shm: a message of %s failed its receive: %s: %w", qp.peerName(), c.Status, rdma.ErrDisconnected), "receive failed: "+c.Status.String())
			break
		}
		n += qp.harvestQuick(into[n:])
	}
	if n > 0 {
		release.Store(&qp.taken, qp.arrived)
	}
	if qp.srq != nil {
		qp.harvestedShared(n)
	}
	return n
}

// harvestedShared looks after the loan of a queue pair with a shared receive queue,
// from which so many messages have just been taken. A poll that finds nothing has
// time: it tops up the loan when an eighth has been used, or one of less than 16. Others
// wait for a quarter, or two of less than 12.
// Then the sender of a stream has new receives before it has used up the old ones,
// and where messages alternate no poll that finds one has to lend.
func (qp *queuePair) harvestedShared(messages int) {
	if messages > 0 {
		qp.recent = true
		qp.srq.used(qp, messages)
		qp.topUp(max(qp.loan/4, 2))
		if qp.starving != 0 {
			qp.lendIfAsked()
		}
		return
	}
	qp.topUp(max(qp.loan/8, 1))
	qp.lendIfAsked()
}

// harvestQuick is harvest for most messages: Sends without immediate, with nothing
// wrong, that were placed into their receive or are copied into one of one entry. It
// stops at the first message of another kind.
func (qp *queuePair) harvestQuick(into []rdma.Completion) int {
	posted, ring := qp.posted.Load(), &qp.receives
	n := 0
	for n < len(into) {
		s := qp.inbox.slot(qp.arrived)
		header := s.header()
		if !header.published(qp.arrived) || header.kind() != slotSend || qp.arrived == posted {
			break
		}
		i := int(qp.arrived & uint64(len(ring.receives)-1))
		r, length := &ring.receives[i], header.length()
		if length > r.length {
			break
		}
		if !header.placed() {
			if length > slotInline || r.count != 1 {
				break
			}
			span := &ring.spans[i*ring.entries]
			if span.region.closed.Load() {
				break
			}
			copyShort(span.region.bytes[span.offset:][:length], s.payload()[:length])
		}
		c := &into[n]
		c.ID, c.QueuePair, c.Length, c.Immediate = r.id, qp.number, uint32(length), 0
		c.Op, c.Status, c.HasImmediate = rdma.OpRecv, rdma.StatusSuccess, false
		n++
		qp.arrived++
	}
	return n
}

// copyShort copies from to to, which has the same length. It moves words: what was
// just stored word by word cannot be loaded in larger pieces before it has reached the
// cache.
func copyShort(to, from []byte) {
	n := uintptr(len(from))
	if n&7 != 0 || n > slotInline || len(to) < len(from) {
		copy(to, from)
		return
	}
	// By address: of two slices that shrink the compiler keeps a part in memory.
	target, source := unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from))
	for i := uintptr(0); i < n; i += 8 {
		*(*[8]byte)(unsafe.Add(target, i)) = *(*[8]byte)(unsafe.Add(source, i))
	}
}

// take turns the message at position arrived into a completion. Everything the
// peer wrote is copied once and checked.
func (qp *queuePair) take(header slotHeader, c *rdma.Completion) error {
	if err := header.validate(); err != nil {
		return err
	}
	if qp.arrived == qp.posted.Load() {
		return errors.New("a message for which no receive was posted")
	}
	s := qp.inbox.slot(qp.arrived)
	immediate := uint32(s.detail())
	r := qp.receives.at(qp.arrived)
	c.ID, c.QueuePair, c.Length, c.Immediate = r.id, qp.number, uint32(header.length()), 0
	c.Op, c.Status, c.HasImmediate = rdma.OpRecv, rdma.StatusSuccess, false
	switch header.kind() {
	case slotTooLong:
		c.Status = rdma.StatusLocalLength
		return nil
	case slotProtection:
		c.Status = rdma.StatusLocalProtection
		return nil
	case slotWriteImmediate:
		c.Op = rdma.OpRecvWriteImmediate
		c.Immediate, c.HasImmediate = immediate, true
		return nil
	case slotSendImmediate:
		c.Immediate, c.HasImmediate = immediate, true
	}
	if header.length() > r.length {
		if qp.srq == nil || header.placed() {
			return fmt.Errorf("a message of %d bytes for a receive of %d", header.length(), r.length)
		}
		// It was sent before its receive was known.
		c.Status, c.Length = rdma.StatusLocalLength, 0
		return nil
	}
	if !header.placed() && !qp.receives.scatter(qp.arrived, s.payload()[:header.length()]) {
		c.Status = rdma.StatusLocalProtection
	}
	return nil
}
