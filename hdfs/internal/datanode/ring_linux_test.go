package datanode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

// ringed is a reader of a range through a ring.
type ringed struct {
	v    *viewer
	s    *verbena.Stream
	ring native.Ring
	n    uint64 // slots that were filled
}

// ring asks for a range.
func (v *viewer) ring(header []byte, off, length int64) (*ringed, error) {
	v.t.Helper()
	s, err := v.c.Stream(v.t.Context(), native.MethodRing, native.AppendRingRequest(nil, &native.RingRequest{Offset: off, Length: length}, header))
	must(v.t, err)
	v.t.Cleanup(func() { s.Close() })
	var b [native.RingLen]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return nil, err
	}
	r := &ringed{v: v, s: s}
	r.ring, err = native.ParseRing(b[:])
	must(v.t, err)
	return r, nil
}

// next reads the next slot.
func (r *ringed) next() (off int64, data []byte) {
	r.v.t.Helper()
	var b [native.FilledLen]byte
	_, err := io.ReadFull(r.s, b[:])
	must(r.v.t, err)
	f, err := native.ParseFilled(b[:], r.ring.Sum)
	must(r.v.t, err)
	at, behind := native.Slot(r.n)
	r.n++
	data, sums := make([]byte, f.Data), make([]byte, f.Sums)
	must(r.v.t, r.v.c.Endpoint().Get(r.v.t.Context(), r.ring.Token, at, data))
	must(r.v.t, r.v.c.Endpoint().Get(r.v.t.Context(), r.ring.Token, behind, sums))
	must(r.v.t, r.ring.Sum.Verify(sums, data))
	return f.Offset, data
}

// give gives slots back, or says something else.
func (r *ringed) give(n byte) {
	r.v.t.Helper()
	_, err := r.s.Write([]byte{n})
	must(r.v.t, err)
}

// ended is what the call comes to.
func (r *ringed) ended() error {
	r.v.t.Helper()
	m, err := r.s.Answer(r.v.t.Context())
	if err == nil {
		m.Release()
	}
	return err
}

// A range comes slot by slot, never more than the ring has, and ends when all slots are
// back.
func TestRings(t *testing.T) {
	for _, transport := range []string{"shm", "iwarp"} {
		f := newFixture(t, 1, onDisk(t, nil))
		n, data := f.nodes[0], random(1, 5<<20+700)
		finalized(t, n, 1, 1001, data)
		v := viewers(t, n, transport)()
		const off, length = 1000, 5<<20 - 2000
		r, err := v.ring(header(t, 1, 1001, nil), off, length)
		must(t, err)
		want := int64(512)
		for want < off+length {
			at, b := r.next()
			if at != want || !bytes.Equal(b, data[at:at+int64(len(b))]) {
				t.Fatalf("%s: %d bytes at %d, due is %d", transport, len(b), at, want)
			}
			if want += int64(len(b)); r.n > 2 {
				r.give(1)
			}
		}
		if want != (off+length+511)/512*512 {
			t.Errorf("%s: the last slot ends at %d", transport, want)
		}
		r.give(2)
		must(t, r.ended())
		if s := n.Reads(); s.Rings != 1 || s.Served != 1 || s.ServedBytes != length || s.Windows.Bytes != native.RingBytes {
			t.Errorf("%s: %+v", transport, s)
		}
		must(t, r.s.Close())
		must(t, v.c.Close())
		n.rings.mu.Lock()
		served := n.rings.idle[0].client.Endpoint()
		n.rings.mu.Unlock()
		select {
		case <-served.Done():
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the client has gone, and its endpoint is there", transport)
		}
		n.rings.sweep(time.Now())
		if b := n.Reads().Windows.Bytes; b != 0 {
			t.Errorf("%s: the client has gone, and its ring has %d bytes", transport, b)
		}
		n.stop()
	}
}

// A client hears of the first and the last pieces of a long range one by one, and of the others
// half a ring at a time, unless the machine is so busy that each takes long.
func TestRingsTellOfPiecesTogether(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	n, data := f.nodes[0], random(1, 15<<20)
	finalized(t, n, 1, 1001, data)
	v := viewers(t, n, "shm")()
	for began := time.Now(); ; {
		together := toldTogether(t, v, len(data))
		if together[0] != 1 || together[len(together)-1] != 1 {
			t.Errorf("pieces were told of together: %v", together)
		}
		most := slices.Max(together)
		if most == native.RingSlots/2 {
			return
		}
		if most > native.RingSlots/2 || time.Since(began) > 20*time.Second {
			t.Fatalf("pieces were told of together: %v", together)
		}
	}
}

