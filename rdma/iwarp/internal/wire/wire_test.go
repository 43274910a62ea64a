package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The vectors are written out by hand from the figures of the RFCs.
var setupVectors = []struct {
	name, hex string
	setup     Setup
}{
	{
		"revision 1 request, RFC 5044 section 7.1",
		"4d504120494420526571204672616d65 40 01 0003 616263",
		Setup{CRC: true, Revision: 1, Private: []byte("abc")},
	},
	{
		"revision 1 reply that refuses and wants markers",
		"4d504120494420526570204672616d65 a0 01 0000",
		Setup{Reply: true, Markers: true, Reject: true, Revision: 1, Private: []byte{}},
	},
	{
		"enhanced request, RFC 6581 section 9: peer to peer, all kinds, IRD 16, ORD 1",
		"4d504120494420526571204672616d65 50 02 0006 c010 c001 7879",
		Setup{CRC: true, Revision: 2, Private: []byte("xy"),
			Enhanced: &Enhanced{PeerToPeer: true, ReadySend: true, ReadyWrite: true, ReadyRead: true, IRD: 16, ORD: 1}},
	},
	{
		"enhanced reply that leaves the depths open and chose a Write",
		"4d504120494420526570204672616d65 50 02 0004 bfff bfff",
		Setup{Reply: true, CRC: true, Revision: 2, Private: []byte{},
			Enhanced: &Enhanced{PeerToPeer: true, ReadyWrite: true, IRD: NotNegotiated, ORD: NotNegotiated}},
	},
}

func TestSetupVectors(t *testing.T) {
	for _, v := range setupVectors {
		t.Run(v.name, func(t *testing.T) {
			want := unhex(t, v.hex)
			got, err := AppendSetup(nil, &v.setup)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("encoded %x, %v\nwant    %x", got, err, want)
			}
			parsed, err := ParseSetup(want, v.setup.Reply)
			if err != nil || !reflect.DeepEqual(parsed, v.setup) {
				t.Errorf("parsed %+v, %v\nwant   %+v", parsed, err, v.setup)
			}
			if _, err := ParseSetup(want, !v.setup.Reply); !errors.Is(err, ErrSetupKey) {
				t.Errorf("parsed as the other kind: %v", err)
			}
		})
	}
}

func TestSetupLimits(t *testing.T) {
	long := make([]byte, MaxPrivateData)
	if _, err := AppendSetup(nil, &Setup{Private: long}); err != nil {
		t.Error(err)
	}
	if _, err := AppendSetup(nil, &Setup{Private: long, Enhanced: &Enhanced{}}); !errors.Is(err, ErrSetupPrivate) {
		t.Errorf("no room for the enhanced header: %v", err)
	}
	for name, test := range map[string]struct {
		hex  string
		want error
	}{
		"short":              {"4d504120", ErrSetupShort},
		"key":                {"5d504120494420526571204672616d65 40 01 0000", ErrSetupKey},
		"513 bytes":          {"4d504120494420526571204672616d65 40 01 0201", ErrSetupPrivate},
		"cut off":            {"4d504120494420526571204672616d65 40 01 0002 61", ErrSetupShort},
		"no enhanced header": {"4d504120494420526571204672616d65 50 02 0003 616263", ErrSetupPrivate},
	} {
		if _, err := ParseSetup(unhex(t, test.hex), false); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
	}
}

// TestCRC holds the CRC against the vectors of RFC 3720 appendix B.4, whose byte
// order on the wire is MPA's.
func TestCRC(t *testing.T) {
	ascending := make([]byte, 32)
	for i := range ascending {
		ascending[i] = byte(i)
	}
	for _, v := range []struct {
		data []byte
		hex  string
	}{
		{make([]byte, 32), "aa36918a"},
		{bytes.Repeat([]byte{0xff}, 32), "43aba862"},
		{ascending, "4e79dd46"},
	} {
		got := make([]byte, CRCSize)
		PutCRC(got, UpdateCRC(UpdateCRC(0, v.data[:7]), v.data[7:]))
		if hex.EncodeToString(got) != v.hex {
			t.Errorf("CRC %x, want %s", got, v.hex)
		}
		if CRC(got) != UpdateCRC(0, v.data) {
			t.Errorf("CRC does not read what PutCRC wrote")
		}
	}
}

