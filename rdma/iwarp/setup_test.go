package iwarp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// TestPrivateData carries as much as fits, both ways, with an answer that accepts
// and one that refuses.
func TestPrivateData(t *testing.T) {
	for revision, most := range map[int]int{wire.Revision1: 512, wire.Revision2: 508} {
		for _, n := range []int{0, 1, 252, most, most + 1} {
			for _, accept := range []bool{true, false} {
				t.Run(fmt.Sprintf("revision %d, %d bytes, accepted %t", revision, n, accept), func(t *testing.T) {
					d := testDevice(t, Config{Revision: revision, setupTimeout: within})
					if got := d.Attributes().MaxPrivateData; got != most {
						t.Fatalf("MaxPrivateData is %d, want %d", got, most)
					}
					a, b := newSide(t, d, 64, nil), newSide(t, d, 64, nil)
					l, err := d.Listen(bounded(t), "")
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
					ask, answer := make([]byte, n), make([]byte, n)
					fill(ask, 3)
					fill(answer, 5)
					if n > most {
						_, err := a.qp.Connect(bounded(t), l.Address(), ask)
						wants(t, err, rdma.ErrInvalid)
						return
					}
					failed := make(chan error, 1)
					go func() {
						r, err := l.Accept(bounded(t))
						if err == nil && !bytes.Equal(r.PrivateData(), ask) {
							err = fmt.Errorf("the Request's private data is %x", r.PrivateData())
						}
						switch {
						case err != nil:
						case accept:
							err = r.Accept(bounded(t), b.qp, answer)
						default:
							err = r.Reject(answer)
						}
						failed <- err
					}()
					reply, err := a.qp.Connect(bounded(t), l.Address(), ask)
					if err2 := <-failed; err2 != nil {
						t.Fatal(err2)
					}
					var rejected *rdma.RejectedError
					if accept != (err == nil) || !accept && (!errors.As(err, &rejected) || !bytes.Equal(rejected.PrivateData, answer)) {
						t.Fatalf("error %v", err)
					}
					if !bytes.Equal(reply, answer) {
						t.Fatalf("the Reply's private data is %x", reply)
					}
				})
			}
		}
	}
}

// A Request that cannot be sent opens no connection: Linux siw does not survive
// one that is closed before it has taken it.
func TestImpossibleRequestDialsNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := testDevice(t, Config{})
	a := newSide(t, d, 64, nil)
	_, err = a.qp.Connect(bounded(t), l.Addr().String(), make([]byte, d.Attributes().MaxPrivateData+1))
	wants(t, err, rdma.ErrInvalid)
	if state := a.qp.State(); state != rdma.StateInit {
		t.Errorf("the queue pair is %s", state)
	}
	// Connections are accepted in the order in which they came.
	ours, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if first.RemoteAddr().String() != ours.LocalAddr().String() {
		t.Errorf("%s connected before", first.RemoteAddr())
	}
}

