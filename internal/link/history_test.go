package link

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/verbena-data/verbena/internal/link/wire"
)

var (
	histories = flag.Int("histories", 3000, "random histories to run")
	seed      = flag.Uint64("seed", 1, "of the first history")
)

// TestHistories drives both ends of a connection at random: the network delivers
// when it likes, Reads finish late, applications hold messages, are out of memory,
// give long messages up in the middle, and close. A model of one queue of messages
// in each direction tells what must arrive. A million of them:
//
//	go test ./internal/link -run Histories -histories 1000000
func TestHistories(t *testing.T) {
	defer func(n int) { enoughUnread = n }(enoughUnread)
	enoughUnread = 1 // the messages here are short
	for s := *seed; s < *seed+uint64(*histories); s++ {
		h := newHistory(s)
		if err := h.run(); err != nil {
			t.Fatalf("seed %d: %v\nthe last steps:\n%s", s, err, h.steps())
		}
	}
}

// A simulated connection. Memory is addressed by the position of what lies there.
type history struct {
	rng  *rand.Rand
	ends [2]*end
	log  []string
}

type end struct {
	name   string
	m      *Machine[*letter]
	limits Limits
	peer   *end
	places []byte

	receives int        // posted
	answers  int        // of them, those for what costs no credit, but for the goodbye
	answered int        // messages of that kind that are on their way
	queue    []*request // the send queue, in order
	started  int        // of it, those that the device has begun
	wire     [][]byte   // messages on their way to the peer

	exposed map[uint64][]byte // memory that the peer may read, by address
	byID    map[uint32]uint64
	next    uint64 // address

	long struct { // that is being sent
		body   []byte
		offset int
		tag    uint32
	}
	sent     []*letter // what the peer has to receive, in order
	held     []*letter
	viewed   []viewed // messages that are used where they lie
	received int
	tag      uint32
	closed   bool

	operations int // under way

	asked map[uint32]wire.Operation // without an answer, by id
	due   []wire.Operation          // of the peer, to be answered
}

type letter struct {
	tag  uint32
	body []byte
	long bool
}

// A viewed message lies in the peer's memory.
type viewed struct {
	address uint64
	offer   uint32
}

type request struct {
	post      Post
	data      []byte
	done      bool
	operation bool // of the application
}

func newHistory(seed uint64) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 7))}
	for i := range h.ends {
		l := Limits{
			Receive: wire.HeaderSize + wire.OfferSize + h.rng.IntN(40), Window: 1 + h.rng.IntN(4), Chunks: 1 + h.rng.IntN(5),
			MaxMessage: 2000, Commit: 1 + h.rng.IntN(300),
		}
		l.MaxWindow = l.Window + h.rng.IntN(4)
		l.Answers = 1 + h.rng.IntN(l.AllAnswers())
		l.Operations = h.rng.IntN(5)
		e := &end{name: string('A' + byte(i)), limits: l, exposed: map[uint64][]byte{}, byID: map[uint32]uint64{}, asked: map[uint32]wire.Operation{}, next: 1}
		e.places = make([]byte, min(8<<h.rng.IntN(4), l.Places())*PlaceSize)
		e.m = New[*letter](l, e.places)
		e.m.queue.head -= h.rng.Uint32N(100) // so that sequence numbers wrap
		e.m.queue.tail = e.m.queue.head
		e.receives, e.answers = l.Receives(l.Window, l.Answers), l.Answers
		h.ends[i] = e
	}
	h.ends[0].peer, h.ends[1].peer = h.ends[1], h.ends[0]
	if h.rng.IntN(2) == 0 {
		h.ends[0].m.Serve()
		h.ends[1].m.Serve()
	}
	return h
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) steps() string {
	var b bytes.Buffer
	for _, s := range h.log[max(0, len(h.log)-40):] {
		b.WriteString(s + "\n")
	}
	return b.String()
}

