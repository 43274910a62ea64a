package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The numbers of the wire, for ever.
func TestTags(t *testing.T) {
	for tag, want := range map[uint32]string{
		0x10000001: "OPEN 1",
		0x20000001: "DATA 1",
		0x2fffffff: "DATA 268435455",
		0x30000002: "FIN 2",
		0x4000abcd: "STOP 43981",
		0x50000003: "CLOSE 3",
		0x60000000: "RETIRE 0",
	} {
		size := 0
		if tag>>28 == 2 {
			size = 1
		}
		k, stream, err := parse(tag, size)
		if got := fmt.Sprintf("%v %d", k, stream); err != nil || got != want {
			t.Errorf("tag %#x is %s, %v; want %s", tag, got, err, want)
		}
		if back := tagOf(k, stream); back != tag {
			t.Errorf("%s becomes %#x, want %#x", want, back, tag)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, tag := range []uint32{0, 1, 0x10000000, 0x10000001, 0x20000001, 0x50000001, 0x60000000, 0x70000001, 0xffffffff} {
		f.Add(tag, uint32(0))
		f.Add(tag, uint32(1))
		f.Add(tag, uint32(1<<30))
	}
	f.Fuzz(func(t *testing.T, tag uint32, length uint32) {
		size := int(length >> 1)
		k, stream, err := parse(tag, size)
		if err != nil {
			if !errors.Is(err, errProtocol) {
				t.Errorf("%v", err)
			}
			return
		}
		if tagOf(k, stream) != tag || k < kindOpen || k > kindRetire || stream > maxStream {
			t.Errorf("tag %#x became %v of %d", tag, k, stream)
		}
		if (k == kindData) != (size > 0) {
			t.Errorf("%v of %d bytes passed", k, size)
		}
	})
}

type peerSays struct {
	k      kind
	stream uint32
	size   int
}

// A listener's session refuses what the protocol does not allow, and so does a
// dialer's.
func TestViolations(t *testing.T) {
	open := peerSays{kindOpen, 1, 0}
	for name, test := range map[string]struct {
		dialed bool
		steps  []peerSays
	}{
		"unknown kind":            {false, []peerSays{open, {9, 1, 0}}},
		"kind 0":                  {false, []peerSays{open, {0, 1, 0}}},
		"data first":              {false, []peerSays{{kindData, 1, 5}}},
		"close first":             {false, []peerSays{{kindClose, 1, 0}}},
		"open of connection 2":    {false, []peerSays{{kindOpen, 2, 0}}},
		"open of connection 0":    {false, []peerSays{{kindOpen, 0, 0}}},
		"open twice":              {false, []peerSays{open, open}},
		"open before the close":   {false, []peerSays{open, {kindOpen, 2, 0}}},
		"open with bytes":         {false, []peerSays{{kindOpen, 1, 7}}},
		"data of another":         {false, []peerSays{open, {kindData, 2, 5}}},
		"empty data":              {false, []peerSays{open, {kindData, 1, 0}}},
		"data after fin":          {false, []peerSays{open, {kindFin, 1, 0}, {kindData, 1, 5}}},
		"data after close":        {false, []peerSays{open, {kindClose, 1, 0}, {kindData, 1, 5}}},
		"fin twice":               {false, []peerSays{open, {kindFin, 1, 0}, {kindFin, 1, 0}}},
		"fin after close":         {false, []peerSays{open, {kindClose, 1, 0}, {kindFin, 1, 0}}},
		"close twice":             {false, []peerSays{open, {kindClose, 1, 0}, {kindClose, 1, 0}}},
		"retire from the dialer":  {false, []peerSays{open, {kindRetire, 1, 0}}},
		"open from the listener":  {true, []peerSays{{kindOpen, 2, 0}}},
		"late data, listener's":   {true, []peerSays{{kindData, 2, 9}}},
		"close for another":       {true, []peerSays{{kindClose, 7, 0}}},
		"fin carries bytes":       {true, []peerSays{{kindFin, 1, 1}}},
		"stop of the wrong one":   {true, []peerSays{{kindStop, 3, 0}}},
		"retire carries a number": {true, []peerSays{{kindRetire, 1, 4}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newMemoryNetwork(t)
				var c net.Conn
				var raw *memoryEndpoint
				var finish func()
				if test.dialed {
					d := &Dialer{connect: n.dial}
					peer := make(chan *memoryEndpoint, 1)
					go func() { peer <- <-n.endpoints }()
					c = must[net.Conn](t)(d.Dial("tcp", "peer:1"))
					raw = <-peer
					finish = func() { d.Close() }
				} else {
					l := newListener(n, Config{})
					raw = must[endpoint](t)(n.dial(t.Context(), "")).(*memoryEndpoint)
					finish = func() { l.Close() }
					go func() { c, _ = l.Accept() }()
				}
				for _, s := range test.steps {
					raw.Send(t.Context(), tagOf(s.k, s.stream), make([]byte, s.size))
				}
				synctest.Wait()
				if c != nil {
					// The reader gets what was in order, then the reason.
					var err error
					for err == nil {
						_, err = c.Read(make([]byte, 10))
					}
					// After the end of the stream only a writer is told.
					c.Write([]byte("x"))
					time.Sleep(3 * watchAfter)
					_, err = c.Write([]byte("x"))
					if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
						t.Errorf("Write after the violation: %v", err)
					}
					c.Close()
				}
				synctest.Wait()
				select {
				case <-raw.Done():
				default:
					t.Error("the endpoint is still open")
				}
				finish()
				drain(raw)
			})
		})
	}
}

