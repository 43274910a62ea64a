package reader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/locations"
)

// located is a block with its place in the file. It is not changed once it is known to
// others.
type located struct {
	*hdfspb.LocatedBlockProto
	start, length int64 // bytes
	growing       bool  // it is being written

	encode  sync.Once
	encoded []byte // of a request for it; nil if it can't be encoded
}

// request is the header of a request for the block by a client, encoded once.
func (b *located) request(client string) []byte {
	b.encode.Do(func() { b.encoded, _ = data.EncodeHeader(b.GetB(), b.GetBlockToken(), client) })
	return b.encoded
}

func (b *located) end() int64 { return b.start + b.length }

// blocks are what is known of a file's blocks, in order, and its length.
type blocks struct {
	list   []*located
	length int64
	open   bool                       // somebody writes
	last   *hdfspb.ExtendedBlockProto // the file's; nil if it has none
}

// ErrReplaced is how a read ends of a file in whose place is another one.
var ErrReplaced = errors.New("another file has come in its place since it was opened, or it was truncated: open it again")

// same tells whether two are the same block, maybe with another generation or length.
func same(a, b *hdfspb.ExtendedBlockProto) bool {
	return a != nil && b != nil && a.GetBlockId() == b.GetBlockId() && a.GetPoolId() == b.GetPoolId()
}

// proves tells whether an answer of the NameNode, with the blocks of list, is of the file that
// bs are of, which it is if it has any block of that. The error is [ErrReplaced] if it has
// another block where there was one. An id is never given to two blocks.
func (bs *blocks) proves(lbs *hdfspb.LocatedBlocksProto, list []*located) (bool, error) {
	proved := len(bs.list) == 0 || same(bs.last, lbs.GetLastBlock().GetB())
	for _, b := range list {
		i := sort.Search(len(bs.list), func(i int) bool { return bs.list[i].start >= b.start })
		if i == len(bs.list) || bs.list[i].start != b.start {
			continue
		}
		if !same(bs.list[i].GetB(), b.GetB()) {
			return false, ErrReplaced
		}
		proved = true
	}
	return proved, nil
}

// before is where the last known block begins that begins at off or before.
func (bs *blocks) before(off int64) int64 {
	i := sort.Search(len(bs.list), func(i int) bool { return bs.list[i].start > off })
	if i == 0 {
		return off
	}
	return bs.list[i-1].start
}

// find returns the block that has the byte at off, or nil.
func (bs *blocks) find(off int64) *located {
	i := sort.Search(len(bs.list), func(i int) bool { return bs.list[i].end() > off })
	if i == len(bs.list) || bs.list[i].start > off {
		return nil
	}
	return bs.list[i]
}

// add takes located blocks over those that are known.
func (bs *blocks) add(more []*located) {
	if len(bs.list) == 0 && ordered(more) {
		bs.list = more
		return
	}
	for _, b := range more {
		i := sort.Search(len(bs.list), func(i int) bool { return bs.list[i].start >= b.start })
		if i < len(bs.list) && bs.list[i].start == b.start {
			bs.list[i] = b
			continue
		}
		bs.list = append(bs.list, nil)
		copy(bs.list[i+1:], bs.list[i:])
		bs.list[i] = b
	}
}

// ordered tells whether each block begins behind the start of the one before.
func ordered(list []*located) bool {
	for i := 1; i < len(list); i++ {
		if list[i].start <= list[i-1].start {
			return false
		}
	}
	return true
}

// convert checks what the NameNode has sent.
func convert(list []*hdfspb.LocatedBlockProto) ([]*located, error) {
	out, memory := make([]*located, 0, len(list)), make([]located, len(list))
	for i, lb := range list {
		b := &memory[i]
		b.LocatedBlockProto, b.start, b.length = lb, int64(lb.GetOffset()), int64(lb.GetB().GetNumBytes())
		if b.start < 0 || b.length < 0 || b.end() < b.start {
			return nil, fmt.Errorf("block %d at %d with %d bytes: the NameNode's answer makes no sense", lb.GetB().GetBlockId(), lb.GetOffset(), lb.GetB().GetNumBytes())
		}
		if b.length > 0 {
			out = append(out, b)
		}
	}
	return out, nil
}