// toldTogether reads a block, gives slots back as our client does, and returns how many pieces
// each message has told of.
func toldTogether(t *testing.T, v *viewer, length int) (together []int) {
	t.Helper()
	r, err := v.ring(header(t, 1, 1001, nil), 0, int64(length))
	must(t, err)
	owed, every := 0, 1
	for want := 0; want < length; {
		m, err := r.s.Recv(t.Context())
		must(t, err)
		told := m.Bytes()
		together = append(together, len(told)/native.FilledLen)
		for ; len(told) > 0; told = told[native.FilledLen:] {
			f, err := native.ParseFilled(told[:native.FilledLen], r.ring.Sum)
			must(t, err)
			if f.Offset != int64(want) {
				t.Fatalf("a piece at %d, due is %d", f.Offset, want)
			}
			want += f.Data
			if owed++; owed == every && want < length {
				r.give(byte(owed))
				owed, every = 0, native.RingSlots/2
			}
		}
		m.Release()
	}
	r.give(native.RingFinished)
	must(t, r.ended())
	return together
}

// Who gives nothing back gets half of a ring, and the other half behind the first slot.
func TestRingsOfReadersThatLeave(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	n, data := f.nodes[0], random(1, 15<<20)
	finalized(t, n, 1, 1001, data)
	r, err := viewers(t, n, "shm")().ring(header(t, 1, 1001, nil), 0, int64(len(data)))
	must(t, err)
	for range native.RingSlots / 2 {
		r.next()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if m, err := r.s.Recv(ctx); err == nil {
		t.Errorf("%d more pieces come unasked", len(m.Bytes())/native.FilledLen)
		m.Release()
	}
	r.give(1)
	for range native.RingSlots/2 + 1 {
		r.next()
	}
	r.give(native.RingFinished)
	must(t, r.ended())
}

// A ring that its reader has given back is the next one's; one that it has not given back is
// nobody's, and goes later. Their memory is bounded, and what one client has of it.
func TestRingsAreUsedAgain(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, func(c *Config) { c.WindowMemory = 4 * native.RingBytes }))
	n, data := f.nodes[0], random(1, 4<<20)
	finalized(t, n, 1, 1001, data)
	dial := viewers(t, n, "shm")
	v := dial()
	h := header(t, 1, 1001, nil)
	first, err := v.ring(h, 0, int64(len(data)))
	must(t, err)
	first.next()
	first.give(native.RingFinished)
	must(t, first.ended())
	second, err := v.ring(h, 0, int64(len(data)))
	must(t, err)
	if second.ring.Token != first.ring.Token {
		t.Error("a ring that was given back is not used again")
	}
	second.next()
	must(t, second.s.Close()) // without a word
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		n.rings.mu.Lock()
		idle := len(n.rings.idle)
		n.rings.mu.Unlock()
		if idle == 1 {
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("the reader has gone, and its ring is in use")
		}
	}
	third, err := v.ring(h, 0, int64(len(data)))
	must(t, err)
	if third.ring.Token == first.ring.Token {
		t.Error("a ring is used again that its reader has not given back")
	}
	var refused *verbena.CallError
	if _, err := v.ring(h, 0, int64(len(data))); !errors.As(err, &refused) || refused.Code != native.CodeNotNow {
		t.Errorf("more than half of the memory: %v", err)
	}
	other := dial()
	if r, err := other.ring(h, 0, int64(len(data))); err != nil || r.ring.Token == third.ring.Token {
		t.Errorf("another client: %v", err)
	}
	third.give(native.RingFinished)
	must(t, third.ended())
	n.rings.sweep(time.Now().Add(idleRing + time.Second))
	n.rings.mu.Lock()
	if len(n.rings.idle) != 1 || !n.rings.idle[0].spoilt {
		t.Errorf("%d rings are left, want the one that was not given back", len(n.rings.idle))
	}
	n.rings.mu.Unlock()
	n.rings.sweep(time.Now().Add(spoiltRing + time.Second))
	if b := n.Reads().Windows.Bytes; b != native.RingBytes { // the other client's
		t.Errorf("%d bytes of rings are left", b)
	}
}

