package hello

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

var rewrite = flag.Bool("add-golden", false, "write golden vectors that do not exist yet")

var (
	host    = []byte("0123456789abcdef")
	network = []byte("ghijklmnopqrstuv")
)

var hellos = map[string]Hello{
	"hello-v1-minimal": {Least: 1, Greatest: 1, Service: "echo/1"},
	"hello-v1-full": {
		Least: 1, Greatest: 1, Service: "hdfs.DataTransfer/28", Host: host,
		Candidates: []Candidate{{Name: "shm"}, {Name: "ibverbs", Parameters: []byte{1, 2, 3}}, {Name: "tcp"}},
		Failed:     []Verdict{{Name: "iwarp", Text: "could not be connected: größer"}},
		Software:   "verbena", Auth: []Auth{{Mechanism: "token", Data: []byte("secret")}},
	},
	"hello-v1-network":  {Least: 1, Greatest: 1, Service: "echo/1", Host: host, Network: network, Candidates: []Candidate{{Name: "shm"}}},
	"hello-v1-features": {Least: 1, Greatest: 1, Service: "echo/1", Features: 0x0102030405060708, Candidates: []Candidate{{Name: "tcp"}}},
	"hello-v1-probe":    {Least: 1, Greatest: 1, Probe: true, Host: host, Candidates: []Candidate{{Name: "tcp"}}},
}

var answers = map[string]Answer{
	"answer-v1-stream": {Least: 1, Greatest: 1, Accept: &Accept{Name: "iwarp"}, Host: host, Software: "verbena",
		Verdicts: []Verdict{{Name: "shm", Text: "it is on another host"}}},
	"answer-v1-own-port": {Least: 1, Greatest: 1, Accept: &Accept{Name: "shm", Token: []byte("fedcba9876543210"), Address: "@verbena-shm-1"}, Host: host},
	"answer-v1-passing": {Least: 1, Greatest: 1, Accept: &Accept{Name: "tcp"}, Host: host, Network: network,
		Passing: []string{"shm"}, Verdicts: []Verdict{{Name: "shm", Text: "out of memory"}}},
	"answer-v1-features": {Least: 1, Greatest: 1, Accept: &Accept{Name: "tcp"}, Features: FeatureOneSided},
	"answer-v1-busy":     {Least: 1, Greatest: 1, Refusal: &Refusal{Code: CodeBusy, Text: "too many handshakes"}},
	"answer-v1-refusal":  {Least: 1, Greatest: 1, Refusal: &Refusal{Code: CodeService, Text: "no such service"}},
}

// Golden vectors are never rewritten: what a release has sent, later ones read.
func golden(t *testing.T, name string, encoded []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *rewrite {
		text = []byte(hex.Dump(encoded))
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for line := range strings.Lines(string(text)) {
		if len(line) < 60 {
			continue
		}
		part, err := hex.DecodeString(strings.ReplaceAll(line[10:59], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, part...)
	}
	return b
}

func TestGolden(t *testing.T) {
	for name, h := range hellos {
		b, err := h.Encode()
		if err != nil {
			t.Fatal(name, err)
		}
		want := golden(t, name, b)
		if !bytes.Equal(b, want) {
			t.Errorf("%s: encoded as\n%swant\n%s", name, hex.Dump(b), hex.Dump(want))
		}
		if got, err := ParseHello(want); err != nil || !reflect.DeepEqual(normal(got), normal(h)) {
			t.Errorf("%s: decoded as %+v, %v", name, got, err)
		}
	}
	for name, a := range answers {
		b, err := a.Encode()
		if err != nil {
			t.Fatal(name, err)
		}
		want := golden(t, name, b)
		if !bytes.Equal(b, want) {
			t.Errorf("%s: encoded as\n%swant\n%s", name, hex.Dump(b), hex.Dump(want))
		}
		if got, err := ParseAnswer(want); err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%s: decoded as %+v, %v", name, got, err)
		}
	}
}

// Empty and absent are the same on the wire.
func normal(h Hello) Hello {
	c := append([]Candidate(nil), h.Candidates...)
	for i := range c {
		if len(c[i].Parameters) == 0 {
			c[i].Parameters = nil
		}
	}
	h.Candidates = c
	return h
}

func value(typ uint16, v string) []byte {
	b := binary.BigEndian.AppendUint16(nil, typ)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(v))), v...)
}

func frame(k kind, least, greatest uint8, values ...[]byte) []byte {
	e := newEncoder(k, least, greatest)
	for _, v := range values {
		e.b = append(e.b, v...)
	}
	binary.BigEndian.PutUint16(e.b[10:], uint16(len(e.b)))
	return e.b
}

