package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// The layout is docs/shuffle.md's: vectors that other implementations can be held to.
func TestVectors(t *testing.T) {
	block, part := make([]byte, HeaderSize), make([]byte, PartSize)
	(&Header{Length: 0, Sequence: 7, Offset: 64, Receiver: 3, Summed: true, Parts: 2}).Put(block)
	SetSum(block, 0xdeadbeef)
	(&Part{Sender: 5, Flags: Fragment | First, Length: 1000, Records: 6}).Put(part)
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"hello", (&Hello{Rank: 1, Size: 3, Threads: 4, Lanes: 2, Page: 8192, Pages: 9, MaxRecord: 1 << 26, OneSided: true, Token: []byte{9, 8}}).Append(nil),
			"56534846 0004 0001 00000001 00000003 00000004 00000002 00002000 00000009 0000000004000000 00000002 0908"},
		{"entry", Entry{Kind: Filled, Receiver: 3, Offset: 64, Length: 1000}.Append(nil), "01 00 0003 00000040 000003e8"},
		{"header", block, "deadbeef 00000000 00000007 00000040 0003 01 00 00000002"},
		{"part", part, "0005 03 00 000003e8 00000006"},
		{"totals", (&Totals{Records: 1, Bytes: 2, Parts: 3}).Append(nil), "0000000000000001 0000000000000002 00000003"},
		{"abort", (&Abort{Kind: AbortedByLoss, Rank: 2, Reason: "gone"}).Append(nil), "01000000 00000002 676f6e65"},
		{"gather", AppendGather(nil, 1, []byte("x")), "00000001 78"},
	} {
		if want := strings.ReplaceAll(c.want, " ", ""); hex.EncodeToString(c.got) != want {
			t.Errorf("%s: %x, want %s", c.name, c.got, want)
		}
	}
}

func TestLongReasonIsCutAtACharacter(t *testing.T) {
	a, err := ParseAbort((&Abort{Reason: strings.Repeat("ä", MaxReason)}).Append(nil))
	if err != nil || len(a.Reason) < MaxReason-1 || strings.Trim(a.Reason, "ä") != "" {
		t.Errorf("%d bytes, %v", len(a.Reason), err)
	}
}

// What is malformed is refused.
func TestRefused(t *testing.T) {
	hello := (&Hello{Size: 1, Threads: 1, Lanes: 1, Page: 1024, Pages: 3, MaxRecord: 1}).Append(nil)
	entry := Entry{Kind: Free, Length: 64}.Append(nil)
	header, part := make([]byte, HeaderSize), make([]byte, PartSize)
	(&Header{}).Put(header)
	(&Part{}).Put(part)
	change := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	parse := map[string]func([]byte) error{
		"hello":  func(b []byte) error { _, err := ParseHello(b); return err },
		"entry":  func(b []byte) error { _, _, err := ParseEntry(b); return err },
		"header": func(b []byte) error { _, _, _, err := ParseHeader(b); return err },
		"part":   func(b []byte) error { _, _, _, err := ParsePart(b); return err },
		"totals": func(b []byte) error { _, err := ParseTotals(b); return err },
		"abort":  func(b []byte) error { _, err := ParseAbort(b); return err },
		"gather": func(b []byte) error { _, _, err := ParseGather(b); return err },
	}
	for _, good := range []struct {
		what string
		b    []byte
	}{{"hello", hello}, {"entry", entry}, {"header", header}, {"part", part}} {
		if err := parse[good.what](good.b); err != nil {
			t.Errorf("%s: %v", good.what, err)
		}
	}
	for _, bad := range []struct {
		what string
		b    []byte
	}{
		{"hello", hello[:43]}, {"hello", append(bytes.Clone(hello), 0)}, {"hello", change(hello, 0, 'v')}, {"hello", change(hello, 5, 1)},
		{"hello", change(hello, 7, 2)}, {"hello", change(hello, 11, 1)}, {"hello", change(hello, 15, 0)}, {"hello", change(hello, 19, 0)},
		{"hello", change(hello, 23, 0)}, {"hello", change(hello, 23, 2)}, {"hello", change(hello, 26, 0)}, {"hello", change(hello, 27, 1)}, {"hello", change(hello, 25, 32)},
		{"hello", change(hello, 31, 0)}, {"hello", change(hello, 28, 1)}, {"hello", change(hello, 29, 255)}, {"hello", change(hello, 39, 0)}, {"hello", change(hello, 43, 1)},
		{"entry", entry[:11]}, {"entry", change(entry, 0, 0)}, {"entry", change(entry, 0, 3)}, {"entry", change(entry, 1, 1)}, {"entry", change(entry, 11, 0)},
		{"entry", change(entry, 4, 255)}, {"entry", change(entry, 8, 2)}, {"entry", Entry{Kind: Filled, Length: HeaderSize - 1}.Append(nil)},
		{"header", header[:23]}, {"header", change(header, 7, 1)}, {"header", change(header, 18, 2)}, {"header", change(header, 19, 1)},
		{"part", part[:11]}, {"part", change(part, 2, 8)}, {"part", change(part, 2, First)}, {"part", change(part, 2, End|Fragment)}, {"part", change(part, 3, 1)},
		{"part", change(part, 7, 1)}, {"totals", make([]byte, 19)}, {"totals", make([]byte, 21)},
		{"abort", make([]byte, 7)}, {"abort", change(make([]byte, 8), 0, 3)}, {"abort", change(make([]byte, 8), 3, 1)}, {"abort", change(make([]byte, 8), 4, 1)},
		{"abort", append(make([]byte, 8), 0xff)}, {"abort", make([]byte, 8+MaxReason+1)},
		{"gather", make([]byte, 3)}, {"gather", make([]byte, 4+MaxGather+1)},
	} {
		if err := parse[bad.what](bad.b); !errors.Is(err, ErrFormat) {
			t.Errorf("%s %x: %v", bad.what, bad.b[:min(len(bad.b), 64)], err)
		}
	}
}

