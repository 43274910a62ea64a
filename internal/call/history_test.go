package call

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/internal/link/wire"
)

var (
	histories = flag.Int("histories", 3000, "random histories to run")
	seed      = flag.Uint64("seed", 1, "of the first history")
)

// TestHistories drives both ends at random: calls with and without streams,
// notifications, requests that could not be sent, callers that give up, cancels and
// pieces that meet their answers, readers that are slow, the death of an end. A model
// knows every call by a number and who has to hear of it, and every stream's bytes. A
// million:
//
//	go test ./internal/call -run Histories -histories 1000000
func TestHistories(t *testing.T) {
	for s := *seed; s < *seed+uint64(*histories); s++ {
		h := newHistory(s)
		if err := h.run(); err != nil {
			t.Fatalf("seed %d: %v\nthe last steps:\n%s", s, err, strings.Join(h.log[max(0, len(h.log)-30):], "\n"))
		}
	}
}

// TestHostileHistories lets one end send anything at all. The other ends with a breach
// or goes on; what it keeps stays within its limits, and no caller hears what was not
// said to it.
func TestHostileHistories(t *testing.T) {
	for s := *seed; s < *seed+uint64(*histories); s++ {
		h := newHistory(s)
		h.hostile = true
		if err := h.run(); err != nil {
			t.Fatalf("seed %d: %v\nthe last steps:\n%s", s, err, strings.Join(h.log[max(0, len(h.log)-30):], "\n"))
		}
	}
}

type history struct {
	rng     *rand.Rand
	ends    [2]*end
	hostile bool // end 1 lies
	number  int
	log     []string
}

type packet struct {
	h      Header
	tag    uint32
	number int // of the call, known to the model alone
	bytes  int // of a piece
}

// A flow is what the model knows of a call's streams at one end.
type flow struct {
	flows    Flows
	id       ID
	credit   int   // of what this end sends
	unread   []int // pieces received and not consumed
	finished bool  // this end's stream
	heard    bool  // the end of the peer's
	over     bool  // the call has been answered here
}

func (f *flow) unconsumed() (n int) {
	for _, piece := range f.unread {
		n += piece
	}
	return n
}

type end struct {
	name    string
	side    *Side[int, int]
	peer    *end
	wire    []packet
	waiting map[int]ID // calls by number that a caller waits for
	given   map[int]bool
	serving map[int]ID
	streams map[int]*flow // by call
	notes   int           // notifications to be handled
	owed    int           // handled, by the model's count
	outOf   int           // requests of this end that count, by the model's count
	dead    bool
}

func newHistory(seed uint64) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 11))}
	for i := range h.ends {
		own := Limits{Requests: 1 + h.rng.IntN(5), Stream: h.rng.IntN(100), Window: h.rng.IntN(400), Memory: h.rng.IntN(600)}
		h.ends[i] = &end{name: string('A' + byte(i)), side: New[int, int](own), waiting: map[int]ID{}, given: map[int]bool{}, serving: map[int]ID{}, streams: map[int]*flow{}}
	}
	h.ends[0].peer, h.ends[1].peer = h.ends[1], h.ends[0]
	for _, e := range h.ends {
		g, tag := e.side.Greeting()
		e.wire = append(e.wire, packet{h: g, tag: tag})
	}
	return h
}

