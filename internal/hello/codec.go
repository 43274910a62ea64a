package hello

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf8"
)

// Version is what this release speaks. It also speaks every version down to
// LeastVersion.
const (
	Version      = 1
	LeastVersion = 1
)

// Limits, in bytes unless they say otherwise.
const (
	MaxSize       = 4096 // a whole hello or answer
	headerSize    = 16
	MaxName       = 32  // of a provider or an authentication mechanism
	MaxService    = 128 // of a service protocol
	MaxText       = 240 // of an explanation; longer ones are cut when encoded
	MaxAddress    = 256
	HostSize      = 16
	NetworkSize   = 16
	TokenSize     = 16
	MaxCandidates = 16 // entries of each list
)

// Magic opens every hello and answer. Read as a BSON length (little-endian, 32
// bits) its first four bytes are 0x42525689, far above what a document may
// have; no text protocol and no TLS record begins with 0x89.
var Magic = [8]byte{0x89, 'V', 'R', 'B', '\r', '\n', 0x1a, '\n'}

type kind uint8

const (
	kindHello  kind = 1
	kindAnswer kind = 2
)

// Types of the values. The top bit makes one critical.
const (
	critical = 0x8000

	typeService   = critical | 0x0001
	typeProbe     = critical | 0x0002
	typeHost      = 0x0003
	typeCandidate = critical | 0x0004
	typeSoftware  = 0x0005
	typeAuth      = 0x0006
	typeFailed    = 0x0007
	typeNetwork   = 0x0008
	typeFeatures  = 0x0009

	typeAccept  = critical | 0x0010
	typeRefusal = critical | 0x0011
	typeVerdict = 0x0012
	typePassing = 0x0013
)

// Errors that receivers tell apart.
var (
	// ErrNotHello: the bytes are those of some other protocol.
	ErrNotHello = errors.New("hello: not a Verbena hello")
	// ErrMalformed: a hello that breaks the format.
	ErrMalformed = errors.New("hello: malformed")

	errWithinMagic = errors.New("hello: the connection ended within the magic")
)

// A CriticalError names a value that must be understood and is not.
type CriticalError struct{ Type uint16 }

func (e *CriticalError) Error() string {
	return fmt.Sprintf("hello: value of unknown critical type %#04x; the peer needs a newer release here", e.Type)
}

// A VersionError says that two ranges of versions do not meet.
type VersionError struct{ Least, Greatest uint8 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("hello: the peer speaks versions %d to %d, this side %d to %d; update the older one",
		e.Least, e.Greatest, LeastVersion, Version)
}

// Choose returns the version to speak with a peer that offers a range: the
// greatest that both have.
func Choose(least, greatest uint8) (uint8, error) {
	if least > greatest {
		return 0, fmt.Errorf("%w: least version %d above greatest %d", ErrMalformed, least, greatest)
	}
	if least > Version || greatest < LeastVersion {
		return 0, &VersionError{Least: least, Greatest: greatest}
	}
	return min(greatest, Version), nil
}

// A Candidate is a transport that the dialling side can use.
type Candidate struct {
	Name       string // provider name, or "tcp"
	Parameters []byte // addresses, see [EncodeAddresses], or nothing
}

// A Verdict says why a transport was taken, left or has failed.
type Verdict struct {
	Name string
	Text string // UTF-8, at most MaxText bytes
}

// An Auth is the opening of an authentication mechanism. Version 1 carries it
// and defines no mechanism.
type Auth struct {
	Mechanism string
	Data      []byte
}

// A Hello is what the dialling side says first.
type Hello struct {
	Least, Greatest uint8
	Service         string      // service protocol that is asked for
	Probe           bool        // tell what would be chosen, then close
	Host            []byte      // identity of the host, HostSize bytes, or none
	Network         []byte      // identity of the network namespace, NetworkSize bytes, or none
	Candidates      []Candidate // in order of preference
	Failed          []Verdict   // what was tried before on behalf of this dial
	Software        string      // for logs alone
	Features        Features    // that this side has
	Auth            []Auth
}

