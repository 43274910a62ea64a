package verbena

import (
	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/longcopy"
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
	if size <= link.Small {
		var small [link.Small]byte
		header.Put(small[:])
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
	header.Put(message)
	copy(message[call.HeaderSize:], payload)
	s.postEager(tag, size, memory)
	return true
}

// offerPair is sendPair for a long message of one part. Without it a short handler's
// answer would wait for a goroutine to be scheduled.
func (s *outbound) offerPair(tag uint32, header call.Header, payload []byte) bool {
	size := call.HeaderSize + len(payload)
	if size > min(s.t.Chunk, s.maxMessage()) || !s.mayOfferNow() {
		return false
	}
	memory, ok, err := s.queue.private.TryQuick(size)
	if !ok || err != nil {
		return false
	}
	// Without the lock: the worker goes on meanwhile.
	header.Put(memory.Bytes())
	longcopy.Fill(memory.Bytes()[call.HeaderSize:][:len(payload)], payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.busy || s.e.over() || !s.m.MayOffer() {
		s.n.offerPool.Put(memory)
		return false
	}
	remote := memory.Remote()
	s.offer(tag, &wire.Offer{Total: uint32(size)}, remote.Address, remote.Key, size, offered{slab: memory})
	return true
}

// mayOfferNow tells whether nothing holds an offer up.
func (s *outbound) mayOfferNow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.out.busy && !s.e.over() && s.m.MayOffer()
}
