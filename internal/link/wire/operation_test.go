package wire

import (
	"bytes"
	"errors"
	"testing"
)

func operationBody(o Operation) []byte {
	b := make([]byte, OperationSize)
	o.Put(b)
	return b
}

func answerBody(a Answer, data ...byte) []byte {
	b := make([]byte, AnswerSize)
	a.Put(b)
	return append(b, data...)
}

// The bytes are those that every release so far has put on the wire.
func TestOperationLayout(t *testing.T) {
	o := operationBody(Operation{ID: 0x01020304, Code: CompareSwap, Exposure: 0x05060708090a0b0c, Offset: 0x0d0e0f1011121314, A: 0x15161718191a1b1c, B: 0x1d1e1f2021222324})
	if want := []byte{
		1, 2, 3, 4, 2, 0, 0, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
		21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36,
	}; !bytes.Equal(o, want) {
		t.Errorf("% x", o)
	}
	if a := answerBody(Answer{ID: 0x01020304, Verdict: 5}, 9); !bytes.Equal(a, []byte{1, 2, 3, 4, 5, 0, 0, 0, 9}) {
		t.Errorf("% x", a)
	}
}

func FuzzOperation(f *testing.F) {
	f.Add(operationBody(Operation{ID: 1, Code: Get, Exposure: 2, Offset: 3, A: 4}))
	f.Add(operationBody(Operation{Code: CompareSwap, A: 4, B: 5}))
	f.Add(operationBody(Operation{Code: FetchAdd, A: 4}))
	f.Add(answerBody(Answer{ID: 7, Verdict: 1}, 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= AnswerSize {
			a, data, err := ParseAnswer(b)
			switch {
			case err != nil && !errors.Is(err, ErrProtocol):
				t.Fatal(err)
			case err == nil && !bytes.Equal(answerBody(a, data...), b):
				t.Fatalf("%x became %+v", b, a)
			}
		}
		if len(b) != OperationSize {
			return
		}
		o, err := ParseOperation(b, 100)
		switch {
		case err != nil && !errors.Is(err, ErrProtocol):
			t.Fatal(err)
		case err == nil && (o.Code == Get && (o.A == 0 || o.A > 100) || !bytes.Equal(operationBody(o), b)):
			t.Fatalf("%x became %+v", b, o)
		}
	})
}
