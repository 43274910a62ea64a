package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// rawPeer is an initiator that a test plays by hand.
type rawPeer struct {
	t testing.TB
	net.Conn
	reply wire.Setup
}

// dialRaw opens a connection to s as request says. The ready-to-receive message
// has gone out when it returns.
func dialRaw(t testing.TB, s *side, request wire.Setup) *rawPeer {
	t.Helper()
	ctx := bounded(t)
	l, err := s.device.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p := &rawPeer{t: t, Conn: conn}
	frame, err := wire.AppendSetup(nil, &request)
	if err != nil {
		t.Fatal(err)
	}
	p.write(frame)
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Accept(ctx, s.qp, []byte("private")); err != nil {
		t.Fatal(err)
	}
	if p.reply, err = readSetup(conn, true); err != nil {
		t.Fatal(err)
	}
	if string(p.reply.Private) != "private" {
		t.Fatalf("private data %q", p.reply.Private)
	}
	if request.Enhanced != nil && request.Enhanced.PeerToPeer {
		p.write(fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite}, nil))
	}
	return p
}

func enhanced() wire.Setup {
	return wire.Setup{CRC: true, Revision: wire.Revision2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadyWrite: true, IRD: 4, ORD: 4}}
}

func (p *rawPeer) write(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

func fpdu(s wire.Segment, payload []byte) []byte {
	ulpdu := append(s.Append(nil), payload...)
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	b = append(b, make([]byte, wire.Padding(len(ulpdu)))...)
	sum := wire.UpdateCRC(0, b)
	b = append(b, 0, 0, 0, 0)
	wire.PutCRC(b[len(b)-4:], sum)
	return b
}

// next reads an FPDU.
func (p *rawPeer) next() (wire.Segment, []byte) {
	p.t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(within))
	var length [2]byte
	if _, err := io.ReadFull(p, length[:]); err != nil {
		p.t.Fatal(err)
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	b := make([]byte, n+wire.Padding(n)+wire.CRCSize)
	if _, err := io.ReadFull(p, b); err != nil {
		p.t.Fatal(err)
	}
	s, err := wire.ParseSegment(b[:n])
	if err != nil {
		p.t.Fatal(err)
	}
	return s, b[s.HeaderSize():n]
}

func (p *rawPeer) terminated(cause wire.Cause) {
	p.t.Helper()
	for {
		s, body := p.next()
		if s.Opcode != wire.OpTerminate {
			continue
		}
		if m, err := wire.ParseTerminate(body); err != nil || m.Cause != cause {
			p.t.Fatalf("Terminate %v, %v; want %v", m.Cause, err, cause)
		}
		return
	}
}

// ends reads until the other half is closed.
func (p *rawPeer) ends() {
	p.t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(within))
	if _, err := io.Copy(io.Discard, p.Conn); err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		p.t.Fatal(err)
	}
}

func rawSide(t testing.TB, size int) *side { return newSide(t, testDevice(t, Config{}), size, nil) }

// TestRevision1 has both ends of each revision talk to a listener, which takes
// both.
func TestRevision1(t *testing.T) {
	d := testDevice(t, Config{Revision: wire.Revision1, extensions: engine.ExtensionsOff}) // an announcement would be a first message
	a, b := newSide(t, d, 4096, nil), newSide(t, testDevice(t, Config{}), 4096, nil)
	joinListener(t, a, b)
	// The side that accepted has to hold its tongue first.
	a.recv(1, 0, 8)
	b.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: b.sge(0, 8)})
	b.recv(3, 0, 8)
	var c [1]rdma.Completion
	if n, _ := b.sends.Poll(c[:]); n != 0 {
		t.Fatal("the side that accepted sent first")
	}
	a.send(rdma.SendRequest{ID: 4, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(8, 8), Remote: b.at(0)})
	if c := next(t, a.sends); c.Status != rdma.StatusSuccess {
		t.Fatal(c.Status)
	}
	if c := next(t, a.recvs); c.ID != 1 || c.Status != rdma.StatusSuccess {
		t.Fatal(c)
	}
}

