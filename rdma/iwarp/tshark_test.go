package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// capture is a capture file: the packets are made up, the bytes are not.
type capture struct {
	mu   sync.Mutex
	file bytes.Buffer
}

func newCapture() *capture {
	c := &capture{}
	// Version 2.4, microseconds, link type 101: packets begin with the IP header.
	for _, v := range []uint32{0xa1b2c3d4, 2 | 4<<16, 0, 0, 1 << 18, 101} {
		_ = binary.Write(&c.file, binary.LittleEndian, v)
	}
	return c
}

// conversation is a TCP connection of a capture.
type conversation struct {
	*capture
	port uint16
	next [2]uint32 // sequence numbers
	// tamper may change what a side has said before it is noted and passed on.
	tamper func(from int, b []byte)
	// Where there are markers, FPDUs are noted in packets of their own: the
	// dissector finds them in no other way.
	markers [2]bool
	rest    [2][]byte // of each direction, what is no whole FPDU yet
	said    [2]int    // bytes of FPDUs noted
	setUp   [2]bool
}

const (
	tcpSYN, tcpACK, tcpFIN, tcpPSH = 2, 16, 1, 8
	captureSegment                 = 8 << 10
)

func (c *capture) conversation(port uint16) *conversation {
	v := &conversation{capture: c, port: port, next: [2]uint32{1000, 5000}}
	v.packet(0, tcpSYN, nil)
	v.packet(1, tcpSYN|tcpACK, nil)
	v.packet(0, tcpACK, nil)
	return v
}

// packet notes a TCP segment of side from.
func (c *conversation) packet(from int, flags byte, payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var p []byte
	p = append(p, 0x45, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(40+len(payload)))
	p = append(p, 0, 0, 0x40, 0, 64, 6, 0, 0) // do not fragment, TCP
	for _, host := range []int{from, 1 - from} {
		p = append(p, 192, 0, 2, byte(1+host))
	}
	for _, host := range []int{from, 1 - from} {
		p = binary.BigEndian.AppendUint16(p, [2]uint16{c.port, 4791}[host])
	}
	p = binary.BigEndian.AppendUint32(p, c.next[from])
	p = binary.BigEndian.AppendUint32(p, c.next[1-from])
	p = append(p, 5<<4, flags, 0xFF, 0xFF, 0, 0, 0, 0)
	p = append(p, payload...)
	for _, v := range []uint32{0, 0, uint32(len(p)), uint32(len(p))} {
		_ = binary.Write(&c.file, binary.LittleEndian, v)
	}
	c.file.Write(p)
	c.next[from] += uint32(len(payload))
	if flags&(tcpSYN|tcpFIN) != 0 { // they take a number
		c.next[from]++
	}
}

// say notes bytes of a side.
func (c *conversation) say(from int, b []byte) {
	if c.markers == [2]bool{} {
		c.packet(from, tcpACK|tcpPSH, b)
		return
	}
	c.rest[from] = append(c.rest[from], b...)
	for {
		n := c.whole(from)
		if n == 0 {
			return
		}
		c.packet(from, tcpACK|tcpPSH, c.rest[from][:n])
		c.rest[from] = c.rest[from][n:]
	}
}

// whole tells the length of the set-up frame or FPDU that a side's rest begins
// with, or 0 if it is not all there.
func (c *conversation) whole(from int) int {
	b := c.rest[from]
	if !c.setUp[from] {
		if len(b) < wire.SetupHeaderSize {
			return 0
		}
		n := wire.SetupHeaderSize + int(binary.BigEndian.Uint16(b[18:]))
		if len(b) < n {
			return 0
		}
		c.setUp[from] = true
		return n
	}
	at, left := 0, wire.LengthSize
	for known := false; left > 0; {
		if c.markers[from] && (c.said[from]+at)%wire.MarkerInterval == 0 {
			at += wire.MarkerSize
		}
		if at += 1; at > len(b) {
			return 0
		}
		if left--; left == 0 && !known {
			// The two bytes of the length are not parted: they begin at a multiple of 4.
			known = true
			n := int(binary.BigEndian.Uint16(b[at-2:]))
			left = n + wire.Padding(n) + wire.CRCSize
		}
	}
	c.said[from] += at
	return at
}

