package reader

import (
	"context"
	"io"
	"sync"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// piece is how many bytes one of several reads at once takes.
const piece = 4 << 20

// part is a piece that is being read.
type part struct {
	buf  *[]byte
	n    int
	err  error
	done chan struct{}
}

// writeAhead is WriteTo with several pieces read at once. At most so many are in memory.
func (f *File) writeAhead(w io.Writer, at int) (n int64, err error) {
	f.leave()
	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	var parts []*part
	defer func() {
		cancel()
		wg.Wait()
		for _, p := range parts {
			transfer.PutBuffer(p.buf)
		}
	}()
	length := f.Length()
	next := f.pos
	begin := func() {
		p := &part{buf: transfer.GetBuffer(piece), n: int(min(piece, length-next)), done: make(chan struct{})}
		off := next
		next += int64(p.n)
		parts = append(parts, p)
		wg.Go(func() {
			defer close(p.done)
			_, p.err = f.ReadAt(ctx, (*p.buf)[:p.n], off)
		})
	}
	for f.pos < length {
		for len(parts) < at && next < length {
			begin()
		}
		p := parts[0]
		<-p.done
		if p.err != nil {
			return n, p.err
		}
		m, err := w.Write((*p.buf)[:p.n])
		f.pos += int64(m)
		n += int64(m)
		if err != nil {
			return n, err
		}
		parts = append(parts[:0], parts[1:]...)
		transfer.PutBuffer(p.buf)
	}
	return n, nil
}
