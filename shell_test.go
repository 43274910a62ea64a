package verbena

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// Long messages that arrive at the same time, and together are far longer than the
// memory for them, do not wait for each other.
func TestLongMessagesDoNotWaitForEachOther(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp"} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{ReceiveMemory: 16 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
			const ends, each = 12, 4
			var wg sync.WaitGroup
			for i := range ends {
				a, b := p.connect(t, "")
				want := pattern(a.MaxMessage(), i)
				wg.Go(func() {
					for range each {
						if err := a.Send(p.ctx, 1, want); err != nil {
							t.Error(err)
							return
						}
					}
				})
				wg.Go(func() {
					for range each {
						m, err := b.Receive(p.ctx)
						if err != nil {
							t.Error(err)
							return
						}
						if !bytes.Equal(m.Bytes(), want) {
							t.Error("wrong bytes")
						}
						m.Release()
					}
				})
			}
			wg.Wait()
			if err := errors.Join(p.client.Close(), p.server.Close()); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
		})
	}
}

// A message that arrives while Receive waits is handed to it past the inbox. Whether
// Close or the end of its context comes first or the message, none is lost, changed or
// kept for ever.
func TestReceiveIsHandedItsMessage(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{Linger: 10 * time.Second}, ListenConfig{})
		rounds := 100
		if testing.Short() {
			rounds = 20
		}
		for round := range rounds {
			a, b := p.connect(t, "")
			ctx, cancel := context.WithCancel(p.ctx)
			var wg sync.WaitGroup
			wg.Go(func() {
				for next := uint32(0); ; next++ {
					m, err := b.Receive(ctx)
					if err != nil {
						if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
							t.Errorf("round %d: %v", round, err)
						}
						return
					}
					if m.Tag != next || len(m.Bytes()) != int(next) {
						t.Errorf("round %d: message %d of %d bytes, want %d", round, m.Tag, len(m.Bytes()), next)
					}
					m.Release()
				}
			})
			for i := range round % 10 {
				if err := a.Send(p.ctx, uint32(i), make([]byte, i)); err != nil {
					t.Error(err)
				}
			}
			if round%3 == 0 {
				cancel() // the endpoint stays usable
				wg.Wait()
			}
			if err := b.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
			wg.Wait()
			cancel()
			_ = a.Close()
		}
		// A message that nobody has would keep its domain.
		if w.transport != TransportTCP {
			n := p.server.firstDomain(w.transport)
			n.mu.Lock()
			if n.held != 0 {
				t.Errorf("%d messages are still held", n.held)
			}
			n.mu.Unlock()
		}
		if err := errors.Join(p.client.Close(), p.server.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A message that was handed over just before Close is received, or given back.
func TestCloseFindsHandedMessage(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp"} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{Linger: 10 * time.Millisecond}, ListenConfig{})
			a, b := p.connect(t, "")
			s := b.carrier.(*shell)
			s.mu.Lock()
			s.in.handing = true // as Receive does before it waits
			s.mu.Unlock()
			if err := a.Send(p.ctx, 7, []byte("bytes")); err != nil {
				t.Fatal(err)
			}
			for !s.in.handed.Load() {
				s.w.poll()
				runtime.Gosched()
			}
			_ = b.Close()
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatalf("the message is lost: %v", err)
			}
			if m.Tag != 7 || string(m.Bytes()) != "bytes" {
				t.Errorf("tag %d, %q", m.Tag, m.Bytes())
			}
			m.Release()
			if _, err := b.Receive(p.ctx); !errors.Is(err, ErrClosed) {
				t.Errorf("Receive after that: %v", err)
			}
		})
	}
}

// A group that is closed while endpoints of it are being set up waits for them to
// end, however far they have come.
func TestGroupClosesDuringDials(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp"} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{Linger: 10 * time.Millisecond}, ListenConfig{})
			for i := range 20 {
				g, err := p.client.NewGroup(GroupConfig{Name: "brief"})
				if err != nil {
					t.Fatal(err)
				}
				var dials sync.WaitGroup
				started := make(chan struct{}, 100)
				for range 4 {
					dials.Go(func() {
						for {
							started <- struct{}{}
							if _, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Group: g}); err != nil {
								if !errors.Is(err, ErrClosed) {
									t.Error(err)
								}
								return
							}
							if e, err := p.listener.Accept(p.ctx); err == nil {
								defer e.Close()
							}
						}
					})
				}
				for range 4 + i {
					<-started
				}
				over := make(chan struct{})
				go func() {
					for {
						select {
						case <-started:
						case <-over:
							return
						}
					}
				}()
				closed := make(chan error, 1)
				go func() { closed <- g.Close() }()
				if err := g.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
					t.Error(err)
				}
				for d, n := range g.domains {
					if _, err := n.domain.Allocate(4096, 0); !errors.Is(err, rdma.ErrClosed) {
						t.Errorf("%s is open after Close: %v", d.transport, err)
					}
				}
				if err := <-closed; err != nil && !errors.Is(err, ErrNotDelivered) {
					t.Error(err)
				}
				dials.Wait()
				close(over)
			}
		})
	}
}

