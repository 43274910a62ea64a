package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

const (
	// idleTarget is for how long a ring of ours stays that no read uses, and spoiltTarget for
	// how long one whose DataNode has not said that it puts nothing more: to close that while
	// a Put is on its way ends the endpoint, and what else is read by it.
	idleTarget   = 10 * time.Second
	spoiltTarget = time.Minute
	// mostTargets is how many rings are kept that no read uses. Beyond it the oldest goes.
	mostTargets = 16
	// exposing bounds the wait for memory that may be exposed.
	exposing = time.Second
)

// A target is a ring of ours into which one DataNode at a time puts what one reader wants.
type target struct {
	memory   *verbena.Mapping
	exposure *verbena.Exposure
	ep       *verbena.Endpoint
	spoilt   bool // the DataNode may still put something
	until    time.Time
}

// scramble has the bytes of a slot match their checksums no more. Should the DataNode tell of
// a piece and put nothing there, they are not taken for it.
func (t *target) scramble(slot uint64) {
	at, _ := native.Slot(slot)
	binary.NativeEndian.PutUint64(t.memory.Bytes()[at:], rand.Uint64())
}

// targets keeps those that are in no use.
type targets struct {
	mu     sync.Mutex
	closed bool
	idle   []*target // the oldest first
	timer  *time.Timer
}

// take returns a ring for a read over an endpoint.
func (ts *targets) take(ctx context.Context, ep *verbena.Endpoint) (*target, error) {
	ts.mu.Lock()
	for i := len(ts.idle) - 1; i >= 0; i-- {
		if t := ts.idle[i]; t.ep == ep && !t.spoilt {
			ts.idle = append(ts.idle[:i], ts.idle[i+1:]...)
			ts.mu.Unlock()
			for slot := range uint64(native.RingSlots) {
				t.scramble(slot)
			}
			return t, nil
		}
	}
	ts.mu.Unlock()
	for wait := exposing / 10; ; { // and for all of it when nothing gives way
		t, err := expose(ctx, ep, wait)
		if err == nil || ctx.Err() != nil || wait == exposing {
			return t, err
		}
		// The memory of those that are in no use may be what is missing.
		if !ts.freeOldest() {
			wait = exposing
		}
	}
}

// expose makes a ring, and waits for its memory at most so long.
func expose(ctx context.Context, ep *verbena.Endpoint, wait time.Duration) (*target, error) {
	m, err := verbena.NewMapping(native.RingBytes)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	x, err := ep.Expose(ctx, verbena.ExposeConfig{Memory: m.Bytes(), Rights: verbena.MayWrite})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &target{memory: m, exposure: x, ep: ep}, nil
}

// freeOldest frees the ring that has been in no use for longest and may be freed, and tells
// whether there was one.
func (ts *targets) freeOldest() bool {
	ts.mu.Lock()
	i := slices.IndexFunc(ts.idle, func(t *target) bool { return !t.spoilt })
	var over []*target
	if i >= 0 {
		over = append(over, ts.idle[i])
		ts.idle = slices.Delete(ts.idle, i, i+1)
	}
	ts.mu.Unlock()
	free(over)
	return i >= 0
}

// put keeps a ring for the next read.
func (ts *targets) put(t *target) {
	t.until = time.Now().Add(idleTarget)
	if t.spoilt {
		t.until = time.Now().Add(spoiltTarget)
	}
	var over []*target
	ts.mu.Lock()
	switch {
	case ts.closed || t.ep.Err() != nil:
		over = append(over, t)
	default:
		ts.idle = append(ts.idle, t)
		if len(ts.idle) > mostTargets {
			over, ts.idle = append(over, ts.idle[0]), append(ts.idle[:0], ts.idle[1:]...)
		}
		if ts.timer == nil {
			ts.timer = time.AfterFunc(idleTarget, func() { ts.sweep(time.Now()) })
		}
	}
	ts.mu.Unlock()
	free(over)
}

// sweep frees what has been idle for long.
func (ts *targets) sweep(now time.Time) {
	var over []*target
	ts.mu.Lock()
	left := ts.idle[:0]
	for _, t := range ts.idle {
		if ts.closed || now.After(t.until) || t.ep.Err() != nil {
			over = append(over, t)
			continue
		}
		left = append(left, t)
	}
	clear(ts.idle[len(left):])
	ts.idle = left
	switch {
	case ts.timer == nil:
	case len(left) == 0:
		ts.timer.Stop()
		ts.timer = nil
	default:
		ts.timer.Reset(idleTarget)
	}
	ts.mu.Unlock()
	free(over)
}

// close frees all. Those in use follow when their reads end.
func (ts *targets) close() {
	ts.mu.Lock()
	ts.closed = true
	ts.mu.Unlock()
	ts.sweep(time.Now())
}

// free gives memory back. A DataNode that still puts something there loses the endpoint, and
// finds nothing.
func free(over []*target) {
	for _, t := range over {
		_ = errors.Join(t.exposure.Close(), t.memory.Close()) // nobody can do anything about it
	}
}

// openPush has a DataNode put a range into a ring of ours.
func (r *ringReader) openPush(c *verbena.Caller) (err error) {
	if r.target, err = r.p.rings.targets.take(r.within, c.Endpoint()); err != nil {
		return fmt.Errorf("%w: %w", errNoTarget, err)
	}
	q := native.RingRequest{Offset: r.req.Offset, Length: r.req.Length, Unverified: r.req.Unverified}
	request := native.AppendPushRequest(make([]byte, 0, 256+len(r.header)), &q, r.target.exposure.Token(), r.header)
	if r.stream, err = c.Stream(r.within, native.MethodPush, request); err != nil {
		return err
	}
	var b [native.PushLen]byte
	if _, err = io.ReadFull(r.stream, b[:]); err != nil {
		return err
	}
	r.ring.Sum, err = native.ParsePush(b[:])
	return err
}

// errNoTarget says that a read can't have a ring of ours.
var errNoTarget = errors.New("no memory for a ring")

// nextPushed compares the next piece where it lies. The one before it is the DataNode's again.
func (r *ringReader) nextPushed() ([]byte, error) {
	if r.stream == nil { // the ring may be another reader's
		return nil, io.ErrClosedPipe
	}
	if r.pieces > 0 {
		r.target.scramble(r.pieces - 1)
		if err := r.credit(); err != nil {
			return nil, err
		}
	}
	if err := r.filled(); err != nil {
		return nil, err
	}
	n := r.piece.Data
	r.taken = n
	at, _ := native.Slot(r.pieces - 1)
	b := r.target.memory.Bytes()[at : at+n+r.piece.Sums]
	return r.verified(b[:n], b[n:], r.piece.Offset)
}

var _ data.BlockReader = (*ringReader)(nil)