func (h *history) run() error {
	for _, e := range h.ends {
		if err := e.m.Start(e.peer.limits.Parameters()); err != nil {
			return err
		}
	}
	steps := 50 + h.rng.IntN(400)
	closing := h.rng.IntN(3) == 0
	for range steps {
		e := h.ends[h.rng.IntN(2)]
		if err := h.step(e, closing); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return h.finish()
}

func (h *history) step(e *end, closing bool) error {
	switch h.rng.IntN(16) {
	case 0, 1:
		return h.send(e)
	case 2:
		return h.sendLong(e)
	case 3, 4:
		return h.transmit(e)
	case 5, 6:
		return h.deliver(e)
	case 7:
		h.finishRead(e)
	case 8:
		return h.complete(e)
	case 9:
		return h.receive(e)
	case 10:
		return h.release(e)
	case 11:
		if closing && h.rng.IntN(20) == 0 && !e.closed {
			h.close(e)
		}
	case 12:
		return h.operate(e)
	case 13:
		return h.ask(e)
	case 14:
		return h.answer(e)
	case 15:
		return h.unview(e)
	}
	return nil
}

// ask asks the peer for an operation that its runtime serves.
func (h *history) ask(e *end) error {
	if e.closed || e.m.PeerSaidGoodbye() || !e.m.Asks() || e.long.body != nil {
		return nil
	}
	if !e.m.MayAsk() {
		h.expect(e)
		return nil
	}
	o := wire.Operation{Code: wire.Get, Exposure: h.rng.Uint64(), Offset: h.rng.Uint64(), A: 1 + h.rng.Uint64N(uint64(e.m.LongestAnswer()))}
	if h.rng.IntN(2) == 0 {
		o.Code, o.B = wire.CompareSwap, h.rng.Uint64()
	}
	o.ID = e.m.Ask(o)
	h.say("%s asks for %+v", e.name, o)
	if _, twice := e.asked[o.ID]; twice || e.byID[o.ID] != 0 {
		return fmt.Errorf("id %d is open already", o.ID)
	}
	e.asked[o.ID] = o
	return h.flush(e)
}

// answerTo is what answers an operation.
func answerTo(o wire.Operation) []byte {
	if o.Code == wire.Get {
		return bytes.Repeat([]byte{byte(o.Offset)}, int(o.A))
	}
	return make([]byte, 8)
}

// answer answers one of the peer's operations, in any order.
func (h *history) answer(e *end) error {
	if len(e.due) == 0 || !e.m.MayAnswer() {
		return nil
	}
	i := h.rng.IntN(len(e.due))
	o := e.due[i]
	e.due = slices.Delete(e.due, i, i+1)
	data := answerTo(o)
	h.say("%s answers %d", e.name, o.ID)
	before := len(e.queue)
	e.m.Answer(wire.Answer{ID: o.ID, Verdict: 3}, data)
	err := h.flush(e)
	for _, r := range e.queue[before:] {
		if r.post.Payload > 0 {
			r.data = append(r.data, data...)
		}
	}
	return err
}

// told checks what a message says of operations.
func (h *history) told(e *end, effects Effects) error {
	if effects.Asked {
		if want := e.peer.asked[effects.Operation.ID]; want != effects.Operation {
			return fmt.Errorf("operation %+v became %+v", want, effects.Operation)
		}
		e.due = append(e.due, effects.Operation)
	}
	if effects.Answered {
		o, ok := e.asked[effects.Answer.ID]
		if !ok || effects.Answer.Verdict != 3 || !bytes.Equal(effects.Data, answerTo(o)) {
			return fmt.Errorf("operation %+v was answered by %+v and %d bytes", o, effects.Answer, len(effects.Data))
		}
		delete(e.asked, o.ID)
	}
	return nil
}

// operate posts one-sided operations, of which the last one is signalled.
func (h *history) operate(e *end) error {
	n := 1 + h.rng.IntN(3)
	if e.closed || !e.m.MayOperate(n) {
		return nil
	}
	first := e.m.Operate(n)
	h.say("%s: %d operations from %d on", e.name, n, first)
	for i := range n {
		e.queue = append(e.queue, &request{post: Post{Seq: first + uint32(i), Signaled: i == n-1}, operation: true})
	}
	e.operations += n
	if e.operations > e.limits.Operations || len(e.queue) > e.limits.SendDepth() {
		return fmt.Errorf("%d operations of %d, %d requests in a send queue of %d", e.operations, e.limits.Operations, len(e.queue), e.limits.SendDepth())
	}
	return h.flush(e)
}

// flush takes the machine's posts, and checks that they fit.
func (h *history) flush(e *end) error {
	for _, p := range e.m.Posts() {
		r := &request{post: p}
		if !p.Read {
			at := int(p.Seq) * PlaceSize % len(e.places)
			r.data = append(r.data, e.places[at:at+p.Size]...)
			if answer(r.data) {
				e.peer.answered++
			}
			if e.peer.answered > e.peer.answers {
				return fmt.Errorf("%d answers are on their way to %d receives", e.peer.answered, e.peer.answers)
			}
		}
		e.queue = append(e.queue, r)
		if most := min(e.limits.SendDepth(), len(e.places)/PlaceSize); len(e.queue) > most {
			return fmt.Errorf("%d requests in a send queue of %d", len(e.queue), most)
		}
	}
	if !e.m.Crowded() || h.rng.IntN(3) == 0 { // no memory, for now
		return nil
	}
	h.say("%s gets more places", e.name)
	e.places = make([]byte, 2*len(e.places))
	first, last := e.m.Grow(e.places)
	if n := len(e.queue); n != int(last-first) || n > 0 && (e.queue[0].post.Seq != first || e.queue[n-1].post.Seq != last-1) {
		return fmt.Errorf("%d requests are outstanding, and it tells of those from %d to before %d", n, first, last)
	}
	return h.flush(e)
}

// answer tells whether a message is one that costs no credit, and no goodbye.
func answer(b []byte) bool {
	return wire.Kind(b[0]) == wire.Taken || wire.Kind(b[0]) == wire.Credit || wire.Kind(b[0]) == wire.Answered
}

func (e *end) mayStart() bool { return len(e.long.body) == 0 && !e.closed && !e.m.PeerSaidGoodbye() }

func (h *history) send(e *end) error {
	if e.long.body != nil && h.rng.IntN(4) == 0 {
		h.say("%s gives up a message after %d of %d bytes", e.name, e.long.offset, len(e.long.body))
		e.long.body = nil
	}
	if !e.mayStart() || !e.m.MaySend() {
		h.expect(e)
		return nil
	}
	e.tag++
	l := &letter{tag: e.tag, body: h.body(h.rng.IntN(e.m.MaxEager() + 1))}
	h.say("%s sends %d, %d bytes", e.name, l.tag, len(l.body))
	if packet := make([]byte, wire.HeaderSize); e.started == len(e.queue) && h.rng.IntN(2) == 0 && e.m.Ahead(l.tag, uint32(len(l.body)), packet) {
		if h.rng.IntN(4) > 0 {
			h.say("past its queue")
			e.m.Gone()
			e.wire, e.sent = append(e.wire, append(packet, l.body...)), append(e.sent, l)
			return nil
		} // else the device has refused it
	}
	header := l.body[:0]
	if h.rng.IntN(2) == 0 {
		header = l.body[:h.rng.IntN(min(len(l.body), Small)+1)]
		e.m.Gather(l.tag, header, l.body[len(header):], h.rng.IntN(2) == 0)
	} else {
		e.m.Eager(l.tag, l.body, h.rng.IntN(2) == 0)
	}
	if err := h.flush(e); err != nil {
		return err
	}
	last := e.queue[len(e.queue)-1]
	if last.post.Payload > 0 {
		last.data = append(last.data, l.body[len(header):]...)
	}
	e.sent = append(e.sent, l)
	return nil
}

// expect posts receives for answers, if that is what a message waits for.
func (h *history) expect(e *end) {
	if n := e.m.Lacks(); n > 0 {
		h.say("%s expects %d answers more", e.name, n)
		e.receives += n
		e.answers += n
		e.m.Expect(n)
	}
}

func (h *history) body(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(h.rng.Uint32())
	}
	return b
}

