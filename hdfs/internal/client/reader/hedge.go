package reader

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Hedges bounds the reads of a client that are under way at two DataNodes, and waits for
// those whose answer nobody needs any more.
type Hedges struct {
	room  chan struct{}
	reads sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// NewHedges allows so many of them at a time.
func NewHedges(most int) *Hedges { return &Hedges{room: make(chan struct{}, most)} }

// Close waits until no read is under way. Those that begin later have no second DataNode.
func (h *Hedges) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.reads.Wait()
}

// run runs f in a goroutine for which Close waits, or reports that it is too late.
func (h *Hedges) run(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.reads.Go(f)
	}
	return !h.closed
}

// mostHedged is how many bytes are read by one hedged read at most: a pooled buffer's.
const mostHedged = 32 << 20

// fetched is what one of the reads that race has come to.
type fetched struct {
	node *hdfspb.DatanodeInfoProto
	own  *[]byte
	err  error
}

// A race is a read at one DataNode or two. Each has memory of its own: the one that loses
// may write to it after the race, for as long as its disk takes.
type race struct {
	f       *File
	block   *located
	off     int64
	length  int
	answers chan fetched
	over    chan struct{} // closed when nobody takes an answer any more
	left    atomic.Int32  // reads that have not ended
	hedged  bool          // it counts as one of Hedges until none is left
}

func (r *race) begin(ctx context.Context, node *hdfspb.DatanodeInfoProto) bool {
	r.left.Add(1)
	begun := r.f.cfg.Hedges.run(func() {
		own := transfer.GetBuffer(r.length)
		err := r.f.fetch(ctx, r.block, node, (*own)[:r.length], r.off)
		select {
		case r.answers <- fetched{node, own, err}:
		case <-r.over:
			transfer.PutBuffer(own)
		}
		r.end()
	})
	if !begun {
		r.end()
	}
	return begun
}

func (r *race) end() {
	if r.left.Add(-1) == 0 && r.hedged {
		<-r.f.cfg.Hedges.room
	}
}

// hedged fills p, of mostHedged bytes at most, from a DataNode, and from a second one as well
// if the first takes longer than Hedge. It returns with the first answer, whatever the other
// one still does. An error comes with the DataNode that is to blame.
func (t *tries) hedged(b *located, first *hdfspb.DatanodeInfoProto, p []byte, off int64) (*hdfspb.DatanodeInfoProto, error) {
	f, ctx := t.f, t.ctx
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &race{f: f, block: b, off: off, length: len(p), answers: make(chan fetched), over: make(chan struct{})}
	defer close(r.over)
	if !r.begin(reading, first) {
		return first, f.fetch(ctx, b, first, p, off)
	}
	racing := 1
	late := time.NewTimer(f.cfg.Hedge)
	defer late.Stop()
	// A read that is left behind must count as a hedge, or nothing would bound those.
	var ended <-chan struct{}
	var failed fetched
	for {
		select {
		case a := <-r.answers:
			racing--
			if a.err == nil {
				copy(p, *a.own)
			}
			transfer.PutBuffer(a.own)
			if a.err == nil {
				return a.node, nil
			}
			t.mismatched(a.node, a.err)
			if failed.err == nil || errors.Is(failed.err, context.Canceled) {
				failed = a
			}
			if racing == 0 {
				return failed.node, failed.err
			}
		case <-ended:
			return first, context.Cause(ctx)
		case <-late.C:
			other := f.alive(b, first)
			if other == nil {
				continue
			}
			select {
			case f.cfg.Hedges.room <- struct{}{}:
			default:
				continue // as many as are allowed are under way
			}
			r.hedged, ended = true, ctx.Done()
			if r.begin(reading, other) {
				racing++
			}
		}
	}
}