// pass copies one direction.
func (c *conversation) pass(from int, in, out net.Conn) {
	b := make([]byte, captureSegment)
	for {
		n, err := in.Read(b)
		if n > 0 {
			if c.tamper != nil {
				c.tamper(from, b[:n])
			}
			c.say(from, b[:n])
			if _, err := out.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				c.packet(from, tcpACK|tcpFIN, nil)
			}
			_ = out.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

// dissect returns what tshark makes of the capture.
func (c *capture) dissect(t *testing.T) string {
	t.Helper()
	tshark := testneed.Tool(t, "tshark", "apt-get install tshark")
	name := filepath.Join(t.TempDir(), "capture.pcap")
	if err := os.WriteFile(name, c.file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// The payload's heuristics take some data for ONC RPC.
	out, err := exec.Command(tshark, "-n", "-r", name, "-V", "--disable-protocol", "rpcordma").CombinedOutput()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, out)
	}
	if os.Getenv("VERBENA_SHOW_DISSECTION") != "" {
		t.Logf("%s", out)
	}
	return string(out)
}

// exchange is something that two sides say to each other.
type exchange struct {
	name string
	// Of the initiator and the one that accepts.
	a, b   Config
	tamper func(from int, b []byte)
	run    func(t *testing.T, a, b *side)
	fails  bool            // the connection fails in the course of it
	wants  map[string]bool // what tshark must see, and nothing else
	may    map[string]bool // but for these, which depend on who is faster
	lines  []string        // what it must say
	bad    int             // units with a bad CRC
	noCRC  bool
}

// captured runs an exchange and returns what tshark makes of it.
func captured(t *testing.T, x *exchange) string {
	testneed.Tool(t, "tshark", "apt-get install tshark")
	a, b := newSide(t, testDevice(t, x.a), 1<<20, nil), newSide(t, testDevice(t, x.b), 1<<20, nil)
	fill(a.memory.Bytes(), 1)
	ca, ma := tcpPair(t)
	mb, cb := tcpPair(t)
	c := newCapture()
	v := c.conversation(40000)
	v.tamper, v.markers = x.tamper, [2]bool{x.b.Markers, x.a.Markers}
	var group sync.WaitGroup
	group.Go(func() { v.pass(0, ma, mb) })
	group.Go(func() { v.pass(1, mb, ma) })
	joinStreams(t, a, b, ca, cb)
	x.run(t, a, b)
	if x.fails {
		a.ended()
		b.ended()
	}
	_ = a.qp.Close()
	_ = b.qp.Close()
	group.Wait()
	ma.Close()
	mb.Close()
	return c.dissect(t)
}

var (
	opcodeLine = regexp.MustCompile(`OpCode: (.*?) \(`)
	causeLines = regexp.MustCompile(`(?m)^.*(?:Layer|Error Types[^:]*|Error Code[^:]*): (.*)$`)
)

func (x *exchange) judge(t *testing.T, out string) {
	t.Helper()
	if at := strings.Index(out, "[Malformed"); at >= 0 {
		t.Errorf("tshark calls it malformed: %s", out[max(0, at-600):min(len(out), at+200)])
	}
	fpdus, good, bad := strings.Count(out, "FPDU\n"), strings.Count(out, "(Good CRC32)"), strings.Count(out, "(Bad CRC32")
	if x.noCRC {
		good += strings.Count(out, "CRC: 0x00000000")
	}
	if fpdus < len(x.wants) || good != fpdus-x.bad || bad != x.bad {
		t.Errorf("tshark found %d FPDUs and called the CRC of %d good and of %d bad; %d must be bad", fpdus, good, bad, x.bad)
	}
	seen := map[string]bool{}
	for _, m := range opcodeLine.FindAllStringSubmatch(out, -1) {
		if !x.may[m[1]] {
			seen[m[1]] = true
		}
	}
	if !maps.Equal(seen, x.wants) {
		t.Errorf("tshark saw %v, want %v", slices.Sorted(maps.Keys(seen)), slices.Sorted(maps.Keys(x.wants)))
	}
	for _, want := range append(x.lines, "Request frame header", "Reply frame header") {
		if !strings.Contains(out, want) {
			t.Errorf("tshark does not say %q, but %q", want, causeLines.FindAllString(out, -1))
		}
	}
}

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

// done waits for the completion of a's last request.
func done(t *testing.T, a *side) {
	t.Helper()
	if c := next(t, a.sends); c.Status != rdma.StatusSuccess {
		t.Fatalf("completion: %s: %v", c.Status, a.qp.Err())
	}
}

// everyOperation has each operation of RFC 5040 move nothing, little and much.
func everyOperation(sizes ...int) func(t *testing.T, a, b *side) {
	return func(t *testing.T, a, b *side) {
		for i, n := range sizes {
			for j, flags := range []rdma.Flags{0, rdma.Solicited} {
				b.recv(uint64(i), 0, 1<<20)
				b.recv(uint64(i), 0, 1<<20)
				revocable, err := b.domain.Allocate(64, rdma.AccessRemoteInvalidate)
				if err != nil {
					t.Fatal(err)
				}
				a.send(rdma.SendRequest{Op: rdma.OpWrite, SGEs: a.sge(0, n), Remote: b.at(0)})
				a.send(rdma.SendRequest{Op: rdma.OpRead, SGEs: a.sge(0, n), Remote: b.at(0)})
				a.send(rdma.SendRequest{Op: rdma.OpSend, Flags: flags, SGEs: a.sge(0, n)})
				a.send(rdma.SendRequest{Op: rdma.OpSendInvalidate, Flags: flags | rdma.Signaled, SGEs: a.sge(0, n), Remote: rdma.Remote{Key: revocable.Key()}})
				next(t, b.recvs)
				if c := next(t, b.recvs); !c.Invalidated {
					t.Errorf("round %d: %+v", j, c)
				}
				done(t, a)
			}
		}
		// The other way, too.
		b.send(rdma.SendRequest{Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: b.sge(0, sizes[len(sizes)-1]), Remote: a.at(0)})
		done(t, b)
	}
}

var everyName = set("Write", "Read Request", "Read Response", "Send", "Send with SE", "Send with Invalidate", "Send with SE and Invalidate")

// hello is one message each way.
func hello(t *testing.T, a, b *side) {
	a.recv(1, 0, 64)
	b.recv(1, 0, 64)
	a.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 8)})
	next(t, b.recvs)
	b.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: b.sge(0, 8)})
	next(t, a.recvs)
}