// Who has no token gets no ring. One that gives back more slots than it has, or none, is
// told off. Over TCP, and of chunks that do not fit, there is none.
func TestRingsAreRefused(t *testing.T) {
	g := guardedFiles(t, nil)
	n, data := g.nodes[0], random(1, 3<<20)
	g.write(1, 1001, data, g.nodes)
	dial := viewers(t, n, "shm")
	v := dial()
	var refused *verbena.CallError
	for what, token := range map[string]*hdfspb.TokenProto{"none": nil, "to write": g.token("ada", blocktoken.Write, 1, 1001), "of another block": g.token("ada", blocktoken.Read, 2, 1001)} {
		if _, err := v.ring(header(t, 1, 1001, token), 0, 1); !errors.As(err, &refused) || native.StatusOf(refused.Code) != hdfspb.Status_ERROR_ACCESS_TOKEN {
			t.Errorf("token %s: %v", what, err)
		}
	}
	h := header(t, 1, 1001, g.token("ada", blocktoken.Read, 1, 1001))
	for _, wrong := range [][2]int64{{0, int64(len(data)) + 1}, {int64(len(data)), 1}, {1 << 60, 1}, {-1, 5}, {0, 0}} {
		if _, err := v.ring(h, wrong[0], wrong[1]); !errors.As(err, &refused) {
			t.Errorf("%d bytes at %d: %v", wrong[1], wrong[0], err)
		}
	}
	for _, n := range []byte{0, 1, native.RingSlots + 1} {
		r, err := v.ring(h, 0, 100) // one slot is in use, or none any more
		must(t, err)
		if n == 1 {
			r.next()
			r.give(1)
			must(t, r.ended())
			continue
		}
		r.give(n)
		if err := r.ended(); !errors.As(err, &refused) || native.StatusOf(refused.Code) != hdfspb.Status_ERROR {
			t.Errorf("%d slots are given back: %v", n, err)
		}
	}
	if _, err := viewers(t, n, verbena.TransportTCP)().ring(h, 0, 1); !errors.As(err, &refused) || refused.Code != native.CodeNotNow {
		t.Errorf("a ring over TCP: %v", err)
	}
	r, err := v.ring(h, 0, int64(len(data)))
	must(t, err)
	if err := v.c.Endpoint().Put(t.Context(), r.ring.Token, 0, data[:10]); err == nil {
		t.Error("a Put into a ring")
	}
}

// A replica that changes ends the reads through rings: what was read before stays right,
// and nothing comes after.
func TestRingsOfReplicasThatChange(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	n, data := f.nodes[0], random(1, 6<<20)
	finalized(t, n, 1, 1001, data)
	v := viewers(t, n, "shm")()
	r, err := v.ring(header(t, 1, 1001, nil), 0, int64(len(data)))
	must(t, err)
	at, b := r.next()
	if !bytes.Equal(b, data[at:at+int64(len(b))]) {
		t.Error("other bytes")
	}
	r.give(1)
	for range native.RingSlots { // all are full
		r.next()
	}
	must(t, n.store.Delete(1, 1001))
	r.give(native.RingSlots)
	var refused *verbena.CallError
	if err := r.ended(); !errors.As(err, &refused) {
		t.Errorf("after the deletion: %v", err)
	}
}

// A reader that gives slots back and takes nothing of what it is told does not keep what its read
// has for ever.
func TestRingsTellNobodyForEver(t *testing.T) {
	f := newFixture(t, 1, func(_ int, c *Config) { c.WriteTimeout = 50 * time.Millisecond })
	ended := make(chan error, 1)
	v := viewersBy(t, func(mux *verbena.Mux) {
		mux.Stream(native.MethodRing, func(q verbena.Request, s *verbena.Stream) {
			g := feeder{dn: f.nodes[0].DataNode, s: s}
			var err error
			for err == nil {
				g.untold = make([]byte, 64<<10)
				err = g.tell(q.Context(), true)
			}
			ended <- err
			f.nodes[0].answerRing(q, err)
		})
	}, verbena.TransportTCP, verbena.Config{})()
	s, err := v.c.Stream(t.Context(), native.MethodRing, nil)
	must(t, err)
	defer s.Close()
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
