package call

import (
	"bytes"
	"testing"

	"github.com/verbena-data/verbena/internal/pages"
)

// The examples of docs/calls.md are what this package makes, and reads.
func TestDocumentedExamples(t *testing.T) {
	const page = "../../docs/calls.md"
	for _, c := range []struct {
		name    string
		header  Header
		payload string
	}{
		{"A greeting", Header{Kind: Greeting, Value: 256, ID: ID{Slot: 64 << 10}}, ""},
		{"A request", Header{Kind: Request, Value: 1_500_000, ID: ID{Slot: 5, Generation: 2}}, "ping"},
		{"Its reply", Header{Kind: Reply, ID: ID{Slot: 5, Generation: 2}}, "pong"},
		{"A piece of its stream", Header{Kind: Data, Flags: FromCaller, ID: ID{Slot: 5, Generation: 2}}, "abc"},
	} {
		b := pages.Example(t, page, c.name)
		if made := append(c.header.Append(nil), c.payload...); !bytes.Equal(made, b) {
			t.Errorf("%s is\n%x\nand the page has\n%x", c.name, made, b)
		}
		if h, err := Parse(b); err != nil || h != c.header {
			t.Errorf("%s: %+v, %v", c.name, h, err)
		}
	}
}