func TestFraming(t *testing.T) {
	for n := range 100 {
		p := Padding(n)
		if p < 0 || p > 3 || (LengthSize+n+p)%4 != 0 {
			t.Errorf("padding of %d is %d", n, p)
		}
	}
	for _, v := range []struct {
		emss    int
		markers bool
		want    int
	}{{1460, false, 1454}, {1448, false, 1442}, {1460, true, 1442}, {536, false, 530}, {65483, false, 65474}, {3, false, 0}} {
		got := LargestULPDU(v.emss, v.markers)
		if got != v.want {
			t.Errorf("largest ULPDU for %d, markers %v: %d, want %d", v.emss, v.markers, got, v.want)
		}
		if size := LengthSize + got + Padding(got) + CRCSize; !v.markers && got > 0 && size > v.emss {
			t.Errorf("an FPDU of %d does not fit into %d", size, v.emss)
		}
	}
}

var segmentVectors = []struct {
	name, hex string
	segment   Segment
}{
	{"write", "c1 40 deadbeef 0123456789abcdef",
		Segment{Tagged: true, Last: true, Opcode: OpWrite, STag: 0xdeadbeef, Offset: 0x0123456789abcdef}},
	{"read response, not the last", "81 42 00000001 0000000000000000",
		Segment{Tagged: true, Opcode: OpReadResponse, STag: 1}},
	{"send", "41 43 00000000 00000000 00000001 00000000",
		Segment{Last: true, Opcode: OpSend, MSN: 1}},
	{"solicited send, second segment", "01 45 00000000 00000000 00000007 00000100",
		Segment{Opcode: OpSendSolicited, MSN: 7, Offset: 256}},
	{"read request", "41 41 00000000 00000001 00000002 00000000",
		Segment{Last: true, Opcode: OpReadRequest, Queue: 1, MSN: 2}},
	{"send with invalidate", "41 44 00c0ffee 00000000 00000001 00000000",
		Segment{Last: true, Opcode: OpSendInvalidate, STag: 0xc0ffee, MSN: 1}},
	{"terminate", "41 47 00000000 00000002 00000001 00000000",
		Segment{Last: true, Opcode: OpTerminate, Queue: 2, MSN: 1}},
}

func TestSegmentVectors(t *testing.T) {
	for _, v := range segmentVectors {
		want := unhex(t, v.hex)
		if got := v.segment.Append(nil); !bytes.Equal(got, want) || len(got) != v.segment.HeaderSize() || len(got) != HeaderSize(got[0]) {
			t.Errorf("%s: encoded %x, want %x", v.name, got, want)
		}
		got, err := ParseSegment(want)
		if err != nil || got != v.segment {
			t.Errorf("%s: parsed %+v, %v", v.name, got, err)
		}
		if _, err := ParseSegment(want[:len(want)-1]); err != ErrSegmentShort {
			t.Errorf("%s cut off: %v", v.name, err)
		}
		bad := bytes.Clone(want)
		bad[0] ^= 2
		if _, err := ParseSegment(bad); err != ErrDDPVersion {
			t.Errorf("%s of another DDP version: %v", v.name, err)
		}
		bad = bytes.Clone(want)
		bad[1] ^= 0x80
		if _, err := ParseSegment(bad); err != ErrRDMAPVersion {
			t.Errorf("%s of another RDMAP version: %v", v.name, err)
		}
	}
}

