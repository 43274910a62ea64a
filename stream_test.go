package verbena

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/internal/budget"
	"github.com/verbena-data/verbena/internal/link/wire"
)

func FuzzFrame(f *testing.F) {
	add := func(fr frame) {
		var b [frameHeader]byte
		fr.put(&b)
		f.Add(b[:])
	}
	add(frame{kind: frameOpening, length: wire.ParametersSize})
	add(frame{kind: frameData, flags: fragmentFirst | fragmentLast, tag: 1, length: 5, total: 5})
	add(frame{kind: frameGoodbye})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < frameHeader {
			return
		}
		header := (*[frameHeader]byte)(b)
		fr, err := parseFrame(header)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		var again [frameHeader]byte
		fr.put(&again)
		if again != *header {
			t.Fatalf("%x became %x", *header, again)
		}
		if fr.length > maxFragment {
			t.Fatalf("accepted %+v", fr)
		}
	})
}

// FuzzAssembly feeds fragments of all kinds: what it accepts is whole messages in
// order.
func FuzzAssembly(f *testing.F) {
	f.Add([]byte{1, 4, 8, 0, 4, 8, 3, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var a assembly
		const longest = 100
		got := -1 // bytes of the message that is open
		for ; len(b) >= 3; b = b[3:] {
			fr := frame{kind: frameData, flags: b[0] & 3, tag: uint32(b[0] >> 4), length: uint32(b[1]), total: uint32(b[2])}
			begins, err := a.add(fr, longest)
			if err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Fatal(err)
				}
				return
			}
			if begins {
				got = 0
			}
			if got < 0 || begins != fr.first() {
				t.Fatal("a fragment of no message was accepted")
			}
			if got += int(fr.length); got > int(fr.total) || fr.total > longest || a.open == (got == int(fr.total)) {
				t.Fatalf("%d bytes of %+v, %+v", got, fr, a)
			}
			if !a.open {
				got = -1
			}
		}
	})
}

// encode is a frame on the wire.
func (f frame) encode(body string) []byte {
	var header [frameHeader]byte
	f.put(&header)
	return append(header[:], body...)
}

// fuzzStream feeds endpoints whatever follows the openings. They end in order, with an
// error that says what was wrong, or because the peer is gone. begin is called with an
// endpoint before it has a carrier, and returns what takes each message.
func fuzzStream(f *testing.F, config Config, begin func(t *testing.T, e *Endpoint, fed []byte) func(*Message)) {
	r, err := New(config)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { r.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		near, far := net.Pipe()
		go func() {
			go io.Copy(io.Discard, near)
			near.Write(wire.Parameters{MaxMessage: 1}.Append(frame{kind: frameOpening, length: wire.ParametersSize}.encode("")))
			near.Write(b)
			near.Close()
		}()
		e := r.own.newEndpoint(nil, "test/1", far.LocalAddr(), far.RemoteAddr(), Selection{})
		take := begin(t, e, b)
		if err := newStream(ctx, e, far); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := e.Receive(ctx)
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrPeerDied) {
					t.Fatal(err)
				}
				break
			}
			take(m)
			m.Release()
		}
		_ = e.Close() // the peer is gone
	})
}

// FuzzStream lets a peer send any frames: memory stays in bounds, and what an endpoint
// delivers was sent.
func FuzzStream(f *testing.F) {
	const both = fragmentFirst | fragmentLast
	f.Add(append(frame{kind: frameData, flags: both, length: 3, total: 3}.encode("abc"), frame{kind: frameGoodbye}.encode("")...))
	f.Add(append(frame{kind: frameData, flags: fragmentFirst, length: 3, total: 5}.encode("abc"), frame{kind: frameData, flags: fragmentLast, length: 2, total: 5}.encode("de")...))
	f.Add(append(frame{kind: frameData, flags: fragmentFirst, length: 3, total: 5}.encode("abc"), frame{kind: frameData, flags: both, length: 1, total: 1}.encode("x")...))
	f.Add(frame{kind: frameData, flags: fragmentFirst, length: 1, total: 1 << 29}.encode("x"))
	fuzzStream(f, Config{MaxMessage: 1 << 30}, func(t *testing.T, _ *Endpoint, fed []byte) func(*Message) {
		total := 0
		return func(m *Message) {
			if total += len(m.Bytes()); total > len(fed) || cap(m.Bytes()) > 4<<20 {
				t.Fatalf("%d bytes of %d, %d committed", total, len(fed), cap(m.Bytes()))
			}
		}
	})
}

