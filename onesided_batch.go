package verbena

import (
	"context"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// MaxBatch is how many operations a [Batch] holds, and how many of an endpoint are
	// under way at a time on a device. Further ones wait.
	MaxBatch = operationsAtOnce
	// MaxOperation is the longest Put or Get in bytes within a batch.
	MaxOperation = 1 << 20
)

type operationKind uint8

const (
	opPut operationKind = iota
	opGet
	opCompareSwap
	opFetchAdd
)

var operationNeeds = [...]Rights{opPut: MayWrite, opGet: MayRead, opCompareSwap: MayAtomic, opFetchAdd: MayAtomic}

// An operation is one of a batch.
type operation struct {
	kind          operationKind
	token         Token
	offset        int
	local         []byte  // of a Put, where from; of a Get, where to
	buffer        *Buffer // that local lies in, or nil
	from          int     // where in what the buffer was before its front was cut off
	operand, swap uint64  // of atomics
	result        *uint64 // what was there before
	swapped       uint64  // the same, for those who want it there
}

func (o *operation) atomic() bool { return o.kind >= opCompareSwap }

func (o *operation) length() int {
	if o.atomic() {
		return 8
	}
	return len(o.local)
}

// add counts an operation of n bytes.
func (o *Operations) add(kind operationKind, n int) {
	switch kind {
	case opPut:
		o.Puts++
	case opGet:
		o.Gets++
	default:
		o.Atomics++
		return
	}
	o.Bytes += uint64(n)
}

// A Batch is one-sided operations that are posted together, on a device by one
// doorbell, and waited for together. It is made by [Endpoint.Batch], filled, carried
// out by Do, and can then be filled anew. It belongs to one goroutine at a time.
//
// Puts are carried out in the order in which they were added, and before a Get or an
// atomic operation behind them. What stands behind a Get or an atomic operation may be
// carried out before it.
type Batch struct {
	e     *Endpoint
	count int
	ops   [MaxBatch]operation
	err   error // of what could not be added

	notify  bool // a message follows
	tag     uint32
	message []byte
}

// Batch returns an empty batch.
func (e *Endpoint) Batch() *Batch { return &Batch{e: e} }

// Len is how many operations the batch has.
func (b *Batch) Len() int { return b.count }

// Put adds a Put: see [Endpoint.Put]. data must stay as it is until Do returns.
func (b *Batch) Put(t Token, offset int, data []byte) {
	if o := b.add(opPut, t, offset, len(data)); o != nil {
		o.local = data
	}
}

// Get adds a Get: see [Endpoint.Get]. into has what was read when Do returns nil.
func (b *Batch) Get(t Token, offset int, into []byte) {
	if o := b.add(opGet, t, offset, len(into)); o != nil {
		o.local = into
	}
}

// PutBuffer is Put of the bytes of buffer from from to to, without a copy where the
// device reaches them: buffers and messages of endpoints of the group on the device.
// The caller keeps its reference. Bytes that buffer does not hold make Do fail with
// [ErrBounds].
func (b *Batch) PutBuffer(t Token, offset int, buffer *Buffer, from, to int) {
	if checksBuffers {
		buffer.check("PutBuffer")
	}
	b.addWithin(opPut, t, offset, buffer, from, to)
}

// GetBuffer is Get into the bytes of buffer from from to to; otherwise as PutBuffer.
func (b *Batch) GetBuffer(t Token, offset int, buffer *Buffer, from, to int) {
	if checksBuffers {
		buffer.check("GetBuffer")
	}
	if at := buffer.owner.location(); at.user != nil && at.user.access&rdma.AccessLocalWrite == 0 && b.err == nil {
		b.err = fmt.Errorf("%w: the buffer is mapped for reading only", ErrRights)
	}
	b.addWithin(opGet, t, offset, buffer, from, to)
}

// addWithin adds an operation on bytes of a buffer.
func (b *Batch) addWithin(kind operationKind, t Token, offset int, buffer *Buffer, from, to int) {
	if !buffer.holds(from, to) {
		if b.err == nil {
			b.err = buffer.lacks(from, to)
		}
		return
	}
	if o := b.add(kind, t, offset, to-from); o != nil {
		o.local, o.buffer, o.from = buffer.data[from:to], buffer, buffer.front+from
	}
}

// CompareSwap adds one: see [Endpoint.CompareSwap]. before, if it is not nil, gets
// what was there.
func (b *Batch) CompareSwap(t Token, offset int, old, replacement uint64, before *uint64) {
	if o := b.add(opCompareSwap, t, offset, 8); o != nil {
		o.operand, o.swap, o.result = old, replacement, before
	}
}

