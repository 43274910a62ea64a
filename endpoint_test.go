package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

func pattern(n, seed int) []byte {
	start := seed & 0xff
	source := shortPattern
	if start+n > shortest {
		source = longPattern
	}
	return source()[start : start+n : start+n]
}

// Most tests, and most processes that they start, need the short one alone. The long one
// begins with it.
const shortest = 4 << 20

var (
	shortPattern = sync.OnceValue(func() []byte { return newPattern(shortest) })
	longPattern  = sync.OnceValue(func() []byte { return newPattern(64<<20 + 256) })
)

func newPattern(length int) []byte {
	b := make([]byte, length)
	for i := range 1 << 16 {
		b[i] = byte(i*31 + i>>8)
	}
	for n := 1<<16 - 1; n < len(b); n *= 2 { // of no round period
		copy(b[n:], b[:n])
	}
	return b
}

func TestMessagesOfAllSizes(t *testing.T) {
	sizes := []int{0, 1, 47, 48, 49, 255, 1 << 10, 16<<10 - 1, 16 << 10, 16<<10 + 1, 32<<10 + 1, 256 << 10, 512<<10 + 3, 5 << 20, 64 << 20}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		client, server := p.connect(t, "")
		if got := client.Selection().Transport; got != w.transport {
			t.Fatalf("transport %s, want %s: %s", got, w.transport, client.Selection())
		}
		sent := make(chan error, 1)
		go func() {
			for i, size := range sizes {
				if err := client.Send(p.ctx, uint32(i), pattern(size, i)); err != nil {
					sent <- fmt.Errorf("%d bytes: %w", size, err)
					return
				}
			}
			sent <- client.Close()
		}()
		for i, size := range sizes {
			m, err := server.Receive(p.ctx)
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), pattern(size, i)) {
				t.Fatalf("message %d of %d bytes came as tag %d of %d bytes, or changed", i, size, m.Tag, len(m.Bytes()))
			}
			m.Release()
		}
		if _, err := server.Receive(p.ctx); err != io.EOF {
			t.Fatalf("after the last message: %v, want io.EOF", err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Every size of window and chunk is small here, so that credits run out, offers
// queue up and the send queue wraps all the time.
var cramped = Tuning{Eager: 512, Window: 2, MaxWindow: 4, Chunk: 4 << 10, Chunks: 2}

func crampedConfig(w world) Config {
	t := cramped
	if w.transport == TransportTCP {
		t = Tuning{Chunk: cramped.Chunk}
	}
	return Config{Tuning: TuningTable{w.transport: t}, ReceiveMemory: 32 << 20, SendMemory: 32 << 20}
}

func TestManySendersBothWays(t *testing.T) {
	const senders = 8
	each := 150
	if race.Enabled {
		each = 50
	}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, crampedConfig(w), ListenConfig{})
		a, b := p.connect(t, "")
		var wg sync.WaitGroup
		for _, e := range []*Endpoint{a, b} {
			for s := range senders {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(s), 1))
					for i := range each {
						size := []int{0, 8, 48, 200, 512, 513, 5000, 40_000}[r.IntN(8)]
						m := bytes.Clone(pattern(size+8, s))
						binary.LittleEndian.PutUint32(m, uint32(i))
						binary.LittleEndian.PutUint32(m[4:], uint32(size))
						if err := e.Send(p.ctx, uint32(s), m); err != nil {
							t.Errorf("sender %d: %v", s, err)
							return
						}
					}
				})
			}
			wg.Go(func() {
				var next [senders]uint32
				for range senders * each {
					m, err := e.Receive(p.ctx)
					if err != nil {
						t.Error(err)
						return
					}
					got := m.Bytes()
					i, size := binary.LittleEndian.Uint32(got), binary.LittleEndian.Uint32(got[4:])
					if i != next[m.Tag] || len(got) != int(size)+8 || !bytes.Equal(got[8:], pattern(len(got), int(m.Tag))[8:]) {
						t.Errorf("sender %d: message %d of %d bytes, want number %d", m.Tag, i, len(got), next[m.Tag])
					}
					next[m.Tag]++
					m.Release()
				}
			})
		}
		wg.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A sender whose context ends while the receiver does not receive gets its
