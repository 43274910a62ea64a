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

// checkEntries checks the entries of a request and returns their length.
func (d *domain) checkEntries(entries []rdma.SGE, most int, write bool) (int, error) {
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
		case write && r.access&rdma.AccessLocalWrite == 0:
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
		length, ok := qp.postQuick(posted, request)
		if !ok {
			var invalid error
			if length, invalid = qp.domain.checkEntries(request.SGEs, qp.maxEntries, true); invalid != nil {
				err = fmt.Errorf("shm: post receive: %w", invalid)
				break
			}
			qp.receives.store(posted, request, length)
			qp.receives.announce(posted, qp.inbox.descriptor(posted))
		}
		// Room shrinks before the limit admits a shorter receive. It grows when
		// the peer has used up all that it was admitted to.
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
	// Before the limit, or a message could come for a receive that this side does
	// not know of.
	release.Store(&qp.posted, posted)
	release.Store(qp.inbox.limit(), posted)
	qp.ringIfWaiting()
	return n, err
}

// postQuick is what postRecv does, for a receive of one entry that is right in
// every way. If it is anything else, it reports false and has done nothing.
func (qp *queuePair) postQuick(position uint64, request *rdma.RecvRequest) (length int, ok bool) {
	if len(request.SGEs) != 1 {
		return 0, false
	}
	e := &request.SGEs[0]
	to, ok := e.Region.(*region)
	if !ok || to == nil || to.domain != qp.domain || to.access&rdma.AccessLocalWrite == 0 || to.closed.Load() ||
		uint(e.Offset) > uint(len(to.bytes)) || uint(e.Length) > uint(len(to.bytes)-e.Offset) || e.Length > maxMessage {
		return 0, false
	}
	ring := &qp.receives
	i := int(position & uint64(len(ring.receives)-1))
	r := &ring.receives[i]
	r.id, r.length, r.count = request.ID, e.Length, 1
	span := &ring.spans[i*ring.entries]
	// Mostly the same regions come again, and storing pointers has a price.
	if span.region != to {
		span.region = to
	}
	span.offset, span.length = e.Offset, e.Length
	d := qp.inbox.descriptor(position)
	*(*uint64)(unsafe.Add(d.base, 8)) = uint64(makePlace(to.handle, e.Offset))
	d.publish(makeDescriptorHead(position, 1, e.Length))
	return e.Length, true
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

// receivesInto tells whether a receive that is outstanding here names the region.
func (qp *queuePair) receivesInto(r *region) bool {
	if qp.srq != nil {
		return qp.srq.receivesInto(r)
	}
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

// keepPace notes that a harvest has taken messages, and decides whether the next
// ones rest before they look.
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

// warms counts messages that were taken while cold, and tells whether they are
// enough to be cold no more.
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
	n := 0
	if qp.srq == nil {
		if n = qp.harvestQuick(into); n > 0 {
			release.Store(&qp.taken, qp.arrived)
		}
	}
	quick := n
	for n < len(into) {
		header := qp.inbox.slot(qp.arrived).header()
		if !header.published(qp.arrived) {
			break
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
	}
	if n > quick {
		if qp.srq == nil {
			release.Store(&qp.taken, qp.arrived)
		} else {
			release.Store(qp.inbox.limit(), qp.arrived+uint64(qp.inbox.shape.slots))
			qp.ringIfWaiting()
		}
	}
	return n
}

// harvestQuick is harvest for as long as messages are what most are: Sends for
// receives of one entry, or of any number that they were placed into, with
// nothing wrong.
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

// copyShort copies from to to, which has the same length.
func copyShort(to, from []byte) {
	if len(to) == 8 {
		*(*[8]byte)(to) = *(*[8]byte)(from)
		return
	}
	copy(to, from)
}

// take turns the message at position arrived into a completion. Everything the
// peer wrote is copied once and checked.
func (qp *queuePair) take(header slotHeader, c *rdma.Completion) error {
	if err := header.validate(); err != nil {
		return err
	}
	s := qp.inbox.slot(qp.arrived)
	detail := s.detail()
	if qp.srq != nil {
		position, err := qp.srq.redeem(uint32(detail>>32), qp.number)
		if err != nil {
			return err
		}
		defer qp.srq.done(position)
		return qp.fill(header, s, uint32(detail), &qp.srq.receives, position, c)
	}
	if qp.arrived == qp.posted.Load() {
		return errors.New("a message for which no receive was posted")
	}
	return qp.fill(header, s, uint32(detail), &qp.receives, qp.arrived, c)
}

// fill carries out what take has checked.
func (qp *queuePair) fill(header slotHeader, s slot, immediate uint32, ring *receiveRing, position uint64, c *rdma.Completion) error {
	r := ring.at(position)
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
		return fmt.Errorf("a message of %d bytes for a receive of %d", header.length(), r.length)
	}
	if !header.placed() && !ring.scatter(position, s.payload()[:header.length()]) {
		c.Status = rdma.StatusLocalProtection
	}
	return nil
}