// ask asks the NameNode for the blocks of a range.
func (f *File) ask(ctx context.Context, off, length int64) (*hdfspb.LocatedBlocksProto, error) {
	call := &struct {
		req          hdfspb.GetBlockLocationsRequestProto
		from, length uint64
		resp         locations.Blocks
	}{from: uint64(off), length: uint64(length)}
	call.req.Src, call.req.Offset, call.req.Length = &f.name, &call.from, &call.length
	if err := f.cfg.Names.Call(ctx, "getBlockLocations", &call.req, &call.resp); err != nil {
		return nil, err
	}
	lbs := call.resp.Locations
	switch {
	case lbs == nil:
		return nil, exception.New(exception.FileNotFound, "File does not exist: %s", f.name)
	case lbs.GetEcPolicy() != nil:
		return nil, fmt.Errorf("%s is erasure-coded (%s), which this client does not read yet", f.name, lbs.GetEcPolicy().GetName())
	case lbs.GetFileEncryptionInfo() != nil:
		return nil, fmt.Errorf("%s is in an encryption zone, which this client does not read yet", f.name)
	}
	return lbs, nil
}

const (
	// lastTries and lastPause are how often, and after which pause, the NameNode is asked again
	// for the DataNodes of a last block that is being written, as by HDFS's client.
	lastTries = 3
	lastPause = 4 * time.Second
)

// errNoneKnown says that nobody can tell how long a file is that is being written.
var errNoneKnown = errors.New("the NameNode knows no DataNode that has its last block, which is being written")

// load finds out the length of the file and the first of its blocks.
func (f *File) load(ctx context.Context) error {
	for try := 0; ; try++ {
		lbs, err := f.ask(ctx, 0, f.cfg.Prefetch)
		if err != nil {
			return err
		}
		if lbs.GetFileLength() > math.MaxInt64 || lbs.GetLastBlock().GetOffset() > math.MaxInt64 {
			return fmt.Errorf("%s has %d bytes, its last block begins at %d: the NameNode's answer makes no sense", f.name, lbs.GetFileLength(), lbs.GetLastBlock().GetOffset())
		}
		last := lbs.GetLastBlock()
		if lbs.GetIsLastBlockComplete() {
			last = nil
		}
		// DataNodes may have yet to report what they have to a NameNode that has started anew.
		if len(last.GetLocs()) > 0 || last.GetB().GetNumBytes() == 0 {
			return f.loaded(ctx, lbs, last)
		}
		if try == lastTries {
			return fmt.Errorf("%s: %w: block %d", f.name, errNoneKnown, last.GetB().GetBlockId())
		}
		if !sleep(ctx, lastPause) {
			return context.Cause(ctx)
		}
	}
}

