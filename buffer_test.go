package verbena

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// A credit comes back with the last reference to a message, and not before.
func TestCreditOfLastReference(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("credits are TCP's own there")
		}
		const window = 4
		config := Config{Tuning: TuningTable{w.transport: {Window: window, MaxWindow: window}}}
		p := w.pair(t, config, ListenConfig{})
		a, b := p.connect(t, w.transport)
		var held []*Message
		for i := range window {
			if err := a.Send(p.ctx, uint32(i), pattern(100, i)); err != nil {
				t.Fatal(err)
			}
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			m.Retain()
			m.Retain()
			held = append(held, m)
		}
		for range 2 {
			for i, m := range held {
				m.Release()
				if !bytes.Equal(m.Bytes(), pattern(100, i)) {
					t.Fatalf("message %d changed with a reference left", i)
				}
			}
			ctx, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
			if err := a.Send(ctx, 0, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a message was sent without a credit: %v", err)
			}
			cancel()
		}
		for _, m := range held {
			m.Release()
		}
		if err := a.Send(p.ctx, 9, nil); err != nil {
			t.Fatal(err)
		}
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	})
}

// An application that holds most of the window gives back each of the others: its
// peer goes on with one credit at a time.
func TestCreditOfFewReleases(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("credits are TCP's own there")
		}
		const window = 8
		config := Config{Tuning: TuningTable{w.transport: {Window: window, MaxWindow: window}}}
		p := w.pair(t, config, ListenConfig{})
		a, b := p.connect(t, w.transport)
		receive := func(tag uint32) *Message {
			t.Helper()
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Tag != tag {
				t.Fatalf("message %d instead of %d", m.Tag, tag)
			}
			return m
		}
		send := func(tag uint32) {
			t.Helper()
			if err := a.Send(p.ctx, tag, nil); err != nil {
				t.Fatal(err)
			}
		}
		var held []*Message
		for tag := range uint32(window) {
			send(tag)
			held = append(held, receive(tag))
		}
		last := held[window-1]
		held = held[:window-1]
		for tag := uint32(window); tag < 5*window; tag++ {
			if tag%2 == 0 {
				last.Release()
				send(tag)
				last = receive(tag)
				continue
			}
			// The release comes before what uses the last credit has been received.
			held[0].Release()
			send(tag)
			held[0] = last
			last = receive(tag)
		}
		for _, m := range append(held, last) {
			m.Release()
		}
	})
}

// References may be released by many goroutines at once; exactly one Release is the
// last one.
func TestReferencesOfManyGoroutines(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		var log lockedBuffer
		p := w.pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const rounds, users = 200, 4
		go func() {
			for i := range rounds {
				if err := a.Send(p.ctx, uint32(i), pattern(i%3*40_000, i)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		for i := range rounds {
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range users {
				m.Retain()
				wg.Go(func() {
					if !bytes.Equal(m.Bytes(), pattern(i%3*40_000, i)) {
						t.Errorf("message %d changed", i)
					}
					m.Release()
				})
			}
			m.Release()
			wg.Wait()
		}
		if s := log.String(); strings.Contains(s, "twice") {
			t.Error(s)
		}
	})
}

var bufferSizes = []int{0, 1, 40, 100, 3000, 30_000, 60_000, 600_000, 3 << 20}

// fill writes a pattern into a buffer.
func fill(b *Buffer, seed int) { copy(b.Bytes(), pattern(len(b.Bytes()), seed)) }

// newBuffer returns one with a pattern in it.
func newBuffer(t *testing.T, ctx context.Context, e *Endpoint, size, seed int) *Buffer {
	t.Helper()
	b, err := e.Buffer(ctx, size)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Bytes()) != size {
		t.Fatalf("a buffer of %d bytes instead of %d", len(b.Bytes()), size)
	}
	fill(b, seed)
	return b
}

// expect receives a message and compares it.
func expect(t *testing.T, ctx context.Context, e *Endpoint, tag uint32, want ...[]byte) {
	t.Helper()
	m, err := e.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if all := bytes.Join(want, nil); m.Tag != tag || !bytes.Equal(m.Bytes(), all) {
		t.Errorf("message %d of %d bytes, want %d of %d, or its bytes differ", m.Tag, len(m.Bytes()), tag, len(all))
	}
	m.Release()
}

