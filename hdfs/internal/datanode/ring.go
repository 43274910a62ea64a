package datanode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/limit"
)

const (
	// idleRing is for how long a ring stays that its client does not use: to make one takes
	// as long as to read some MiB.
	idleRing = 10 * time.Second
	// spoiltRing is for how long one stays that its reader has not given back.
	spoiltRing = time.Minute
	// ringLook is how often the rings that are in no use are looked at.
	ringLook = 2 * time.Second
	// firstPiece is how much the first slot of a reader gets, in bytes. Each further one
	// gets twice as much, up to native.SlotData: a reader that needs little waits for little.
	firstPiece = 128 << 10
	// slowPiece is how long a piece may take that the client is not told of at once: out of the
	// page cache it takes a tenth of that.
	slowPiece = 2 * time.Millisecond
	// aheadOf is how far in front of a reader the kernel is told to read from a disk, in
	// bytes: dfs.datanode.readahead.bytes.
	aheadOf = 4 << 20
)

// rings are memory through which clients read long ranges: docs/hdfs-data.md. Their memory
// counts with that of windows.
type rings struct {
	dn *DataNode

	mu      sync.Mutex
	closed  bool
	idle    []*ring // in no use
	looking bool

	served atomic.Uint64 // ranges
}

// A ring is one client's. At any time one reader of it has it, or it is idle.
type ring struct {
	memory   *verbena.Mapping
	exposure *verbena.Exposure
	client   *verbena.Caller
	// spoilt says that a reader has not told that it reads no more: another reader's bytes
	// must not come where it may read.
	spoilt bool
	until  time.Time // it may stay idle
}

// nativeRing has a client read a range through a ring.
func (dn *DataNode) nativeRing(q verbena.Request, s *verbena.Stream) {
	dn.answerRing(q, dn.serveRing(q, s))
}

// nativePush puts a range into a client's ring.
func (dn *DataNode) nativePush(q verbena.Request, s *verbena.Stream) {
	dn.answerRing(q, dn.servePush(q, s))
}

func (dn *DataNode) answerRing(q verbena.Request, err error) {
	if err == nil {
		_ = q.Reply(nil) // its error is that of the endpoint, whose end tells more
		return
	}
	code := native.CodeOf(statusOf(err))
	if errors.Is(err, errNoWindow) {
		code = native.CodeNotNow
	}
	_ = q.Fail(code, err.Error())
}

func (dn *DataNode) serveRing(q verbena.Request, s *verbena.Stream) error {
	req, header, err := native.ParseRingRequest(q.Payload())
	if err != nil {
		return err
	}
	return dn.feed(q, s, &req, header, func(f *feeder) error {
		g, err := dn.rings.take(q.Context(), q.Caller())
		if err != nil {
			return err
		}
		defer dn.rings.put(g)
		slots := pulled{g}
		err = f.run(q.Context(), slots, native.AppendRing(f.scratch[:0], &native.Ring{Sum: f.sum, Token: g.exposure.Token()}))
		g.spoilt = !f.finished && f.free < native.RingSlots
		return err
	})
}

func (dn *DataNode) servePush(q verbena.Request, s *verbena.Stream) error {
	req, ring, header, err := native.ParsePushRequest(q.Payload())
	if err != nil {
		return err
	}
	return dn.feed(q, s, &req, header, func(f *feeder) error {
		slots := &pushed{ep: q.Caller().Endpoint(), ring: ring, timeout: dn.cfg.WriteTimeout}
		defer slots.rest()
		return f.run(q.Context(), slots, native.AppendPush(f.scratch[:0], f.sum))
	})
}

// feed calls run with a feeder for a range that a client asks for.
func (dn *DataNode) feed(q verbena.Request, s *verbena.Stream, req *native.RingRequest, header []byte, run func(*feeder) error) error {
	if q.Caller().Endpoint().Selection().Transport == verbena.TransportTCP {
		return fmt.Errorf("%w: over TCP a Get and a Put are messages, too", errNoWindow)
	}
	if n := dn.transfers.Add(1); n > int64(dn.cfg.MaxTransfers) {
		dn.transfers.Add(-1)
		return errBusy
	}
	defer dn.transfers.Add(-1)
	r, err := dn.openKept(header, req.Offset+req.Length, req.Unverified)
	if err != nil {
		return err
	}
	defer dn.kept.done(r)
	sum := sent(r.Sum, req.Unverified)
	if !native.RingFits(sum) {
		return fmt.Errorf("%w: chunks of %d bytes do not fit one", errNoWindow, r.Sum.BytesPerChunk)
	}
	defer context.AfterFunc(dn.ctx, func() { _ = s.Close() })() // its error says nothing
	bpc := int64(r.Sum.BytesPerChunk)
	f := feeder{dn: dn, s: s, r: r, free: native.RingSlots, kept: native.RingSlots / 2, size: firstPiece, sum: sum, length: req.Length}
	f.off = req.Offset / bpc * bpc
	f.end = min((req.Offset+req.Length+bpc-1)/bpc*bpc, r.Length)
	f.advised = f.off
	err = run(&f)
	dn.noteCorrupt(r.Reader, err)
	return err
}

