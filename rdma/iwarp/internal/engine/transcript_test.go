package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/verbena-data/verbena/rdma"
)

// TestTranscripts runs the scripts of testdata/transcripts. The commands:
//
//	open [responder] [no-crc] [ird=N] [ord=N] [ready=write|read|send] [ulpdu=N] [shared] [depth=N]
//	     [extensions|negotiated] [send-markers] [receive-markers]
//	region NAME size=N [access=lrwai] [foreign]    local write, remote read, write, atomic, invalidate
//	fill NAME TEXT
//	show NAME OFFSET:LENGTH
//	close-region NAME
//	chunk N           bytes of the peer come N at a time
//	writer on|off     off: nothing is written until "on"
//	post              a line each: send|write|read|recv id= sge= at= tag= signaled fence inline solicited
//	peer              a line each: an FPDU of the peer's
//	end               the stream ends
//	write-fails       the next write fails
//	disconnect        this side ends the connection
//	flush             the shell is through
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var m *machine
		t.Cleanup(func() {
			if m != nil {
				m.close()
			}
		})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			a := arguments{}
			var first string
			for i, arg := range d.CmdArgs {
				if i == 0 {
					first = arg.Key
				}
				a[arg.Key] = strings.Join(arg.Vals, ",")
			}
			switch d.Cmd {
			case "open":
				if m != nil {
					m.close()
				}
				m = newMachine(t)
				p := Params{Initiator: !a.has("responder"), CRC: !a.has("no-crc"),
					IRD: int(m.number(a, "ird", 2)), ORD: int(m.number(a, "ord", 2)), MaxULPDU: int(m.number(a, "ulpdu", 1000)),
					Ready: map[string]Ready{"write": ReadyWrite, "read": ReadyRead, "send": ReadySend}[a["ready"]]}
				p.SpeakFirst = a.has("speak-first")
				p.SendMarkers, p.ReceiveMarkers = a.has("send-markers"), a.has("receive-markers")
				x := ExtensionsOff
				switch {
				case a.has("extensions"):
					x = ExtensionsAssumed
				case a.has("negotiated"):
					x = ExtensionsNegotiated
				}
				m.open(p, a.has("shared"), Config{SendDepth: int(m.number(a, "depth", 4)), MaxSGE: 2, MaxInline: 16, Extensions: x})
			case "region":
				access := rdma.Access(0)
				for c, bit := range map[string]rdma.Access{"l": rdma.AccessLocalWrite, "r": rdma.AccessRemoteRead, "w": rdma.AccessRemoteWrite, "a": rdma.AccessRemoteAtomic, "i": rdma.AccessRemoteInvalidate} {
					if !a.has("access") || strings.Contains(a["access"], c) {
						access |= bit
					}
				}
				o := m.owner
				if a.has("foreign") {
					o = &owner{"foreign"}
				}
				r, err := m.table.Allocate(o, int(m.number(a, "size", 64)), access)
				if err != nil {
					t.Fatal(err)
				}
				m.regions[first] = r
			case "fill":
				copy(m.region(first).Bytes(), d.CmdArgs[1].Key)
			case "show":
				var offset, length int
				d.ScanArgs(t, "at", &offset)
				d.ScanArgs(t, "length", &length)
				m.printf("%q", m.region(first).Bytes()[offset:offset+length])
			case "close-region":
				if err := m.region(first).Close(); err != nil {
					t.Fatal(err)
				}
			case "chunk":
				m.chunk = int(m.value(first))
			case "writer":
				m.writer = first == "on"
			case "post":
				for line := range strings.SplitSeq(d.Input, "\n") {
					m.post(line)
				}
			case "peer":
				var b []byte
				for line := range strings.SplitSeq(d.Input, "\n") {
					b = append(b, m.fpdu(line)...)
				}
				m.feed(b)
			case "end":
				m.endOfStream()
			case "write-fails":
				b := NewBatch()
				if m.role && m.engine.Fill(b) {
					m.engine.WriteFailed(b, errors.New("broken pipe"))
					m.role = false
				}
				b.Free()
			case "disconnect":
				m.engine.Fail(rdma.ErrDisconnected)
			case "flush":
				m.tellStopped()
				m.engine.Flush()
			default:
				t.Fatalf("no command %q", d.Cmd)
			}
			if m.engine != nil {
				m.settle()
			}
			return m.printed()
		})
	})
}
