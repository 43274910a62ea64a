package local

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/shortcircuit"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// piece is how much is read at once: it stays in the processor's cache until its checksums
// have been computed and it has been copied.
const piece = 256 << 10

type state int

const (
	opening state = iota
	opened
	refused // until a time
)

// replica is the descriptors of one. What follows users is the path's, whose lock guards
// it; what precedes does not change once the replica is opened.
type replica struct {
	key        key
	node       *node
	slot       slot
	data, meta int
	sum        transfer.Checksum
	size       int64 // bytes of the first file when it was handed over
	length     int64 // bytes that may be read
	sums       int64 // offset of the checksums in meta
	full       int64 // chunks with a checksum there
	tail       uint32
	ready      chan struct{} // closed when state is not opening any more

	state   state
	until   time.Time
	users   int
	since   time.Time     // when it became idle
	place   *list.Element // in the list of those that are, or nil
	dropped bool
}

func (r *replica) valid() bool { return r.slot.valid() }

// describe takes what the answer and the second file tell about the checksums.
func (r *replica) describe(resp *hdfspb.BlockOpResponseProto) error {
	var st unix.Stat_t
	if err := unix.Fstat(r.data, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: what was handed over is no file", transfer.ErrMalformed)
	}
	r.size = st.Size
	if l := resp.GetLocalReplica(); resp.GetShortCircuitAccessVersion() == shortcircuit.VersionOwn && l != nil {
		sum, err := transfer.NewChecksum(l.GetChecksum().GetType(), l.GetChecksum().GetBytesPerChecksum())
		if err != nil {
			return err
		}
		if l.GetLength() > uint64(st.Size) || l.GetSumsOffset() > 1<<20 {
			return fmt.Errorf("%w: a replica of %d bytes in a file of %d, its checksums at %d", transfer.ErrMalformed, l.GetLength(), st.Size, l.GetSumsOffset())
		}
		r.sum, r.length, r.sums, r.tail = sum, int64(l.GetLength()), int64(l.GetSumsOffset()), l.GetTail()
		r.full = r.length / int64(sum.BytesPerChunk)
		return nil
	}
	var head [shortcircuit.MetaHeader]byte
	if err := preadFull(r.meta, head[:], 0); err != nil {
		return fmt.Errorf("meta file: %w", err)
	}
	sum, err := shortcircuit.ParseMeta(head[:])
	if err != nil {
		return err
	}
	r.sum, r.length, r.sums = sum, st.Size, shortcircuit.MetaHeader
	r.full = sum.Chunks(r.length)
	return nil
}

// close closes the descriptors and has the slot released. path.mu is held.
func (r *replica) close() {
	if r.slot.segment == nil {
		return // never opened
	}
	unix.Close(r.data)
	unix.Close(r.meta)
	r.node.free(r.slot)
	r.slot = slot{}
}