// TestSetupByteByByte dribbles the Request, the Reply and the first FPDU.
func TestSetupByteByByte(t *testing.T) {
	t.Run("Request", func(t *testing.T) {
		s := rawSide(t, 4096)
		s.recv(1, 0, 64)
		l, err := s.device.Listen(bounded(t), "")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		conn, err := net.Dial("tcp", l.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		p := &rawPeer{t: t, Conn: conn}
		request := enhanced()
		request.Private = []byte("by the byte")
		frame, err := wire.AppendSetup(nil, &request)
		if err != nil {
			t.Fatal(err)
		}
		for i := range frame {
			p.write(frame[i : i+1])
		}
		r, err := l.Accept(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		if string(r.PrivateData()) != "by the byte" {
			t.Fatalf("private data %q", r.PrivateData())
		}
		if err := r.Accept(bounded(t), s.qp, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := readSetup(conn, true); err != nil {
			t.Fatal(err)
		}
		b := fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite}, nil)
		b = append(b, fpdu(wire.Segment{Last: true, Opcode: wire.OpSend, MSN: 1}, []byte("hello"))...)
		for i := range b {
			p.write(b[i : i+1])
		}
		if c := next(t, s.recvs); c.Status != rdma.StatusSuccess || string(s.memory.Bytes()[:5]) != "hello" {
			t.Fatalf("%+v", c)
		}
	})
	t.Run("Reply, and a first FPDU behind it", func(t *testing.T) {
		s := rawSide(t, 4096)
		s.recv(1, 0, 64)
		answered(t, s, func(p *rawPeer, _ wire.Setup) {
			reply := wire.Setup{Reply: true, CRC: true, Revision: 2, Enhanced: &wire.Enhanced{IRD: 1, ORD: 1}, Private: []byte("reply")}
			b, err := wire.AppendSetup(nil, &reply)
			if err != nil {
				t.Error(err)
			}
			// What follows the Reply is no part of it. Linux siw may speak first.
			b = append(b, fpdu(wire.Segment{Last: true, Opcode: wire.OpSend, MSN: 1}, []byte("early"))...)
			for i := range b {
				if _, err := p.Write(b[i : i+1]); err != nil {
					t.Error(err)
				}
			}
		}, func(address string) {
			reply, err := s.qp.Connect(bounded(t), address, nil)
			if err != nil || string(reply) != "reply" {
				t.Fatalf("%q, %v", reply, err)
			}
			if c := next(t, s.recvs); c.Status != rdma.StatusSuccess || string(s.memory.Bytes()[:5]) != "early" {
				t.Fatalf("%+v", c)
			}
		})
	})
}

// answered has play answer the connection that connect opens to an address. It
// ends when both have.
func answered(t *testing.T, s *side, play func(p *rawPeer, request wire.Setup), connect func(address string)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		request, err := readSetup(conn, false)
		if err != nil {
			t.Error(err)
			return
		}
		play(&rawPeer{t: t, Conn: conn}, request)
		_ = conn.SetReadDeadline(time.Now().Add(within))
		_, _ = io.Copy(io.Discard, conn)
	}()
	defer func() {
		_ = s.qp.Close()
		<-over
	}()
	connect(l.Addr().String())
}

// TestRejectionReasons words what a Reply tells of why it refuses.
func TestRejectionReasons(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		reply  wire.Setup
		text   string
	}{
		"markers":  {Config{Markers: true}, wire.Setup{Reply: true, Reject: true, Revision: 2}, "markers"},
		"revision": {Config{}, wire.Setup{Reply: true, Reject: true, Revision: 1}, "revision 1"},
		"plain":    {Config{}, wire.Setup{Reply: true, Reject: true, Revision: 2, Private: []byte("no")}, "rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSide(t, testDevice(t, c.config), 64, nil)
			answered(t, s, func(p *rawPeer, request wire.Setup) {
				if request.Markers != c.config.Markers {
					t.Errorf("the Request asks for markers: %t", request.Markers)
				}
				b, err := wire.AppendSetup(nil, &c.reply)
				if err != nil {
					t.Error(err)
				}
				if _, err := p.Write(b); err != nil {
					t.Error(err)
				}
			}, func(address string) {
				_, err := s.qp.Connect(bounded(t), address, nil)
				var rejected *rdma.RejectedError
				if !errors.As(err, &rejected) || !bytes.Equal(rejected.PrivateData, c.reply.Private) || !strings.Contains(err.Error(), c.text) {
					t.Fatalf("error %v, want a rejection that says %q", err, c.text)
				}
			})
		})
	}
}

