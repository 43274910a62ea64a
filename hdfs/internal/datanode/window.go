package datanode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

const (
	// windowLease is for how long a client may read from a window before it asks again.
	// A client that keeps to it is away when the DataNode closes the window, windowGrace later.
	windowLease = 10 * time.Second
	windowGrace = 5 * time.Second
	// windowLook is how often windows are looked at whose leases may be over.
	windowLook = time.Second
	// leastWindow is what a window counts at least, in bytes: each has a descriptor and pages
	// of its own, so that half a thousand of them is the most by default.
	leastWindow = 256 << 10
	// exposing bounds the wait for memory that may be exposed.
	exposing = time.Second
)

// windows are copies of ranges of finalized replicas, in memory that clients read by Get:
// docs/hdfs-data.md. A range is copied once, and exposed to each client that asks, which
// has a lease of it.
type windows struct {
	dn    *DataNode
	limit int64

	sweeping sync.Mutex // one sweep at a time: exposures are closed before their memory

	mu      sync.Mutex
	closed  bool
	all     map[windowKey]*window
	leaving []*window // taken back, with clients that may still read
	bytes   int64
	loans   map[*verbena.Caller]int64 // of bytes, those of clients' rings
	looking bool

	granted, refused, revoked atomic.Uint64
}

// windowKey is which range of which block.
type windowKey struct {
	block uint64
	at    int64
}

// A window is a copy of a range. The mu of windows guards it, but for what memory holds.
type window struct {
	sum    transfer.Checksum
	key    windowKey
	length int
	size   int64            // what it counts
	memory *verbena.Mapping // nil until it is filled
	by     *verbena.Caller  // who asked first
	users  int              // requests that are dealt with
	over   bool             // taken back
	wiped  bool
	grants map[*verbena.Caller]*grant
}

// A grant is the exposure of a window to one client.
type grant struct {
	exposure *verbena.Exposure
	until    time.Time // the lease's end, and the grace
}

func (dn *DataNode) initWindows() {
	dn.windows.dn, dn.windows.limit = dn, dn.cfg.WindowMemory
	dn.windows.all, dn.windows.loans = map[windowKey]*window{}, map[*verbena.Caller]int64{}
	dn.rings.dn = dn
}

// nativeWindow grants a client a window.
func (dn *DataNode) nativeWindow(q verbena.Request) {
	w, err := dn.grantWindow(q)
	if err == nil {
		dn.windows.granted.Add(1)
		_ = q.Reply(native.AppendWindow(nil, w)) // its error is that of the endpoint
		return
	}
	dn.windows.refused.Add(1)
	code := native.CodeNotNow
	if status := statusOf(err); status != hdfspb.Status_ERROR {
		code = native.CodeOf(status)
	}
	_ = q.Fail(code, err.Error())
}

// errNoWindow says that a range can't be exposed now.
var errNoWindow = errors.New("no window")

func (dn *DataNode) grantWindow(q verbena.Request) (*native.Window, error) {
	req, header, err := native.ParseReadRequest(q.Payload())
	if err != nil {
		return nil, err
	}
	if q.Caller().Endpoint().Selection().Transport == verbena.TransportTCP {
		return nil, fmt.Errorf("%w: over TCP a Get is a message, too", errNoWindow)
	}
	r, err := dn.openKept(header, req.Offset+1, false)
	if err != nil {
		return nil, err
	}
	defer dn.kept.done(r)
	lease := windowLease
	if until := dn.kept.until(header); time.Until(until) < lease {
		lease = time.Until(until)
	}
	at := req.Offset / native.WindowSize * native.WindowSize
	length := int(min(native.WindowSize, r.Length-at))
	switch {
	case native.WindowBytes(r.Sum, length) == 0:
		return nil, fmt.Errorf("%w: chunks of %d bytes do not fit one", errNoWindow, r.Sum.BytesPerChunk)
	case r.Info.State != store.Finalized:
		return nil, fmt.Errorf("%w: the block is %v", errNoWindow, r.Info.State)
	case lease <= 0:
		return nil, fmt.Errorf("%w: the token is about to expire", errNoWindow)
	}
	ws := &dn.windows
	w, err := ws.find(windowKey{r.Info.ID, at}, r, length, q.Caller())
	if err != nil {
		return nil, err
	}
	defer ws.done(w)
	token, err := ws.grant(q.Context(), w, q.Caller(), lease)
	if err != nil {
		return nil, err
	}
	return &native.Window{Sum: r.Sum, Offset: at, Length: length, Lease: lease, Token: token}, nil
}

