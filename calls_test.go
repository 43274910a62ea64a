package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/race"
)

// Methods of the tests.
const (
	methodEcho     = 1 // short
	methodEchoLong = 2 // long
	methodFail     = 3
	methodPanic    = 4
	methodBlock    = 5 // long: waits until the test lets it go, or the caller gives up
	methodCount    = 6 // short, counts
	methodBack     = 7 // long: calls methodEcho of the caller
)

// callers is a connection with a caller at each end, of which the second serves.
type callers2 struct {
	a, b    *Caller
	mux     *Mux
	release chan struct{} // closed: methodBlock goes on
	blocked chan struct{} // a token for each methodBlock that has begun
	ended   chan error    // causes of contexts that ended in methodBlock
	counted atomic.Int64
}

func (p *pair) callers(t testing.TB, cfg MuxConfig) *callers2 {
	t.Helper()
	a, b := p.connect(t, "")
	return callersOn(t, a, b, cfg)
}

func callersOn(t testing.TB, a, b *Endpoint, cfg MuxConfig) *callers2 {
	t.Helper()
	c := &callers2{mux: NewMux(cfg), release: make(chan struct{}), blocked: make(chan struct{}, 1<<16), ended: make(chan error, 1<<16)}
	echo := func(q Request) { _ = q.Reply(q.Payload()) }
	c.mux.Short(methodEcho, echo)
	c.mux.Long(methodEchoLong, echo)
	c.mux.Short(methodFail, func(q Request) { _ = q.Fail(CodeApplication+7, "no: "+string(q.Payload())) })
	c.mux.Short(methodPanic, func(Request) { panic("on purpose") })
	c.mux.Long(methodBlock, func(q Request) {
		c.blocked <- struct{}{}
		select {
		case <-c.release:
			_ = q.Reply(q.Payload())
		case <-q.Context().Done():
			c.ended <- context.Cause(q.Context())
			_ = q.Fail(CodeApplication, "nobody waits")
		}
	})
	c.mux.Short(methodCount, func(q Request) { c.counted.Add(1) })
	c.mux.Long(methodBack, func(q Request) {
		m, err := q.Caller().Call(q.Context(), methodEcho, q.Payload())
		if err != nil {
			_ = q.Fail(CodeApplication, err.Error())
			return
		}
		_ = q.Reply(m.Bytes())
		m.Release()
	})
	var err error
	if c.a, err = NewCaller(a, c.mux); err != nil {
		t.Fatal(err)
	}
	if c.b, err = NewCaller(b, c.mux); err != nil {
		t.Fatal(err)
	}
	return c
}

// close ends both ends and sees to it that no message is left.
func (c *callers2) close(t testing.TB) {
	t.Helper()
	var both sync.WaitGroup
	both.Go(func() { _ = c.a.Close() })
	both.Go(func() { _ = c.b.Close() })
	both.Wait()
	c.mux.Close()
	// Short handlers that were running give their requests back when they return.
	held := func() (n int) {
		for _, e := range []*Caller{c.a, c.b} {
			if s, ok := e.e.carrier.(*shell); ok {
				s.mu.Lock()
				n += s.held
				s.mu.Unlock()
			}
		}
		return n
	}
	for deadline := time.Now().Add(10 * time.Second); held() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d messages are held after all was closed", held())
			return
		}
	}
}

func (c *callers2) echo(ctx context.Context, from *Caller, method uint32, payload []byte) error {
	m, err := from.Call(ctx, method, payload)
	if err != nil {
		return err
	}
	defer m.Release()
	if !bytes.Equal(m.Bytes(), payload) {
		return fmt.Errorf("%d bytes came back changed: %x, want %x", len(m.Bytes()), prefix(m.Bytes()), prefix(payload))
	}
	return nil
}

func prefix(b []byte) []byte { return b[:min(len(b), 16)] }