// TestGarbageInSetup answers Connect with noise: it fails soon, and says why.
func TestGarbageInSetup(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := newSide(t, testDevice(t, Config{setupTimeout: 100 * time.Millisecond}), 64, nil)
		answered(t, s, func(p *rawPeer, _ wire.Setup) {
			b, err := wire.AppendSetup(nil, &wire.Setup{Reply: true, CRC: true, Revision: 2, Enhanced: &wire.Enhanced{IRD: 1, ORD: 1, PeerToPeer: true, ReadyWrite: true}})
			if err != nil {
				t.Error(err)
			}
			// A good Reply with some bytes changed and perhaps cut off; then noise.
			for range 1 + r.IntN(4) {
				b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
			}
			b = b[:r.IntN(len(b)+1)]
			noise := make([]byte, r.IntN(3000))
			for i := range noise {
				noise[i] = byte(r.Uint32())
			}
			_, _ = p.Write(append(b, noise...))
		}, func(address string) {
			_, err := s.qp.Connect(bounded(t), address, nil)
			if err != nil {
				return
			}
			// The changes left a Reply: then the noise ends it, or nothing does.
			_ = s.qp.Disconnect()
			s.ended()
		})
	}
}

// TestForeignPeer plays a responder that knows nothing of the announcement: an
// extension is not sent to it, and everything else works.
func TestForeignPeer(t *testing.T) {
	s := newSide(t, testDevice(t, Config{}), 4096, nil)
	answered(t, s, func(p *rawPeer, request wire.Setup) {
		e := request.Enhanced
		if e == nil || !e.PeerToPeer || !e.ReadyWrite || !e.ReadyRead || e.ReadySend {
			t.Errorf("the Request offers %+v", e)
			return
		}
		b, err := wire.AppendSetup(nil, &wire.Setup{Reply: true, CRC: true, Revision: 2,
			Enhanced: &wire.Enhanced{IRD: 4, ORD: 4, PeerToPeer: true, ReadyWrite: true}})
		if err != nil {
			t.Error(err)
		}
		p.write(b)
		if g, body := p.next(); g.Opcode != wire.OpWrite || len(body) != 0 {
			t.Errorf("the ready-to-receive message is %+v", g)
		}
		if g, _ := p.next(); g.Opcode != wire.OpWrite {
			t.Errorf("%+v, want a Write", g)
		}
		g, body := p.next()
		request2, err := wire.ParseReadRequest(body)
		if g.Opcode != wire.OpReadRequest || err != nil || request2.Length != 0 {
			t.Errorf("%+v %+v %v, want a Read of nothing", g, request2, err)
		}
		p.write(fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpReadResponse, STag: request2.SinkSTag}, nil))
		if g, _ := p.next(); g.Opcode != wire.OpTerminate {
			t.Errorf("%+v, want a Terminate", g)
		}
	}, func(address string) {
		if _, err := s.qp.Connect(bounded(t), address, nil); err != nil {
			t.Fatal(err)
		}
		s.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: s.sge(0, 8), Remote: rdma.Remote{Key: 9}})
		s.send(rdma.SendRequest{ID: 2, Op: rdma.OpFetchAdd, Flags: rdma.Signaled, SGEs: s.sge(0, 8), Remote: rdma.Remote{Key: 9}})
		if c := next(t, s.sends); c.ID != 1 || c.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", c)
		}
		if c := next(t, s.sends); c.ID != 2 || c.Status != rdma.StatusRemoteInvalid {
			t.Fatalf("%+v", c)
		}
		if err := s.ended(); !strings.Contains(err.Error(), "RFC 7306") {
			t.Fatal(err)
		}
	})
}

// TestBadConfigurations are refused where they can be told from good ones.
func TestBadConfigurations(t *testing.T) {
	for _, c := range []Config{{Revision: 3}, {PeerTimeout: -1}, {PeerTimeout: 2 * time.Hour}, {AllowUIDs: []uint32{1<<32 - 1}}} {
		if _, err := New(c).Devices(bounded(t)); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A device says that it compares checksums if its connections have some whatever the peer asks for.
func TestChecksumsAreToldOf(t *testing.T) {
	for _, without := range []bool{false, true} {
		if told := testDevice(t, Config{NoCRC: without}).Attributes().Has(rdma.CapChecksums); told == without {
			t.Errorf("NoCRC %v: CapChecksums is %v", without, told)
		}
	}
}