// sendLong offers the next part of a long message.
func (h *history) sendLong(e *end) error {
	if e.closed || e.m.PeerSaidGoodbye() {
		return nil
	}
	if !e.m.MayOffer() {
		h.expect(e)
		return nil
	}
	if e.long.body == nil {
		e.tag++
		e.long.tag, e.long.offset = e.tag, 0
		e.long.body = h.body(e.m.MaxEager() + 1 + h.rng.IntN(1000))
	}
	n := min(len(e.long.body)-e.long.offset, 1+h.rng.IntN(300))
	if h.rng.IntN(3) == 0 {
		n = len(e.long.body) - e.long.offset
	}
	part := e.long.body[e.long.offset:][:n]
	e.next += uint64(1 + h.rng.IntN(5))
	e.exposed[e.next] = part
	h.say("%s offers %d to %d of %d of %d at %d", e.name, e.long.offset, e.long.offset+n, len(e.long.body), e.long.tag, e.next)
	id := e.m.Offer(e.long.tag, wire.Offer{Address: e.next, Length: uint32(n), Total: uint32(len(e.long.body)), Offset: uint32(e.long.offset)})
	if _, twice := e.byID[id]; twice {
		return fmt.Errorf("offer %d is open already", id)
	}
	e.byID[id] = e.next
	if e.long.offset += n; e.long.offset == len(e.long.body) {
		e.sent = append(e.sent, &letter{tag: e.long.tag, body: e.long.body})
		e.long.body = nil
	}
	return h.flush(e)
}