// scratch is the memory of one read beside the caller's.
type scratch struct {
	edge []byte // the rest of the first and the last chunk
	sums []byte
	vec  [3][]byte
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// readAt fills b, at most a piece, from off. The error wraps [transfer.ErrChecksum] if the
// bytes do not match.
func (r *replica) readAt(b []byte, off int64, verify bool) error {
	end := off + int64(len(b))
	if end > r.length {
		return fmt.Errorf("read up to %d of a replica of %d bytes: %w", end, r.length, io.ErrUnexpectedEOF)
	}
	if !verify || r.sum.Size() == 0 {
		return preadFull(r.data, b, off)
	}
	bpc := int64(r.sum.BytesPerChunk)
	first := off / bpc
	head, rest := int(off%bpc), int(min(r.sum.Chunks(end)*bpc, r.length)-end)
	chunks := int(r.sum.Chunks(end) - first)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.edge = grow(s.edge, head+rest)
	s.sums = grow(s.sums, 4*chunks)
	s.vec = [3][]byte{s.edge[:head], b, s.edge[head:]}
	defer func() { s.vec = [3][]byte{} }()
	if err := preadvFull(r.data, s.vec[:], off-int64(head)); err != nil {
		return err
	}
	if err := r.checksums(s.sums, first); err != nil {
		return err
	}
	if err := r.verify(s, off-int64(head)); err != nil {
		return r.unlessGrown(err)
	}
	return nil
}

// unlessGrown returns err, which says that bytes do not match, unless the replica has grown since
// it was handed over. Apache's DataNodes append to a replica without taking it back, the data
// before their checksums: then the last checksum may be of more bytes than were read.
func (r *replica) unlessGrown(err error) error {
	var st unix.Stat_t
	if ferr := unix.Fstat(r.data, &st); ferr != nil {
		return ferr
	}
	if st.Size == r.size {
		return err
	}
	return fmt.Errorf("a replica of %d bytes has %d by now", r.size, st.Size)
}

// checksums fills sums with those of the chunks from first on.
func (r *replica) checksums(sums []byte, first int64) error {
	n := min(int64(len(sums)/4), r.full-first)
	if n > 0 {
		if err := preadFull(r.meta, sums[:4*n], r.sums+4*first); err != nil {
			return fmt.Errorf("checksums: %w", err)
		}
	}
	if rest := sums[4*max(n, 0):]; len(rest) > 0 {
		rest[0], rest[1], rest[2], rest[3] = byte(r.tail>>24), byte(r.tail>>16), byte(r.tail>>8), byte(r.tail)
	}
	return nil
}

// verify compares what the three parts of s.vec have one after the other, from a chunk's
// start at off.
func (r *replica) verify(s *scratch, off int64) error {
	sums, bpc := s.sums, r.sum.BytesPerChunk
	if len(s.vec[0]) == 0 && len(s.vec[2]) == 0 {
		if err := r.sum.Verify(sums, s.vec[1]); err != nil {
			return fmt.Errorf("data at %d of the block: %w", off, err)
		}
		return nil
	}
	part, at := 0, 0
	for len(sums) > 0 {
		sum := uint32(0)
		for left := bpc; left > 0 && part < len(s.vec); {
			b := s.vec[part][at:]
			if len(b) > left {
				b = b[:left]
			}
			sum = r.sum.Update(sum, b)
			left -= len(b)
			if at += len(b); at == len(s.vec[part]) {
				part, at = part+1, 0
			}
		}
		if want := uint32(sums[0])<<24 | uint32(sums[1])<<16 | uint32(sums[2])<<8 | uint32(sums[3]); sum != want {
			return fmt.Errorf("data at %d of the block: %w: it has %08x, its checksum is %08x", off, transfer.ErrChecksum, sum, want)
		}
		sums, off = sums[4:], off+int64(bpc)
	}
	return nil
}

// preadFull fills b from off.
func preadFull(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// preadvFull fills the parts of v one after the other from off.
func preadvFull(fd int, v [][]byte, off int64) error {
	if len(v[0]) == 0 && len(v[2]) == 0 {
		return preadFull(fd, v[1], off)
	}
	n, err := unix.Preadv(fd, v, off)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	n = max(n, 0)
	for _, part := range v { // what is missing, if anything
		done := min(n, len(part))
		if err := preadFull(fd, part[done:], off+int64(done)); err != nil {
			return err
		}
		n, off = n-done, off+int64(len(part))
	}
	return nil
}

// Read is [data.Path].Read.
func (p *Path) Read(ctx context.Context, req *data.ReadRequest) (data.BlockReader, error) {
	r, err := p.acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return p.Path.Read(ctx, req)
	}
	return &blockReader{p: p, ctx: ctx, req: *req, r: r, verify: !req.Unverified && !p.cfg.SkipChecksum}, nil
}

// blockReader reads a range by descriptor, and goes over to the other path if the replica
// is taken back.
type blockReader struct {
	p      *Path
	ctx    context.Context
	req    data.ReadRequest // Offset and Length are what is left
	r      *replica
	verify bool
	buffer *[]byte
	other  data.BlockReader
}

// Next is [data.BlockReader].Next.
func (b *blockReader) Next() ([]byte, error) {
	if b.other != nil {
		return b.other.Next()
	}
	if b.req.Length == 0 {
		return nil, io.EOF
	}
	if err := b.ctx.Err(); err != nil {
		return nil, context.Cause(b.ctx)
	}
	if b.r == nil {
		return nil, io.ErrClosedPipe
	}
	if b.buffer == nil {
		b.buffer = transfer.GetBuffer(piece)
	}
	// Up to a multiple of the piece, so that all reads but the first are of whole chunks.
	n := min(int64(piece)-b.req.Offset%piece, b.req.Length)
	out := (*b.buffer)[:n]
	if !b.r.valid() {
		b.p.discard(b.r)
		return b.goOn()
	}
	if err := b.r.readAt(out, b.req.Offset, b.verify); err != nil {
		if _, err := b.p.failed(b.r, err); err != nil {
			return nil, err
		}
		return b.goOn()
	}
	b.req.Offset += n
	b.req.Length -= n
	return out, nil
}

// goOn reads the rest along the other path.
func (b *blockReader) goOn() ([]byte, error) {
	b.leave()
	var err error
	if b.other, err = b.p.Path.Read(b.ctx, &b.req); err != nil {
		b.other = nil
		return nil, err
	}
	return b.other.Next()
}

func (b *blockReader) leave() {
	if b.buffer != nil {
		transfer.PutBuffer(b.buffer)
		b.buffer = nil
	}
	if b.r != nil {
		b.p.release(b.r)
		b.r = nil
	}
}

// Close is [data.BlockReader].Close.
func (b *blockReader) Close() error {
	b.leave()
	b.req.Length = 0
	if b.other != nil {
		return b.other.Close()
	}
	return nil
}
