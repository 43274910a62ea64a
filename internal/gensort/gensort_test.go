package gensort

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func records(t testing.TB, format Format, first string, n int) []byte {
	t.Helper()
	number, err := ParseUint128(first)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, n*RecordSize)
	New(format, number).Fill(p)
	return p
}

// TestAsPublished compares with what gensort 1.5 wrote, built by gcc from its source: SHA-256
// of the file, and the checksum of -c where it is given.
func TestAsPublished(t *testing.T) {
	for _, test := range []struct {
		format   Format
		first    string
		n        int
		hash     string
		checksum string
	}{
		{Binary, "0", 100000, "b448d01a3705d4908bf9170e6d5591f6bf94f9219d0faed44b3e4011eef91087", "c3068574c6ff"},
		{ASCII, "0", 100000, "80fe641398d33c5f9875d526adcc2cc637540ced7d08b925e119cb44f3005375", "c34e19c81885"},
		{Binary, "999999999999999999999999", 100000, "0fc40daec9a4ddb60c8cbfc0cbd236a9df8e89b06001385569b9d91795c3e4bc", ""},
		{ASCII, "999999999999999999999999", 100000, "b4cbe9a5d0ad3166b024b35a016b7877c2a86c7220ebb4a23e6df5f607bfbd51", ""},
		{Binary, "340282366920938463463374607431768211450", 9, "509ed08756311fa0705a9387adc5dddf9194ff325ef074bbc55c22f5813dbead", "3381e1493"},
		{ASCII, "340282366920938463463374607431768211450", 9, "27784b8b3a16227f6889e8716f5312d642b876f36e61f7e431c170ceff076607", "57f18c104"},
		{Binary, "0", 1000000, "", "7a0e0d4868cd4"},
		{ASCII, "0", 1000000, "", "7a19cff467438"},
	} {
		p := records(t, test.format, test.first, test.n)
		hash := sha256.Sum256(p)
		if got := hex.EncodeToString(hash[:]); test.hash != "" && got != test.hash {
			t.Errorf("format %d, %d records from %s on: SHA-256 %s, want %s", test.format, test.n, test.first, got, test.hash)
		}
		if got := Checksum(p).String(); test.checksum != "" && got != test.checksum {
			t.Errorf("format %d, %d records from %s on: checksum %s, want %s", test.format, test.n, test.first, got, test.checksum)
		}
	}
}