func TestCall(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{Logger: slog.New(slog.DiscardHandler)}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		for _, size := range []int{0, 1, 32, 33, 100, 1 << 10, 32 << 10, 40 << 10, 1 << 20, 5 << 20} {
			payload := make([]byte, size)
			for i := range payload {
				payload[i] = byte(i * 7)
			}
			for _, from := range []*Caller{c.a, c.b} {
				for _, method := range []uint32{methodEcho, methodEchoLong, methodBack} {
					if err := c.echo(p.ctx, from, method, payload); err != nil {
						t.Fatalf("%d bytes, method %d: %v", size, method, err)
					}
				}
			}
		}
		var told *CallError
		if _, err := c.a.Call(p.ctx, methodFail, []byte("x")); !errors.As(err, &told) || told.Code != CodeApplication+7 || told.Text != "no: x" {
			t.Errorf("a call that fails: %v", err)
		}
		if _, err := c.a.Call(p.ctx, methodPanic, nil); !errors.As(err, &told) || told.Code != CodePanic {
			t.Errorf("a handler that panics: %v", err)
		}
		if _, err := c.a.Call(p.ctx, 99, nil); !errors.As(err, &told) || told.Code != CodeUnknownMethod {
			t.Errorf("an unknown method: %v", err)
		}
		if _, err := c.a.Call(p.ctx, methodEcho, make([]byte, c.a.e.MaxMessage())); !errors.Is(err, ErrNotSent) || !errors.Is(err, ErrTooLong) {
			t.Errorf("a payload that is too long: %v", err)
		}
		if _, err := c.a.e.Receive(p.ctx); !errors.Is(err, errUpcalled) {
			t.Errorf("Receive: %v", err)
		}
		c.close(t)
		if _, err := c.a.Call(p.ctx, methodEcho, nil); !errors.Is(err, ErrNotSent) {
			t.Errorf("a call after Close: %v", err)
		}
	})
}

// Many callers at both ends, with payloads of all sizes. Each gets the answer to its own
// call.
func TestCallsAtOnce(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Handlers: 4})
		var all sync.WaitGroup
		for i := range 64 {
			from := []*Caller{c.a, c.b}[i%2]
			all.Go(func() {
				payload := make([]byte, 8, 70<<10)
				for n := range 50 {
					binary.BigEndian.PutUint64(payload, uint64(i)<<32|uint64(n))
					size := 8 + (i*977+n*131)%2000
					if n%25 == 24 {
						size = 66 << 10
					}
					if err := c.echo(p.ctx, from, uint32(1+n%2), payload[:size]); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		c.close(t)
	})
}

// No request passes the greeting by that found no room to be sent at once.
func TestGreetingGoesFirst(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, "")
		hold := func(sending bool) (held bool) {
			s, ok := a.carrier.(*shell)
			if ok {
				s.mu.Lock()
				s.out.busy = sending
				s.mu.Unlock()
			}
			return ok
		}
		a.sendLock <- struct{}{}
		hold(true)
		c := callersOn(t, a, b, MuxConfig{})
		for greeted := false; !greeted; time.Sleep(10 * time.Microsecond) {
			c.a.mu.Lock()
			greeted = c.a.side.IsGreeted()
			c.a.mu.Unlock()
		}
		// The greeting waits for the lock, and nothing else does any more.
		if !hold(false) {
			<-a.sendLock // no message of a stream does without
		}
		called := make(chan error, 1)
		go func() { called <- c.echo(p.ctx, c.a, methodEcho, []byte("first")) }()
		for waits := false; !waits; time.Sleep(10 * time.Microsecond) {
			select {
			case err := <-called:
				called <- err
				waits = true
			default:
				c.a.mu.Lock()
				waits = c.a.line.Len() > 0
				c.a.mu.Unlock()
			}
		}
		if _, ok := a.carrier.(*shell); ok {
			<-a.sendLock
		}
		if err := <-called; err != nil {
			t.Error(err)
		}
		c.close(t)
	})
}

// Both ends do nothing but send notifications, more than either takes at a time.
func TestBothOnlyNotify(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		const each = 3000
		var all sync.WaitGroup
		for i := range 8 {
			from := []*Caller{c.a, c.b}[i%2]
			all.Go(func() {
				payload := make([]byte, 3000)
				for range each / 4 {
					if err := from.Notify(p.ctx, methodCount, payload); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		// An answer comes behind everything that the same end was sent before.
		for _, from := range []*Caller{c.a, c.b} {
			if err := c.echo(p.ctx, from, methodEcho, []byte("all?")); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.counted.Load(); n != 2*each {
			t.Errorf("%d notifications were handled, want %d", n, 2*each)
		}
		c.close(t)
	})
}

// Long handlers that wait hold up neither short ones nor the callers of others; what is
// too much for the peer waits here.
func TestSlowHandlers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Handlers: 2})
		const calls = callsAtOnce + 40
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				if err := c.echo(p.ctx, c.a, methodBlock, make([]byte, 2000)); err != nil {
					t.Error(err)
				}
			})
		}
		<-c.blocked
		<-c.blocked
		// The other direction is free, and its answers come although all places for
		// requests are taken here.
		for range 200 {
			if err := c.echo(p.ctx, c.b, methodEcho, make([]byte, 2000)); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.a.Pending(); n > callsAtOnce {
			t.Errorf("%d calls are under way, the peer takes %d", n, callsAtOnce)
		}
		close(c.release)
		all.Wait()
		c.close(t)
	})
}