// error, and nothing of the message arrives.
func TestCancelledSend(t *testing.T) {
	for _, size := range []int{100, 300 << 10} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			eachWorld(t, func(t *testing.T, w world) {
				p := w.pair(t, crampedConfig(w), ListenConfig{})
				a, b := p.connect(t, "")
				sent := 0
				full := false
				for !full {
					ctx, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
					err := a.Send(ctx, uint32(sent), pattern(size, sent))
					cancel()
					switch {
					case err == nil:
						sent++
					case errors.Is(err, context.DeadlineExceeded):
						full = true
					default:
						t.Fatal(err)
					}
				}
				done := make(chan error, 1)
				go func() { done <- a.Send(p.ctx, 1<<20, []byte("last")) }()
				for i := 0; ; i++ {
					m, err := b.Receive(p.ctx)
					if err != nil {
						t.Fatal(err)
					}
					if m.Tag == 1<<20 {
						if i != sent {
							t.Errorf("%d messages arrived, %d were sent", i, sent)
						}
						m.Release()
						break
					}
					if m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), pattern(size, i)) {
						t.Fatalf("message %d of %d bytes where %d is due", m.Tag, len(m.Bytes()), i)
					}
					m.Release()
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestCloseEndsWaits(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, crampedConfig(w), ListenConfig{})
		a, b := p.connect(t, "")
		received, sent := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := a.Receive(p.ctx)
			received <- err
		}()
		go func() {
			for {
				if err := a.Send(p.ctx, 1, make([]byte, 3000)); err != nil {
					sent <- err
					return
				}
			}
		}()
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		go func() {
			for {
				m, err := b.Receive(p.ctx)
				if err != nil {
					return
				}
				m.Release()
			}
		}()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		for what, c := range map[string]chan error{"Receive": received, "Send": sent} {
			if err := <-c; !errors.Is(err, ErrClosed) {
				t.Errorf("%s returned %v, want ErrClosed", what, err)
			}
		}
		<-b.Done()
		if err := b.Send(p.ctx, 1, nil); !errors.Is(err, ErrPeerClosed) {
			t.Errorf("Send to a closed peer: %v, want ErrPeerClosed", err)
		}
		if !errors.Is(b.Err(), ErrPeerClosed) || !errors.Is(a.Err(), ErrClosed) {
			t.Errorf("Err is %v and %v", b.Err(), a.Err())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestBothCloseAtOnce(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		for range 20 {
			a, b := p.connect(t, "")
			var wg sync.WaitGroup
			for _, e := range []*Endpoint{a, b} {
				wg.Go(func() {
					_ = e.Send(p.ctx, 1, make([]byte, 100)) // the peer may be gone
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
	})
}

// Messages that wait, and those that the application holds, do not stop others
// from arriving as long as there is memory, and then only those.
func TestHeldMessages(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		// Half of the memory may be taken before a Receive asks for it. The pool
		// deals in arenas of 2 MiB, one of which holds small slabs: in the half that
		// the peer may have there is room for some of the messages below and the one
		// that is to get through.
		const count = 12
		config := crampedConfig(w)
		config.ReceiveMemory = 2 * count << 20
		p := w.pair(t, config, ListenConfig{})
		a, b := p.connect(t, "")
		c, d := p.connect(t, "")
		go func() {
			for i := range count {
				if a.Send(p.ctx, uint32(i), pattern(1<<20, i)) != nil {
					return
				}
			}
		}()
		go func() { _ = c.Send(p.ctx, 7, pattern(2<<20, 7)) }() // its Receive tells
		var held []*Message
		for range 2 {
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, m)
		}
		m, err := d.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.Bytes(), pattern(2<<20, 7)) {
			t.Error("wrong bytes")
		}
		m.Release()
		for i, m := range held {
			if !bytes.Equal(m.Bytes(), pattern(1<<20, i)) {
				t.Errorf("held message %d changed", i)
			}
			m.Release()
		}
		for i := 2; i < count; i++ {
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(m.Bytes(), pattern(1<<20, i)) {
				t.Errorf("message %d changed", i)
			}
			m.Release()
		}
	})
}

