package verbena

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

// A copied message has been moved out of the receive in which it came, so that the
// peer may use that again. Like a letter it carries one message in its life.
type copied struct {
	Message
	log      *slog.Logger
	buffer   *heapBuffer // nil: the memory is its own
	released atomic.Bool
}

// copies makes copied messages, several of them from one piece of the heap.
type copies struct {
	mu   sync.Mutex
	next stock[copied]
}

func (c *copies) take() *copied {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next.take()
}

// copied returns a copy of m.
func (e *Endpoint) copied(m *Message) *Message {
	c := e.env.copies.take()
	c.Tag, c.owner, c.log = m.Tag, c, e.env.log
	var memory []byte
	if class := classOf(len(m.data)); class != nil {
		c.buffer = class.take()
		memory = c.buffer.data
	}
	c.data = append(memory, m.data...)
	return &c.Message
}

func (c *copied) release() {
	if c.released.Swap(true) {
		c.log.Error("a message was released twice; the second Release did nothing")
		return
	}
	c.data = nil
	if c.buffer != nil {
		c.buffer.free()
		c.buffer = nil
	}
}

func (c *copied) location() location { return location{} }