func TestCallGivenUp(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Handlers: 8})
		ctx, cancel := context.WithCancelCause(p.ctx)
		mine := errors.New("mine")
		go func() {
			<-c.blocked
			cancel(mine)
		}()
		if _, err := c.a.Call(ctx, methodBlock, nil); !errors.Is(err, mine) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("a call that was given up: %v", err)
		}
		if err := <-c.ended; err != errCanceled {
			t.Errorf("its handler's context ended with %v", err)
		}
		late, stop := context.WithTimeout(p.ctx, 20*time.Millisecond)
		defer stop()
		// The handler's context ends at the same time, and its answer may be first.
		var told *CallError
		if _, err := c.a.Call(late, methodBlock, nil); !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &told) {
			t.Errorf("a call whose deadline has passed: %v", err)
		}
		// On a busy machine the deadline may pass before the handler begins.
		for ended := false; !ended && c.a.Pending() > 0; time.Sleep(time.Millisecond) {
			select {
			case err := <-c.ended:
				ended = true
				if !errors.Is(err, context.DeadlineExceeded) && err != errCanceled {
					t.Errorf("its handler's context ended with %v", err)
				}
			case <-p.ctx.Done():
				t.Fatal("neither answered nor ended")
			default:
			}
		}
		if _, err := c.a.Call(late, methodBlock, nil); !errors.Is(err, ErrNotSent) {
			t.Errorf("a call whose deadline had passed before: %v", err)
		}
		if err := c.a.Drain(p.ctx); err != nil || c.a.Pending() != 0 {
			t.Errorf("drained with %d calls: %v", c.a.Pending(), err)
		}
		if _, err := c.a.Call(p.ctx, methodEcho, nil); !errors.Is(err, ErrNotSent) {
			t.Errorf("a call after Drain: %v", err)
		}
		c.close(t)
	})
}

// A peer that takes no answers keeps no handler from others: half of them, and 16 MiB of
// answers that wait, are what it can have.
func TestCallsOfOneThatDoesNotReceive(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Handlers: 8})
		deaf, other := p.connect(t, "")
		b, err := NewCaller(other, c.mux)
		if err != nil {
			t.Fatal(err)
		}
		send := func(h call.Header, tag uint32, payload []byte) {
			t.Helper()
			m := make([]byte, call.HeaderSize, call.HeaderSize+len(payload))
			h.Put(m)
			if err := deaf.Send(p.ctx, tag, append(m, payload...)); err != nil {
				t.Fatal(err)
			}
		}
		send(call.Header{Kind: call.Greeting, Value: 1}, 1, nil)
		payload := pattern(200<<10, 1)
		for slot := range uint32(100) {
			send(call.Header{Kind: call.Request, ID: call.ID{Slot: slot, Generation: 1}}, methodEchoLong, payload)
			if err := c.echo(p.ctx, c.a, methodEchoLong, payload[:100]); err != nil {
				t.Fatal(err)
			}
		}
		b.mu.Lock()
		if n := b.out.bytes; n > waitingBytes {
			t.Errorf("%d bytes of answers wait", n)
		}
		b.mu.Unlock()
		_ = deaf.Close()
		_ = b.Close()
		c.close(t)
	})
}

// Callers give up while their answers come. None hears what was said to another, and in
// the end nothing is under way.
func TestCallsGivenUpAtRandom(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Handlers: 4})
		var all sync.WaitGroup
		for i := range 16 {
			from := []*Caller{c.a, c.b}[i%2]
			all.Go(func() {
				payload := make([]byte, 100)
				for n := range 100 {
					binary.BigEndian.PutUint64(payload, uint64(i)<<32|uint64(n))
					ctx, cancel := context.WithCancel(p.ctx)
					if n%3 > 0 {
						time.AfterFunc(time.Duration((i*37+n*101)%200)*time.Microsecond, cancel)
					}
					if err := c.echo(ctx, from, uint32(1+n%2), payload); err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					cancel()
				}
			})
		}
		all.Wait()
		for _, from := range []*Caller{c.a, c.b} {
			if err := from.Drain(p.ctx); err != nil || from.Pending() != 0 {
				t.Errorf("%d calls are pending: %v", from.Pending(), err)
			}
		}
		c.close(t)
	})
}

