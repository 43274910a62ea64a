package iwarp

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// An assault is what attacks have to aim at: three neighbouring regions of which
// the peer knows the keys of two, and receives that are posted into a fourth.
type assault struct {
	p                        *rawPeer
	open, readOnly, noAccess rdma.Region
	random                   *rand.Rand
}

const (
	assaultSize    = 8192
	assaultReceive = 64
)

func (a *assault) write(key uint32, address uint64, payload []byte) {
	a.send(fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite, STag: key, Offset: address}, payload))
}

func (a *assault) read(r wire.ReadRequest, msn uint32) {
	a.send(fpdu(wire.Segment{Last: true, Opcode: wire.OpReadRequest, Queue: 1, MSN: msn}, r.Append(nil)))
}

func (a *assault) message(s wire.Segment, payload int) {
	s.Opcode = wire.OpSend
	a.send(fpdu(s, bytes.Repeat([]byte{0x66}, payload)))
}

// send ignores errors: the other side hangs up in the middle of attacks.
func (a *assault) send(b []byte) { _, _ = a.p.Write(b) }

func (a *assault) noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(a.random.Uint32())
	}
	return b
}

// assaults must each fail the connection and change no byte outside of receives.
var assaults = map[string]func(a *assault){
	"Write with a wrong key":            func(a *assault) { a.write(a.open.Key()^1, a.open.Address(), make([]byte, 64)) },
	"Write with key 0":                  func(a *assault) { a.write(0, a.open.Address(), make([]byte, 64)) },
	"Write past the end":                func(a *assault) { a.write(a.open.Key(), a.open.Address()+assaultSize-63, make([]byte, 64)) },
	"Write before the start":            func(a *assault) { a.write(a.open.Key(), a.open.Address()-1, make([]byte, 64)) },
	"Write that wraps around":           func(a *assault) { a.write(a.open.Key(), ^uint64(0)-7, make([]byte, 64)) },
	"Write to a region to be read":      func(a *assault) { a.write(a.readOnly.Key(), a.readOnly.Address(), make([]byte, 64)) },
	"Write to a region without rights":  func(a *assault) { a.write(a.noAccess.Key(), a.noAccess.Address(), make([]byte, 64)) },
	"Write with the address of another": func(a *assault) { a.write(a.open.Key(), a.noAccess.Address(), make([]byte, 64)) },
	"Read of a region without rights": func(a *assault) {
		a.read(wire.ReadRequest{SinkSTag: 1, Length: 64, SourceSTag: a.noAccess.Key(), SourceOffset: a.noAccess.Address()}, 1)
	},
	"Read past the end": func(a *assault) {
		a.read(wire.ReadRequest{SinkSTag: 1, Length: 64, SourceSTag: a.readOnly.Key(), SourceOffset: a.readOnly.Address() + assaultSize - 1}, 1)
	},
	"Read of 4 GiB": func(a *assault) {
		a.read(wire.ReadRequest{SinkSTag: 1, Length: ^uint32(0), SourceSTag: a.readOnly.Key(), SourceOffset: a.readOnly.Address()}, 1)
	},
	"Read that wraps around": func(a *assault) {
		a.read(wire.ReadRequest{SinkSTag: 1, Length: 64, SourceSTag: a.readOnly.Key(), SourceOffset: ^uint64(0) - 8}, 1)
	},
	"more Reads at once than were agreed on, and none taken": func(a *assault) {
		for msn := range uint32(2000) {
			a.read(wire.ReadRequest{SinkSTag: 1, Length: assaultSize, SourceSTag: a.readOnly.Key(), SourceOffset: a.readOnly.Address()}, msn+1)
		}
	},
	"Read Response that nobody asked for": func(a *assault) {
		a.send(fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpReadResponse, STag: a.open.Key(), Offset: a.open.Address()}, make([]byte, 64)))
	},
	"Sends without receives, and the end": func(a *assault) {
		for msn := range uint32(1000) {
			a.message(wire.Segment{Last: true, MSN: msn + 1}, 8)
		}
		a.p.Close()
	},
	"Send longer than its receive":          func(a *assault) { a.message(wire.Segment{Last: true, MSN: 1}, assaultReceive+1) },
	"Send of many segments that never ends": func(a *assault) { a.endless() },
	"Send out of turn":                      func(a *assault) { a.message(wire.Segment{Last: true, MSN: 3}, 8) },
	"Send that begins in the middle":        func(a *assault) { a.message(wire.Segment{Last: true, MSN: 1, Offset: 32}, 8) },
	"Send to a queue that does not exist":   func(a *assault) { a.message(wire.Segment{Last: true, Queue: 7, MSN: 1}, 8) },
	"Send that revokes the region of another right": func(a *assault) {
		a.send(fpdu(wire.Segment{Last: true, Opcode: wire.OpSendInvalidate, MSN: 1, STag: a.noAccess.Key()}, []byte{1}))
	},
	"unknown operation": func(a *assault) { a.send(fpdu(wire.Segment{Last: true, Opcode: 15, MSN: 1}, make([]byte, 8))) },
	"damaged CRC of a Write": func(a *assault) {
		b := fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite, STag: a.noAccess.Key(), Offset: a.noAccess.Address()}, make([]byte, 64))
		b[len(b)-1] ^= 1
		a.send(b)
	},
	"a header alone, and the end": func(a *assault) { a.send([]byte{0, 40, 0x41}); a.p.Close() },
	"a length of nothing":         func(a *assault) { a.send(make([]byte, 64)) },
	"noise":                       func(a *assault) { a.send(a.noise(64 << 10)) },
	"noise behind a good header":  func(a *assault) { a.send(append([]byte{0xff, 0xff, 0x41, 0x40}, a.noise(70<<10)...)) },
	"Terminate": func(a *assault) {
		a.send(fpdu(wire.Segment{Last: true, Opcode: wire.OpTerminate, Queue: 2, MSN: 1}, make([]byte, 4)))
	},
	"Terminate that is cut": func(a *assault) {
		a.send(fpdu(wire.Segment{Last: true, Opcode: wire.OpTerminate, Queue: 2, MSN: 1}, nil))
	},
	"hanging up": func(a *assault) { a.p.Close() },
	"a second Request in the middle of it": func(a *assault) {
		request := enhanced()
		b, err := wire.AppendSetup(nil, &request)
		if err != nil {
			a.p.t.Error(err)
		}
		a.send(append(b, make([]byte, 64<<10)...))
	},
}

