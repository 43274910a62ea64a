package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/limit"
)

// A Link sends messages on an endpoint, in order, and nobody who sends waits: what does
// not go at once is sent by a goroutine that lives as long as something is left. So the
// goroutine that receives from one peer never waits for another one, and relays in a ring
// never for each other.
//
// A peer that takes no message for a while ends: nobody else would give it up while it is there.
// How much is left is bounded at the end that has dialled by the blocks that it writes: it
// sends nothing else, and Forget takes back what waits of a block that is over. At the end that was dialled the peer decides what it is owed, by hellos and
// set-ups that are refused: see Bound.
//
// Its methods may be called concurrently.
type Link struct {
	ep       *verbena.Endpoint
	patience time.Duration // for the peer to take a message

	mu      sync.Mutex
	queue   fifo.Queue[outgoing]
	sending bool
	closed  bool // nothing begins to be sent any more
	sender  sync.WaitGroup
	run     func()   // send
	now     outgoing // what send is sending
	behind  []func() // to be called when that has gone
	owed    int64    // bytes of memory of messages in queue and now, buffers not counted
	most    int64    // of them, 0 for no bound
	over    func(error)
	cause   error // why the endpoint was closed, nil if it was not because of the peer
}

// An outgoing message is a buffer or bytes: those of an acknowledgement lie in small. Or it is
// none, and after is called.
type outgoing struct {
	tag    uint32
	buffer *verbena.Buffer
	bytes  []byte
	small  [ackHeaderLen + MaxReplies]byte
	length int // of what is in small
	after  func()
}

// outgoingSize is how many bytes an outgoing takes, beside bytes.
const outgoingSize = int64(unsafe.Sizeof(outgoing{}))

func (m *outgoing) cost() int64 { return outgoingSize + int64(cap(m.bytes)) }

// MaxOwed is how many bytes of memory messages may take that wait for one peer to receive,
// beside as many as the windows of its blocks have.
const MaxOwed = 1 << 20

// mostIdle is for how many messages a link keeps memory while nothing waits: some 26 KiB, for
// twice as many packets as the usual window of 8 MiB has. A peer that lets MaxOwed wait and
// then receives it would otherwise hold as much for as long as its endpoint lives.
const mostIdle = 256

// ErrDeaf says that a peer does not receive what it has asked for.
var ErrDeaf = errors.New("the peer does not receive what it has asked for")

// NewLink makes an endpoint a link. It stays the caller's, who closes it. A peer that has not
// taken a message after patience ends, as Bound tells, or is closed.
func NewLink(ep *verbena.Endpoint, patience time.Duration) *Link {
	l := &Link{ep: ep, patience: patience}
	l.run = l.send
	return l
}

// Bound has over be called, once, when more than MaxOwed and what Allow has added wait to be
// sent. Nothing is sent any more then, and what waits is forgotten; over is to end the endpoint, without waiting for that.
// It is called before anything is sent.
func (l *Link) Bound(over func(error)) { l.most, l.over = MaxOwed, over }

// Allow adds to what may wait, in bytes, or takes that back.
func (l *Link) Allow(more int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most += more
}

