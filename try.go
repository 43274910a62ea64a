package verbena

import (
	"context"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// Sends and receives that never wait, for programs in which one goroutine serves many
// peers and none of them may hold it up.

// TrySend is [Endpoint.Send] if nothing holds the message up: no other that is being
// sent, no want of credit or memory. Otherwise, and when the endpoint has ended, it
// reports false, and nothing has been sent.
func (e *Endpoint) TrySend(tag uint32, message []byte) bool {
	if len(message) > e.carrier.maxMessage() {
		return false
	}
	return e.carrier.sendNow(tag, message) || e.try(parcel{tag: tag, body: message})
}

// TrySendRange is [Endpoint.SendRange], without a header, if nothing holds the message
// up and it need not be copied: over a device it goes out from where it lies. If it
// reports true the caller's reference to b is gone; otherwise nothing has been sent, as of
// bytes that b does not hold.
func (e *Endpoint) TrySendRange(tag uint32, b *Buffer, from, to int) bool {
	if checksBuffers {
		b.check("TrySendRange")
	}
	if !b.holds(from, to) {
		return false
	}
	p := parcel{tag: tag, body: b.data[from:to:to], buffer: b, from: b.front + from}
	if p.size() > e.carrier.maxMessage() || !e.carrier.sendBufferNow(p) && !e.try(p) {
		return false
	}
	b.Release() // what is under way has references of its own
	return true
}

// try sends a message if no other is being sent.
func (e *Endpoint) try(p parcel) bool {
	select {
	case e.sendLock <- struct{}{}:
	default:
		return false
	}
	sent := e.Err() == nil && e.carrier.sendAtOnce(p)
	<-e.sendLock
	return sent
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// TryReceive is [Endpoint.Receive] if a whole message is there. Otherwise it returns
// nil. At the end of the endpoint it returns nil, too; Receive tells why.
func (e *Endpoint) TryReceive() *Message {
	if e.sink.Load() != nil {
		return nil
	}
	m, err := e.carrier.receive(over)
	if err != nil {
		return nil
	}
	return checkedMessage(e, m)
}

// sendAtOnce implements carrier: a long message of one part that lies in memory that the
// peer may read. sendNow and sendBufferNow send others.
func (s *outbound) sendAtOnce(p parcel) bool {
	if p.buffer == nil || p.size() <= s.m.MaxEager() || p.size() > wire.MaxChunk {
		return false
	}
	at, ok := s.shows(p.buffer)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.busy || s.e.over() || !s.m.MayOffer() || !at.begin(p.buffer) {
		return false
	}
	s.postInPlace(p, &wire.Offer{Total: uint32(p.size())}, &at)
	return true
}

// sendAtOnce implements carrier: a message goes if nothing waits to be written. What the
// socket does not take is written in the background, from where it lies.
func (s *stream) sendAtOnce(p parcel) bool {
	s.mu.Lock()
	held := s.writeErr != nil || s.flushing || s.unwritten() > 0
	s.mu.Unlock()
	if held {
		return false
	}
	return s.writeMessage(p, func() error { return nil }) == nil
}