func (h *history) run() error {
	for range 20 + h.rng.IntN(300) {
		e := h.ends[h.rng.IntN(2)]
		if e.dead || h.hostile && e == h.ends[1] {
			if e = h.ends[0]; e.dead {
				return nil
			}
			if h.rng.IntN(2) == 0 {
				h.lie()
				continue
			}
		}
		if err := h.step(e); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if err := h.check(e); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if h.hostile {
		return nil
	}
	return h.settle()
}

// lie makes end 1 send anything.
func (h *history) lie() {
	p := packet{h: Header{Kind: Kind(1 + h.rng.IntN(10)), Value: uint32(h.rng.IntN(4)), ID: ID{uint32(h.rng.IntN(4)), uint32(h.rng.IntN(3))}}, tag: uint32(h.rng.IntN(3)), number: -1, bytes: h.rng.IntN(40)}
	if int(p.h.Kind) < len(flags) && h.rng.IntN(2) == 0 {
		p.h.Flags = flags[p.h.Kind]
	}
	h.ends[1].wire = append(h.ends[1].wire, p)
}

func (h *history) step(e *end) error {
	s := e.side
	switch h.rng.IntN(16) {
	case 0, 1: // a call
		h.number++
		var f *flow
		var flows *Flows
		request := Header{Kind: Request}
		if s.PeerStream() > 0 && s.own.Stream > 0 && h.rng.IntN(2) == 0 {
			f = &flow{credit: s.PeerStream()}
			flows, request.Flags = &f.flows, Streams
		}
		id, ok := s.Begin(h.number, flows)
		if want := s.IsGreeted() && e.outOf < e.peer.side.own.Requests; !h.hostile && ok != want {
			return fmt.Errorf("a call may begin: %t, want %t with %d of %d", ok, want, e.outOf, e.peer.side.own.Requests)
		}
		if !ok {
			return nil
		}
		if h.rng.IntN(6) == 0 {
			s.Unsent(id)
			return nil
		}
		e.outOf++
		e.waiting[h.number] = id
		if f != nil {
			f.id = id
			e.streams[h.number] = f
		}
		request.ID = id
		e.wire = append(e.wire, packet{h: request, number: h.number})
		h.log = append(h.log, fmt.Sprintf("%s calls %d as %v", e.name, h.number, id))
	case 2: // a notification
		if !s.Notify() {
			return nil
		}
		if h.rng.IntN(6) == 0 {
			s.UnsentNotification()
			return nil
		}
		e.outOf++
		e.wire = append(e.wire, packet{h: Header{Kind: Notification}})
	case 3: // a caller gives up
		for n, id := range e.waiting {
			if !s.Abandon(id) {
				return fmt.Errorf("call %d cannot be given up", n)
			}
			if s.Abandon(id) {
				return fmt.Errorf("call %d is given up twice", n)
			}
			delete(e.waiting, n)
			e.given[n] = true
			e.over(n, false)
			e.wire = append(e.wire, packet{h: Header{Kind: Cancel, ID: id}, number: n})
			h.log = append(h.log, fmt.Sprintf("%s gives up %d", e.name, n))
			break
		}
	case 4: // an answer
		for n, id := range e.serving {
			if err := h.answer(e, n, id); err != nil {
				return err
			}
			break
		}
	case 5:
		if e.notes > 0 {
			h.handle(e)
		}
	case 6, 7, 8: // a piece
		for n, f := range e.streams {
			return h.send(e, n, f)
		}
	case 9: // the end of a stream
		for n, f := range e.streams {
			if h.rng.IntN(3) == 0 && !f.over {
				h.finish(e, n, f)
			}
			break
		}
	case 10, 11: // a piece is consumed
		for n, f := range e.streams {
			if len(f.unread) > 0 {
				h.consume(e, n, f)
			}
			break
		}
	default:
		if len(e.peer.wire) > 0 {
			return h.deliver(e)
		}
	}
	return nil
}

// header is that of a message for the stream of a call.
func (e *end) header(n int, f *flow, kind Kind) Header {
	h := Header{Kind: kind, ID: f.id}
	if _, serving := e.serving[n]; !serving {
		h.Flags = FromCaller
	}
	return h
}

func (h *history) send(e *end, n int, f *flow) error {
	if f.over || f.finished {
		return nil
	}
	want, least := 1+h.rng.IntN(120), 1+h.rng.IntN(20)
	took := f.flows.Take(want, least)
	if most := min(want, f.credit); !h.hostile && (took > most || took == 0 && f.credit >= min(want, least)) {
		return fmt.Errorf("call %d takes a credit of %d, has %d", n, took, f.credit)
	}
	switch {
	case took == 0:
	case h.rng.IntN(8) == 0:
		f.flows.Return(took)
	default:
		f.credit -= took
		e.wire = append(e.wire, packet{h: e.header(n, f, Data), number: n, bytes: took})
		h.log = append(h.log, fmt.Sprintf("%s sends %d bytes of %d", e.name, took, n))
	}
	return nil
}

func (h *history) finish(e *end, n int, f *flow) {
	if f.flows.Finish() {
		f.finished = true
		e.wire = append(e.wire, packet{h: e.header(n, f, End), number: n})
		h.log = append(h.log, fmt.Sprintf("%s ends its stream of %d", e.name, n))
	}
}

func (h *history) consume(e *end, n int, f *flow) {
	piece := f.unread[0]
	f.unread = f.unread[1:]
	if grant := e.side.Consumed(&f.flows, piece); grant > 0 {
		e.wire = append(e.wire, packet{h: e.header(n, f, Grant), number: n, tag: grant})
		h.log = append(h.log, fmt.Sprintf("%s consumes %d bytes of %d, and grants %d", e.name, piece, n, grant))
	}
}

// streamed takes a message for the stream of a call.
func (h *history) streamed(e *end, p packet) (err error) {
	s := e.side
	var late bool
	switch p.h.Kind {
	case Data:
		late, err = s.Piece(p.h, p.bytes)
	case End:
		late, err = s.Ended(p.h)
	case Grant:
		late, err = s.Granted(p.h, p.tag)
	}
	if err != nil {
		return err
	}
	if p.number < 0 { // of the liar: what it says may be of one call or of none
		for n, f := range e.streams {
			_, serving := e.serving[n]
			if !late && f.id == p.h.ID && !f.over && serving == (p.h.Flags&FromCaller != 0) {
				h.apply(e, n, f, p)
			}
		}
		return nil
	}
	f := e.streams[p.number]
	if want := f == nil || f.over; late != want {
		return fmt.Errorf("a message of kind %d for call %d is late: %t, want %t", p.h.Kind, p.number, late, want)
	}
	if !late {
		h.apply(e, p.number, f, p)
	}
	return nil
}

func (h *history) apply(e *end, n int, f *flow, p packet) {
	switch p.h.Kind {
	case Data:
		f.unread = append(f.unread, p.bytes)
	case End:
		f.heard = true
	case Grant:
		f.credit += int(p.tag)
	}
}

// over notes that a call has been answered at e.
func (e *end) over(n int, keep bool) {
	f := e.streams[n]
	if f == nil {
		return
	}
	f.over = true
	if !keep {
		e.drop(n)
	}
}

// drop consumes what nobody will read.
func (e *end) drop(n int) {
	f := e.streams[n]
	for _, piece := range f.unread {
		e.side.Consumed(&f.flows, piece)
	}
	delete(e.streams, n)
}

func (h *history) answer(e *end, n int, id ID) error {
	if !e.side.Answered(id) {
		return fmt.Errorf("call %d cannot be answered", n)
	}
	if e.side.Answered(id) {
		return fmt.Errorf("call %d is answered twice", n)
	}
	delete(e.serving, n)
	e.over(n, false)
	e.wire = append(e.wire, packet{h: Header{Kind: []Kind{Reply, Failure}[h.rng.IntN(2)], ID: id}, number: n})
	h.log = append(h.log, fmt.Sprintf("%s answers %d", e.name, n))
	return nil
}

func (h *history) handle(e *end) {
	e.notes--
	e.owed++
	if tell := e.side.Handled(); tell > 0 {
		e.owed -= int(tell)
		e.wire = append(e.wire, packet{h: Header{Kind: Handled}, tag: tell})
	}
}

// deliver hands the peer's next message to e.
func (h *history) deliver(e *end) error {
	p := e.peer.wire[0]
	e.peer.wire = e.peer.wire[1:]
	err := h.take(e, p)
	if err != nil && h.hostile && errors.Is(err, wire.ErrProtocol) {
		e.dead = true
		return nil
	}
	return err
}

func (h *history) take(e *end, p packet) error {
	s := e.side
	if !s.IsGreeted() && p.h.Kind != Greeting {
		return fmt.Errorf("%w: no greeting first", wire.ErrProtocol)
	}
	switch p.h.Kind {
	case Greeting:
		return s.Greeted(p.h, p.tag)
	case Request:
		var f *flow
		var flows *Flows
		if p.h.Flags&Streams != 0 {
			f = &flow{id: p.h.ID, credit: s.PeerStream()}
			flows = &f.flows
		}
		if err := s.Requested(p.h.ID, p.number, flows); err != nil {
			return err
		}
		if p.number < 0 { // of the liar
			h.number++
			p.number = h.number
		}
		if f != nil {
			e.streams[p.number] = f
		}
		e.serving[p.number] = p.h.ID
	case Notification:
		if err := s.Notified(); err != nil {
			return err
		}
		e.notes++
	case Reply, Failure:
		n, wanted, err := s.Answer(p.h.ID)
		if err != nil {
			return err
		}
		e.outOf--
		h.log = append(h.log, fmt.Sprintf("%s hears the answer to %d", e.name, n))
		if p.number < 0 { // it may answer what it was asked
			if id, ok := e.waiting[n]; wanted && (!ok || id != p.h.ID) {
				return fmt.Errorf("call %d hears what was said to another", n)
			}
			delete(e.waiting, n)
			if wanted {
				e.over(n, true)
			}
			return nil
		}
		if wanted != (e.waiting[p.number] == p.h.ID && !e.given[p.number]) || wanted && n != p.number {
			return fmt.Errorf("call %d hears the answer to %d: %t", n, p.number, wanted)
		}
		delete(e.waiting, p.number)
		delete(e.given, p.number)
		if wanted {
			e.over(p.number, true)
		}
	case Cancel:
		n, ok := s.Served(p.h.ID)
		if id, serving := e.serving[p.number]; p.number >= 0 && (ok != (serving && id == p.h.ID) || ok && n != p.number) {
			return fmt.Errorf("the cancel of call %d finds %d, %t", p.number, n, ok)
		}
		if f := e.streams[n]; ok && f != nil && h.rng.IntN(2) == 0 { // its handler has noticed
			s.Drop(&f.flows)
			e.over(n, false)
		}
	case Handled:
		if err := s.Credited(p.tag); err != nil {
			return err
		}
		e.outOf -= int(p.tag)
	case Data, End, Grant:
		return h.streamed(e, p)
	}
	return nil
}

// check compares an end with the model.
func (h *history) check(e *end) error {
	s := e.side
	if e.dead {
		return nil
	}
	if got, want := s.Unanswered(), len(e.serving); got != want {
		return fmt.Errorf("%d calls are served, want %d", got, want)
	}
	if open := len(e.serving) + e.notes; open > s.own.Requests {
		return fmt.Errorf("%d requests are kept, at most %d", open, s.own.Requests)
	}
	waiting := 0
	var err error
	s.Outstanding(func(id ID, n int) {
		waiting++
		if e.waiting[n] != id {
			err = fmt.Errorf("call %d is outstanding as %v, want %v", n, id, e.waiting[n])
		}
	})
	if waiting != len(e.waiting) {
		return fmt.Errorf("%d calls are outstanding, want %d", waiting, len(e.waiting))
	}
	if got := s.left; s.IsGreeted() && got != s.peer.Requests-e.outOf {
		return fmt.Errorf("%d requests may be sent, want %d", got, s.peer.Requests-e.outOf)
	}
	return errors.Join(err, h.checkStreams(e))
}

// checkStreams compares the bytes of an end's streams with the model.
func (h *history) checkStreams(e *end) error {
	s := e.side
	promised, grown, open := 0, 0, 0
	for n, f := range e.streams {
		w := &f.flows
		unread := f.unconsumed()
		if w.receiving != (!f.over && !f.heard) {
			return fmt.Errorf("call %d: the peer may send: %t, answered %t, ended %t", n, w.receiving, f.over, f.heard)
		}
		if w.window != w.left+w.owed+unread {
			return fmt.Errorf("call %d: a window of %d, with %d of credit, %d owed and %d unread", n, w.window, w.left, w.owed, unread)
		}
		if most := max(s.own.Stream, s.own.Window); w.window > most {
			return fmt.Errorf("call %d: a window of %d, at most %d", n, w.window, most)
		}
		if !h.hostile && w.out != int64(f.credit) {
			return fmt.Errorf("call %d: a credit of %d, want %d", n, w.out, f.credit)
		}
		if w.receiving {
			open++
			grown += w.window - s.own.Stream
		}
		promised += w.window
	}
	if s.promised != promised || s.streams != open {
		return fmt.Errorf("%d bytes are promised to %d streams, want %d to %d", s.promised, s.streams, promised, open)
	}
	if grown > s.own.Memory {
		return fmt.Errorf("windows have grown by %d bytes, at most %d", grown, s.own.Memory)
	}
	return nil
}

// settle lets everything come to its end. Then both ends are as in the beginning.
func (h *history) settle() error {
	for round := range 10_000 {
		busy := false
		for _, e := range h.ends {
			for n, f := range e.streams {
				for len(f.unread) > 0 {
					h.consume(e, n, f)
					busy = true
				}
				if f.over {
					delete(e.streams, n)
				}
			}
			for n, id := range e.serving {
				if round == 0 {
					break // first, all that was sent is consumed
				}
				if err := h.answer(e, n, id); err != nil {
					return err
				}
				busy = true
			}
			for e.notes > 0 {
				h.handle(e)
				busy = true
			}
			for len(e.peer.wire) > 0 {
				if err := h.deliver(e); err != nil {
					return err
				}
				busy = true
			}
		}
		for _, e := range h.ends {
			for n, f := range e.streams {
				// Nobody waits for credit for ever: the sender has nearly all of it.
				if first := e.peer.side.own.Stream; !busy && !f.finished && e.peer.streams[n] != nil && 4*f.credit < 3*first {
					return fmt.Errorf("%s: all is consumed, and call %d has a credit of %d, of %d at first", e.name, n, f.credit, first)
				}
			}
		}
		if busy || round == 0 {
			continue
		}
		for _, e := range h.ends {
			if len(e.streams)+e.side.promised+e.side.streams > 0 {
				return fmt.Errorf("%s: %d calls with streams, %d bytes are promised to %d", e.name, len(e.streams), e.side.promised, e.side.streams)
			}
			if len(e.waiting)+len(e.given)+e.side.Pending()+e.side.Unanswered() > 0 {
				return fmt.Errorf("%s: %d callers wait for ever, %d calls are pending", e.name, len(e.waiting), e.side.Pending())
			}
			if most := e.side.peer.Requests; e.side.left != most-e.peer.owed || e.peer.owed*2 > most {
				return fmt.Errorf("%s: %d of %d requests may be sent with %d owed", e.name, e.side.left, most, e.peer.owed)
			}
		}
		return nil
	}
	return errors.New("it goes on for ever")
}

// What is said of streams beyond what was agreed on is a breach, and what crosses the
// answer is none.
func TestStreamBreaches(t *testing.T) {
	const first = 10
	greeted := func(own, peer int) *Side[int, int] {
		s := New[int, int](Limits{Requests: 4, Stream: own, Window: 40, Memory: 100})
		if err := s.Greeted(Header{Kind: Greeting, Value: 4, ID: ID{Slot: uint32(peer)}}, Revision); err != nil {
			t.Fatal(err)
		}
		return s
	}
	of := Header{ID: ID{0, 7}, Flags: FromCaller}
	serving := func() *Side[int, int] {
		s := greeted(first, first)
		if err := s.Requested(of.ID, 1, new(Flows)); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, breach := range map[string]func(*Side[int, int]) error{
		"beyond the credit": func(s *Side[int, int]) error { _, err := s.Piece(of, first+1); return err },
		"empty piece":       func(s *Side[int, int]) error { _, err := s.Piece(of, 0); return err },
		"behind the end": func(s *Side[int, int]) error {
			if _, err := s.Ended(of); err != nil {
				t.Fatal(err)
			}
			_, err := s.Piece(of, 1)
			return err
		},
		"second end": func(s *Side[int, int]) error {
			if _, err := s.Ended(of); err != nil {
				t.Fatal(err)
			}
			_, err := s.Ended(of)
			return err
		},
		"no credit":      func(s *Side[int, int]) error { _, err := s.Granted(of, 0); return err },
		"endless credit": func(s *Side[int, int]) error { _, err := s.Granted(of, MaxStream); return err },
		"call that was not": func(s *Side[int, int]) error {
			_, err := s.Piece(Header{ID: ID{1, 0}, Flags: FromCaller}, 1)
			return err
		},
		"from the server": func(s *Side[int, int]) error { _, err := s.Piece(Header{ID: of.ID}, 1); return err },
		"call without streams": func(s *Side[int, int]) error {
			plain := ID{1, 0}
			if err := s.Requested(plain, 2, nil); err != nil {
				t.Fatal(err)
			}
			_, err := s.Piece(Header{ID: plain, Flags: FromCaller}, 1)
			return err
		},
	} {
		if err := breach(serving()); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []*Side[int, int]{greeted(0, first), greeted(first, 0)} {
		if err := s.Requested(of.ID, 1, new(Flows)); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("streams that one end does not take: %v", err)
		}
	}
	for name, end := range map[string]func(*Side[int, int]){
		"answered": func(s *Side[int, int]) { s.Answered(of.ID) },
		"to be answered": func(s *Side[int, int]) {
			s.Answered(of.ID)
			s.Reopen(of.ID, 1)
		},
	} {
		s := serving()
		end(s)
		if late, err := s.Piece(of, 3*first); !late || err != nil {
			t.Errorf("a piece for a call that is %s: %t, %v", name, late, err)
		}
		if s.promised != 0 || s.streams != 0 {
			t.Errorf("%d bytes are promised to %d streams of a call that is %s", s.promised, s.streams, name)
		}
	}
}

// Windows grow while the peer uses its credit up, up to the limits, and give way when
// others need room.
func TestWindows(t *testing.T) {
	s := New[int, int](Limits{Requests: 4, Stream: 10, Window: 400, Memory: 500})
	if err := s.Greeted(Header{Kind: Greeting, Value: 4, ID: ID{Slot: 10}}, Revision); err != nil {
		t.Fatal(err)
	}
	var flows [2]Flows
	of := func(i int) Header { return Header{ID: ID{Slot: uint32(i)}, Flags: FromCaller} }
	use := func(i int) { // the peer sends all that it may, and it is consumed in parts
		n := flows[i].left
		if late, err := s.Piece(of(i), n); late || err != nil {
			t.Fatal(late, err)
		}
		for n > 0 {
			part := min(n, 7)
			s.Consumed(&flows[i], part)
			n -= part
		}
	}
	for i := range flows {
		if err := s.Requested(of(i).ID, i, &flows[i]); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			use(i)
		}
		if want := []int{400, 100}[i]; flows[i].window != want {
			t.Errorf("stream %d has a window of %d bytes, want %d", i, flows[i].window, want)
		}
	}
	for range 30 {
		use(0)
		use(1)
	}
	if flows[0].window != 250 || flows[1].window != 250 || s.promised != 500 {
		t.Errorf("two streams have windows of %d and %d bytes, of %d in all", flows[0].window, flows[1].window, s.promised)
	}
}

// What was said once is not heard twice: not by the next call of the slot, and not as
// credit.
func TestSaidTwice(t *testing.T) {
	s := New[int, int](Limits{Requests: 1})
	if err := s.Greeted(Header{Kind: Greeting, Value: 2}, Revision); err != nil {
		t.Fatal(err)
	}
	first, _ := s.Begin(1, nil)
	if of, wanted, err := s.Answer(first); of != 1 || !wanted || err != nil {
		t.Fatalf("the answer reaches %d, %t: %v", of, wanted, err)
	}
	second, _ := s.Begin(2, nil)
	if second.Slot != first.Slot {
		t.Fatalf("the second call has slot %d, want %d", second.Slot, first.Slot)
	}
	if of, wanted, err := s.Answer(first); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("the first call's answer comes again and reaches %d, %t: %v", of, wanted, err)
	}
	if !s.Notify() {
		t.Fatal("there is no room for a notification")
	}
	if err := s.Credited(1); err != nil {
		t.Fatal(err)
	}
	if err := s.Credited(1); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("one notification was handled twice: %v", err)
	}
}
