package rdmanet

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena"
)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// exchange sends a few bytes each way.
func exchange(t testing.TB, a, b net.Conn) {
	t.Helper()
	for _, d := range []struct{ from, to net.Conn }{{a, b}, {b, a}} {
		if _, err := d.from.Write([]byte("verbena")); err != nil {
			t.Fatal(err)
		}
		var got [7]byte
		if _, err := io.ReadFull(d.to, got[:]); err != nil || string(got[:]) != "verbena" {
			t.Fatalf("read %q, %v", got, err)
		}
	}
}

func (r *rig) mustPair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	a, b, err := r.pair()
	if err != nil {
		t.Fatal(err)
	}
	return a.(*Conn), b.(*Conn)
}

func wantEOF(t testing.TB, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 10)); n != 0 || err != io.EOF {
		t.Fatalf("Read: %d, %v; want the end", n, err)
	}
}

func wantError(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
	var op *net.OpError
	if !errors.As(err, &op) {
		t.Fatalf("%v is no *net.OpError", err)
	}
}

func TestParking(t *testing.T) {
	for _, first := range []string{"dialer", "listener", "half"} {
		t.Run(first+" closes first", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, n := memoryRig(t, Config{})
				defer r.close()
				for i := range 10 {
					a, b := r.mustPair(t)
					if a.stream != uint32(i+1) {
						t.Errorf("connection %d has number %d", i+1, a.stream)
					}
					exchange(t, a, b)
					switch first {
					case "dialer":
						a.Close()
						wantEOF(t, b)
						b.Close()
					case "listener":
						b.Close()
						wantEOF(t, a)
						a.Close()
					case "half":
						a.CloseWrite()
						wantEOF(t, b)
						b.CloseWrite()
						wantEOF(t, a)
						b.Close()
						a.Close()
					}
				}
				if got := n.setUps.Load(); got != 1 {
					t.Errorf("10 connections, one after the other, took %d endpoints", got)
				}
			})
		})
	}
}

func TestUnreadDataIsNotTheNextConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		for range 3 {
			must[int](t)(a.Write([]byte("late")))
			must[int](t)(b.Write([]byte("late")))
		}
		var one [1]byte
		must[int](t)(a.Read(one[:]))
		must[int](t)(b.Read(one[:]))
		a.Close()
		b.Close()
		a, b = r.mustPair(t)
		exchange(t, a, b)
		a.Close()
		b.Close()
		if got := n.setUps.Load(); got != 1 {
			t.Errorf("%d endpoints", got)
		}
	})
}

func TestDeadEndpointIsRedialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		a.Close()
		b.Close()
		synctest.Wait()
		n.latest().kill()
		// With and without the session having noticed.
		a, b = r.mustPair(t)
		exchange(t, a, b)
		a.Close()
		b.Close()
		synctest.Wait()
		n.latest().kill()
		synctest.Wait()
		if got := r.dialer.Parked(); got != 0 {
			t.Errorf("%d dead endpoints are parked", got)
		}
		a, b = r.mustPair(t)
		exchange(t, a, b)
		a.Close()
		b.Close()
		if got := n.setUps.Load(); got != 3 {
			t.Errorf("%d endpoints, want 3", got)
		}
	})
}

func TestListenerRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer func() { r.close() }()
		a, b := r.mustPair(t)
		a.Close()
		b.Close()
		r.listener.Close()
		synctest.Wait()
		if got := r.dialer.Parked(); got != 0 {
			t.Errorf("%d endpoints to a closed listener are parked", got)
		}
		if _, err := r.dialer.Dial("tcp", r.address); err == nil {
			t.Error("a dial to a closed listener succeeded")
		}
		n.closed = make(chan struct{})
		n.once = sync.Once{}
		r.listener = newListener(n, Config{})
		a, b = r.mustPair(t)
		exchange(t, a, b)
		a.Close()
		b.Close()
	})
}

func TestParkedExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		defer r.close()
		r.dialer.ParkedLife = -1
		a, b := r.mustPair(t)
		time.Sleep(time.Hour) // an open connection does not expire
		exchange(t, a, b)
		a.Close()
		b.Close()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if got := r.dialer.Parked(); got != 1 {
			t.Fatalf("%d parked, want 1", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if sessions, parked := r.dialer.pool.counts(); sessions != 0 || parked != 0 {
			t.Errorf("%d sessions, %d parked after the timeout", sessions, parked)
		}
		if got := r.listener.count(); got != 0 {
			t.Errorf("the listener has %d sessions", got)
		}
	})
}

func (l *Listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions)
}

