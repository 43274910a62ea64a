package engine

import (
	"encoding/binary"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/cq"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// owner is a protection domain without anything.
type owner struct{ name string }

func (owner) BreakPins(*mem.Region) {}
func (owner) Forget(*mem.Region)    {}

// machine is an engine between a script and its printed answers. It stands for
// the shell: it writes what the engine has to write and prints it, and feeds
// what the script says that the peer sent.
type machine struct {
	t        testing.TB
	table    *mem.Table
	owner    *owner
	regions  map[string]*mem.Region
	engine   *Engine
	receives *RecvQueue
	sends    *cq.Queue
	recvs    *cq.Queue
	params   Params
	msn      [4]uint32 // what the peer's next untagged message has
	writer   bool      // write by itself
	role     bool      // the writer's role has been handed out and not used
	failed   bool
	chunk    int           // bytes that come at a time
	marks    markerWriter  // the peer's, if it sends markers
	unmarks  *markerReader // the peer's, if it receives some
	unread   []byte        // of the peer, while a message waits for a receive
	out      strings.Builder
	wrote    []byte // all that was written
}

func newMachine(t testing.TB) *machine {
	return &machine{t: t, table: mem.NewTable(), owner: &owner{"own"}, regions: map[string]*mem.Region{},
		msn: [4]uint32{1, 1, 1, 1}, writer: true, chunk: 1 << 20}
}

func (m *machine) close() {
	for _, r := range m.regions {
		_ = r.Close()
	}
}

func (m *machine) printf(format string, args ...any) { fmt.Fprintf(&m.out, format+"\n", args...) }

// open makes and connects the engine.
func (m *machine) open(p Params, shared bool, cfg Config) {
	m.params = p
	if p.SendMarkers {
		m.unmarks = &markerReader{crc: p.CRC}
	}
	m.sends, m.recvs = cq.New(64, nil, nil), cq.New(64, nil, nil)
	cfg.Number, cfg.Owner, cfg.Regions = 1, m.owner, m.table
	cfg.SendCompletions, cfg.RecvCompletions = m.sends, m.recvs
	m.receives = NewRecvQueue(m.owner, 4, 2, 2, func() { m.printf("few receives are left") })
	cfg.Receives, cfg.SharedReceives = m.receives, shared
	cfg.SinkTag = 0x1000
	cfg.OnFail = func(bool) { m.failed = true }
	cfg.OnReceive = m.resume
	m.engine = New(cfg)
	kick, err := m.engine.Start(p)
	if err != nil {
		m.printf("start: %v", err)
	}
	m.role = m.role || kick
	m.settle()
}

// settle writes what there is to write and prints what has happened.
func (m *machine) settle() {
	m.role = m.engine.Kick() || m.role
	if m.writer {
		m.write()
	}
	for _, q := range []struct {
		name string
		*cq.Queue
	}{{"send", m.sends}, {"recv", m.recvs}} {
		var c [8]rdma.Completion
		for {
			n, err := q.Poll(c[:])
			for _, c := range c[:n] {
				s := fmt.Sprintf("%s completion: %d %s", q.name, c.ID, c.Status)
				if c.Status == rdma.StatusSuccess {
					s += fmt.Sprintf(", %s, length %d", c.Op, c.Length)
					if c.HasImmediate {
						s += fmt.Sprintf(", immediate %#x", c.Immediate)
					}
					if c.Invalidated {
						s += fmt.Sprintf(", invalidated %#x", c.Immediate)
					}
				}
				m.printf("%s", s)
			}
			if err != nil {
				m.printf("%s poll: %v", q.name, err)
			}
			if n == 0 {
				break
			}
		}
	}
	if m.failed {
		m.failed = false
		m.printf("failed: %v", m.engine.Err())
		m.tellStopped()
	}
}

func (m *machine) tellStopped() {
	select {
	case <-m.engine.Stopped():
	default:
		m.printf("the writer is not through")
	}
}

func (m *machine) write() {
	if !m.role {
		return
	}
	m.role = false
	b := NewBatch()
	defer b.Free()
	for m.engine.Fill(b) {
		var bytes []byte
		for _, v := range b.Vectors {
			bytes = append(bytes, v...)
		}
		if len(bytes) != b.Size {
			m.t.Fatalf("batch of %d bytes says %d", len(bytes), b.Size)
		}
		m.wrote = append(m.wrote, bytes...)
		m.describe(bytes)
		m.engine.Written(b)
	}
}

// describe prints FPDUs.
func (m *machine) describe(b []byte) {
	if m.unmarks != nil {
		m.describeMarked(b)
		return
	}
	for len(b) > 0 {
		n := int(binary.BigEndian.Uint16(b))
		size := wire.LengthSize + n + wire.Padding(n) + wire.CRCSize
		if size > len(b) {
			m.t.Fatalf("an FPDU of %d bytes, %d are there", size, len(b))
		}
		at := size - wire.CRCSize
		sum := uint32(0)
		if m.params.CRC {
			sum = wire.UpdateCRC(0, b[:at])
		}
		if wire.CRC(b[at:]) != sum {
			m.t.Fatalf("FPDU %x has CRC %08x", b[:size], wire.CRC(b[at:]))
		}
		m.printf("-> %s", describeSegment(b[wire.LengthSize:wire.LengthSize+n]))
		b = b[size:]
	}
}

// describeMarked prints FPDUs with markers.
func (m *machine) describeMarked(b []byte) {
	for len(b) > 0 {
		n, frame, f := m.unmarks.next(b)
		if f != nil {
			m.t.Fatalf("what is sent with markers: %v", f.error())
		}
		b = b[n:]
		if frame == nil {
			m.t.Fatalf("%d bytes of an FPDU with markers are left over", n)
		}
		ulpdu := binary.BigEndian.Uint16(frame)
		m.printf("-> %s (with markers)", describeSegment(frame[wire.LengthSize:][:ulpdu]))
	}
}

func describeSegment(b []byte) string {
	s, err := wire.ParseSegment(b)
	if err != nil {
		return err.Error()
	}
	payload := b[s.HeaderSize():]
	var d strings.Builder
	fmt.Fprintf(&d, "%s", s.Opcode)
	if s.Tagged {
		fmt.Fprintf(&d, " tag %#x offset %#x", s.STag, s.Offset)
	} else {
		fmt.Fprintf(&d, " queue %d msn %d offset %d", s.Queue, s.MSN, s.Offset)
		if s.STag != 0 {
			fmt.Fprintf(&d, " invalidates %#x", s.STag)
		}
	}
	if s.Last {
		d.WriteString(" last")
	}
	switch s.Opcode {
	case wire.OpReadRequest:
		r, _ := wire.ParseReadRequest(payload)
		fmt.Fprintf(&d, ": %d bytes from %#x of tag %#x to %#x of tag %#x", r.Length, r.SourceOffset, r.SourceSTag, r.SinkOffset, r.SinkSTag)
	case wire.OpTerminate:
		t, err := wire.ParseTerminate(payload)
		fmt.Fprintf(&d, ": %v", t.Cause)
		if err != nil {
			fmt.Fprintf(&d, " %v", err)
		}
		if t.HasSegment {
			fmt.Fprintf(&d, ", about %d bytes of %s msn %d", t.SegmentLength, t.Segment.Opcode, t.Segment.MSN)
		}
		if t.HasRequest {
			fmt.Fprintf(&d, ", which asked for %d bytes", t.Request.Length)
		}
	case wire.OpImmediate, wire.OpImmediateSolicited:
		fmt.Fprintf(&d, ": %#x", binary.BigEndian.Uint64(payload))
	case wire.OpAtomicRequest:
		r, _ := wire.ParseAtomicRequest(payload)
		fmt.Fprintf(&d, ": operation %d request %d tag %#x offset %#x data %d/%x compare %d/%x",
			r.Op, r.ID, r.STag, r.Offset, r.AddSwap, r.AddSwapMask, r.Compare, r.CompareMask)
	case wire.OpAtomicResponse:
		r, _ := wire.ParseAtomicResponse(payload)
		fmt.Fprintf(&d, ": request %d value %d", r.ID, r.Value)
	default:
		if len(payload) > 200 {
			fmt.Fprintf(&d, ": %d bytes, %q...", len(payload), payload[:8])
			break
		}
		fmt.Fprintf(&d, ": %q", payload)
	}
	return d.String()
}

// feed gives bytes to the engine as a shell does, chunk bytes at a time. It keeps
// what comes while a message waits for a receive.
func (m *machine) feed(b []byte) {
	m.unread = append(m.unread, b...)
	for len(m.unread) > 0 && !m.engine.Waiting() {
		n := min(len(m.unread), m.chunk)
		part := m.unread[:n]
		m.unread = m.unread[n:]
		if direct := m.engine.Direct(); direct != nil {
			k := copy(direct, part)
			m.engine.Placed(k)
			part = part[k:]
		}
		if err := m.engine.Feed(part); err != nil {
			m.unread = nil
			return
		}
		if m.engine.Waiting() {
			m.printf("a message waits for a receive")
		}
	}
}

// resume goes on after a wait.
func (m *machine) resume() {
	went, err := m.engine.Resume()
	if !went {
		m.t.Fatal("a receive was given to no message")
	}
	if err != nil {
		return
	}
	if m.engine.Waiting() {
		m.printf("the next message waits for a receive")
	}
	m.feed(nil)
}

// arguments of a line of a script: words, some of them key=value.
type arguments map[string]string

func (m *machine) parse(line string) (string, arguments) {
	words := strings.Fields(line)
	a := arguments{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		a[k] = v
	}
	return words[0], a
}

func (a arguments) has(k string) bool { _, ok := a[k]; return ok }

func (m *machine) number(a arguments, k string, otherwise uint64) uint64 {
	v, ok := a[k]
	if !ok {
		return otherwise
	}
	return m.value(v)
}

// value is a number, the address of a region ("a", "a+8", "a-1") or its key
// ("key(a)").
func (m *machine) value(v string) uint64 {
	if n, err := strconv.ParseUint(v, 0, 64); err == nil {
		return n
	}
	if name, ok := strings.CutPrefix(v, "key("); ok {
		return uint64(m.region(strings.TrimSuffix(name, ")")).Key())
	}
	at := strings.IndexAny(v, "+-")
	if at < 0 {
		return m.region(v).Address()
	}
	n, err := strconv.ParseInt(v[at:], 0, 64)
	if err != nil {
		m.t.Fatalf("%q: %v", v, err)
	}
	return m.region(v[:at]).Address() + uint64(n)
}

func (m *machine) region(name string) *mem.Region {
	r := m.regions[name]
	if r == nil {
		m.t.Fatalf("no region %q", name)
	}
	return r
}

// sges reads "a+0:8,b+4:2".
func (m *machine) sges(v string) []rdma.SGE {
	var list []rdma.SGE
	for _, each := range strings.Split(v, ",") {
		if each == "" {
			continue
		}
		place, length, _ := strings.Cut(each, ":")
		name, offset, _ := strings.Cut(place, "+")
		r := m.region(name)
		list = append(list, rdma.SGE{Region: r, Offset: decimal(offset), Length: int(m.value(length))})
	}
	return list
}

var opcodes = map[string]wire.Opcode{
	"write": wire.OpWrite, "read-request": wire.OpReadRequest, "read-response": wire.OpReadResponse,
	"send": wire.OpSend, "send-invalidate": wire.OpSendInvalidate, "send-solicited": wire.OpSendSolicited,
	"send-solicited-invalidate": wire.OpSendSolicitedInvalidate, "terminate": wire.OpTerminate,
	"immediate": wire.OpImmediate, "immediate-solicited": wire.OpImmediateSolicited,
	"atomic-request": wire.OpAtomicRequest, "atomic-response": wire.OpAtomicResponse,
}

var queues = map[wire.Opcode]uint32{wire.OpReadRequest: 1, wire.OpTerminate: 2, wire.OpAtomicRequest: 1, wire.OpAtomicResponse: 3}

// fpdu builds what a line of a script says.
func (m *machine) fpdu(line string) []byte {
	name, a := m.parse(line)
	if name == "raw" {
		var b []byte
		for h := range strings.SplitSeq(a["hex"], ",") {
			v, err := strconv.ParseUint(h, 16, 8)
			if err != nil {
				m.t.Fatal(err)
			}
			b = append(b, byte(v))
		}
		return b
	}
	op, ok := opcodes[name]
	if !ok {
		m.t.Fatalf("no message %q", name)
	}
	s := wire.Segment{Opcode: op, Last: !a.has("more"),
		Tagged: op == wire.OpWrite || op == wire.OpReadResponse}
	if a.has("tagged") {
		s.Tagged = a["tagged"] == "true"
	}
	s.STag = uint32(m.number(a, "tag", 0))
	s.Offset = m.number(a, "offset", 0)
	if !s.Tagged {
		s.Queue = uint32(m.number(a, "queue", uint64(queues[op])))
		q := min(s.Queue, 3)
		s.MSN = uint32(m.number(a, "msn", uint64(m.msn[q])))
		if s.Last && !a.has("msn") {
			m.msn[q]++
		}
	}
	body := []byte(a["data"])
	if a.has("zeros") {
		body = make([]byte, m.number(a, "zeros", 0))
	}
	switch op {
	case wire.OpReadRequest:
		r := wire.ReadRequest{SinkSTag: uint32(m.number(a, "sink", 0x77)), SinkOffset: m.number(a, "sink-offset", 0),
			Length: uint32(m.number(a, "length", 0)), SourceSTag: uint32(m.number(a, "from-tag", 0)), SourceOffset: m.number(a, "from", 0)}
		body = append(r.Append(nil), body...)
		if a.has("cut") {
			body = body[:m.number(a, "cut", 0)]
		}
	case wire.OpImmediate, wire.OpImmediateSolicited:
		if a.has("value") {
			body = binary.BigEndian.AppendUint64(nil, m.number(a, "value", 0))
		}
	case wire.OpAtomicRequest:
		if !a.has("zeros") {
			r := wire.AtomicRequest{Op: wire.AtomicOp(m.number(a, "op", 0)), ID: uint32(m.number(a, "id", 1)),
				STag: uint32(m.number(a, "from-tag", 0)), Offset: m.number(a, "from", 0),
				AddSwap: m.number(a, "add", 0), AddSwapMask: m.number(a, "mask", 0),
				Compare: m.number(a, "compare", 0), CompareMask: m.number(a, "compare-mask", 0)}
			body = r.Append(nil)
		}
	case wire.OpAtomicResponse:
		r := wire.AtomicResponse{ID: uint32(m.number(a, "id", 0)), Value: m.number(a, "value", 0)}
		body = r.Append(nil)
	case wire.OpTerminate:
		var c [3]uint64
		for i, part := range strings.Split(a["cause"], "/") {
			c[i] = m.value(part)
		}
		t := wire.Terminate{Cause: wire.Cause{Layer: uint8(c[0]), Type: uint8(c[1]), Code: uint8(c[2])}}
		body = t.Append(nil)
		if a.has("cut") {
			body = body[:m.number(a, "cut", 0)]
		}
	}
	segment := s.Append(nil)
	if a.has("opcode") {
		segment[1] = segment[1]&0xF0 | byte(m.number(a, "opcode", 0))
	}
	if a.has("ddp-version") {
		segment[0] = segment[0]&^3 | byte(m.number(a, "ddp-version", 1))
	}
	if a.has("rdmap-version") {
		segment[1] = segment[1]&0x3F | byte(m.number(a, "rdmap-version", 1))<<6
	}
	segment = append(segment, body...)
	n := int(m.number(a, "ulpdu", uint64(len(segment))))
	frame := binary.BigEndian.AppendUint16(nil, uint16(n))
	frame = append(frame, segment...)
	frame = append(frame, make([]byte, wire.Padding(len(segment)))...)
	var sum [4]byte
	if m.params.CRC && !a.has("no-crc") {
		wire.PutCRC(sum[:], wire.UpdateCRC(0, frame))
	}
	if a.has("bad-crc") {
		sum[0] ^= 1
	}
	if m.params.ReceiveMarkers {
		begin := m.marks.position
		marked := m.marks.frame(nil, m.params.CRC, frame)
		if a.has("bad-crc") {
			marked[len(marked)-1] ^= 1
		}
		if a.has("bad-marker") {
			at := (wire.MarkerInterval-begin)%wire.MarkerInterval + 2
			if at+2 > len(marked) {
				m.t.Fatalf("no marker falls into %q", line)
			}
			binary.BigEndian.PutUint16(marked[at:], binary.BigEndian.Uint16(marked[at:])+4)
		}
		return marked
	}
	return append(frame, sum[:]...)
}

func (m *machine) post(line string) {
	name, a := m.parse(line)
	ops := map[string]rdma.Opcode{"send": rdma.OpSend, "write": rdma.OpWrite, "read": rdma.OpRead,
		"send-invalidate": rdma.OpSendInvalidate, "send-immediate": rdma.OpSendImmediate, "write-immediate": rdma.OpWriteImmediate,
		"compare-swap": rdma.OpCompareSwap, "fetch-add": rdma.OpFetchAdd, "nonsense": rdma.OpRecv}
	if name == "recv" {
		_, err := m.receives.Post([]rdma.RecvRequest{{ID: m.number(a, "id", 0), SGEs: m.sges(a["to"])}})
		if err != nil {
			m.printf("post: %v", err)
		}
		return
	}
	op, ok := ops[name]
	if !ok {
		m.t.Fatalf("no request %q", name)
	}
	r := rdma.SendRequest{ID: m.number(a, "id", 0), Op: op, SGEs: m.sges(a["sge"]),
		Remote:    rdma.Remote{Address: m.number(a, "at", 0), Key: uint32(m.number(a, "tag", 0))},
		Immediate: uint32(m.number(a, "immediate", 0)), CompareAdd: m.number(a, "compare-add", 0), Swap: m.number(a, "swap", 0)}
	for flag, bit := range map[string]rdma.Flags{"signaled": rdma.Signaled, "solicited": rdma.Solicited, "inline": rdma.Inline, "fence": rdma.Fence} {
		if a.has(flag) {
			r.Flags |= bit
		}
	}
	_, kick, err := m.engine.PostSend([]rdma.SendRequest{r})
	if err != nil {
		m.printf("post: %v", err)
	}
	m.role = m.role || kick
}

var hexNumber = regexp.MustCompile(`0x[0-9a-f]+`)

// printed is the output since the last call, with the keys and addresses of
// regions, which are random, replaced by their names.
func (m *machine) printed() string {
	s := hexNumber.ReplaceAllStringFunc(m.out.String(), func(h string) string {
		v, err := strconv.ParseUint(h, 0, 64)
		if err != nil {
			return h
		}
		for name, r := range m.regions {
			switch {
			case v == uint64(r.Key()):
				return "key(" + name + ")"
			case v >= r.Address()-64 && v <= r.Address()+uint64(r.Size())+64 && v > 1<<11:
				return fmt.Sprintf("%s%+d", name, int64(v-r.Address()))
			}
		}
		return h
	})
	m.out.Reset()
	if s == "" {
		return "ok\n"
	}
	return s
}

func (m *machine) endOfStream() {
	m.engine.End(io.EOF)
}

func decimal(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