// find returns the window of a range, and makes it if there is none, to be given back by
// done.
func (ws *windows) find(key windowKey, r *keptReplica, length int, c *verbena.Caller) (*window, error) {
	size := max(leastWindow, int64(native.WindowBytes(r.Sum, length)))
	ws.mu.Lock()
	w := ws.all[key]
	if w != nil {
		defer ws.mu.Unlock()
		if w.memory == nil {
			return nil, fmt.Errorf("%w: it is being filled", errNoWindow)
		}
		w.users++
		return w, nil
	}
	if err := ws.room(c, size); err != nil {
		ws.mu.Unlock()
		return nil, err
	}
	w = &window{sum: r.Sum, key: key, length: length, size: size, by: c, users: 1, grants: map[*verbena.Caller]*grant{}}
	ws.all[key] = w
	ws.bytes += size
	ws.mu.Unlock()
	memory, err := fill(w, r)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.memory = memory
	if err == nil && w.over {
		err = fmt.Errorf("%w: the block is changing", errNoWindow)
	}
	if err != nil {
		w.users--
		ws.end(w)
		return nil, err
	}
	ws.look()
	return w, nil
}

// room tells why a client may not have size bytes more, if so. mu is held.
func (ws *windows) room(c *verbena.Caller, size int64) error {
	switch {
	case ws.closed:
		return ErrClosed
	case ws.bytes+size > ws.limit || ws.held(c)+size > ws.limit/2:
		return fmt.Errorf("%w: clients have %d bytes already, %d are allowed, half of them for one client", errNoWindow, ws.bytes, ws.limit)
	}
	return nil
}

// lend counts the memory of a ring, if there is room for it.
func (ws *windows) lend(c *verbena.Caller, size int64) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if err := ws.room(c, size); err != nil {
		return err
	}
	ws.count(c, size)
	return nil
}

// lent counts memory of rings that has come back, which is negative.
func (ws *windows) lent(c *verbena.Caller, size int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.count(c, size)
}

// count adds to the memory of a client's rings. mu is held.
func (ws *windows) count(c *verbena.Caller, size int64) {
	ws.bytes += size
	if ws.loans[c] += size; ws.loans[c] == 0 {
		delete(ws.loans, c)
	}
}

// done ends a request's use of a window.
func (ws *windows) done(w *window) {
	ws.mu.Lock()
	w.users--
	closed := ws.closed
	ws.mu.Unlock()
	if closed {
		ws.sweep(never)
	}
}

// never is when no lease lasts any more.
var never = time.Unix(1<<40, 0)

// held is how many bytes a client has. mu is held.
func (ws *windows) held(c *verbena.Caller) (bytes int64) {
	bytes = ws.loans[c]
	for _, w := range ws.all {
		if w.by == c || w.grants[c] != nil {
			bytes += w.size
		}
	}
	return bytes
}

// fill copies a range. Whoever changes the replica from here on finds the window; whoever
// did before shows here.
func fill(w *window, r *keptReplica) (*verbena.Mapping, error) {
	if !r.Current() {
		return nil, fmt.Errorf("%w: the block is changing", errNoWindow)
	}
	sums := w.sum.Size() * int(w.sum.Chunks(int64(w.length)))
	b := transfer.GetBuffer(w.length + sums)
	defer transfer.PutBuffer(b)
	data, rest := (*b)[:w.length], (*b)[w.length:w.length+sums]
	if err := r.ReadVerified(data, rest, w.key.at); err != nil {
		return nil, err
	}
	m, err := verbena.NewMapping(native.WindowBytes(w.sum, w.length))
	if err != nil {
		return nil, err
	}
	native.LayWindow(m.Bytes(), data, rest, w.sum)
	return m, nil
}