// The endpoint ends in the middle of many calls: each caller gets one clear error, also
// those who wait for room at the peer.
func TestCallsWhenTheEndpointEnds(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Handlers: 2})
		const calls = callsAtOnce + 40
		errs := make(chan error, calls)
		for range calls {
			go func() {
				m, err := c.a.Call(p.ctx, methodBlock, make([]byte, 2000))
				if err == nil {
					m.Release()
				}
				errs <- err
			}()
		}
		<-c.blocked
		<-c.blocked
		for _, n := range []*Caller{c.b, c.a} {
			_ = n.Close()
		}
		unknown := 0
		for range calls {
			switch err := <-errs; {
			case errors.Is(err, ErrOutcomeUnknown) && (errors.Is(err, ErrPeerClosed) || errors.Is(err, ErrClosed)):
				unknown++
			case !errors.Is(err, ErrNotSent):
				t.Errorf("a call when the endpoint ends: %v", err)
			}
		}
		if unknown < 2 || unknown > callsAtOnce {
			t.Errorf("the outcome of %d calls is unknown, 2 to %d can have been sent", unknown, callsAtOnce)
		}
		c.close(t)
	})
}

// What breaks the protocol of calls ends the endpoint.
func TestCallsOfABreaker(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		for name, send := range map[string]func(p *pair, e *Endpoint) error{
			"no header":   func(p *pair, e *Endpoint) error { return e.Send(p.ctx, 1, []byte("hello")) },
			"no greeting": func(p *pair, e *Endpoint) error { return e.Send(p.ctx, 1, append([]byte{2}, make([]byte, 15)...)) },
			"answer to no call": func(p *pair, e *Endpoint) error {
				greeting := append([]byte{1, 0, 0, 0, 0, 0, 0, 9}, make([]byte, 8)...)
				return errors.Join(e.Send(p.ctx, 1, greeting), e.Send(p.ctx, 0, append([]byte{4}, make([]byte, 15)...)))
			},
		} {
			p := w.pair(t, Config{}, ListenConfig{})
			a, b := p.connect(t, "")
			c, err := NewCaller(b, NewMux(MuxConfig{}))
			if err != nil {
				t.Fatal(err)
			}
			if err := send(p, a); err != nil {
				t.Fatal(err)
			}
			select {
			case <-b.Done():
			case <-p.ctx.Done():
				t.Fatal("the endpoint goes on")
			}
			if !errors.Is(b.Err(), ErrProtocol) {
				t.Errorf("%s: %v", name, b.Err())
			}
			if _, err := c.Call(p.ctx, 1, nil); !errors.Is(err, ErrNotSent) {
				t.Errorf("%s: a call: %v", name, err)
			}
			_, _ = a.Close(), c.Close()
		}
	})
}

// A call and its answer allocate nothing, at either end, short or long.
func TestCallAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		for _, size := range w.payloads() {
			payload := make([]byte, size)
			for _, method := range []uint32{methodEcho, methodEchoLong} {
				allocatesNothing(t, fmt.Sprintf("a call of method %d with %d bytes", method, size), size, func() (*Message, error) {
					return c.a.Call(p.ctx, method, payload)
				})
			}
		}
		c.close(t)
	})
}

// payloads are sizes of calls that allocate nothing.
func (w world) payloads() []int {
	if w.name == "fakeband" { // it makes an error of each message that has to wait for a receive
		return []int{1 << 10}
	}
	return []int{1 << 10, 10 << 10, 100 << 10, 1 << 20}
}

