package verbena

import (
	"context"
	"errors"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// outbound is what sends an endpoint's messages over its queue pair: at once what nothing
// holds up, and otherwise one at a time, in order, when there are credits and memory.
type outbound struct {
	*queuePair
	out  sender  // the Send that waits
	sent Traffic // mu guards it
	wait stalls

	atOnce bool                  // the processor that posts carries requests out
	now    rdma.PromptQueuePair  // which it does within a call; nil if not
	reads  rdma.PassingQueuePair // what another peer's memory holds; nil: it does not
	ahead  [link.PlaceSize]byte  // what stands before a message's payload; mu guards it

	pairHeader [call.HeaderSize]byte // of a message that offerPair sends; who holds sendLock has it
}

// sendNow sends a message that nothing holds up, and reports false otherwise.
func (s *outbound) sendNow(tag uint32, message []byte) bool {
	s.mu.Lock()
	sent := s.sendAlong(tag, message)
	s.mu.Unlock()
	return sent
}

// sendAlong is sendNow for who holds mu: one doorbell rings for the message and for what was posted before it.
func (s *outbound) sendAlong(tag uint32, message []byte) bool {
	return !s.out.busy && len(message) <= s.m.MaxEager() && s.trySend(tag, message)
}

// mostCopied is how many bytes of memory copied messages take before who sends them looks
// whether it is free again.
const mostCopied = 64 << 10

// reuse takes back the memory of messages that have been copied, where a post carries them
// out at once. The next message is copied to memory that is still in the cache then. It
// leaves that to the worker's goroutine if that watches the queue.
func (s *outbound) reuse() {
	if s.atOnce && s.w.deferred.Load() {
		s.mu.Lock()
		much := s.queue.copied > mostCopied
		s.mu.Unlock()
		if much {
			s.w.pollNow()
		}
	}
}

// trySend sends an eager message if there is a credit and memory. mu is held.
func (s *outbound) trySend(tag uint32, message []byte) bool {
	if s.e.over() || !s.m.MaySend() {
		return false
	}
	if s.sendPast(tag, 0, message) {
		return true
	}
	if len(message) > link.Small {
		memory, ok, err := s.n.sendPool.TryQuick(wire.HeaderSize + len(message))
		if !ok || err != nil {
			return false // who waits gets more
		}
		copy(memory.Bytes()[wire.HeaderSize:], message)
		s.postEager(tag, len(message), memory)
		return true
	}
	s.m.Eager(tag, message, false)
	s.flush()
	s.sent.add(len(message))
	return true
}

// sendPast sends an eager message past the send queue, where the device takes one within a
// call, with one copy. Its first bytes, as many as first says, lie in ahead, behind the place
// of the link's header; payload is the rest. The machine may send. If sendPast reports false,
// nothing has been done. mu is held.
func (s *outbound) sendPast(tag uint32, first int, payload []byte) bool {
	if s.now == nil || s.queue.broken || !s.m.Ahead(tag, uint32(first+len(payload)), s.ahead[:]) ||
		!s.now.SendNow(s.ahead[:wire.HeaderSize+first], payload) {
		return false
	}
	s.m.Gone()
	s.sent.add(first + len(payload))
	return true
}

// postEager sends a message whose bytes are in memory behind the place of its
// header. mu is held.
func (s *outbound) postEager(tag uint32, length int, memory slab.Slab) {
	s.queue.payload = memory
	s.m.Eager(tag, memory.Bytes()[wire.HeaderSize:][:length], length > soon-s.queue.quiet)
	s.flush()
	s.sent.add(length)
}

// send carries a message that may have to wait. The caller holds sendLock.
func (s *outbound) send(ctx context.Context, p parcel) error {
	s.setBusy(true)
	defer s.setBusy(false)
	if p.size() > s.m.MaxEager() {
		return s.sendLong(ctx, p)
	}
	size := 0
	if p.size() > link.Small {
		size = wire.HeaderSize + p.size()
		if p.buffer != nil {
			if at := p.buffer.owner.location(); s.mayGather(&at) {
				size = 0 // it lies in memory
			}
		}
	}
	memory, err := s.ready(ctx, (*link.Machine[*Message]).MaySend, s.n.sendPool, s.n.sendPool, size, p)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	switch {
	case size > 0:
		s.postEager(p.tag, p.size(), memory)
	case p.buffer != nil:
		if !s.tryGather(&p) {
			return errNotIntact
		}
	default:
		s.m.Eager(p.tag, p.body, false)
		s.flush()
		s.sent.add(len(p.body))
	}
	return s.posted()
}

// posted is what becomes of a message whose last request has just been posted: that it may
// have failed. The endpoint may have ended since, for one because the peer has the message
// and has answered it. mu is held.
func (s *outbound) posted() error {
	if s.queue.broken {
		return s.e.Err()
	}
	return nil
}

// setBusy says whether a message that had to wait is being sent, which no other passes.
func (s *outbound) setBusy(busy bool) {
	s.mu.Lock()
	s.out.busy = busy
	s.mu.Unlock()
}

// ready waits until the machine may send, and for memory of size bytes, at whose
// end it puts the message. It returns with mu held if it does not fail.
func (s *outbound) ready(ctx context.Context, may func(*link.Machine[*Message]) bool, from memorySource, pool *slab.Pool, size int, p parcel) (slab.Slab, error) {
	var memory slab.Slab
	for {
		err := s.waitCredit(ctx, may)
		if err == nil && size > 0 && memory.None() {
			if memory, err = s.take(ctx, from, size); err == nil {
				p.copyTo(memory.Bytes()[size-p.size():])
				if p.buffer != nil && !intact(p.buffer.owner) {
					err = errNotIntact
				}
			}
		}
		if err == nil {
			s.mu.Lock()
			// Requests that cost no credit may have filled the send queue meanwhile.
			if err = s.e.Err(); err == nil && may(s.m) {
				if err = s.tellTime(ctx, &p, memory, size); err == nil {
					return memory, nil
				}
			}
			s.mu.Unlock()
		}
		if err != nil {
			if !memory.None() {
				pool.Put(memory)
			}
			return slab.Slab{}, err
		}
	}
}

// tellTime is that of p, whose front may have been copied to the end of memory already. mu is
// held, so that the message goes out next.
func (s *outbound) tellTime(ctx context.Context, p *parcel, memory slab.Slab, size int) error {
	if !p.expires {
		return nil
	}
	err := p.tellTime(ctx)
	if err == nil && size > 0 {
		front := *p
		front = front.part(call.HeaderSize)
		front.copyTo(memory.Bytes()[size-p.size():])
	}
	return err
}

// errNotIntact: a message in place was copied to be sent on, and may have changed meanwhile.
var errNotIntact = errors.New("verbena: the message lies in the memory of a peer that may use it for something else by now (see Buffer.Intact)")

// sendLong offers the message in parts, each copied into memory that the peer may
// read, unless it lies in such memory.
func (s *outbound) sendLong(ctx context.Context, p parcel) error {
	o := wire.Offer{Total: uint32(p.size())}
	var at location
	shown := false
	if p.buffer != nil {
		if at, shown = s.shows(p.buffer); shown {
			s.prepend(&p)
		}
	}
	piece := s.t.Chunk
	if !shown && s.nothingOffered() {
		piece = pieceOf(p.size(), piece)
	}
	for p.size() > 0 {
		most := piece
		inPlace := shown && len(p.header) == 0
		switch {
		case inPlace:
			most = wire.MaxChunk // no copy goes on beside the peer's
		case shown:
			most = len(p.header) // a part by itself
		}
		part := p.part(most)
		var err error
		if inPlace {
			err = s.offerInPlace(ctx, part, &o, &at)
		} else {
			err = s.sendPart(ctx, part, &o)
		}
		if err != nil {
			// The peer drops the parts that it has when another message begins.
			return err
		}
	}
	return nil
}

// nothingOffered tells that the peer has read all that it was offered.
func (s *outbound) nothingOffered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.OffersOpen() == 0
}

