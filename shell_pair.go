package verbena

import (
	"context"
	"slices"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
)

// sendPair is sendNow for a message in two parts, of which the first is a header.
func (s *outbound) sendPair(tag uint32, header call.Header, payload []byte) bool {
	size := call.HeaderSize + len(payload)
	if size > s.m.MaxEager() {
		return s.offerPair(tag, header, payload)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.busy || s.e.over() || !s.m.MaySend() {
		return false
	}
	small := s.ahead[wire.HeaderSize:] // and the beginning of what is longer
	header.Put(small)
	if s.sendPast(tag, call.HeaderSize, payload) {
		return true
	}
	if size <= link.Small {
		copy(small[call.HeaderSize:], payload)
		s.m.Eager(tag, small[:size], false)
		s.flush()
		s.sent.add(size)
		return true
	}
	memory, ok, err := s.n.sendPool.TryQuick(wire.HeaderSize + size)
	if !ok || err != nil {
		return false
	}
	message := memory.Bytes()[wire.HeaderSize : wire.HeaderSize+size]
	copy(message, small[:call.HeaderSize])
	copy(message[call.HeaderSize:], payload)
	s.postEager(tag, size, memory)
	return true
}

// offerPair is sendPair for a long message, which goes in pieces as sendLong's do. Without
// it a short handler's answer would wait for a goroutine to be scheduled.
func (s *outbound) offerPair(tag uint32, header call.Header, payload []byte) bool {
	if call.HeaderSize+len(payload) > s.maxMessage() {
		return false
	}
	select {
	case s.e.sendLock <- struct{}{}:
	default:
		return false
	}
	header.Put(s.pairHeader[:])
	p := parcel{tag: tag, header: s.pairHeader[:], body: payload}
	o := wire.Offer{Total: uint32(p.size())}
	if s.offerPieces(&p, &o); p.size() > 0 && o.Offset > 0 {
		p.body = slices.Clone(p.body) // the caller may use payload again
		go s.sendRest(p, o)
		return true
	}
	s.setBusy(false)
	<-s.e.sendLock
	return p.size() == 0
}

// offerPieces offers a message piece by piece as far as nothing holds it up, and leaves the
// rest in p. o is the next offer. The caller holds sendLock.
func (s *outbound) offerPieces(p *parcel, o *wire.Offer) {
	piece, ok := s.beginPieces(p.size())
	for ok && p.size() > 0 {
		rest := *p
		part := rest.part(piece)
		if ok = s.offerNow(&part, o); ok {
			*p = rest
		}
	}
}

// beginPieces tells how long the pieces of a message are, if nothing holds them up as far
// as can be told. Then it is busy.
func (s *outbound) beginPieces(size int) (piece int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	may := func(piece int) bool { return s.m.MayOfferParts((size + piece - 1) / piece) }
	piece = s.t.Chunk
	// Where the peer's processor copies, it copies one piece while this one copies the next.
	if short := pieceOf(size, piece); s.atOnce && s.m.OffersOpen() == 0 && may(short) {
		piece = short
	}
	ok = !s.e.over() && may(piece)
	s.out.busy = ok
	return piece, ok
}

// offerNow offers a piece, unless it would have to wait.
func (s *outbound) offerNow(part *parcel, o *wire.Offer) bool {
	memory, ok, err := s.queue.private.TryQuick(part.size())
	if !ok || err != nil {
		return false
	}
	// Without the lock: the worker goes on meanwhile.
	part.copyTo(memory.Bytes())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.e.over() || !s.m.MayOffer() {
		s.n.offerPool.Put(memory)
		return false
	}
	s.offerCopy(part, o, memory)
	return true
}

// sendRest sends what offerPieces has left, and lets sendLock go.
func (s *outbound) sendRest(p parcel, o wire.Offer) {
	for p.size() > 0 {
		if s.sendPart(context.Background(), p.part(s.t.Chunk), &o) != nil {
			break // the endpoint has ended, and tells
		}
	}
	s.setBusy(false)
	<-s.e.sendLock
}
