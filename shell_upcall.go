package verbena

import (
	"context"
	"runtime"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
)

// A caller polls for its answer for up to 5 times Spin. Where both ends have rested, the
// answer comes after 50 to 60 us, most of which the peer's processor takes to wake up. A
// caller that slept would have to wait as long again for its own processor.
const answerSpins = 5

// An upcall is who gets an endpoint's messages instead of Receive. The shell's mu guards
// it.
type upcall struct {
	sink      sink // nil: Receive gets them
	serving   bool // it counts in its worker
	providing bool // a goroutine gets memory for the sink's next message
}

// upcalls hands messages to a sink from here on.
func (s *shell) upcalls(to sink) {
	if to.serves() && s.t.Spin > 0 {
		raise(&s.w.patience, int64(s.t.Spin))
	}
	s.in.spin = newSpinner(answerSpins * s.t.Spin) // nobody receives any more
	s.mu.Lock()
	s.upcall.sink = to
	if to.serves() && !s.life.reached(stageClosed) {
		s.w.serving.Add(1)
		s.upcall.serving = true
	}
	if s.in.handed.Load() {
		s.deliver(s.in.take())
	}
	s.deliverReady()
	s.mu.Unlock()
	s.w.runs.kick(s.w.look)
}

// raise makes a value at least as great as n.
func raise(v *atomic.Int64, n int64) {
	for old := v.Load(); old < n && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}

// deliverReady hands the sink what is in the inbox. mu is held.
func (s *shell) deliverReady() {
	// After this side's Close the machine reports long messages that it has not read.
	for !s.life.breach && !s.e.closing.Load() {
		in, ok := s.m.Next(s.in.drop)
		if !ok {
			break
		}
		s.deliver(s.accept(in))
	}
	if !s.e.over() {
		s.flush() // a credit for the last that the peer has used
	}
	s.in.handing = !s.life.breach && !s.life.reached(stageClosed) // all that follows passes the inbox by
	if s.upcall.providing {
		notify(s.in.token) // the message may have been given up
	}
	want, wanted := s.m.Wanted()
	if !wanted || !want.First || s.upcall.providing || s.life.reached(stageClosing) || s.life.breach || s.e.over() {
		return
	}
	s.upcall.providing = true
	s.wg.Go(func() { s.provideForSink(want) })
}

// provideForSink gets memory for a long message that has to wait for some.
func (s *shell) provideForSink(want link.Want) {
	for {
		err := s.provide(context.Background(), want)
		s.mu.Lock()
		if err != nil && !s.e.over() {
			s.fail(err)
		}
		now, wanted := s.m.Wanted()
		if s.e.over() || s.life.breach || !wanted || !now.First {
			s.upcall.providing = false
			s.deliverReady()
			s.mu.Unlock()
			s.w.runs.kick(s.w.look)
			return
		}
		want = now
		s.mu.Unlock()
	}
}

// deliver hands the sink a message. mu is held.
func (s *shell) deliver(m *Message) {
	if b, ok := m.owner.(*buffer); ok && 2*s.window.held > s.m.Window() {
		// Requests that wait to be handled hold half of the window at most. The rest is
		// for answers, which must not wait until requests have been handled.
		copied := s.e.copied(m)
		s.returned(b)
		m = copied
	}
	v, err := s.upcall.sink.arrived(m)
	if !v.kept {
		switch owner := m.owner.(type) {
		case *buffer:
			s.returned(owner)
		case *longMessage:
			m.held, m.data = false, nil
			s.held--
			s.freeLong(owner)
		default:
			m.Release()
		}
	}
	if err != nil {
		s.breached(err)
	}
	if v.run {
		s.w.runs.add(s.upcall.sink)
	}
}

// drive polls until ready, if no other caller of the worker does. It tells whether it
// is ready.
func (s *shell) drive(ready func() bool) bool {
	if !s.w.driver.TryLock() {
		return false
	}
	ok := s.w.drive(&s.in.spin, ready)
	s.w.driver.Unlock()
	if ok && s.w.sleepers.Load() > 0 {
		// Those who were woken meanwhile go on before this caller's next call, so that
		// their requests go out together and none starves.
		runtime.Gosched()
	}
	return ok
}

func (s *shell) sleep() { s.w.sleepBeside() }

func (s *shell) awake() { s.w.awake() }

// sendPair is sendNow for a message in two parts, of which the first is a header.
func (s *shell) sendPair(tag uint32, header call.Header, payload []byte) bool {
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
func (s *shell) offerPair(tag uint32, header call.Header, payload []byte) bool {
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
	copy(memory.Bytes()[call.HeaderSize:], payload)
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
func (s *shell) mayOfferNow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.out.busy && !s.e.over() && s.m.MayOffer()
}