// FetchAdd adds one: see [Endpoint.FetchAdd]. before, if it is not nil, gets what was
// there.
func (b *Batch) FetchAdd(t Token, offset int, delta uint64, before *uint64) {
	if o := b.add(opFetchAdd, t, offset, 8); o != nil {
		o.operand, o.result = delta, before
	}
}

// Notify sends a message behind the operations: when the peer receives it, what the
// batch has put is in its memory. message must stay as it is until Do returns.
func (b *Batch) Notify(tag uint32, message []byte) {
	b.notify, b.tag, b.message = true, tag, message
}

func (b *Batch) add(kind operationKind, t Token, offset, n int) *operation {
	err := t.check(offset, n, operationNeeds[kind])
	switch {
	case b.err != nil:
		return nil
	case err != nil:
		b.err = err
		return nil
	case n > MaxOperation:
		b.err = fmt.Errorf("%w: an operation of %d bytes, at most %d", ErrTooLong, n, MaxOperation)
		return nil
	case n == 0:
		return nil
	case b.count == MaxBatch:
		b.err = fmt.Errorf("%w: a batch holds %d operations", ErrTooLong, MaxBatch)
		return nil
	}
	o := &b.ops[b.count]
	b.count++
	o.kind, o.token, o.offset = kind, t, offset
	return o
}

// Do carries the operations out and waits until all are done. If it fails, any of them
// may have been carried out; with an error of the batch itself (bounds, rights, length)
// none has.
//
// Over shared memory, InfiniBand and TCP, Puts are in the peer's memory when Do
// returns nil. Over iWARP they have left this side, in order.
//
// If ctx ends the wait, the operations may still be carried out. Memory that is not
// a [Buffer] is the caller's again: what a device has been given is memory of the
// runtime, which stays where it is until the device is done with it. A Buffer may be in
// use by the device for a while: the runtime keeps a reference until it is not.
func (b *Batch) Do(ctx context.Context) error {
	err := b.do(ctx)
	b.reset()
	return err
}

func (b *Batch) reset() {
	for i := range b.ops[:b.count] {
		b.ops[i].local, b.ops[i].buffer, b.ops[i].result = nil, nil, nil
	}
	b.count, b.err, b.notify, b.message = 0, nil, false, nil
}

func (b *Batch) do(ctx context.Context) error {
	e := b.e
	err := b.err
	if checksBuffers {
		for _, o := range b.ops[:b.count] {
			if o.buffer != nil {
				o.buffer.check("Do")
			}
		}
	}
	switch {
	case !e.features.has(hello.FeatureOneSided):
		err = ErrUnsupported
	case err != nil:
	case e.over():
		err = e.err
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case b.notify && len(b.message) > e.carrier.maxMessage():
		err = fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(b.message), e.carrier.maxMessage())
	case b.count > 0:
		return e.reached(e.carrier.operate(ctx, b))
	case b.notify:
		return e.Send(ctx, b.tag, b.message)
	}
	return e.reached(err)
}

func (e *Endpoint) reached(err error) error {
	if err != nil {
		return e.failure("one-sided operation on", err)
	}
	return nil
}

var batches = sync.Pool{New: func() any { return new(Batch) }}

// batch is Batch for one operation of the endpoint's own methods.
func (e *Endpoint) batch() *Batch {
	b := batches.Get().(*Batch)
	b.e = e
	return b
}

func (b *Batch) doAndFree(ctx context.Context) error {
	err := b.Do(ctx)
	b.e = nil
	batches.Put(b)
	return err
}

// Put writes data to the peer's memory from offset on. The peer is not told. data
// may be reused when it returns; see [Batch.Do] about when the peer has it.
// Concurrent operations on the same bytes are not atomic.
//
// It may be called concurrently with everything, as all one-sided operations. One of
// more than MaxOperation bytes is several, one after the other.
func (e *Endpoint) Put(ctx context.Context, t Token, offset int, data []byte) error {
	return e.put(ctx, t, offset, data, false, 0, nil)
}

// PutNotify is Put, and then a message with a tag, as of [Endpoint.Send]: when the
// peer receives it the data is in its memory.
func (e *Endpoint) PutNotify(ctx context.Context, t Token, offset int, data []byte, tag uint32, message []byte) error {
	return e.put(ctx, t, offset, data, true, tag, message)
}