// An endpoint whose application does not receive reads no more than readAhead of what
// waits, and the message with which it gets there; and all of it when the application
// receives.
func TestReadAheadIsBounded(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("nothing is read ahead from a socket's peer")
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const size, count = 1 << 20, 12
		sent := make(chan error, 1)
		go func() {
			for i := range count {
				if err := a.Send(p.ctx, uint32(i), pattern(size, i)); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		s := b.carrier.(*shell)
		ahead := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.long.ahead
		}
		for ahead() < readAhead {
			if p.ctx.Err() != nil {
				t.Fatalf("%d bytes are read ahead", ahead())
			}
			runtime.Gosched()
		}
		for i := range count {
			if n := ahead(); n >= readAhead+2*size {
				t.Errorf("%d bytes are read ahead", n)
			}
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), pattern(size, i)) {
				t.Errorf("message %d has tag %d or other bytes", i, m.Tag)
			}
			m.Release()
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if n := ahead(); n != 0 {
			t.Errorf("%d bytes are ahead when all have been received", n)
		}
	})
}

// A long message leaves without waiting for a goroutine, as long as nothing holds it up:
// no other message that is half sent, and not too many parts that the peer still reads.
func TestLongPairLeavesAtOnce(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp", "shm", "iwarp"} {
		t.Run(name, func(t *testing.T) {
			p := worldOf(t, name).pair(t, Config{}, ListenConfig{})
			a, b := p.connect(t, "")
			s := a.carrier.(*shell)
			header := call.Header{Kind: call.Reply, ID: call.ID{Slot: 3}}
			receive := func() *Message {
				t.Helper()
				m, err := b.Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			// The first long message gets the receives for its answer, or waits for what
			// the last one had.
			prime := func() {
				sent := make(chan error, 1)
				go func() { sent <- a.Send(p.ctx, 1, make([]byte, 100<<10)) }()
				receive().Release()
				if err := <-sent; err != nil {
					t.Fatal(err)
				}
			}
			for i, size := range []int{s.m.MaxEager(), 100 << 10, s.t.Chunk - call.HeaderSize, s.t.Chunk, min(s.t.Chunks, copyPieces)*s.t.Chunk - call.HeaderSize} {
				body := pattern(size, i)
				for !s.sendPair(7, header, body) {
					prime()
				}
				m := receive()
				if m.Tag != 7 || !bytes.Equal(m.Bytes(), append(header.Append(nil), body...)) {
					t.Errorf("%d bytes came as %d bytes with tag %d", size, len(m.Bytes()), m.Tag)
				}
				m.Release()
			}
			if s.sendPair(7, header, make([]byte, s.t.Chunks*s.t.Chunk)) {
				t.Error("more parts were sent than may be offered")
			}
			if s.sendPair(7, header, make([]byte, a.MaxMessage())) {
				t.Error("more than the peer takes was sent")
			}
			a.sendLock <- struct{}{}
			if s.sendPair(7, header, make([]byte, 100<<10)) {
				t.Error("sent between the parts of another message")
			}
			<-a.sendLock
		})
	}
}

// A long message whose memory runs out in the middle is sent all the same, and nobody
// waits for it. Its bytes are those at the time of the call.
func TestLongPairIsFinishedLater(t *testing.T) {
	for _, name := range []string{"fakeband", "shm", "iwarp"} {
		t.Run(name, func(t *testing.T) {
			p := worldOf(t, name).pair(t, Config{SendMemory: 8 << 20}, ListenConfig{})
			a, b := p.connect(t, "")
			s := a.carrier.(*shell)
			piece := s.t.Chunk
			if s.atOnce {
				piece = 48 << 10
			}
			header := call.Header{Kind: call.Reply, ID: call.ID{Slot: 3}}
			body := pattern(copyPieces*piece-call.HeaderSize, 1)
			want := append(header.Append(nil), body...)
			exchange := func() {
				t.Helper()
				m, err := b.Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Release()
				if !bytes.Equal(m.Bytes(), want) {
					t.Errorf("%d bytes came as %d others", len(want), len(m.Bytes()))
				}
			}
			sent := make(chan error, 1)
			go func() { sent <- a.Send(p.ctx, 1, want) }() // it gets the receives for its answers
			exchange()
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			var held []slab.Slab
			for {
				m, ok, err := s.queue.private.TryQuick(piece)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				held = append(held, m)
			}
			for range 2 { // of 4
				s.n.offerPool.Put(held[len(held)-1])
				held = held[:len(held)-1]
			}
			body = bytes.Clone(body)
			for !s.sendPair(7, header, body) {
				if p.ctx.Err() != nil {
					t.Fatal("it is never sent")
				}
				time.Sleep(time.Millisecond) // the peer still confirms
			}
			clear(body)
			exchange()
			for _, m := range held {
				s.n.offerPool.Put(m)
			}
			a.sendLock <- struct{}{} // the rest lets it go
			<-a.sendLock
		})
	}
}