// Messages outlive their endpoint and their runtime. The runtime's Close does
// not wait for them, and the last Release frees what they kept.
func TestRuntimeClosesUnderHeldMessages(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		sizes := []int{1, 1000, 8000, 100_000, 600_000, 3 << 20}
		for _, endpointFirst := range []bool{true, false} {
			p := w.pair(t, Config{}, ListenConfig{})
			a, b := p.connect(t, w.transport)
			sent := make(chan error, 1)
			go func() {
				for i, size := range sizes {
					if err := a.Send(p.ctx, uint32(i), pattern(size, i)); err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			var held []*Message
			for range sizes {
				m, err := b.Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, m)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			// Somebody is reading while everything closes.
			stop, readers := make(chan struct{}), sync.WaitGroup{}
			for i, m := range held {
				readers.Go(func() {
					for {
						if !bytes.Equal(m.Bytes(), pattern(sizes[i], i)) {
							t.Errorf("message %d changed", i)
							return
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				})
			}
			if endpointFirst {
				go func() { _ = a.Close() }() // the peer says goodbye, too
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := p.client.Close(); err != nil {
				t.Error(err)
			}
			if err := p.server.Close(); err != nil {
				t.Error(err)
			}
			close(stop)
			readers.Wait()
			d := p.server.firstDomain(w.transport)
			for i, m := range held {
				if !bytes.Equal(m.Bytes(), pattern(sizes[i], i)) {
					t.Errorf("message %d changed", i)
				}
				if d != nil {
					if r, err := d.domain.Allocate(4096, 0); err != nil {
						t.Errorf("with %d messages held the domain is gone: %v", len(held)-i, err)
					} else if err := r.Close(); err != nil {
						t.Error(err)
					}
				}
				m.Release()
			}
			if d != nil {
				p.until(t, "the domain of the runtime is closed", func() bool { return isClosed(d) })
				for _, pool := range d.pools() {
					if pool.Registered != 0 {
						t.Errorf("%d bytes of the %s pool are registered after all", pool.Registered, pool.Name)
					}
				}
			}
		}
	})
}

// Release, the endpoint's Close and the runtime's Close at the same time.
func TestReleaseRacesClose(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		for range 20 {
			p := w.pair(t, Config{}, ListenConfig{})
			a, b := p.connect(t, w.transport)
			go func() {
				for i := range 40 {
					if a.Send(p.ctx, uint32(i), pattern(i*2000, i)) != nil {
						return
					}
				}
			}()
			var wg sync.WaitGroup
			first := make(chan struct{})
			wg.Go(func() {
				for i := 0; ; i++ {
					m, err := b.Receive(p.ctx)
					if err != nil {
						return
					}
					wg.Go(func() {
						if !bytes.Equal(m.Bytes(), pattern(i*2000, i)) {
							t.Errorf("message %d changed", i)
						}
						m.Release()
					})
					if i == 5 {
						close(first)
					}
				}
			})
			<-first
			wg.Go(func() { _ = b.Close() })
			if err := p.server.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
			if err := p.client.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
			wg.Wait()
			if d := p.server.firstDomain(w.transport); d != nil {
				if _, err := d.domain.Allocate(4096, 0); !errors.Is(err, rdma.ErrClosed) {
					t.Errorf("the domain is open: %v", err)
				}
			}
		}
	})
}

func TestTooLong(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{MaxMessage: 1 << 20}, ListenConfig{})
		a, b := p.connect(t, "")
		if a.MaxMessage() != 1<<20 {
			t.Errorf("MaxMessage is %d", a.MaxMessage())
		}
		if err := a.Send(p.ctx, 1, make([]byte, 1<<20+1)); !errors.Is(err, ErrTooLong) {
			t.Errorf("got %v, want ErrTooLong", err)
		}
		if err := a.Send(p.ctx, 2, make([]byte, 1<<20)); err != nil {
			t.Error(err)
		}
		m, err := b.Receive(p.ctx)
		if err != nil || m.Tag != 2 {
			t.Fatal(m, err)
		}
		m.Release()
	})
}

// A receiver may be asked for the next message while it is waiting in vain.
func TestReceiveDeadline(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, "")
		for i := range 5 {
			ctx, cancel := context.WithTimeout(p.ctx, time.Millisecond)
			if _, err := b.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v, want a passed deadline", err)
			}
			cancel()
			if err := a.Send(p.ctx, uint32(i), []byte("x")); err != nil {
				t.Fatal(err)
			}
			m, err := b.Receive(p.ctx)
			if err != nil || m.Tag != uint32(i) {
				t.Fatal(m, err)
			}
			m.Release()
		}
	})
}

// The memory of a runtime comes back when its endpoints are closed.
func TestMemoryComesBack(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		for range 3 {
			a, b := p.connect(t, "")
			go func() {
				_ = a.Send(p.ctx, 1, make([]byte, 3<<20)) // the other side gives up
			}()
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			m.Release()
		}
		for _, r := range []*Runtime{p.client, p.server} {
			for d := range r.devices() {
				for domain := range d.domains {
					for _, pool := range domain.pools() {
						if pool.Used != 0 {
							t.Errorf("%d bytes of the %s pool are still in use", pool.Used, pool.Name)
						}
					}
					for _, w := range domain.workers {
						if len(w.consumers) != 0 || w.room < min(workerQueue, d.attributes.MaxCompletions)/2 {
							t.Errorf("worker has %d queue pairs and room for %d", len(w.consumers), w.room)
						}
					}
					if domain.shells != 0 || domain.held != 0 || len(domain.queues) != 0 {
						t.Errorf("%d endpoints, %d messages held", domain.shells, domain.held)
					}
				}
			}
		}
	})
}

func TestNoAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		if strings.HasPrefix(w.name, "fake") {
			t.Skip("the fake network allocates")
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, "")
		ctx, cancel := context.WithCancel(p.ctx)
		defer cancel()
		for _, size := range []int{16, 4 << 10} {
			payload := make([]byte, size)
			// Both ends count: the echo runs in another goroutine.
			echoed := make(chan struct{})
			go func() {
				defer close(echoed)
				for {
					m, err := b.Receive(ctx)
					if err != nil {
						return
					}
					last := m.Tag == 2
					_ = b.Send(ctx, 1, m.Bytes()) // the other end would notice
					m.Release()
					if last {
						return
					}
				}
			}()
			trip := func(tag uint32) {
				if err := a.Send(ctx, tag, payload); err != nil {
					t.Error(err)
				}
				m, err := a.Receive(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				m.Release()
			}
			if n := allocations(2000, func() { trip(1) }); n >= 1 {
				t.Errorf("%d bytes: %v allocations a round trip", size, n)
			}
			trip(2)
			<-echoed
		}
	})
}

func BenchmarkPingPong(b *testing.B) {
	for _, w := range worlds {
		for _, size := range []int{8, 1 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", w.name, size), func(b *testing.B) {
				p := w.pair(b, Config{}, ListenConfig{})
				a, e := p.connect(b, "")
				ctx := context.Background()
				go func() {
					for {
						m, err := e.Receive(ctx)
						if err != nil {
							return
						}
						_ = e.Send(ctx, 1, m.Bytes()) // the other end would notice
						m.Release()
					}
				}()
				payload := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := a.Send(ctx, 1, payload); err != nil {
						b.Fatal(err)
					}
					m, err := a.Receive(ctx)
					if err != nil {
						b.Fatal(err)
					}
					m.Release()
				}
				b.StopTimer()
				_ = a.Close() // the bench is over
				_ = e.Close()
			})
		}
	}
}

func BenchmarkStream(b *testing.B) {
	for _, w := range worlds {
		for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", w.name, size), func(b *testing.B) {
				p := w.pair(b, Config{}, ListenConfig{})
				a, e := p.connect(b, "")
				ctx := context.Background()
				done := make(chan struct{})
				go func() {
					defer close(done)
					for {
						m, err := e.Receive(ctx)
						if err != nil {
							return
						}
						m.Release()
					}
				}()
				payload := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := a.Send(ctx, 1, payload); err != nil {
						b.Fatal(err)
					}
				}
				_ = a.Close() // all has been received then
				<-done
				_ = e.Close()
			})
		}
	}
}

// The window of an endpoint grows under load and goes back when memory is short.
func TestWindowFollowsLoad(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{ReceiveMemory: 64 << 20}, ListenConfig{})
		a, b := p.connect(t, "")
		q, ok := b.carrier.(*shell)
		if !ok {
			t.Skip("it has the window of TCP")
		}
		window := func() int {
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.m.Window()
		}
		// Bursts that are longer than the window.
		burst := func() {
			const n = 500
			done := make(chan error, 1)
			go func() {
				for range n {
					if err := a.Send(p.ctx, 1, make([]byte, 100)); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for range n {
				m, err := b.Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				m.Release()
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		for window() < q.t.MaxWindow {
			if p.ctx.Err() != nil {
				t.Fatalf("the window is %d", window())
			}
			burst()
		}
		// Others are promised most of what there is.
		all := q.n.shares
		others := all.receives / 4 * 3
		if err := all.reserve(others); err != nil {
			t.Fatal(err)
		}
		for window() > q.limits.Window {
			if p.ctx.Err() != nil {
				t.Fatalf("the window is %d", window())
			}
			burst()
		}
		_ = all.reserve(-others)
	})
}

// Endpoints come and go, in order and not, while others work.
func TestChurn(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, crampedConfig(w), ListenConfig{})
		echo, stop := context.WithCancel(p.ctx)
		var servers, clients sync.WaitGroup
		servers.Go(func() {
			for {
				e, err := p.listener.Accept(echo)
				if err != nil {
					return
				}
				servers.Go(func() {
					defer e.Close()
					for {
						m, err := e.Receive(echo)
						if err != nil {
							return
						}
						_ = e.Send(echo, m.Tag, m.Bytes()) // the client may be gone
						m.Release()
					}
				})
			}
		})
		rounds := 12
		if race.Enabled {
			rounds = 6
		}
		for c := range 6 {
			clients.Go(func() {
				for round := range rounds {
					e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: w.transport})
					if err != nil {
						t.Error(err)
						return
					}
					for i := range 10 {
						want := pattern(i*i*100, c)
						if err := e.Send(p.ctx, uint32(i), want); err != nil {
							t.Error(err)
							break
						}
						if round%3 == 2 {
							continue // leaves with echoes on their way
						}
						m, err := e.Receive(p.ctx)
						if err != nil {
							t.Error(err)
							break
						}
						if m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), want) {
							t.Errorf("echo %d is wrong", i)
						}
						m.Release()
					}
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		clients.Wait()
		stop()
		servers.Wait()
	})
}

