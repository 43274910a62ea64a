package verbena

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/link"
)

// A caller polls for its answer for up to 5 times Spin. Where both ends have rested, the
// answer comes after 50 to 60 us, most of which the peer's processor takes to wake up. A
// caller that slept would have to wait as long again for its own processor.
const answerSpins = 5

// callSpins tells how long a caller polls for its answer, and a worker for requests.
func (t *Tuning) callSpins() (answers, requests time.Duration) {
	if t.CallSpin != 0 {
		return t.CallSpin, t.CallSpin
	}
	return answerSpins * t.Spin, t.Spin
}

// An upcall is who gets an endpoint's messages instead of Receive. The shell's mu guards
// it.
type upcall struct {
	sink      sink // nil: Receive gets them
	serving   bool // it counts in its worker
	providing bool // a goroutine gets memory for the sink's next message
}

// upcalls hands messages to a sink from here on.
func (s *inbound) upcalls(to sink) {
	answers, requests := s.t.callSpins()
	if to.serves() && requests > 0 {
		raise(&s.w.patience, int64(requests))
	}
	s.in.spin = s.w.spinner(answers) // nobody receives any more
	s.mu.Lock()
	s.postReleased()
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
func (s *inbound) deliverReady() {
	// After this side's Close the machine reports long messages that it has not read.
	for !s.life.breach && !s.e.closing.Load() && !s.cutOff() {
		in, ok := s.m.Next(s.in.drop)
		if !ok && !s.viewAll() {
			break
		}
		if ok {
			s.deliver(s.accept(in))
		}
	}
	if !s.e.over() {
		s.flush() // a credit for the last that the peer has used
	}
	s.in.handing = !s.life.breach && !s.life.reached(stageClosed) // all that follows passes the inbox by
	if s.upcall.providing {
		notify(s.in.token) // the message may have been given up
	} else if s.m.Announced() {
		s.provideAtOnce()
	}
	want, wanted := s.m.Wanted()
	if !wanted || !want.First || s.upcall.providing || s.life.reached(stageClosing) || s.life.breach || s.e.over() {
		return
	}
	s.upcall.providing = true
	s.wg.Go(func() { s.provideForSink(want) })
}

// provideForSink gets memory for a long message that has to wait for some.
func (s *inbound) provideForSink(want link.Want) {
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

// mostHeld is how many receives the sink's messages hold; what comes beyond that is copied
// out of its receive. Requests that wait to be handled hold half of the window. The rest is
// for answers, which must not wait until requests have been handled. Who serves nothing
// holds answers alone, which callers release when they run next: an eighth of the window
// suffices then for what comes meanwhile. mu is held.
func (s *inbound) mostHeld() int {
	window := s.m.Window()
	if s.upcall.sink.serves() {
		return window / 2
	}
	return window - max(1, window/8)
}

// deliver hands the sink a message. mu is held.
func (s *inbound) deliver(m *Message) {
	if b, ok := m.owner.(*buffer); ok && s.window.held > s.mostHeld() {
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
func (s *inbound) drive(ready func() bool) bool {
	if !s.w.driver.TryLock() {
		return false
	}
	ok := s.w.drive(&s.in.spin, ready)
	s.w.driver.Unlock()
	if ok && s.w.sleepers.Load() > 0 {
		// Those who were woken meanwhile go on before this caller's next call, so that
		// their requests go out together and none starves.
		s.w.runnable.Add(1)
		runtime.Gosched()
		s.w.runnable.Add(-1)
	}
	return ok
}