// Buffers arrive behind their headers, whole and in part, and from the endpoint that
// they were made for as well as from another one; a buffer that has settled can be
// changed and sent again.
func TestBuffersAreSent(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		c, d := p.connect(t, w.transport)
		header := []byte("a header of thirty-two bytes !!!")
		for i, size := range bufferSizes {
			var sent sync.WaitGroup
			buffer := newBuffer(t, p.ctx, a, size, i)
			from, to := size/3, size-size/4
			for round := range 3 {
				fill(buffer, i+round)
				sent.Go(func() {
					for range 4 {
						buffer.Retain()
					}
					if err := errors.Join(
						a.SendBuffer(p.ctx, 1, nil, buffer), a.SendBuffer(p.ctx, 2, header, buffer),
						a.SendRange(p.ctx, 3, header[:5], buffer, from, to), c.SendBuffer(p.ctx, 4, header, buffer),
					); err != nil {
						t.Error(err)
					}
				})
				want := pattern(size, i+round)
				expect(t, p.ctx, b, 1, want)
				expect(t, p.ctx, b, 2, header, want)
				expect(t, p.ctx, b, 3, header[:5], want[from:to])
				expect(t, p.ctx, d, 4, header, want)
				sent.Wait()
				if err := errors.Join(a.Settled(p.ctx, buffer), c.Settled(p.ctx, buffer)); err != nil {
					t.Fatal(err)
				}
				if n := buffer.more.Load(); n != 0 {
					t.Errorf("%d bytes: %d references are left", size, n)
				}
			}
			if err := a.SendBuffer(p.ctx, 1, make([]byte, MaxHeader+1), buffer); !errors.Is(err, ErrTooLong) {
				t.Errorf("a header that is too long: %v", err)
			}
			buffer.Release()
		}
		if _, err := a.Buffer(p.ctx, a.MaxMessage()+1); !errors.Is(err, ErrTooLong) {
			t.Errorf("a buffer that is too long: %v", err)
		}
	})
}

// A long buffer is read by the peer from where it lies: no other memory is used.
func TestLongBufferIsNotCopied(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("no registered memory")
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		n := p.client.firstDomain(w.transport)
		buffer := newBuffer(t, p.ctx, a, 3<<20, 1)
		before := n.offerPool.Registered()
		for i := range 3 {
			buffer.Retain()
			sent := make(chan error, 1)
			go func() { sent <- a.SendBuffer(p.ctx, uint32(i), nil, buffer) }()
			expect(t, p.ctx, b, uint32(i), pattern(3<<20, 1))
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
		if after := n.offerPool.Registered(); after != before {
			t.Errorf("%d bytes were registered for what is sent, beside a buffer of %d", after-before, before)
		}
		buffer.Release()
	})
}

// A relay has an endpoint to a source, whose messages it sends on over another.
type relay struct {
	*pair
	n          *domain
	source, in *Endpoint
	out, sink  *Endpoint
}

func newRelay(t *testing.T, w world, trusted bool) *relay {
	t.Helper()
	r := &relay{pair: w.pair(t, Config{}, ListenConfig{})}
	group, err := r.client.NewGroup(GroupConfig{Name: "relay", Relay: true})
	if err != nil {
		t.Fatal(err)
	}
	dial := func(trusted bool) (near, far *Endpoint) {
		near, err := r.client.Dial(r.ctx, r.listener.Addr().String(), "test/1", DialConfig{Transport: w.transport, Group: group, Trusted: trusted})
		if err != nil {
			t.Fatal(err)
		}
		if far, err = r.listener.Accept(r.ctx); err != nil {
			t.Fatal(err)
		}
		return near, far
	}
	r.in, r.source = dial(false)
	r.out, r.sink = dial(trusted)
	r.n = group.domains[r.client.firstDevice(w.transport)]
	return r
}