// transmit begins the next request of the send queue.
func (h *history) transmit(e *end) error {
	if e.started == len(e.queue) {
		return nil
	}
	r := e.queue[e.started]
	e.started++
	if r.operation {
		return nil // done later, by finishRead
	}
	if !r.post.Read {
		r.done = true
		e.wire = append(e.wire, r.data)
	}
	return nil
}

func (h *history) finishRead(e *end) {
	for _, r := range e.queue[:e.started] {
		if (r.post.Read || r.operation) && !r.done {
			r.done = true
			return
		}
	}
}

// complete tells the machine of what is done, as far as a signalled request says so.
func (h *history) complete(e *end) error {
	last := -1
	for i, r := range e.queue[:e.started] {
		if !r.done {
			break
		}
		if r.post.Signaled {
			last = i
			break
		}
	}
	if last < 0 {
		return nil
	}
	for _, r := range e.queue[:last+1] {
		if r.operation {
			e.operations--
		}
		if !r.post.Read {
			continue
		}
		part, ok := e.peer.exposed[r.post.Address]
		if !ok || len(part) != r.post.Length {
			return fmt.Errorf("a Read of %d bytes at %d, where there are %d", r.post.Length, r.post.Address, len(part))
		}
		into := e.m.Handle(r.post.Message)
		copy(into.body[r.post.Offset:][:r.post.Length], part)
	}
	seq := e.queue[last].post.Seq
	first := e.queue[0].post.Seq
	e.queue, e.started = e.queue[last+1:], e.started-last-1
	if e.m.MayHold() && h.rng.IntN(2) == 0 {
		h.say("%s holds", e.name)
		e.m.Hold()
	}
	from, to, ok := e.m.Sent(seq)
	if !ok || from != first || to != seq+1 {
		return fmt.Errorf("completion of %d says %d to %d, %t; %d was the first", seq, from, to, ok, first)
	}
	h.say("%s: requests %d to %d are done", e.name, from, to)
	return h.flush(e)
}

// tell ends what the end holds back.
func (h *history) tell(e *end) error {
	if !e.m.Holding() {
		return nil
	}
	h.say("%s holds no more", e.name)
	e.m.Tell()
	return h.flush(e)
}

// deliver hands the end the next message of its peer.
func (h *history) deliver(e *end) error {
	if len(e.peer.wire) == 0 {
		return nil
	}
	if e.receives == 0 {
		return fmt.Errorf("a message finds no receive")
	}
	b := e.peer.wire[0]
	e.peer.wire = e.peer.wire[1:]
	e.receives--
	if answer(b) {
		e.answered--
	}
	p, body, err := wire.ParsePacket(b)
	if err != nil {
		return err
	}
	l := &letter{body: append([]byte(nil), body...)}
	h.say("%s gets kind %d, tag %d, %d bytes", e.name, p.Kind, p.Tag, len(body))
	if h.rng.IntN(2) == 0 { // somebody waits for it
		if tag, ok := e.m.Take(b); ok {
			if p.Kind != wire.Eager || tag != p.Tag {
				return fmt.Errorf("kind %d with tag %d was taken as tag %d", p.Kind, p.Tag, tag)
			}
			e.held = append(e.held, l)
			return h.received(e, tag, body)
		}
	}
	effects, err := e.m.Received(b, l)
	if err != nil {
		return err
	}
	if err := h.told(e, effects); err != nil {
		return err
	}
	if !effects.Kept {
		e.receives++
	}
	if effects.Freed {
		address, ok := e.byID[effects.FreedID]
		if !ok {
			return fmt.Errorf("offer %d is freed, which was not open", effects.FreedID)
		}
		delete(e.byID, effects.FreedID)
		delete(e.exposed, address)
	}
	if effects.Starved {
		if n := min(e.limits.MaxWindow-e.m.Window(), h.rng.IntN(3)); n > 0 {
			h.say("%s grants %d", e.name, n)
			e.receives += n
			e.m.Grant(n)
		}
	}
	e.m.Finished()
	return h.flush(e)
}