// A rawStream speaks to a server with frames of its own making.
type rawStream struct {
	t    *testing.T
	conn net.Conn
}

// newRawStream connects to a new endpoint of r.
func newRawStream(t *testing.T, r *Runtime) (*rawStream, *Endpoint) {
	t.Helper()
	return rawStreamTo(t, r, func(conn net.Conn) net.Conn { return conn })
}

// rawStreamTo is newRawStream for who looks at what the endpoint does to its connection.
func rawStreamTo(t *testing.T, r *Runtime, wrap func(net.Conn) net.Conn) (*rawStream, *Endpoint) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	e := r.own.newEndpoint(nil, "test/1", server.LocalAddr(), server.RemoteAddr(), Selection{Transport: TransportTCP})
	raw := &rawStream{t: t, conn: client}
	go func() {
		go io.Copy(io.Discard, client)
		raw.frame(frame{kind: frameOpening, length: wire.ParametersSize}, wire.Parameters{MaxMessage: 1 << 20}.Append(nil))
	}()
	if err := newStream(context.Background(), e, wrap(server)); err != nil {
		t.Fatal(err)
	}
	if err := r.adopt(e, r.own); err != nil {
		t.Fatal(err)
	}
	return raw, e
}

// frame reports false when the server does not take it because the connection
// has ended.
func (r *rawStream) frame(f frame, body []byte) bool {
	var b [frameHeader]byte
	f.put(&b)
	_, err := r.conn.Write(append(b[:], body...))
	return err == nil
}

// unfinished sends n bytes of a message of total bytes, as fast as the server
// takes them.
func (r *rawStream) unfinished(n, total int) {
	fragment := make([]byte, 256<<10)
	for flags := uint8(fragmentFirst); n > 0; flags = 0 {
		size := min(n, len(fragment))
		if !r.frame(frame{kind: frameData, flags: flags, length: uint32(size), total: uint32(total)}, fragment[:size]) {
			return
		}
		n -= size
	}
}