// Messages of all lengths are sent on; long ones from where they lie if the peer is
// trusted, and only then.
func TestRelay(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		for _, trusted := range []bool{false, true} {
			r := newRelay(t, w, trusted)
			done := make(chan error, 1)
			go func() {
				for i, size := range bufferSizes {
					if err := r.source.Send(r.ctx, uint32(i), pattern(size, i)); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			relayed := make(chan error, 1)
			go func() {
				for range bufferSizes {
					m, err := r.in.Receive(r.ctx)
					if err == nil {
						err = r.out.SendBuffer(r.ctx, m.Tag, nil, &m.Buffer)
					}
					if err != nil {
						relayed <- err
						return
					}
				}
				relayed <- nil
			}()
			for i, size := range bufferSizes {
				expect(t, r.ctx, r.sink, uint32(i), pattern(size, i))
			}
			if err := errors.Join(<-done, <-relayed); err != nil {
				t.Fatal(err)
			}
			if w.transport == TransportTCP {
				continue
			}
			if copied := r.n.offerPool.Registered() > 0; copied == trusted {
				t.Errorf("trusted: %v, copied: %v", trusted, copied)
			}
			for _, e := range []*Endpoint{r.in, r.out, r.source, r.sink} {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
			// All has come back.
			if used := r.n.longPool.Used(); used != 0 {
				t.Errorf("%d bytes of long messages are still used", used)
			}
			if r.n.held != 0 {
				t.Errorf("%d messages are still held", r.n.held)
			}
		}
	})
}

// Endpoints of a group that does not relay cannot be trusted.
func TestTrustNeedsRelay(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{})
	if _, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Trusted: true}); err == nil || !strings.Contains(err.Error(), "does not relay") {
		t.Error(err)
	}
	if _, err := p.listener.Service("a/1", ServiceConfig{Trusted: true}); err == nil || !strings.Contains(err.Error(), "does not relay") {
		t.Error(err)
	}
	if _, err := p.server.Listen(p.ctx, "127.0.0.1:0", ListenConfig{Trusted: true}); err == nil || !strings.Contains(err.Error(), "does not relay") {
		t.Error(err)
	}
}

// The peer dies while it may read a buffer: the buffer stays as it is until the
// endpoint is closed, and then it goes back to the endpoint that it came from.
func TestPeerDiesUnderOffer(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("nothing is offered")
		}
		const size = 3 << 20
		r := newRelay(t, w, true)
		// Without memory the peer reads nothing.
		far := r.sink.carrier.(*shell)
		hog, err := far.n.longPool.Get(r.ctx, int(far.n.longPool.Limit()*3/4))
		if err != nil {
			t.Fatal(err)
		}
		defer far.n.longPool.Put(hog)
		sent := make(chan error, 1)
		go func() { sent <- r.source.Send(r.ctx, 1, pattern(size, 1)) }()
		m, err := r.in.Receive(r.ctx)
		if err := errors.Join(err, <-sent); err != nil {
			t.Fatal(err)
		}
		m.Retain()
		if err := r.out.SendRange(r.ctx, 1, nil, &m.Buffer, 0, 100_000); err != nil {
			t.Fatal(err)
		}
		near := r.out.carrier.(*shell)
		waits, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
		if err := r.out.Settled(waits, &m.Buffer); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("settled before the peer has read: %v", err)
		}
		cancel()
		_ = far.qp.Disconnect() // the peer is gone
		<-r.out.Done()
		if err := r.out.Settled(r.ctx, &m.Buffer); !errors.Is(err, ErrPeerDied) {
			t.Errorf("settled although the peer has died: %v", err)
		}
		near.mu.Lock()
		if near.queue.inFlight != 1 {
			t.Errorf("%d buffers are in flight", near.queue.inFlight)
		}
		near.mu.Unlock()
		m.Release()
		if r.n.longPool.Used() == 0 {
			t.Error("the memory went back while a peer may read it")
		}
		_ = r.out.Close() // it has failed
		if used := r.n.longPool.Used(); used != 0 {
			t.Errorf("%d bytes are still used", used)
		}
		if err := r.out.Settled(r.ctx, &m.Buffer); err != nil {
			t.Error(err)
		}
	})
}