// TestTshark lets a dissector that others wrote judge what goes over the wire.
func TestTshark(t *testing.T) {
	by := func(kinds ...engine.Ready) Config {
		if kinds == nil {
			kinds = []engine.Ready{}
		}
		return Config{readyToReceive: kinds, extensions: engine.ExtensionsOff}
	}
	plain := Config{extensions: engine.ExtensionsOff}
	posted := func(post func(a, b *side) rdma.SendRequest) func(t *testing.T, a, b *side) {
		return func(t *testing.T, a, b *side) {
			r := post(a, b)
			if r.SGEs == nil {
				r.SGEs = a.sge(0, 8)
			}
			a.send(r)
		}
	}
	for _, x := range []exchange{
		{name: "operations", run: everyOperation(0, 1, 2, 3, 1000, 1500, 200000), wants: everyName},
		{name: "operations by segments", a: Config{SegmentSized: true}, b: Config{SegmentSized: true}, run: everyOperation(0, 3, 5000, 100000), wants: everyName},
		{name: "operations without CRC", a: Config{NoCRC: true}, b: Config{NoCRC: true}, run: everyOperation(0, 3, 5000), wants: everyName, noCRC: true},
		{name: "one side wants CRC", a: Config{NoCRC: true}, run: everyOperation(0, 3), wants: everyName},
		{name: "markers both ways", a: Config{Markers: true}, b: Config{Markers: true}, run: everyOperation(0, 3, 400, 20000), wants: everyName, lines: []string{"Markers"}},
		// Here the dissector does not look at what the initiator says.
		{name: "markers from the responder", a: Config{Markers: true}, run: func(t *testing.T, a, b *side) {
			everyOperation(0, 400, 5000)(t, b, a)
		}, wants: everyName, lines: []string{"Markers"}},
		{name: "markers from the initiator", b: Config{Markers: true}, run: everyOperation(0, 400), wants: everyName, lines: []string{"Markers"}},
		{name: "extensions", run: func(t *testing.T, a, b *side) {
			at := b.at(0)
			b.recv(1, 0, 0)
			b.recv(2, 0, 0)
			a.send(rdma.SendRequest{Op: rdma.OpFetchAdd, SGEs: a.sge(0, 8), Remote: at, CompareAdd: 5})
			a.send(rdma.SendRequest{Op: rdma.OpWriteImmediate, SGEs: a.sge(0, 8), Remote: at})
			a.send(rdma.SendRequest{Op: rdma.OpWriteImmediate, Flags: rdma.Solicited, Remote: at})
			a.send(rdma.SendRequest{Op: rdma.OpCompareSwap, Flags: rdma.Signaled, SGEs: a.sge(8, 8), Remote: at, CompareAdd: 5, Swap: 6})
			done(t, a)
			next(t, b.recvs)
			next(t, b.recvs)
		}, wants: set("Write", "Atomic Request", "Atomic Response", "FetchAdd", "CmpSwap", "Unknown"),
			// A Read asks for an answer that has not come by itself.
			may: set("Read Request", "Read Response")},

		{name: "ready by Write", a: by(engine.ReadyWrite), b: plain, run: hello, wants: set("Write", "Send")},
		{name: "ready by Read", a: by(engine.ReadyRead), b: plain, run: hello, wants: set("Read Request", "Read Response", "Send")},
		{name: "ready by Send", a: by(engine.ReadySend), b: plain, run: hello, wants: set("Send")},
		{name: "not peer to peer", a: by(), b: plain, run: hello, wants: set("Send")},
		{name: "peer to peer declined", a: plain, b: by(), run: hello, wants: set("Send")},
		{name: "revision 1", a: Config{Revision: wire.Revision1, extensions: engine.ExtensionsOff}, b: plain, run: hello, wants: set("Send"), lines: []string{"Revision: 1"}},

		{name: "bad key of a Write", fails: true, run: posted(func(a, b *side) rdma.SendRequest {
			to := b.at(0)
			to.Key ^= 1
			return rdma.SendRequest{Op: rdma.OpWrite, Remote: to}
		}), wants: set("Write", "Terminate"), lines: []string{"DDP (0x1)", "Tagged Buffer Error (0x1)", "Invalid STag (0x00)"}},
		{name: "Read out of bounds", fails: true, run: posted(func(a, b *side) rdma.SendRequest {
			return rdma.SendRequest{Op: rdma.OpRead, Remote: b.at(1<<20 - 4)}
		}), wants: set("Write", "Read Request", "Terminate"), lines: []string{"RDMA (0x0)", "Remote Protection Error (0x1)", "Base or bounds violation (0x01)"}},
		{name: "message too long", fails: true, run: posted(func(a, b *side) rdma.SendRequest {
			b.recv(1, 0, 4)
			return rdma.SendRequest{Op: rdma.OpSend}
		}), wants: set("Write", "Send", "Terminate"), lines: []string{"DDP (0x1)", "Untagged Buffer Error (0x2)", "too long"}},
		{name: "invalidation without the right", fails: true, run: posted(func(a, b *side) rdma.SendRequest {
			b.recv(1, 0, 64)
			return rdma.SendRequest{Op: rdma.OpSendInvalidate, Remote: rdma.Remote{Key: b.memory.Key()}}
		}), wants: set("Write", "Send with Invalidate", "Terminate"), lines: []string{"RDMA (0x0)", "Remote Protection Error (0x1)", "(0x09)"}},
		{name: "damage", fails: true, bad: 1, tamper: func() func(int, []byte) {
			at := 0
			return func(from int, b []byte) {
				// The last bytes of a Send that is larger than a packet.
				if from == 1 {
					return
				}
				if at += len(b); at > 100000 {
					b[len(b)/2] ^= 1
					at = -1 << 40
				}
			}
		}(), run: posted(func(a, b *side) rdma.SendRequest {
			b.recv(1, 0, 1<<20)
			return rdma.SendRequest{Op: rdma.OpSend, SGEs: a.sge(0, 150000)}
		}), wants: set("Write", "Send", "Terminate"), lines: []string{"LLP (0x2)", "MPA Error (0x0)", "MPA CRC Error (0x02)"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.judge(t, captured(t, &x))
		})
	}
}

