package hello

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/verbena-data/verbena/internal/pages"
)

// The examples of docs/hello.md are what this package makes, and reads.
func TestDocumentedExamples(t *testing.T) {
	const page = "../../docs/hello.md"
	h := Hello{Least: 1, Greatest: 1, Service: "echo/1", Candidates: []Candidate{{Name: "shm"}, {Name: "tcp"}}}
	made, err := h.Encode()
	if b := pages.Example(t, page, "A hello"); err != nil || !bytes.Equal(made, b) {
		t.Errorf("the hello is\n%x, %v\nand the page has\n%x", made, err, b)
	} else if got, err := ParseHello(b); err != nil || !reflect.DeepEqual(normal(got), normal(h)) {
		t.Errorf("the hello reads as %+v, %v", got, err)
	}
	token := make([]byte, 16)
	for i := range token {
		token[i] = byte(i)
	}
	for name, a := range map[string]Answer{
		"An acceptance": {Least: 1, Greatest: 1, Accept: &Accept{Name: "shm", Token: token}},
		"A refusal":     answers["answer-v1-refusal"],
	} {
		made, err := a.Encode()
		if b := pages.Example(t, page, name); err != nil || !bytes.Equal(made, b) {
			t.Errorf("%s is\n%x, %v\nand the page has\n%x", name, made, err, b)
		} else if got, err := ParseAnswer(b); err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%s reads as %+v, %v", name, got, err)
		}
	}
}