// Code tells why a hello was refused.
type Code uint16

const (
	CodeVersion        Code = 1 // no common version
	CodeMalformed      Code = 2
	CodeCritical       Code = 3 // a critical value is unknown
	CodeService        Code = 4 // the service is not offered here
	CodeNoTransport    Code = 5 // no candidate can be used
	CodeBusy           Code = 6 // too many handshakes; try again later
	CodeAuthentication Code = 7
	CodeClosing        Code = 8 // the server is stopping
)

var codeNames = map[Code]string{
	CodeVersion: "no common version", CodeMalformed: "malformed hello", CodeCritical: "unknown critical value",
	CodeService: "unknown service", CodeNoTransport: "no common transport", CodeBusy: "busy",
	CodeAuthentication: "authentication failed", CodeClosing: "closing",
}

func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("refusal code %d", uint16(c))
}

// A Refusal is a no.
type Refusal struct {
	Code Code
	Text string
}

func (r *Refusal) Error() string {
	if r.Text == "" {
		return r.Code.String()
	}
	return r.Code.String() + ": " + r.Text
}

// An Accept names the transport that the answering side has taken. Address and
// Token belong to transports with a port of their own: the dialling side
// connects there and shows the token, which works once.
type Accept struct {
	Name    string
	Token   []byte // TokenSize bytes, or none
	Address string
}

// An Answer is the reply to a Hello. Exactly one of Accept and Refusal is set.
type Answer struct {
	// Least and Greatest are both the version chosen, or, in a refusal, the
	// range that the answering side speaks.
	Least, Greatest uint8
	Accept          *Accept
	Refusal         *Refusal
	Verdicts        []Verdict
	// Passing names the candidates whose verdict may soon be another one, such as
	// those that lacked memory.
	Passing  []string
	Host     []byte
	Network  []byte
	Software string
	Features Features // that this side has
}

// Features are additions to the endpoint protocol that both sides must have before
// either uses them. Bits that are not known are kept and mean nothing.
type Features uint64

// FeatureOneSided: one-sided operations that the peer's runtime serves.
const FeatureOneSided Features = 1 << 0

// FeatureServed: on a queue pair, operations that the peer's runtime serves as messages.
const FeatureServed Features = 1 << 1

// FeatureLane: over TCP, one-sided operations on a connection of their own.
const FeatureLane Features = 1 << 2

// Encode returns h as it goes on the wire.
func (h *Hello) Encode() ([]byte, error) {
	e := newEncoder(kindHello, h.Least, h.Greatest)
	if h.Service != "" {
		if err := CheckService(h.Service); err != nil {
			return nil, err
		}
		e.value(typeService, []byte(h.Service))
	}
	if h.Probe {
		e.value(typeProbe)
	}
	if h.Service == "" && !h.Probe {
		return nil, errors.New("hello: neither a service nor a probe")
	}
	if err := e.identities(h.Host, h.Network); err != nil {
		return nil, err
	}
	if len(h.Candidates) > MaxCandidates {
		return nil, fmt.Errorf("hello: %d candidates, at most %d fit", len(h.Candidates), MaxCandidates)
	}
	for _, c := range h.Candidates {
		if err := e.named(typeCandidate, c.Name, c.Parameters); err != nil {
			return nil, err
		}
	}
	e.software(h.Software)
	e.features(h.Features)
	for _, a := range h.Auth {
		if err := e.named(typeAuth, a.Mechanism, a.Data); err != nil {
			return nil, err
		}
	}
	if err := e.verdicts(typeFailed, h.Failed); err != nil {
		return nil, err
	}
	return e.finish()
}

