package verbena

import (
	"context"
	"sync"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/fifo"
)

// outgoing is a message that the outbox sends as soon as it can.
type outgoing struct {
	header  call.Header
	tag     uint32
	payload *heapBuffer // nil: none
	long    []byte      // a payload that no buffer holds
	answers bool        // it is the answer to header.ID
}

func (o *outgoing) bytes() []byte {
	if o.payload != nil {
		return o.payload.data
	}
	return o.long
}

func (o *outgoing) free() {
	if o.payload != nil {
		o.payload.data = o.payload.data[:0]
		o.payload.free()
	}
	*o = outgoing{}
}

// outgoing of one payload, which is copied.
func (o *outgoing) carry(payload []byte) {
	switch class := classOf(len(payload)); {
	case len(payload) == 0:
	case class != nil:
		o.payload = class.take()
		o.payload.data = append(o.payload.data, payload...)
	default:
		o.long = append([]byte(nil), payload...)
	}
}

// An outbox holds what has to be sent and found no room: answers of handlers that must
// not wait, and what says that calls were given up or notifications handled. There is
// one answer at most for each call that the peer may make, and less of all else. The
// caller's mu guards it.
type outbox struct {
	items   fifo.Queue[outgoing]
	bytes   int            // of payloads that are not sent
	handled uint32         // notifications of which the peer has to be told
	sending bool           // a goroutine sends
	sender  sync.WaitGroup // that goroutine
	send    func()         // of it, made once: a message allocates nothing
	header  [call.HeaderSize]byte
	idle    chan struct{} // closed when sending ends; nil: nobody asks
	closed  bool          // nothing is taken any more
}

// drop forgets what is not sent, for ever.
func (o *outbox) drop() {
	for o.items.Len() > 0 {
		m := o.items.Pop()
		m.free()
	}
	o.closed = true
}

// flush implements sink. Handlers that still run may answer until the outbox is empty.
func (c *Caller) flush(ctx context.Context) error {
	for {
		c.mu.Lock()
		c.closing = true
		if !c.out.sending {
			c.out.closed = true
			c.mu.Unlock()
			return nil
		}
		if c.out.idle == nil {
			c.out.idle = make(chan struct{})
		}
		idle := c.out.idle
		c.mu.Unlock()
		select {
		case <-idle:
		case <-c.e.done: // its end tells
			return nil
		case <-ctx.Done():
			return ErrNotDelivered
		}
	}
}

// post sends a message without a payload, or sees to it that it is sent.
func (c *Caller) post(m outgoing) {
	if c.e.carrier.sendPair(m.tag, m.header, nil) {
		return
	}
	c.mu.Lock()
	c.postLater(m)
	c.mu.Unlock()
}

// postLater has a message sent by a goroutine that may wait. mu is held.
func (c *Caller) postLater(m outgoing) {
	o := &c.out
	if o.closed {
		m.free()
		return
	}
	if m.header.Kind == call.Handled {
		o.handled += m.tag
	} else {
		o.items.Push(m)
		o.bytes += len(m.bytes())
	}
	if !o.sending {
		o.sending = true
		o.sender.Add(1)
		go o.send()
	}
}

// sendPosted sends what is in the outbox until it is empty or the endpoint has ended.
func (c *Caller) sendPosted() {
	defer c.out.sender.Done()
	sent := 0
	for {
		c.mu.Lock()
		o := &c.out
		o.bytes -= sent
		var m outgoing
		switch {
		case o.handled > 0 && !o.closed:
			m = outgoing{header: call.Header{Kind: call.Handled}, tag: o.handled}
			o.handled = 0
		case o.items.Len() > 0:
			m = o.items.Pop()
		default:
			if o.items.Cap() > mostSpare {
				o.items = fifo.Queue[outgoing]{}
			}
			o.sending = false
			if o.idle != nil {
				close(o.idle)
				o.idle = nil
			}
			c.mu.Unlock()
			return
		}
		if m.answers && !c.ended {
			c.side.Answered(m.header.ID) // the peer may use the slot again as soon as it hears
		}
		c.mu.Unlock()
		m.header.Put(c.out.header[:])
		_, _ = c.sendBehind(context.Background(), parcel{tag: m.tag, header: c.out.header[:], body: m.bytes()}) // the endpoint's end ends it, and tells
		if m.header.Kind == call.Greeting {
			c.greeted()
		}
		sent = len(m.bytes())
		m.free()
	}
}