func TestReadRequestVector(t *testing.T) {
	want := unhex(t, "00000011 0000000000000022 00000033 00000044 0000000000000055")
	r := ReadRequest{SinkSTag: 0x11, SinkOffset: 0x22, Length: 0x33, SourceSTag: 0x44, SourceOffset: 0x55}
	if got := r.Append(nil); !bytes.Equal(got, want) {
		t.Errorf("encoded %x", got)
	}
	if got, err := ParseReadRequest(want); err != nil || got != r {
		t.Errorf("parsed %+v, %v", got, err)
	}
	if _, err := ParseReadRequest(want[1:]); !errors.Is(err, ErrReadRequestSize) {
		t.Errorf("cut off: %v", err)
	}
}

func TestTerminateVectors(t *testing.T) {
	read := Segment{Last: true, Opcode: OpReadRequest, Queue: 1, MSN: 2}
	for _, v := range []struct {
		name, hex string
		want      Terminate
		siw       bool // only parsed
	}{
		{"CRC error", "20 02 0000", Terminate{Cause: MPACRC}, false},
		{"invalid STag of a Write", "11 00 c000 0016 c140deadbeef0000000000000010",
			Terminate{Cause: DDPTaggedInvalidSTag, HasSegment: true, SegmentLength: 22,
				Segment: Segment{Tagged: true, Last: true, Opcode: OpWrite, STag: 0xdeadbeef, Offset: 16}}, false},
		{"rights of a Read", "01 02 e000 002e 4141000000000000000100000002 00000000" +
			"00000011 0000000000000022 00000033 00000044 0000000000000055",
			Terminate{Cause: RDMAPAccessRights, HasSegment: true, SegmentLength: 46, Segment: read, HasRequest: true,
				Request: ReadRequest{0x11, 0x22, 0x33, 0x44, 0x55}}, false},
		{"CRC error as siw writes it", "02 02 0000", Terminate{Cause: MPACRC}, true},
		{"message too long as siw writes it", "21 02 0300 0100 4143000000000000000000000001 00000000",
			Terminate{Cause: DDPUntaggedNoBuffer, HasSegment: true, SegmentLength: 256,
				Segment: Segment{Last: true, Opcode: OpSend, MSN: 1}}, true},
		{"unexpected opcode as siw writes it", "20 06 0200 4148000000000000000000000001 00000000",
			Terminate{Cause: RDMAPUnexpectedOpcode, HasSegment: true,
				Segment: Segment{Last: true, Opcode: OpImmediate, MSN: 1}}, true},
	} {
		b := unhex(t, v.hex)
		got, err := ParseTerminate(b)
		if err != nil || got != v.want {
			t.Errorf("%s: parsed %+v, %v\nwant %+v", v.name, got, err, v.want)
		}
		if !v.siw {
			if e := v.want.Append(nil); !bytes.Equal(e, b) || len(e) > MaxTerminateSize {
				t.Errorf("%s: encoded %x, want %x", v.name, e, b)
			}
		}
		if len(b) > 4 {
			if _, err := ParseTerminate(b[:len(b)-1]); err != ErrTerminateShort {
				t.Errorf("%s cut off: %v", v.name, err)
			}
		}
	}
}

func TestCauses(t *testing.T) {
	for c := range causeTexts {
		if strings.Contains(c.String(), "unknown") {
			t.Errorf("%+v has no text", c)
		}
		got, err := ParseTerminate((&Terminate{Cause: c}).Append(nil))
		if err != nil || got.Cause != c {
			t.Errorf("%v: comes back as %v, %v", c, got.Cause, err)
		}
	}
	if c := (Cause{3, 3, 3}); c.Known() || !strings.Contains(c.String(), "unknown") {
		t.Errorf("%v is known", c)
	}
	for c, want := range map[Cause]bool{RDMAPAccessRights: true, DDPTaggedBounds: true, DDPTaggedVersion: false, MPACRC: false, DDPUntaggedNoBuffer: false} {
		if c.Access() != want {
			t.Errorf("%v: Access is %v", c, !want)
		}
	}
}

func FuzzParseSetup(f *testing.F) {
	for _, v := range setupVectors {
		f.Add(unhex(f, v.hex), v.setup.Reply)
	}
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		s, err := ParseSetup(b, reply)
		if err != nil {
			return
		}
		again, err := AppendSetup(nil, &s)
		if err != nil {
			t.Fatalf("%+v cannot be encoded: %v", s, err)
		}
		back, err := ParseSetup(again, reply)
		if err != nil || !reflect.DeepEqual(back, s) {
			t.Fatalf("%+v comes back as %+v, %v", s, back, err)
		}
	})
}

