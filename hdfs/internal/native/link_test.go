package native

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
)

// deafPeer is a link to a peer that receives nothing before hear is closed. Then it counts the
// messages, until one with the tag last.
func deafPeer(t *testing.T, last uint32, patience time.Duration) (l *Link, hear chan struct{}, heard chan int) {
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
	return NewLink(ep, patience), hear, heard
}

// What waits for a peer that does not receive is bounded, and blocks' windows add to the
// bound. Beyond it nothing waits any more.
func TestLinksOweNoMoreThanTheirBound(t *testing.T) {
	for _, more := range []int64{0, MaxOwed} {
		l, _, _ := deafPeer(t, 0, time.Minute)
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
	l, hear, heard := deafPeer(t, last, time.Minute)
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

// waitFor posts with a tag until messages wait, and the first of them is being sent.
func (l *Link) waitFor(t *testing.T, tag uint32) {
	t.Helper()
	for begin := time.Now(); ; {
		l.mu.Lock()
		waits := l.queue.Len() > 0 && l.now.tag == tag
		l.mu.Unlock()
		if waits {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("nothing waits")
		}
		l.Post(tag, make([]byte, NonceLen))
	}
}

// What waits of one block is taken back while others' messages go on waiting, and what is reserved
// for it is free at once, or when the message has gone that is being sent.
func TestBlocksAreForgotten(t *testing.T) {
	const last = 7
	l, hear, heard := deafPeer(t, last, time.Minute)
	defer l.Close()
	l.waitFor(t, 1)
	l.mu.Lock()
	waiting, owed := l.queue.Len(), l.owed
	l.mu.Unlock()
	setUp := append([]byte{byte(SetUp)}, make([]byte, 200)...)
	l.Post(2, setUp)
	l.Post(3, setUp[1:])
	l.Post(2, make([]byte, NonceLen))
	l.Post(last, make([]byte, NonceLen))
	free := 0
	if l.Forget(2, func() { free++ }) {
		t.Error("the set-up waited, and counts as sent")
	}
	if !l.Forget(3, func() { free++ }) {
		t.Error("no set-up waited, and it counts as forgotten")
	}
	l.mu.Lock()
	if free != 2 || l.queue.Len() != waiting+1 || l.owed != owed+outgoingSize {
		t.Errorf("%d are free, %d messages of %d bytes wait", free, l.queue.Len(), l.owed)
	}
	l.mu.Unlock()
	gone := make(chan struct{})
	l.Forget(1, func() { close(gone) })
	select {
	case <-gone:
		t.Error("a message is being sent, and what is reserved for it is free")
	default:
	}
	close(hear)
	<-gone
	<-heard
}

// Users of a connection that was given up hear why: the peer receives nothing, or takes no message of that length.
func TestUsersHearWhyAPeerWasGivenUp(t *testing.T) {
	const longest = 64 << 10
	rt, g := runtimeWith(t, verbena.Config{MaxMessage: longest})
	p, _ := serve(t, rt, g, Service, func(ctx context.Context, _ *verbena.Endpoint) error {
		<-ctx.Done()
		return nil
	})
	for name, c := range map[string]struct {
		patience time.Duration
		message  []byte
		why      error
	}{
		"deaf":     {20 * time.Millisecond, make([]byte, NonceLen), ErrDeaf},
		"too long": {time.Minute, make([]byte, longest+1), verbena.ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}, SendTimeout: c.patience})
			defer table.Close()
			u := newRecorder()
			conn, id, err := join(t, table, p.Addr(), u)
			if err != nil {
				t.Fatal(err)
			}
			for err = nil; err == nil; {
				conn.mu.Lock()
				over := conn.err != nil
				conn.mu.Unlock()
				conn.Link.mu.Lock()
				waits := conn.queue.Len() > 0
				conn.Link.mu.Unlock()
				if !waits && !over {
					conn.Post(id, c.message)
				}
				select {
				case err = <-u.end:
				default:
					runtime.Gosched()
				}
			}
			if !errors.Is(err, c.why) || errors.Is(err, ErrDeaf) != (c.why == ErrDeaf) {
				t.Error(err)
			}
		})
	}
}

// A peer that takes nothing for as long as it may loses its endpoint: whoever has set a bound ends
// it, and otherwise the link does.
func TestPeersThatTakeNothingEnd(t *testing.T) {
	for _, bound := range []bool{false, true} {
		l, _, _ := deafPeer(t, 0, 20*time.Millisecond)
		ended := l.ep.Done()
		var why error
		if bound {
			told := make(chan struct{})
			l.Bound(func(err error) { why = err; close(told) })
			l.Allow(1 << 40)
			ended = told
		}
		for begin, over := time.Now(), false; !over; {
			l.mu.Lock()
			waits := l.queue.Len() > 0
			l.mu.Unlock()
			if !waits {
				l.Post(1, make([]byte, NonceLen))
			}
			select {
			case <-ended:
				over = true
			default:
				runtime.Gosched()
			}
			if time.Since(begin) > 20*time.Second {
				t.Fatal("it lives on")
			}
		}
		if bound && !errors.Is(why, ErrDeaf) {
			t.Error(why)
		}
		l.Close() // its error is that the peer has not heard
	}
}