func TestFirstRecords(t *testing.T) {
	const want = "4a696d4772617952495065080060836b392cd58b8f5e55961855e79b87f02283a466b6aab1f9e0cacf1e26b3292afd1064bb18b56ac07d6f656b1d2f430d57bde7e47d81f36a6dd267948bbc2397bfe28c334e4ad82b8e70166293cfaa0116bfda3bb1ab"
	if got := hex.EncodeToString(records(t, Binary, "0", 1)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	lines := "AsfAGHM5om  00000000000000000000000000000000  0000222200002222000022220000222200002222000000001111\r\n" +
		"~sHd0jDv6X  00000000000000000000000000000001  77779999444488885555CCCC777755555555BBBB666644446666\r\n"
	if got := string(records(t, ASCII, "0", 2)); got != lines {
		t.Errorf("got\n%swant\n%s", got, lines)
	}
	far := "@^6-\"f0i1B  0000000000000000AB54A98CEB1F0AD2  666644448888DDDDCCCC5555333344449999EEEE33334444FFFF\r\n"
	if got := string(records(t, ASCII, "12345678901234567890", 1)); got != far {
		t.Errorf("got\n%swant\n%s", got, far)
	}
}

// TestSkip makes the same records in parts.
func TestSkip(t *testing.T) {
	for _, format := range []Format{Binary, ASCII} {
		whole := records(t, format, "18446744073709551000", 2000) // over the limit of 64 bits
		for range 50 {
			at := rand.IntN(1990)
			first := Uint128{Lo: 18446744073709551000}.Plus(Uint128{Lo: uint64(at)})
			p := make([]byte, 10*RecordSize)
			New(format, first).Fill(p)
			if !bytes.Equal(p, whole[at*RecordSize:][:len(p)]) {
				t.Fatalf("format %d: records from %d on differ", format, at)
			}
		}
	}
}

// TestReport compares with what valsort 1.5 said of the same records.
func TestReport(t *testing.T) {
	report := func(p []byte) string {
		var s Summary
		s.Add(p)
		var b strings.Builder
		if err := s.Report(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	p := records(t, Binary, "0", 100000)
	want := "First unordered record is record 2\nRecords: 100000\nChecksum: c3068574c6ff\nERROR - there are 49936 unordered records\n"
	if got := report(p); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	sorted := sortedRecords(records(t, ASCII, "0", 1000000))
	want = "Records: 1000000\nChecksum: 7a19cff467438\nDuplicate keys: 0\nSUCCESS - all records are in order\n"
	if got := report(sorted); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// Sorted, then two records exchanged, one replaced by its neighbour, the first one
	// doubled, and one replaced by the third.
	r := slices.Collect(slices.Chunk(sortedRecords(records(t, ASCII, "0", 100000)), RecordSize))
	r[50], r[51] = r[51], r[50]
	r[70] = r[69]
	r = slices.Insert(r, 0, r[0])
	r[3000] = r[2]
	want = "First unordered record is record 52\nRecords: 100001\nChecksum: c34d8c7d623e\nERROR - there are 2 unordered records\n"
	if got := report(bytes.Join(r, nil)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestSummaryAsPublished compares with the files that valsort 1.5, built by gcc from its source, wrote on
// amd64 with -o: of three records from number 5 on, of four from 0 on, and with -s of these two files' bytes one
// after the other.
func TestSummaryAsPublished(t *testing.T) {
	parts := [][]byte{records(t, Binary, "5", 3), records(t, Binary, "0", 4)}
	want := []string{
		published(1, 1, 3, 0, 0x1b5fb21f3),
		published(2, 1, 4, 0, 0x235bf0ba0),
		published(1, 3, 7, 0, 0x3ebba2d93),
	}
	hashes := []string{
		"d8faee8b29ef7f99cf7592fa7a43b536c2cb4f1954ad9b2b4bd4d8bb36d5ca77",
		"5d871edcac15145a8b02789a38ed21b6722930fc005433f0f4dc43180b7abb30",
		"9763373e4c66567c1a4ce2c74d8bfe37673bc4f4b7f66db5469324d286b40f97",
	}
	var both Summary
	for i, wholes := range [][]byte{parts[0], parts[1], bytes.Join(parts, nil)} {
		var s Summary
		s.Add(wholes)
		got := s.Append(nil)
		if sum := sha256.Sum256(got); hex.EncodeToString(got[:len(want[i])/2]) != want[i] || hex.EncodeToString(sum[:]) != hashes[i] {
			t.Errorf("file %d: %x", i, got)
		}
		if i < len(parts) {
			if err := both.JoinParsed(got); err != nil {
				t.Fatal(err)
			}
		} else if both != s {
			t.Errorf("joined %+v, want %+v", both, s)
		}
	}
}

// published is the numbers of a summary as they were in those files, in hexadecimal: in 16 bytes each, the lower 8 of them the last, and in
// those the lowest byte first.
func published(numbers ...uint64) string {
	var b strings.Builder
	for _, n := range numbers {
		fmt.Fprintf(&b, "%016x", 0)
		for range 8 {
			fmt.Fprintf(&b, "%02x", n&0xff)
			n >>= 8
		}
	}
	return b.String()
}

// TestHostileSummary has summaries of which no records can be.
func TestHostileSummary(t *testing.T) {
	var good Summary
	good.Add(sortedRecords(records(t, ASCII, "0", 5)))
	for want, spoil := range map[string]func(*Summary){
		"":                                     func(*Summary) {},
		"it tells of no record":                func(s *Summary) { s.Records = 0 },
		"more than 92233720368547758 records":  func(s *Summary) { s.Records = 1 << 62 },
		"big-endian":                           func(s *Summary) { s.Records = bits.ReverseBytes64(s.Records) },
		"cannot be unordered and 4 duplicates": func(s *Summary) { s.FirstUnordered, s.Unordered, s.Duplicates = 1, 1, 4 },
		"from number 1 on":                     func(s *Summary) { s.FirstUnordered = 1 },
		"from number 0 on":                     func(s *Summary) { s.Unordered = 1 },
		"from number 4 on":                     func(s *Summary) { s.FirstUnordered, s.Unordered = 4, 2 },
		"the checksum 500000000":               func(s *Summary) { s.Checksum = Uint128{Lo: 5 << 32} },
		"the first of one record":              func(s *Summary) { s.Records, s.Checksum = 1, Uint128{} },
		"comes after the last":                 func(s *Summary) { s.first, s.last = s.last, s.first },
		"all keys are the same":                func(s *Summary) { s.Duplicates = 4 },
	} {
		s := good
		spoil(&s)
		got, err := ParseSummary(s.Append(nil))
		switch {
		case want == "" && (err != nil || got != good):
			t.Errorf("%+v, %v", got, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
	}
	wide := good.Append(nil)
	wide[2*numberSize] = 1 // above 2^64
	for _, p := range [][]byte{nil, wide[1:], append(wide[:len(wide):len(wide)], 0), wide} {
		if s, err := ParseSummary(p); err == nil {
			t.Errorf("%d bytes: %+v", len(p), s)
		}
	}
	// Each makes sense, but not both.
	most := Summary{Records: maxRecords}
	if err := good.JoinParsed(most.Append(nil)); err == nil || !strings.Contains(err.Error(), "with those before it") || good.Records != 5 {
		t.Errorf("%v, %+v", err, good)
	}
}

// FuzzSummaries joins what is read of summaries, that of others: nothing that makes no sense comes out, and what was
// read is written as it was.
func FuzzSummaries(f *testing.F) {
	var a, b Summary
	a.Add(records(f, Binary, "5", 3))
	b.Add(sortedRecords(records(f, Binary, "0", 4)))
	f.Add(a.Append(b.Append(nil)))
	f.Add(b.Append(a.Append(b.Append(nil))))
	f.Add(a.Append(nil)[:SummarySize-1])
	f.Fuzz(func(t *testing.T, p []byte) {
		var whole Summary
		var sum uint64
		for part := range slices.Chunk(p, SummarySize) {
			before := whole
			if err := whole.JoinParsed(part); err != nil {
				if whole != before {
					t.Errorf("%v, and the summary changed", err)
				}
				continue
			}
			s, err := ParseSummary(part)
			if err != nil || !bytes.Equal(s.Append(nil), part) {
				t.Errorf("%x is written as %x; %v", part, s.Append(nil), err)
			}
			sum += s.Records
			if got, err := ParseSummary(whole.Append(nil)); err != nil || got != whole || whole.Records != sum {
				t.Errorf("joined to %+v, want %d records; %v", whole, sum, err)
			}
		}
	})
}

func sortedRecords(p []byte) []byte {
	r := slices.Collect(slices.Chunk(p, RecordSize))
	slices.SortFunc(r, bytes.Compare)
	return bytes.Join(r, nil)
}

// TestJoin splits records at random places: the parts' summaries join to the whole's.
func TestJoin(t *testing.T) {
	for range 200 {
		n := rand.IntN(30)
		p := make([]byte, n*RecordSize)
		for i := range n {
			p[i*RecordSize+9] = byte(rand.IntN(4)) // few keys: equal and unordered ones
			p[i*RecordSize+50] = byte(rand.Uint32())
		}
		var whole, joined Summary
		whole.Add(p)
		for rest := p; len(rest) > 0; {
			k := min(rand.IntN(5), len(rest)/RecordSize) * RecordSize
			var part Summary
			part.Add(rest[:k])
			joined.Join(part)
			rest = rest[k:]
		}
		if whole != joined {
			t.Fatalf("%d records:\nwhole  %+v\njoined %+v", n, whole, joined)
		}
	}
}

func TestParseUint128(t *testing.T) {
	if n, err := ParseUint128("340282366920938463463374607431768211455"); err != nil || n != (Uint128{1<<64 - 1, 1<<64 - 1}) {
		t.Error(n, err)
	}
	for _, text := range []string{"", "-1", "x", "1.5", "340282366920938463463374607431768211456"} {
		if n, err := ParseUint128(text); err == nil {
			t.Errorf("%q is %v", text, n)
		}
	}
	if got := (Uint128{1, 10}).String(); got != "1000000000000000a" {
		t.Error(got)
	}
}

func BenchmarkFill(b *testing.B) {
	for name, format := range map[string]Format{"binary": Binary, "ascii": ASCII} {
		b.Run(name, func(b *testing.B) {
			g, p := New(format, Uint128{}), make([]byte, 1000*RecordSize)
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				g.Fill(p)
			}
		})
	}
}

func BenchmarkSummary(b *testing.B) {
	p := make([]byte, 1000*RecordSize)
	New(Binary, Uint128{}).Fill(p)
	b.SetBytes(int64(len(p)))
	var s Summary
	for b.Loop() {
		s.Add(p)
	}
}