func FuzzParseSegment(f *testing.F) {
	for _, v := range segmentVectors {
		f.Add(unhex(f, v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSegment(b)
		if err != nil {
			return
		}
		back, err := ParseSegment(s.Append(nil))
		if err != nil || back != s {
			t.Fatalf("%+v comes back as %+v, %v", s, back, err)
		}
	})
}

func FuzzParseTerminate(f *testing.F) {
	f.Add([]byte{0x20, 2, 0, 0})
	f.Add(unhex(f, "1100c0000016c140deadbeef0000000000000010"))
	f.Add(unhex(f, "21020300010041430000000000000000000000010000000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseTerminate(b)
		if err != nil || m.HasSegment != (m.SegmentLength != 0) {
			return // siw may leave one of the two out, we do not
		}
		if _, err := ParseSegment(m.Segment.Append(nil)); m.HasSegment && err != nil {
			return // a version that we do not write
		}
		if m.HasRequest && !m.HasSegment || m.Cause.Layer > 15 {
			return
		}
		encoded := m.Append(nil)
		if len(encoded) > MaxTerminateSize {
			t.Fatalf("%+v takes %d bytes", m, len(encoded))
		}
		back, err := ParseTerminate(encoded)
		// Without presence bits a cause that only siw can mean is read as its.
		if swapped := (Cause{m.Cause.Type, m.Cause.Layer, m.Cause.Code}); !m.HasSegment && !m.Cause.Known() && swapped.Known() {
			return
		}
		if err != nil || back != m {
			t.Fatalf("%+v comes back as %+v, %v", m, back, err)
		}
	})
}

func FuzzParseReadRequest(f *testing.F) {
	f.Add(make([]byte, ReadRequestSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReadRequest(b)
		if err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Fatalf("%x comes back as %x", b, r.Append(nil))
		}
	})
}

func TestAtomicVectors(t *testing.T) {
	want := unhex(t, "00000002 00000007 000000aa 00000000000000bb"+
		"1111111111111111 2222222222222222 3333333333333333 4444444444444444")
	r := AtomicRequest{AtomicCompareSwap, 7, 0xaa, 0xbb, 0x1111111111111111, 0x2222222222222222, 0x3333333333333333, 0x4444444444444444}
	if got := r.Append(nil); !bytes.Equal(got, want) {
		t.Errorf("encoded %x", got)
	}
	if got, err := ParseAtomicRequest(want); err != nil || got != r {
		t.Errorf("parsed %+v, %v", got, err)
	}
	want = unhex(t, "00000007 0102030405060708")
	response := AtomicResponse{7, 0x0102030405060708}
	if got := response.Append(nil); !bytes.Equal(got, want) {
		t.Errorf("encoded %x", got)
	}
	if got, err := ParseAtomicResponse(want); err != nil || got != response {
		t.Errorf("parsed %+v, %v", got, err)
	}
	for _, b := range [][]byte{nil, want[1:], make([]byte, 53)} {
		_, err := ParseAtomicRequest(b)
		if _, other := ParseAtomicResponse(b); err == nil || other == nil {
			t.Errorf("%d bytes are taken", len(b))
		}
	}
}

