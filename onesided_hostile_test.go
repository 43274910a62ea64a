package verbena

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/link/wire"
)

// A hostilePeer answers a server's operations over TCP as it likes, on two connections.
type hostilePeer struct {
	main, lane *rawStream
	p          *pair
	e          *Endpoint // the server's end
	ticket     []byte
}

func newHostilePeer(t *testing.T, p *pair) *hostilePeer {
	t.Helper()
	h := &hostilePeer{p: p, main: dialRaw(t, p, "test/1")}
	h.main.frame(frame{kind: frameOpening, length: wire.ParametersSize}, wire.Parameters{MaxMessage: 1 << 20}.Append(nil))
	_, opening := h.main.next()
	h.ticket = opening[wire.ParametersSize:]
	h.e = p.accept(t)
	return h
}

// dialRaw says hello to the server as a peer that knows one-sided operations and lanes.
func dialRaw(t *testing.T, p *pair, service string) *rawStream {
	t.Helper()
	first, err := (&hello.Hello{
		Least: 1, Greatest: 1, Service: service, Host: p.client.host[:], Candidates: []hello.Candidate{{Name: TransportTCP}},
		Features: hello.FeatureOneSided | hello.FeatureLane,
	}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	conn, a, err := exchange(t, p.listener.Addr().String(), first)
	if err != nil || a.Accept == nil {
		t.Fatal(a, err)
	}
	return &rawStream{t: t, conn: conn}
}

// next reads a frame of the server's.
func (r *rawStream) next() (frame, []byte) {
	r.t.Helper()
	var header [frameHeader]byte
	if _, err := io.ReadFull(r.conn, header[:]); err != nil {
		r.t.Fatal(err)
	}
	f := frame{
		kind: frameKind(header[0]), flags: header[1], tag: binary.BigEndian.Uint32(header[4:]),
		length: binary.BigEndian.Uint32(header[8:]), total: binary.BigEndian.Uint32(header[12:]),
	}
	body := make([]byte, f.length)
	if _, err := io.ReadFull(r.conn, body); err != nil {
		r.t.Fatal(err)
	}
	return f, body
}

// openLane returns when the server uses the lane.
func (h *hostilePeer) openLane(t *testing.T) {
	t.Helper()
	h.lane = dialRaw(t, h.p, laneService)
	h.lane.frame(frame{kind: frameLane, length: ticketSize}, h.ticket)
	if f, _ := h.lane.next(); f.kind != frameLane {
		t.Fatalf("the lane is answered by %+v", f)
	}
	h.until(t, "the lane is not used", func() bool { return h.e.carrier.(*stream).lane.Load() != nil })
}

func (h *hostilePeer) until(t *testing.T, otherwise string, happens func() bool) {
	t.Helper()
	for !happens() {
		if h.p.ctx.Err() != nil {
			t.Fatal(otherwise)
		}
		runtime.Gosched()
	}
}

// get makes the server begin a Get.
func (h *hostilePeer) get(into []byte) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- h.e.Get(h.p.ctx, Token{rights: MayRead, length: 1 << 20}, 0, into) }()
	return ended
}

// beginAnswer sends the first bytes of an answer, and returns when they are in into, where
// nothing but zeros was.
func (h *hostilePeer) beginAnswer(t *testing.T, on *rawStream, id uint32, into []byte, bytes int) {
	t.Helper()
	on.frame(frame{kind: frameAnswer, tag: id, length: uint32(len(into))}, pattern(len(into), 1)[:bytes])
	q := &h.e.carrier.(*stream).errands
	h.until(t, "half of an answer does not arrive", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return into[bytes-1] != 0
	})
}

// isOver ends the test if the server's end does not end as that of a peer that breaks the
// protocol, or cannot be closed.
func (h *hostilePeer) isOver(t *testing.T) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-h.e.Done()
		_ = h.e.Close() // the peer does not wait for it
	}()
	select {
	case <-closed:
	case <-h.p.ctx.Done():
		t.Fatal("the endpoint is wedged")
	}
	if err := h.e.Err(); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
}

