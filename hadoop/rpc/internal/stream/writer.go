package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
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
	// before those who send wait, too.
	mostWaiting = 4 << 20
	// piece is how many bytes of a message the peer has to take within the
	// time-out, mostTimeouts how many time-outs it has for all that was taken at once.
	piece        = 256 << 10
	mostTimeouts = 16
)

// lastRead is how long a peer may take to see that the sending side has ended.
const lastRead = time.Second

// ErrFinished is what Send returns after Finish.
var ErrFinished = errors.New("the sending side has ended")

// A Writer sends messages as frames. Whoever finds nobody writing writes, also
// what others add meanwhile, so that one system call takes many frames. Nobody
// waits for the socket: what it does not take at once goes out in the background.
type Writer struct {
	nc      net.Conn
	timeout time.Duration // for a piece written in the background
	direct  directWriter
	watch   *liveness.Watcher

	mu         sync.Mutex
	queue      []*buffer // whole ones, each with its number of bytes in sizes
	sizes      []int
	tail       *buffer // where small messages gather, behind queue
	tailLen    int
	waiting    int  // bytes in queue and tail
	writing    bool // somebody writes, or is about to
	finished   bool // half is to be closed
	failed     error
	room       chan struct{} // closed when there is room again; nil while nobody waits
	background sync.WaitGroup
	flushed    sync.Cond

	// Of the one who writes.
	out      []*buffer
	outSizes []int
}

// NewWriter sends on nc. A peer that takes less than 256 KiB within timeout while
// more waits, or whose host answers nothing for as long as silence while data is on its way,
// has the connection closed.
func NewWriter(nc net.Conn, timeout, silence time.Duration) *Writer {
	w := &Writer{nc: nc, timeout: timeout}
	w.direct.init(nc)
	w.flushed.L = &w.mu
	w.watch = liveness.Watch(nc, silence, func(err error) {
		if tcp, ok := nc.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the kernel must not keep the data
		}
		w.Abort(err)
	})
	return w
}

// Send implements [carrier.Sender].
func (w *Writer) Send(ctx context.Context, m carrier.Message, urgency carrier.Urgency) error {
	b, ok := m.Owner.(*buffer)
	n := len(m.Bytes)
	if !ok || n > 0 && &b.b[lengthSize] != &m.Bytes[0] { // it outgrew what it asked for
		b = newBuffer(lengthSize + n)
		copy(b.b[lengthSize:], m.Bytes)
		m.Release()
	}
	binary.BigEndian.PutUint32(b.b, uint32(n))
	n += lengthSize

	w.mu.Lock()
	for w.waiting > mostWaiting && w.failed == nil {
		if err := w.waitForRoom(ctx); err != nil {
			w.mu.Unlock()
			b.Release()
			return err
		}
	}
	if w.failed != nil || w.finished {
		err := w.failed
		if err == nil {
			err = ErrFinished
		}
		w.mu.Unlock()
		b.Release()
		return err
	}
	release := w.add(b, n)
	lead := !w.writing && (urgency != carrier.Later || w.waiting >= gather)
	if lead {
		w.writing = true
	}
	w.mu.Unlock()
	if release {
		b.Release()
	}
	if lead {
		if urgency == carrier.Soon {
			runtime.Gosched() // those about to send run first
		}
		w.write()
	}
	return nil
}

// add puts a frame into the queue. It reports whether the buffer is free again.
func (w *Writer) add(b *buffer, n int) (release bool) {
	w.waiting += n
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

// waitForRoom waits with mu unlocked. What waits is on its way out: whoever put
// it there beyond the limit has begun to write.
func (w *Writer) waitForRoom(ctx context.Context) error {
	if w.room == nil {
		w.room = make(chan struct{})
	}
	room := w.room
	lead := !w.writing
	w.writing = true
	w.mu.Unlock()
	defer w.mu.Lock()
	if lead {
		w.write()
	}
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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

// writeBehind goes on where the socket took no more.
func (w *Writer) writeBehind(from int, rest []byte) {
	for {
		last := time.Now().Add(mostTimeouts * min(w.timeout, 1<<58)) // without overflow
		for i := from; i < len(w.out); i++ {
			if i > from {
				rest = w.out[i].b[:w.outSizes[i]]
			}
			if err := w.writePieces(rest, last); err != nil {
				w.fail(err)
				return
			}
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

// writePieces writes b, each piece of it within the time-out, and all before last.
func (w *Writer) writePieces(b []byte, last time.Time) error {
	for len(b) > 0 {
		deadline := time.Now().Add(w.timeout)
		if last.Before(deadline) {
			deadline = last
		}
		if err := w.nc.SetWriteDeadline(deadline); err != nil {
			return err
		}
		n, err := w.nc.Write(b[:min(len(b), piece)])
		w.watch.Sent()
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// take takes what waits, after what was taken before has gone out. It reports
// whether there is something; if not, nobody writes any more.
func (w *Writer) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, b := range w.out {
		b.Release()
		w.waiting -= w.outSizes[i]
		w.out[i] = nil
	}
	w.out, w.outSizes = w.out[:0], w.outSizes[:0]
	if w.room != nil && w.waiting <= mostWaiting {
		close(w.room)
		w.room = nil
	}
	if w.failed != nil {
		return false
	}
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
		w.nc.Close()
	}
}

// fail ends the connection. Who calls it writes, or nobody does.
func (w *Writer) fail(err error) {
	w.mu.Lock()
	if w.failed == nil {
		w.failed = fmt.Errorf("send: %w", err)
	}
	w.queue, w.sizes, w.tail, w.tailLen, w.waiting = nil, nil, nil, 0, 0
	w.out, w.outSizes = nil, nil
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	w.flushed.Broadcast()
	w.mu.Unlock()
	w.nc.Close()
}

// Finish implements [carrier.Sender]. It returns when all is out.
func (w *Writer) Finish() {
	w.mu.Lock()
	first := !w.finished
	w.finished = true
	lead := first && !w.writing && w.failed == nil
	if lead {
		w.writing = true
	}
	w.mu.Unlock()
	if lead {
		w.write()
	}
	w.mu.Lock()
	for w.writing && w.failed == nil {
		w.flushed.Wait()
	}
	w.mu.Unlock()
}

// Abort implements [carrier.Sender].
func (w *Writer) Abort(reason error) {
	w.mu.Lock()
	if w.failed == nil {
		w.failed = reason
	}
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	w.flushed.Broadcast()
	w.mu.Unlock()
	w.nc.Close()
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