// A long message that is copied goes in 4 pieces while nothing else is offered, so that the
// peer reads one while this side copies the next. A piece has 32 KiB at least.
const copyPieces, leastPiece = 4, 32 << 10

// pieceOf is how many bytes each piece of a message has but the last, at most most: whole
// lines of the cache.
func pieceOf(size, most int) int {
	n := (size + copyPieces - 1) / copyPieces
	return min(most, max(leastPiece, (n+63)&^63))
}

// sendPart offers a part of a long message.
func (s *outbound) sendPart(ctx context.Context, p parcel, o *wire.Offer) error {
	memory, err := s.ready(ctx, (*link.Machine[*Message]).MayOffer, s.queue.private, s.n.offerPool, p.size(), p)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.offerCopy(&p, o, memory)
	return s.posted()
}

// offerCopy posts the next part of a long message, which has been copied to memory. mu is
// held.
func (s *outbound) offerCopy(p *parcel, o *wire.Offer, memory slab.Slab) {
	remote := memory.Remote()
	s.offer(p.tag, o, remote.Address, remote.Key, p.size(), offered{slab: memory})
}

// offer posts the next part of a long message. mu is held.
func (s *outbound) offer(tag uint32, o *wire.Offer, address uint64, key uint32, length int, memory offered) {
	o.Address, o.Key, o.Length = address, key, uint32(length)
	s.queue.offers[s.m.Offer(tag, *o)] = memory
	s.flush()
	if o.End() == int(o.Total) {
		s.sent.add(int(o.Total))
	}
	o.Offset += o.Length
}

// waitCredit waits until the machine may send. The caller holds sendLock, so
// nobody else uses the credit up; places in the send queue others may.
func (s *outbound) waitCredit(ctx context.Context, may func(*link.Machine[*Message]) bool) error {
	if ok, _, err := s.credited(may); ok || err != nil {
		return err
	}
	ready := func() bool { return s.out.writable.Load() || ctx.Err() != nil }
	for {
		ok, lacks, err := s.credited(may)
		if ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if lacks > 0 {
			if err := s.expect(ctx, lacks); err != nil {
				return err
			}
			continue
		}
		helped := s.w.drive(&s.out.spin, ready)
		s.w.serveOn()
		if helped {
			continue
		}
		began := s.wait.begin()
		s.w.sleep()
		s.out.sleep(ctx, s.e.done)
		s.w.awake()
		s.wait.end(began)
	}
}

// credited tells whether the machine may send, or else how many receives for answers
// it lacks. If none, writable tells when that may have changed.
func (s *outbound) credited(may func(*link.Machine[*Message]) bool) (ok bool, lacks int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.e.Err(); err != nil {
		return false, 0, err
	}
	if s.m.PeerSaidGoodbye() { // the endpoint ends when its last message is here
		return false, 0, ErrPeerClosed
	}
	ok = may(s.m)
	if s.out.waiting = !ok; !ok {
		s.out.writable.Clear()
		lacks = s.m.Lacks()
	}
	return ok, lacks, nil
}
