package wire

import (
	"bytes"
	"errors"
	"testing"
)

func encode(p Packet, body ...byte) []byte {
	b := make([]byte, HeaderSize)
	p.Put(b)
	return append(b, body...)
}

func offerBody(o Offer) []byte {
	b := make([]byte, OfferSize)
	o.Put(b)
	return b
}

// The bytes are those that every release so far has put on the wire.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want []byte
	}{
		{"eager", encode(Packet{Kind: Eager, Flags: Starved, Credits: 0x0203, Control: 0x0405, Tag: 0x06070809, Length: 1}, 0xff),
			[]byte{1, 1, 2, 3, 4, 5, 0, 0, 6, 7, 8, 9, 0, 0, 0, 1, 0xff}},
		{"offer", offerBody(Offer{Address: 0x0102030405060708, Key: 0x090a0b0c, ID: 0x0d0e0f10, Length: 0x11, Total: 0x12, Offset: 0x13}),
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 0, 0, 0x11, 0, 0, 0, 0x12, 0, 0, 0, 0x13}},
		{"parameters", Parameters{Window: 0x0102, Control: 0x0304, Chunks: 0x0506, Receive: 0x0708090a, MaxMessage: 0x0b0c0d0e}.Append([]byte{9}),
			[]byte{9, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s: % x, want % x", c.name, c.got, c.want)
		}
	}
}

func TestCheckQueuePair(t *testing.T) {
	good := Parameters{Window: 1, Control: 1, Receive: HeaderSize + OfferSize, MaxMessage: 1}
	if err := good.CheckQueuePair(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Parameters){
		"no window":  func(p *Parameters) { p.Window = 0 },
		"no control": func(p *Parameters) { p.Control = 0 },
		"short":      func(p *Parameters) { p.Receive-- },
		"long":       func(p *Parameters) { p.Receive = MaxEager + HeaderSize + 1 },
	} {
		p := good
		change(&p)
		if err := p.CheckQueuePair(); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzPacket(f *testing.F) {
	f.Add(encode(Packet{Kind: Eager, Tag: 7, Length: 3, Credits: 2, Control: 1, Flags: Starved}, 1, 2, 3))
	f.Add(encode(Packet{Kind: Offered, Length: OfferSize}, offerBody(Offer{ID: 1, Key: 2, Address: 3, Length: 4, Total: 9, Offset: 5})...))
	f.Add(encode(Packet{Kind: Taken, Length: TakenSize}, 0, 0, 0, 1))
	f.Add(encode(Packet{Kind: Credit, Credits: 4}))
	f.Add(encode(Packet{Kind: Goodbye}))
	f.Add(encode(Packet{Kind: Asked, Length: OperationSize}, operationBody(Operation{ID: 1, Code: Get, A: 3})...))
	f.Add(encode(Packet{Kind: Answered, Length: AnswerSize + 2}, answerBody(Answer{ID: 1}, 1, 2)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, body, err := ParsePacket(b)
		credits, tag, plain := PlainEager(b)
		if want := err == nil && p.Kind == Eager && p.Flags == 0 && p.Control == 0; plain != want || plain && (credits != int(p.Credits) || tag != p.Tag) {
			t.Fatalf("%x: plain is %t, want %t, with %d credits and tag %d: %+v", b, plain, want, credits, tag, p)
		}
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if again := encode(p, body...); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
		if p.Kind != Offered {
			return
		}
		o, err := ParseOffer(body, 1<<20)
		if err != nil {
			return
		}
		if uint64(o.Offset)+uint64(o.Length) > uint64(o.Total) || o.Total > 1<<20 || o.Length == 0 {
			t.Fatalf("accepted %+v", o)
		}
		if !bytes.Equal(offerBody(o), body) {
			t.Fatalf("%x became %x", body, offerBody(o))
		}
	})
}

func FuzzParameters(f *testing.F) {
	f.Add(Parameters{Window: 8, Control: 2, Chunks: 4, Receive: 1 << 14, MaxMessage: 1 << 20}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseParameters(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if p2, err := ParseParameters(p.Append(nil)); err != nil || p2 != p {
			t.Fatalf("%+v became %+v, %v", p, p2, err)
		}
	})
}