// allocatesNothing makes calls with payloads of size bytes until both ends have what they
// reuse, and then looks.
func allocatesNothing(t *testing.T, what string, size int, call func() (*Message, error)) {
	t.Helper()
	runs := min(2000, max(100, 100<<20/size))
	one := func() {
		m, err := call()
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	for range runs / 2 {
		one()
	}
	if n := allocations(runs, one); n >= 1 {
		t.Errorf("%.1f allocations for %s and its answer", n, what)
	}
}

// allocationLooks is into how many looks allocations takes runs apart.
const allocationLooks = 5

// allocations is what one call of run allocates at least: the least of several looks. A look
// counts the whole process, which looks for memory pressure every 5 s, with a hundred
// allocations: on a machine that does other work too, more than one for each of a hundred
// slow calls. What each call allocates is in every look, so that one which finds nothing
// is the last.
func allocations(runs int, run func()) float64 {
	least := testing.AllocsPerRun(runs/allocationLooks, run)
	for look := 1; look < allocationLooks && least > 0; look++ {
		least = min(least, testing.AllocsPerRun(runs/allocationLooks, run))
	}
	return least
}

// A goroutine of long handlers stays for the next request, but neither for long nor beyond
// the end of the mux.
func TestIdleHands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMux(MuxConfig{})
		idle := func() int {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.crews[longCrew].idle)
		}
		hire := func(n int) {
			m.mu.Lock()
			m.crews[longCrew].running += n
			m.mu.Unlock()
			for range n {
				m.working.Go(func() { m.lend(longCrew) })
			}
			synctest.Wait()
		}
		hire(mostIdle + 2)
		if n := idle(); n != mostIdle {
			t.Errorf("%d have nothing to do and stay, at most %d may", n, mostIdle)
		}
		time.Sleep(idleHand / 2)
		m.mu.Lock()
		w := &m.crews[longCrew]
		h := w.idle[len(w.idle)-1]
		w.idle = w.idle[:len(w.idle)-1]
		w.running++
		m.mu.Unlock()
		h.wake <- struct{}{}
		time.Sleep(idleHand/2 + 1)
		if n := idle(); n != 1 {
			t.Errorf("%d stay for longer than %v, want the one that had something to do", n, idleHand)
		}
		time.Sleep(idleHand)
		if n := idle(); n != 0 {
			t.Errorf("%d stay for good", n)
		}
		hire(3)
		m.Close()
		synctest.Wait()
		if n := idle(); n != 0 {
			t.Errorf("%d stay beyond Close", n)
		}
	})
}

// An answer is a buffer like any message: it can be sent on, without its header.
func TestAnswerSentOn(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		a, b := p.connect(t, "")
		for _, size := range []int{10, 1 << 10, 200 << 10} {
			payload := make([]byte, size)
			for i := range payload {
				payload[i] = byte(i * 5)
			}
			m, err := c.a.Call(p.ctx, methodEcho, payload)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.SendBuffer(p.ctx, 3, []byte("head"), &m.Buffer); err != nil {
				t.Fatal(err)
			}
			on, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if want := append([]byte("head"), payload...); !bytes.Equal(on.Bytes(), want) {
				t.Errorf("%d bytes: %d arrived, %x, want %x", size, len(on.Bytes()), prefix(on.Bytes()), prefix(want))
			}
			on.Release()
		}
		var both sync.WaitGroup
		both.Go(func() { _ = a.Close() })
		both.Go(func() { _ = b.Close() })
		both.Wait()
		c.close(t)
	})
}

// A watchedSink tells what its runs say.
type watchedSink struct {
	*Caller
	handed chan bool
}

func (s *watchedSink) run(budget int) bool {
	handed := s.Caller.run(budget)
	s.handed <- handed
	return handed
}

// A worker lets other goroutines run only if a request has given them something to do: one
// that a short handler has answered has not.
func TestRunsTellWhetherTheyHandOn(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		const methodPass = 8
		passed := make(chan Request, 1)
		c.mux.Short(methodPass, func(q Request) { passed <- q })
		watched := &watchedSink{c.b, make(chan bool, 16)}
		c.b.e.carrier.upcalls(watched)
		for method, want := range map[uint32]bool{methodEcho: false, methodFail: false, methodEchoLong: true, methodPass: true, 99: false} {
			var calling sync.WaitGroup
			calling.Go(func() {
				if m, err := c.a.Call(p.ctx, method, nil); err == nil {
					m.Release()
				}
			})
			if got := <-watched.handed; got != want {
				t.Errorf("method %d: %t", method, got)
			}
			if method == methodPass { // answered by another goroutine, behind its handler's end
				if err := (<-passed).Reply(nil); err != nil {
					t.Error(err)
				}
			}
			calling.Wait()
		}
		if err := c.a.Notify(p.ctx, methodCount, nil); err != nil {
			t.Fatal(err)
		}
		if !<-watched.handed {
			t.Error("a notification, of which its handler may have told others, is nobody's news")
		}
	})
}
