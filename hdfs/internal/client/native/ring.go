package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

const (
	// leastRing is the shortest range that is read through a ring, in bytes: to set one up
	// takes as long as to ask for a piece by a call.
	leastRing = 2 << 20
	// step is how much is fetched out of a slot at a time, in bytes: the processor still
	// has it when its checksums are computed, and when it is copied to where the
	// application wants it.
	step = native.SlotData
	// creditEvery is how many slots are given back at a time: half of a ring, so that the
	// DataNode has the other half to fill.
	creditEvery = native.RingSlots / 2
	// creditAfter is when slots are given back though they are fewer: the DataNode leaves a
	// reader alone that gives none back for a minute.
	creditAfter = 5 * time.Second
	// noRings is for how long a DataNode is not asked for a ring that has none for us.
	noRings = 10 * time.Second
	// promptTransport is where the processor carries Gets out, and not a device: they need no
	// registered memory of this side.
	promptTransport = "shm"
	// farewell bounds the wait for a DataNode to take a ring back.
	farewell = 10 * time.Second
)

// rings are how long ranges are read. Their endpoints are those of windows, and carry no
// other calls: a DataNode that takes a ring back from a client which still reads ends the
// endpoint.
type rings struct {
	wg      sync.WaitGroup // of rings that are given back
	targets targets

	mu   sync.Mutex
	none map[string]refusal // by address
}

// A refusal is a DataNode's that has no ring for us.
type refusal struct {
	until time.Time // it is not asked again before
	tcp   bool      // because the endpoint is over TCP
}

func (rs *rings) init() { rs.none = map[string]refusal{} }

// close waits for what the end of the windows' session ends.
func (rs *rings) close() {
	rs.wg.Wait()
	rs.targets.close()
}

// may tells whether a DataNode may have a ring for us.
func (rs *rings) may(address string) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return time.Now().After(rs.none[address].until)
}

// onlyTCP tells whether there is nothing better than TCP to a DataNode that has been asked.
func (rs *rings) onlyTCP(address string) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.none[address].tcp
}

// refused notes that a DataNode has none.
func (rs *rings) refused(address string, tcp bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.none[address] = refusal{time.Now().Add(noRings), tcp}
}

// ringReader reads a range through a ring. Whatever goes wrong there, it reads the rest by
// calls, whose errors tell which DataNode is to blame.
type ringReader struct {
	p       *Path
	ctx     context.Context // the caller's
	address string
	req     data.ReadRequest // Offset and Length are what is left
	header  []byte           // encoded

	stop   context.CancelFunc // of all that follows
	within context.Context    // ends with ctx, until the ring is given back
	unhook func() bool        // ends that
	timer  *time.Timer        // ends within when the DataNode owes something for too long
	lease  verbena.Lease
	stream *verbena.Stream
	ring   native.Ring
	target *target // the ring is ours, or nil: the DataNode's, which is read by Get
	batch  *verbena.Batch
	memory *verbena.Buffer
	piece  native.Filled // the one that is being fetched
	taken  int           // of its data
	pieces uint64        // that have come
	owed   byte          // slots that can be given back
	gave   time.Time     // when some were

	left  bool // the ring has been given back
	other data.BlockReader
}

// readRing begins to read a range through a ring. It returns nil where there is none.
func (p *Path) readRing(ctx context.Context, address string, req *data.ReadRequest, header []byte) (data.BlockReader, error) {
	if req.Length < leastRing || !p.rings.may(address) {
		return nil, nil
	}
	r := &ringReader{p: p, ctx: ctx, address: address, req: *req, header: header}
	r.within, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.unhook = context.AfterFunc(ctx, r.stop)
	r.timer = time.AfterFunc(p.cfg.SocketTimeout, r.stop)
	err := r.open()
	if err == nil {
		return r, nil
	}
	tcp := err == errOverTCP
	r.leave()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !refused(err) {
		return nil, fmt.Errorf("DataNode %s: %w", address, err)
	}
	p.cfg.Logger.Debug("hdfs: no ring", "datanode", address, "reason", err)
	p.rings.refused(address, tcp)
	return nil, nil
}

// refused tells whether an error is the answer of a DataNode that is there, be it one of
// another version, whose rings have another size.
func refused(err error) bool {
	var told *verbena.CallError
	var none *verbena.RefusedError
	var legacy *verbena.LegacyPeerError
	return err == errOverTCP || errors.Is(err, errNoTarget) || errors.As(err, &told) || errors.As(err, &none) || errors.As(err, &legacy) || errors.Is(err, verbena.ErrNoStreams) || errors.Is(err, native.ErrMalformed)
}

// errOverTCP says that there is nothing better than TCP to a DataNode.
var errOverTCP = errors.New("over TCP a Get and a Put are messages, too")

