package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A gate is a DataNode with one block. It answers the first read of a range at once, and
// then none before so many are there; those it answers in reverse order.
type gate struct {
	block []byte
	sum   transfer.Checksum
	least int

	mu      sync.Mutex
	reads   int
	waiting []func()
	most    int // reads that waited at a time
}

func (g *gate) read(q verbena.Request) {
	req, _, err := native.ParseReadRequest(q.Payload())
	if err != nil {
		_ = q.Fail(native.CodeOf(hdfspb.Status_ERROR_INVALID), err.Error()) // the reader tells
		return
	}
	released := make(chan struct{})
	g.mu.Lock()
	g.reads++
	if g.reads == 1 {
		close(released)
	} else {
		g.waiting = append(g.waiting, func() { close(released) })
		g.most = max(g.most, len(g.waiting))
		g.letGo()
	}
	g.mu.Unlock()
	select {
	case <-released:
	case <-q.Context().Done():
	}
	_ = q.Reply(g.answer(&req)) // its error is the endpoint's
}

// letGo answers the reads that wait, one after the other, if they are enough, or all that are
// left. mu is held.
func (g *gate) letGo() {
	piece := paceOf(int64(len(g.block))).piece
	pieces := (len(g.block) + piece - 1) / piece
	if len(g.waiting) < g.least && g.reads < pieces {
		return
	}
	for _, release := range slices.Backward(g.waiting) {
		release()
	}
	g.waiting = nil
}

func (g *gate) answer(q *native.ReadRequest) []byte {
	part := g.block[q.Offset : q.Offset+int64(q.Length)]
	sums := make([]byte, int(g.sum.Chunks(int64(len(part))))*g.sum.Size())
	g.sum.Sum(sums, part)
	b := make([]byte, native.ReadHeaderLen, native.ReadHeaderLen+len(sums)+len(part))
	native.PutReadHeader(b, &native.ReadAnswer{Sum: g.sum, Offset: q.Offset}, len(sums), len(part))
	return append(append(b, sums...), part...)
}

// pathTo starts a gate over TCP and returns a path to it, and a request for all of its block.
func pathTo(t *testing.T, g *gate) (*Path, *data.ReadRequest) {
	t.Helper()
	g.sum = crcs(t)
	mux := verbena.NewMux(verbena.MuxConfig{})
	mux.Long(native.MethodRead, g.read)
	return pathToCalls(t, mux, verbena.Config{}, len(g.block))
}

// crcs are the checksums of the tests' blocks.
func crcs(t *testing.T) transfer.Checksum {
	t.Helper()
	sum, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C, 512)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// pathToCalls serves calls by one runtime, and returns a path to them, and a request for all of a
// block of some bytes.
func pathToCalls(t *testing.T, mux *verbena.Mux, cfg verbena.Config, block int) (*Path, *data.ReadRequest) {
	t.Helper()
	rt, err := verbena.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := rt.Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{Services: []string{native.CallService}})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			e, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			serving.Go(func() { _ = mux.Serve(e) }) // it ends with the endpoint
		}
	})
	calls, err := rt.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{Service: native.CallService}})
	if err != nil {
		t.Fatal(err)
	}
	table := native.NewTable(native.TableConfig{Runtime: rt})
	p := New(Config{Table: table, Calls: calls, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		p.Close()
		if n := len(p.rings.targets.idle); n > 0 {
			t.Errorf("%d rings are left", n)
		}
		table.Close()
		if err := calls.Close(); err != nil {
			t.Error(err)
		}
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
		mux.Close()
		serving.Wait()
	})
	addr := ln.Addr().(*net.TCPAddr)
	return p, &data.ReadRequest{
		Block:  &hdfspb.ExtendedBlockProto{PoolId: proto.String("p"), BlockId: proto.Uint64(1), GenerationStamp: proto.Uint64(1)},
		Token:  &hdfspb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: proto.String(""), Service: proto.String("")},
		Client: "test", Length: int64(block),
		Node: &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{IpAddr: proto.String(addr.IP.String()), XferPort: proto.Uint32(uint32(addr.Port))}},
	}
}

