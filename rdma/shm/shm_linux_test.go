package shm

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
)

// A side is one end of a connection in tests.
type side struct {
	t      testing.TB
	domain rdma.Domain
	cq     rdma.CompletionQueue
	qp     rdma.QueuePair
	srq    rdma.SharedReceiveQueue // of qp, in tests of two processes
	memory rdma.Region
	events chan rdma.Event

	// Kept, so that benchmarks do not allocate.
	rotation uint64 // buffers that are received into in turn
	receive  []rdma.RecvRequest
	request  []rdma.SendRequest
	polled   []rdma.Completion
}

func openDevice(t testing.TB, config Config) rdma.Device {
	t.Helper()
	devices, err := New(config).Devices(t.Context())
	if err != nil {
		testneed.Missing(t, err.Error(), "a Linux kernel and a seccomp profile with sealed memfds")
	}
	return devices[0]
}

const everything = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic

func newSide(t testing.TB, device rdma.Device, size int) *side {
	t.Helper()
	s := &side{t: t, events: make(chan rdma.Event, 64)}
	var err error
	if s.domain, err = device.OpenDomain(rdma.DomainConfig{OnEvent: s.onEvent}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
	})
	if s.cq, err = s.domain.NewCompletionQueue(1024); err != nil {
		t.Fatal(err)
	}
	if s.memory, err = s.domain.Allocate(size, everything); err != nil {
		t.Fatal(err)
	}
	return s
}

// onEvent keeps the first events.
func (s *side) onEvent(e rdma.Event) {
	select {
	case s.events <- e:
	default:
	}
}

func (s *side) pair(change func(*rdma.QueuePairConfig)) rdma.QueuePair {
	s.t.Helper()
	config := rdma.QueuePairConfig{
		SendCompletions: s.cq, RecvCompletions: s.cq, SendDepth: 64, RecvDepth: 64, MaxSGE: 4,
		MaxInline: 112, ReceiverNotReadyRetry: -1,
	}
	if change != nil {
		change(&config)
	}
	qp, err := s.domain.NewQueuePair(config)
	if err != nil {
		s.t.Fatal(err)
	}
	return qp
}

func connect(t testing.TB, device rdma.Device, from, to rdma.QueuePair) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := device.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, to, []byte("welcome"))
		}
		accepted <- err
	}()
	reply, err := from.Connect(ctx, l.Address(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if string(reply) != "welcome" {
		t.Fatalf("reply %q", reply)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
}

func newSides(t testing.TB, size int, change func(*rdma.QueuePairConfig)) (a, b *side) {
	t.Helper()
	device := openDevice(t, Config{})
	a, b = newSide(t, device, size), newSide(t, device, size)
	a.qp, b.qp = a.pair(change), b.pair(change)
	connect(t, device, a.qp, b.qp)
	return a, b
}

func (s *side) sge(offset, length int) []rdma.SGE {
	return []rdma.SGE{{Region: s.memory, Offset: offset, Length: length}}
}

func (s *side) remote(offset int) rdma.Remote {
	return rdma.Remote{Address: s.memory.Address() + uint64(offset), Key: s.memory.Key()}
}

func (s *side) send(requests ...rdma.SendRequest) {
	s.t.Helper()
	if n, err := s.qp.PostSend(requests); err != nil || n != len(requests) {
		s.t.Fatalf("posted %d of %d: %v", n, len(requests), err)
	}
}

func (s *side) recv(id uint64, sges ...rdma.SGE) {
	s.t.Helper()
	if _, err := s.qp.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: sges}}); err != nil {
		s.t.Fatal(err)
	}
}

// await polls for the next completion.
func (s *side) await() rdma.Completion {
	s.t.Helper()
	var c [1]rdma.Completion
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; ; i++ {
		n, err := s.cq.Poll(c[:])
		if err != nil {
			s.t.Fatal(err)
		}
		if n == 1 {
			return c[0]
		}
		if time.Now().After(deadline) {
			s.t.Fatal("no completion came")
		}
		pause(i)
	}
}

func (s *side) expect(id uint64, status rdma.Status) rdma.Completion {
	s.t.Helper()
	c := s.await()
	if c.ID != id || c.Status != status {
		s.t.Fatalf("completion %+v, want ID %d, %s", c, id, status)
	}
	return c
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i*7)
	}
}

func TestSendSizes(t *testing.T) {
	a, b := newSides(t, 1<<20, nil)
	for i, size := range []int{0, 1, 7, 8, 111, 112, 113, 1000, 4096, 100_000, 1 << 20} {
		fill(a.memory.Bytes()[:size], byte(i))
		b.recv(uint64(i), b.sge(0, 1<<20)...)
		a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, size)})
		a.expect(uint64(i), rdma.StatusSuccess)
		c := b.expect(uint64(i), rdma.StatusSuccess)
		if int(c.Length) != size || !bytes.Equal(a.memory.Bytes()[:size], b.memory.Bytes()[:size]) {
			t.Fatalf("%d bytes arrived as %d, or differ", size, c.Length)
		}
	}
}

