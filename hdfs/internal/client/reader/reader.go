// Package reader reads files: it finds their blocks, reads each from a DataNode that has
// it, goes on at another when one fails or sends bytes that do not match their checksums,
// and asks the NameNode again when what it knows is out of date.
package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/client/names"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Config is what the files of a client have in common.
type Config struct {
	Names  names.Caller
	Path   data.Path
	Client string
	// Prefetch is of how many bytes the NameNode is asked for the blocks at once.
	Prefetch int64
	// Failures is how often all DataNodes of a block may fail one after the other;
	// between them the NameNode is asked again, after pauses that grow from Window.
	Failures int
	Window   time.Duration
	// Hedge is after how long a positional read is begun at another DataNode, too; 0 for
	// never. The first answer counts. Hedges bounds those under way, also those whose
	// answer comes too late.
	Hedge  time.Duration
	Hedges *Hedges
	// ReadAhead is how many pieces of 4 MiB WriteTo reads at once; below 2 it streams.
	ReadAhead int
	// Unverified reads without checksums.
	Unverified bool
	Logger     *slog.Logger
}

// File reads one file. ReadAt may be used concurrently, also with the others, of which
// one goroutine at a time may call one.
type File struct {
	cfg  *Config
	ctx  context.Context // of Read, Seek and WriteTo
	name string

	mu    sync.Mutex
	known *blocks
	shut  bool
	dead  map[string]struct{} // DataNodes that failed, by UUID; nil if none has
	last  string              // the DataNode that is read from

	reports sync.WaitGroup // of bad replicas, under way; none begins once it is shut

	pos  int64
	from data.BlockReader // of the sequential read; nil if there is none
	till int64            // where from ends in the file
	node *hdfspb.DatanodeInfoProto
	rest []byte // of what it has given
}

// Open finds out a file's length and its first blocks. ctx also bounds Read and WriteTo.
func Open(ctx context.Context, cfg *Config, name string) (*File, error) {
	f := &File{cfg: cfg, ctx: ctx, name: name}
	if err := f.load(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// Length is the length when the file was opened, in bytes.
func (f *File) Length() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known.length
}

// Growing tells whether somebody was writing the file when it was opened.
func (f *File) Growing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known.open
}

// Refresh finds out the length again.
func (f *File) Refresh(ctx context.Context) error {
	if _, err := f.reading(); err != nil {
		return err
	}
	return f.load(ctx)
}

// Close ends the reading, and waits for the reports of bad replicas, which take reportTimeout at
// most. What is read later fails with [fs.ErrClosed], and so does another Close.
func (f *File) Close() error {
	f.mu.Lock()
	shut := f.shut
	f.shut = true
	f.mu.Unlock()
	if shut {
		return fs.ErrClosed
	}
	f.leave()
	f.reports.Wait()
	return nil
}

// reading is the length of a file that has not been closed.
func (f *File) reading() (length int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shut {
		return 0, fs.ErrClosed
	}
	return f.known.length, nil
}

func (f *File) leave() {
	if f.from != nil {
		f.from.Close()
		f.from, f.rest = nil, nil
	}
}

// Seek is [io.Seeker].
func (f *File) Seek(offset int64, whence int) (int64, error) {
	length, err := f.reading()
	if err != nil {
		return 0, err
	}
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.pos
	case io.SeekEnd:
		offset += length
	default:
		return 0, errors.New("seek: there is no such whence")
	}
	if offset < 0 {
		return 0, errors.New("seek: before the file's start")
	}
	switch ahead := offset - f.pos; {
	case ahead >= 0 && ahead <= int64(len(f.rest)):
		f.rest = f.rest[ahead:]
	default:
		f.leave()
	}
	f.pos = offset
	return offset, nil
}

// Read is [io.Reader].
func (f *File) Read(p []byte) (int, error) {
	length, err := f.reading()
	if err != nil || len(p) == 0 {
		return 0, err
	}
	if n := f.fill(p, length); n > 0 {
		return n, nil
	}
	n, err := f.more(p)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		n = copy(p, f.rest)
		f.rest = f.rest[n:]
	}
	f.pos += int64(n)
	return n, nil
}

const (
	// leastFill is how long a Read is at least, in bytes, that is filled without a buffer in
	// between. Shorter ones are better served from larger pieces.
	leastFill = 128 << 10
	// fillUnit is where in a block such a Read ends, in bytes: with a chunk, so that the next
	// one begins with one.
	fillUnit = 4096
)