func randomBlock(n int) []byte {
	b := make([]byte, n)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// readAll reads a range to its end.
func readAll(t *testing.T, path *Path, req *data.ReadRequest) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := path.Read(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for {
		b, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(got), err)
		}
		got = append(got, b...)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	path.rings.wg.Wait() // a ring is back
	return got
}

// While one piece of a range is used so many are on their way; they come in order, whatever
// the order of the answers. A short range is asked for by one call.
func TestReadsAhead(t *testing.T) {
	for _, test := range []struct{ length, calls, ahead int }{
		{1 << 20, 1, 0},
		{leastRing - 1, 2, 1},
		{10*flowing.piece + 700, 11, 4},
	} {
		t.Run(fmt.Sprint(test.length), func(t *testing.T) {
			g := &gate{block: randomBlock(test.length), least: test.ahead}
			p, req := pathTo(t, g)
			got := readAll(t, p, req)
			if !bytes.Equal(got, g.block) {
				t.Errorf("%d bytes came, which are not those of the block, of %d", len(got), len(g.block))
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.reads != test.calls || g.most != test.ahead {
				t.Errorf("%d calls, of which %d waited at a time; want %d and %d", g.reads, g.most, test.calls, test.ahead)
			}
		})
	}
}

// A reader that is closed in the middle ends what it has asked for, and asks for nothing more.
func TestReadsAheadEnd(t *testing.T) {
	g := &gate{block: randomBlock(10 * flowing.piece), least: 10}
	p, req := pathTo(t, g)
	r, err := p.Read(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := r.Next(); err != nil || !bytes.Equal(b, g.block[:flowing.piece]) {
		t.Fatalf("the first piece: %d bytes, %v", len(b), err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := r.Next(); err != io.EOF {
		t.Errorf("after Close: %d bytes, %v", len(b), err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reads > 1+flowing.ahead {
		t.Errorf("%d reads, want %d at most", g.reads, 1+flowing.ahead)
	}
}

// plain is a path whose reads either fail or are of one range.
type plain struct {
	data.Path // nil: nothing but reads is asked of it
	err       error
	asked     []data.ReadRequest
}

func (s *plain) Read(_ context.Context, req *data.ReadRequest) (data.BlockReader, error) {
	if s.asked = append(s.asked, *req); s.err != nil {
		return nil, s.err
	}
	return &onePiece{make([]byte, req.Length)}, nil
}

type onePiece struct{ b []byte }

func (r *onePiece) Next() (b []byte, err error) {
	if b, r.b = r.b, nil; b == nil {
		err = io.EOF
	}
	return b, err
}

func (r *onePiece) Close() error { return nil }

// A long range has a connection of its own where there is nothing but TCP. A short one, and one for
// which none can be had, is read by calls.
func TestLongReadsOverTCPHaveSockets(t *testing.T) {
	for _, test := range []struct {
		length int
		err    error
		asked  int // connections
		zeros  bool
	}{{leastRing, nil, 1, true}, {leastRing - 1, nil, 0, false}, {leastRing, io.ErrUnexpectedEOF, 1, false}} {
		g := &gate{block: randomBlock(test.length)}
		p, req := pathTo(t, g)
		s := &plain{err: test.err}
		p.cfg.Sockets = s
		r, err := p.Read(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for err == nil {
			var b []byte
			b, err = r.Next()
			got = append(got, b...)
		}
		want := g.block
		if test.zeros {
			want = make([]byte, test.length)
		}
		if err != io.EOF || !bytes.Equal(got, want) || len(s.asked) != test.asked {
			t.Errorf("%d bytes, connections that end with %v: %d came, %v, and %d connections were asked for", test.length, test.err, len(got), err, len(s.asked))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// parts gives the parts of a range one after the other, and then its error. Place has those that
// fit, where it is to have any.
type parts struct {
	data.Path // nil: nothing but reads is asked of it
	list      [][]byte
	err       error
	place     bool
	closed    int
}

func (s *parts) Read(context.Context, *data.ReadRequest) (data.BlockReader, error) { return s, nil }

func (s *parts) Next() ([]byte, error) {
	if len(s.list) == 0 {
		return nil, s.err
	}
	b := s.list[0]
	s.list = s.list[1:]
	return b, nil
}

func (s *parts) Place(p []byte) (int, error) {
	if !s.place {
		return 0, nil
	}
	b, err := s.Next()
	return copy(p, b), err
}

func (s *parts) Close() error {
	s.closed++
	return nil
}

// What is left of a range when its connection fails is read by calls, and blames no DataNode,
// which may have waited for the application. Where its bytes are wrong, or owed for too long, or
// its host is silent, or nobody wants them any more, it is not.
func TestReadsGoOnWithoutTheirSocket(t *testing.T) {
	gone := errors.New("the caller is gone")
	for _, test := range []struct {
		err    error
		cancel bool
		want   error // nil: the whole block comes
	}{
		{err: io.ErrUnexpectedEOF}, {err: io.EOF}, {err: transfer.ErrMalformed},
		{err: fmt.Errorf("at 512: %w", transfer.ErrChecksum), want: transfer.ErrChecksum},
		{err: fmt.Errorf("owed: %w", os.ErrDeadlineExceeded), want: os.ErrDeadlineExceeded},
		{err: fmt.Errorf("silent: %w", syscall.ETIMEDOUT), want: syscall.ETIMEDOUT},
		{err: io.ErrUnexpectedEOF, cancel: true, want: gone},
	} {
		for _, place := range []bool{false, true} {
			g := &gate{block: randomBlock(leastRing + 777)}
			p, req := pathTo(t, g)
			half := len(g.block)/2 + 11
			s := &parts{list: [][]byte{g.block[:1000], g.block[1000:half]}, err: test.err, place: place}
			p.cfg.Sockets = s
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r, err := p.Read(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			var got []byte
			for err == nil {
				b := make([]byte, len(g.block))
				var n int
				if n, err = r.(data.Placer).Place(b); n > 0 || err != nil {
					b = b[:n]
				} else {
					b, err = r.Next()
				}
				if got = append(got, b...); test.cancel && len(got) == half {
					cancel(gone)
				}
			}
			want, end := g.block, io.EOF
			if test.want != nil {
				want, end = g.block[:half], test.want
			}
			if !errors.Is(err, end) || !bytes.Equal(got, want) {
				t.Errorf("a connection that ends with %v, place %v: %d bytes came, %v; want %d, %v", test.err, place, len(got), err, len(want), end)
			}
			if err := r.Close(); err != nil || s.closed != 1 {
				t.Errorf("the connection was closed %d times, %v", s.closed, err)
			}
		}
	}
}

// A DataNode to which no connection can be had is not asked for one again and again. One that
// refuses a block is, and so is one whose caller has gone away.
func TestNoSocketIsRemembered(t *testing.T) {
	for _, test := range []struct {
		err   error
		asked int
	}{{io.ErrUnexpectedEOF, 1}, {fmt.Errorf("no: %w", &data.StatusError{Status: hdfspb.Status_ERROR}), 3}} {
		g := &gate{block: randomBlock(leastRing)}
		p, req := pathTo(t, g)
		s := &plain{err: test.err}
		p.cfg.Sockets = s
		for range 3 {
			r, err := p.Read(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		if len(s.asked) != test.asked {
			t.Errorf("%d connections that end with %v were asked for, want %d", len(s.asked), test.err, test.asked)
		}
		for address := range p.sockets.none {
			p.sockets.none[address] = time.Now()
		}
		if s.err = nil; p.readSocket(t.Context(), p.address(req.Node), req, nil) == nil {
			t.Error("no connection is asked for later")
		}
	}
	g := &gate{block: randomBlock(leastRing)}
	p, req := pathTo(t, g)
	p.cfg.Sockets = &plain{err: io.ErrUnexpectedEOF}
	address := p.address(req.Node)
	p.rings.refused(address, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := p.readSocket(ctx, address, req, nil); r != nil || !p.sockets.may(address) {
		t.Error("what the end of a context ended is remembered")
	}
}
