package native

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/limit"
)

const (
	// hotReads is after how many small reads in a range a window of it is asked for.
	hotReads = 4
	// mostRanges bounds the ranges of which something is remembered.
	mostRanges = 4096
	// windowPause is after how long a window is asked for again that was refused, and
	// noWindows where none are to be had at all.
	windowPause = time.Second
	noWindows   = time.Minute
	// idleNode is for how long an endpoint stays whose windows are over.
	idleNode = time.Minute
	// sparePieces is how many buffers an endpoint keeps for later reads.
	sparePieces = 8
)

// windows are ranges of blocks that DataNodes have exposed: small reads in them are Gets.
// A range that is read often is asked for, and asked for again while it is read.
type windows struct {
	p       *Path
	session *verbena.CallSession // its endpoints carry Gets, and requests for windows
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu     sync.Mutex
	ranges map[rangeKey]*hotRange
	nodes  map[string]*windowNode // by address

	reads, stale, granted atomic.Uint64
}

// rangeKey is which range of which block at which DataNode.
type rangeKey struct {
	address        string
	id, generation uint64
	at             int64
}

// A hotRange is what is known of a range.
type hotRange struct {
	reads  int
	asking bool
	after  time.Time // none is asked for before
	node   *windowNode
	window native.Window // if node is not nil
	until  time.Time     // it may be used
	renew  time.Time
}

// A windowNode is an endpoint to a DataNode for windows.
type windowNode struct {
	lease  verbena.Lease
	ep     *verbena.Endpoint
	until  time.Time // of the last window
	spare  []*verbena.Buffer
	closed bool
}

func (ws *windows) init(p *Path) {
	ws.p, ws.session = p, p.cfg.Calls.Session(nil)
	ws.ctx, ws.cancel = context.WithCancel(context.Background())
	ws.ranges, ws.nodes = map[rangeKey]*hotRange{}, map[string]*windowNode{}
}

func (ws *windows) close() {
	ws.cancel()
	ws.wg.Wait()
	ws.mu.Lock()
	for address, n := range ws.nodes {
		ws.drop(address, n)
	}
	clear(ws.ranges)
	ws.mu.Unlock()
	_ = ws.session.Close() // nobody waits for calls on it
}