// open asks for a ring and waits until the DataNode has told of it. Where Gets are carried out
// within the call the ring is the DataNode's, and bytes come straight to where they are wanted.
// Elsewhere it is ours: what the DataNode puts into it has not to be asked for.
//
// An endpoint that ends before the request is sent was one that had been idle: there is
// another one.
func (r *ringReader) open() (err error) {
	defer r.timer.Stop()
	if err = r.ask(); r.stream != nil || !r.lost(err) {
		return err
	}
	r.lease.Drop()
	r.lease = verbena.Lease{}
	if r.target != nil {
		r.p.rings.targets.put(r.target)
		r.target = nil
	}
	return r.ask()
}

// lost tells whether the endpoint has ended, or takes no more calls because it is about to. A
// request that was not sent because the reader has given up says nothing of it.
func (r *ringReader) lost(err error) bool {
	if r.lease == (verbena.Lease{}) || r.within.Err() != nil {
		return false
	}
	return errors.Is(err, verbena.ErrNotSent) || r.lease.Caller().Endpoint().Err() != nil
}

func (r *ringReader) ask() (err error) {
	intent := verbena.Intent{Operation: readOperation, Size: r.req.Length}
	if r.lease, err = r.p.windows.session.Get(r.within, r.address, intent); err != nil {
		return err
	}
	c := r.lease.Caller()
	switch c.Endpoint().Selection().Transport {
	case promptTransport:
		return r.openRing(c)
	case verbena.TransportTCP:
		return errOverTCP
	default:
		return r.openPush(c)
	}
}

// openRing has a DataNode fill a ring of its own.
func (r *ringReader) openRing(c *verbena.Caller) (err error) {
	q := native.RingRequest{Offset: r.req.Offset, Length: r.req.Length, Unverified: r.req.Unverified}
	request := native.AppendRingRequest(make([]byte, 0, 32+len(r.header)), &q, r.header)
	if r.stream, err = c.Stream(r.within, native.MethodRing, request); err != nil {
		return err
	}
	var b [native.RingLen]byte
	if _, err = io.ReadFull(r.stream, b[:]); err != nil {
		return err
	}
	if r.ring, err = native.ParseRing(b[:]); err != nil {
		return err
	}
	r.batch = c.Endpoint().Batch()
	r.memory, err = c.Endpoint().Buffer(r.within, r.step()+native.SlotSums)
	return err
}

// step is how much is fetched at a time: whole chunks.
func (r *ringReader) step() int {
	bpc := r.ring.Sum.BytesPerChunk
	return max(bpc, step/bpc*bpc)
}

// Next implements [data.BlockReader].
func (r *ringReader) Next() ([]byte, error) {
	if r.other != nil {
		return r.other.Next()
	}
	if r.req.Length == 0 {
		return nil, io.EOF
	}
	b, err := r.next()
	if r.ctx.Err() != nil {
		return nil, context.Cause(r.ctx) // what has been fetched may be another reader's
	}
	if err == nil {
		return b, nil
	}
	if err := r.without(err); err != nil {
		return nil, err
	}
	return r.other.Next()
}

// without has the rest read by calls, because the ring has failed with err.
func (r *ringReader) without(err error) error {
	if r.within.Err() != nil {
		return fmt.Errorf("DataNode %s owes the data at %d of the block for %v: %w", r.address, r.req.Offset, r.p.cfg.SocketTimeout, err)
	}
	r.p.cfg.Logger.Debug("hdfs: a read goes on without its ring", "datanode", r.address, "reason", err)
	r.leave()
	other, err := r.p.readCalls(r.ctx, r.address, &r.req, r.header)
	if err != nil {
		return err
	}
	r.other = other
	return nil
}

// Place implements [data.Placer].
func (r *ringReader) Place(p []byte) (int, error) {
	if r.other != nil || r.target != nil || r.req.Length == 0 {
		return 0, nil
	}
	n, err := r.place(p)
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	if err != nil {
		return 0, r.without(err)
	}
	return n, nil
}

// place fetches whole chunks, or the end of a piece, and compares them in place.
func (r *ringReader) place(p []byte) (int, error) {
	if err := r.filled(); err != nil {
		return 0, err
	}
	sum := r.ring.Sum
	left := r.piece.Data - r.taken
	n := int(min(int64(left), int64(len(p)), r.req.Length))
	if n < left {
		n -= n % sum.BytesPerChunk
	}
	if n == 0 || r.req.Offset != r.piece.Offset+int64(r.taken) {
		return 0, nil
	}
	var sums []byte
	at, behind := native.Slot(r.pieces - 1)
	ep := r.stream.Caller().Endpoint()
	if !r.req.Unverified {
		size, chunk := sum.Size()*int(sum.Chunks(int64(n))), sum.Size()*int(sum.Chunks(int64(r.taken)))
		sums = r.memory.Bytes()[:size]
		if err := ep.Get(r.within, r.ring.Token, behind+chunk, sums); err != nil {
			return 0, err
		}
	}
	p = p[:n]
	if err := ep.Get(r.within, r.ring.Token, at+r.taken, p); err != nil {
		return 0, err
	}
	r.taken += n
	if err := r.credit(); err != nil {
		return 0, err
	}
	if sums != nil {
		if err := sum.Verify(sums, p); err != nil {
			return 0, fmt.Errorf("data at %d of the block: %w", r.req.Offset, err)
		}
	}
	r.req.Offset += int64(n)
	r.req.Length -= int64(n)
	return n, nil
}

