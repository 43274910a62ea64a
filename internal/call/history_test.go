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

// TestHistories drives both ends at random: calls, notifications, requests that could
// not be sent, callers that give up, cancels that meet their answers, the death of an
// end. A model knows every call by a number and who has to hear of it. A million:
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
}

type end struct {
	name    string
	side    *Side[int, int]
	peer    *end
	wire    []packet
	waiting map[int]ID // calls by number that a caller waits for
	given   map[int]bool
	serving map[int]ID
	notes   int // notifications to be handled
	owed    int // handled, by the model's count
	outOf   int // requests of this end that count, by the model's count
	dead    bool
}

func newHistory(seed uint64) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 11))}
	for i := range h.ends {
		own := Limits{Requests: 1 + h.rng.IntN(5), Stream: h.rng.IntN(100)}
		h.ends[i] = &end{name: string('A' + byte(i)), side: New[int, int](own), waiting: map[int]ID{}, given: map[int]bool{}, serving: map[int]ID{}}
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
	p := packet{h: Header{Kind: Kind(1 + h.rng.IntN(10)), Value: uint32(h.rng.IntN(4)), ID: ID{uint32(h.rng.IntN(4)), uint32(h.rng.IntN(3))}}, tag: uint32(h.rng.IntN(3)), number: -1}
	h.ends[1].wire = append(h.ends[1].wire, p)
}

func (h *history) step(e *end) error {
	s := e.side
	switch h.rng.IntN(9) {
	case 0, 1: // a call
		h.number++
		id, ok := s.Begin(h.number)
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
		e.wire = append(e.wire, packet{h: Header{Kind: Request, ID: id}, number: h.number})
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
	default:
		if len(e.peer.wire) > 0 {
			return h.deliver(e)
		}
	}
	return nil
}

func (h *history) answer(e *end, n int, id ID) error {
	if !e.side.Answered(id) {
		return fmt.Errorf("call %d cannot be answered", n)
	}
	if e.side.Answered(id) {
		return fmt.Errorf("call %d is answered twice", n)
	}
	delete(e.serving, n)
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
		if err := s.Requested(p.h.ID, p.number); err != nil {
			return err
		}
		if p.number < 0 { // of the liar
			h.number++
			p.number = h.number
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
			return nil
		}
		if wanted != (e.waiting[p.number] == p.h.ID && !e.given[p.number]) || wanted && n != p.number {
			return fmt.Errorf("call %d hears the answer to %d: %t", n, p.number, wanted)
		}
		delete(e.waiting, p.number)
		delete(e.given, p.number)
	case Cancel:
		n, ok := s.Served(p.h.ID)
		if id, serving := e.serving[p.number]; p.number >= 0 && (ok != (serving && id == p.h.ID) || ok && n != p.number) {
			return fmt.Errorf("the cancel of call %d finds %d, %t", p.number, n, ok)
		}
	case Handled:
		if err := s.Credited(p.tag); err != nil {
			return err
		}
		e.outOf -= int(p.tag)
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
	return err
}

// settle lets everything come to its end. Then both ends are as in the beginning.
func (h *history) settle() error {
	for range 10_000 {
		busy := false
		for _, e := range h.ends {
			for n, id := range e.serving {
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
		if busy {
			continue
		}
		for _, e := range h.ends {
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

// What was said once is not heard twice: not by the next call of the slot, and not as
// credit.
func TestSaidTwice(t *testing.T) {
	s := New[int, int](Limits{Requests: 1})
	if err := s.Greeted(Header{Kind: Greeting, Value: 2}, Revision); err != nil {
		t.Fatal(err)
	}
	first, _ := s.Begin(1)
	if of, wanted, err := s.Answer(first); of != 1 || !wanted || err != nil {
		t.Fatalf("the answer reaches %d, %t: %v", of, wanted, err)
	}
	second, _ := s.Begin(2)
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