// TestTsharkRejection dissects a refused Request, with private data both ways.
func TestTsharkRejection(t *testing.T) {
	testneed.Tool(t, "tshark", "apt-get install tshark")
	d := testDevice(t, Config{})
	a := newSide(t, d, 4096, nil)
	ca, ma := tcpPair(t)
	mb, cb := tcpPair(t)
	c := newCapture()
	v := c.conversation(40000)
	var group sync.WaitGroup
	group.Go(func() { v.pass(0, ma, mb) })
	group.Go(func() { v.pass(1, mb, ma) })
	failed := make(chan error, 1)
	go func() {
		r, err := d.RequestFromStream(bounded(t), cb)
		if err == nil && string(r.PrivateData()) != "may I" {
			err = fmt.Errorf("private data %q", r.PrivateData())
		}
		if err == nil {
			err = r.Reject([]byte("not today"))
		}
		failed <- err
	}()
	reply, err := d.ConnectStream(bounded(t), a.qp, ca, []byte("may I"))
	var rejected *rdma.RejectedError
	if !errors.As(err, &rejected) || string(rejected.PrivateData) != "not today" || string(reply) != "not today" {
		t.Fatalf("%q, %v", reply, err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	group.Wait()
	ma.Close()
	mb.Close()
	out := c.dissect(t)
	for _, want := range []string{"Request frame header", "Reply frame header", "Connection rejected flag: True"} {
		if !strings.Contains(out, want) {
			t.Errorf("tshark does not say %q:\n%s", want, out)
		}
	}
}

// TestTsharkTerminates dissects a Terminate for each cause that the RFCs know: the
// dissector must read the same out of it as was meant.
func TestTsharkTerminates(t *testing.T) {
	layers := []string{"RDMA (0x0)", "DDP (0x1)", "LLP (0x2)"}
	kinds := map[[2]uint8]string{
		{0, 0}: "Local Catastrophic Error (0x0)", {0, 1}: "Remote Protection Error (0x1)", {0, 2}: "Remote Operation Error (0x2)",
		{1, 0}: "Local Catastrophic Error (0x0)", {1, 1}: "Tagged Buffer Error (0x1)", {1, 2}: "Untagged Buffer Error (0x2)",
		{2, 0}: "MPA Error (0x0)",
	}
	// What the dissector calls the codes.
	codes := map[wire.Cause]string{
		wire.RDMAPCatastrophic:        "0x00",
		wire.RDMAPInvalidSTag:         "Invalid STag (0x00)",
		wire.RDMAPBounds:              "Base or bounds violation (0x01)",
		wire.RDMAPAccessRights:        "Access rights violation (0x02)",
		wire.RDMAPNotAssociated:       "STag not associated with RDMAP Stream (0x03)",
		wire.RDMAPWrap:                "TO wrap (0x04)",
		wire.RDMAPProtectInvalidate:   "STag cannot be Invalidated (0x09)",
		wire.RDMAPProtection:          "Unspecific Error (0xff)",
		wire.RDMAPBadVersion:          "Invalid RDMAP version (0x05)",
		wire.RDMAPUnexpectedOpcode:    "Unexpected OpCode (0x06)",
		wire.RDMAPStreamCatastrophic:  "Catastrophic error, localized to RDMAP Stream (0x07)",
		wire.RDMAPGlobalCatastrophic:  "Catastrophic error, global (0x08)",
		wire.RDMAPCannotInvalidate:    "STag cannot be Invalidated (0x09)",
		wire.RDMAPUnspecified:         "Unspecific Error (0xff)",
		wire.DDPCatastrophic:          "0x00",
		wire.DDPTaggedInvalidSTag:     "Invalid STag (0x00)",
		wire.DDPTaggedBounds:          "Base or bounds violation (0x01)",
		wire.DDPTaggedNotAssociated:   "STag not associated with DDP Stream (0x02)",
		wire.DDPTaggedWrap:            "TO wrap (0x03)",
		wire.DDPTaggedVersion:         "Invalid DDP version (0x04)",
		wire.DDPUntaggedQueue:         "Invalid QN (0x01)",
		wire.DDPUntaggedNoBuffer:      "Invalid MSN - no buffer available (0x02)",
		wire.DDPUntaggedMSN:           "Invalid MSN - MSN range is not valid (0x03)",
		wire.DDPUntaggedOffset:        "Invalid MO (0x04)",
		wire.DDPUntaggedTooLong:       "DDP Message too long for available buffer (0x05)",
		wire.DDPUntaggedVersion:       "Invalid DDP version (0x06)",
		wire.MPAConnectionLost:        "TCP connection closed, terminated or lost (0x01)",
		wire.MPACRC:                   "MPA CRC Error (0x02)",
		wire.MPALength:                "MPA Marker and ULPDU Length field mismatch (0x03)",
		wire.MPASetup:                 "Invalid MPA Request Frame or MPA Response Frame (0x04)",
		wire.MPACatastrophic:          "Local Catastrophic Error (0x05)",
		wire.MPAInsufficientIRD:       "Insufficient IRD Resources (0x06)",
		wire.MPANoReadyToReceiveModes: "No Matching RTR Option (0x07)",
	}
	all := slices.SortedFunc(maps.Keys(codes), func(a, b wire.Cause) int {
		return slices.Compare([]uint8{a.Layer, a.Type, a.Code}, []uint8{b.Layer, b.Type, b.Code})
	})
	c := newCapture()
	for i, cause := range all {
		v := c.conversation(uint16(40000 + i))
		for from := range 2 {
			frame, err := wire.AppendSetup(nil, &wire.Setup{Reply: from == 1, CRC: true, Revision: wire.Revision1})
			if err != nil {
				t.Fatal(err)
			}
			v.say(from, frame)
		}
		read := wire.Segment{Last: true, Opcode: wire.OpReadRequest, Queue: wire.QueueReadRequest, MSN: 1}
		request := wire.ReadRequest{SinkSTag: 1, Length: 8, SourceSTag: 2}
		v.say(0, fpdu(read, request.Append(nil)))
		d := wire.Terminate{Cause: cause}
		if cause.Layer < 2 {
			d.HasSegment, d.Segment, d.SegmentLength = true, read, wire.UntaggedHeaderSize+wire.ReadRequestSize
		}
		if cause.Layer == 0 {
			d.HasRequest, d.Request = true, request
		}
		v.say(1, fpdu(wire.Segment{Last: true, Opcode: wire.OpTerminate, Queue: wire.QueueTerminate, MSN: 1}, d.Append(nil)))
	}
	out := c.dissect(t)
	parts := strings.Split(out, "OpCode: Terminate (")[1:]
	if len(parts) != len(all) || strings.Count(out, "(Good CRC32)") != 2*len(all) || strings.Contains(out, "[Malformed") {
		t.Fatalf("tshark found %d Terminates of %d and %d good units, or something malformed", len(parts), len(all), strings.Count(out, "(Good CRC32)"))
	}
	for i, cause := range all {
		want := []string{layers[cause.Layer], kinds[[2]uint8{cause.Layer, cause.Type}], codes[cause]}
		var got []string
		for _, m := range causeLines.FindAllStringSubmatch(parts[i], 3) {
			got = append(got, m[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: tshark reads %q, want %q", cause, got, want)
		}
	}
}
