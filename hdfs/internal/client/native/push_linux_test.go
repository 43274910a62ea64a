package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp"
)

// A pusher is a DataNode over iWARP with one block, which it puts into rings as told.
type pusher struct {
	block []byte
	sum   transfer.Checksum
	// piece does what there is to do for a piece, which is good as it comes.
	piece func(p *pusher, n uint64, slot []byte, filled *native.Filled) (put bool)

	mu     sync.Mutex
	rings  []verbena.Token // of the calls
	calls  int             // of method 1
	fails  bool            // that
	refuse bool            // pushes
	hold   chan struct{}   // not nil: a push waits for it after its first slot
	handed int             // slots that came back
	full   chan struct{}   // gets one when all slots are filled, if it has room
}

func (p *pusher) push(q verbena.Request, s *verbena.Stream) {
	req, ring, _, err := native.ParsePushRequest(q.Payload())
	if err != nil {
		_ = q.Fail(native.CodeOf(hdfspb.Status_ERROR_INVALID), err.Error()) // the reader tells
		return
	}
	p.mu.Lock()
	p.rings = append(p.rings, ring)
	hold, refuse := p.hold, p.refuse
	p.mu.Unlock()
	if refuse {
		_ = q.Fail(native.CodeNotNow, "no rings") // the reader tells
		return
	}
	if err := p.feed(q, s, &req, ring, hold); err != nil {
		_ = q.Fail(native.CodeOf(hdfspb.Status_ERROR), err.Error())
		return
	}
	_ = q.Reply(nil) // its error is the endpoint's
}

func (p *pusher) feed(q verbena.Request, s *verbena.Stream, req *native.RingRequest, ring verbena.Token, hold chan struct{}) error {
	if _, err := s.Write(native.AppendPush(nil, p.sum)); err != nil {
		return err
	}
	free := native.RingSlots
	const length = 200 << 10
	var told []byte
	for n, off := uint64(0), req.Offset/512*512; off < req.Offset+req.Length || free < native.RingSlots; {
		if free == 0 || off >= req.Offset+req.Length {
			select {
			case p.full <- struct{}{}:
			default:
			}
			b, err := s.Recv(q.Context())
			if err != nil {
				return err
			}
			for _, given := range b.Bytes() {
				if given == native.RingFinished {
					b.Release()
					return nil
				}
				free += int(given)
				p.mu.Lock()
				p.handed += int(given)
				p.mu.Unlock()
			}
			b.Release()
			continue
		}
		data := p.block[off:min(off+length, int64(len(p.block)))]
		sums := make([]byte, int(p.sum.Chunks(int64(len(data))))*p.sum.Size())
		p.sum.Sum(sums, data)
		slot := append(bytes.Clone(data), sums...)
		filled := native.Filled{Offset: off, Data: len(data), Sums: len(sums)}
		if p.piece == nil || p.piece(p, n, slot, &filled) {
			at, _ := native.Slot(n)
			if err := q.Caller().Endpoint().Put(q.Context(), ring, at, slot); err != nil {
				return err
			}
		}
		told = native.AppendFilled(told, &filled)
		off += int64(len(data))
		n++
		free--
		// The first one alone, and two together then.
		if n == 1 || len(told) == 2*native.FilledLen || free == 0 || off >= req.Offset+req.Length {
			if _, err := s.Write(told); err != nil {
				return err
			}
			told = told[:0]
		}
		if hold != nil && n == 1 {
			<-hold
		}
	}
	return nil
}

// read answers method 1.
func (p *pusher) read(q verbena.Request) {
	req, _, err := native.ParseReadRequest(q.Payload())
	if err != nil {
		_ = q.Fail(native.CodeOf(hdfspb.Status_ERROR_INVALID), err.Error()) // the reader tells
		return
	}
	p.mu.Lock()
	p.calls++
	fails := p.fails
	p.mu.Unlock()
	if fails {
		_ = q.Fail(native.CodeOf(hdfspb.Status_ERROR), "as the test wants it") // the reader tells
		return
	}
	_ = q.Reply((&gate{block: p.block, sum: p.sum}).answer(&req)) // its error is the endpoint's
}

// asked is how many calls have come.
func (p *pusher) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

// holds has pushes wait behind their first slot, until release is called.
func (p *pusher) holds() (release func()) {
	hold := make(chan struct{})
	p.hold = hold
	return sync.OnceFunc(func() { close(hold) })
}