func TestOneSided(t *testing.T) {
	a, b := newSides(t, 1<<20, nil)
	fill(a.memory.Bytes(), 3)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, 5000), Remote: b.remote(100)})
	a.expect(1, rdma.StatusSuccess)
	if !bytes.Equal(b.memory.Bytes()[100:5100], a.memory.Bytes()[:5000]) {
		t.Fatal("a Write put other bytes there")
	}
	a.send(rdma.SendRequest{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(10_000, 5000), Remote: b.remote(100)})
	a.expect(2, rdma.StatusSuccess)
	if !bytes.Equal(a.memory.Bytes()[10_000:15_000], a.memory.Bytes()[:5000]) {
		t.Fatal("a Read got other bytes")
	}
	b.recv(9)
	a.send(rdma.SendRequest{ID: 3, Op: rdma.OpWriteImmediate, Immediate: 77, SGEs: a.sge(0, 8), Remote: b.remote(8)})
	if c := b.expect(9, rdma.StatusSuccess); c.Immediate != 77 || !c.HasImmediate || c.Length != 8 || c.Op != rdma.OpRecvWriteImmediate {
		t.Fatalf("completion %+v", c)
	}
	clear(b.memory.Bytes()[:8])
	a.send(rdma.SendRequest{ID: 4, Op: rdma.OpFetchAdd, Flags: rdma.Signaled, CompareAdd: 5, SGEs: a.sge(0, 8), Remote: b.remote(0)},
		rdma.SendRequest{ID: 5, Op: rdma.OpCompareSwap, Flags: rdma.Signaled, CompareAdd: 5, Swap: 9, SGEs: a.sge(8, 8), Remote: b.remote(0)})
	a.expect(4, rdma.StatusSuccess)
	a.expect(5, rdma.StatusSuccess)
	if m := a.memory.Bytes(); m[0] != 0 || m[8] != 5 || b.memory.Bytes()[0] != 9 {
		t.Fatalf("atomics: %d %d %d", m[0], m[8], b.memory.Bytes()[0])
	}
}

func TestRefusedAccess(t *testing.T) {
	for name, change := range map[string]func(a, b *side, r *rdma.SendRequest){
		"key":     func(_, _ *side, r *rdma.SendRequest) { r.Remote.Key++ },
		"before":  func(_, _ *side, r *rdma.SendRequest) { r.Remote.Address-- },
		"behind":  func(_, _ *side, r *rdma.SendRequest) { r.Remote.Address += 4096 - 7 },
		"far":     func(_, _ *side, r *rdma.SendRequest) { r.Remote.Address = ^uint64(0) - 3 },
		"own key": func(a, _ *side, r *rdma.SendRequest) { r.Remote = a.remote(0) },
		"missing right": func(_, b *side, r *rdma.SendRequest) {
			region, err := b.domain.Allocate(4096, rdma.AccessRemoteRead)
			if err != nil {
				b.t.Fatal(err)
			}
			r.Remote = rdma.Remote{Address: region.Address(), Key: region.Key()}
		},
		"closed": func(a, b *side, r *rdma.SendRequest) {
			a.send(*r)
			a.expect(1, rdma.StatusSuccess)
			if err := b.memory.Close(); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSides(t, 4096, nil)
			r := rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, 8), Remote: b.remote(0)}
			change(a, b, &r)
			a.send(r, rdma.SendRequest{ID: 2, Op: rdma.OpWrite, SGEs: a.sge(0, 8), Remote: b.remote(0)})
			a.expect(1, rdma.StatusRemoteAccess)
			a.expect(2, rdma.StatusFlushed)
			<-a.qp.Done()
			<-b.qp.Done()
			t.Log(a.qp.Err())
			t.Log(b.qp.Err())
		})
	}
}

func TestEventMode(t *testing.T) {
	a, b := newSides(t, 4096, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(200) {
			b.recv(i, b.sge(0, 8)...)
			for {
				if err := b.cq.Arm(false); err != nil {
					t.Error(err)
				}
				var c [1]rdma.Completion
				if n, _ := b.cq.Poll(c[:]); n == 1 {
					if c[0].ID != i {
						t.Errorf("%+v", c[0])
					}
					break
				}
				if err := b.cq.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for i := range uint64(200) {
		a.send(rdma.SendRequest{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 8)})
		a.expect(i, rdma.StatusSuccess)
	}
	<-done
}
