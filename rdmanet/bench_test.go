package rdmanet

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Each benchmark runs beside plain TCP: go test -bench . ./rdmanet

func overPairs(b *testing.B, f func(b *testing.B, near, far net.Conn)) {
	b.Run("plain", func(b *testing.B) {
		l := must[net.Listener](b)(net.Listen("tcp", "127.0.0.1:0"))
		near := must[net.Conn](b)(net.Dial("tcp", l.Addr().String()))
		far := must[net.Conn](b)(l.Accept())
		l.Close()
		f(b, near, far)
		near.Close()
		far.Close()
	})
	for _, name := range transports() {
		b.Run(name, func(b *testing.B) {
			r := runtimeRig(b, name, Config{})
			near, far := r.mustPair(b)
			f(b, near, far)
			near.Close()
			far.Close()
		})
	}
}

// An exchange of 1 KiB each way; halve it for the time one way.
func BenchmarkPingPong1KiB(b *testing.B) {
	overPairs(b, func(b *testing.B, near, far net.Conn) {
		b.ReportAllocs()
		var wg sync.WaitGroup
		wg.Go(func() {
			buf := make([]byte, 1024)
			for {
				if _, err := io.ReadFull(far, buf); err != nil {
					return
				}
				if _, err := far.Write(buf); err != nil {
					return
				}
			}
		})
		buf := make([]byte, 1024)
		for b.Loop() {
			if _, err := near.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(near, buf); err != nil {
				b.Fatal(err)
			}
		}
		near.Close()
		wg.Wait()
	})
}

func benchmarkStream(b *testing.B, size int) {
	overPairs(b, func(b *testing.B, near, far net.Conn) {
		b.SetBytes(int64(size))
		b.ReportAllocs()
		var wg sync.WaitGroup
		got := 0
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for {
				n, err := far.Read(buf)
				got += n
				if err != nil {
					return
				}
			}
		})
		buf := make([]byte, size)
		n := 0
		for b.Loop() {
			if _, err := near.Write(buf); err != nil {
				b.Fatal(err)
			}
			n++
		}
		near.Close()
		wg.Wait()
		if got != n*size {
			b.Errorf("%d bytes arrived of %d", got, n*size)
		}
	})
}

func BenchmarkStream64KiB(b *testing.B) { benchmarkStream(b, 64<<10) }
func BenchmarkStream1MiB(b *testing.B)  { benchmarkStream(b, 1<<20) }

// A connection for a question and an answer, closed again: what a parked
// endpoint saves.
func BenchmarkDial(b *testing.B) {
	serve := func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}
	run := func(b *testing.B, dial func() (net.Conn, error)) {
		buf := make([]byte, 64)
		for b.Loop() {
			c, err := dial()
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	}
	b.Run("plain", func(b *testing.B) {
		l := must[net.Listener](b)(net.Listen("tcp", "127.0.0.1:0"))
		go serve(l)
		run(b, func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) })
		l.Close()
	})
	for _, name := range transports() {
		b.Run(name, func(b *testing.B) {
			r := runtimeRig(b, name, Config{})
			go serve(r.listener)
			run(b, func() (net.Conn, error) { return r.dialer.Dial("tcp", r.address) })
		})
	}
}
