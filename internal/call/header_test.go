package call

import (
	"bytes"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
)

func encode(h Header, payload ...byte) []byte {
	b := make([]byte, HeaderSize)
	h.Put(b)
	return append(b, payload...)
}

// The bytes are those of docs/calls.md.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name string
		h    Header
		want []byte
	}{
		{"request", Header{Kind: Request, Flags: Streams, Value: 0x01020304, ID: ID{0x05060708, 0x090a0b0c}},
			[]byte{2, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
		{"reply", Header{Kind: Reply, ID: ID{7, 0x80000001}}, []byte{4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0x80, 0, 0, 1}},
		{"grant", Header{Kind: Grant, Flags: FromCaller, ID: ID{1, 2}}, []byte{10, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2}},
	} {
		if got := encode(c.h); !bytes.Equal(got, c.want) {
			t.Errorf("%s: % x, want % x", c.name, got, c.want)
		}
	}
	h, tag := New[int, int](Limits{Requests: 256, Stream: 1 << 18}).Greeting()
	if got, want := encode(h), []byte{1, 0, 0, 0, 0, 0, 1, 0, 0, 4, 0, 0, 0, 0, 0, 0}; !bytes.Equal(got, want) || tag != 1 {
		t.Errorf("greeting: % x with tag %d, want % x with 1", got, tag, want)
	}
}

func TestRefused(t *testing.T) {
	for name, b := range map[string][]byte{
		"short":                 encode(Header{Kind: Reply})[:HeaderSize-1],
		"no kind":               encode(Header{}),
		"unknown kind":          encode(Header{Kind: Grant + 1}),
		"reserved":              {4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"flag":                  encode(Header{Kind: Reply, Flags: 1}),
		"a flag of another one": encode(Header{Kind: Request, Flags: FromCaller}),
		"payload":               encode(Header{Kind: Cancel}, 1),
	} {
		if _, err := Parse(b); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for kind := Greeting; kind <= Grant; kind++ {
		f.Add(encode(Header{Kind: kind, Value: 9, ID: ID{1, 2}}))
	}
	f.Add(encode(Header{Kind: Request, Flags: Streams}, 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Parse(b)
		if err != nil {
			if !errors.Is(err, wire.ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if again := encode(h); !bytes.Equal(again, b[:HeaderSize]) {
			t.Fatalf("% x was read as %+v, which is written as % x", b[:HeaderSize], h, again)
		}
	})
}

func TestLeft(t *testing.T) {
	for d, want := range map[time.Duration]uint32{
		-time.Second: 1, 0: 1, 1: 1, time.Microsecond: 1, time.Microsecond + 1: 2, time.Second: 1e6,
		math.MaxUint32 * time.Microsecond: math.MaxUint32, math.MaxUint32*time.Microsecond + 1: 0, math.MaxInt64 - time.Microsecond: 0,
	} {
		if got := Left(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
	if Left(math.MaxInt64) != 0 {
		t.Error("the longest time does not mean for ever")
	}
}
