package stream

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/internal/liveness"
)

const (
	// gather is the size of the buffers in which small messages go out together.
	gather = 64 << 10
	// alone is the length from which a message goes out from its own memory.
	alone = 16 << 10
	// mostWaiting is how many bytes may wait for a peer that does not read
	// before Room and SendWait wait, too.
	mostWaiting = 4 << 20
	// piece is how many bytes the peer has to take within the time-out, or all
	// that waits; mostTimeouts is how many time-outs it has for all of it.
	piece        = 256 << 10
	mostTimeouts = 16
)

// lastRead is how long a peer may take to see that the sending side has ended.
const lastRead = time.Second

// A Writer sends messages as frames. Whoever finds nobody writing writes, also
// what others add meanwhile, so that one system call takes many frames. Nobody
// waits for the socket: what it does not take at once goes out in the background.
type Writer struct {
	nc      net.Conn
	timeout time.Duration // for a piece written in the background
	budget  *Budget       // nil for none
	direct  directWriter
	watch   *liveness.Watcher
	crowded atomic.Bool // more than mostWaiting waits

	mu         sync.Mutex
	queue      []*buffer // whole ones, each with its number of bytes in sizes
	sizes      []int
	tail       *buffer // where small messages gather, behind queue
	tailLen    int
	waiting    int  // bytes in queue, tail and out
	charged    int  // of them, what the budget counts
	writing    bool // somebody writes, or is about to
	finished   bool // half is to be closed
	failed     error
	room       chan struct{} // closed when there is room again; nil while nobody waits
	background sync.WaitGroup
	closing    sync.Once
	flushed    sync.Cond

	// Of the one who writes.
	out      []*buffer
	outSizes []int
	freed    int // so many of out have been given back
}

// NewWriter sends on nc. A peer that within timeout takes neither 256 KiB nor all
// that waits, or whose host answers nothing for as long as silence while data is
// on its way, has the connection closed. budget bounds what Send lets wait; a
// writer that is used by SendWait alone needs none.
func NewWriter(nc net.Conn, timeout, silence time.Duration, budget *Budget) *Writer {
	w := &Writer{nc: nc, timeout: timeout, budget: budget}
	w.direct.init(nc)
	w.flushed.L = &w.mu
	socket := below(nc)
	w.watch = liveness.Watch(socket, silence, func(err error) {
		if tcp, ok := socket.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the kernel must not keep the data
		}
		w.Abort(err)
	})
	return w
}

// below returns the connection under wrappers that name it as tls.Conn does.
func below(nc net.Conn) net.Conn {
	for {
		wrapper, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nc
		}
		nc = wrapper.NetConn()
	}
}

// Send implements [carrier.Sender].
func (w *Writer) Send(m carrier.Message, urgency carrier.Urgency) error {
	b, n := w.frame(m)
	w.mu.Lock()
	return w.put(b, n, urgency)
}

// SendWait implements [carrier.Sender].
func (w *Writer) SendWait(ctx context.Context, m carrier.Message, urgency carrier.Urgency) error {
	b, n := w.frame(m)
	w.mu.Lock()
	if err := w.waitForRoom(ctx); err != nil {
		w.mu.Unlock()
		b.Release()
		return err
	}
	return w.put(b, n, urgency)
}

// Room implements [carrier.Sender].
func (w *Writer) Room(ctx context.Context) error {
	if !w.crowded.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.waitForRoom(ctx); err != nil {
		return err
	}
	return w.ended()
}

// Crowded tells whether Room would wait.
func (w *Writer) Crowded() bool { return w.crowded.Load() }

// frame returns the message as a frame of n bytes.
func (w *Writer) frame(m carrier.Message) (b *buffer, n int) {
	b, ok := m.Owner.(*buffer)
	n = len(m.Bytes)
	if !ok || n > 0 && &b.b[lengthSize] != &m.Bytes[0] { // it outgrew what it asked for
		b = newBuffer(lengthSize + n)
		copy(b.b[lengthSize:], m.Bytes)
		m.Release()
	}
	binary.BigEndian.PutUint32(b.b, uint32(n))
	return b, n + lengthSize
}