// Encode returns a as it goes on the wire.
func (a *Answer) Encode() ([]byte, error) {
	e := newEncoder(kindAnswer, a.Least, a.Greatest)
	switch {
	case a.Accept != nil && a.Refusal == nil:
		if n := len(a.Accept.Token); n != 0 && n != TokenSize {
			return nil, fmt.Errorf("hello: token of %d bytes", n)
		}
		if len(a.Accept.Address) > MaxAddress {
			return nil, fmt.Errorf("hello: address of %d bytes, at most %d fit", len(a.Accept.Address), MaxAddress)
		}
		rest := append([]byte{byte(len(a.Accept.Token))}, a.Accept.Token...)
		rest = binary.BigEndian.AppendUint16(rest, uint16(len(a.Accept.Address)))
		rest = append(rest, a.Accept.Address...)
		if err := e.named(typeAccept, a.Accept.Name, rest); err != nil {
			return nil, err
		}
	case a.Refusal != nil && a.Accept == nil:
		e.value(typeRefusal, binary.BigEndian.AppendUint16(nil, uint16(a.Refusal.Code)), []byte(cut(a.Refusal.Text)))
	default:
		return nil, errors.New("hello: an answer either accepts or refuses")
	}
	if err := e.identities(a.Host, a.Network); err != nil {
		return nil, err
	}
	e.software(a.Software)
	e.features(a.Features)
	if err := e.names(typePassing, a.Passing); err != nil {
		return nil, err
	}
	if err := e.verdicts(typeVerdict, a.Verdicts); err != nil {
		return nil, err
	}
	return e.finish()
}

// ReadHello reads one hello from r, and not a byte more. The first seen bytes
// of it, at most len(Magic), have been read and compared already, as [Sniff]
// does.
//
// A hello of versions that this side does not speak comes back with a
// [*VersionError] and no values, because their meaning is not known.
func ReadHello(r io.Reader, seen int) (Hello, error) {
	m, err := readMessage(r, seen)
	if err != nil {
		return Hello{}, err
	}
	return parseHello(m)
}

// ReadAnswer reads one answer from r, and not a byte more. Bytes of another
// protocol, a connection that ends within the magic, and a hello, which is what an
// echo server sends back, fail with [ErrNotHello].
func ReadAnswer(r io.Reader) (Answer, error) {
	m, err := readMessage(r, 0)
	if errors.Is(err, errWithinMagic) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNotHello, err)
	}
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(m)
}

// ParseHello decodes a whole hello.
func ParseHello(b []byte) (Hello, error) {
	m, err := split(b)
	if err != nil {
		return Hello{}, err
	}
	return parseHello(m)
}

// ParseAnswer decodes a whole answer.
func ParseAnswer(b []byte) (Answer, error) {
	m, err := split(b)
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(m)
}

type message struct {
	kind            kind
	least, greatest uint8
	values          []byte
}

func parseHeader(b []byte) (m message, size int, err error) {
	if !bytes.Equal(b[:len(Magic)], Magic[:]) {
		return m, 0, ErrNotHello
	}
	m = message{kind: kind(b[8]), least: b[12], greatest: b[13]}
	size = int(binary.BigEndian.Uint16(b[10:]))
	if size < headerSize || size > MaxSize {
		return m, 0, fmt.Errorf("%w: length %d is not between %d and %d", ErrMalformed, size, headerSize, MaxSize)
	}
	return m, size, nil
}

func split(b []byte) (message, error) {
	if len(b) < headerSize {
		return message{}, fmt.Errorf("%w: %d bytes are no header", ErrMalformed, len(b))
	}
	m, size, err := parseHeader(b)
	if err != nil {
		return m, err
	}
	if size != len(b) {
		return m, fmt.Errorf("%w: length %d in a message of %d bytes", ErrMalformed, size, len(b))
	}
	m.values = b[headerSize:]
	return m, nil
}