// fill is Read, of a file of so many bytes, where the path can put what p begins with straight
// there. It returns 0 where that is not so, or fails.
func (f *File) fill(p []byte, length int64) int {
	filler, ok := f.cfg.Path.(data.Filler)
	if f.from != nil && f.pos == f.till {
		f.leave() // nothing but the end of its block is left in it
	}
	if !ok || f.from != nil || len(f.rest) > 0 || len(p) < leastFill || f.pos >= length {
		return 0
	}
	b, err := f.block(f.ctx, f.pos, false)
	if err != nil {
		return 0
	}
	node := f.alive(b, nil)
	if node == nil {
		return 0
	}
	end := min(b.end(), length)
	if most := f.pos + int64(len(p)); most < end {
		end = most - (most-b.start)%fillUnit
	}
	req := requests.Get().(*data.ReadRequest)
	*req = f.request(b, node, f.pos, end)
	done, err := filler.Fill(f.ctx, req, p[:req.Length])
	n := int(req.Length)
	*req = data.ReadRequest{}
	requests.Put(req)
	if !done || err != nil {
		return 0
	}
	f.pos += int64(n)
	return n
}

// WriteTo is [io.WriterTo]: it hands what DataNodes send on without a copy.
func (f *File) WriteTo(w io.Writer) (n int64, err error) {
	length, err := f.reading()
	if err != nil {
		return 0, err
	}
	if f.cfg.ReadAhead > 1 && length-f.pos > piece {
		return f.writeAhead(w, f.cfg.ReadAhead)
	}
	for {
		if _, err := f.more(nil); err != nil {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
		m, err := w.Write(f.rest)
		f.rest = f.rest[m:]
		f.pos += int64(m)
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
}

// more has rest hold a byte at least, or puts bytes where p begins and tells how many.
func (f *File) more(p []byte) (n int, err error) {
	if len(f.rest) > 0 {
		return 0, nil
	}
	if f.pos >= f.Length() {
		f.leave()
		return 0, io.EOF
	}
	t := f.newTries(f.ctx)
	for {
		if f.from == nil {
			if err := f.begin(t); err != nil {
				return 0, err
			}
		}
		if n, err = place(f.from, p); n == 0 && err == nil {
			f.rest, err = f.from.Next()
		}
		if err == nil {
			t.succeeded(f.node)
			return n, nil
		}
		f.leave()
		if err == io.EOF {
			continue // at a block's end, where the read of the next one begins
		}
		if err := t.failed(f.node, err); err != nil {
			return 0, err
		}
	}
}

// place puts bytes where p begins, if p is long enough and the reader can. Otherwise it
// returns 0, and Next has them.
func place(r data.BlockReader, p []byte) (int, error) {
	if placer, ok := r.(data.Placer); ok && len(p) >= leastFill {
		return placer.Place(p)
	}
	return 0, nil
}

// begin begins to read at pos, up to the end of the block.
func (f *File) begin(t *tries) error {
	for {
		b, node, err := t.next(f.pos)
		if err != nil {
			return err
		}
		end := min(b.end(), f.Length())
		req := f.request(b, node, f.pos, end)
		r, err := f.cfg.Path.Read(f.ctx, &req)
		if err == nil {
			f.from, f.node, f.till = r, node, end
			return nil
		}
		if err := t.failed(node, err); err != nil {
			return err
		}
	}
}

func (f *File) request(b *located, node *hdfspb.DatanodeInfoProto, from, end int64) data.ReadRequest {
	return data.ReadRequest{
		Client: f.cfg.Client, Block: b.GetB(), Token: b.GetBlockToken(), Node: node,
		Offset: from - b.start, Length: end - from, Unverified: f.cfg.Unverified, Growing: b.growing, Encoded: b.request(f.cfg.Client),
	}
}

// requests are of reads that a path has kept nothing of.
var requests = sync.Pool{New: func() any { return new(data.ReadRequest) }}

// ReadAt reads len(p) bytes at off, or up to the end of the file, and then returns
// io.EOF.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, errors.New("read at a negative offset")
	}
	length, err := f.reading()
	if err != nil {
		return 0, err
	}
	short := false
	if left := length - off; int64(len(p)) > left {
		p, short = p[:max(0, left)], true
	}
	for n < len(p) {
		m, err := f.readBlock(ctx, p[n:], off+int64(n))
		n += m
		if err != nil {
			return n, err
		}
	}
	if short {
		return n, io.EOF
	}
	return n, nil
}

// readBlock reads from the block with the byte at off, as much as it has of p.
func (f *File) readBlock(ctx context.Context, p []byte, off int64) (n int, err error) {
	t := f.newTries(ctx)
	for {
		b, node, err := t.next(off)
		if err != nil {
			return 0, err
		}
		part := p[:min(int64(len(p)), b.end()-off)]
		if f.cfg.Hedge > 0 && len(b.GetLocs()) > 1 {
			part = part[:min(len(part), mostHedged)]
			node, err = t.hedged(b, node, part, off)
		} else {
			err = f.fetch(ctx, b, node, part, off)
		}
		if err == nil {
			t.succeeded(node)
			return len(part), nil
		}
		if err := t.failed(node, err); err != nil {
			return 0, err
		}
	}
}

