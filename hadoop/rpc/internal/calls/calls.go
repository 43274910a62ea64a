// Package calls carries Hadoop RPC's messages as calls of the runtime: each request
// is a call on an endpoint, and its answer is the call's. Messages are those of a
// TCP connection, without the length in front.
//
// On the wire, which docs/hadoop-rpc.md defines, an endpoint has one session. [MethodIntroduce] carries
// what comes before the calls: the connection context and, before that, the messages
// of a SASL negotiation, one call each, after each other. A message that Hadoop RPC
// does not answer has an empty answer here. [MethodCall] carries a call.
package calls

import (
	"context"
	"math/bits"
	"sync"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// Methods of the runtime's calls.
const (
	MethodIntroduce = 1
	MethodCall      = 2
)

// headerSize is what the runtime puts before a payload.
const headerSize = 16

// Memory gives memory for what is sent on an endpoint. Long messages lie in
// registered memory, so that nothing copies them before the peer does; short ones
// are copied by the runtime anyway.
type Memory struct {
	long int // from how many bytes on a message is long
}

// NewMemory returns that of an endpoint.
func NewMemory(e *verbena.Endpoint) Memory {
	m := Memory{e.Eager() - headerSize + 1}
	if e.Selection().Transport == verbena.TransportTCP {
		m.long = e.MaxMessage() // the kernel copies from where it lies
	}
	return m
}

// Long tells whether a message of n bytes is long: to send it may take time.
func (m *Memory) Long(n int) bool { return n >= m.long }

// Alloc returns a message of the caller's or the server's without bytes, with room for n.
// It may wait if the message is long.
func (m *Memory) Alloc(ctx context.Context, c *verbena.Caller, n int) (carrier.Message, error) {
	if n < m.long {
		s := takeScratch(n)
		return carrier.Message{Bytes: s.b[:0], Owner: s}, nil
	}
	b, err := c.Buffer(ctx, n)
	if err != nil {
		return carrier.Message{}, err
	}
	return carrier.Message{Bytes: b.Bytes()[:0], Owner: b}, nil
}

// Buffer is the registered memory of a message, if it fills that.
func Buffer(m *carrier.Message) (*verbena.Buffer, bool) {
	b, ok := m.Owner.(*verbena.Buffer)
	return b, ok && len(b.Bytes()) == len(m.Bytes) && len(m.Bytes) > 0 && &b.Bytes()[0] == &m.Bytes[0]
}

// A scratch is where a short message is encoded, and over TCP a long one.
type scratch struct {
	b []byte
	// of is where it is kept for other messages, or nil: it is longer than all that are.
	of *sync.Pool
}

// Scratches are kept by their size, a power of two from 2 KiB to 4 MiB, so that short
// messages do not hold the memory of long ones. The collector takes them, some time.
const (
	leastScratch = 11 // as powers of two
	mostScratch  = 22
)

var scratches [mostScratch - leastScratch + 1]sync.Pool

// takeScratch returns one with room for n bytes.
func takeScratch(n int) *scratch {
	power := max(bits.Len(uint(max(n, 1)-1)), leastScratch)
	if power > mostScratch {
		return &scratch{b: make([]byte, 0, n)}
	}
	of := &scratches[power-leastScratch]
	if s, ok := of.Get().(*scratch); ok {
		return s
	}
	return &scratch{b: make([]byte, 0, 1<<power), of: of}
}

// Release implements [carrier.Owner].
func (s *scratch) Release() {
	if s.of != nil {
		s.of.Put(s)
	}
}

// An Answer takes the one answer to a call of the runtime. It implements
// [carrier.Answerer]. The zero value is none.
type Answer struct {
	Request verbena.Request
	Sent    bool // a message has been given to Send
	memory  *Memory
}

// NewAnswer returns the answer to q.
func NewAnswer(q verbena.Request, memory *Memory) Answer { return Answer{Request: q, memory: memory} }

// Valid tells that it is not the zero value.
func (a *Answer) Valid() bool { return a.memory != nil }

// Long tells whether an answer of n bytes is long: to send it may take time, so that
// it is nothing for a short handler of the runtime.
func (a *Answer) Long(n int) bool { return a.memory.Long(n + mostHeader) }

// mostHeader is what usually stands before a message's body at most, in bytes.
const mostHeader = 64

// Alloc implements [carrier.Answerer].
func (a *Answer) Alloc(n int) carrier.Message {
	m, err := a.memory.Alloc(context.Background(), a.Request.Caller(), n) // the endpoint's end ends it
	if err != nil {
		return carrier.Message{} // Send fails, too
	}
	return m
}

// Send implements [carrier.Answerer].
func (a *Answer) Send(m carrier.Message, _ carrier.Urgency) error {
	a.Sent = true
	if b, ok := Buffer(&m); ok {
		return a.Request.ReplyBuffer(b)
	}
	defer m.Release()
	return a.Request.Reply(m.Bytes)
}

// Joins implements [carrier.Joiner].
func (a *Answer) Joins(n int) bool { return a.memory.Long(n) }

// SendJoined implements [carrier.Joiner].
func (a *Answer) SendJoined(m carrier.Message, body []byte, _ carrier.Urgency) error {
	a.Sent = true
	defer m.Release()
	return a.Request.ReplyJoined(m.Bytes, body)
}

var _ carrier.Joiner = (*Answer)(nil)