// The listener asks the dialer to close an endpoint that has been idle.
func TestListenerRetires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{IdleTimeout: 10 * time.Second})
		defer r.close()
		a, b := r.mustPair(t)
		a.Close()
		b.Close()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if got := r.dialer.Parked() + r.listener.count(); got != 0 {
			t.Errorf("%d sessions are left", got)
		}
		if err := n.latest().Err(); err == nil || !n.latest().gone.Load() {
			t.Errorf("the dialer did not close the endpoint: %v", err)
		}
	})
}

// A connection whose OPEN crosses the RETIRE is served, and the last one.
func TestRetireCrossesOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNetwork(t)
		l := newListener(n, Config{IdleTimeout: 10 * time.Second})
		defer l.Close()
		raw := must[endpoint](t)(n.dial(t.Context(), "")).(*memoryEndpoint)
		time.Sleep(11 * time.Second)
		synctest.Wait() // RETIRE is on its way
		if err := raw.Send(t.Context(), tagOf(kindOpen, 1), nil); err != nil {
			t.Fatal(err)
		}
		c := must[net.Conn](t)(l.Accept())
		tag, m, err := raw.receive(t.Context())
		if err != nil || tag != tagOf(kindRetire, 0) {
			t.Fatalf("got tag %#x, %v", tag, err)
		}
		m.Release()
		time.Sleep(time.Hour)
		if err := raw.Send(t.Context(), tagOf(kindData, 1), []byte("x")); err != nil {
			t.Fatal(err)
		}
		var b [1]byte
		must[int](t)(c.Read(b[:]))
		if err := raw.Send(t.Context(), tagOf(kindClose, 1), nil); err != nil {
			t.Fatal(err)
		}
		wantEOF(t, c)
		c.Close()
		<-raw.Done()
		raw.Close()
		_, m, err = raw.receive(t.Context())
		if err == nil {
			m.Release()
		}
	})
}

func TestParkedBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		r.dialer.MaxParkedPerPeer, r.dialer.MaxParked = 2, 3
		defer r.close()
		burst := func(address string, count int) {
			r.address = address
			var open []*Conn
			for range count {
				a, b := r.mustPair(t)
				open = append(open, b, a)
			}
			for _, c := range open {
				c.Close()
			}
			synctest.Wait()
		}
		burst("one:1", 5)
		if got := r.dialer.Parked(); got != 2 {
			t.Errorf("%d parked, want 2 for one peer", got)
		}
		burst("two:1", 5)
		if got := r.dialer.Parked(); got != 3 {
			t.Errorf("%d parked, want 3 in all", got)
		}
		// The longest parked one had to go, so the second peer has two.
		before := n.setUps.Load()
		burst("two:1", 2)
		if got := n.setUps.Load() - before; got != 0 {
			t.Errorf("%d endpoints were set up beside the parked ones", got)
		}
		if got := r.listener.count(); got != 3 {
			t.Errorf("the listener has %d sessions, want 3", got)
		}
	})
}

func TestNoParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		r.dialer.MaxParked = -1
		defer r.close()
		for range 3 {
			a, b := r.mustPair(t)
			exchange(t, a, b)
			a.Close()
			b.Close()
		}
		synctest.Wait()
		if n.setUps.Load() != 3 || r.listener.count() != 0 {
			t.Errorf("%d endpoints, %d left", n.setUps.Load(), r.listener.count())
		}
	})
}

func TestAbortiveCloseDoesNotPark(t *testing.T) {
	for _, side := range []string{"dialer", "listener"} {
		t.Run(side, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := memoryRig(t, Config{})
				defer r.close()
				a, b := r.mustPair(t)
				exchange(t, a, b)
				if side == "listener" {
					a, b = b, a
				}
				a.SetLinger(0)
				a.Close()
				_, err := b.Read(make([]byte, 1))
				wantError(t, err, syscall.ECONNRESET)
				_, err = b.Write(make([]byte, 1))
				wantError(t, err, syscall.ECONNRESET)
				b.Close()
				synctest.Wait()
				if got := r.dialer.Parked() + r.listener.count(); got != 0 {
					t.Errorf("%d sessions are left", got)
				}
			})
		})
	}
}

// A peer that never closes gets the linger time.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		r.dialer.Linger = 20 * time.Second
		defer r.close()
		a, b := r.mustPair(t)
		start := time.Now()
		if err := a.Close(); err != nil {
			t.Error(err) // nothing was written
		}
		if d := time.Since(start); d > promptly {
			t.Errorf("Close took %v", d)
		}
		time.Sleep(19 * time.Second)
		wantEOF(t, b) // in order
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if sessions, _ := r.dialer.pool.counts(); sessions != 0 {
			t.Errorf("%d sessions linger on", sessions)
		}
		_, err := b.Write([]byte("x"))
		wantError(t, err, syscall.EPIPE)
		b.Close()
	})
}

