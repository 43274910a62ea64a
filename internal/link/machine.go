package link

import (
	"fmt"
	"math/bits"

	"github.com/verbena-data/verbena/internal/link/wire"
)

const (
	// ControlReceives is how many credit messages may be on their way to an end.
	// Two are enough that no end waits for ever: docs/endpoints.md has the argument.
	ControlReceives = 2
	goodbyeReceives = 1
)

// Limits is what an end is configured for. Sizes are in bytes.
type Limits struct {
	Receive    int // of a receive, header included
	Window     int // credits that the peer has at first
	MaxWindow  int // credits that the peer may have once it needs more
	Chunks     int // offers open at most, and Reads under way at most
	Answers    int // receives that are ready for answers at first, from 1 to AllAnswers
	MaxMessage int // longest message accepted
	Commit     int // memory committed to a long message before more than that of it is there
	Operations int // one-sided operations in the send queue at most
}

// SendDepth is how many requests the machine has in the send queue at most: the
// messages that cost a credit, confirmations, Reads, credit messages, the goodbye,
// as many as may wait for a signalled one behind them, and operations.
func (l Limits) SendDepth() int { return l.ownDepth() + l.Operations }

// ownDepth is SendDepth without operations.
func (l Limits) ownDepth() int {
	return l.paid() + 2*l.Chunks + ControlReceives + goodbyeReceives + unsignaled
}

// Places is how many places the send queue has at most, a power of two so that
// sequence numbers may wrap: at least SendDepth.
func (l Limits) Places() int { return 1 << bits.Len(uint(l.SendDepth()-1)) }

// FirstPlaces is how many it has at first, a power of two, too.
func (l Limits) FirstPlaces() int {
	return min(1<<bits.Len(uint(firstDepth+l.Operations-1)), l.Places())
}

// paid bounds the messages in the send queue that cost a credit, so that they
// leave room for those that free something.
func (l Limits) paid() int { return l.MaxWindow + l.Chunks }

// AllAnswers is how many receives all answers that may be on their way need:
// confirmations of offers, and credit messages.
func (l Limits) AllAnswers() int { return l.Chunks + ControlReceives }

// Receives is how many receives must be ready for what the peer may send when it
// has window credits, and for so many answers.
func (l Limits) Receives(window, answers int) int { return window + answers + goodbyeReceives }

// Parameters is what the peer is told.
func (l Limits) Parameters() wire.Parameters {
	return wire.Parameters{
		Window: uint16(l.Window), Control: ControlReceives, Chunks: uint16(l.Chunks),
		Receive: uint32(l.Receive), MaxMessage: uint32(l.MaxMessage),
	}
}

// A Machine is one end of a connection. Its methods must not be called
// concurrently. After an error of one of them, or a post that failed, only
// [Machine.Discard] may be called.
type Machine[M any] struct {
	limits Limits
	peer   wire.Parameters
	live   bool // connected: posts may be made
	serves bool // the ends have agreed on operations
	takes  bool // live, and the peer takes messages: it has not said goodbye
	out    []Post

	credits  credits
	answers  answers
	queue    sendQueue
	outgoing outgoing
	inbox    inbox[M]
	arrivals arrivals
	goodbye  goodbye
}

// New returns an end. places is registered memory of PlaceSize bytes for each of
// limits.FirstPlaces requests, or twice as many, and so on up to limits.Places: the
// machine writes headers there.
func New[M any](limits Limits, places []byte) *Machine[M] {
	m := &Machine[M]{limits: limits}
	m.credits.window, m.credits.first, m.credits.peers = limits.Window, limits.Window, limits.Window
	m.answers = newAnswers(limits)
	m.queue = newSendQueue(places, limits)
	m.outgoing = newOutgoing(limits.Chunks)
	return m
}

// Start tells what the peer has room for. Posts may be made from here on.
func (m *Machine[M]) Start(peer wire.Parameters) error {
	if err := peer.CheckQueuePair(); err != nil {
		return err
	}
	m.peer = peer
	m.live, m.takes = true, !m.goodbye.peerSaid
	m.credits.left += int(peer.Window)
	m.pump()
	return nil
}