// grant exposes a window to a client, or prolongs what it has.
func (ws *windows) grant(ctx context.Context, w *window, c *verbena.Caller, lease time.Duration) (verbena.Token, error) {
	ends := time.Now().Add(lease + windowGrace)
	ws.mu.Lock()
	g := w.grants[c]
	if g != nil && !w.over {
		defer ws.mu.Unlock()
		g.until = ends
		return g.exposure.Token(), nil
	}
	if w.over || ws.closed {
		ws.mu.Unlock()
		return verbena.Token{}, fmt.Errorf("%w: the block is changing", errNoWindow)
	}
	ws.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, exposing)
	defer cancel()
	x, err := c.Endpoint().Expose(ctx, verbena.ExposeConfig{Memory: w.memory.Bytes(), Rights: verbena.MayRead})
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if err != nil {
		return verbena.Token{}, fmt.Errorf("%w: %w", errNoWindow, err)
	}
	if old := w.grants[c]; old != nil { // made at the same time
		_ = x.Close()
		return old.exposure.Token(), nil
	}
	w.grants[c] = &grant{exposure: x, until: ends}
	if w.over {
		return verbena.Token{}, fmt.Errorf("%w: the block is changing", errNoWindow)
	}
	return x.Token(), nil
}

// changing takes the windows of a block back before it changes: their checksums are made
// others. What a client reads later does not match; what it has read, it has read before.
func (ws *windows) changing(id uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for key, w := range ws.all {
		if key.block == id {
			ws.revoked.Add(1)
			ws.end(w)
		}
	}
}

// end takes a window back. Its memory goes when nobody may read it any more. mu is held.
func (ws *windows) end(w *window) {
	delete(ws.all, w.key)
	if w.over {
		return
	}
	w.over = true
	if w.memory != nil {
		native.SpoilWindow(w.memory.Bytes(), w.sum)
	}
	ws.leaving = append(ws.leaving, w)
	ws.look()
}

// look has a goroutine look at the leases as long as there are windows. mu is held.
func (ws *windows) look() {
	if !ws.looking {
		ws.looking = ws.dn.goBackground(func() { ws.dn.sweepUntilNone(windowLook, ws.sweep) })
	}
}

// sweepUntilNone calls sweep every so often, until it returns that nothing is left or the
// DataNode closes, which sees to the rest.
func (dn *DataNode) sweepUntilNone(every time.Duration, sweep func(now time.Time) (left int)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-dn.ctx.Done():
			return
		}
		if sweep(time.Now()) == 0 {
			return
		}
	}
}

// sweep closes what has no lease any more, and returns how many windows are left.
func (ws *windows) sweep(now time.Time) int {
	ws.sweeping.Lock()
	defer ws.sweeping.Unlock()
	var ended []*verbena.Exposure
	ws.mu.Lock()
	defer ws.mu.Unlock()
	each := func(w *window) {
		for c, g := range w.grants {
			if now.After(g.until) || c.Endpoint().Err() != nil {
				ended = append(ended, g.exposure)
				delete(w.grants, c)
			}
		}
	}
	for _, w := range ws.all {
		each(w)
		if len(w.grants) == 0 && w.users == 0 {
			ws.end(w)
		}
	}
	for _, w := range ws.leaving {
		each(w)
		if w.memory != nil && !w.wiped {
			w.wiped = true
			clear(w.memory.Bytes())
		}
	}
	ws.mu.Unlock()
	for _, x := range ended {
		if err := x.Close(); err != nil {
			ws.dn.log.Warn("memory of a window can't be closed", "err", err)
		}
	}
	ws.mu.Lock()
	left := ws.leaving[:0]
	for _, w := range ws.leaving {
		if len(w.grants) > 0 || w.users > 0 {
			left = append(left, w)
			continue
		}
		ws.free(w)
	}
	clear(ws.leaving[len(left):])
	ws.leaving = left
	n := len(ws.all) + len(ws.leaving)
	if n == 0 {
		ws.looking = false
	}
	return n
}

// free gives the memory of a window back that no client may read. mu is held.
func (ws *windows) free(w *window) {
	if w.memory != nil {
		if err := w.memory.Close(); err != nil {
			ws.dn.log.Warn("memory of a window can't be unmapped", "err", err)
		}
	}
	ws.bytes -= w.size
}

// close takes all windows back, whatever leases they have. Those that requests use go with
// them.
func (ws *windows) close() {
	ws.mu.Lock()
	ws.closed = true
	for _, w := range ws.all {
		ws.end(w)
	}
	ws.mu.Unlock()
	ws.sweep(never)
}

// WindowStats are the numbers of a DataNode's windows.
type WindowStats struct {
	Windows                   int    // now
	Bytes                     int64  // of memory, now, with that of rings
	Granted, Refused, Revoked uint64 // since it was opened
}

func (ws *windows) collect() WindowStats {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return WindowStats{Windows: len(ws.all), Bytes: ws.bytes, Granted: ws.granted.Load(), Refused: ws.refused.Load(), Revoked: ws.revoked.Load()}
}