// receive is what the application does: it takes a message, or gives one memory.
func (h *history) receive(e *end) error {
	if e.closed {
		return nil // Receive fails at once
	}
	w, ok := e.m.Wanted()
	if ok && w.Whole && h.rng.IntN(2) == 0 {
		h.say("%s views %d at %d", e.name, w.Tag, w.Address)
		part := e.peer.exposed[w.Address]
		if len(part) != w.Total {
			return fmt.Errorf("a view of %d bytes at %d, where there are %d", w.Total, w.Address, len(part))
		}
		offer := e.m.View(w, &letter{body: part, long: true})
		e.viewed = append(e.viewed, viewed{w.Address, offer})
		if n := len(e.viewed); n > e.peer.limits.Chunks/2 {
			return fmt.Errorf("%d of %d offers are viewed", n, e.peer.limits.Chunks)
		}
		return h.flush(e)
	}
	if ok && (w.First || h.rng.IntN(3) == 0) {
		size := w.Need + h.rng.IntN(w.Size-w.Need+1)
		l := &letter{body: make([]byte, size), long: true}
		if w.Have > 0 {
			copy(l.body, e.m.Handle(w.Message).body[:w.Have])
		}
		h.say("%s provides %d bytes for %d, which has %d", e.name, size, w.Tag, w.Have)
		e.m.Provide(w.Message, l, size)
		return h.flush(e)
	}
	in, complete := e.m.Next(func(*letter) {})
	if !complete {
		// An application may hold all that has come and wait for more.
		if n := e.limits.MaxWindow - e.m.Window(); n > 0 && e.m.Stopped() && h.rng.IntN(2) == 0 {
			n = 1 + h.rng.IntN(n)
			h.say("%s grants %d to a peer that is stopped", e.name, n)
			e.receives += n
			e.m.Grant(n)
			return h.flush(e)
		}
		return nil
	}
	if !in.Long {
		e.held = append(e.held, in.Handle)
	}
	if err := h.flush(e); err != nil {
		return err
	}
	return h.received(e, in.Tag, in.Handle.body[:in.Length])
}

// received holds a message that the application gets against what was sent.
func (h *history) received(e *end, tag uint32, body []byte) error {
	h.say("%s receives %d", e.name, tag)
	if e.received == len(e.peer.sent) {
		return fmt.Errorf("received %d, which was not sent as a whole", tag)
	}
	want := e.peer.sent[e.received]
	e.received++
	if tag != want.tag || !bytes.Equal(body, want.body) {
		return fmt.Errorf("received %d of %d bytes, want %d of %d, or other bytes", tag, len(body), want.tag, len(want.body))
	}
	return nil
}

// unview ends the use of a message in the peer's memory, which must still be there.
func (h *history) unview(e *end) error {
	if len(e.viewed) == 0 {
		return nil
	}
	i := h.rng.IntN(len(e.viewed))
	v := e.viewed[i]
	e.viewed = slices.Delete(e.viewed, i, i+1)
	h.say("%s has viewed %d", e.name, v.address)
	if e.peer.exposed[v.address] == nil && !e.closed {
		return fmt.Errorf("what lies at %d was taken back while it was viewed", v.address)
	}
	if e.m.Finished() && !e.closed {
		return fmt.Errorf("all of the peer's messages are said to be through, one of which is viewed")
	}
	e.m.Viewed(v.offer)
	return h.flush(e)
}

func (h *history) release(e *end) error {
	if len(e.held) == 0 {
		return nil
	}
	e.held = e.held[1:]
	if e.m.Window() > e.limits.Window && h.rng.IntN(2) == 0 {
		e.m.Withdraw()
	} else {
		e.receives++
		if !e.m.Released() {
			e.m.pump()
			if due := e.m.Posts(); len(due) > 0 {
				return fmt.Errorf("a release had nothing posted, but %+v were due", due)
			}
		}
	}
	if err := h.flush(e); err != nil {
		h.say("%v", err)
	}
	return nil
}

