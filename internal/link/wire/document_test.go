package wire

import (
	"bytes"
	"testing"

	"github.com/verbena-data/verbena/internal/pages"
)

// The examples of docs/endpoints.md and docs/onesided.md are what this package makes, and reads.
func TestDocumentedExamples(t *testing.T) {
	const endpoints, onesided = "../../../docs/endpoints.md", "../../../docs/onesided.md"
	packet := func(p Packet, body func([]byte)) []byte {
		b := make([]byte, HeaderSize+p.Length)
		p.Put(b)
		if body != nil {
			body(b[HeaderSize:])
		}
		return b
	}
	parameters := Parameters{Window: 4, Control: 2, Chunks: 4, Receive: 32<<10 + 64, MaxMessage: 64 << 20}
	offer := Offer{ID: 3, Key: 0x1234, Address: 0x7f0000001000, Length: 512 << 10, Total: 1 << 20, Offset: 512 << 10}
	operation := Operation{ID: 2, Code: FetchAdd, Exposure: 0x0102030405060708, Offset: 64, A: 1}
	answer := Answer{ID: 2}
	was := []byte{0, 0, 0, 0, 0, 0, 0, 41}
	for _, c := range []struct {
		page, name string
		made       []byte
	}{
		{endpoints, "Parameters of an end", parameters.Append(nil)},
		{endpoints, "An eager message", packet(Packet{Kind: Eager, Credits: 1, Tag: 7, Length: 2}, func(b []byte) { copy(b, "hi") })},
		{endpoints, "An offer", packet(Packet{Kind: Offered, Flags: Starved, Tag: 7, Length: OfferSize}, offer.Put)},
		{endpoints, "Taken", packet(Packet{Kind: Taken, Length: TakenSize}, func(b []byte) { PutTaken(b, offer.ID) })},
		{endpoints, "A credit message", packet(Packet{Kind: Credit, Credits: 2, Control: 1}, nil)},
		{onesided, "An operation", packet(Packet{Kind: Asked, Length: OperationSize}, operation.Put)},
		{onesided, "Its answer", packet(Packet{Kind: Answered, Length: AnswerSize + 8}, func(b []byte) { answer.Put(b); copy(b[AnswerSize:], was) })},
	} {
		b := pages.Example(t, c.page, c.name)
		if !bytes.Equal(c.made, b) {
			t.Errorf("%s is\n%x\nand the page has\n%x", c.name, c.made, b)
		}
	}
	if p, err := ParseParameters(pages.Example(t, endpoints, "Parameters of an end")); err != nil || p != parameters || p.CheckQueuePair() != nil {
		t.Errorf("parameters: %+v, %v", p, err)
	}
	_, body, err := ParsePacket(pages.Example(t, endpoints, "An offer"))
	if err != nil {
		t.Fatal(err)
	}
	if o, err := ParseOffer(body, 1<<20); err != nil || o != offer {
		t.Errorf("an offer: %+v, %v", o, err)
	}
	if _, body, err = ParsePacket(pages.Example(t, onesided, "An operation")); err != nil {
		t.Fatal(err)
	}
	if o, err := ParseOperation(body, 0); err != nil || o != operation {
		t.Errorf("an operation: %+v, %v", o, err)
	}
	if _, body, err = ParsePacket(pages.Example(t, onesided, "Its answer")); err != nil {
		t.Fatal(err)
	}
	if a, data, err := ParseAnswer(body); err != nil || a != answer || !bytes.Equal(data, was) {
		t.Errorf("an answer: %+v, %x, %v", a, data, err)
	}
}