// endless sends the segments of one message for as long as it is listened to.
func (a *assault) endless() {
	for offset := uint64(0); offset < 64<<20; offset += 1000 {
		if _, err := a.p.Write(fpdu(wire.Segment{Opcode: wire.OpSend, MSN: 1, Offset: offset}, make([]byte, 1000))); err != nil {
			return
		}
	}
}

// Whatever a peer does on the wire fails its own connection at most. Memory
// outside of what it may write does not change, memory does not grow, and others
// go on.
func TestAssaults(t *testing.T) {
	d := testDevice(t, Config{lingerTimeout: 50 * time.Millisecond}) // few of them take leave
	before := heap()
	for name, attack := range assaults {
		t.Run(name, func(t *testing.T) {
			s := newSide(t, d, 4096, nil)
			a := &assault{random: rand.New(rand.NewPCG(1, 2))}
			var regions []rdma.Region
			for _, access := range []rdma.Access{
				rdma.AccessLocalWrite | rdma.AccessRemoteWrite, rdma.AccessRemoteRead, rdma.AccessLocalWrite,
			} {
				r, err := s.domain.Allocate(assaultSize, access)
				if err != nil {
					t.Fatal(err)
				}
				for i := range r.Bytes() {
					r.Bytes()[i] = 0xA5
				}
				regions = append(regions, r)
			}
			a.open, a.readOnly, a.noAccess = regions[0], regions[1], regions[2]
			for i := range uint64(4) {
				s.recv(i, int(i)*assaultReceive, assaultReceive)
			}
			a.p = dialRaw(t, s, enhanced())
			over := make(chan struct{})
			go func() { // it may write more than the sockets hold
				defer close(over)
				attack(a)
			}()
			if err := s.ended(); err == nil {
				t.Error("the queue pair fails and tells no cause")
			}
			for _, r := range regions {
				for i, b := range r.Bytes() {
					if b != 0xA5 {
						t.Fatalf("byte %d of a region is %#x", i, b)
					}
				}
			}
			if !bytes.Equal(s.memory.Bytes()[4*assaultReceive:], make([]byte, len(s.memory.Bytes())-4*assaultReceive)) {
				t.Error("memory outside of the receives has changed")
			}
			if err := s.qp.Close(); err != nil {
				t.Error(err)
			}
			<-over
		})
	}
	if after := heap(); after > before+8<<20 {
		t.Errorf("%d bytes in the heap after all, %d before", after, before)
	}
	x, y := newSide(t, d, 4096, nil), newSide(t, d, 4096, nil)
	joinListener(t, x, y)
	y.recv(1, 0, 64)
	x.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: x.sge(0, 64)})
	if c := next(t, y.recvs); c.ID != 1 || c.Status != rdma.StatusSuccess {
		t.Fatalf("%+v", c)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