// A runtime is closed while its endpoints are busy and others are being dialled.
func TestRuntimeCloses(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		for range 5 {
			p := w.pair(t, crampedConfig(w), ListenConfig{})
			var wg sync.WaitGroup
			accepted := make(chan struct{}, 1000)
			wg.Go(func() {
				for {
					e, err := p.listener.Accept(p.ctx)
					if err != nil {
						return
					}
					wg.Go(func() {
						for {
							m, err := e.Receive(p.ctx)
							if err != nil {
								return
							}
							m.Release()
							accepted <- struct{}{}
						}
					})
				}
			})
			for range 3 {
				wg.Go(func() {
					for {
						e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: w.transport})
						if err != nil {
							if p.client.ctx.Err() == nil && !errors.Is(err, ErrClosed) {
								t.Error(err)
							}
							return
						}
						wg.Go(func() {
							for i := range 50 {
								if e.Send(p.ctx, 1, pattern(i*1000, i)) != nil {
									return
								}
							}
						})
					}
				})
			}
			for range 20 {
				<-accepted
			}
			go func() {
				for range accepted { // whoever sends is not held up
				}
			}()
			if err := p.client.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
			if err := p.server.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
			wg.Wait()
			close(accepted)
		}
	})
}

// A Send that finds no memory waits for it, as long as its context and the
// endpoint last.
func TestSendWaitsForMemory(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{SendMemory: 16 << 20}, ListenConfig{})
		a, b := p.connect(t, "")
		q, ok := a.carrier.(*shell)
		if !ok {
			t.Skip("it sends from the Go heap")
		}
		for _, size := range []int{5000, 400 << 10} {
			var all []slab.Slab
			for _, pool := range []*slab.Pool{q.n.sendPool, q.n.offerPool} {
				for {
					s, ok, err := pool.TryGet(1 << 20)
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					all = append(all, s)
				}
				for {
					s, ok, _ := pool.TryGet(5000 + wire.HeaderSize)
					if !ok {
						break
					}
					all = append(all, s)
				}
			}
			ctx, cancel := context.WithTimeout(p.ctx, 10*time.Millisecond)
			if err := a.Send(ctx, 1, pattern(size, 1)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%d bytes: got %v", size, err)
			}
			cancel()
			sent := make(chan error, 1)
			go func() { sent <- a.Send(p.ctx, 2, pattern(size, 2)) }()
			for _, s := range all[:len(all)-1] {
				q.poolOf(s).Put(s)
			}
			m, err := b.Receive(p.ctx)
			if err != nil || m.Tag != 2 || !bytes.Equal(m.Bytes(), pattern(size, 2)) {
				t.Fatal(m, err)
			}
			m.Release()
			if err := <-sent; err != nil {
				t.Error(err)
			}
			q.poolOf(all[len(all)-1]).Put(all[len(all)-1])
		}
		all, err := q.n.offerPool.Get(p.ctx, 8<<20)
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() { sent <- a.Send(p.ctx, 3, pattern(1<<20, 3)) }()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-sent; !errors.Is(err, ErrPeerClosed) {
			t.Errorf("got %v, want ErrPeerClosed", err)
		}
		q.n.offerPool.Put(all)
	})
}

// poolOf tells which of the sending pools a slab is from.
func (q *shell) poolOf(s slab.Slab) *slab.Pool {
	if s.Region().Access()&rdma.AccessRemoteRead != 0 {
		return q.n.offerPool
	}
	return q.n.sendPool
}