func (e *Endpoint) put(ctx context.Context, t Token, offset int, data []byte, notify bool, tag uint32, message []byte) error {
	if err := t.check(offset, len(data), MayWrite); err != nil {
		return e.reached(err) // before a part is there
	}
	for {
		n := min(len(data), MaxOperation)
		last := n == len(data)
		if (!last || !notify || len(message) <= e.carrier.maxMessage()) && e.prompt(ctx, opPut, &t, offset, data[:n]) {
			switch {
			case !last:
				offset, data = offset+n, data[n:]
				continue
			case notify:
				return e.reached(e.notified(ctx, tag, message))
			}
			return nil
		}
		b := e.batch()
		b.Put(t, offset, data[:n])
		if last && notify {
			b.Notify(tag, message)
		}
		if err := b.doAndFree(ctx); err != nil || last {
			return err
		}
		offset, data = offset+n, data[n:]
	}
}

// notified sends the message behind a Put.
func (e *Endpoint) notified(ctx context.Context, tag uint32, message []byte) error {
	if err := e.Send(ctx, tag, message); err != nil {
		return fmt.Errorf("the notification was not sent: %w", err)
	}
	return nil
}

// Get reads the peer's memory from offset on into the whole of into.
func (e *Endpoint) Get(ctx context.Context, t Token, offset int, into []byte) error {
	if err := t.check(offset, len(into), MayRead); err != nil {
		return e.reached(err)
	}
	for {
		n := min(len(into), MaxOperation)
		if !e.prompt(ctx, opGet, &t, offset, into[:n]) {
			b := e.batch()
			b.Get(t, offset, into[:n])
			if err := b.doAndFree(ctx); err != nil {
				return err
			}
		}
		if n == len(into) {
			return nil
		}
		offset, into = offset+n, into[n:]
	}
}

// PutBuffer is Put of the bytes of b from from to to, at most MaxOperation, without a
// copy where the device reaches them: buffers and messages of endpoints of the same
// group on the same device. The caller keeps its reference to b. If b does not hold all of
// those bytes, the error wraps [ErrBounds].
func (e *Endpoint) PutBuffer(ctx context.Context, t Token, offset int, b *Buffer, from, to int) error {
	if checksBuffers {
		b.check("PutBuffer")
	}
	if b.holds(from, to) && e.prompt(ctx, opPut, &t, offset, b.data[from:to]) {
		return nil
	}
	batch := e.batch()
	batch.PutBuffer(t, offset, b, from, to)
	return batch.doAndFree(ctx)
}

// GetBuffer reads the peer's memory from offset on into the bytes of b from from to
// to; otherwise as PutBuffer. It is the fastest way to read: nothing is copied but by
// the device.
func (e *Endpoint) GetBuffer(ctx context.Context, t Token, offset int, b *Buffer, from, to int) error {
	// Memory of the application may be mapped for reading only.
	if _, wraps := b.owner.(*wrapped); !wraps && !checksBuffers && b.holds(from, to) && e.prompt(ctx, opGet, &t, offset, b.data[from:to]) {
		return nil
	}
	batch := e.batch()
	batch.GetBuffer(t, offset, b, from, to)
	return batch.doAndFree(ctx)
}

// CompareSwap replaces the 8 bytes at offset, a multiple of 8, by replacement if they
// are old, and returns what was there: it has replaced them if that is old. The bytes
// are a number in the byte order of the peer's processor, which is little-endian on
// all that Verbena has been tested on. It is atomic for the operations that come over
// this endpoint. Whether it is for the peer's own accesses, too, depends on the
// device: it is over shared memory, TCP and user-space iWARP, where the peer uses
// sync/atomic.
func (e *Endpoint) CompareSwap(ctx context.Context, t Token, offset int, old, replacement uint64) (before uint64, err error) {
	b := e.batch()
	b.CompareSwap(t, offset, old, replacement, nil)
	return b.fetch(ctx)
}

// FetchAdd adds delta to the 8 bytes at offset and returns what was there; otherwise
// as [Endpoint.CompareSwap]. The sum wraps.
func (e *Endpoint) FetchAdd(ctx context.Context, t Token, offset int, delta uint64) (before uint64, err error) {
	b := e.batch()
	b.FetchAdd(t, offset, delta, nil)
	return b.fetch(ctx)
}

// fetch is doAndFree for one atomic operation. Its result lies in the batch, so that it
// costs no allocation.
func (b *Batch) fetch(ctx context.Context) (before uint64, err error) {
	if b.count == 1 {
		b.ops[0].result = &b.ops[0].swapped
	}
	o := &b.ops[0]
	err = b.do(ctx)
	before = o.swapped
	b.reset()
	b.e = nil
	batches.Put(b)
	return before, err
}