// A peer answers an operation on both connections at a time. That is a breach, and the
// operation's id stays its own: were it free after one answer, the rest of the other would
// free it twice, or end in the memory of a shorter operation.
func TestAnswersOnBothConnections(t *testing.T) {
	const size, half = 4096, 2048
	goOn := func(on *rawStream) { _, _ = on.conn.Write(pattern(size, 1)[half:]) }
	for _, c := range []struct {
		name   string
		onLane bool
		next   func(h *hostilePeer, first *rawStream, id uint32) // if the server has borne that
	}{
		{"between messages, goes on", false, func(_ *hostilePeer, first *rawStream, _ uint32) { goOn(first) }},
		{"on the lane, goes on", true, func(_ *hostilePeer, first *rawStream, _ uint32) { goOn(first) }},
		{"between messages, goes on in another operation", false, func(h *hostilePeer, first *rawStream, id uint32) {
			for into, tag := make([]byte, 8), id+1; tag != id; {
				ended := h.get(into)
				f, _ := h.lane.next()
				if tag = f.tag; tag == id {
					goOn(first)
				} else {
					h.lane.frame(frame{kind: frameAnswer, tag: tag, length: f.total}, into)
				}
				<-ended
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostilePeer(t, worlds[0].pair(t, Config{}, ListenConfig{}))
			if c.onLane {
				h.openLane(t)
			}
			into := make([]byte, size)
			ended := h.get(into)
			first, second := h.main, h.lane
			if c.onLane {
				first, second = h.lane, h.main
			}
			f, _ := first.next()
			if !c.onLane {
				h.openLane(t)
				second = h.lane
			}
			h.beginAnswer(t, first, f.tag, into, half)
			second.frame(frame{kind: frameAnswer, tag: f.tag, length: size}, pattern(size, 2))
			if err := <-ended; !errors.Is(err, ErrProtocol) {
				t.Errorf("the operation ends with %v", err)
				c.next(h, first, f.tag)
			}
			h.isOver(t)
		})
	}
}

// A lane dies while an operation from before it is answered between messages. It ends what
// was sent on the lane, and nothing else.
func TestLaneEndsWhatWentThere(t *testing.T) {
	const size, half = 4096, 2048
	h := newHostilePeer(t, worlds[0].pair(t, Config{}, ListenConfig{}))
	before, behind := make([]byte, size), make([]byte, size)
	answered := h.get(before)
	f, _ := h.main.next()
	h.openLane(t)
	lost := h.get(behind)
	h.lane.next()
	h.beginAnswer(t, h.main, f.tag, before, half)
	_ = h.lane.conn.Close()
	if err := <-lost; !errors.Is(err, ErrPeerDied) {
		t.Errorf("an operation on the lane: %v", err)
	}
	_, _ = h.main.conn.Write(pattern(size, 1)[half:])
	if err := <-answered; err != nil || !bytes.Equal(before, pattern(size, 1)) {
		t.Errorf("an operation from before it: %v", err)
	}
	if err := h.e.Send(h.p.ctx, 1, nil); err != nil {
		t.Error(err)
	}
	_ = h.main.conn.Close()
	<-h.e.Done()
	_ = h.e.Close() // the peer is gone
}

// A lane that ends in the middle of answers takes those along that were asked there. What is
// asked between messages is answered.
func TestServesBehindALane(t *testing.T) {
	h := newHostilePeer(t, worlds[0].pair(t, Config{}, ListenConfig{}))
	x, err := h.e.Expose(h.p.ctx, ExposeConfig{Size: maxFragment, Rights: MayRead})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(on *rawStream, id uint32, n int) {
		var head [operationHead]byte
		binary.BigEndian.PutUint64(head[:], x.Token().id)
		on.frame(frame{kind: frameOperation, flags: uint8(opGet), tag: id, length: operationHead, total: uint32(n)}, head[:])
	}
	h.openLane(t)
	lane := h.lane.conn.(*net.TCPConn)
	if err := errors.Join(lane.SetReadBuffer(4096), lane.SetLinger(0)); err != nil {
		t.Fatal(err)
	}
	const most = streamOperations - 1
	for id := range uint32(most) {
		ask(h.lane, id, maxFragment)
	}
	s := h.e.carrier.(*stream)
	h.until(t, "the server does not wait for the lane", func() bool {
		via := s.lane.Load().stream
		via.mu.Lock()
		defer via.mu.Unlock()
		return via.backlog != nil
	})
	_ = lane.Close()
	deadline, _ := h.p.ctx.Deadline()
	if err := h.main.conn.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	ask(h.main, most, 8)
	if f, body := h.main.next(); f.kind != frameAnswer || f.tag != most || len(body) != 8 {
		t.Errorf("%+v, %d bytes", f, len(body))
	}
	_ = h.main.conn.Close()
	<-h.e.Done()
	_ = h.e.Close() // the peer is gone
}
