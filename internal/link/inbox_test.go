package link

import (
	"bytes"
	"testing"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// A peer that begins long messages again and again, while the application does not
// receive or this side is closing, does not make the inbox grow.
func TestInboxIsBounded(t *testing.T) {
	for _, closing := range []bool{false, true} {
		l := Limits{Receive: 100, Window: 4, MaxWindow: 4, Chunks: 2, MaxMessage: 1000, Commit: 1000}
		m := New[int](l, make([]byte, l.Places()*PlaceSize))
		if err := m.Start(l.Parameters()); err != nil {
			t.Fatal(err)
		}
		receive := func(p wire.Packet, body []byte) {
			t.Helper()
			p.Length = uint32(len(body))
			b := make([]byte, wire.HeaderSize)
			p.Put(b)
			if _, err := m.Received(append(b, body...), 0); err != nil {
				t.Fatal(err)
			}
			for _, p := range m.Posts() {
				m.Sent(p.Seq)
			}
			m.Posts()
		}
		receive(wire.Packet{Kind: wire.Eager, Tag: 1}, make([]byte, 10)) // nobody takes it
		if closing {
			m.Close()
		}
		for i := range 10_000 {
			total := uint32(500)
			if closing && i%2 == 0 {
				total = 10 // a whole one
			}
			o := wire.Offer{Length: 10, Total: total}
			body := make([]byte, wire.OfferSize)
			o.Put(body)
			m.credits.peers = 1 // closing gives none back; a peer may have a thousand
			receive(wire.Packet{Kind: wire.Offered, Control: uint16(m.credits.control)}, body)
		}
		if n := len(m.inbox.ring); n > 16 {
			t.Errorf("closing %t: the inbox has grown to %d places", closing, n)
		}
	}
}

// Confirmations are held while the peer has offered enough besides, 4 at most, and go together.
// Nothing is held that anything else ends.
func TestHold(t *testing.T) {
	l := Limits{Receive: 100, Window: 40, MaxWindow: 40, Chunks: 8, MaxMessage: 1 << 20, Commit: 1 << 20}
	// start returns an end to which so many messages of 512 KiB have been offered. It has
	// memory for the first of them.
	start := func(offers int) (*Machine[int], func() (reads, confirmations []uint32)) {
		m := New[int](l, make([]byte, l.Places()*PlaceSize))
		if err := m.Start(l.Parameters()); err != nil {
			t.Fatal(err)
		}
		posts := func() (reads, confirmations []uint32) {
			for _, p := range m.Posts() {
				if p.Read {
					reads = append(reads, p.Seq)
				} else {
					confirmations = append(confirmations, p.Seq)
				}
			}
			return reads, confirmations
		}
		for i := range offers {
			o := wire.Offer{ID: uint32(i), Length: 512 << 10, Total: 512 << 10}
			b := make([]byte, wire.HeaderSize+wire.OfferSize)
			wire.PutPacket(b, wire.Offered, 0, 0, 0, 1, wire.OfferSize)
			o.Put(b[wire.HeaderSize:])
			if _, err := m.Received(b, 0); err != nil {
				t.Fatal(err)
			}
		}
		return m, posts
	}
	// next gives the next message memory and tells how many confirmations its Read brings.
	next := func(m *Machine[int], posts func() (_, _ []uint32), hold bool) int {
		t.Helper()
		w, ok := m.Wanted()
		if !ok {
			t.Fatal("no message waits for memory")
		}
		m.Provide(w.Message, 0, w.Size)
		reads, early := posts()
		if len(reads) != 1 {
			t.Fatalf("%d Reads", len(reads))
		}
		if hold && m.MayHold() {
			m.Hold()
		}
		m.Sent(reads[0])
		_, confirmations := posts()
		return len(early) + len(confirmations)
	}
	m, posts := start(8)
	for i, want := range []int{0, 0, 0, 4, 0, 0, 3, 1} { // 4 are held at most; behind the 7th, 512 KiB are left
		if n := next(m, posts, true); n != want {
			t.Errorf("Read %d brings %d confirmations, want %d", i, n, want)
		}
		if m.Holding() != (want == 0) {
			t.Errorf("behind Read %d, Holding is %t", i, m.Holding())
		}
	}
	m, posts = start(8)
	if n := next(m, posts, false); n != 1 || m.Holding() {
		t.Errorf("%d confirmations where nobody asked to hold them", n)
	}
	for name, end := range map[string]func(m *Machine[int]){
		"Tell":  (*Machine[int]).Tell,
		"Close": (*Machine[int]).Close,
		"the peer's goodbye": func(m *Machine[int]) {
			b := make([]byte, wire.HeaderSize)
			wire.PutPacket(b, wire.Goodbye, 0, 0, 0, 0, 0)
			if _, err := m.Received(b, 0); err != nil {
				t.Fatal(err)
			}
		},
		"a message that was viewed": func(m *Machine[int]) {
			w, ok := m.Wanted()
			if !ok || !w.Whole {
				t.Fatalf("nothing can be viewed: %+v", w)
			}
			m.Viewed(m.View(w, 0))
		},
		"credits that are due": func(m *Machine[int]) { m.Grant(40) },
	} {
		m, posts := start(4)
		if n := next(m, posts, true); n != 0 || !m.Holding() {
			t.Fatalf("%d confirmations, Holding is %t", n, m.Holding())
		}
		end(m)
		if _, confirmations := posts(); len(confirmations) == 0 || m.Holding() {
			t.Errorf("%s does not end what is held", name)
		}
	}
}

// What goes past the send queue does not overtake what is to be posted, and its header is
// that of a message that is posted.
func TestAhead(t *testing.T) {
	l := Limits{Receive: 100, Window: 4, MaxWindow: 4, Chunks: 2, MaxMessage: 1000, Commit: 1000}
	start := func() (*Machine[int], []byte) {
		places := make([]byte, l.Places()*PlaceSize)
		m := New[int](l, places)
		if err := m.Start(l.Parameters()); err != nil {
			t.Fatal(err)
		}
		m.MaySend()
		m.credits.owed, m.credits.owedControl, m.credits.starved = 2, 1, true // to be told with the next message
		m.credits.peers -= 2
		return m, places
	}
	posted, places := start()
	posted.Eager(7, make([]byte, 50), false)
	want := places[:wire.HeaderSize]
	if ahead := make([]byte, wire.HeaderSize); posted.Ahead(7, 50, ahead) {
		t.Error("a message overtakes one that is to be posted")
	}
	m, _ := start()
	before := m.credits
	got := make([]byte, wire.HeaderSize)
	if !m.Ahead(7, 50, got) || !bytes.Equal(got, want) {
		t.Errorf("header % x, that of a post is % x", got, want)
	}
	if m.credits != before || len(m.Posts()) > 0 {
		t.Errorf("a message that has not gone changes %+v to %+v", before, m.credits)
	}
	if m.Gone(); m.credits != posted.credits || m.queue.head != m.queue.tail {
		t.Errorf("credits %+v, by a post %+v", m.credits, posted.credits)
	}
}