// Started tells whether Start has succeeded.
func (m *Machine[M]) Started() bool { return m.live }

// MaxMessage is the longest message in bytes that the peer accepts.
func (m *Machine[M]) MaxMessage() int { return int(m.peer.MaxMessage) }

// MaxEager is the longest message in bytes that goes into one of the peer's
// receives.
func (m *Machine[M]) MaxEager() int {
	return min(int(m.peer.Receive), m.limits.Receive) - wire.HeaderSize
}

// Posts are the requests to be posted now, in order. The slice is valid until the
// next call of the machine, which must come after they have been posted.
func (m *Machine[M]) Posts() []Post {
	out := m.out
	m.out = m.out[:0]
	return out
}

// Crowded tells that the send queue takes no message that costs a credit for want of
// places, and that it could have more: see Grow. Otherwise such messages wait for requests
// that are done.
func (m *Machine[M]) Crowded() bool {
	return m.queue.tail-m.queue.head-m.queue.operations >= m.queue.crowded
}

// Grow gives the send queue twice as many places, in other memory. Everything from
// Posts has been posted. The requests with sequence numbers from first to before last
// are outstanding: the memory from before is the device's until they are done. Further
// posts may be due.
func (m *Machine[M]) Grow(places []byte) (first, last uint32) {
	m.queue.grow(places)
	first, last = m.queue.head, m.queue.tail
	m.pump()
	return first, last
}

// Effects is what a received message asks the caller for.
type Effects struct {
	// Kept says that the message is in the inbox with its handle. Otherwise its
	// receive may be posted again.
	Kept bool
	// Freed says that the peer is through with this side's offer of id FreedID.
	Freed   bool
	FreedID uint32
	// Starved says that the peer had to wait: it can do with more credits.
	Starved bool
	// Asked says that the peer wants Operation to be carried out and answered.
	Asked     bool
	Operation wire.Operation
	// Answered says that Answer has come, with Data, which lies in the message.
	Answered bool
	Answer   wire.Answer
	Data     []byte
}

// Received takes a message of the peer, which lies in b. If it is one for the
// application it is kept with handle; the caller keeps b as it is until then.
func (m *Machine[M]) Received(b []byte, handle M) (Effects, error) {
	// The peer can no longer change b, unless it is faulty and the device lets it;
	// what is judged here is what is used.
	p, body, err := wire.ParsePacket(b)
	if err != nil {
		return Effects{}, err
	}
	if m.goodbye.peerSaid && p.Kind != wire.Taken && p.Kind != wire.Credit {
		return Effects{}, fmt.Errorf("%w: a message of kind %d after its goodbye", wire.ErrProtocol, p.Kind)
	}
	if err := m.credits.returned(int(p.Credits), int(p.Control)); err != nil {
		return Effects{}, err
	}
	if (p.Kind == wire.Asked || p.Kind == wire.Answered) && !m.serves {
		return Effects{}, fmt.Errorf("%w: a message of kind %d, which was not agreed on", wire.ErrProtocol, p.Kind)
	}
	if p.Kind == wire.Eager || p.Kind == wire.Offered || p.Kind == wire.Asked {
		if err := m.credits.used(p.Flags&wire.Starved != 0); err != nil {
			return Effects{}, err
		}
	}
	effects := Effects{Starved: p.Flags&wire.Starved != 0}
	switch p.Kind {
	case wire.Eager:
		m.giveUpArrival()
		if effects.Kept = !m.goodbye.closed; effects.Kept {
			m.inbox.push(message[M]{handle: handle, tag: p.Tag, total: len(body)})
		} else {
			m.credits.owed++
		}
	case wire.Offered:
		o, err := wire.ParseOffer(body, m.limits.MaxMessage)
		if err == nil {
			m.credits.owed++
			err = m.offered(p.Tag, o)
		}
		if err != nil {
			return effects, err
		}
	case wire.Taken:
		id := wire.TakenID(body)
		if err := m.outgoing.taken(id); err != nil {
			return effects, err
		}
		effects.Freed, effects.FreedID = true, id
	case wire.Asked:
		m.credits.owed++
		effects.Operation, err = m.asked(body)
		if err != nil {
			return effects, err
		}
		effects.Asked = true
	case wire.Answered:
		effects.Answer, effects.Data, err = wire.ParseAnswer(body)
		if err == nil {
			err = m.outgoing.answered(effects.Answer.ID)
		}
		if err != nil {
			return effects, err
		}
		effects.Answered = true
	case wire.Credit:
		if most := m.answers.controls(); m.credits.owedControl >= most {
			return effects, fmt.Errorf("%w: more credit messages than %d at a time", wire.ErrProtocol, most)
		}
		m.credits.owedControl++
	case wire.Goodbye:
		m.goodbye.peerSaid, m.takes = true, false
		m.giveUpArrival()
	}
	m.pump()
	return effects, nil
}