// pushedTo starts a pusher and returns a path to it, and a request for all of its block.
func pushedTo(t *testing.T, p *pusher) (*Path, *data.ReadRequest) {
	t.Helper()
	return pushedWith(t, p, verbena.Config{})
}

// pushedWith is pushedTo with another configuration of the runtime.
func pushedWith(t *testing.T, p *pusher, cfg verbena.Config) (*Path, *data.ReadRequest) {
	t.Helper()
	p.sum = crcs(t)
	mux := verbena.NewMux(verbena.MuxConfig{})
	mux.Long(native.MethodRead, p.read)
	mux.Stream(native.MethodPush, p.push)
	cfg.Providers = []rdma.Provider{iwarp.New(iwarp.Config{})}
	return pathToCalls(t, mux, cfg, len(p.block))
}

// begin reads a first piece.
func begin(ctx context.Context, t *testing.T, path *Path, req *data.ReadRequest) data.BlockReader {
	t.Helper()
	r, err := path.Read(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	return r
}

// kept fails unless one ring is kept for the next read.
func kept(t *testing.T, path *Path) {
	t.Helper()
	if ts := &path.rings.targets; len(ts.idle) != 1 || ts.idle[0].spoilt {
		t.Errorf("the ring is not kept for others: %d are", len(ts.idle))
	}
}

// end closes a reader.
func end(t *testing.T, r data.BlockReader) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// Long reads come into one ring after the other read has given it back, whatever their places.
func TestPushedReads(t *testing.T) {
	p := &pusher{block: randomBlock(5<<20 + 77)}
	path, all := pushedTo(t, p)
	for _, part := range [][2]int64{{0, int64(len(p.block))}, {1, 3 << 20}, {511, leastRing}, {1<<20 + 13, 4<<20 + 64}} {
		req := *all
		req.Offset, req.Length = part[0], part[1]
		if got := readAll(t, path, &req); !bytes.Equal(got, p.block[part[0]:part[0]+part[1]]) {
			t.Errorf("%d bytes at %d are others, or %d", part[1], part[0], len(got))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rings) != 4 || p.calls != 0 {
		t.Fatalf("%d pushes and %d calls", len(p.rings), p.calls)
	}
	for _, ring := range p.rings[1:] {
		if ring != p.rings[0] {
			t.Error("a read has another ring than the one before it")
		}
	}
}

// A slot is the DataNode's again when the application asks for the next bytes, and not before.
func TestPushedSlotsStay(t *testing.T) {
	p := &pusher{block: randomBlock(5 << 20), full: make(chan struct{}, 1)}
	path, req := pushedTo(t, p)
	r, err := path.Read(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for off := 0; off < len(p.block); {
		b, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if off == 0 {
			<-p.full
		}
		if !bytes.Equal(b, p.block[off:off+len(b)]) {
			t.Fatalf("%d bytes at %d are others", len(b), off)
		}
		off += len(b)
		p.mu.Lock()
		handed := p.handed
		p.mu.Unlock()
		if used := (off + 200<<10 - 1) / (200 << 10); handed > max(used-1, 0) {
			t.Fatalf("%d slots were given back, and %d used", handed, used)
		}
	}
}

// A reader that takes long gives slots back one by one.
func TestSlowReadersGiveSlotsBack(t *testing.T) {
	p := &pusher{block: randomBlock(5 << 20)}
	path, req := pushedTo(t, p)
	r := begin(t.Context(), t, path, req)
	defer end(t, r)
	ring := r.(*ringReader)
	for range creditEvery {
		ring.gave = time.Now().Add(-creditAfter)
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if ring.owed != 0 {
			t.Errorf("%d slots are kept back", ring.owed)
		}
	}
	for n := range byte(creditEvery) {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if due := (n + 1) % creditEvery; ring.owed != due {
			t.Errorf("%d slots are kept back by a fast reader, want %d", ring.owed, due)
		}
	}
}

// A ring that is kept for another DataNode's reads gives way where memory is short.
func TestRingsInNoUseGiveWay(t *testing.T) {
	p := &pusher{block: randomBlock(5 << 20)}
	path, req := pushedWith(t, p, verbena.Config{SendMemory: 7 << 20})
	other, another := pushedTo(t, &pusher{block: randomBlock(3 << 20)})
	readAll(t, path, req)
	readAll(t, other, another)
	path.rings.targets.idle[0].ep = other.rings.targets.idle[0].ep
	began := time.Now()
	if !bytes.Equal(readAll(t, path, req), p.block) {
		t.Error("other bytes")
	}
	if took, calls := time.Since(began), p.asked(); calls > 0 || took > exposing {
		t.Errorf("after %v: %d calls, no ring", took, calls)
	}
	kept(t, path)
}

// A DataNode whose rings have another size is read by calls.
func TestRingsOfAnotherVersion(t *testing.T) {
	block := randomBlock(3 << 20)
	mux := verbena.NewMux(verbena.MuxConfig{})
	p := &pusher{block: block, sum: crcs(t)}
	mux.Long(native.MethodRead, p.read)
	mux.Stream(native.MethodPush, func(q verbena.Request, s *verbena.Stream) {
		_, _ = s.Write(make([]byte, native.PushLen+1)) // the reader tells
		_ = q.Reply(nil)                               // likewise
	})
	path, req := pathToCalls(t, mux, verbena.Config{Providers: []rdma.Provider{iwarp.New(iwarp.Config{})}}, len(block))
	if !bytes.Equal(readAll(t, path, req), block) || p.asked() == 0 {
		t.Errorf("other bytes, or none by calls: %d", p.asked())
	}
}

// What a DataNode puts wrong, or tells wrong, is read by calls.
func TestPushesAreCompared(t *testing.T) {
	for what, piece := range map[string]func(p *pusher, n uint64, slot []byte, f *native.Filled) bool{
		"another byte":   func(_ *pusher, n uint64, slot []byte, _ *native.Filled) bool { slot[7] ^= byte(n / 3); return true },
		"nothing is put": func(_ *pusher, n uint64, _ []byte, _ *native.Filled) bool { return n != 5 },
		"another place": func(_ *pusher, n uint64, _ []byte, f *native.Filled) bool {
			f.Offset += int64(n / 3 * 512)
			return true
		},
		"fewer checksums": func(_ *pusher, n uint64, _ []byte, f *native.Filled) bool { f.Sums -= int(n / 3 * 4); return true },
		"too long": func(_ *pusher, n uint64, _ []byte, f *native.Filled) bool {
			if n == 3 {
				f.Data = native.SlotData + 512
			}
			return true
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := &pusher{block: randomBlock(3 << 20), piece: piece}
			path, req := pushedTo(t, p)
			if got := readAll(t, path, req); !bytes.Equal(got, p.block) {
				t.Errorf("%d bytes came, which are not those of the block", len(got))
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.rings) != 1 || p.calls == 0 {
				t.Errorf("%d pushes and %d calls", len(p.rings), p.calls)
			}
		})
	}
}

// A piece that is not put is missed in a ring that has the same bytes from an earlier read, too.
func TestPiecesOfEarlierReadsAreNotTaken(t *testing.T) {
	for missing := range uint64(native.RingSlots) {
		p := &pusher{block: randomBlock(3 << 20)}
		p.piece = func(p *pusher, n uint64, _ []byte, _ *native.Filled) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.rings) == 1 || n != missing
		}
		path, req := pushedTo(t, p)
		r := begin(t.Context(), t, path, req)
		end(t, r)
		path.rings.wg.Wait() // the DataNode fills its slots before it listens
		if got := readAll(t, path, req); !bytes.Equal(got, p.block) {
			t.Errorf("%d bytes came, which are not those of the block", len(got))
		}
		p.mu.Lock()
		if len(p.rings) != 2 || p.rings[0] != p.rings[1] || p.calls == 0 {
			t.Errorf("piece %d is not put: %d pushes and %d calls", missing, len(p.rings), p.calls)
		}
		p.mu.Unlock()
	}
}

