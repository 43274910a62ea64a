package rdmanet

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestHalfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		must[int](t)(a.Write([]byte("question")))
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_, err := a.Write([]byte("more"))
		wantError(t, err, syscall.EPIPE)
		if got := must[[]byte](t)(io.ReadAll(b)); string(got) != "question" {
			t.Errorf("read %q", got)
		}
		wantEOF(t, b)
		must[int](t)(b.Write([]byte("answer")))
		b.Close()
		if got := must[[]byte](t)(io.ReadAll(a)); string(got) != "answer" {
			t.Errorf("read %q", got)
		}
		a.Close()
	})
}

func TestCloseReadStopsThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		must[int](t)(b.Write([]byte("never read")))
		if err := a.CloseRead(); err != nil {
			t.Fatal(err)
		}
		wantEOF(t, a)
		_, err := io.Copy(b, endless{})
		wantError(t, err, syscall.EPIPE)
		must[int](t)(a.Write([]byte("x")))
		var x [1]byte
		must[int](t)(b.Read(x[:]))
		a.Close()
		wantEOF(t, b)
		b.Close()
		synctest.Wait()
		if r.dialer.Parked() != 1 {
			t.Error("the endpoint was not parked")
		}
	})
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	time.Sleep(time.Millisecond) // in a bubble: the writer's clock must go on
	return len(b), nil
}

// Writers that nobody reads for hear of the peer's close.
func TestWriterHearsOfClose(t *testing.T) {
	for _, backlog := range []int{0, 1, 5} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := memoryRig(t, Config{})
			r.dialer.Chunk = 4096 // so that the peer does not lose its patience first
			defer r.close()
			a, b := r.mustPair(t)
			for range backlog {
				must[int](t)(b.Write([]byte("unread")))
			}
			wrote := make(chan error, 1)
			go func() {
				_, err := a.Write(make([]byte, 100<<20))
				wrote <- err
			}()
			synctest.Wait() // it waits for credits
			b.Close()
			wantError(t, <-wrote, syscall.EPIPE)
			got := must[[]byte](t)(io.ReadAll(a))
			if want := strings.Repeat("unread", backlog); string(got) != want {
				t.Errorf("read %q, want %q", got, want)
			}
			a.Close()
			synctest.Wait()
			if r.dialer.Parked() != 1 {
				t.Error("the endpoint was not parked")
			}
		})
	}
}

// A reader that comes and goes leaves the writer under watch.
func TestWriterHearsOfCloseAfterReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		r.dialer.Chunk = 4096 // so that the peer does not lose its patience first
		defer r.close()
		a, b := r.mustPair(t)
		wrote := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 100<<20))
			wrote <- err
		}()
		for range 3 {
			time.Sleep(3 * time.Millisecond)
			must[int](t)(b.Write([]byte("x")))
			var x [1]byte
			must[int](t)(a.Read(x[:]))
		}
		time.Sleep(time.Minute)
		b.Close()
		wantError(t, <-wrote, syscall.EPIPE)
		a.Close()
	})
}

func TestPeerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		must[int](t)(b.Write([]byte("last words")))
		read := make(chan error, 1)
		n.latest().kill()
		synctest.Wait()
		// What had arrived is still there.
		var got [10]byte
		if _, err := io.ReadFull(a, got[:]); err != nil || string(got[:]) != "last words" {
			t.Errorf("read %q, %v", got, err)
		}
		go func() {
			_, err := a.Read(got[:])
			read <- err
		}()
		wantError(t, <-read, syscall.ECONNRESET)
		_, err := a.Write(got[:])
		wantError(t, err, syscall.ECONNRESET)
		_, err = b.Read(got[:])
		wantError(t, err, syscall.ECONNRESET)
		a.Close()
		b.Close()
	})
}

// A write that times out tells exactly what the peer will read.
func TestWriteDeadlineCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{Chunk: 1000})
		r.dialer.Chunk = 1000
		defer r.close()
		a, b := r.mustPair(t)
		data := make([]byte, 50_000)
		for i := range data {
			data[i] = byte(i * 7)
		}
		var sent int
		received := make(chan []byte, 1)
		go func() {
			var all []byte
			buf := make([]byte, 700)
			for {
				time.Sleep(time.Millisecond)
				n, err := b.Read(buf)
				all = append(all, buf[:n]...)
				if err != nil {
					received <- all
					return
				}
			}
		}()
		for sent < len(data) {
			a.SetWriteDeadline(time.Now().Add(3 * time.Millisecond))
			n, err := a.Write(data[sent:])
			sent += n
			if err != nil {
				wantError(t, err, os.ErrDeadlineExceeded)
				var timeout net.Error
				if !errors.As(err, &timeout) || !timeout.Timeout() {
					t.Fatalf("%v is no timeout", err)
				}
			}
		}
		a.Close()
		if got := <-received; !bytes.Equal(got, data) {
			t.Errorf("%d bytes arrived, or others than the %d sent", len(got), len(data))
		}
		b.Close()
	})
}

func TestDeadlineMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		start := time.Now()
		read := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			read <- err
		}()
		a.SetReadDeadline(start.Add(time.Second))
		synctest.Wait()
		a.SetReadDeadline(start.Add(time.Hour))
		time.Sleep(10 * time.Second)
		a.SetReadDeadline(start.Add(20 * time.Second))
		wantError(t, <-read, os.ErrDeadlineExceeded)
		if d := time.Since(start); d != 20*time.Second {
			t.Errorf("the read waited for %v", d)
		}
		// An expired deadline that is taken away leaves the connection whole.
		a.SetDeadline(time.Time{})
		time.Sleep(time.Hour)
		exchange(t, a, b)
		a.Close()
		b.Close()
		if err := a.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("SetDeadline after Close: %v", err)
		}
	})
}

func TestCloseWakesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		errs := make(chan error, 4)
		for range 2 {
			go func() {
				_, err := a.Read(make([]byte, 1))
				errs <- err
			}()
			go func() {
				_, err := a.Write(make([]byte, 100<<20))
				errs <- err
			}()
		}
		synctest.Wait()
		a.Close()
		for range 4 {
			err := <-errs
			wantError(t, err, net.ErrClosed)
			wantError(t, err, io.ErrClosedPipe)
		}
		wantError(t, a.Close(), net.ErrClosed)
		wantError(t, a.CloseWrite(), net.ErrClosed)
		b.Close()
	})
}

// What a peer sends to a closed connection is bounded.
func TestDiscardIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNetwork(t)
		l := newListener(n, Config{})
		defer l.Close()
		raw := must[endpoint](t)(n.dial(t.Context(), "")).(*memoryEndpoint)
		if err := raw.Send(t.Context(), tagOf(kindOpen, 1), nil); err != nil {
			t.Fatal(err)
		}
		must[net.Conn](t)(l.Accept()).Close()
		data := make([]byte, 1<<20)
		sent := 0
		for raw.Send(t.Context(), tagOf(kindData, 1), data) == nil {
			if sent += len(data); sent > 2*maxDiscard {
				t.Fatal("the listener swallows everything")
			}
		}
		raw.Close()
	})
}

func TestReadFromAndWriteTo(t *testing.T) {
	r, _ := memoryRig(t, Config{})
	defer r.close()
	a, b := r.mustPair(t)
	rng := rand.NewChaCha8([32]byte{1})
	var sum [32]byte
	var wg sync.WaitGroup
	wg.Go(func() {
		h := sha256.New()
		source := io.TeeReader(io.LimitReader(rng, 20<<20), h)
		if n, err := io.Copy(a, source); n != 20<<20 || err != nil {
			t.Errorf("copied %d, %v", n, err)
		}
		a.CloseWrite()
		h.Sum(sum[:0])
	})
	h := sha256.New()
	if n, err := io.Copy(h, b); n != 20<<20 || err != nil {
		t.Errorf("copied %d, %v", n, err)
	}
	wg.Wait()
	if [32]byte(h.Sum(nil)) != sum {
		t.Error("other bytes arrived")
	}
	a.Close()
	b.Close()
}

// Connections one after the other and side by side, some of them closed in the
// middle, some with endpoints that die: what arrives is what was sent on that
// very connection.
func TestChurn(t *testing.T) {
	r, n := memoryRig(t, Config{})
	defer r.close()
	r.dialer.Linger = 100 * time.Millisecond
	var servers sync.WaitGroup
	servers.Go(func() {
		for {
			c, err := r.listener.Accept()
			if err != nil {
				return
			}
			servers.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(client)))
			for range 60 {
				c, err := r.dialer.Dial("tcp", "peer:1")
				if err != nil {
					continue // an endpoint that died while it was opened
				}
				c.SetDeadline(time.Now().Add(time.Minute))
				want := make([]byte, 1+rng.IntN(50_000))
				fill := byte(rng.IntN(256))
				for i := range want {
					want[i] = fill
				}
				var writer sync.WaitGroup
				writer.Go(func() {
					c.Write(want)
					c.(*Conn).CloseWrite()
				})
				switch rng.IntN(20) {
				case 0:
					n.latest().kill()
				case 1:
					c.(*Conn).SetLinger(0)
					c.Close()
				case 2:
					c.Close()
				}
				got, err := io.ReadAll(c)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("stuck after %d of %d bytes", len(got), len(want))
				}
				if err == nil && len(got) != len(want) && len(got) > 0 {
					// The end was in order; all must be there, unless the server
					// was the one that could not write.
					t.Errorf("%d bytes of %d and then the end", len(got), len(want))
				}
				for _, x := range got {
					if x != fill {
						t.Errorf("a byte of another connection: %#x, want %#x", x, fill)
						break
					}
				}
				writer.Wait()
				c.Close()
			}
		})
	}
	clients.Wait()
	r.dialer.Close()
	r.listener.Close()
	servers.Wait()
}

// A connection that is forgotten is closed, and not while a call is waiting.
func TestForgottenConnectionIsClosed(t *testing.T) {
	r, _ := memoryRig(t, Config{})
	defer r.close()
	a, b, err := r.pair()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	inner := a.(*Conn).conn
	go func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}(a)
	for range 5 {
		runtime.GC()
		runtime.Gosched()
	}
	if inner.closed.Load() {
		t.Error("the connection was closed under a call")
	}
	if _, err := b.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if err := <-read; err != nil {
		t.Errorf("the connection was closed in the middle of a call: %v", err)
	}
	// Nobody has it any more.
	end := make(chan error, 1)
	go func() {
		_, err := b.Read(make([]byte, 1))
		end <- err
	}()
	for {
		runtime.GC()
		select {
		case err := <-end:
			if err != io.EOF {
				t.Error(err)
			}
			b.Close()
			return
		case <-time.After(time.Millisecond):
		}
	}
}