// drain plays a peer to the end.
func drain(raw *memoryEndpoint) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		_, m, err := raw.receive(ctx)
		if err != nil {
			break
		}
		m.Release()
	}
	raw.Close()
}

// FuzzSession plays a peer that sends anything to a listener whose connections
// are used in any way. Nothing may hang, be held back or be left over; the
// memory endpoint checks its own rules.
func FuzzSession(f *testing.F) {
	f.Add([]byte{0x10, 1, 0x20, 1, 0x50, 1, 0x10, 2})
	f.Add([]byte{0x10, 1, 0xf0, 0, 0x20, 1, 0xf1, 0, 0x30, 1, 0xf2, 0, 0xf5, 0})
	f.Add([]byte{0x10, 1, 0xf0, 0, 0xf5, 0, 0x50, 1, 0x10, 2, 0xf0, 0, 0x20, 2, 0xf1, 0})
	f.Add([]byte{0x10, 1, 0xf0, 0, 0xf3, 0, 0x20, 1, 0xf4, 0, 0x40, 1, 0xf2, 0, 0xf6, 0})
	f.Add([]byte{0x10, 1, 0x20, 1, 0x20, 1, 0x20, 1, 0xf7, 0, 0xf0, 0, 0xf8, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 400 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			n := newMemoryNetwork(t)
			l := newListener(n, Config{IdleTimeout: time.Hour, Linger: time.Hour})
			raw := must[endpoint](t)(n.dial(t.Context(), "")).(*memoryEndpoint)
			var conns []*Conn
			var c *Conn
			b := make([]byte, 64)
			soon := func() time.Time { return time.Now().Add(20 * time.Millisecond) }
			for ; len(script) >= 2; script = script[2:] {
				op, arg := script[0], uint32(script[1])
				if op < 0xf0 {
					k := kind(op >> 4)
					size := int(op & 15)
					if k == kindData {
						size++
					}
					ctx, cancel := context.WithDeadline(t.Context(), soon())
					raw.Send(ctx, tagOf(k, arg), make([]byte, size))
					cancel()
					continue
				}
				if op == 0xf0 {
					accepted := make(chan net.Conn, 1)
					go func() {
						select {
						case a := <-l.accepted:
							a.(*Conn).accepted = true
							accepted <- a
						case <-time.After(20 * time.Millisecond):
							accepted <- nil
						}
					}()
					if a := <-accepted; a != nil {
						c = a.(*Conn)
						conns = append(conns, c)
					}
					continue
				}
				if op == 0xf7 {
					ctx, cancel := context.WithDeadline(t.Context(), soon())
					if _, m, err := raw.receive(ctx); err == nil {
						m.Release()
					}
					cancel()
					continue
				}
				if op == 0xf8 {
					time.Sleep(time.Duration(arg) * time.Millisecond)
					continue
				}
				if c == nil {
					continue
				}
				c.SetDeadline(soon())
				switch op {
				case 0xf1:
					c.Read(b)
				case 0xf2:
					c.Write(b)
				case 0xf3:
					c.CloseRead()
				case 0xf4:
					c.CloseWrite()
				case 0xf5:
					c.Close()
				case 0xf6:
					c.SetLinger(int(arg & 1))
				}
			}
			raw.kill()
			for _, c := range conns {
				c.Close()
			}
			l.Close()
			synctest.Wait()
			if got := l.count(); got != 0 {
				t.Errorf("%d sessions are left", got)
			}
			drain(raw)
		})
	})
}