// put adds a frame, and writes if nobody else does. The caller holds mu, which
// put unlocks.
func (w *Writer) put(b *buffer, n int, urgency carrier.Urgency) error {
	if err := w.ended(); err != nil {
		w.mu.Unlock()
		b.Release()
		return err
	}
	release := w.add(b, n)
	slowest := w.count(n)
	lead := !w.writing && (urgency != carrier.Later || w.waiting >= gather)
	if lead {
		w.writing = true
	}
	w.mu.Unlock()
	if release {
		b.Release()
	}
	if slowest != nil {
		slowest.Abort(ErrUnread)
		if slowest == w {
			return ErrUnread
		}
	}
	if lead {
		if urgency == carrier.Soon {
			runtime.Gosched() // those about to send run first
		}
		w.write()
	}
	return nil
}

// ended tells why nothing can be sent any more. The caller holds mu.
func (w *Writer) ended() error {
	if w.failed == nil && w.finished {
		return carrier.ErrFinished
	}
	return w.failed
}

// count counts n bytes more, or fewer, that wait. It returns the writer that has
// to end because too much waits, if any. The caller holds mu.
func (w *Writer) count(n int) (slowest *Writer) {
	w.waiting += n
	beyond := max(w.waiting-mostWaiting, 0)
	if beyond == w.charged {
		return nil
	}
	w.crowded.Store(beyond > 0)
	if beyond == 0 {
		w.wake()
	}
	w.charged = beyond
	if w.failed != nil { // it holds nothing of the budget any more
		return nil
	}
	return w.budget.charge(w, int64(beyond))
}

// add puts a frame into the queue. It reports whether the buffer is free again.
func (w *Writer) add(b *buffer, n int) (release bool) {
	if n < alone {
		if w.tail != nil && len(w.tail.b)-w.tailLen < n {
			w.seal()
		}
		if w.tail == nil {
			w.tail = newBuffer(gather)
		}
		w.tailLen += copy(w.tail.b[w.tailLen:], b.b[:n])
		return true
	}
	w.seal()
	w.queue, w.sizes = append(w.queue, b), append(w.sizes, n)
	return false
}

// seal moves the buffer in which small messages gather into the queue.
func (w *Writer) seal() {
	if w.tail != nil {
		w.queue, w.sizes = append(w.queue, w.tail), append(w.sizes, w.tailLen)
		w.tail, w.tailLen = nil, 0
	}
}

// waitForRoom waits, with mu unlocked, while too much waits to be sent. It is on
// its way out: whoever put it there beyond the limit has begun to write.
func (w *Writer) waitForRoom(ctx context.Context) error {
	for w.waiting > mostWaiting && w.ended() == nil {
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
			w.mu.Lock()
		case <-ctx.Done():
			w.mu.Lock()
			return context.Cause(ctx)
		}
	}
	return nil
}

// Flush implements [carrier.Sender].
func (w *Writer) Flush() {
	w.mu.Lock()
	lead := !w.writing && w.waiting > 0
	if lead {
		w.writing = true
	}
	w.mu.Unlock()
	if lead {
		w.write()
	}
}

// write writes until nothing waits. The caller has set writing.
func (w *Writer) write() {
	for w.take() {
		for i, b := range w.out {
			rest := b.b[:w.outSizes[i]]
			for w.direct.ready() && len(rest) > 0 {
				n, err := w.direct.write(rest)
				if err != nil {
					w.fail(err)
					return
				}
				if n == 0 {
					break
				}
				rest = rest[n:]
			}
			w.watch.Sent()
			if len(rest) > 0 {
				w.continueBehind(i, rest)
				return
			}
		}
	}
}

// continueBehind starts writeBehind, unless the connection has ended.
func (w *Writer) continueBehind(from int, rest []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.background.Go(func() { w.writeBehind(from, rest) })
	}
}