// TestHandWritten plays the initiator byte by byte.
func TestHandWritten(t *testing.T) {
	s := rawSide(t, 4096)
	s.recv(7, 0, 64)
	p := dialRaw(t, s, enhanced())
	if e := p.reply.Enhanced; e == nil || !e.PeerToPeer || !e.ReadyWrite || e.IRD != 16 || e.ORD != 4 {
		t.Fatalf("reply %+v", e)
	}
	for _, c := range fpdu(wire.Segment{Last: true, Opcode: wire.OpSend, MSN: 1}, []byte("by hand")) {
		p.write([]byte{c})
	}
	if c := next(t, s.recvs); c.ID != 7 || c.Length != 7 || !bytes.Equal(s.memory.Bytes()[:7], []byte("by hand")) {
		t.Fatalf("%+v %q", c, s.memory.Bytes()[:7])
	}
	s.send(rdma.SendRequest{Op: rdma.OpSend, SGEs: s.sge(0, 7)})
	if g, body := p.next(); g.Opcode != wire.OpSend || g.MSN != 1 || string(body) != "by hand" {
		t.Fatalf("%+v %q", g, body)
	}
	p.write(fpdu(wire.Segment{Last: true, Opcode: wire.OpSend, MSN: 3}, []byte("out of turn")))
	p.terminated(wire.DDPUntaggedMSN)
	p.ends()
	wants(t, s.ended(), rdma.ErrDisconnected)
	s.event(rdma.EventQueuePairError)
}

func TestPeerVanishes(t *testing.T) {
	t.Run("fin", func(t *testing.T) {
		s := rawSide(t, 4096)
		p := dialRaw(t, s, enhanced())
		p.Close()
		wants(t, s.ended(), rdma.ErrDisconnected)
		s.event(rdma.EventDisconnected)
	})
	t.Run("reset in the middle of a segment", func(t *testing.T) {
		s := rawSide(t, 4096)
		s.recv(1, 0, 64)
		p := dialRaw(t, s, enhanced())
		b := fpdu(wire.Segment{Last: true, Opcode: wire.OpSend, MSN: 1}, make([]byte, 64))
		p.write(b[:40])
		_ = p.Conn.(*net.TCPConn).SetLinger(0)
		p.Close()
		wants(t, s.ended(), rdma.ErrDisconnected)
		s.event(rdma.EventDisconnected)
		if c := next(t, s.recvs); c.ID != 1 || c.Status != rdma.StatusFlushed {
			t.Fatalf("%+v", c)
		}
	})
}

