package engine

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// lastMessage is the payload of the last FPDU that was written.
func (m *machine) lastMessage() (wire.Segment, []byte) {
	m.t.Helper()
	var ulpdu []byte
	for b := m.wrote; len(b) > 0; {
		n := int(binary.BigEndian.Uint16(b))
		ulpdu = b[wire.LengthSize : wire.LengthSize+n]
		b = b[wire.LengthSize+n+wire.Padding(n)+wire.CRCSize:]
	}
	s, err := wire.ParseSegment(ulpdu)
	if err != nil {
		m.t.Fatalf("the last FPDU: %v; what was written: %x", err, m.wrote)
	}
	return s, ulpdu[s.HeaderSize():]
}

// allCauses are those that the RFCs define.
func allCauses() (all []wire.Cause) {
	for layer := range 4 {
		for kind := range 16 {
			for code := range 256 {
				if c := (wire.Cause{Layer: uint8(layer), Type: uint8(kind), Code: uint8(code)}); c.Known() {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// TestTerminates brings about every cause of a Terminate that this side can find
// and compares the bytes that go out. The regions: "a" has all rights, "none" has
// none, "foreign" is of another domain; "sink" holds what is posted here.
func TestTerminates(t *testing.T) {
	type terminate struct {
		name  string
		cause wire.Cause
		about bool // the header of the offending segment is in it
		read  bool // and the Read Request
		open  func(p *Params, c *Config)
		run   func(m *machine)
	}
	posts := func(posts string, peer ...string) func(*machine) {
		return func(m *machine) {
			for line := range strings.SplitSeq(posts, "\n") {
				if line != "" {
					m.post(line)
				}
			}
			m.settle()
			for _, line := range peer {
				m.feed(m.fpdu(line))
			}
		}
	}
	peer := func(lines ...string) func(*machine) { return posts("", lines...) }
	// between closes a region after so many bytes of the peer's last FPDU.
	between := func(region string, n int, post string, line string) func(*machine) {
		return func(m *machine) {
			if post != "" {
				m.post(post)
			}
			m.settle()
			b := m.fpdu(line)
			m.feed(b[:n])
			if err := m.region(region).Close(); err != nil {
				m.t.Fatal(err)
			}
			m.feed(b[n:])
		}
	}
	extended := func(_ *Params, c *Config) { c.Extensions = ExtensionsAssumed }
	all := []terminate{
		// MPA, RFC 5044 section 8.
		{"a damaged unit", wire.MPACRC, false, false, nil, peer("write data=x bad-crc")},
		{"a damaged unit with markers", wire.MPACRC, false, false, func(p *Params, _ *Config) { p.ReceiveMarkers = true }, peer("write data=x bad-crc")},
		{"a wrong marker", wire.MPALength, false, false, func(p *Params, _ *Config) { p.ReceiveMarkers = true }, peer("write bad-marker")},
		{"a length that holds no header", wire.MPALength, false, false, nil, peer("raw hex=00,05,41,43")},

		// DDP, RFC 5041 section 8.2.
		{"a Write to no region", wire.DDPTaggedInvalidSTag, true, false, nil, peer("write tag=0x1 data=x")},
		{"a Write behind a region", wire.DDPTaggedBounds, true, false, nil, peer("write tag=key(a) offset=a+64 data=x")},
		{"a Write before a region", wire.DDPTaggedBounds, true, false, nil, peer("write tag=key(a) offset=a-1 data=x")},
		{"a Write to another domain", wire.DDPTaggedNotAssociated, true, false, nil, peer("write tag=key(foreign) offset=foreign data=x")},
		{"a Write around the end", wire.DDPTaggedWrap, true, false, nil, peer("write tag=key(a) offset=0xffffffffffffffff data=xy")},
		{"a tagged segment of another DDP", wire.DDPTaggedVersion, true, false, nil, peer("write ddp-version=2")},
		{"a Read Response that nobody asked for", wire.DDPTaggedInvalidSTag, true, false, nil, peer("read-response data=x")},
		{"a Read Response too long", wire.DDPTaggedBounds, true, false, nil, posts("read id=1 sge=sink+0:4 tag=0x9", "read-response tag=0x1000 data=12345")},
		{"a Read Response too short", wire.DDPTaggedBounds, true, false, nil, posts("read id=1 sge=sink+0:4 tag=0x9", "read-response tag=0x1000 data=123")},
		{"a Write whose region is closed under it", wire.DDPTaggedInvalidSTag, true, false, nil, between("a", 20, "", "write tag=key(a) offset=a data=0123456789")},
		{"an unknown queue", wire.DDPUntaggedQueue, true, false, nil, peer("send queue=4 data=x")},
		{"more Reads than were agreed on", wire.DDPUntaggedNoBuffer, true, false, nil, func(m *machine) {
			m.writer = false
			for range 3 {
				m.feed(m.fpdu("read-request length=4 from-tag=key(a) from=a"))
			}
			m.writer = true
		}},
		{"a message out of turn", wire.DDPUntaggedMSN, true, false, nil, posts("recv id=1", "send msn=2")},
		{"a Read Request out of turn", wire.DDPUntaggedMSN, true, false, nil, peer("read-request msn=2")},
		{"a segment out of turn", wire.DDPUntaggedOffset, true, false, nil, posts("recv id=1 to=sink+0:8", "send data=abc more", "send offset=2 data=x")},
		{"a Send too long", wire.DDPUntaggedTooLong, true, false, nil, posts("recv id=1 to=sink+0:3", "send data=abcd")},
		{"an untagged segment of another DDP", wire.DDPUntaggedVersion, true, false, nil, peer("send ddp-version=3")},
		{"a receive whose region is closed under it", wire.DDPCatastrophic, true, false, nil, between("sink", 24, "recv id=1 to=sink+0:16", "send data=0123456789")},
		{"a Read whose region is closed under it", wire.DDPCatastrophic, true, false, nil, between("sink", 20, "read id=1 sge=sink+0:10 tag=0x9", "read-response tag=0x1000 data=0123456789")},

		// RDMAP, RFC 5040 section 4.8.
		{"a Read of no region", wire.RDMAPInvalidSTag, true, true, nil, peer("read-request length=4 from-tag=0x1")},
		{"a Read behind a region", wire.RDMAPBounds, true, true, nil, peer("read-request length=65 from-tag=key(a) from=a")},
		{"a Write without the right", wire.RDMAPAccessRights, true, false, nil, peer("write tag=key(none) offset=none data=x")},
		{"a Read without the right", wire.RDMAPAccessRights, true, true, nil, peer("read-request length=4 from-tag=key(none) from=none")},
		{"an atomic without the right", wire.RDMAPAccessRights, true, false, extended, peer("atomic-request from-tag=key(none) from=none")},
		{"a Read of another domain", wire.RDMAPNotAssociated, true, true, nil, peer("read-request length=4 from-tag=key(foreign) from=foreign")},
		{"a Read around the end", wire.RDMAPWrap, true, true, nil, peer("read-request length=4 from-tag=key(a) from=0xfffffffffffffffe")},
		{"a Read whose region is closed", wire.RDMAPInvalidSTag, true, true, nil, func(m *machine) {
			m.writer = false
			m.feed(m.fpdu("read-request length=4 from-tag=key(a) from=a"))
			if err := m.region("a").Close(); err != nil {
				m.t.Fatal(err)
			}
			m.writer = true
		}},
		{"an invalidation of no region", wire.RDMAPInvalidSTag, true, false, nil, posts("recv id=1", "send-invalidate tag=0x1")},
		{"an invalidation in another domain", wire.RDMAPNotAssociated, true, false, nil, posts("recv id=1", "send-invalidate tag=key(foreign)")},
		{"an invalidation without the right", wire.RDMAPProtectInvalidate, true, false, nil, posts("recv id=1", "send-solicited-invalidate tag=key(none)")},
		{"another RDMAP", wire.RDMAPBadVersion, true, false, nil, peer("send rdmap-version=2")},
		{"a reserved opcode", wire.RDMAPUnexpectedOpcode, true, false, nil, peer("send opcode=15")},
		{"a tagged Send", wire.RDMAPUnexpectedOpcode, true, false, nil, peer("send tagged=true")},
		{"a Send on the queue of Reads", wire.RDMAPUnexpectedOpcode, true, false, nil, peer("send queue=1")},
		{"Immediate Data that is switched off", wire.RDMAPUnexpectedOpcode, true, false, nil, peer("immediate value=1")},
		{"an atomic that is switched off", wire.RDMAPUnexpectedOpcode, true, false, nil, peer("atomic-request from-tag=key(a) from=a")},
		{"an Atomic Response that is not due", wire.RDMAPUnexpectedOpcode, true, false, extended, peer("atomic-response")},
		{"an unknown atomic", wire.RDMAPUnexpectedOpcode, true, false, extended, peer("atomic-request op=7 from-tag=key(a) from=a")},
		{"an atomic across a word", wire.RDMAPUnspecified, true, false, extended, peer("atomic-request from-tag=key(a) from=a+4")},
		{"a Read Request cut off", wire.RDMAPUnspecified, true, false, nil, peer("read-request cut=20")},
		{"a send whose region is closed", wire.RDMAPStreamCatastrophic, false, false, nil, func(m *machine) {
			m.writer = false
			m.post("send id=1 sge=sink+0:8 signaled")
			if err := m.region("sink").Close(); err != nil {
				m.t.Fatal(err)
			}
			m.writer = true
		}},
		{"an atomic whose result has nowhere to go", wire.RDMAPStreamCatastrophic, true, false, extended, func(m *machine) {
			m.post("fetch-add id=1 sge=sink+0:8 tag=0x9 at=8")
			m.settle()
			if err := m.region("sink").Close(); err != nil {
				m.t.Fatal(err)
			}
			m.feed(m.fpdu("atomic-response"))
		}},
		{"a failure of this side", wire.RDMAPCatastrophic, false, false, nil, func(m *machine) {
			m.role = m.engine.Abort(rdma.ErrOverrun) || m.role
		}},
	}
	// The set-up's, RFC 6581 section 9.2, are sent without an engine: see
	// TestTerminateFrame. These are not sent:
	sent := map[wire.Cause]string{
		wire.MPASetup: "by the set-up", wire.MPAInsufficientIRD: "by the set-up", wire.MPANoReadyToReceiveModes: "by the set-up",
		wire.MPAConnectionLost:       "there is nothing left to send it over",
		wire.MPACatastrophic:         "the layer keeps no state that could be lost",
		wire.RDMAPProtection:         "every protection error has a code of its own",
		wire.RDMAPGlobalCatastrophic: "no stream's failure is one of the device",
		wire.RDMAPCannotInvalidate:   "regions that cannot be invalidated lack a right, which is a protection error",
	}
	for _, c := range all {
		sent[c.cause] = ""
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			defer m.close()
			for name, access := range map[string]rdma.Access{"a": 0xFF, "sink": rdma.AccessLocalWrite, "none": 0, "foreign": 0xFF} {
				o := m.owner
				if name == "foreign" {
					o = &owner{name}
				}
				r, err := m.table.Allocate(o, 64, access)
				if err != nil {
					t.Fatal(err)
				}
				m.regions[name] = r
			}
			p, cfg := Params{CRC: true, IRD: 2, ORD: 2, MaxULPDU: 1000, Initiator: true}, Config{SendDepth: 4, MaxSGE: 2, Extensions: ExtensionsOff}
			if c.open != nil {
				c.open(&p, &cfg)
			}
			m.open(p, false, cfg)
			c.run(m)
			m.settle()
			segment, body := m.lastMessage()
			if segment.Opcode != wire.OpTerminate || segment.Tagged || !segment.Last || segment.Queue != 2 || segment.MSN != 1 || segment.Offset != 0 {
				t.Fatalf("the last message is %+v, no Terminate:\n%s", segment, m.out.String())
			}
			want := []byte{c.cause.Layer<<4 | c.cause.Type, c.cause.Code, 0, 0}
			if c.about {
				want[2] |= 0xC0
			}
			if c.read {
				want[2] |= 0x20
			}
			if string(body[:4]) != string(want) {
				t.Fatalf("Terminate %x, want %x:\n%s", body[:4], want, m.out.String())
			}
			got, err := wire.ParseTerminate(body)
			if err != nil || got.Cause != c.cause || got.HasSegment != c.about || got.HasRequest != c.read {
				t.Fatalf("Terminate %+v, %v", got, err)
			}
			if m.engine.State() != rdma.StateError || m.engine.Err() == nil {
				t.Fatalf("the engine is %s: %v", m.engine.State(), m.engine.Err())
			}
			<-m.engine.Stopped()
			m.engine.Flush()
		})
	}
	for _, c := range allCauses() {
		if _, ok := sent[c]; !ok {
			t.Errorf("%v is neither sent nor said not to be", c)
		}
	}
}

// TestTerminated hears every cause, in the RFC's layout and in siw's.
func TestTerminated(t *testing.T) {
	for _, c := range allCauses() {
		for layout, swap := range map[string]bool{"rfc": false, "siw": true} {
			t.Run(c.String()+"/"+layout, func(t *testing.T) {
				m := newMachine(t)
				m.open(Params{Initiator: true, CRC: true, ORD: 1, IRD: 1, MaxULPDU: 1000}, false, Config{SendDepth: 4, MaxSGE: 2, Extensions: ExtensionsOff})
				about := wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite, STag: 5}
				d := wire.Terminate{Cause: c, HasSegment: true, Segment: about, SegmentLength: 20}
				body := d.Append(nil)
				if swap {
					body[0] = body[0]<<4 | body[0]>>4
					body[2] = body[2]>>7&1 | body[2]>>5&2 | body[2]>>3&4
				}
				s := wire.Segment{Last: true, Opcode: wire.OpTerminate, Queue: wire.QueueTerminate, MSN: wire.FirstMSN}
				ulpdu := append(s.Append(nil), body...)
				frame := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
				frame = append(frame, ulpdu...)
				frame = append(frame, make([]byte, wire.Padding(len(ulpdu)))...)
				var sum [4]byte
				wire.PutCRC(sum[:], wire.UpdateCRC(0, frame))
				m.feed(append(frame, sum[:]...))
				var ended *TerminateError
				if !errors.As(m.engine.Err(), &ended) || ended.cause() != c || ended.Sent {
					t.Fatalf("Err is %v", m.engine.Err())
				}
				if !strings.Contains(ended.Error(), "the peer terminated") || !strings.Contains(ended.Error(), "about a Write") {
					t.Errorf("text %q", ended)
				}
				want := rdma.ErrDisconnected
				if c.Access() {
					want = rdma.ErrRemoteAccess
				}
				if !errors.Is(m.engine.Err(), want) {
					t.Errorf("Err is %v, want %v", m.engine.Err(), want)
				}
				m.settle()
				if len(m.wrote) > 0 {
					t.Errorf("a Terminate is answered with %x", m.wrote)
				}
				<-m.engine.Stopped()
				m.engine.Flush()
			})
		}
	}
}

// TestTerminateFrame reads what a set-up that fails sends, with another engine.
func TestTerminateFrame(t *testing.T) {
	for _, c := range []wire.Cause{wire.MPASetup, wire.MPAInsufficientIRD, wire.MPANoReadyToReceiveModes} {
		for mode := range 4 {
			crc, markers := mode&1 != 0, mode&2 != 0
			m := newMachine(t)
			m.open(Params{CRC: crc, ReceiveMarkers: markers, ORD: 1, IRD: 1, MaxULPDU: 1000}, false, Config{SendDepth: 4, MaxSGE: 2})
			m.feed(TerminateFrame(c, crc, markers))
			var ended *TerminateError
			if !errors.As(m.engine.Err(), &ended) || ended.cause() != c {
				t.Errorf("%v, CRC %t, markers %t: %v", c, crc, markers, m.engine.Err())
			}
		}
	}
}