// loaded takes what the NameNode has answered to load. growing is the last block if that is
// being written, or nil.
func (f *File) loaded(ctx context.Context, lbs *hdfspb.LocatedBlocksProto, growing *hdfspb.LocatedBlockProto) error {
	known := &blocks{length: int64(lbs.GetFileLength()), open: lbs.GetUnderConstruction(), last: lbs.GetLastBlock().GetB()}
	list, err := convert(lbs.GetBlocks())
	if err != nil {
		return err
	}
	known.add(list)
	if growing != nil {
		b, err := f.growing(ctx, growing)
		if err != nil {
			return err
		}
		if b.length > 0 {
			known.add([]*located{b})
			known.length = max(known.length, b.end())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known != nil {
		if proved, err := f.known.proves(lbs, known.list); err != nil || !proved {
			return fmt.Errorf("%s: %w", f.name, ErrReplaced)
		}
	}
	f.known = known
	return nil
}

// growing asks the DataNodes how much of a block that is being written may be read.
func (f *File) growing(ctx context.Context, last *hdfspb.LocatedBlockProto) (*located, error) {
	for {
		b, err := f.growingNow(ctx, last)
		if !data.Full(err) {
			return b, err
		}
		if !sleep(ctx, rand.N(fullPause)) {
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// growingNow is growing for once.
func (f *File) growingNow(ctx context.Context, last *hdfspb.LocatedBlockProto) (*located, error) {
	b := &located{LocatedBlockProto: last, start: int64(last.GetOffset()), growing: true}
	var errs []error
	missing := 0
	for _, n := range last.GetLocs() {
		length, err := f.cfg.Path.VisibleLength(ctx, n, last.GetB(), last.GetBlockToken())
		if err == nil && (length < 0 || length > math.MaxInt64-b.start) {
			err = fmt.Errorf("it says %d bytes, which makes no sense", length)
		}
		if err == nil {
			b.length = length
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		var refused *exception.Error
		if errors.As(err, &refused) && refused.Class == exception.ReplicaNotFound {
			missing++ // the writer has not begun there
		}
		errs = append(errs, fmt.Errorf("%s: %w", data.Name(n), err))
	}
	if missing == len(last.GetLocs()) {
		return b, nil
	}
	return nil, fmt.Errorf("no DataNode tells how much of block %d of %s, which is being written, may be read: %w", last.GetB().GetBlockId(), f.name, errors.Join(errs...))
}

// block returns the block with the byte at off, from what is known or the NameNode.
func (f *File) block(ctx context.Context, off int64, refresh bool) (*located, error) {
	f.mu.Lock()
	b := f.known.find(off)
	f.mu.Unlock()
	if b != nil && !refresh {
		return b, nil
	}
	var err error
	if b != nil && b.growing {
		err = f.load(ctx) // it may be complete by now
	} else {
		err = f.locate(ctx, off)
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.known.find(off); b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("%s: the NameNode knows no block at %d any more; the file had %d bytes when it was opened: open it again", f.name, off, f.known.length)
}

// beingWritten is where the block begins that is being written, or beyond all of a file if none
// is. What an answer says of it is less than a DataNode does that has been asked how much of it
// may be read, which load does.
func beingWritten(lbs *hdfspb.LocatedBlocksProto) int64 {
	if lbs.GetLastBlock() == nil || lbs.GetIsLastBlockComplete() {
		return math.MaxInt64
	}
	return int64(min(lbs.GetLastBlock().GetOffset(), math.MaxInt64))
}

// locate asks the NameNode for the blocks from off on. Nothing but their blocks tells whether
// the file is the one that was opened: where the answer has none that was known, not the last
// one either, the next one begins with one that was.
func (f *File) locate(ctx context.Context, off int64) error {
	loaded := false
	for from := off; ; {
		lbs, err := f.ask(ctx, from, off-from+f.cfg.Prefetch)
		if err != nil {
			return err
		}
		list, err := convert(lbs.GetBlocks())
		if err != nil {
			return err
		}
		f.mu.Lock()
		proved, err := f.known.proves(lbs, list)
		growing := beingWritten(lbs)
		if err == nil && proved {
			f.known.add(slices.DeleteFunc(list, func(b *located) bool { return b.start >= growing }))
			f.known.last = lbs.GetLastBlock().GetB()
		}
		before := f.known.before(off)
		f.mu.Unlock()
		switch {
		case err == nil && proved && off >= growing && !loaded:
			if err := f.load(ctx); err != nil {
				return err
			}
			loaded = true // and the block may be complete by now, and not among the first
		case err == nil && proved:
			return nil
		case err != nil || before >= from:
			return fmt.Errorf("%s: %w", f.name, ErrReplaced)
		default:
			from = before
		}
	}
}