// Take takes a message of the peer that the application gets at once, past the
// inbox, in which nothing may be. If it is anything else, or has anything to tell but
// credits for messages, Take reports false and has done nothing.
func (m *Machine[M]) Take(b []byte) (tag uint32, ok bool) {
	credits, tag, ok := wire.PlainEager(b)
	c := &m.credits
	// After the peer's last credit, what it is owed may be due.
	if !ok || c.peers == 1 && c.owed > 0 || !m.inbox.empty() || m.arrivals.arriving || m.goodbye.closed || m.goodbye.peerSaid || c.peers <= 0 ||
		c.left+credits > wire.MaxWindow {
		return 0, false
	}
	c.left += credits
	c.use()
	return tag, true
}

// Sent takes the completion of the request with sequence number seq, and with it
// of all before it. It returns the range of requests that are done: their memory is
// the caller's again. ok is false for a completion that belongs to none.
func (m *Machine[M]) Sent(seq uint32) (from, to uint32, ok bool) {
	q := &m.queue
	if seq-q.head >= q.tail-q.head {
		return 0, 0, false
	}
	for from = q.head; q.head != seq+1; q.head++ {
		p := q.at(q.head)
		switch p.what {
		case placeRead:
			m.readDone(p.message, p.offer)
		case placeGoodbye:
			m.goodbye.out = true
		case placeOperation:
			q.operations--
		}
		*p = place{}
	}
	m.pump()
	return from, q.head, true
}

// pump makes the posts that are due and cost no credit.
func (m *Machine[M]) pump() {
	if !m.live {
		return
	}
	m.read()
	if m.goodbye.sent {
		// The peer knows that nothing of its is wanted, or that all has arrived.
		m.arrivals.open -= m.arrivals.confirm.Clear()
		return
	}
	m.arrivals.held = m.arrivals.held && m.arrivals.confirm.Len() > 0 && m.MayHold()
	for !m.arrivals.held && m.arrivals.confirm.Len() > 0 && m.queue.room() {
		p := m.header(wire.Taken, 0, 0, wire.TakenSize, false)
		wire.PutTaken(m.queue.body(p.Seq), m.arrivals.confirm.Pop())
		p.Size += wire.TakenSize
		m.arrivals.open--
	}
	if m.creditsDue() && m.credits.control < m.credits.tells(int(m.peer.Control)) && m.queue.room() {
		m.credits.control++
		m.header(wire.Credit, 0, 0, 0, false)
	}
	m.sayGoodbye()
}

// header makes a post of a message of this side, with its header at its place. Length is
// that of what follows.
func (m *Machine[M]) header(kind wire.Kind, flags uint8, tag, length uint32, signaled bool) *Post {
	credits, control := m.credits.take()
	seq := m.queue.tail
	wire.PutPacket(m.queue.place(seq), kind, flags, credits, control, tag, length)
	*m.queue.at(seq) = place{}
	m.queue.tail++
	n := len(m.out)
	if n == cap(m.out) {
		m.out = append(m.out, Post{})
	}
	m.out = m.out[:n+1]
	out := &m.out[n]
	*out = Post{}
	out.Seq, out.Size, out.Signaled = seq, wire.HeaderSize, m.queue.signal(signaled)
	return out
}
