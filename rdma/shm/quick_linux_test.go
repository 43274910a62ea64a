package shm

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/prefetch"
	"github.com/verbena-data/verbena/rdma"
)

// What the short paths of Send leave out must not be needed: a message longer
// than its receive fails, whatever the lengths of the receives around it are.
func TestRoom(t *testing.T) {
	for name, lengths := range map[string][]int{
		"last is short":   {112, 112, 100},
		"alone":           {100},
		"after longer":    {5000, 5000, 100},
		"two are shorter": {112, 110, 100},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSides(t, 1<<16, nil)
			// Once round with a long receive, so that much has been seen to fit.
			b.recv(0, b.sge(0, 5000)...)
			a.send(rdma.SendRequest{ID: 0, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 101)})
			a.expect(0, rdma.StatusSuccess)
			b.expect(0, rdma.StatusSuccess)
			for i, length := range lengths {
				b.recv(uint64(i+1), b.sge(0, length)...)
			}
			for i := range lengths {
				want := rdma.StatusSuccess
				if i == len(lengths)-1 {
					want = rdma.StatusRemoteInvalid
				}
				a.send(rdma.SendRequest{ID: uint64(i + 1), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 101)})
				a.expect(uint64(i+1), want)
				if want == rdma.StatusSuccess {
					b.expect(uint64(i+1), rdma.StatusSuccess)
				} else {
					b.expect(uint64(i+1), rdma.StatusLocalLength)
				}
			}
		})
	}
}

// SendNow does not overtake a Send that waits, though a receive is there for it.
func TestSendNowWaitsItsTurn(t *testing.T) {
	for _, length := range []int{8, 1000} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprint(length, shared), func(t *testing.T) {
				var a, b *side
				now := bytes.Repeat([]byte{7}, length)
				if shared {
					p := newPool(t, 1, 4, 4096, nil)
					a, b = p.peers[0], p.side
					a.send(sendOf(a, 1, 1001)) // no receive is lent to it
					p.post(0, 1)
				} else {
					a, b = newSides(t, 1<<16, nil)
					b.recv(0, b.sge(0, 4096)...)
					b.recv(1, b.sge(4096, 4096)...)
					a.send(sendOf(a, 1, 1001)) // the region has not been granted yet
				}
				done := a.qp.(*queuePair).SendNow(now, nil)
				a.expect(1, rdma.StatusSuccess)
				if c := b.await(); c.ID != 0 || c.Length != 1001 {
					t.Fatalf("the first message is %+v", c)
				}
				if !done && !a.qp.(*queuePair).SendNow(now, nil) {
					a.send(sendOf(a, 2, length))
					a.expect(2, rdma.StatusSuccess)
				}
				if c := b.await(); c.ID != 1 || int(c.Length) != length {
					t.Fatalf("the second message is %+v", c)
				}
			})
		}
	}
}

// A receive that names a closed region fails the message that comes for it, also
// if the sender knew before that the receive was there.
func TestReceiveIntoClosedRegion(t *testing.T) {
	for _, length := range []int{8, 1000} {
		a, b := newSides(t, 1<<16, nil)
		gone, err := b.domain.Allocate(4096, everything)
		if err != nil {
			t.Fatal(err)
		}
		b.recv(1, b.sge(0, 4096)...)
		b.recv(2, rdma.SGE{Region: gone, Length: 4096})
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, length)})
		a.expect(1, rdma.StatusSuccess)
		b.expect(1, rdma.StatusSuccess)
		if err := gone.Close(); err != nil {
			t.Fatal(err)
		}
		a.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, length)})
		a.expect(2, rdma.StatusRemoteOperation)
		b.expect(2, rdma.StatusLocalProtection)
	}
}

// Messages that alternate are told from a stream and from requests of which
// several are on their way, and what is done for them asks for nothing of a receive
// that is gone meanwhile.
func TestAlternating(t *testing.T) {
	const length = 1000
	a, b := newSides(t, 1<<16, nil)
	qp := a.qp.(*queuePair)
	var id uint64
	pass := func(from, to *side) {
		id++
		from.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: from.sge(0, length)})
		from.expect(id, rdma.StatusSuccess)
		to.expect(id, rdma.StatusSuccess)
	}
	receives := func(into *side, n int) {
		for i := range uint64(n) {
			into.recv(id+1+2*i, into.sge(4096, length)...)
		}
	}
	// probe tells what the next message of a will be taken for.
	probe := func() bool {
		answers, unanswered := qp.answers, qp.unanswered
		defer func() { qp.answers, qp.unanswered = answers, unanswered }()
		return qp.alternates()
	}
	for i := range 20 {
		receives(b, 1)
		pass(a, b)
		if probe() {
			t.Fatalf("round %d is taken to be answered before it is", i)
		}
		receives(a, 1)
		pass(b, a)
		if !probe() {
			t.Fatalf("round %d is not seen to alternate", i)
		}
	}
	for range 3 {
		receives(b, 1)
		pass(a, b)
	}
	for i := range 20 {
		receives(a, 1)
		pass(b, a)
		if probe() {
			t.Fatalf("answer %d of a window of three is taken for an exchange", i)
		}
		receives(b, 1)
		pass(a, b)
	}
}