// What ends the wait of a SendBuffer leaves the reference to the caller.
func TestBufferOfCancelledSend(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("a socket takes what fits")
		}
		p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Window: 2, MaxWindow: 2}}}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		for i, size := range []int{10, 1000, 300_000} {
			buffer := newBuffer(t, p.ctx, a, size, i)
			sent := 0
			for {
				ctx, cancel := context.WithTimeout(p.ctx, 20*time.Millisecond)
				buffer.Retain()
				err := a.SendBuffer(ctx, uint32(i), nil, buffer)
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
					buffer.Release() // it is still ours
					break
				}
				if sent++; sent > 100 {
					t.Fatal("nothing holds it up")
				}
			}
			for range sent {
				expect(t, p.ctx, b, uint32(i), pattern(size, i))
			}
			if err := a.Settled(p.ctx, buffer); err != nil {
				t.Fatal(err)
			}
			if n := buffer.more.Load(); n != 0 {
				t.Errorf("%d bytes: %d references are left", size, n)
			}
			buffer.Release()
		}
	})
}

// A peer that receives nothing tells all the same what it has read, also while it has more to
// read.
func TestSettledWithoutReceive(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			return // the kernel takes as much as it likes
		}
		p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Window: 16, Chunks: 8, Spin: -1}}}, ListenConfig{})
		a, _ := p.connect(t, w.transport)
		var buffers [6]*Buffer
		for i := range buffers {
			buffers[i] = newBuffer(t, p.ctx, a, 1<<20, i)
			buffers[i].Retain()
			if err := a.SendBuffer(p.ctx, 1, nil, buffers[i]); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range buffers[:readAhead>>20] {
			if err := a.Settled(p.ctx, b); err != nil {
				t.Error(err)
			}
		}
		for _, b := range buffers {
			b.Release()
		}
	})
}

// Buffers outlive their endpoint and their runtime, and a second Release is told.
func TestBuffersOutliveTheirEndpoint(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		var log lockedBuffer
		p := w.pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		var held []*Buffer
		for i, size := range bufferSizes {
			held = append(held, newBuffer(t, p.ctx, a, size, i))
		}
		held[0].Release()
		if !checksBuffers { // otherwise it panics
			held[0].Release()
			if !strings.Contains(log.String(), "twice") {
				t.Error("nobody is told of a second Release")
			}
		}
		go b.Close()
		if err := errors.Join(a.Close(), p.client.Close()); err != nil {
			t.Error(err)
		}
		if _, err := a.Buffer(p.ctx, 10); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPeerClosed) {
			t.Errorf("a buffer of a closed endpoint: %v", err)
		}
		for i, b := range held[1:] {
			if !bytes.Equal(b.Bytes(), pattern(bufferSizes[i+1], i+1)) {
				t.Errorf("buffer %d changed", i+1)
			}
			b.Release()
		}
	})
}

// Whoever wants more than there is waits until something is released, its context
// ends, or the endpoint does.
func TestBufferWaitsForMemory(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{SendMemory: 16 << 20}, ListenConfig{})
		a, _ := p.connect(t, w.transport)
		const size = 2 << 20
		var held []*Buffer
		for {
			ctx, cancel := context.WithTimeout(p.ctx, 100*time.Millisecond)
			b, err := a.Buffer(ctx, size)
			cancel()
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				break
			}
			if held = append(held, b); len(held) > 100 {
				t.Fatal("no bound")
			}
		}
		got := make(chan error, 1)
		get := func() {
			b, err := a.Buffer(p.ctx, size)
			if err == nil {
				held = append(held, b)
			}
			got <- err
		}
		go get()
		held[0].Release()
		if err := <-got; err != nil {
			t.Error(err)
		}
		go get()
		_ = a.Close()
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		for _, b := range held[1:] {
			b.Release()
		}
	})
}