// Whatever comes, nothing panics, and what is taken is what would be sent.
func FuzzDecoders(f *testing.F) {
	f.Add(uint8(0), (&Hello{Size: 1, Threads: 1, Lanes: 1, Page: 1024, Pages: 3, MaxRecord: 1, Token: make([]byte, 40)}).Append(nil))
	f.Add(uint8(1), Entry{Kind: Filled, Receiver: 2, Length: 99}.Append(nil))
	f.Add(uint8(2), make([]byte, HeaderSize))
	f.Add(uint8(3), make([]byte, TotalsSize))
	f.Add(uint8(4), make([]byte, PartSize))
	f.Add(uint8(5), (&Abort{Kind: 1, Rank: 2, Reason: "r"}).Append(nil))
	f.Add(uint8(6), AppendGather(nil, 3, []byte("data")))
	f.Fuzz(func(t *testing.T, what uint8, b []byte) {
		same := func(got []byte, err error) {
			if err != nil && !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			if err == nil && !bytes.Equal(got, b) {
				t.Fatalf("%x became %x", b, got)
			}
		}
		switch what % 7 {
		case 0:
			h, err := ParseHello(b)
			same(h.Append(nil), err)
		case 1:
			for rest := b; len(rest) > 0; {
				e, next, err := ParseEntry(rest)
				if err != nil {
					return
				}
				if !bytes.Equal(e.Append(nil), rest[:EntrySize]) {
					t.Fatalf("%x", rest[:EntrySize])
				}
				rest = next
			}
		case 2:
			h, _, contents, err := ParseHeader(b)
			got := make([]byte, HeaderSize)
			h.Put(got)
			SetSum(got, h.Sum)
			same(append(got, contents...), err)
		case 3:
			v, err := ParseTotals(b)
			same(v.Append(nil), err)
		case 4:
			p, contents, rest, err := ParsePart(b)
			got := make([]byte, PartSize)
			p.Put(got)
			same(append(append(got, contents...), rest...), err)
		case 5:
			a, err := ParseAbort(b)
			same(a.Append(nil), err)
		case 6:
			round, data, err := ParseGather(b)
			same(AppendGather(nil, round, data), err)
		}
	})
}

func TestHelloIsWhatItWas(t *testing.T) {
	h := Hello{Rank: 2, Size: 4, Threads: 9, Lanes: 4, Page: 1024, Pages: 3, MaxRecord: 77, Token: []byte("token")}
	if got, err := ParseHello(h.Append(nil)); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%+v, %v", got, err)
	}
}