func (h *history) close(e *end) {
	h.say("%s closes", e.name)
	e.closed = true
	e.long.body = nil
	e.m.Close()
	if err := h.flush(e); err != nil {
		h.say("%v", err)
	}
}

// settle lets everything happen that needs no new message.
func (h *history) settle() error {
	for quiet := 0; quiet < 3; {
		before := len(h.log)
		for _, e := range h.ends {
			for e.started < len(e.queue) {
				if err := h.transmit(e); err != nil {
					return err
				}
			}
			for range e.queue {
				h.finishRead(e)
			}
			for len(e.peer.wire) > 0 {
				if err := h.deliver(e); err != nil {
					return fmt.Errorf("%s: %w", e.name, err)
				}
			}
			for range len(e.queue) + 1 {
				if err := h.complete(e); err != nil {
					return fmt.Errorf("%s: %w", e.name, err)
				}
			}
			if err := h.tell(e); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			if err := h.receive(e); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			for len(e.held) > 0 {
				if err := h.release(e); err != nil {
					return fmt.Errorf("%s: %w", e.name, err)
				}
			}
			for len(e.viewed) > 0 {
				if err := h.unview(e); err != nil {
					return fmt.Errorf("%s: %w", e.name, err)
				}
			}
			for len(e.due) > 0 && e.m.MayAnswer() {
				if err := h.answer(e); err != nil {
					return fmt.Errorf("%s: %w", e.name, err)
				}
			}
		}
		for _, e := range h.ends {
			if a := &e.m.arrivals; a.pending.Len() == 0 && a.waiting != 0 {
				return fmt.Errorf("%s: %d bytes are offered, in no offers", e.name, a.waiting)
			}
		}
		if len(h.log) == before {
			quiet++
		} else {
			quiet = 0
		}
	}
	return nil
}

// finish checks that nothing is stuck: what was begun ends, everything arrives,
// and both ends say goodbye.
func (h *history) finish() error {
	for _, e := range h.ends {
		for i := 0; e.long.body != nil && !e.closed && !e.m.PeerSaidGoodbye(); i++ {
			if i > 10000 {
				return fmt.Errorf("%s cannot go on with its message", e.name)
			}
			if err := h.sendLong(e); err != nil {
				return err
			}
			if err := h.settle(); err != nil {
				return err
			}
		}
		e.long.body = nil
	}
	if err := h.settle(); err != nil {
		return err
	}
	for _, e := range h.ends {
		if e.operations > 0 || !e.closed && !e.m.PeerSaidGoodbye() && !e.m.MayOperate(e.limits.Operations) {
			return fmt.Errorf("%s has %d operations under way in the end, of %d", e.name, e.operations, e.limits.Operations)
		}
		if !e.closed && !e.m.PeerSaidGoodbye() {
			if !e.m.MaySend() && e.m.Lacks() == 0 {
				return fmt.Errorf("%s has no credit in the end", e.name)
			}
			if len(e.asked) > 0 && !e.peer.closed {
				return fmt.Errorf("%s has %d operations without an answer in the end", e.name, len(e.asked))
			}
			if e.m.OffersOpen() > 0 && !e.peer.closed {
				return fmt.Errorf("%s has %d offers open in the end", e.name, e.m.OffersOpen())
			}
		}
	}
	early := h.ends[0].closed || h.ends[1].closed
	for _, e := range h.ends {
		if !early && e.received != len(e.peer.sent) {
			return fmt.Errorf("%s received %d messages of %d", e.name, e.received, len(e.peer.sent))
		}
	}
	for _, e := range h.ends {
		if !e.closed {
			h.close(e)
		}
		if err := h.settle(); err != nil {
			return err
		}
	}
	for _, e := range h.ends {
		if !e.m.GoodbyeOut() || !e.m.PeerSaidGoodbye() {
			return fmt.Errorf("%s: goodbye out: %t, the peer's here: %t", e.name, e.m.GoodbyeOut(), e.m.PeerSaidGoodbye())
		}
		if len(e.byID) > 0 && !early {
			return fmt.Errorf("%s has %d offers open after the goodbyes", e.name, len(e.byID))
		}
		e.m.Discard(func(*letter) {})
	}
	return nil
}
