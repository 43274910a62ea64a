package link

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// TestTranscripts runs the scripts of testdata; -rewrite writes what they print
// anew. The commands:
//
//	open [window=N] [max-window=N] [chunks=N] [answers=N] [receive=N] [max=N] [commit=N] [operations=N]
//	     [peer-window=N] [peer-chunks=N] [peer-receive=N]   the peer's parameters
//	send TAG LENGTH [soon]      an eager message, if it may be sent
//	offer TAG AT LENGTH TOTAL   a part of a long message, if it may be offered
//	peer                        a line each, what arrives:
//	    eager TAG LENGTH | offer ID TAG AT LENGTH TOTAL | taken ID | credit | goodbye
//	    each with [credits=N] [control=N] [starved]
//	operate N                   one-sided operations, if they may be posted
//	done SEQ                    the request with this sequence number has completed
//	next                        the application receives
//	wanted                      which message waits for memory
//	provide [SIZE]              gives it memory
//	view                        takes it as it lies in the peer's memory
//	viewed OFFER                has used it there
//	expect N                    receives for answers are there
//	release | grant N | withdraw | close
//	state                       credits and the like
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			s.command(t, d)
			s.posts()
			if s.out.Len() == 0 {
				return "ok\n"
			}
			return s.out.String()
		})
	})
}

type script struct {
	m      *Machine[string]
	places []byte
	limits Limits
	out    strings.Builder
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func option(t *testing.T, d *datadriven.TestData, name string, value int) int {
	d.MaybeScanArgs(t, name, &value)
	return value
}

func number(t *testing.T, word string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(word, &n); err != nil {
		t.Fatalf("%q is no number", word)
	}
	return n
}

func (s *script) command(t *testing.T, d *datadriven.TestData) {
	var words []int
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 && a.Key != "soon" {
			words = append(words, number(t, a.Key))
		}
	}
	switch d.Cmd {
	case "open":
		s.limits = Limits{
			Receive: option(t, d, "receive", 100), Window: option(t, d, "window", 2), Chunks: option(t, d, "chunks", 2),
			MaxMessage: option(t, d, "max", 1000), Commit: option(t, d, "commit", 1000),
		}
		s.limits.Operations = option(t, d, "operations", 0)
		s.limits.MaxWindow = option(t, d, "max-window", s.limits.Window)
		s.limits.Answers = option(t, d, "answers", s.limits.AllAnswers())
		s.places = make([]byte, s.limits.Places()*PlaceSize)
		s.m = New[string](s.limits, s.places)
		err := s.m.Start(wire.Parameters{
			Window: uint16(option(t, d, "peer-window", 2)), Control: ControlReceives, Chunks: uint16(option(t, d, "peer-chunks", 2)),
			Receive: uint32(option(t, d, "peer-receive", 100)), MaxMessage: 1000,
		})
		if err != nil {
			s.printf("%v", err)
		}
	case "send":
		if !s.m.MaySend() {
			s.printf("may not, lacks %d", s.m.Lacks())
			return
		}
		s.m.Eager(uint32(words[0]), make([]byte, words[1]), d.HasArg("soon"))
	case "offer":
		if !s.m.MayOffer() {
			s.printf("may not, lacks %d", s.m.Lacks())
			return
		}
		id := s.m.Offer(uint32(words[0]), wire.Offer{Offset: uint32(words[1]), Length: uint32(words[2]), Total: uint32(words[3])})
		s.printf("id %d", id)
	case "peer":
		for line := range strings.SplitSeq(d.Input, "\n") {
			s.arrives(t, line)
			s.posts()
		}
	case "operate":
		if !s.m.MayOperate(words[0]) {
			s.printf("may not")
			return
		}
		s.printf("from %d on", s.m.Operate(words[0]))
	case "done":
		from, to, ok := s.m.Sent(uint32(words[0]))
		s.printf("%d to %d, %t", from, to, ok)
	case "next":
		in, ok := s.m.Next(func(handle string) { s.printf("freed %s", handle) })
		if ok {
			s.printf("%q: tag %d, %d bytes, long %t", in.Handle, in.Tag, in.Length, in.Long)
		} else {
			s.printf("nothing; ready %t", s.m.Ready())
		}
	case "wanted":
		if w, ok := s.m.Wanted(); ok {
			s.printf("message %d has %d bytes, needs %d, best %d, first %t", w.Message, w.Have, w.Need, w.Size, w.First)
		} else {
			s.printf("none")
		}
	case "provide":
		w, ok := s.m.Wanted()
		if !ok {
			s.printf("none is wanted")
			return
		}
		size := w.Size
		if len(words) > 0 {
			size = words[0]
		}
		s.m.Provide(w.Message, fmt.Sprintf("memory of %d", size), size)
	case "view":
		w, ok := s.m.Wanted()
		if !ok || !w.Whole {
			s.printf("none may be viewed")
			return
		}
		offer := s.m.View(w, fmt.Sprintf("view of %d bytes at %d of key %d", w.Total, w.Address, w.Key))
		s.printf("offer %d", offer)
	case "viewed":
		s.m.Viewed(uint32(words[0]))
	case "expect":
		s.m.Expect(words[0])
	case "release":
		s.m.Released()
	case "grant":
		s.m.Grant(words[0])
	case "withdraw":
		s.m.Withdraw()
	case "close":
		s.m.Close()
	case "state":
		s.printf("credits %d, window %d, stopped %t, offers open %d, finished %t, goodbye out %t, peer's said %t",
			s.m.credits.left, s.m.Window(), s.m.Stopped(), s.m.OffersOpen(), s.m.Finished(), s.m.GoodbyeOut(), s.m.PeerSaidGoodbye())
	default:
		t.Fatalf("no command %q", d.Cmd)
	}
}

