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
