package verbena

import (
	"testing"
	"time"
)

// Who sends many messages that are copied, and waits for nothing, takes back the memory of
// those that are through by itself: the worker's goroutine leaves the queue to callers, and
// none of them polls.
func TestSendersTakeMemoryBack(t *testing.T) {
	const length, first = 16 << 10, 8
	w := worlds[1]
	p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Window: 32}}}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	s := a.carrier.(*shell)
	s.w.callers.others.Add(1)
	defer s.w.callers.others.Add(-1)
	send := func() {
		t.Helper()
		if err := a.Send(p.ctx, 1, make([]byte, length)); err != nil {
			t.Fatal(err)
		}
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	copied := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.queue.copied
	}
	send() // its completion shows the worker that somebody polls
	for !s.w.deferred.Load() {
		if p.ctx.Err() != nil {
			t.Fatal("the worker's goroutine does not leave the queue to callers")
		}
		time.Sleep(time.Millisecond)
	}
	for range first {
		send()
	}
	if n := copied(); n < first*length {
		t.Fatalf("%d bytes wait for a poll, so the test shows nothing", n)
	}
	s.atOnce = true
	for range 8 { // there are credits for more, so nothing else polls
		if send(); copied() <= mostCopied+2*length {
			return
		}
		time.Sleep(time.Millisecond) // the device completes requests on a goroutine of its own
	}
	t.Errorf("%d bytes wait for a poll, want %d at most", copied(), mostCopied+2*length)
}