func TestAtomicApply(t *testing.T) {
	const all = ^uint64(0)
	for _, v := range []struct {
		r         AtomicRequest
		old, want uint64
	}{
		{AtomicRequest{Op: AtomicFetchAdd, AddSwap: 5}, 10, 15},
		{AtomicRequest{Op: AtomicFetchAdd, AddSwap: 1}, all, 0},
		{AtomicRequest{Op: AtomicFetchAdd, AddSwap: 1, AddSwapMask: 1 << 31}, 0xFFFFFFFF, 0},
		{AtomicRequest{Op: AtomicFetchAdd, AddSwap: 1<<32 | 1, AddSwapMask: 1 << 31}, 7<<32 | 0xFFFFFFFF, 8 << 32},
		{AtomicRequest{Op: AtomicFetchAdd, AddSwap: 3, AddSwapMask: 1 << 63}, 4, 7},
		{AtomicRequest{Op: AtomicCompareSwap, AddSwap: 9, AddSwapMask: all, Compare: 4, CompareMask: all}, 4, 9},
		{AtomicRequest{Op: AtomicCompareSwap, AddSwap: 9, AddSwapMask: all, Compare: 4, CompareMask: all}, 5, 5},
		{AtomicRequest{Op: AtomicCompareSwap, AddSwap: 0x99, AddSwapMask: 0x0F, Compare: 0xF4, CompareMask: 0x0F}, 0x24, 0x29},
	} {
		if got := v.r.Apply(v.old); got != v.want {
			t.Errorf("%+v makes %#x of %#x, want %#x", v.r, got, v.old, v.want)
		}
	}
}

func FuzzParseAtomic(f *testing.F) {
	f.Add(make([]byte, AtomicRequestSize), uint64(1))
	f.Add(make([]byte, AtomicResponseSize), uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, old uint64) {
		if r, err := ParseAtomicRequest(b); err == nil {
			if back, err := ParseAtomicRequest(r.Append(nil)); err != nil || back != r {
				t.Fatalf("%+v comes back as %+v, %v", r, back, err)
			}
			r.AddSwapMask &= 1 << 63
			if got := r.Apply(old); r.Op == AtomicFetchAdd && got != old+r.AddSwap {
				t.Fatalf("%#x plus %#x is %#x", old, r.AddSwap, got)
			}
		}
		if r, err := ParseAtomicResponse(b); err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Fatalf("%x comes back as %x", b, r.Append(nil))
		}
	})
}

func TestAnnouncement(t *testing.T) {
	s := Announcement(FeatureExtensions)
	if got, want := s.Append(nil), unhex(t, "c140 52464337 56455242454e4101"); !bytes.Equal(got, want) {
		t.Errorf("the announcement is %x, want %x", got, want)
	}
	parsed, err := ParseSegment(s.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := ParseAnnouncement(&parsed, 0); !ok || f != FeatureExtensions {
		t.Errorf("it comes back as %b, %t", f, ok)
	}
	// What later versions may announce is no error and means nothing here.
	later := s
	later.Offset |= 0xFE
	if f, ok := ParseAnnouncement(&later, 0); !ok || f != FeatureExtensions {
		t.Errorf("more features: %b, %t", f, ok)
	}
	none := s
	none.Offset &^= 0xFF
	if f, ok := ParseAnnouncement(&none, 0); !ok || f != 0 {
		t.Errorf("no features: %b, %t", f, ok)
	}
	if _, ok := ParseAnnouncement(&s, 1); ok {
		t.Error("a Write of a byte is an announcement")
	}
	for name, change := range map[string]func(*Segment){
		"untagged":       func(s *Segment) { s.Tagged = false },
		"not the last":   func(s *Segment) { s.Last = false },
		"a response":     func(s *Segment) { s.Opcode = OpReadResponse },
		"another tag":    func(s *Segment) { s.STag++ },
		"another offset": func(s *Segment) { s.Offset ^= 0x100 },
		"ready":          func(s *Segment) { s.STag, s.Offset = 0, 0 },
	} {
		c := s
		change(&c)
		if _, ok := ParseAnnouncement(&c, 0); ok {
			t.Errorf("%s: it is an announcement", name)
		}
	}
}

func TestOpcodeNames(t *testing.T) {
	seen := map[string]bool{}
	for o := range Opcode(16) {
		if name := o.String(); name == "" || o <= OpAtomicResponse && (seen[name] || name == "reserved opcode") || o > OpAtomicResponse && name != "reserved opcode" {
			t.Errorf("opcode %d is %q", o, name)
		}
		seen[o.String()] = true
	}
}
