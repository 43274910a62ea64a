package native

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// noSockets is for how long a DataNode is not asked for a connection after one could not be had.
const noSockets = 10 * time.Second

// sockets are the DataNodes to which no connection for long reads could be had.
type sockets struct {
	mu   sync.Mutex
	none map[string]time.Time // by address: it is not tried again before
}

func (s *sockets) init() { s.none = map[string]time.Time{} }

// may tells whether a connection to a DataNode is worth a try.
func (s *sockets) may(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().After(s.none[address])
}

// failed notes that a DataNode could not be reached.
func (s *sockets) failed(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.none[address] = time.Now().Add(noSockets)
}

// readSocket begins to read a long range over a connection of its own, where all that there is
// to the DataNode is TCP: the kernels' buffers are the window, the DataNode fills them without
// being asked for each piece, and the client's kernel puts the bytes where they are wanted. It
// returns nil where that is not so, or can't be had: the errors of calls tell more.
func (p *Path) readSocket(ctx context.Context, address string, req *data.ReadRequest, header []byte) data.BlockReader {
	if p.cfg.Sockets == nil || req.Length < leastRing || !p.rings.onlyTCP(address) || !p.sockets.may(address) {
		return nil
	}
	socket, err := p.cfg.Sockets.Read(ctx, req)
	if err != nil {
		p.cfg.Logger.Debug("hdfs: no connection for a long read", "datanode", address, "reason", err)
		// A DataNode that answers may have another block.
		if status := (*data.StatusError)(nil); ctx.Err() == nil && !errors.As(err, &status) {
			p.sockets.failed(address)
		}
		return nil
	}
	return &socketReader{p: p, ctx: ctx, address: address, req: *req, header: header, reader: socket}
}

// socketReader reads a range over a connection of its own. A DataNode gives that up when the
// application takes nothing for a while, which is no fault: the rest is read by calls, whose
// errors tell which DataNode is to blame.
type socketReader struct {
	p       *Path
	ctx     context.Context // the caller's
	address string
	req     data.ReadRequest // Offset and Length are what is left
	header  []byte           // encoded
	reader  data.BlockReader // of the connection, then of calls; never nil
	calls   bool             // reader is that of calls
}

// Next implements [data.BlockReader].
func (r *socketReader) Next() ([]byte, error) {
	b, err := r.reader.Next()
	if !r.calls && err != nil && (err != io.EOF || r.req.Length > 0) {
		if err := r.without(err); err != nil {
			return nil, err
		}
		return r.reader.Next()
	}
	r.took(len(b))
	return b, err
}

// Place implements [data.Placer].
func (r *socketReader) Place(p []byte) (int, error) {
	placer, ok := r.reader.(data.Placer)
	if !ok {
		return 0, nil
	}
	n, err := placer.Place(p)
	if !r.calls && err != nil {
		return 0, r.without(err)
	}
	r.took(n)
	return n, err
}

func (r *socketReader) took(n int) {
	r.req.Offset += int64(n)
	r.req.Length -= int64(n)
}

// without has the rest read by calls, because the connection has failed with err. It returns
// err where calls could not do better: the replica is bad, the DataNode has been waited for, by
// this process or by its kernel, or nobody wants the bytes any more.
func (r *socketReader) without(err error) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if errors.Is(err, transfer.ErrChecksum) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
		return err
	}
	r.p.cfg.Logger.Debug("hdfs: a read goes on without its connection", "datanode", r.address, "reason", err)
	calls, failed := r.p.readCalls(r.ctx, r.address, &r.req, r.header)
	if failed != nil {
		return failed
	}
	_ = r.reader.Close() // the connection has failed
	r.reader, r.calls = calls, true
	return nil
}

// Close implements [data.BlockReader].
func (r *socketReader) Close() error { return r.reader.Close() }