// fill reads a small range by Get, and reports whether it has.
func (ws *windows) fill(ctx context.Context, address string, req *data.ReadRequest, b []byte) bool {
	now := time.Now()
	key := rangeKey{address, req.Block.GetBlockId(), req.Block.GetGenerationStamp(), req.Offset / native.WindowSize * native.WindowSize}
	ws.mu.Lock()
	h := ws.ranges[key]
	if h == nil {
		h = ws.add(key)
	}
	h.reads++
	if !h.asking && h.reads >= hotReads && now.After(h.after) && (h.node == nil || now.After(h.renew)) && ws.ctx.Err() == nil {
		h.asking = true
		encoded := req.Encoded
		ws.wg.Go(func() { ws.ask(key, h, encoded) })
	}
	if h.node == nil || now.After(h.until) || h.node.closed {
		ws.mu.Unlock()
		return false
	}
	n, window := h.node, h.window
	from, to, ok := window.Part(req.Offset, len(b))
	var piece *verbena.Buffer
	if last := len(n.spare) - 1; ok && last >= 0 {
		piece, n.spare = n.spare[last], n.spare[:last]
	}
	ws.mu.Unlock()
	if !ok {
		return false
	}
	got, err := ws.get(ctx, n, &window, from, to, req.Offset, b, piece)
	if got {
		ws.reads.Add(1)
		return true
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if h.node == n && h.window.Token == window.Token {
		ws.stale.Add(1)
		h.node, h.reads, h.after = nil, 0, now.Add(windowPause)
	}
	if err != nil && n.ep.Err() != nil && ws.nodes[address] == n {
		ws.drop(address, n)
	}
	return false
}

// maxPiece is the longest part of a window that is read: a small read's chunks.
const maxPiece = 2 * native.MaxReadNow

// get carries the Get out, and compares what it has read in place.
func (ws *windows) get(ctx context.Context, n *windowNode, w *native.Window, from, to int, off int64, b []byte, piece *verbena.Buffer) (bool, error) {
	if to-from > maxPiece {
		ws.putBack(n, piece)
		return false, nil
	}
	bound := limit.New(ctx, time.Now(), ws.p.cfg.SocketTimeout)
	defer bound.End()
	if piece == nil {
		var err error
		if piece, err = n.ep.Buffer(bound, maxPiece); err != nil {
			return false, err
		}
	}
	if err := n.ep.GetBuffer(bound, w.Token, from, piece, 0, to-from); err != nil {
		piece.Release() // a device may still write to it
		return false, err
	}
	ok := w.Take(piece.Bytes()[:to-from], off, b)
	ws.putBack(n, piece)
	return ok, nil
}

// putBack keeps a buffer for a later read.
func (ws *windows) putBack(n *windowNode, piece *verbena.Buffer) {
	if piece == nil {
		return
	}
	ws.mu.Lock()
	keep := !n.closed && len(n.spare) < sparePieces
	if keep {
		n.spare = append(n.spare, piece)
	}
	ws.mu.Unlock()
	if !keep {
		piece.Release()
	}
}

// add remembers a range, in the place of another one if they are many. mu is held.
func (ws *windows) add(key rangeKey) *hotRange {
	if len(ws.ranges) >= mostRanges {
		now := time.Now()
		for k, h := range ws.ranges {
			if !h.asking && (h.node == nil || now.After(h.until)) {
				delete(ws.ranges, k)
				break
			}
		}
	}
	h := &hotRange{}
	if len(ws.ranges) < mostRanges {
		ws.ranges[key] = h
	}
	return h
}

// errNoGets says that an endpoint's Gets are messages.
var errNoGets = errors.New("no one-sided reads over TCP")

// ask asks for a window.
func (ws *windows) ask(key rangeKey, h *hotRange, encoded []byte) {
	ctx, cancel := context.WithTimeout(ws.ctx, ws.p.cfg.SocketTimeout)
	defer cancel()
	began := time.Now()
	w, n, err := ws.request(ctx, key, encoded)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	h.asking, h.reads = false, 0
	if err != nil || n.closed {
		h.after = time.Now().Add(windowPause)
		if err == errNoGets {
			h.after = time.Now().Add(noWindows)
		}
		return
	}
	ws.granted.Add(1)
	h.node, h.window = n, w
	h.until, h.renew = began.Add(w.Lease), began.Add(w.Lease/2)
	if n.until.Before(h.until) {
		n.until = h.until
	}
}

// request gets a window from a DataNode.
func (ws *windows) request(ctx context.Context, key rangeKey, encoded []byte) (w native.Window, n *windowNode, err error) {
	if n, err = ws.node(ctx, key.address); err != nil {
		return w, nil, err
	}
	q := native.ReadRequest{Offset: key.at, Length: 1}
	m, err := n.lease.Caller().Call(ctx, native.MethodWindow, native.AppendReadRequest(nil, &q, encoded))
	if err != nil {
		return w, nil, err
	}
	defer m.Release()
	if w, err = native.ParseWindow(m.Bytes()); err == nil && w.Offset != key.at {
		err = native.ErrMalformed
	}
	return w, n, err
}

// node returns the endpoint for windows of a DataNode.
func (ws *windows) node(ctx context.Context, address string) (*windowNode, error) {
	ws.mu.Lock()
	n := ws.nodes[address]
	ws.mu.Unlock()
	if n != nil {
		if n.ep.Err() == nil {
			return n, nil
		}
		ws.mu.Lock()
		ws.drop(address, n)
		ws.mu.Unlock()
	}
	l, err := ws.session.Get(ctx, address, verbena.Intent{Operation: readOperation, Size: native.WindowSize})
	if err != nil {
		return nil, err
	}
	ep := l.Caller().Endpoint()
	if ep.Selection().Transport == verbena.TransportTCP { // a Get is a message there, too
		l.Put()
		return nil, errNoGets
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if other := ws.nodes[address]; other != nil || ws.ctx.Err() != nil {
		l.Put()
		if other == nil {
			return nil, context.Cause(ws.ctx)
		}
		return other, nil
	}
	n = &windowNode{lease: l, ep: ep, until: time.Now().Add(idleNode)}
	ws.nodes[address] = n
	ws.wg.Go(func() { ws.watch(address, n) })
	return n, nil
}

// watch drops an endpoint that has ended, or whose windows nobody has used for a while.
func (ws *windows) watch(address string, n *windowNode) {
	t := time.NewTicker(idleNode)
	defer t.Stop()
	for {
		var over bool
		select {
		case <-ws.ctx.Done():
			return
		case <-n.ep.Done():
			over = true
		case now := <-t.C:
			ws.mu.Lock()
			over = now.After(n.until)
			ws.mu.Unlock()
		}
		if over {
			ws.mu.Lock()
			ws.drop(address, n)
			ws.mu.Unlock()
			return
		}
	}
}

// drop gives an endpoint back. mu is held.
func (ws *windows) drop(address string, n *windowNode) {
	if n.closed {
		return
	}
	n.closed = true
	if ws.nodes[address] == n {
		delete(ws.nodes, address)
	}
	for _, piece := range n.spare {
		piece.Release()
	}
	n.spare = nil
	n.lease.Drop()
}

// WindowStats tell how small reads were made.
type WindowStats struct {
	Reads   uint64 // by Get
	Stale   uint64 // Gets from windows that had been taken back; messages followed
	Granted uint64 // windows, also for another lease
}

// Windows returns what was read by Get so far.
func (p *Path) Windows() WindowStats {
	return WindowStats{p.windows.reads.Load(), p.windows.stale.Load(), p.windows.granted.Load()}
}

// Close gives up what DataNodes expose. No read is under way any more.
func (p *Path) Close() {
	p.windows.close()
	p.rings.close()
}
