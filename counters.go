package verbena

import (
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Traffic is a number of messages and their bytes.
type Traffic struct{ Messages, Bytes uint64 }

func (t *Traffic) add(bytes int) {
	t.Messages++
	t.Bytes += uint64(bytes)
}

func (t *Traffic) merge(o Traffic) {
	t.Messages += o.Messages
	t.Bytes += o.Bytes
}

// Operations are one-sided operations by kind, and the bytes that Puts and Gets carried.
type Operations struct{ Puts, Gets, Atomics, Bytes uint64 }

func (o *Operations) merge(p Operations) {
	o.Puts += p.Puts
	o.Gets += p.Gets
	o.Atomics += p.Atomics
	o.Bytes += p.Bytes
}

// activity is what endpoints have done.
type activity struct {
	sent, received Traffic
	operations     Operations
	stalls         uint64
	stalled        time.Duration
}

func (a *activity) merge(b activity) {
	a.sent.merge(b.sent)
	a.received.merge(b.received)
	a.operations.merge(b.operations)
	a.stalls += b.stalls
	a.stalled += b.stalled
}

// stalls count the waits of a sender, and their time. Nil counts none.
type stalls struct{ count, nanoseconds atomic.Uint64 }

func (s *stalls) begin() (began time.Time) {
	if s != nil {
		s.count.Add(1)
	}
	return time.Now()
}

func (s *stalls) end(began time.Time) {
	if s != nil {
		s.nanoseconds.Add(uint64(time.Since(began)))
	}
}

func (s *stalls) total() (uint64, time.Duration) {
	return s.count.Load(), time.Duration(s.nanoseconds.Load())
}

// counters are what a device counts. The past is that of endpoints which are
// gone; those that are there count their own.
type counters struct {
	opened, failed atomic.Uint64
	events         [16]atomic.Uint64

	past activity // guarded by the runtime's mu
}

func (c *counters) event(kind rdma.EventKind) {
	if int(kind) < len(c.events) {
		c.events[kind].Add(1)
	}
}
