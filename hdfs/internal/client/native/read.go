package native

import (
	"context"
	"fmt"
	"io"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/fifo"
)

// A pace is how a range is asked for: by pieces of so many bytes, each a call, of which some
// are on their way while one is used.
type pace struct{ piece, ahead int }

var (
	// atOnce is for short ranges. One call is cheaper than several.
	atOnce = pace{piece: 1 << 20, ahead: 1}
	// flowing is for ranges that a ring would be for where there is neither one nor a
	// connection of their own. With its checksums an answer is one fragment there, in a
	// buffer of 256 KiB, which the processor's second cache still has when it is compared and
	// used. The DataNode reads one of the pieces from the file while another one is on its way.
	flowing = pace{piece: 252 << 10, ahead: 4}
)

// paceOf is how a range of length bytes is asked for.
func paceOf(length int64) pace {
	if length < leastRing {
		return atOnce
	}
	return flowing
}

// readOperation is what rules see of reads.
const readOperation = "read-block"

// blockReader reads a range by calls. While one piece is used the next ones come.
type blockReader struct {
	p       *Path
	ctx     context.Context
	cancel  context.CancelFunc
	req     *data.ReadRequest
	pace    pace
	address string
	header  []byte // encoded
	from    int64  // of the next piece to be asked for
	end     int64
	current *verbena.Message
	first   []byte
	next    fifo.Queue[chan fetched] // under way, in the order of the range
}

type fetched struct {
	m     *verbena.Message
	bytes []byte
	err   error
}

// Read is [data.Path].Read.
func (p *Path) Read(ctx context.Context, req *data.ReadRequest) (data.BlockReader, error) {
	address := p.address(req.Node)
	if _, may := p.cfg.Table.Peek(address); !may {
		return p.Path.Read(ctx, req)
	}
	header := req.Encoded
	if header == nil {
		var err error
		if header, err = data.EncodeHeader(req.Block, req.Token, req.Client); err != nil {
			return nil, err
		}
	}
	if r, err := p.readRing(ctx, address, req, header); r != nil || err != nil {
		return r, err
	}
	if r := p.readSocket(ctx, address, req, header); r != nil {
		return r, nil
	}
	return p.readCalls(ctx, address, req, header)
}

// readCalls begins to read a range by calls.
func (p *Path) readCalls(ctx context.Context, address string, req *data.ReadRequest, header []byte) (data.BlockReader, error) {
	r := &blockReader{p: p, req: req, pace: paceOf(req.Length), address: address, header: header, from: req.Offset, end: req.Offset + req.Length}
	r.ctx, r.cancel = context.WithCancel(ctx)
	f := r.fetch(r.take())
	if f.err != nil {
		r.cancel()
		if p.denied(address, f.err) {
			return p.Path.Read(ctx, req)
		}
		return nil, f.err
	}
	r.current, r.first = f.m, f.bytes
	r.ask()
	return r, nil
}

// take is the next piece to be asked for.
func (r *blockReader) take() (offset int64, length int) {
	offset, length = r.from, int(min(int64(r.pace.piece), r.end-r.from))
	r.from += int64(length)
	return offset, length
}

// ask asks for pieces, as many as may be under way.
func (r *blockReader) ask() {
	for r.from < r.end && r.next.Len() < r.pace.ahead {
		next := make(chan fetched, 1)
		r.next.Push(next)
		offset, length := r.take()
		go func() { next <- r.fetch(offset, length) }()
	}
}

// fetch makes a call and verifies what comes, in place.
func (r *blockReader) fetch(offset int64, length int) (f fetched) {
	ctx, cancel := context.WithTimeout(r.ctx, r.p.cfg.SocketTimeout)
	defer cancel()
	q := native.ReadRequest{Offset: offset, Length: length, Unverified: r.req.Unverified}
	request := native.AppendReadRequest(make([]byte, 0, 16+len(r.header)), &q, r.header)
	m, err := r.p.call(ctx, r.address, native.MethodRead, int64(length), request)
	if err != nil {
		return fetched{err: fmt.Errorf("DataNode %s: %w", r.address, told(err))}
	}
	if f.bytes, f.err = verified(m.Bytes(), offset, length, r.req.Unverified); f.err != nil {
		m.Release()
		return fetched{err: fmt.Errorf("DataNode %s, data at %d of the block: %w", r.address, offset, f.err)}
	}
	f.m = m
	return f
}

// verified returns the bytes of an answer that were asked for, after a comparison with
// their checksums in place.
func verified(b []byte, offset int64, length int, unverified bool) ([]byte, error) {
	a, err := native.ParseReadAnswer(b)
	if err != nil {
		return nil, err
	}
	skip := offset - a.Offset
	if skip < 0 || skip >= int64(a.Sum.BytesPerChunk) || int64(len(a.Data))-skip < int64(length) {
		return nil, fmt.Errorf("%w: %d bytes at %d where %d at %d were asked for", native.ErrMalformed, len(a.Data), a.Offset, length, offset)
	}
	if !unverified {
		if err := a.Sum.Verify(a.Sums, a.Data); err != nil {
			return nil, err
		}
	}
	return a.Data[skip : skip+int64(length)], nil
}

// Next implements [data.BlockReader].
func (r *blockReader) Next() ([]byte, error) {
	if b := r.first; b != nil {
		r.first = nil
		return b, nil
	}
	r.release()
	if r.next.Len() == 0 {
		return nil, io.EOF
	}
	f := <-r.next.Pop()
	if f.err != nil {
		if r.ctx.Err() != nil {
			return nil, context.Cause(r.ctx)
		}
		return nil, f.err
	}
	r.current = f.m
	r.ask()
	return f.bytes, nil
}

func (r *blockReader) release() {
	if r.current != nil {
		r.current.Release()
		r.current = nil
	}
}

// Close implements [data.BlockReader].
func (r *blockReader) Close() error {
	r.cancel()
	r.first = nil
	r.release()
	for r.next.Len() > 0 {
		if f := <-r.next.Pop(); f.m != nil {
			f.m.Release()
		}
	}
	r.from = r.end
	return nil
}