// A dial does not wait for a peer that takes its time to close.
func TestDialDoesNotWaitForDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		a.Close()
		start := time.Now()
		a2, b2 := r.mustPair(t)
		if d := time.Since(start); d > headStart {
			t.Errorf("the dial waited for %v", d)
		}
		exchange(t, a2, b2)
		b.Close()
		a2.Close()
		b2.Close()
		synctest.Wait()
		if n.setUps.Load() != 2 || r.dialer.Parked() != 2 {
			t.Errorf("%d endpoints, %d parked", n.setUps.Load(), r.dialer.Parked())
		}
	})
}

// A Close with the peer's window exhausted is prompt, and all arrives.
func TestCloseWithFullWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		a.SetWriteDeadline(time.Now().Add(time.Second))
		var sent int
		for {
			k, err := a.Write(make([]byte, 100))
			sent += k
			if err != nil {
				break
			}
		}
		start := time.Now()
		if err := a.Close(); !errors.Is(err, verbena.ErrNotDelivered) {
			t.Errorf("nobody reads, and Close returned %v", err)
		}
		if d := time.Since(start); d > promptly+closePatience {
			t.Errorf("Close took %v", d)
		}
		if got := len(must[[]byte](t)(io.ReadAll(b))); got != sent {
			t.Errorf("%d bytes arrived of %d", got, sent)
		}
		b.Close()
		synctest.Wait()
		if n.setUps.Load() != 1 || r.dialer.Parked() != 1 {
			t.Errorf("%d endpoints, %d parked", n.setUps.Load(), r.dialer.Parked())
		}
	})
}

func TestDialerCloseLeavesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		a, b := r.mustPair(t)
		r.close()
		exchange(t, a, b)
		a.Close()
		wantEOF(t, b)
		b.Close()
		synctest.Wait()
		if sessions, _ := r.dialer.pool.counts(); sessions+r.listener.count() != 0 {
			t.Error("sessions are left")
		}
		if _, err := r.dialer.Dial("tcp", r.address); err == nil {
			t.Error("a closed dialer dials")
		}
	})
}

// An endpoint that has lived long enough is not parked again, and one that is parked
// is closed when its time is over: dials spread over the servers behind an
// address.
func TestParkedLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		use := func() {
			a, b := r.mustPair(t)
			exchange(t, a, b)
			a.Close()
			b.Close()
			synctest.Wait()
		}
		for range 100 {
			use()
			time.Sleep(3 * time.Second)
		}
		if got := n.setUps.Load(); got != 10 {
			t.Errorf("%d endpoints were set up in 300 s", got)
		}
		time.Sleep(time.Minute)
		use()
		time.Sleep(29 * time.Second)
		if r.dialer.Parked() != 1 {
			t.Error("it is not parked")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if r.dialer.Parked() != 0 {
			t.Error("it is parked for longer than it may live")
		}
		// An endpoint in use ends with its connection.
		a, b := r.mustPair(t)
		time.Sleep(time.Minute)
		exchange(t, a, b)
		a.Close()
		b.Close()
		synctest.Wait()
		if r.dialer.Parked() != 0 {
			t.Error("one that is a minute old is parked")
		}
	})
}

// A dial can have an endpoint of its own.
func TestNewEndpointAtWill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		for i := range 5 {
			accepted := make(chan net.Conn)
			go func() { accepted <- must[net.Conn](t)(r.listener.Accept()) }()
			a := must[net.Conn](t)(r.dialer.DialContext(WithNewEndpoint(t.Context()), "tcp", r.address))
			b := <-accepted
			exchange(t, a, b)
			a.Close()
			b.Close()
			synctest.Wait()
			if got := int(n.setUps.Load()); got != i+1 {
				t.Errorf("%d dials, %d endpoints", i+1, got)
			}
		}
	})
}

// An endpoint that fell back for a passing reason is not kept for long.
func TestFallbackIsParkedForAMoment(t *testing.T) {
	for _, life := range []time.Duration{-1, time.Minute} {
		p := newPool(1, 1, time.Minute, life)
		if left := p.left(&pooled{born: time.Now(), passing: true}); left > passingLife {
			t.Errorf("with a life of %v it is parked for %v", life, left)
		}
		if left := p.left(&pooled{born: time.Now(), idle: time.Millisecond}); left > time.Millisecond {
			t.Errorf("with a life of %v one of whose endpoint 1 ms is enough is parked for %v", life, left)
		}
		if left := p.left(&pooled{born: time.Now()}); left <= passingLife {
			t.Errorf("with a life of %v any other is parked for %v", life, left)
		}
	}
}