// Both ends send on what they receive, on the endpoint it came from and on others, so
// that the locks of endpoints are wanted in every order.
func TestBuffersInCircles(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const rings, laps = 3, 60
		p := w.pair(t, Config{}, ListenConfig{})
		var ends [2 * rings]*Endpoint
		for i := range rings {
			ends[2*i], ends[2*i+1] = p.connect(t, w.transport)
		}
		ctx, cancel := context.WithCancel(p.ctx)
		var wg sync.WaitGroup
		finished := make(chan struct{}, 100)
		// What arrives at a server end goes back, what arrives at a client end goes
		// out by the next one.
		for i, e := range ends {
			out := e
			if i%2 == 0 {
				out = ends[(i+2)%len(ends)]
			}
			wg.Go(func() {
				for {
					m, err := e.Receive(ctx)
					if err != nil {
						return
					}
					if m.Tag == 0 {
						m.Release()
						finished <- struct{}{}
						continue
					}
					if !bytes.Equal(m.Bytes(), pattern(len(m.Bytes()), len(m.Bytes()))) {
						t.Error("a message changed")
					}
					if err := out.SendBuffer(ctx, m.Tag-1, nil, &m.Buffer); err != nil {
						m.Release()
						t.Error(err)
						return
					}
				}
			})
		}
		sizes := []int{10, 500, 9000, 70_000}
		for _, size := range sizes {
			b := newBuffer(t, p.ctx, ends[0], size, size)
			if err := ends[0].SendBuffer(ctx, laps, nil, b); err != nil {
				t.Fatal(err)
			}
		}
		for range sizes {
			select {
			case <-finished:
			case <-ctx.Done():
				t.Fatal("a message is lost")
			}
		}
		cancel()
		wg.Wait()
	})
}

// Getting, sending and settling buffers allocates nothing in steady state.
func TestBuffersDoNotAllocate(t *testing.T) {
	if race.Enabled || checksBuffers {
		t.Skip("the build allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		if strings.HasPrefix(w.name, "fake") {
			t.Skip("a fake allocates")
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		c, d := p.connect(t, w.transport)
		for _, size := range []int{20, 1000, 8000, 100_000} {
			if w.transport == TransportTCP && size > 8000 {
				continue // what the socket does not take at once costs a goroutine
			}
			buffer := newBuffer(t, p.ctx, a, size, 1)
			ctx, stop := context.WithCancel(context.Background())
			echoed := make(chan struct{})
			go func() {
				defer close(echoed)
				for {
					m, err := b.Receive(ctx)
					if err != nil {
						return
					}
					_ = d.SendBuffer(ctx, 1, nil, &m.Buffer) // the other end would notice
				}
			}()
			header := make([]byte, 16)
			n := allocations(500, func() {
				buffer.Retain()
				if err := a.SendBuffer(ctx, 1, header, buffer); err != nil {
					t.Error(err)
				}
				m, err := c.Receive(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				m.Release()
				if err := a.Settled(ctx, buffer); err != nil {
					t.Error(err)
				}
			})
			if n >= 1 {
				t.Errorf("%d bytes: %v allocations", size, n)
			}
			buffer.Release()
			stop()
			<-echoed
		}
	})
}

// What an endpoint offers its peer keeps still, so that iWARP need not copy it for its checksums.
// What is exposed may change at any time.
func TestOffersKeepStill(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			return // there are no regions
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		buffer, err := a.Buffer(p.ctx, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer buffer.Release()
		offered := buffer.owner.location().slab.Region()
		if _, can := offered.(rdma.SteadyRegion); can != (w.transport == "iwarp") {
			t.Fatalf("regions of %s can be promised to keep still: %v", w.transport, can)
		} else if !can {
			return
		}
		x, err := a.Expose(p.ctx, ExposeConfig{Buffer: buffer, Rights: MayRead})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		if err := a.Send(p.ctx, 1, pattern(1<<20, 1)); err != nil {
			t.Fatal(err)
		}
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		for what, r := range map[string]struct {
			region rdma.Region
			still  bool
		}{
			"a buffer":                             {offered, true},
			"a long message, which can be sent on": {m.owner.location().slab.Region(), true},
			"an exposed buffer":                    {x.memory.(*exposedBuffer).user.g.region, false},
		} {
			if got := r.region.(interface{ KeepsStill() bool }).KeepsStill(); got != r.still {
				t.Errorf("the region of %s keeps still: %v, want %v", what, got, r.still)
			}
		}
	})
}
