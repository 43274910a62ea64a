package link

import (
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