// A reader whose ring and whose calls have failed leaves the ring alone.
func TestFailedReadersHaveNoRing(t *testing.T) {
	p := &pusher{block: randomBlock(3 << 20), fails: true}
	p.piece = func(_ *pusher, n uint64, _ []byte, _ *native.Filled) bool { return n != 1 }
	path, req := pushedTo(t, p)
	r := begin(t.Context(), t, path, req)
	for range 3 {
		if b, err := r.Next(); err == nil {
			t.Fatalf("%d bytes of a piece that was not put", len(b))
		}
	}
	end(t, r)
	path.rings.wg.Wait()
	kept(t, path)
}

// Who gives a read up behind its end, or is refused a push, leaves its ring to the next read.
func TestRingsAreGivenBack(t *testing.T) {
	p := &pusher{block: randomBlock(3 << 20)}
	release := p.holds()
	defer release()
	path, req := pushedTo(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := begin(ctx, t, path, req)
	end(t, r)
	cancel() // while the DataNode has not answered
	release()
	path.rings.wg.Wait()
	p.mu.Lock()
	p.refuse = true
	p.mu.Unlock()
	if got := readAll(t, path, req); !bytes.Equal(got, p.block) {
		t.Error("other bytes")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rings) != 2 || p.rings[0] != p.rings[1] {
		t.Errorf("%d pushes, into several rings", len(p.rings))
	}
	kept(t, path)
}

// A ring whose DataNode has not said that it puts nothing more is nobody's until it is closed.
func TestRingsInDoubtAreNotUsed(t *testing.T) {
	p := &pusher{block: randomBlock(3 << 20)}
	release := p.holds()
	defer release()
	path, req := pushedTo(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	r := begin(ctx, t, path, req)
	cancel()
	var err error
	for err == nil {
		_, err = r.Next()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a read that nobody wants any more says %v", err)
	}
	end(t, r)
	path.rings.wg.Wait()
	p.mu.Lock()
	p.hold = nil
	p.mu.Unlock()
	if got := readAll(t, path, req); !bytes.Equal(got, p.block) {
		t.Error("other bytes")
	}
	p.mu.Lock()
	if len(p.rings) != 2 || p.rings[0] == p.rings[1] {
		t.Errorf("%d pushes, into one ring", len(p.rings))
	}
	p.mu.Unlock()
	release()
	idle := func() int {
		path.rings.targets.mu.Lock()
		defer path.rings.targets.mu.Unlock()
		return len(path.rings.targets.idle)
	}
	if n := idle(); n != 2 {
		t.Errorf("%d rings are kept", n)
	}
	path.rings.targets.sweep(time.Now().Add(idleTarget + time.Second))
	if n := idle(); n != 1 {
		t.Errorf("%d rings are kept, want the one in doubt", n)
	}
	path.rings.targets.sweep(time.Now().Add(spoiltTarget + time.Second))
	if n := idle(); n != 0 {
		t.Errorf("%d rings are kept", n)
	}
}

// A request that was not sent is tried on another endpoint, unless nobody wants it any more.
func TestLostRequests(t *testing.T) {
	path, req := pushedTo(t, &pusher{block: randomBlock(2 << 20)})
	address := fmt.Sprintf("%s:%d", req.Node.GetId().GetIpAddr(), req.Node.GetId().GetXferPort())
	lease, err := path.windows.session.Get(t.Context(), address, verbena.Intent{Operation: readOperation})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Put()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	notSent := fmt.Errorf("%w: %w", verbena.ErrNotSent, context.Canceled)
	for _, c := range []struct {
		lease  verbena.Lease
		within context.Context
		err    error
		want   bool
	}{
		{lease, t.Context(), notSent, true},
		{lease, t.Context(), errOverTCP, false},
		{lease, gone, notSent, false},
		{verbena.Lease{}, t.Context(), notSent, false},
	} {
		r := &ringReader{lease: c.lease, within: c.within}
		if got := r.lost(c.err); got != c.want {
			t.Errorf("%v, of a reader that ends with %v, in a lease: %v; lost: %v", c.err, c.within.Err(), c.lease != verbena.Lease{}, got)
		}
	}
}

// No more rings are kept than there may be, however many reads there were at a time.
func TestIdleRingsAreBounded(t *testing.T) {
	p := &pusher{block: randomBlock(2 << 20)}
	path, req := pushedTo(t, p)
	var open []data.BlockReader
	for range mostTargets + 4 {
		r := begin(t.Context(), t, path, req)
		open = append(open, r)
	}
	for _, r := range open {
		end(t, r)
	}
	path.rings.wg.Wait()
	path.rings.targets.mu.Lock()
	defer path.rings.targets.mu.Unlock()
	if n := len(path.rings.targets.idle); n != mostTargets {
		t.Errorf("%d rings are kept, at most %d", n, mostTargets)
	}
}