// writeBehind goes on where the socket took no more. The time-out is for the
// bytes in their order, whatever buffers they stand in.
func (w *Writer) writeBehind(from int, rest []byte) {
	for {
		last := time.Now().Add(mostTimeouts * min(w.timeout, 1<<58)) // without overflow
		left := len(rest)
		for _, n := range w.outSizes[from+1:] {
			left += n
		}
		due := 0 // bytes that the peer has to take before the deadline
		for i := from; i < len(w.out); i++ {
			if i > from {
				rest = w.out[i].b[:w.outSizes[i]]
			}
			for len(rest) > 0 {
				if due == 0 {
					due = min(piece, left)
					if err := w.setDeadline(last); err != nil {
						w.fail(err)
						return
					}
				}
				n, err := w.nc.Write(rest[:min(len(rest), due)])
				w.watch.Sent()
				if err != nil {
					w.fail(err)
					return
				}
				rest = rest[n:]
				due -= n
				left -= n
			}
			w.mu.Lock()
			w.free(i + 1)
			w.mu.Unlock()
		}
		if !w.direct.ready() {
			if !w.take() {
				return
			}
			from, rest = 0, w.out[0].b[:w.outSizes[0]]
			continue
		}
		if err := w.nc.SetWriteDeadline(time.Time{}); err != nil {
			w.fail(err)
			return
		}
		w.write()
		return
	}
}

// setDeadline gives the peer a time-out from now, but not beyond last.
func (w *Writer) setDeadline(last time.Time) error {
	deadline := time.Now().Add(w.timeout)
	if last.Before(deadline) {
		deadline = last
	}
	return w.nc.SetWriteDeadline(deadline)
}

// free gives back the first n buffers of out, which have gone out. The caller
// holds mu.
func (w *Writer) free(n int) {
	gone := 0
	for ; w.freed < n; w.freed++ {
		w.out[w.freed].Release()
		w.out[w.freed] = nil
		gone += w.outSizes[w.freed]
	}
	if gone > 0 {
		w.count(-gone)
	}
}

// take takes what waits, after what was taken before has gone out. It reports
// whether there is something; if not, nobody writes any more.
func (w *Writer) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return false
	}
	w.free(len(w.out))
	w.out, w.outSizes, w.freed = w.out[:0], w.outSizes[:0], 0
	w.seal()
	if len(w.queue) == 0 {
		w.writing = false
		w.endSending()
		w.flushed.Broadcast()
		return false
	}
	w.queue, w.out = w.out, w.queue
	w.sizes, w.outSizes = w.outSizes, w.sizes
	return true
}

// endSending closes the half, if that was asked for. The caller holds mu, and
// nobody writes.
func (w *Writer) endSending() {
	if !w.finished || w.failed != nil {
		return
	}
	half, ok := w.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || w.nc.SetReadDeadline(time.Now().Add(lastRead)) != nil {
		w.close()
	}
}

// close closes the connection in the background: that waits for who reads from it, who may be who calls.
func (w *Writer) close() {
	w.closing.Do(func() {
		w.background.Go(func() { w.nc.Close() })
	})
}

// fail ends the connection. Who calls it writes.
func (w *Writer) fail(err error) {
	w.Abort(fmt.Errorf("send: %w", err))
	w.mu.Lock()
	w.queue, w.sizes, w.tail, w.tailLen = nil, nil, nil, 0
	w.out, w.outSizes, w.freed = nil, nil, 0
	w.mu.Unlock()
}

// Finish implements [carrier.Sender].
func (w *Writer) Finish() {
	w.mu.Lock()
	lead := !w.finished && !w.writing && w.failed == nil
	w.finished = true
	if lead {
		w.writing = true
	}
	w.wake()
	w.mu.Unlock()
	if lead {
		w.write()
	}
}

// Wait waits until nothing waits to be sent any more, or nothing can be.
func (w *Writer) Wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.writing && w.failed == nil {
		w.flushed.Wait()
	}
}

// Abort implements [carrier.Sender].
func (w *Writer) Abort(reason error) {
	w.mu.Lock()
	if w.failed == nil {
		w.failed = reason
		w.budget.forget(w)
	}
	w.wake()
	w.flushed.Broadcast()
	w.mu.Unlock()
	w.close()
}

// wake has those look who wait for room. The caller holds mu.
func (w *Writer) wake() {
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
}

// Err tells why the connection has ended, if it was the writer who noticed.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// Stop ends the connection, if it has not ended, and waits for what runs in the
// background.
func (w *Writer) Stop() {
	w.Abort(net.ErrClosed)
	w.watch.Stop()
	w.background.Wait()
}
