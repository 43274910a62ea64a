package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
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
)

// capture stands between two ends of a TCP connection, passes on what they say
// and notes it as a capture file: the packets are made up, the bytes are not.
type capture struct {
	mu   sync.Mutex
	file bytes.Buffer
	next [2]uint32 // sequence numbers
}

const captureSegment = 8 << 10

func newCapture() *capture {
	c := &capture{next: [2]uint32{1000, 5000}}
	// Version 2.4, microseconds, link type 101: packets begin with the IP header.
	for _, v := range []uint32{0xa1b2c3d4, 2 | 4<<16, 0, 0, 1 << 18, 101} {
		_ = binary.Write(&c.file, binary.LittleEndian, v)
	}
	const syn, ack = 2, 16
	c.packet(0, syn, nil)
	c.packet(1, syn|ack, nil)
	c.packet(0, ack, nil)
	return c
}

// packet notes a TCP segment of side from.
func (c *capture) packet(from int, flags byte, payload []byte) {
	var p []byte
	p = append(p, 0x45, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(40+len(payload)))
	p = append(p, 0, 0, 0x40, 0, 64, 6, 0, 0) // do not fragment, TCP
	for _, host := range []int{from, 1 - from} {
		p = append(p, 192, 0, 2, byte(1+host))
	}
	for _, host := range []int{from, 1 - from} {
		p = binary.BigEndian.AppendUint16(p, [2]uint16{40000, 4791}[host])
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
	if flags&3 != 0 { // SYN and FIN take a number
		c.next[from]++
	}
}

// pass copies one direction.
func (c *capture) pass(from int, in, out net.Conn) {
	b := make([]byte, captureSegment)
	for {
		n, err := in.Read(b)
		if n > 0 {
			c.mu.Lock()
			c.packet(from, 16|8, b[:n])
			c.mu.Unlock()
			if _, err := out.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			c.mu.Lock()
			if errors.Is(err, io.EOF) {
				c.packet(from, 16|1, nil)
			}
			c.mu.Unlock()
			_ = out.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

// captured runs f with two connected sides and returns what tshark makes of
// what they said.
func captured(t *testing.T, config Config, f func(a, b *side)) string {
	tshark := testneed.Tool(t, "tshark", "apt-get install tshark")
	d := testDevice(t, config)
	a, b := newSide(t, d, 1<<20, nil), newSide(t, d, 1<<20, nil)
	fill(a.memory.Bytes(), 1)
	ca, ma := tcpPair(t)
	mb, cb := tcpPair(t)
	c := newCapture()
	var group sync.WaitGroup
	group.Go(func() { c.pass(0, ma, mb) })
	group.Go(func() { c.pass(1, mb, ma) })
	joinStreams(t, a, b, ca, cb)
	f(a, b)
	_ = a.qp.Close()
	_ = b.qp.Close()
	group.Wait()
	ma.Close()
	mb.Close()
	name := filepath.Join(t.TempDir(), "capture.pcap")
	if err := os.WriteFile(name, c.file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// The payload's heuristics take some data for ONC RPC.
	out, err := exec.Command(tshark, "-n", "-r", name, "-V", "--disable-protocol", "rpcordma").CombinedOutput()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, out)
	}
	return string(out)
}

var (
	opcodeLine = regexp.MustCompile(`OpCode: (.*?) \(`)
	causeLines = regexp.MustCompile(`(?m)^.*(?:Layer|Error Types[^:]*|Error Code[^:]*): (.*)$`)
)

// TestTshark lets a dissector that others wrote judge what goes over the wire.
func TestTshark(t *testing.T) {
	type exchange struct {
		name       string
		run        func(a, b *side)
		want       map[string]bool // operations
		cause      []string        // of a Terminate
		extensions bool
	}
	refused := func(f func(a, b *side)) func(a, b *side) {
		return func(a, b *side) {
			f(a, b)
			a.ended()
			b.ended()
		}
	}
	for _, x := range []exchange{
		{"operations", func(a, b *side) {
			for i, n := range []int{0, 1, 2, 3, 1000, 1500, 200000} {
				b.recv(uint64(i), 0, 1<<20)
				flags := rdma.Signaled
				if i%2 == 1 {
					flags |= rdma.Solicited
				}
				a.send(rdma.SendRequest{Op: rdma.OpWrite, SGEs: a.sge(0, n), Remote: b.at(0)})
				a.send(rdma.SendRequest{Op: rdma.OpRead, SGEs: a.sge(0, n), Remote: b.at(0)})
				a.send(rdma.SendRequest{Op: rdma.OpSend, Flags: flags, SGEs: a.sge(0, n)})
				next(t, b.recvs)
				if c := next(t, a.sends); c.Status != rdma.StatusSuccess {
					t.Fatal(c.Status)
				}
			}
			// The other way, too.
			b.send(rdma.SendRequest{Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: b.sge(0, 70000), Remote: a.at(0)})
			next(t, b.sends)
		}, map[string]bool{"Write": true, "Read Request": true, "Read Response": true, "Send": true, "Send with SE": true}, nil, false},
		{"atomics", func(a, b *side) {
			at := b.at(0)
			a.send(rdma.SendRequest{Op: rdma.OpFetchAdd, SGEs: a.sge(0, 8), Remote: at, CompareAdd: 5})
			a.send(rdma.SendRequest{Op: rdma.OpCompareSwap, Flags: rdma.Signaled, SGEs: a.sge(8, 8), Remote: at, CompareAdd: 5, Swap: 6})
			if c := next(t, a.sends); c.Status != rdma.StatusSuccess {
				t.Fatal(c.Status)
			}
		}, map[string]bool{"Write": true, "Read Request": true, "Read Response": true, "Atomic Request": true, "Atomic Response": true, "FetchAdd": true, "CmpSwap": true}, nil, true},
		{"bad key of a Write", refused(func(a, b *side) {
			to := b.at(0)
			to.Key ^= 1
			a.send(rdma.SendRequest{Op: rdma.OpWrite, SGEs: a.sge(0, 8), Remote: to})
		}), map[string]bool{"Write": true, "Terminate": true}, []string{"DDP (0x1)", "Tagged Buffer Error (0x1)", "Invalid STag (0x00)"}, false},
		{"Read out of bounds", refused(func(a, b *side) {
			a.send(rdma.SendRequest{Op: rdma.OpRead, SGEs: a.sge(0, 8), Remote: b.at(1<<20 - 4)})
		}), map[string]bool{"Write": true, "Read Request": true, "Terminate": true},
			[]string{"RDMA (0x0)", "Remote Protection Error (0x1)", "Base or bounds violation (0x01)"}, false},
		{"no receive", refused(func(a, b *side) {
			a.send(rdma.SendRequest{Op: rdma.OpSend, SGEs: a.sge(0, 8)})
		}), map[string]bool{"Write": true, "Send": true, "Terminate": true},
			[]string{"DDP (0x1)", "Untagged Buffer Error (0x2)", "Invalid MSN - no buffer available (0x02)"}, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			out := captured(t, Config{}, x.run)
			if testing.Verbose() && os.Getenv("VERBENA_SHOW_DISSECTION") != "" {
				t.Log(out)
			}
			for _, bad := range []string{"[Malformed", "Bad CRC32"} {
				if strings.Contains(out, bad) {
					at := strings.Index(out, bad)
					t.Errorf("tshark says %q: %s", bad, out[max(0, at-600):min(len(out), at+200)])
				}
			}
			fpdus := strings.Count(out, "FPDU\n")
			good := strings.Count(out, "(Good CRC32)")
			if fpdus < len(x.want) || good != fpdus {
				t.Errorf("tshark found %d FPDUs and called the CRC of %d good", fpdus, good)
			}
			seen := map[string]bool{}
			for _, m := range opcodeLine.FindAllStringSubmatch(out, -1) {
				seen[m[1]] = true
			}
			if !maps.Equal(seen, x.want) {
				t.Errorf("tshark saw %v, want %v", slices.Sorted(maps.Keys(seen)), slices.Sorted(maps.Keys(x.want)))
			}
			for _, want := range x.cause {
				if !strings.Contains(out, want) {
					t.Errorf("tshark does not say %q, but %q", want, causeLines.FindAllString(out, -1))
				}
			}
			if !strings.Contains(out, "Request frame header") || !strings.Contains(out, "Reply frame header") {
				t.Error("tshark did not recognise the set-up")
			}
		})
	}
}