// Peers that leave long messages unfinished, while applications wait for them, get no
// more memory than there is, and another peer's messages pass meanwhile.
func TestUnfinishedMessagesAreBounded(t *testing.T) {
	const limit = 64 << 20
	p := worlds[0].pair(t, Config{ReceiveMemory: limit}, ListenConfig{})
	longest := int(p.server.cfg.longestOnStream())
	if longest != limit/2 {
		t.Errorf("messages of %d bytes are accepted", longest)
	}
	client, server := p.connect(t, "")
	const attackers = 12
	var ended sync.WaitGroup
	var died atomic.Int32
	for range attackers {
		raw, e := newRawStream(t, p.server)
		ended.Go(func() {
			if m, err := e.Receive(p.ctx); err == nil {
				t.Errorf("received %d bytes of an unfinished message", len(m.Bytes()))
			}
			died.Add(1)
		})
		go raw.unfinished(longest-1, longest)
	}
	// All that they can have they have when most of them wait.
	for {
		if used := p.server.env.arriving.Used(); used > limit {
			t.Fatalf("%d bytes are used, there are %d", used, limit)
		} else if int(used) >= limit-longest && p.server.env.arriving.Waiting() >= attackers-2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for i, size := range []int{0, 100, 16 << 10, 64 << 10} {
		if err := client.Send(p.ctx, uint32(i), pattern(size, i)); err != nil {
			t.Fatal(err)
		}
		m, err := server.Receive(p.ctx)
		if err != nil || !bytes.Equal(m.Bytes(), pattern(size, i)) {
			t.Fatal(size, err)
		}
		m.Release()
	}
	if died.Load() != 0 {
		t.Errorf("%d endpoints have ended", died.Load())
	}
	for _, e := range slices.Collect(maps.Keys(p.server.endpoints)) {
		if e != server {
			go e.Close()
		}
	}
	ended.Wait()
}

// A tiny frame that announces a long message commits little memory.
func TestTinyFramesCommitLittle(t *testing.T) {
	const limit = 64 << 20
	p := worlds[0].pair(t, Config{ReceiveMemory: limit}, ListenConfig{})
	raw, _ := newRawStream(t, p.server)
	raw.unfinished(60, 32<<20)
	for p.server.env.arriving.Used() == 0 && p.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if used := p.server.env.arriving.Used(); used == 0 || used > 4<<20 {
		t.Errorf("%d bytes are used by 60 that have arrived", used)
	}
	// Many peers at one address have no more than its share.
	for range 200 {
		raw, _ := newRawStream(t, p.server)
		raw.unfinished(60, 4<<20)
	}
	if used := p.server.env.arriving.Used(); used > limit/2 {
		t.Errorf("%d bytes are used by 12,000 that have arrived", used)
	}
}

// Many long messages at once, each of which needs half of the memory, arrive: no
// two of them wait for each other.
func TestLongMessagesShareMemory(t *testing.T) {
	const limit, size, peers = 16 << 20, 8 << 20, 6
	p := worlds[0].pair(t, Config{ReceiveMemory: limit}, ListenConfig{})
	var wg sync.WaitGroup
	for i := range peers {
		client, server := p.connect(t, "")
		wg.Go(func() {
			for n := range 4 {
				if err := client.Send(p.ctx, uint32(n), pattern(size, i)); err != nil {
					t.Error(err)
				}
			}
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			for {
				m, err := server.Receive(p.ctx)
				if err != nil {
					if err != io.EOF {
						t.Error(err)
					}
					return
				}
				if !bytes.Equal(m.Bytes(), pattern(size, i)) {
					t.Error("a message was changed")
				}
				m.Release()
			}
		})
	}
	wg.Wait()
	if used := p.server.env.arriving.Used(); used != 0 {
		t.Errorf("%d bytes are still used", used)
	}
}

// A message that waits for memory does not hold up Close, and the memory of
// others that closed comes back.
func TestCloseWhileWaitingForMemory(t *testing.T) {
	p := worlds[0].pair(t, Config{ReceiveMemory: 8 << 20}, ListenConfig{})
	var all []*Endpoint
	for range 6 {
		raw, e := newRawStream(t, p.server)
		go raw.unfinished(4<<20-1, 4<<20)
		all = append(all, e)
	}
	for p.server.env.arriving.Waiting() < 2 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	for _, e := range all {
		if err := e.closeWithin(ctx); err != nil {
			t.Error(err) // nothing was sent
		}
	}
	if used := p.server.env.arriving.Used(); used != 0 {
		t.Errorf("%d bytes are still used", used)
	}
}

// Close says so when the peer, which sends but does not receive, has not taken
// everything; and when Close says nothing the peer receives it all.
func TestCloseTellsOfLoss(t *testing.T) {
	t.Parallel() // it waits until nothing goes any more
	for _, receives := range []bool{false, true} {
		linger := time.Minute
		if !receives {
			linger = 300 * time.Millisecond
		}
		p := worlds[0].pair(t, Config{Linger: linger}, ListenConfig{})
		client, server := p.connect(t, "")
		var flood sync.WaitGroup
		flood.Go(func() {
			for server.Send(p.ctx, 0, pattern(10<<10, 0)) == nil {
			}
		})
		// More than inboxes and sockets hold: nothing goes for a while.
		accepted := 0
		for vain := 0; vain < 5; {
			ctx, cancel := context.WithTimeout(p.ctx, 300*time.Millisecond)
			err := client.Send(ctx, 1, pattern(100<<10, 0))
			cancel()
			if err != nil {
				vain++
				continue
			}
			vain = 0
			accepted++
		}
		received := 0
		var reader sync.WaitGroup
		if receives {
			reader.Go(func() {
				for {
					m, err := server.Receive(p.ctx)
					if err != nil {
						return
					}
					m.Release()
					received++
				}
			})
		}
		err := client.Close()
		reader.Wait()
		if receives && (err != nil || received != accepted) {
			t.Errorf("%d of %d messages were received, Close returned %v", received, accepted, err)
		}
		if !receives && !errors.Is(err, ErrNotDelivered) {
			t.Errorf("nobody receives %d messages, and Close returned %v", accepted, err)
		}
		server.Close()
		flood.Wait()
	}
}

// The peer dies while Close waits for it.
func TestCloseTellsOfDeath(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{})
	raw, e := newRawStream(t, p.server)
	if err := e.Send(p.ctx, 1, []byte("lost")); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- e.Close() }()
	<-e.Done()
	raw.conn.Close()
	if err := <-closed; !errors.Is(err, ErrNotDelivered) {
		t.Error(err)
	}
}