// slots are those of a ring.
type slots interface {
	// memory is where the next piece is read to, of n bytes of data and sums of checksums, for
	// the slot of a number.
	memory(ctx context.Context, slot uint64, n, sums int) (data, behind []byte, err error)
	// fill brings what has been read there into the slot.
	fill(ctx context.Context, slot uint64, n, sums int) error
	// rest gives back what is not needed while the client has to give slots back.
	rest()
}

// pulled are slots of this side's, which the client reads by Get.
type pulled struct{ *ring }

func (p pulled) memory(_ context.Context, slot uint64, n, sums int) (data, behind []byte, err error) {
	at, from := native.Slot(slot)
	all := p.ring.memory.Bytes()
	return all[at : at+n], all[from : from+sums], nil
}

func (pulled) fill(context.Context, uint64, int, int) error { return nil }

func (pulled) rest() {}

// pushed are slots of the client's, into which pieces are put. They all come out of one
// memory, since a Put is done when it returns. A client that is waited for has none: it is
// what all clients' answers are made in.
type pushed struct {
	ep      *verbena.Endpoint
	ring    verbena.Token
	piece   *verbena.Buffer // or nil
	timeout time.Duration   // of a client that takes nothing
}

func (p *pushed) memory(ctx context.Context, _ uint64, n, sums int) (data, behind []byte, err error) {
	if p.piece == nil {
		bound := limit.New(ctx, time.Now(), p.timeout)
		defer bound.End()
		if p.piece, err = p.ep.Buffer(bound, native.SlotData+native.SlotSums); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errNoWindow, err)
		}
	}
	all := p.piece.Bytes()
	return all[:n], all[n : n+sums], nil
}

func (p *pushed) rest() {
	if p.piece != nil {
		p.piece.Release()
		p.piece = nil
	}
}

func (p *pushed) fill(ctx context.Context, slot uint64, n, sums int) error {
	at, _ := native.Slot(slot)
	bound := limit.New(ctx, time.Now(), p.timeout)
	defer bound.End()
	return p.ep.PutBuffer(bound, p.ring, at, p.piece, 0, n+sums)
}

// A feeder fills the slots of a ring for one reader.
type feeder struct {
	dn     *DataNode
	s      *verbena.Stream
	r      *keptReplica
	slots  slots
	sum    transfer.Checksum // what the client compares
	length int64             // of what was asked for

	off, end int64 // what is still to be read: from a chunk's start to one's end, or the block's
	advised  int64 // up to where the kernel has been told to read
	pieces   uint64
	size     int // of the next piece, at most
	free     int // slots
	kept     int // of them, which are not filled before the client has given some back
	finished bool
	untold   []byte // what the client is to be sent about pieces
	scratch  [native.RingLen]byte
}