func TestHellosOfOthers(t *testing.T) {
	service := value(typeService, "echo/1")
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name string
		b    []byte
		want string // part of the error; empty for none
	}{
		{"optional value of a later release", frame(kindHello, 1, 1, service, value(0x0fff, "?")), ""},
		{"reserved bytes set by a later release", func() []byte { b := frame(kindHello, 1, 1, service); b[9], b[14], b[15] = 1, 2, 3; return b }(), ""},
		{"a later release that speaks ours", frame(kindHello, 1, 9, service), ""},
		{"critical value of a later release", frame(kindHello, 1, 9, service, value(0x8fff, "?")), "unknown critical type 0x8fff"},
		{"a later release that does not", frame(kindHello, 2, 9, []byte("whatever that means")), "versions 2 to 9"},
		{"version 0", frame(kindHello, 0, 0, service), "versions 0 to 0"},
		{"versions upside down", frame(kindHello, 2, 1, service), "above"},
		{"answer for a hello", frame(kindAnswer, 1, 1, service), "kind 2"},
		{"nothing asked for", frame(kindHello, 1, 1), "neither a service"},
		{"service twice", frame(kindHello, 1, 1, service, service), "again"},
		{"empty service", frame(kindHello, 1, 1, value(typeService, "")), "service of 0 bytes"},
		{"service too long", frame(kindHello, 1, 1, value(typeService, long)), "service of 300 bytes"},
		{"service with a line break", frame(kindHello, 1, 1, value(typeService, "a\nb")), "not printable"},
		{"service not UTF-8", frame(kindHello, 1, 1, value(typeService, "\xff")), "not printable"},
		{"probe with something", frame(kindHello, 1, 1, value(typeProbe, "x")), "1 bytes, not 0"},
		{"host too short", frame(kindHello, 1, 1, service, value(typeHost, "x")), "1 bytes, not 16"},
		{"candidate without a name", frame(kindHello, 1, 1, service, value(typeCandidate, "")), "ends in its name"},
		{"candidate's name cut", frame(kindHello, 1, 1, service, value(typeCandidate, "\x05shm")), "ends in its name"},
		{"candidate's name too long", frame(kindHello, 1, 1, service, value(typeCandidate, "\xff"+long)), "name of 255"},
		{"too many candidates", frame(kindHello, 1, 1, service, bytes.Repeat(value(typeCandidate, "\x01a"), 17)), "more than 16"},
		{"explanation too long", frame(kindHello, 1, 1, service, value(typeFailed, "\x01a"+long)), "too long"},
		{"value cut", frame(kindHello, 1, 1, service, []byte{0, 3, 0, 16, 1}), "16 bytes where 1 are left"},
		{"value's header cut", frame(kindHello, 1, 1, service, []byte{0, 3, 0}), "ends in its header"},
		{"length too small", func() []byte { b := frame(kindHello, 1, 1, service); b[11] = 15; return b }(), "length 15"},
		{"length too great", func() []byte { b := frame(kindHello, 1, 1, service); b[10] = 0x20; return b }(), "length 8"},
	} {
		_, err := ParseHello(c.b)
		if _, streamed := ReadHello(iotest.OneByteReader(bytes.NewReader(c.b)), 0); (err == nil) != (streamed == nil) {
			t.Errorf("%s: parsed %v, read %v", c.name, err, streamed)
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestAnswersOfOthers(t *testing.T) {
	accept := value(typeAccept, "\x03tcp\x00\x00\x00")
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"optional value of a later release", frame(kindAnswer, 1, 1, accept, value(0x0fff, "?")), ""},
		{"critical value of a later release", frame(kindAnswer, 1, 1, accept, value(0x8fff, "?")), "unknown critical"},
		{"refusal by a later release", frame(kindAnswer, 2, 9, value(typeRefusal, "\x00\x01too old")), ""},
		{"refusal with a code of a later release", frame(kindAnswer, 1, 1, value(typeRefusal, "\x77\x77")), ""},
		{"version not chosen", frame(kindAnswer, 1, 2, accept), "versions 1 to 2"},
		{"version not offered", frame(kindAnswer, 7, 7, accept), "versions 7 to 7"},
		{"neither yes nor no", frame(kindAnswer, 1, 1), "neither"},
		{"an echo", frame(kindHello, 1, 1, value(typeService, "echo/1")), "not a Verbena hello: the hello came back"},
		{"another kind", frame(3, 1, 1, accept), "kind 3 where an answer is due"},
		{"yes and no", frame(kindAnswer, 1, 1, accept, value(typeRefusal, "\x00\x01")), "excludes"},
		{"refusal without a code", frame(kindAnswer, 1, 1, value(typeRefusal, "\x00")), "without a code"},
		{"token cut", frame(kindAnswer, 1, 1, value(typeAccept, "\x03shm\x10abc")), "ends in its token"},
		{"token of another size", frame(kindAnswer, 1, 1, value(typeAccept, "\x03shm\x02ab\x00\x00")), "token of 2"},
		{"address length", frame(kindAnswer, 1, 1, value(typeAccept, "\x03shm\x00\x00\x05ab")), "wrong address length"},
		{"address not UTF-8", frame(kindAnswer, 1, 1, value(typeAccept, "\x03shm\x00\x00\x01\xff")), "not UTF-8"},
	} {
		_, err := ParseAnswer(c.b)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Reading stops at the last byte: what follows is another protocol's.
func TestReadsNoByteTooMany(t *testing.T) {
	h := hellos["hello-v1-full"]
	b, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(append(b, "MPA ID Req Frame"...))
	if _, err := ReadHello(r, 0); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "MPA ID Req Frame" {
		t.Errorf("left over: %q", rest)
	}
	if _, err := ReadHello(bytes.NewReader(b[8:]), 8); err != nil {
		t.Errorf("behind the magic: %v", err)
	}
	for n := range b {
		if _, err := ReadHello(bytes.NewReader(b[:n]), 0); n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) || n == 0 && err != io.EOF {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
		// Whoever answers with less than a magic has answered in another protocol.
		if _, err := ReadAnswer(bytes.NewReader(b[:n])); errors.Is(err, ErrNotHello) != (n > 0 && n < len(Magic)) {
			t.Fatalf("an answer cut after %d bytes: %v", n, err)
		}
	}
	// A peer of another protocol may send less than a header and wait.
	if _, err := ReadAnswer(io.MultiReader(strings.NewReader("\x89VR?"), iotest.ErrReader(errors.New("waited")))); err != ErrNotHello {
		t.Errorf("other protocol: %v", err)
	}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct{ least, greatest, want uint8 }{
		{1, 1, 1}, {1, 2, 1}, {0, 1, 1}, {1, 255, 1}, {2, 3, 0}, {0, 0, 0}, {3, 2, 0},
	} {
		got, err := Choose(c.least, c.greatest)
		if got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%d to %d: %d, %v", c.least, c.greatest, got, err)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, h := range map[string]Hello{
		"nothing":       {},
		"long service":  {Service: strings.Repeat("x", MaxService+1)},
		"bad host":      {Service: "a", Host: []byte{1}},
		"bad network":   {Service: "a", Network: []byte{1}},
		"bad candidate": {Service: "a", Candidates: []Candidate{{Name: "a b"}}},
		"candidates":    {Service: "a", Candidates: make([]Candidate, MaxCandidates+1)},
		"too much":      {Service: "a", Auth: []Auth{{Mechanism: "m", Data: make([]byte, MaxSize)}}},
	} {
		if _, err := h.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
	// Explanations give way.
	h := Hello{Service: "a", Auth: []Auth{{Mechanism: "m", Data: make([]byte, 3900)}}}
	for range 16 {
		h.Failed = append(h.Failed, Verdict{Name: "x", Text: strings.Repeat("ü", 400)})
	}
	b, err := h.Encode()
	if err != nil || len(b) > MaxSize {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	for name, a := range map[string]Answer{
		"passing": {Accept: &Accept{Name: "a"}, Passing: []string{"a b"}}, "much passing": {Accept: &Accept{Name: "a"}, Passing: make([]string, MaxCandidates+1)},
		"nothing": {}, "both": {Accept: &Accept{Name: "a"}, Refusal: &Refusal{}},
		"token": {Accept: &Accept{Name: "a", Token: []byte{1}}}, "address": {Accept: &Accept{Name: "a", Address: strings.Repeat("x", 300)}},
	} {
		if _, err := a.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, h := range hellos {
		b, _ := h.Encode()
		f.Add(b)
	}
	for _, a := range answers {
		b, _ := a.Encode()
		f.Add(b)
	}
	f.Add(frame(kindHello, 1, 9, value(0x8fff, "?")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err == nil {
			// What was understood can be said again, and is understood alike.
			again, err := h.Encode()
			if err != nil {
				t.Fatalf("%+v: %v", h, err)
			}
			if h2, err := ParseHello(again); err != nil || !reflect.DeepEqual(h, h2) {
				t.Fatalf("%+v became %+v, %v", h, h2, err)
			}
		}
		if h2, streamed := ReadHello(bytes.NewReader(b), 0); err == nil && (streamed != nil || !reflect.DeepEqual(h, h2)) {
			t.Fatalf("read as %+v, %v", h2, streamed)
		}
		a, err := ParseAnswer(b)
		if err == nil {
			again, err := a.Encode()
			if err != nil {
				t.Fatalf("%+v: %v", a, err)
			}
			if a2, err := ParseAnswer(again); err != nil || !reflect.DeepEqual(a, a2) {
				t.Fatalf("%+v became %+v, %v", a, a2, err)
			}
		}
	})
}
