package verbena

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/pressure"
)

// The memory of messages that come over TCP. Messages of up to 4 MiB lie in
// buffers of the Go heap, which are pooled by size. Longer ones lie in pages of
// their own, which the system provides as bytes arrive and gets back with the
// last Release. Either is charged to the stream's account from the beginning
// until the application receives the message.
const (
	// firstBuffer is what a message gets on its length's word alone when memory is
	// scarce.
	firstBuffer = 64 << 10
	// bufferGrowth keeps what is copied from buffer to buffer below a third.
	bufferGrowth = 4
	// pageStep is how many bytes of a message in pages are charged at a time. It is
	// a huge page, which the system may provide for a single byte.
	pageStep = 2 << 20
)

// A letter is a message that came over TCP. A letter carries one message in its
// life: so it can tell a second Release from the first, even when others have
// the memory by then.
type letter struct {
	Message
	s        *stream
	total    int         // bytes of the message
	granted  int         // of them have memory
	charged  int64       // to the stream's account
	waits    bool        // for a handler: charged is also the stream's asking
	buffer   *heapBuffer // nil: data lies in pages, or there is none
	pages    []byte
	released atomic.Bool
}

// A heapBuffer is memory on the Go heap, of one of a few sizes.
type heapBuffer struct {
	data  []byte
	class *bufferClass
}

// A bufferClass has the buffers of one size. The collector takes free ones of less than
// listedBuffer, some time. The others wait in a list: what nobody has needed for
// sweepEvery leaves it, and under memory pressure all do.
type bufferClass struct {
	size int
	pool sync.Pool // below listedBuffer

	mu       sync.Mutex
	free     []*heapBuffer // the latest last
	spare    int           // of them nobody has needed since the last sweep
	sweeping bool          // one is due
}

const (
	// listedBuffer is where taking a lock costs less than a hundredth of filling the buffer.
	listedBuffer = 64 << 10
	// mostListed bounds the free bytes of a class.
	mostListed = 64 << 20
	sweepEvery = 10 * time.Second
	// collectFrom is how many bytes have to come free under pressure to be worth a run
	// of the collector, which gives them back to the system; one in collectEvery at most.
	collectFrom  = 1 << 20
	collectEvery = 10 * time.Second
)

var bufferClasses = [...]*bufferClass{{size: 1 << 10}, {size: 16 << 10}, {size: 64 << 10}, {size: 256 << 10}, {size: 1 << 20}, {size: 4 << 20}}

// classOf returns the class of buffers for size bytes, or nil if there is none.
func classOf(size int) *bufferClass {
	for _, c := range bufferClasses {
		if size <= c.size {
			return c
		}
	}
	return nil
}

func (c *bufferClass) take() *heapBuffer {
	if c.size < listedBuffer {
		if b, ok := c.pool.Get().(*heapBuffer); ok {
			return b
		}
	} else if b := c.pop(); b != nil {
		return b
	}
	return &heapBuffer{data: make([]byte, 0, c.size), class: c}
}

func (c *bufferClass) pop() *heapBuffer {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.free)
	if n == 0 {
		return nil
	}
	b := c.free[n-1]
	c.free[n-1] = nil
	c.free = c.free[:n-1]
	c.spare = min(c.spare, n-1)
	return b
}

func (b *heapBuffer) free() {
	c := b.class
	if c.size < listedBuffer {
		c.pool.Put(b)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if squeezed.Load() || (len(c.free)+1)*c.size > mostListed {
		return
	}
	c.free = append(c.free, b)
	if !c.sweeping {
		c.sweeping = true
		time.AfterFunc(sweepEvery, c.sweep)
	}
}

// sweep leaves to the collector what nobody has needed since the last time.
func (c *bufferClass) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = slices.Delete(c.free, 0, c.spare) // the oldest
	c.spare = len(c.free)
	if c.sweeping = c.spare > 0; c.sweeping {
		time.AfterFunc(sweepEvery, c.sweep)
	}
}

// squeezed says that free buffers are not kept.
var squeezed atomic.Bool

// squeezeBuffers makes free buffers follow the memory's pressure: they go, and none is
// kept, until it is over. It returns how many bytes went.
func squeezeBuffers(short bool, classes []*bufferClass) (bytes int) {
	squeezed.Store(short)
	if !short {
		return 0
	}
	for _, c := range classes {
		c.mu.Lock()
		bytes += len(c.free) * c.size
		clear(c.free)
		c.free, c.spare = c.free[:0], 0
		c.mu.Unlock()
	}
	return bytes
}

// collected is when memory was last given back to the system, in Unix seconds.
var collected atomic.Int64

// followWithBuffers makes free buffers follow a reading.
func followWithBuffers(r pressure.Reading, classes []*bufferClass) {
	if squeezeBuffers(r.Level != pressure.Calm, classes) < collectFrom {
		return
	}
	last, now := collected.Load(), time.Now().Unix()
	if now-last >= int64(collectEvery/time.Second) && collected.CompareAndSwap(last, now) {
		go debug.FreeOSMemory() // some milliseconds, and more the larger the heap is
	}
}

// begin gives the message that is arriving its first memory.
func (s *stream) begin(a *assembly) error {
	l := s.letters.take()
	l.Tag, l.owner, l.s, l.total = a.tag, l, s, a.total
	s.current = l
	class := classOf(l.total)
	if class == nil {
		pages, err := takePages(l.total)
		if err != nil {
			return fmt.Errorf("verbena: no memory for a message of %d bytes: %w", l.total, err)
		}
		l.pages, l.data = pages, pages[:0]
		return l.charge(inboxOverhead)
	}
	if class.size > firstBuffer && !s.e.env.arriving.Plenty() {
		class = classOf(firstBuffer)
	}
	return l.useBuffer(class)
}

// grow sees to it that there is memory for more bytes of l.
func (s *stream) grow(l *letter) error {
	switch {
	case len(l.data) < l.granted:
		return nil
	case l.pages != nil:
		n := min(pageStep, l.total-l.granted)
		if err := l.charge(int64(n)); err != nil {
			return err
		}
		l.granted += n
		return nil
	}
	return l.useBuffer(classOf(min(l.total, bufferGrowth*cap(l.data))))
}

// useBuffer moves l into a buffer of the class.
func (l *letter) useBuffer(class *bufferClass) error {
	before := l.charged
	if err := l.charge(int64(class.size) + inboxOverhead); err != nil {
		return err
	}
	old, fresh := l.buffer, class.take()
	l.buffer, l.data, l.granted = fresh, append(fresh.data, l.data...), class.size
	if old != nil {
		old.free()
		l.charged -= before
		l.s.memory.Give(before)
	}
	return nil
}

func (l *letter) charge(n int64) error {
	if err := l.s.take(n); err != nil {
		return err
	}
	l.charged += n
	return nil
}

// settle takes the letter off the stream's account.
func (l *letter) settle() {
	if n := l.charged; n > 0 {
		l.charged = 0
		if l.waits {
			l.s.asking.Add(-n)
		}
		l.s.memory.Give(n)
	}
}

func (l *letter) location() location { return location{} }

// release gives the memory back, once.
func (l *letter) release() {
	if l.released.Swap(true) {
		e := l.s.e
		e.env.log.Error("a message was released twice; the second time is ignored",
			"service", e.service, "peer", e.remote, "tag", l.Tag)
		return
	}
	l.settle()
	l.data = nil
	if l.buffer != nil {
		l.buffer.free()
		l.buffer = nil
	}
	if l.pages != nil {
		freePages(l.pages)
		l.pages = nil
	}
}
