package shm

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/verbena-data/verbena/internal/longcopy"
	"github.com/verbena-data/verbena/internal/prefetch"
	"github.com/verbena-data/verbena/rdma"
)

// receiveAt is the receive of the peer that the next message will use.
type receiveAt struct {
	descriptor descriptor
	head       descriptorHead
}

// openReceive finds the receive for the next message. If it succeeds, this side is
// inside an access and has to leave it after the message has been published: until
// then the receive cannot be taken back.
func (qp *queuePair) openReceive() (at receiveAt, o outcome) {
	// A peer could begin epochs for ever.
	for range 4 {
		if qp.sent == qp.outLimit {
			if o := qp.refresh(); o != outcomeDone {
				return at, o
			}
		}
		gate := qp.enter()
		if gate&gateClosed != 0 {
			qp.leave()
			return at, qp.peerClosing()
		}
		if gate&^(gateCold|gateLook) != qp.outEpoch {
			qp.leave()
			qp.outLimit = qp.sent // to be read again
			continue
		}
		at.descriptor = qp.out.descriptor(qp.sent)
		at.head = at.descriptor.head()
		switch {
		case !at.head.published(qp.sent):
			o = qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive %d is damaged", qp.sent))
		case at.head.entries() > int(qp.out.shape.entries) || at.head.length() > maxMessage:
			o = qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive has %d entries of %d bytes", at.head.entries(), at.head.length()))
		default:
			return at, outcomeDone
		}
		qp.leave()
		return at, o
	}
	return at, outcomeReceive
}

// refresh looks how far the peer lets this side go. The outcome says what to wait
// for if that is no further than it has gone.
func (qp *queuePair) refresh() outcome {
	// The epoch before the limit: if the limit is lowered after this, the epoch differs.
	epoch := qp.out.gate().Load() &^ (gateEpoch - 1)
	limit, most := qp.out.limit().Load(), int64(qp.out.shape.slots)
	ahead := int64(limit - qp.sent)
	if ahead > most || ahead < 0 && !qp.remote.shared {
		return qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer lets this side send message %d after %d, and has room for %d", limit, qp.sent, most))
	}
	if ahead <= 0 {
		return outcomeReceive
	}
	qp.outLimit, qp.outRoom = limit, int(min(qp.out.room().Load(), maxMessage))
	if qp.remote.shared {
		qp.outEpoch = epoch
	}
	return outcomeDone
}

// sendUnbacked publishes a message for which the peer has lent no receive. It fits
// into a slot, and one slot more than receives is free. The request is done when the
// peer has found a receive for it.
func (qp *queuePair) sendUnbacked(r *rdma.SendRequest, total int, inline []byte) {
	s := qp.out.slot(qp.sent)
	if inline != nil {
		copy(s.payload()[:], inline)
	} else {
		gather(s.payload()[:total], r.SGEs)
	}
	kind := slotSend
	if r.Op == rdma.OpSendImmediate {
		kind = slotSendImmediate
	}
	s.setDetail(uint64(r.Immediate))
	qp.publish(s, kind, r.Flags, total)
	qp.unbacked, qp.outLimit = true, qp.sent
	qp.tell(kind, r.Flags)
}

// awaitReceive tells what has become of a message that was sent unbacked: whether
// the peer has found a receive for it, and one that it fits into.
func (qp *queuePair) awaitReceive(total int) outcome {
	if int64(qp.out.limit().Load()-qp.sent) < 0 {
		return outcomeReceive
	}
	qp.unbacked = false
	// As the peer lends less than a lap ahead, this descriptor is still there.
	if head := qp.out.descriptor(qp.sent - 1).head(); head.published(qp.sent-1) && total > head.length() {
		return qp.tooLong(total, head.length())
	}
	if qp.out.refused().Load() != 0 {
		return qp.failed(rdma.StatusRemoteOperation, errReceiveClosed)
	}
	return outcomeDone
}

func (qp *queuePair) tooLong(total, length int) outcome {
	return qp.failed(rdma.StatusRemoteInvalid, fmt.Errorf("%d bytes are longer than the peer's receive of %d", total, length))
}

// send publishes a message that is not quick.
func (qp *queuePair) send(r *rdma.SendRequest, kind slotKind, length int) {
	flags := r.Flags
	if kind&slotKindMask >= slotTooLong {
		flags |= rdma.Solicited
	}
	s := qp.out.slot(qp.sent)
	s.setDetail(uint64(r.Immediate))
	qp.publish(s, kind, flags, length)
	qp.tell(kind, flags)
}

// publish hands a message over. The peer may not be looking: see tell.
func (qp *queuePair) publish(s slot, kind slotKind, flags rdma.Flags, length int) {
	if flags&rdma.Solicited != 0 {
		kind |= slotSolicited
	}
	s.publish(makeSlotHeader(qp.sent, kind, length))
	qp.sent++
}

// tell rings if the peer does not look for messages by itself.
func (qp *queuePair) tell(kind slotKind, flags rdma.Flags) {
	if qp.sent%slotsAhead == 0 {
		if qp.outLimit-qp.sent >= 2*slotsAhead {
			qp.fetchSlots()
		} else {
			prefetch.LineToRead(unsafe.Pointer(qp.out.limit())) // needed soon
		}
	}
	if !qp.lazy.Load() {
		qp.sendFence.order()
	}
	if qp.out.gate().Load()&gateCold != 0 {
		qp.ringReceiver(flags&rdma.Solicited != 0)
	}
}