// A halfClosed connection tells when its owner has said all that it will.
type halfClosed struct {
	net.Conn
	said chan struct{}
}

func (h halfClosed) CloseWrite() error {
	close(h.said)
	return nil
}

// The peer's host has taken everything, the goodbye too, but the peer says no goodbye of
// its own: it dies, or stays silent for as long as Close waits. It may have received nothing.
func TestCloseTellsOfNoAnswer(t *testing.T) {
	for _, dies := range []bool{true, false} {
		p := worlds[0].pair(t, Config{}, ListenConfig{})
		said := make(chan struct{})
		raw, e := rawStreamTo(t, p.server, func(conn net.Conn) net.Conn { return halfClosed{conn, said} })
		if err := e.Send(p.ctx, 1, []byte("lost")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(p.ctx)
		defer cancel()
		closed := make(chan error)
		go func() { closed <- e.closeWithin(ctx) }()
		<-said
		if dies {
			raw.conn.Close()
		} else {
			cancel()
		}
		if err := <-closed; !errors.Is(err, ErrNotDelivered) {
			t.Errorf("it dies: %t; Close returned %v", dies, err)
		}
	}
}

// A second Release takes nothing from the messages that others have meanwhile, and is
// told to the log.
func TestReleasedTwice(t *testing.T) {
	var log bytes.Buffer
	p := worlds[0].pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{})
	client, server := p.connect(t, "")
	other, otherServer := p.connect(t, "")
	get := func(from, at *Endpoint, seed, size int) *Message {
		if err := from.Send(p.ctx, 1, pattern(size, seed)); err != nil {
			t.Fatal(err)
		}
		m, err := at.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, size := range []int{0, 100, 5 << 20} {
		first := get(client, server, 1, size)
		first.Release()
		first.Release()
		var held []*Message
		for i := range 20 {
			if i%5 == 4 {
				first.Release()
			}
			held = append(held, get(other, otherServer, i, size))
		}
		for i, m := range held {
			if !bytes.Equal(m.Bytes(), pattern(size, i)) {
				t.Errorf("message %d of %d bytes was changed", i, size)
			}
			m.Release()
		}
	}
	if !strings.Contains(log.String(), "released twice") {
		t.Error("nobody is told")
	}
	get(client, server, 1, 10).Release()
}

// Peers that stall while others wait for memory are ended with the reason, one
// after the other, and the honest peer's message arrives.
func TestStalledPeersAreEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Config{ReceiveMemory: 16 << 20, SendMemory: 16 << 20, IgnorePressure: true})
		if err != nil {
			t.Fatal(err)
		}
		const attackers, size = 5, 6 << 20
		var wg sync.WaitGroup
		for range attackers {
			raw, e := newRawStream(t, r)
			wg.Go(func() { raw.unfinished(size-1, size) })
			wg.Go(func() {
				_, err := e.Receive(context.Background())
				if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "unfinished for 15s") {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		raw, e := newRawStream(t, r)
		raw.conn.SetDeadline(time.Now().Add(attackers * 2 * budget.Stalled))
		wg.Go(func() {
			raw.unfinished(size-1, size)
			raw.frame(frame{kind: frameData, flags: fragmentLast, length: 1, total: size}, []byte{1})
		})
		m, err := e.Receive(context.Background())
		if err != nil || len(m.Bytes()) != size {
			t.Fatal(err)
		}
		m.Release()
		// One more waits, so that those who still hold something are found.
		raw, e = newRawStream(t, r)
		wg.Go(func() { raw.unfinished(size-1, size) })
		wg.Go(func() { _, _ = e.Receive(context.Background()) })
		time.Sleep(time.Hour)
		raw.conn.Close()
		wg.Wait()
		if used := r.env.arriving.Used(); used != 0 {
			t.Errorf("%d bytes are still used", used)
		}
		r.Close()
	})
}