// A message that alternates asks for the lines of the next receive. That its region
// is gone by then, which this side has in its cache, does no harm.
func TestAlternatingIntoClosedRegion(t *testing.T) {
	const length = 1000
	a, b := newSides(t, 1<<16, nil)
	gone, err := b.domain.Allocate(4096, everything)
	if err != nil {
		t.Fatal(err)
	}
	send := func(from *side, id uint64) {
		from.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: from.sge(0, length)})
	}
	into := []rdma.SGE{{Region: gone, Length: 4096}}
	arrives := func(from, to *side, id uint64) {
		send(from, id)
		from.expect(id, rdma.StatusSuccess)
		to.expect(id, rdma.StatusSuccess)
	}
	// The first message into a region asks for it; from then on a's cache has it.
	b.recv(1, into...)
	b.recv(2, b.sge(4096, length)...)
	b.recv(3, b.sge(4096, length)...)
	b.recv(5, b.sge(4096, length)...)
	b.recv(6, into...)
	a.recv(4, a.sge(4096, length)...)
	arrives(a, b, 1)
	arrives(a, b, 2)
	arrives(a, b, 3)
	arrives(b, a, 4)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	qp := a.qp.(*queuePair)
	if qp.unanswered != 1 {
		t.Fatalf("%d messages count as not answered", qp.unanswered)
	}
	arrives(a, b, 5)
	if qp.unanswered != 1 || qp.answers != 1 {
		t.Fatalf("message 5 was not seen to alternate: %d are unanswered, after %d", qp.unanswered, qp.answers)
	}
	send(a, 6)
	a.expect(6, rdma.StatusRemoteOperation)
	b.expect(6, rdma.StatusLocalProtection)
}

// What is only asked of the caches may name memory that is gone meanwhile.
func TestHintsAboutUnmappedMemory(t *testing.T) {
	memory, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	base := unsafe.Pointer(&memory[0])
	if err := unix.Munmap(memory); err != nil {
		t.Fatal(err)
	}
	demote(base, len(memory)/64)
	prefetch.ToWrite(memory, len(memory))
	prefetch.ToRead(memory, len(memory))
	prefetch.LineToRead(base)
}

// A Send from a region that is closed fails while it is posted.
func TestSendFromClosedRegion(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite} {
		a, b := newSides(t, 1<<16, nil)
		gone, err := a.domain.Allocate(4096, everything)
		if err != nil {
			t.Fatal(err)
		}
		request := []rdma.SendRequest{{ID: 1, Op: op, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: gone, Length: 8}}, Remote: b.remote(0)}}
		b.recv(1, b.sge(0, 64)...)
		b.recv(2, b.sge(0, 64)...)
		a.send(request...)
		a.expect(1, rdma.StatusSuccess)
		if err := gone.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := a.qp.PostSend(request); n != 0 || err == nil {
			t.Fatalf("%s from a closed region was posted", op)
		}
	}
}

// A region that its owner has closed is out of reach for Writes that have used it.
func TestWriteAfterClose(t *testing.T) {
	a, b := newSides(t, 1<<16, nil)
	gone, err := b.domain.Allocate(4096, everything)
	if err != nil {
		t.Fatal(err)
	}
	request := rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, 8), Remote: rdma.Remote{Address: gone.Address(), Key: gone.Key()}}
	for range 3 {
		a.send(request)
		a.expect(1, rdma.StatusSuccess)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	a.send(request)
	a.expect(1, rdma.StatusRemoteAccess)
}

func noBarriers(d rdma.Device) { d.(*device).fences = true }

// Where barriers are not to be had, each side uses fences of its own.
func TestFences(t *testing.T) {
	device := openDevice(t, Config{})
	noBarriers(device)
	a, b := newSide(t, device, 1<<16), newSide(t, device, 1<<16)
	a.qp, b.qp = a.pair(nil), b.pair(nil)
	connect(t, device, a.qp, b.qp)
	if a.qp.(*queuePair).lazy.Load() || b.qp.(*queuePair).lazy.Load() {
		t.Fatal("barriers are used")
	}
	relay(t, a, b)
}

// The same with barriers, if there are any.
func TestBarriers(t *testing.T) {
	a, b := newSides(t, 1<<16, nil)
	if got := a.qp.(*queuePair).lazy.Load(); got != barriers() {
		t.Fatalf("barriers are there: %t, and used: %t", barriers(), got)
	}
	relay(t, a, b)
}

// relay passes a message to and fro between two goroutines, of which one sleeps
// whenever it finds nothing, and the other after looking a while.
func relay(t *testing.T, a, b *side) {
	const rounds = 20_000
	play := func(s *side, first bool, patience int) {
		var c [4]rdma.Completion
		send := []rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: s.sge(0, 8)}}
		receive := []rdma.RecvRequest{{SGEs: s.sge(64, 8)}}
		for range rounds {
			if first {
				if _, err := s.qp.PostSend(send); err != nil {
					t.Error(err)
					return
				}
			}
			for received, idle := false, 0; !received; {
				n, err := s.cq.Poll(c[:])
				if err != nil {
					t.Error(err)
					return
				}
				for _, c := range c[:n] {
					if c.Status != rdma.StatusSuccess {
						t.Error(c.Status, s.qp.Err())
						return
					}
					received = received || c.Op == rdma.OpRecv
				}
				if n > 0 {
					continue
				}
				idle++
				if idle%patience != 0 {
					pause(idle & 63)
					continue
				}
				if err := s.cq.Arm(false); err != nil {
					t.Error(err)
				}
				if n, err = s.cq.Poll(c[:1]); err != nil {
					t.Error(err)
				}
				if n == 1 {
					received = c[0].Op == rdma.OpRecv
					continue
				}
				if err := s.cq.Wait(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
			if _, err := s.qp.PostRecv(receive); err != nil {
				t.Error(err)
				return
			}
			if !first {
				if _, err := s.qp.PostSend(send); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}
	a.recv(0, a.sge(64, 8)...)
	b.recv(0, b.sge(64, 8)...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		play(b, false, 1)
	}()
	play(a, true, 100)
	<-done
}