func readMessage(r io.Reader, seen int) (message, error) {
	var header [headerSize]byte
	seen = copy(header[:], Magic[:min(max(seen, 0), len(Magic))])
	// The magic is judged before more is waited for: a peer of another protocol
	// may never send sixteen bytes.
	for seen < headerSize {
		n, err := r.Read(header[seen:])
		seen += n
		if m := min(seen, len(Magic)); !bytes.Equal(header[:m], Magic[:m]) {
			return message{}, ErrNotHello
		}
		if err != nil && seen < headerSize {
			if err == io.EOF && seen > 0 {
				err = io.ErrUnexpectedEOF
			}
			if seen > 0 && seen < len(Magic) && !errors.Is(err, os.ErrDeadlineExceeded) {
				err = fmt.Errorf("%w: %w", errWithinMagic, err)
			}
			return message{}, err
		}
	}
	m, size, err := parseHeader(header[:])
	if err != nil {
		return m, err
	}
	m.values = make([]byte, size-headerSize)
	if _, err := io.ReadFull(r, m.values); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return m, err
	}
	return m, nil
}

func parseHello(m message) (Hello, error) {
	h := Hello{Least: m.least, Greatest: m.greatest}
	if m.kind != kindHello {
		return h, fmt.Errorf("%w: kind %d where a hello is due", ErrMalformed, m.kind)
	}
	if _, err := Choose(m.least, m.greatest); err != nil {
		return h, err
	}
	d := decoder{rest: m.values}
	for d.next() {
		switch d.typ {
		case typeService:
			h.Service = d.name("service", d.val, MaxService)
			d.once(1 << 0)
		case typeProbe:
			d.size(0)
			h.Probe = true
		case typeHost:
			d.size(HostSize)
			d.once(1 << 1)
			h.Host = d.val
		case typeNetwork:
			d.size(NetworkSize)
			d.once(1 << 4)
			h.Network = d.val
		case typeCandidate:
			name, rest := d.named()
			d.room(len(h.Candidates))
			h.Candidates = append(h.Candidates, Candidate{Name: name, Parameters: rest})
		case typeSoftware:
			d.once(1 << 2)
			h.Software = d.text(d.val)
		case typeFeatures:
			d.once(1 << 5)
			h.Features = d.features()
		case typeAuth:
			name, rest := d.named()
			d.room(len(h.Auth))
			h.Auth = append(h.Auth, Auth{Mechanism: name, Data: rest})
		case typeFailed:
			h.Failed = d.verdict(h.Failed)
		default:
			d.unknown()
		}
	}
	if d.err == nil && h.Service == "" && !h.Probe {
		d.fail("neither a service nor a probe")
	}
	return h, d.err
}

func parseAnswer(m message) (Answer, error) {
	a := Answer{Least: m.least, Greatest: m.greatest}
	if m.kind == kindHello {
		// No server says hello. One that sends back what it gets does.
		return a, fmt.Errorf("%w: the hello came back as an echo", ErrNotHello)
	}
	if m.kind != kindAnswer {
		return a, fmt.Errorf("%w: kind %d where an answer is due", ErrMalformed, m.kind)
	}
	d := decoder{rest: m.values}
	for d.next() {
		switch d.typ {
		case typeAccept:
			d.once(1 << 3)
			a.Accept = d.accept()
		case typeRefusal:
			d.once(1 << 3)
			if len(d.val) < 2 {
				d.fail("refusal without a code")
				break
			}
			a.Refusal = &Refusal{Code: Code(binary.BigEndian.Uint16(d.val)), Text: d.text(d.val[2:])}
		case typeHost:
			d.size(HostSize)
			d.once(1 << 1)
			a.Host = d.val
		case typeNetwork:
			d.size(NetworkSize)
			d.once(1 << 4)
			a.Network = d.val
		case typePassing:
			d.room(len(a.Passing))
			a.Passing = append(a.Passing, d.name("name", d.val, MaxName))
		case typeSoftware:
			d.once(1 << 2)
			a.Software = d.text(d.val)
		case typeFeatures:
			d.once(1 << 5)
			a.Features = d.features()
		case typeVerdict:
			a.Verdicts = d.verdict(a.Verdicts)
		default:
			d.unknown()
		}
	}
	if d.err == nil && a.Accept == nil && a.Refusal == nil {
		d.fail("neither an acceptance nor a refusal")
	}
	if d.err == nil && a.Accept != nil && (a.Least != a.Greatest || a.Least < LeastVersion || a.Least > Version) {
		d.fail(fmt.Sprintf("accepted with versions %d to %d", a.Least, a.Greatest))
	}
	return a, d.err
}