// fetch fills p from one DataNode.
func (f *File) fetch(ctx context.Context, b *located, node *hdfspb.DatanodeInfoProto, p []byte, off int64) error {
	if filler, ok := f.cfg.Path.(data.Filler); ok {
		req := requests.Get().(*data.ReadRequest)
		*req = f.request(b, node, off, off+int64(len(p)))
		done, err := filler.Fill(ctx, req, p)
		*req = data.ReadRequest{}
		requests.Put(req)
		if done || err != nil {
			return err
		}
	}
	req := f.request(b, node, off, off+int64(len(p)))
	r, err := f.cfg.Path.Read(ctx, &req)
	if err != nil {
		return err
	}
	defer r.Close()
	for len(p) > 0 {
		n, err := place(r, p)
		if n == 0 && err == nil {
			var got []byte
			got, err = r.Next()
			n = copy(p, got)
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// tries are the attempts of one read at one place.
type tries struct {
	f        *File
	ctx      context.Context
	block    *located
	refresh  bool
	failures int  // of all DataNodes
	retoken  bool // the NameNode has been asked for another token
	last     error
	full     error // of a DataNode that had no room, since all were tried last
	bad      []bad
}

// bad is a replica whose bytes did not match.
type bad struct {
	block *located
	node  *hdfspb.DatanodeInfoProto
}

func (f *File) newTries(ctx context.Context) *tries { return &tries{f: f, ctx: ctx} }

// next returns a DataNode to read the byte at off from. When all have failed it asks the
// NameNode again, after a pause, until that has been of no use too often.
func (t *tries) next(off int64) (*located, *hdfspb.DatanodeInfoProto, error) {
	f := t.f
	for {
		b, err := f.block(t.ctx, off, t.refresh)
		if err != nil {
			return nil, nil, err
		}
		t.refresh, t.block = false, b
		if n := f.alive(b, nil); n != nil {
			return b, n, nil
		}
		if t.full != nil {
			// It gives the block when others have left: that is no failure.
			if !sleep(t.ctx, rand.N(fullPause)) {
				return nil, nil, fmt.Errorf("%w: %w", context.Cause(t.ctx), t.full)
			}
			t.last = nil
			t.again()
			continue
		}
		if t.failures++; t.failures > f.cfg.Failures {
			return nil, nil, fmt.Errorf("%s: %w %d, at %d of the file (it has %d replicas): %w", f.name, ErrMissing, b.GetB().GetBlockId(), b.start, len(b.GetLocs()), orNoneUp(t.last))
		}
		// Those who met the same failure do not come back together.
		pause := time.Duration(t.failures-1)*f.cfg.Window + rand.N(f.cfg.Window*time.Duration(t.failures)+1)
		f.cfg.Logger.Warn("hdfs: no DataNode gives a block; the NameNode is asked again", "file", f.name, "block", b.GetB().GetBlockId(), "after", pause, "err", t.last)
		if !sleep(t.ctx, pause) {
			return nil, nil, context.Cause(t.ctx)
		}
		t.again()
	}
}

// again has all DataNodes of the block be tried again, as the NameNode knows them then.
func (t *tries) again() {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	clear(t.f.dead)
	t.refresh, t.full = true, nil
	if locs := t.block.GetLocs(); len(locs) > 1 && !slices.ContainsFunc(locs, func(n *hdfspb.DatanodeInfoProto) bool { return !t.isBad(n) }) {
		t.bad = nil // who finds all of them bad may be what is broken
	}
}

// fullPause bounds the pause before DataNodes are asked again that had no memory for one more
// client. Each dial has waited for that already.
const fullPause = 500 * time.Millisecond

// ErrMissing is how a read ends of a block that no DataNode gives, however often the NameNode
// was asked again.
var ErrMissing = errors.New("no DataNode gives block")

var errNoneUp = errors.New("the NameNode knows none that is up")

func orNoneUp(err error) error {
	if err == nil {
		return errNoneUp
	}
	return err
}

// failed notes that a DataNode did not give what it should. The error is one that no
// further try can mend.
func (t *tries) failed(node *hdfspb.DatanodeInfoProto, err error) error {
	f := t.f
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	t.last = err
	if data.Full(err) {
		t.full = err
	}
	if errors.Is(err, data.ErrToken) && !t.retoken {
		t.retoken, t.refresh = true, true // it has expired, or the keys have changed
		return nil
	}
	f.cfg.Logger.Info("hdfs: a read goes on at another DataNode", "file", f.name, "datanode", data.Name(node), "err", err)
	f.avoid(node)
	t.mismatched(node, err)
	return nil
}

// avoid has other DataNodes be read from, as long as one is left.
func (f *File) avoid(node *hdfspb.DatanodeInfoProto) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead == nil {
		f.dead = map[string]struct{}{}
	}
	f.dead[node.GetId().GetDatanodeUuid()] = struct{}{}
}

// mismatched notes a replica whose bytes do not match, if that is what err says. As in HDFS the
// NameNode hears of it when another one's do, or if there is no other: who finds all of them bad
// may be what is broken, and would have the NameNode give up good ones.
func (t *tries) mismatched(node *hdfspb.DatanodeInfoProto, err error) {
	if !errors.Is(err, transfer.ErrChecksum) || t.block == nil {
		return
	}
	t.f.avoid(node)
	if t.isBad(node) {
		return
	}
	t.bad = append(t.bad, bad{t.block, node})
	if len(t.block.GetLocs()) == 1 {
		t.f.reportCorrupt(t.ctx, t.bad[len(t.bad)-1:])
	}
}

// isBad tells whether a DataNode's replica is among those whose bytes did not match.
func (t *tries) isBad(node *hdfspb.DatanodeInfoProto) bool {
	return slices.ContainsFunc(t.bad, func(b bad) bool {
		return b.node.GetId().GetDatanodeUuid() == node.GetId().GetDatanodeUuid()
	})
}

// succeeded is the end of a read that has its bytes, from a DataNode. If that one's did not
// match before, the replicas may all be good: something on the way was broken for a while.
func (t *tries) succeeded(node *hdfspb.DatanodeInfoProto) {
	if len(t.bad) == 0 {
		return
	}
	told := slices.DeleteFunc(t.bad, func(b bad) bool { return len(b.block.GetLocs()) == 1 }) // the NameNode has heard of it
	if len(told) > 0 && !t.isBad(node) {
		t.f.reportCorrupt(t.ctx, told)
	}
	t.bad = nil
}

// reportTimeout bounds the report of bad replicas. The next reader that finds them bad reports
// them, too.
const reportTimeout = 5 * time.Second

// reportCorrupt tells the NameNode of bad replicas, while the reading goes on: a NameNode that
// is silent holds no bytes back. Close waits for it. That the NameNode could not be told is no
// reason to end the read, nor is the end of ctx one not to tell it.
func (f *File) reportCorrupt(ctx context.Context, replicas []bad) {
	req := &hdfspb.ReportBadBlocksRequestProto{}
	var names []string
	for _, r := range replicas {
		req.Blocks = append(req.Blocks, r.report())
		names = append(names, fmt.Sprintf("%d at %s", r.block.GetB().GetBlockId(), data.Name(r.node)))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shut {
		return
	}
	f.reports.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
		defer cancel()
		if err := f.cfg.Names.Call(ctx, "reportBadBlocks", req, &hdfspb.ReportBadBlocksResponseProto{}); err != nil {
			f.cfg.Logger.Warn("hdfs: bad replicas could not be reported", "file", f.name, "blocks", names, "err", err)
		}
	})
}

// report is the replica as the NameNode is told of it.
func (r bad) report() *hdfspb.LocatedBlockProto {
	b, corrupt := r.block, false
	lb := &hdfspb.LocatedBlockProto{B: b.GetB(), Offset: b.Offset, Locs: []*hdfspb.DatanodeInfoProto{r.node}, Corrupt: &corrupt, BlockToken: b.GetBlockToken()}
	for i, n := range b.GetLocs() {
		if n == r.node && i < len(b.GetStorageIDs()) && i < len(b.GetStorageTypes()) {
			lb.StorageIDs, lb.StorageTypes = b.GetStorageIDs()[i:i+1], b.GetStorageTypes()[i:i+1]
		}
	}
	return lb
}

// alive returns a DataNode of a block that has not failed and is not other: the first one, or,
// of those on its host, the one that is read from already. It is as near, it has just been
// awake, and what a client sets up to read from it is there.
func (f *File) alive(b *located, other *hdfspb.DatanodeInfoProto) *hdfspb.DatanodeInfoProto {
	f.mu.Lock()
	defer f.mu.Unlock()
	var first *hdfspb.DatanodeInfoProto
	for _, n := range b.GetLocs() {
		if _, dead := f.dead[n.GetId().GetDatanodeUuid()]; dead || n == other {
			continue
		}
		if first == nil {
			first = n
		}
		if n.GetId().GetDatanodeUuid() == f.last && n.GetId().GetIpAddr() == first.GetId().GetIpAddr() {
			return n
		}
	}
	if first != nil && other == nil {
		f.last = first.GetId().GetDatanodeUuid()
	}
	return first
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