// After calls f when nothing is left of what was to be sent before: at once, or by the
// goroutine that sends.
func (l *Link) After(f func()) {
	l.mu.Lock()
	if l.sending {
		l.queue.Push(outgoing{after: f})
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	f()
}

// Forget takes back what waits to be sent with a tag, and calls f when nothing of it is being
// sent: at once, or by the goroutine that sends. begun is false if that was the block's set-up,
// too, of which the peer has heard nothing then.
func (l *Link) Forget(tag uint32, f func()) (begun bool) {
	begun = true
	l.mu.Lock()
	left := fifo.Queue[outgoing]{}
	for _, m := range l.queue.Values() {
		if m.after != nil || m.tag != tag {
			left.Push(m)
			continue
		}
		l.owed -= m.cost()
		if m.buffer != nil {
			m.buffer.Release()
		} else if KindOf(m.bytes) == SetUp {
			begun = false
		}
	}
	if left.Len() < l.queue.Len() {
		l.queue = left
	}
	if l.sending && l.now.after == nil && l.now.tag == tag {
		l.behind = append(l.behind, f)
		l.mu.Unlock()
		return begun
	}
	l.mu.Unlock()
	f()
	return begun
}

// Endpoint is what carries the messages.
func (l *Link) Endpoint() *verbena.Endpoint { return l.ep }

// Post sends bytes, which may be used again when it returns. That the endpoint has ended
// shows to who receives.
func (l *Link) Post(tag uint32, message []byte) {
	l.mu.Lock()
	if !l.sending && l.ep.TrySend(tag, message) {
		l.mu.Unlock()
		return
	}
	m := outgoing{tag: tag}
	if len(message) <= len(m.small) {
		m.length = copy(m.small[:], message)
	} else {
		m.bytes = append([]byte(nil), message...)
	}
	err := l.later(m)
	l.mu.Unlock()
	if err != nil {
		l.over(err)
	}
}

// Forward sends what a buffer holds, and takes over the caller's reference.
func (l *Link) Forward(tag uint32, b *verbena.Buffer) {
	l.mu.Lock()
	if !l.sending && l.ep.TrySendRange(tag, b, 0, len(b.Bytes())) {
		l.mu.Unlock()
		return
	}
	err := l.later(outgoing{tag: tag, buffer: b})
	l.mu.Unlock()
	if err != nil {
		l.over(err)
	}
}

// later has a message sent by the goroutine. The error is for over. mu is held.
func (l *Link) later(m outgoing) error {
	if l.closed {
		if m.buffer != nil {
			m.buffer.Release()
		}
		return nil
	}
	owed := l.owed + m.cost()
	if l.over != nil && owed > l.most {
		l.closed = true
		if m.buffer != nil {
			m.buffer.Release()
		}
		l.drop()
		return fmt.Errorf("%w: %d bytes wait to be sent, %d may", ErrDeaf, owed, l.most)
	}
	l.owed = owed
	l.queue.Push(m)
	if !l.sending {
		l.sending = true
		l.sender.Add(1)
		go l.run() // without a closure, which would be allocated
	}
	return nil
}

// drop forgets the messages that wait, since the endpoint may take seconds to end. What is to
// be called behind them is. mu is held.
func (l *Link) drop() {
	var left fifo.Queue[outgoing]
	for l.queue.Len() > 0 {
		m := l.queue.Pop()
		if m.after != nil {
			left.Push(m)
			continue
		}
		l.owed -= m.cost()
		if m.buffer != nil {
			m.buffer.Release()
		}
	}
	l.queue = left
}

func (l *Link) send() {
	defer l.sender.Done()
	m := &l.now
	var sent int64
	for {
		l.mu.Lock()
		l.owed -= sent
		for len(l.behind) > 0 {
			behind := l.behind
			l.behind = nil
			l.mu.Unlock()
			for _, f := range behind {
				f()
			}
			l.mu.Lock()
		}
		if l.queue.Len() == 0 {
			l.sending = false
			*m = outgoing{} // it leads to a buffer, and through that to another endpoint
			if l.queue.Cap() > mostIdle {
				l.queue = fifo.Queue[outgoing]{}
			}
			l.mu.Unlock()
			return
		}
		*m = l.queue.Pop()
		l.mu.Unlock()
		if m.after != nil {
			m.after()
			sent = 0
			continue
		}
		sent = m.cost()
		// An error of the endpoint shows to who receives. What is left fails at once then.
		// Without one a message is missing, and nothing may follow it.
		if err := l.sendNow(m); err != nil && l.ep.Err() == nil {
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("%w, for %v: %w", ErrDeaf, l.patience, err)
			}
			l.giveUp(err)
		}
	}
}

func (l *Link) sendNow(m *outgoing) error {
	bound := limit.New(context.Background(), time.Now(), l.patience)
	defer bound.End()
	if m.buffer != nil {
		err := l.ep.SendBuffer(bound, m.tag, nil, m.buffer)
		if err != nil {
			m.buffer.Release()
		}
		return err
	}
	bytes := m.bytes
	if bytes == nil {
		bytes = m.small[:m.length]
	}
	return l.ep.Send(bound, m.tag, bytes)
}

// giveUp ends a peer that takes nothing, or that a message can't be sent to.
func (l *Link) giveUp(err error) {
	l.mu.Lock()
	told := l.closed
	if l.closed = true; !told {
		l.cause = err
	}
	l.drop()
	l.mu.Unlock()
	switch {
	case told:
	case l.over != nil:
		l.over(err)
	default:
		l.ep.Close() // its error is that the peer has not got everything
	}
}

// Cause is why the link has given the peer up, nil if it has not.
func (l *Link) Cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
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
