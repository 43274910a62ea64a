package native

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
)

// deafPeer is a link to a peer that receives nothing before hear is closed. Then it counts the
// messages, until one with the tag last.
func deafPeer(t *testing.T, last uint32) (l *Link, hear chan struct{}, heard chan int) {
	t.Helper()
	rt, g := runtimeOf(t)
	hear, heard = make(chan struct{}), make(chan int, 1)
	p, _ := serve(t, rt, g, Service, func(ctx context.Context, ep *verbena.Endpoint) error {
		select {
		case <-hear:
		case <-ctx.Done():
			return ctx.Err()
		}
		for n := 1; ; n++ {
			m, err := ep.Receive(ctx)
			if err != nil {
				return err
			}
			end := m.Tag == last
			if m.Release(); end {
				heard <- n
				return nil
			}
		}
	})
	ep, err := rt.Dial(t.Context(), p.Addr(), Service, verbena.DialConfig{Group: g})
	if err != nil {
		t.Fatal(err)
	}
	return NewLink(ep), hear, heard
}

// What waits for a peer that does not receive is bounded, and blocks' windows add to the
// bound. Beyond it nothing waits any more.
func TestLinksOweNoMoreThanTheirBound(t *testing.T) {
	for _, more := range []int64{0, MaxOwed} {
		l, _, _ := deafPeer(t, 0)
		var told []error
		l.Bound(func(err error) { told = append(told, err) })
		l.Allow(more)
		message := make([]byte, NonceLen+8)
		var freed atomic.Bool
		waiting := func() (n int, owed int64) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.queue.Len(), l.owed
		}
		n, owed := 0, int64(0)
		for begin := time.Now(); told == nil; {
			if time.Since(begin) > time.Minute {
				t.Fatal("the link takes more and more")
			}
			n, owed = waiting()
			l.Post(1, message)
		}
		most := int(MaxOwed+more) / int(outgoingSize)
		if !errors.Is(told[0], ErrDeaf) || n > most || n < most-2 || owed > MaxOwed+more {
			t.Errorf("%d messages of %d bytes waited, want %d: %v", n, owed, most, told[0])
		}
		l.After(func() { freed.Store(true) })
		for range 100 {
			l.Post(1, make([]byte, 1000))
		}
		// Only what is being sent is left, and what is to be called behind it. On a machine
		// that does other work the goroutine may have been about to look for its next message.
		n, owed = waiting()
		if stuck := n == 1 && owed == outgoingSize && !freed.Load(); !stuck && (n > 1 || owed != 0) || len(told) != 1 {
			t.Errorf("%d messages of %d bytes wait behind the breach, freed %v, told %d times", n, owed, freed.Load(), len(told))
		}
		l.Close() // its error is that the peer has not heard
		if n, owed := waiting(); !freed.Load() || n != 0 || owed != 0 {
			t.Errorf("%d messages of %d bytes wait after Close, freed %v", n, owed, freed.Load())
		}
	}
}

// After waits until what was to be sent before is out, and what is out is owed no more.
func TestAfterWaitsForWhatIsOwed(t *testing.T) {
	const last = 7
	l, hear, heard := deafPeer(t, last)
	defer l.Close()
	l.Bound(func(err error) { t.Error(err) })
	n := 0
	for {
		l.Post(1, make([]byte, NonceLen))
		n++
		l.mu.Lock()
		waits := l.queue.Len() > 1000
		l.mu.Unlock()
		if waits {
			break
		}
	}
	free := make(chan int64, 1)
	l.After(func() { free <- l.owed })
	select {
	case <-free:
		t.Fatal("the peer has received nothing")
	case <-time.After(10 * time.Millisecond):
	}
	l.Post(last, make([]byte, 100)) // longer than an acknowledgement
	close(hear)
	<-free
	if got := <-heard; got != n+1 {
		t.Errorf("%d messages came, %d were sent", got, n+1)
	}
	now := make(chan struct{})
	l.After(func() { close(now) })
	<-now
	l.sender.Wait()
	if l.owed != 0 || l.sending {
		t.Errorf("%d bytes are owed", l.owed)
	}
	if n := l.queue.Cap(); n > mostIdle {
		t.Errorf("the empty queue has memory for %d messages", n)
	}
}
