package datanode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// pushing is a reader of a range that comes into a ring of its own.
type pushing struct {
	v        *viewer
	s        *verbena.Stream
	ring     []byte
	exposure *verbena.Exposure
	sum      transfer.Checksum
	n        uint64 // slots that were filled
}

// push asks for a range.
func (v *viewer) push(header []byte, off, length int64) (*pushing, error) {
	v.t.Helper()
	m, err := verbena.NewMapping(native.RingBytes)
	must(v.t, err)
	v.t.Cleanup(func() { m.Close() })
	x, err := v.c.Endpoint().Expose(v.t.Context(), verbena.ExposeConfig{Memory: m.Bytes(), Rights: verbena.MayWrite})
	must(v.t, err)
	v.t.Cleanup(func() { x.Close() })
	request := native.AppendPushRequest(nil, &native.RingRequest{Offset: off, Length: length}, x.Token(), header)
	s, err := v.c.Stream(v.t.Context(), native.MethodPush, request)
	must(v.t, err)
	v.t.Cleanup(func() { s.Close() })
	var b [native.PushLen]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return nil, err
	}
	p := &pushing{v: v, s: s, ring: m.Bytes(), exposure: x}
	p.sum, err = native.ParsePush(b[:])
	must(v.t, err)
	return p, nil
}

// next waits for the next slot.
func (p *pushing) next() (off int64, data []byte) {
	p.v.t.Helper()
	var b [native.FilledLen]byte
	_, err := io.ReadFull(p.s, b[:])
	must(p.v.t, err)
	f, err := native.ParseFilled(b[:], p.sum)
	must(p.v.t, err)
	at, _ := native.Slot(p.n)
	p.n++
	data = p.ring[at : at+f.Data]
	must(p.v.t, p.sum.Verify(p.ring[at+f.Data:at+f.Data+f.Sums], data))
	return f.Offset, data
}

// fill waits until all slots are full.
func (p *pushing) fill() {
	p.v.t.Helper()
	p.next()
	p.give(1)
	for range native.RingSlots {
		p.next()
	}
}

func (p *pushing) give(n byte) {
	p.v.t.Helper()
	_, err := p.s.Write([]byte{n})
	must(p.v.t, err)
}

func (p *pushing) ended() error {
	p.v.t.Helper()
	m, err := p.s.Answer(p.v.t.Context())
	if err == nil {
		m.Release()
	}
	return err
}

// A range comes slot by slot into the client's ring, no slot is written to before it has been
// given back, and the call ends when all are back.
func TestPushes(t *testing.T) {
	for _, transport := range []string{"shm", "iwarp"} {
		f := newFixture(t, 1, onDisk(t, nil))
		n, data := f.nodes[0], random(1, 5<<20+700)
		finalized(t, n, 1, 1001, data)
		v := viewers(t, n, transport)()
		const off, length = 1000, 5<<20 - 2000
		p, err := v.push(header(t, 1, 1001, nil), off, length)
		must(t, err)
		want := int64(512)
		var second []byte
		var from int64
		for want < off+length {
			at, b := p.next()
			if at != want || !bytes.Equal(b, data[at:at+int64(len(b))]) {
				t.Fatalf("%s: %d bytes at %d, due is %d", transport, len(b), at, want)
			}
			want += int64(len(b))
			switch {
			case p.n == 1: // the others are kept until then
				p.give(1)
			case p.n == 2:
				second, from = b, at
			case p.n == native.RingSlots+1: // all are full: there is time for one more, if it came
				time.Sleep(50 * time.Millisecond)
				if !bytes.Equal(second, data[from:from+int64(len(second))]) {
					t.Errorf("%s: a slot was written to that was not given back", transport)
				}
				p.give(native.RingSlots - 1)
			case p.n > native.RingSlots+1:
				p.give(1)
			}
		}
		if want != (off+length+511)/512*512 {
			t.Errorf("%s: the last slot ends at %d", transport, want)
		}
		p.give(1)
		must(t, p.ended())
		if s := n.Reads(); s.Rings != 1 || s.Served != 1 || s.ServedBytes != length || s.Windows.Bytes != 0 {
			t.Errorf("%s: %+v", transport, s)
		}
		n.stop()
	}
}

// A client that says that it has enough gets no more, and hears when the last has come.
func TestPushesEnd(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	n, data := f.nodes[0], random(1, 6<<20)
	finalized(t, n, 1, 1001, data)
	v := viewers(t, n, "iwarp")()
	h := header(t, 1, 1001, nil)
	p, err := v.push(h, 0, int64(len(data)))
	must(t, err)
	p.next()
	p.give(native.RingFinished)
	must(t, p.ended())
	clear(p.ring)
	time.Sleep(20 * time.Millisecond)
	if i := bytes.IndexFunc(p.ring, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of the ring was written to behind the answer", i)
	}
	for _, wrong := range []byte{0, native.RingSlots + 1} {
		p, err := v.push(h, 0, 100)
		must(t, err)
		p.next()
		p.give(wrong)
		var told *verbena.CallError
		if err := p.ended(); !errors.As(err, &told) {
			t.Errorf("%d slots are given back: %v", wrong, err)
		}
	}
}