// next fetches some bytes and compares them in place.
func (r *ringReader) next() ([]byte, error) {
	if r.target != nil {
		return r.nextPushed()
	}
	if err := r.filled(); err != nil {
		return nil, err
	}
	sum := r.ring.Sum
	n := min(r.step(), r.piece.Data-r.taken)
	size, chunk := sum.Size()*int(sum.Chunks(int64(n))), sum.Size()*int(sum.Chunks(int64(r.taken)))
	if r.req.Unverified {
		size = 0
	}
	at, behind := native.Slot(r.pieces - 1)
	if size > 0 {
		r.batch.GetBuffer(r.ring.Token, behind+chunk, r.memory, n, n+size)
	}
	r.batch.GetBuffer(r.ring.Token, at+r.taken, r.memory, 0, n)
	if err := r.batch.Do(r.within); err != nil {
		return nil, err
	}
	off := r.piece.Offset + int64(r.taken)
	r.taken += n
	if err := r.credit(); err != nil {
		return nil, err
	}
	b := r.memory.Bytes()
	return r.verified(b[:n], b[n:n+size], off)
}

// verified compares the bytes at off of the block, and returns those of the range.
func (r *ringReader) verified(b, sums []byte, off int64) ([]byte, error) {
	if !r.req.Unverified {
		if err := r.ring.Sum.Verify(sums, b); err != nil {
			return nil, fmt.Errorf("data at %d of the block: %w", off, err)
		}
	}
	// The range may begin inside a chunk, and end in one.
	skip := r.req.Offset - off
	b = b[skip : skip+min(int64(len(b))-skip, r.req.Length)]
	r.req.Offset += int64(len(b))
	r.req.Length -= int64(len(b))
	return b, nil
}

// filled waits until the DataNode has filled the next slot, if the last one has been
// fetched.
func (r *ringReader) filled() error {
	if r.stream == nil {
		return io.ErrClosedPipe
	}
	if r.taken < r.piece.Data {
		return nil
	}
	r.timer.Reset(r.p.cfg.SocketTimeout)
	defer r.timer.Stop()
	var b [native.FilledLen]byte
	if _, err := io.ReadFull(r.stream, b[:]); err != nil {
		return err
	}
	f, err := native.ParseFilled(b[:], r.ring.Sum)
	if err != nil {
		return err
	}
	due, skip := r.piece.Offset+int64(r.piece.Data), r.req.Offset-f.Offset
	if r.pieces > 0 && f.Offset != due || skip < 0 || skip >= min(int64(r.ring.Sum.BytesPerChunk), int64(f.Data)) {
		return fmt.Errorf("%w: a slot with %d bytes at %d, due is %d", native.ErrMalformed, f.Data, f.Offset, r.req.Offset)
	}
	r.piece, r.taken = f, 0
	r.pieces++
	return nil
}

// credit gives slots back that have been fetched whole, the first one at once: the DataNode
// keeps half of the ring from who reads nothing.
func (r *ringReader) credit() error {
	if r.taken < r.piece.Data {
		return nil
	}
	now := time.Now()
	if r.owed++; r.owed < creditEvery && now.Sub(r.gave) < creditAfter {
		return nil
	}
	_, err := r.stream.Write([]byte{r.owed})
	r.owed, r.gave = 0, now
	return err
}

// answered tells whether an error of a call says that the DataNode has answered it.
func answered(err error) bool {
	var told *verbena.CallError
	return errors.As(err, &told) || errors.Is(err, verbena.ErrAnswered)
}

// leave gives the ring back. Nothing is fetched from it any more.
func (r *ringReader) leave() {
	if r.left {
		return
	}
	r.left = true
	r.unhook()
	r.timer.Stop()
	if r.memory != nil {
		r.memory.Release()
		r.memory = nil
	}
	s, rs := r.stream, &r.p.rings
	r.stream = nil
	if s == nil {
		r.end(false)
		return
	}
	if _, err := s.Write([]byte{native.RingFinished}); err != nil {
		_ = s.Close() // its error says nothing
		r.end(!answered(err))
		return
	}
	// The DataNode has to hear it before it hears that nobody waits for the answer.
	rs.wg.Go(func() {
		ctx, cancel := context.WithTimeout(r.within, farewell)
		defer cancel()
		m, err := s.Answer(ctx)
		if err == nil {
			m.Release()
		}
		_ = s.Close() // its error says nothing
		r.end(err != nil && !answered(err))
	})
}

// end gives back what the read had; spoilt says that the DataNode has not answered yet.
func (r *ringReader) end(spoilt bool) {
	r.stop()
	if r.target != nil {
		r.target.spoilt = spoilt
		r.p.rings.targets.put(r.target)
	}
	if r.lease != (verbena.Lease{}) {
		r.lease.Put()
	}
}

// Close implements [data.BlockReader].
func (r *ringReader) Close() error {
	r.leave()
	r.req.Length = 0
	if r.other != nil {
		return r.other.Close()
	}
	return nil
}
