package native

import (
	"context"
	"fmt"
	"io"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

// piece is how many bytes are asked for by one call.
const piece = 1 << 20

// readOperation is what rules see of reads.
const readOperation = "read-block"

// blockReader reads a range by calls. While one piece is used the next one comes.
type blockReader struct {
	p       *Path
	ctx     context.Context
	cancel  context.CancelFunc
	req     *data.ReadRequest
	address string
	header  []byte // encoded
	from    int64  // of the next piece to be asked for
	end     int64
	current *verbena.Message
	first   []byte
	next    chan fetched // nil: nothing is under way
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
	return p.readCalls(ctx, address, req, header)
}

// readCalls begins to read a range by calls.
func (p *Path) readCalls(ctx context.Context, address string, req *data.ReadRequest, header []byte) (data.BlockReader, error) {
	r := &blockReader{p: p, req: req, address: address, header: header, from: req.Offset, end: req.Offset + req.Length}
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
	r.ahead()
	return r, nil
}

// take is the next piece to be asked for.
func (r *blockReader) take() (offset int64, length int) {
	offset, length = r.from, int(min(piece, r.end-r.from))
	r.from += int64(length)
	return offset, length
}

// ahead asks for the next piece.
func (r *blockReader) ahead() {
	if r.from == r.end {
		return
	}
	next := make(chan fetched, 1)
	r.next = next
	offset, length := r.take()
	go func() { next <- r.fetch(offset, length) }()
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
	if r.next == nil {
		return nil, io.EOF
	}
	f := <-r.next
	r.next = nil
	if f.err != nil {
		if r.ctx.Err() != nil {
			return nil, context.Cause(r.ctx)
		}
		return nil, f.err
	}
	r.current = f.m
	r.ahead()
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
	if r.next != nil {
		if f := <-r.next; f.m != nil {
			f.m.Release()
		}
		r.next = nil
	}
	return nil
}