// Nothing is put where a token does not lead, without a client's right to the block, or over
// TCP; and a client that takes its ring back is the only one to lose by it.
func TestPushesAreRefused(t *testing.T) {
	g := guardedFiles(t, func(c *Config) { c.WriteTimeout = 2 * time.Second })
	n, data := g.nodes[0], random(1, 6<<20)
	g.write(1, 1001, data, g.nodes)
	dial := viewers(t, n, "iwarp")
	v := dial()
	var refused *verbena.CallError
	if _, err := v.push(header(t, 1, 1001, nil), 0, 1); !errors.As(err, &refused) {
		t.Errorf("without a token of the block: %v", err)
	}
	h := header(t, 1, 1001, g.token("ada", blocktoken.Read, 1, 1001))
	for _, wrong := range [][2]int64{{0, int64(len(data)) + 1}, {int64(len(data)), 1}, {1 << 60, 1}, {-1, 5}, {0, 0}} {
		if _, err := v.push(h, wrong[0], wrong[1]); !errors.As(err, &refused) {
			t.Errorf("%d bytes at %d: %v", wrong[1], wrong[0], err)
		}
	}
	small, err := verbena.NewMapping(native.RingBytes / 2)
	must(t, err)
	t.Cleanup(func() { small.Close() })
	x, err := v.c.Endpoint().Expose(t.Context(), verbena.ExposeConfig{Memory: small.Bytes(), Rights: verbena.MayWrite})
	must(t, err)
	t.Cleanup(func() { x.Close() })
	_, err = v.c.Call(t.Context(), native.MethodPush, native.AppendPushRequest(nil, &native.RingRequest{Length: 1}, x.Token(), h))
	if !errors.As(err, &refused) {
		t.Errorf("half a ring: %v", err)
	}
	if _, err := viewers(t, n, verbena.TransportTCP)().push(h, 0, 1); !errors.As(err, &refused) || refused.Code != native.CodeNotNow {
		t.Errorf("a push over TCP: %v", err)
	}
	// One that takes its memory back in the middle loses its endpoint.
	p, err := v.push(h, 0, int64(len(data)))
	must(t, err)
	p.fill()
	must(t, p.exposure.Close())
	p.give(native.RingSlots)
	if err := p.ended(); err == nil {
		t.Error("a range came into memory that is not exposed any more")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case <-v.c.Endpoint().Done():
	case <-ctx.Done():
		t.Error("the endpoint of a client that has taken its ring back lives")
	}
	other, err := dial().push(h, 0, int64(len(data)))
	must(t, err)
	if at, b := other.next(); !bytes.Equal(b, data[at:at+int64(len(b))]) {
		t.Error("another client gets other bytes")
	}
}

// Clients that give no slot back have none of the memory that others' answers are made in.
func TestPushesThatWaitHoldNoMemory(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, func(c *Config) { c.WriteTimeout = 10 * time.Second }))
	n, data := f.nodes[0], random(1, 6<<20)
	finalized(t, n, 1, 1001, data)
	v := viewersOf(t, n, "iwarp", verbena.Config{SendMemory: 8 << 20})()
	h := header(t, 1, 1001, nil)
	var waiting []*pushing
	for range 20 {
		p, err := v.push(h, 0, int64(len(data)))
		must(t, err)
		p.fill()
		waiting = append(waiting, p)
	}
	m, err := v.c.Call(t.Context(), native.MethodRead, native.AppendReadRequest(nil, &native.ReadRequest{Length: 1 << 20}, h))
	must(t, err)
	m.Release()
	for _, p := range waiting { // and they go on
		p.give(native.RingSlots)
		off, b := p.next()
		if !bytes.Equal(b, data[off:off+int64(len(b))]) {
			t.Errorf("%d bytes at %d are others", len(b), off)
		}
		p.give(native.RingFinished)
		must(t, p.ended())
	}
}

// Over the native path, too, the bytes of a replica whose meta file is missing are sent to who compares nothing, and to
// nobody else, although the replica stays open.
func TestNativeReadWithoutTheMetaFile(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	n, data := f.nodes[0], random(1, 5000)
	finalized(t, n, 1, 1001, data)
	must(t, n.cfg.FS.Remove(n.cfg.FS.PathJoin(n.cfg.Dirs[0].Path, "blocks", "00", "blk_1_1001.meta")))
	c, h := viewersOf(t, n, "iwarp", verbena.Config{})().c, header(t, 1, 1001, nil)
	for _, unverified := range []bool{false, true, false} {
		m, err := c.Call(t.Context(), native.MethodRead, native.AppendReadRequest(nil, &native.ReadRequest{Length: len(data), Unverified: unverified}, h))
		if (err == nil) != unverified || err == nil && !bytes.HasSuffix(m.Bytes(), data) {
			t.Errorf("unverified is %t: %v", unverified, err)
		}
		if err == nil {
			m.Release()
		}
	}
	if err := open(t, n, h, 1); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("the replica that is open is given to who compares: %v", err)
	}
}