type encoder struct {
	b []byte
}

func newEncoder(k kind, least, greatest uint8) *encoder {
	e := &encoder{b: make([]byte, headerSize, 512)}
	copy(e.b, Magic[:])
	e.b[8], e.b[12], e.b[13] = byte(k), least, greatest
	return e
}

func (e *encoder) value(typ uint16, parts ...[]byte) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	e.b = binary.BigEndian.AppendUint16(e.b, typ)
	e.b = binary.BigEndian.AppendUint16(e.b, uint16(min(n, MaxSize)))
	for _, p := range parts {
		e.b = append(e.b, p...)
	}
}

func (e *encoder) named(typ uint16, name string, rest []byte) error {
	if err := checkName("name", name, MaxName); err != nil {
		return err
	}
	e.value(typ, []byte{byte(len(name))}, []byte(name), rest)
	return nil
}

func (e *encoder) identities(host, network []byte) error {
	for _, i := range []struct {
		what string
		typ  uint16
		id   []byte
		size int
	}{{"host", typeHost, host, HostSize}, {"network", typeNetwork, network, NetworkSize}} {
		switch len(i.id) {
		case 0:
		case i.size:
			e.value(i.typ, i.id)
		default:
			return fmt.Errorf("hello: %s identity of %d bytes, not %d", i.what, len(i.id), i.size)
		}
	}
	return nil
}

func (e *encoder) names(typ uint16, names []string) error {
	if len(names) > MaxCandidates {
		return fmt.Errorf("hello: %d names, at most %d fit", len(names), MaxCandidates)
	}
	for _, name := range names {
		if err := checkName("name", name, MaxName); err != nil {
			return err
		}
		e.value(typ, []byte(name))
	}
	return nil
}

func (e *encoder) software(s string) {
	if s = cut(s); s != "" {
		e.value(typeSoftware, []byte(s))
	}
}

func (e *encoder) features(f Features) {
	if f != 0 {
		e.value(typeFeatures, binary.BigEndian.AppendUint64(nil, uint64(f)))
	}
}