// TestStalledPeer closes regions and queue pairs while a peer stands still in
// the middle of things.
func TestStalledPeer(t *testing.T) {
	const size = 64 << 20 // more than the sockets hold
	t.Run("in the middle of a Write", func(t *testing.T) {
		s := rawSide(t, 4096)
		target, err := s.domain.Allocate(64<<10, everything)
		if err != nil {
			t.Fatal(err)
		}
		p := dialRaw(t, s, enhanced())
		b := fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite, STag: target.Key(), Offset: target.Address()}, make([]byte, 60000))
		p.write(b[:30000])
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		p.write(b[30000:])
		p.terminated(wire.DDPTaggedInvalidSTag)
		p.ends()
		s.ended()
	})
	t.Run("in the middle of a Read", func(t *testing.T) {
		s := rawSide(t, 4096)
		source, err := s.domain.Allocate(size, everything)
		if err != nil {
			t.Fatal(err)
		}
		p := dialRaw(t, s, enhanced())
		r := wire.ReadRequest{SinkSTag: 1, Length: size, SourceSTag: source.Key(), SourceOffset: source.Address()}
		p.write(fpdu(wire.Segment{Last: true, Opcode: wire.OpReadRequest, Queue: 1, MSN: 1}, r.Append(nil)))
		p.next() // the response is under way, and nobody takes the rest
		if err := source.Close(); err != nil {
			t.Fatal(err)
		}
		s.ended()
	})
	t.Run("while this side writes", func(t *testing.T) {
		s := rawSide(t, 1<<20)
		p := dialRaw(t, s, enhanced())
		// Posting does not wait: it ends when the queue is full.
		posted := 0
		for {
			_, err := s.qp.PostSend([]rdma.SendRequest{{ID: uint64(posted), Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: s.sge(0, 1<<20)}})
			if errors.Is(err, rdma.ErrQueueFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			posted++
		}
		if posted != 64 {
			t.Fatalf("%d requests fit into a queue of 64", posted)
		}
		s.recv(99, 0, 8)
		if err := s.qp.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for i := range posted {
			if c := next(t, s.sends); c.ID != uint64(i) {
				t.Fatalf("completion of %d, want %d", c.ID, i)
			}
		}
		if c := next(t, s.recvs); c.ID != 99 || c.Status != rdma.StatusFlushed {
			t.Fatalf("%+v", c)
		}
		if err := s.qp.Close(); err != nil {
			t.Fatal(err)
		}
		_ = p
	})
	t.Run("while it is closed", func(t *testing.T) {
		s := rawSide(t, 1<<20)
		dialRaw(t, s, enhanced())
		for range 64 {
			s.send(rdma.SendRequest{Op: rdma.OpWrite, SGEs: s.sge(0, 1<<20)})
		}
		if err := s.qp.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// logged collects what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
	wake chan struct{}
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) has(t *testing.T, what string) {
	t.Helper()
	deadline := time.After(within)
	for {
		text := l.all()
		if strings.Contains(text, what) {
			return
		}
		select {
		case <-l.wake:
		case <-deadline:
			t.Fatalf("log %q lacks %q", text, what)
		}
	}
}

// TestNoise sends a listener what is no Request. Others are not disturbed.
func TestNoise(t *testing.T) {
	t.Parallel() // two of them wait for the set-up's timeout
	log := &logged{wake: make(chan struct{}, 1)}
	d := testDevice(t, Config{setupTimeout: 3 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))})
	l, err := d.Listen(bounded(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	request, err := wire.AppendSetup(nil, &wire.Setup{CRC: true, Revision: 1})
	if err != nil {
		t.Fatal(err)
	}
	long := bytes.Clone(request)
	long[18], long[19] = 0xFF, 0xFF
	for what, noise := range map[string]struct {
		bytes  []byte
		reason string
	}{
		"http":         {[]byte("GET / HTTP/1.1\r\nHost: nobody\r\n\r\n"), "not a set-up frame"},
		"huge length":  {long, "private data"},
		"half a frame": {request[:10], "timed out"},
		"nothing":      {nil, "timed out"},
	} {
		conn, err := net.Dial("tcp", l.Address())
		if err != nil {
			t.Fatal(err)
		}
		p := &rawPeer{t: t, Conn: conn}
		p.write(noise.bytes)
		p.ends()
		log.has(t, noise.reason)
		conn.Close()
		t.Log(what, "is refused")
	}
	connects(t, d, l)
}

// connects has a side connect to a listener.
func connects(t *testing.T, d *device, l rdma.Listener) {
	t.Helper()
	a, b := newSide(t, d, 4096, nil), newSide(t, d, 4096, nil)
	failed := make(chan error, 1)
	go func() {
		r, err := l.Accept(bounded(t))
		if err == nil {
			err = r.Accept(bounded(t), b.qp, nil)
		}
		failed <- err
	}()
	if _, err := a.qp.Connect(bounded(t), l.Address(), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// TestBadRequests are Requests that cannot be accepted.
func TestBadRequests(t *testing.T) {
	for what, request := range map[string]wire.Setup{
		"revision 3": {CRC: true, Revision: 3},
		"revision 0": {CRC: true},
		"no ready":   {CRC: true, Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true}},
	} {
		t.Run(what, func(t *testing.T) {
			s := rawSide(t, 4096)
			s.recv(5, 0, 8)
			ca, cb := tcpPair(t)
			defer ca.Close()
			frame, err := wire.AppendSetup(nil, &request)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ca.Write(frame); err != nil {
				t.Fatal(err)
			}
			r, err := s.device.RequestFromStream(bounded(t), cb)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Accept(bounded(t), s.qp, nil); err == nil {
				t.Fatal("it was accepted")
			} else {
				t.Log(err)
			}
			if reply, err := readSetup(ca, true); err != nil || !reply.Reject {
				t.Fatalf("reply %+v, %v", reply, err)
			}
			if c := next(t, s.recvs); c.ID != 5 || c.Status != rdma.StatusFlushed {
				t.Fatalf("%+v", c)
			}
		})
	}
}

// TestBadReplies are answers that no connection can come of.
func TestBadReplies(t *testing.T) {
	for what, test := range map[string]struct {
		reply     wire.Setup
		raw       string
		terminate *wire.Cause
	}{
		"silence":       {},
		"http":          {raw: "HTTP/1.1 400 Bad Request\r\n\r\n"},
		"revision 1":    {reply: wire.Setup{Reply: true, CRC: true, Revision: 1}, terminate: &wire.MPASetup},
		"not enhanced":  {reply: wire.Setup{Reply: true, CRC: true, Revision: 2}, terminate: &wire.MPASetup},
		"too many":      {reply: wire.Setup{Reply: true, CRC: true, Revision: 2, Enhanced: &wire.Enhanced{IRD: 1, ORD: 500}}, terminate: &wire.MPAInsufficientIRD},
		"no ready kind": {reply: wire.Setup{Reply: true, CRC: true, Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true}}, terminate: &wire.MPANoReadyToReceiveModes},
	} {
		t.Run(what, func(t *testing.T) {
			config := Config{}
			if what == "silence" {
				config.setupTimeout = 300 * time.Millisecond
			}
			s := newSide(t, testDevice(t, config), 4096, nil)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				p := &rawPeer{t: t, Conn: conn}
				if _, err := readSetup(conn, false); err != nil {
					t.Error(err)
					return
				}
				b := []byte(test.raw)
				if test.reply.Reply {
					b, _ = wire.AppendSetup(nil, &test.reply)
				}
				if _, err := conn.Write(b); err != nil {
					t.Error(err)
				}
				if test.terminate != nil {
					p.terminated(*test.terminate)
				}
				p.ends()
			}()
			_, err = s.qp.Connect(bounded(t), l.Addr().String(), nil)
			if err == nil {
				t.Fatal("connected")
			}
			if what == "silence" {
				wants(t, err, rdma.ErrTimeout)
			}
			t.Log(err)
			<-done
			if s.qp.State() != rdma.StateError || s.qp.Err() == nil {
				t.Fatalf("state %s, error %v", s.qp.State(), s.qp.Err())
			}
		})
	}
}

func TestListenAddresses(t *testing.T) {
	d := testDevice(t, Config{})
	for _, address := range []string{"0.0.0.0:0", "[::]:0"} {
		if _, err := d.Listen(bounded(t), address); !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), "AllowRemote") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := d.Listen(bounded(t), "nonsense"); !errors.Is(err, rdma.ErrInvalid) {
		t.Error(err)
	}
	for _, address := range []string{"", ":0", "localhost:0"} {
		l, err := d.Listen(bounded(t), address)
		if err != nil {
			t.Errorf("%q: %v", address, err)
			continue
		}
		if host, _, _ := net.SplitHostPort(l.Address()); !net.ParseIP(host).IsLoopback() {
			t.Errorf("%q listens at %s", address, l.Address())
		}
		l.Close()
	}
	log := &logged{wake: make(chan struct{}, 1)}
	d = testDevice(t, Config{AllowRemote: true, Logger: slog.New(slog.NewTextHandler(log, nil))})
	l, err := d.Listen(bounded(t), "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	log.has(t, "without authentication")
}
