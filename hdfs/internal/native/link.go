package native

import (
	"context"
	"sync"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/fifo"
)

// A Link sends messages on an endpoint, in order, and nobody who sends waits: what does
// not go at once is sent by a goroutine that lives as long as something is left. So the
// goroutine that receives from one peer never waits for another one, and relays in a ring
// never for each other. How much is left is bounded by who sends: by the windows of blocks.
// Its methods may be called concurrently.
type Link struct {
	ep *verbena.Endpoint

	mu      sync.Mutex
	queue   fifo.Queue[outgoing]
	sending bool
	closed  bool // nothing begins to be sent any more
	sender  sync.WaitGroup
	run     func()   // send
	now     outgoing // what send is sending
}

// An outgoing message is a buffer or bytes: those of an acknowledgement lie in small.
type outgoing struct {
	tag    uint32
	buffer *verbena.Buffer
	bytes  []byte
	small  [ackHeaderLen + MaxReplies]byte
	length int // of what is in small
}

// NewLink makes an endpoint a link. It stays the caller's, who closes it.
func NewLink(ep *verbena.Endpoint) *Link {
	l := &Link{ep: ep}
	l.run = l.send
	return l
}

// Endpoint is what carries the messages.
func (l *Link) Endpoint() *verbena.Endpoint { return l.ep }

// Post sends bytes, which may be used again when it returns. That the endpoint has ended
// shows to who receives.
func (l *Link) Post(tag uint32, message []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sending && l.ep.TrySend(tag, message) {
		return
	}
	m := outgoing{tag: tag}
	if len(message) <= len(m.small) {
		m.length = copy(m.small[:], message)
	} else {
		m.bytes = append([]byte(nil), message...)
	}
	l.later(m)
}

// Forward sends what a buffer holds, and takes over the caller's reference.
func (l *Link) Forward(tag uint32, b *verbena.Buffer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sending && l.ep.TrySendRange(tag, b, 0, len(b.Bytes())) {
		return
	}
	l.later(outgoing{tag: tag, buffer: b})
}

// later has a message sent by the goroutine. mu is held.
func (l *Link) later(m outgoing) {
	if l.closed {
		if m.buffer != nil {
			m.buffer.Release()
		}
		return
	}
	l.queue.Push(m)
	if !l.sending {
		l.sending = true
		l.sender.Add(1)
		go l.run() // without a closure, which would be allocated
	}
}

func (l *Link) send() {
	defer l.sender.Done()
	m := &l.now
	for {
		l.mu.Lock()
		if l.queue.Len() == 0 {
			l.sending = false
			l.mu.Unlock()
			return
		}
		*m = l.queue.Pop()
		l.mu.Unlock()
		// An error is that of the endpoint, which shows to who receives. What is left
		// fails at once then.
		if m.buffer == nil {
			bytes := m.bytes
			if bytes == nil {
				bytes = m.small[:m.length]
			}
			_ = l.ep.Send(context.Background(), m.tag, bytes)
		} else if l.ep.SendBuffer(context.Background(), m.tag, nil, m.buffer) != nil {
			m.buffer.Release()
		}
	}
}

// Close closes the endpoint and returns when nothing is being sent any more.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	err := l.ep.Close()
	l.sender.Wait()
	return err
}