// verdicts drops those that no longer fit: they only explain.
func (e *encoder) verdicts(typ uint16, vs []Verdict) error {
	for _, v := range vs[:min(len(vs), MaxCandidates)] {
		text := cut(v.Text)
		if len(e.b)+4+1+len(v.Name)+len(text) > MaxSize {
			return nil
		}
		if err := e.named(typ, v.Name, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

func (e *encoder) finish() ([]byte, error) {
	if len(e.b) > MaxSize {
		return nil, fmt.Errorf("hello: %d bytes, at most %d fit", len(e.b), MaxSize)
	}
	binary.BigEndian.PutUint16(e.b[10:], uint16(len(e.b)))
	return e.b, nil
}

type decoder struct {
	rest []byte
	typ  uint16
	val  []byte
	seen uint
	err  error
}

func (d *decoder) next() bool {
	if d.err != nil || len(d.rest) == 0 {
		return false
	}
	if len(d.rest) < 4 {
		d.fail("a value ends in its header")
		return false
	}
	d.typ = binary.BigEndian.Uint16(d.rest)
	n := int(binary.BigEndian.Uint16(d.rest[2:]))
	if n > len(d.rest)-4 {
		d.fail(fmt.Sprintf("value %#04x of %d bytes where %d are left", d.typ, n, len(d.rest)-4))
		return false
	}
	d.val, d.rest = d.rest[4:4+n:4+n], d.rest[4+n:]
	return true
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrMalformed, what)
	}
}

func (d *decoder) unknown() {
	if d.typ&critical != 0 && d.err == nil {
		d.err = &CriticalError{Type: d.typ}
	}
}

func (d *decoder) once(bit uint) {
	if d.seen&bit != 0 {
		d.fail(fmt.Sprintf("value %#04x again, or beside one that excludes it", d.typ))
	}
	d.seen |= bit
}

func (d *decoder) size(n int) {
	if len(d.val) != n {
		d.fail(fmt.Sprintf("value %#04x of %d bytes, not %d", d.typ, len(d.val), n))
	}
}

func (d *decoder) features() Features {
	d.size(8)
	if d.err != nil {
		return 0
	}
	return Features(binary.BigEndian.Uint64(d.val))
}

func (d *decoder) room(n int) {
	if n >= MaxCandidates {
		d.fail(fmt.Sprintf("more than %d values %#04x", MaxCandidates, d.typ))
	}
}

func (d *decoder) name(what string, b []byte, limit int) string {
	s := string(b)
	if err := checkName(what, s, limit); err != nil {
		d.fail(err.Error())
		return ""
	}
	return s
}

func (d *decoder) named() (string, []byte) {
	if len(d.val) == 0 || int(d.val[0]) > len(d.val)-1 {
		d.fail(fmt.Sprintf("value %#04x ends in its name", d.typ))
		return "", nil
	}
	n := 1 + int(d.val[0])
	return d.name("name", d.val[1:n], MaxName), d.val[n:]
}

func (d *decoder) text(b []byte) string {
	if len(b) > MaxText || !utf8.Valid(b) {
		d.fail(fmt.Sprintf("value %#04x: text too long or not UTF-8", d.typ))
		return ""
	}
	return string(b)
}

func (d *decoder) verdict(vs []Verdict) []Verdict {
	d.room(len(vs))
	name, rest := d.named()
	return append(vs, Verdict{Name: name, Text: d.text(rest)})
}

func (d *decoder) accept() *Accept {
	name, rest := d.named()
	a := &Accept{Name: name}
	if len(rest) < 1 || int(rest[0]) > len(rest)-3 {
		d.fail("acceptance ends in its token")
		return a
	}
	n := int(rest[0])
	if n != 0 && n != TokenSize {
		d.fail(fmt.Sprintf("token of %d bytes", n))
		return a
	}
	if n > 0 {
		a.Token = rest[1 : 1+n]
	}
	rest = rest[1+n:]
	if int(binary.BigEndian.Uint16(rest)) != len(rest)-2 || len(rest)-2 > MaxAddress {
		d.fail("acceptance with a wrong address length")
		return a
	}
	a.Address = string(rest[2:])
	if !utf8.ValidString(a.Address) {
		d.fail("address is not UTF-8")
	}
	return a
}

// CheckService tells what is wrong with the name of a service, if anything.
func CheckService(name string) error { return checkName("service", name, MaxService) }

// checkName wants something that may stand in a log line and a table.
func checkName(what, s string, limit int) error {
	if s == "" || len(s) > limit {
		return fmt.Errorf("hello: %s of %d bytes, not 1 to %d", what, len(s), limit)
	}
	for _, r := range s {
		if r == utf8.RuneError || r == ' ' || !unicode.IsPrint(r) {
			return fmt.Errorf("hello: %s %q has a character that is not printable", what, s)
		}
	}
	return nil
}

// cut shortens an explanation at a character's border.
func cut(s string) string {
	s = string(bytes.ToValidUTF8([]byte(s), []byte("?")))
	if len(s) <= MaxText {
		return s
	}
	n := MaxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