// run sends first, and fills slots until the client has given back all of them, or says that
// it is finished.
func (f *feeder) run(ctx context.Context, slots slots, first []byte) error {
	f.slots = slots
	f.dn.rings.served.Add(1)
	f.dn.reads.served.Add(1)
	f.dn.reads.bytes.Add(uint64(f.length))
	if err := f.send(ctx, first); err != nil {
		return err
	}
	for !f.finished && (f.off < f.end || f.free < native.RingSlots) {
		var err error
		if f.may() && f.off < f.end {
			err = f.fill(ctx)
		} else {
			err = f.wait(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// may tells whether there is a slot to fill. Many a client leaves early, as one that seeks does:
// for one that has read nothing yet half of a ring is filled.
func (f *feeder) may() bool { return f.free > f.kept }

// fill reads a piece into the next slot, and tells the client.
func (f *feeder) fill(ctx context.Context) error {
	began := time.Now()
	f.advise()
	bpc := f.sum.BytesPerChunk
	n := int(min(int64(max(bpc, f.size/bpc*bpc)), f.end-f.off))
	sums := int(f.sum.Chunks(int64(n))) * f.sum.Size()
	data, behind, err := f.slots.memory(ctx, f.pieces, n, sums)
	if err != nil {
		return err
	}
	if err := f.r.Read(data, behind, f.off); err != nil {
		return err
	}
	if err := f.slots.fill(ctx, f.pieces, n, sums); err != nil {
		return err
	}
	filled := native.Filled{Offset: f.off, Data: n, Sums: sums}
	f.off += int64(n)
	f.pieces++
	f.free--
	f.size = min(2*f.size, native.SlotData)
	f.untold = native.AppendFilled(f.untold, &filled)
	return f.tell(ctx, time.Since(began) > slowPiece)
}

// tell tells the client of the pieces that it does not know of, if it is time. It is at once
// when the last one has taken long: to wake the client is little beside that.
//
// In the middle of a long range that is half of a ring at a time. A client that has time to wait
// sleeps, and to wake it takes as long as to copy a good part of a piece. At either end it is
// fewer, since the client has nothing to do until it hears of the first one, and the DataNode
// has nothing to do behind the last one.
func (f *feeder) tell(ctx context.Context, slow bool) error {
	left := (f.end - f.off + native.SlotData - 1) / native.SlotData
	ramp := 1 + min(f.pieces, uint64(left))/(native.RingSlots/2)
	if f.may() && !slow && uint64(len(f.untold)) < native.FilledLen*min(ramp, native.RingSlots/2) {
		return nil
	}
	err := f.send(ctx, f.untold)
	f.untold = f.untold[:0]
	return err
}

// send sends something to the client, which may not take longer for it than a peer that does not
// read.
func (f *feeder) send(ctx context.Context, b []byte) error {
	bound := limit.New(ctx, time.Now(), f.dn.cfg.WriteTimeout)
	defer bound.End()
	return f.s.Send(bound, b)
}

// advise has the kernel read ahead of the reader.
func (f *feeder) advise() {
	if to := min(f.end, f.off+aheadOf); to > f.advised {
		f.r.advise(f.advised, to-f.advised)
		f.advised = to
	}
}

// wait waits until the client gives slots back. A client that needs longer than a peer that
// does not read may is left alone: it reads the rest by other methods.
func (f *feeder) wait(ctx context.Context) error {
	f.slots.rest()
	bound := limit.New(ctx, time.Now(), f.dn.cfg.WriteTimeout)
	defer bound.End()
	b, err := f.s.Recv(bound)
	if err != nil {
		return err
	}
	defer b.Release()
	for _, n := range b.Bytes() {
		if n == native.RingFinished {
			f.finished = true
			return nil
		}
		f.kept = 0
		if f.free += int(n); n < 1 || f.free > native.RingSlots {
			return fmt.Errorf("%w: %d slots are given back, and then %d of %d are free", native.ErrMalformed, n, f.free, native.RingSlots)
		}
	}
	return nil
}

// take returns a ring for a reader of a client, to be given back by put.
func (rs *rings) take(ctx context.Context, c *verbena.Caller) (*ring, error) {
	rs.mu.Lock()
	for i := len(rs.idle) - 1; i >= 0; i-- {
		if g := rs.idle[i]; g.client == c && !g.spoilt {
			rs.idle = append(rs.idle[:i], rs.idle[i+1:]...)
			rs.mu.Unlock()
			return g, nil
		}
	}
	rs.mu.Unlock()
	ws := &rs.dn.windows
	if err := ws.lend(c, native.RingBytes); err != nil {
		return nil, err
	}
	g, err := expose(ctx, c)
	if err != nil {
		ws.lent(c, -native.RingBytes)
		return nil, fmt.Errorf("%w: %w", errNoWindow, err)
	}
	return g, nil
}

// expose makes a ring for a client.
func expose(ctx context.Context, c *verbena.Caller) (*ring, error) {
	m, err := verbena.NewMapping(native.RingBytes)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, exposing)
	defer cancel()
	x, err := c.Endpoint().Expose(ctx, verbena.ExposeConfig{Memory: m.Bytes(), Rights: verbena.MayRead})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &ring{memory: m, exposure: x, client: c}, nil
}

// put keeps a ring for the client's next reader.
func (rs *rings) put(g *ring) {
	rs.mu.Lock()
	g.until = time.Now().Add(idleRing)
	if g.spoilt {
		g.until = time.Now().Add(spoiltRing)
	}
	keep := !rs.closed && g.client.Endpoint().Err() == nil
	if keep {
		rs.idle = append(rs.idle, g)
		if !rs.looking {
			rs.looking = rs.dn.goBackground(func() { rs.dn.sweepUntilNone(ringLook, rs.sweep) })
		}
	}
	rs.mu.Unlock()
	if !keep {
		rs.free(g)
	}
}

// sweep frees what has been idle for long, and returns how many idle rings are left.
func (rs *rings) sweep(now time.Time) int {
	rs.mu.Lock()
	var over []*ring
	left := rs.idle[:0]
	for _, g := range rs.idle {
		if now.After(g.until) || g.client.Endpoint().Err() != nil {
			over = append(over, g)
			continue
		}
		left = append(left, g)
	}
	clear(rs.idle[len(left):])
	rs.idle = left
	n := len(left)
	rs.looking = n > 0
	rs.mu.Unlock()
	for _, g := range over {
		rs.free(g)
	}
	return n
}

// free gives the memory of a ring back. A client that still reads from it loses the
// endpoint, which carries such reads alone.
func (rs *rings) free(g *ring) {
	if err := errors.Join(g.exposure.Close(), g.memory.Close()); err != nil {
		rs.dn.log.Warn("the memory of a ring can't be given back", "err", err)
	}
	rs.dn.windows.lent(g.client, -native.RingBytes)
}

// close frees all. Those in use follow when their readers' handlers return.
func (rs *rings) close() {
	rs.mu.Lock()
	rs.closed = true
	rs.mu.Unlock()
	rs.sweep(never)
}