// arrives feeds the machine a message of the peer.
func (s *script) arrives(t *testing.T, line string) {
	var p wire.Packet
	var words []string
	for _, w := range strings.Fields(line) {
		switch name, value, _ := strings.Cut(w, "="); name {
		case "credits":
			p.Credits = uint16(number(t, value))
		case "control":
			p.Control = uint16(number(t, value))
		case "starved":
			p.Flags = wire.Starved
		default:
			words = append(words, w)
		}
	}
	n := make([]int, len(words))
	for i := range words[1:] {
		n[i] = number(t, words[1+i])
	}
	var body []byte
	switch words[0] {
	case "eager":
		p.Kind, p.Tag, body = wire.Eager, uint32(n[0]), make([]byte, n[1])
	case "offer":
		o := wire.Offer{ID: uint32(n[0]), Offset: uint32(n[2]), Length: uint32(n[3]), Total: uint32(n[4]), Address: uint64(1000 + n[2]), Key: 7}
		p.Kind, p.Tag, body = wire.Offered, uint32(n[1]), make([]byte, wire.OfferSize)
		o.Put(body)
	case "taken":
		p.Kind, body = wire.Taken, make([]byte, wire.TakenSize)
		wire.PutTaken(body, uint32(n[0]))
	case "credit":
		p.Kind = wire.Credit
	case "goodbye":
		p.Kind = wire.Goodbye
	default:
		t.Fatalf("no message %q", words[0])
	}
	p.Length = uint32(len(body))
	b := make([]byte, wire.HeaderSize)
	p.Put(b)
	effects, err := s.m.Received(append(b, body...), line)
	switch {
	case err != nil:
		s.printf("refused: %v", err)
		return
	case effects.Freed:
		s.printf("freed offer %d", effects.FreedID)
	}
	if effects.Starved {
		s.printf("starved")
	}
}

// posts prints what the machine wants posted.
func (s *script) posts() {
	if s.m == nil {
		return
	}
	for _, p := range s.m.Posts() {
		signaled := ""
		if p.Signaled {
			signaled = ", signaled"
		}
		if p.Read {
			s.printf("-> %d: read %d bytes at %d of key %d into message %d at %d%s", p.Seq, p.Length, p.Address, p.Key, p.Message, p.Offset, signaled)
			continue
		}
		at := int(p.Seq%uint32(s.limits.Places())) * PlaceSize
		b := append([]byte(nil), s.places[at:at+p.Size]...)
		h, body, err := wire.ParsePacket(append(b, make([]byte, p.Payload)...))
		if err != nil {
			s.printf("-> %d: %v", p.Seq, err)
			continue
		}
		what := map[wire.Kind]string{wire.Eager: "eager", wire.Offered: "offer", wire.Taken: "taken", wire.Credit: "credit", wire.Goodbye: "goodbye"}[h.Kind]
		switch h.Kind {
		case wire.Eager:
			what += fmt.Sprintf(" tag %d, %d bytes", h.Tag, len(body))
		case wire.Offered:
			o, err := wire.ParseOffer(body, wire.MaxMessage)
			what += fmt.Sprintf(" %d tag %d, %d to %d of %d %v", o.ID, h.Tag, o.Offset, o.End(), o.Total, err)
		case wire.Taken:
			what += fmt.Sprintf(" %d", wire.TakenID(body))
		}
		if h.Credits > 0 {
			what += fmt.Sprintf(", credits %d", h.Credits)
		}
		if h.Control > 0 {
			what += fmt.Sprintf(", control %d", h.Control)
		}
		if h.Flags&wire.Starved != 0 {
			what += ", starved"
		}
		s.printf("-> %d: %s%s", p.Seq, what, signaled)
	}
}