// slotsAhead is how many slots a sender that has room takes at once.
const slotsAhead = 8

// fetchSlots takes the lines of eight slots away from the receiver, eight messages
// before they are written. One store to each is enough, and what it stores is not
// read. All eight lines then travel at the same time. Fetched one by one, as messages
// are written, each would hold up the processor, whose store queue has room for one
// or two posts.
func (qp *queuePair) fetchSlots() {
	for n := qp.sent + slotsAhead; n < qp.sent+2*slotsAhead; n++ {
		qp.out.slot(n).setDetail(0)
	}
}

func (qp *queuePair) ringReceiver(solicited bool) {
	// Whoever clears the bits looks for messages after that. If the bit is found set
	// here, that look must see this message.
	qp.sendFence.order()
	peer := qp.peer.Load()
	block := peer.bell.block(qp.remote.bell.queue)
	block.bits().set(qp.remote.bell.bit)
	armed := block.disarm(solicited)
	if armed&armedAlarm != 0 && qp.peerAlarm != nil {
		qp.peerAlarm.ring()
		return
	}
	wakeArmed(armed, peer.bell, block)
}

func (qp *queuePair) executeSend(r *rdma.SendRequest, total int, inline []byte) outcome {
	at, o := qp.openReceive()
	if o != outcomeDone {
		if o == outcomeReceive && qp.remote.shared && total <= slotInline {
			qp.sendUnbacked(r, total, inline)
		}
		return o
	}
	defer qp.leave()
	if total > at.head.length() {
		qp.send(r, slotTooLong, 0)
		return qp.tooLong(total, at.head.length())
	}
	kind := slotSend
	if r.Op == rdma.OpSendImmediate {
		kind = slotSendImmediate
	}
	s := qp.out.slot(qp.sent)
	switch {
	case total <= slotInline && !qp.receiveUsable(&at, total):
		if qp.out.gate().Load()&gateClosed != 0 {
			return qp.peerClosing() // its regions go after its queue pair
		}
		qp.send(r, slotProtection, 0)
		return qp.failed(rdma.StatusRemoteOperation, errReceiveClosed)
	case inline != nil:
		copy(s.payload()[:], inline)
	case total <= slotInline:
		gather(s.payload()[:total], r.SGEs)
	default:
		if o := qp.place(&at, r, total); o != outcomeDone {
			if o == outcomeFailed && qp.failure.status == rdma.StatusRemoteOperation {
				qp.send(r, slotProtection, 0)
			}
			return o
		}
		kind |= slotPlaced
	}
	qp.send(r, kind, total)
	return outcomeDone
}

var errReceiveClosed = errors.New("the peer's receive names a region that it has closed")

// receiveUsable tells whether the peer will be able to copy length bytes out of a
// slot to where it wanted them.
func (qp *queuePair) receiveUsable(at *receiveAt, length int) bool {
	table := qp.peer.Load().table
	for i, count := 0, at.head.entries(); i < count && length > 0; i++ {
		p, size := at.descriptor.entry(i, count, at.head.length())
		if !table.open(p.handle()) {
			return false
		}
		length -= size
	}
	return true
}

// place copies a message straight into the peer's receive, inside an access.
func (qp *queuePair) place(at *receiveAt, r *rdma.SendRequest, total int) outcome {
	var parts [maxEntries][]byte
	count, left := at.head.entries(), total
	n := 0
	for ; n < count && left > 0; n++ {
		p, length := at.descriptor.entry(n, count, at.head.length())
		region, o := qp.lookup(want{byHandle: true, value: p.handle()})
		if region == nil {
			if o == outcomeFailed {
				o = qp.failed(rdma.StatusRemoteOperation, errReceiveClosed)
			}
			return o
		}
		length = min(length, left)
		part := region.at(region.address+uint64(p.offset()), length)
		if part == nil || !region.has(rdma.AccessLocalWrite) {
			return qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive lies outside of its region"))
		}
		parts[n] = part
		left -= length
	}
	if left > 0 {
		return qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive is shorter than it says"))
	}
	if n == 1 && len(r.SGEs) == 1 {
		e := &r.SGEs[0]
		longcopy.Fill(parts[0], e.Region.(*region).bytes[e.Offset:e.Offset+e.Length])
		return outcomeDone
	}
	to := 0
	for i := range r.SGEs {
		e := &r.SGEs[i]
		source := e.Region.(*region).bytes[e.Offset : e.Offset+e.Length]
		for len(source) > 0 {
			if len(parts[to]) == 0 {
				to++
				continue
			}
			k := copy(parts[to], source)
			parts[to], source = parts[to][k:], source[k:]
		}
	}
	return outcomeDone
}

func (qp *queuePair) executeWriteImmediate(r *rdma.SendRequest, total int, inline []byte) outcome {
	if _, o := qp.openReceive(); o != outcomeDone {
		return o
	}
	defer qp.leave()
	if total > 0 {
		if o := qp.writeInside(r, total, inline); o != outcomeDone {
			return o
		}
	}
	qp.send(r, slotWriteImmediate, total)
	return outcomeDone
}

// gather copies all of the entries' bytes to where they fit exactly.
func gather(to []byte, entries []rdma.SGE) {
	for i := range entries {
		e := &entries[i]
		to = to[copy(to, e.Region.(*region).bytes[e.Offset:e.Offset+e.Length]):]
	}
}
