package iwarp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
)

// within bounds what must come; it is no measure of anything.
const within = 30 * time.Second

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

func testDevice(t testing.TB, config Config) *device {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	devices, err := New(config).Devices(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return devices[0].(*device)
}

// side is one end of a connection with all that belongs to it.
type side struct {
	t      testing.TB
	device *device
	domain rdma.Domain
	memory rdma.Region
	sends  rdma.CompletionQueue
	recvs  rdma.CompletionQueue
	qp     rdma.QueuePair
	events chan rdma.Event
}

const everything = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite

func newSide(t testing.TB, d *device, memory int, adjust func(*rdma.QueuePairConfig)) *side {
	t.Helper()
	s := &side{t: t, device: d, events: make(chan rdma.Event, 64)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.domain, err = d.OpenDomain(rdma.DomainConfig{OnEvent: func(e rdma.Event) {
		select {
		case s.events <- e:
		default:
		}
	}})
	must(err)
	t.Cleanup(func() { must(s.domain.Close()) })
	access := everything
	if d.config.extensions != engine.ExtensionsOff {
		access |= rdma.AccessRemoteAtomic
	}
	s.memory, err = s.domain.Allocate(memory, access)
	must(err)
	s.sends, err = s.domain.NewCompletionQueue(1024)
	must(err)
	s.recvs, err = s.domain.NewCompletionQueue(1024)
	must(err)
	config := rdma.QueuePairConfig{SendCompletions: s.sends, RecvCompletions: s.recvs,
		SendDepth: 64, RecvDepth: 64, MaxSGE: 4, MaxInline: 128}
	if adjust != nil {
		adjust(&config)
	}
	s.qp, err = s.domain.NewQueuePair(config)
	must(err)
	return s
}

// joins are the ways in which two queue pairs come together.
var joins = map[string]func(t testing.TB, a, b *side){
	"listener": joinListener,
	"tcp stream": func(t testing.TB, a, b *side) {
		ca, cb := tcpPair(t)
		joinStreams(t, a, b, ca, cb)
	},
	"unix stream": func(t testing.TB, a, b *side) {
		ca, cb := unixPair(t)
		joinStreams(t, a, b, ca, cb)
	},
	"pipe": func(t testing.TB, a, b *side) {
		ca, cb := net.Pipe()
		joinStreams(t, a, b, ca, cb)
	},
}

func joinListener(t testing.TB, a, b *side) {
	t.Helper()
	ctx := bounded(t)
	l, err := b.device.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	failed := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, b.qp, []byte("welcome"))
		}
		failed <- err
	}()
	reply, err := a.qp.Connect(ctx, l.Address(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if string(reply) != "welcome" {
		t.Fatalf("reply %q", reply)
	}
}

func joinStreams(t testing.TB, a, b *side, ca, cb net.Conn) {
	t.Helper()
	ctx := bounded(t)
	failed := make(chan error, 1)
	go func() {
		r, err := b.device.RequestFromStream(ctx, cb)
		if err == nil {
			err = r.Accept(ctx, b.qp, nil)
		}
		failed <- err
	}()
	if _, err := a.device.ConnectStream(ctx, a.qp, ca, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

func tcpPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func unixPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func newPair(t testing.TB, memory int, join func(testing.TB, *side, *side)) (a, b *side) {
	t.Helper()
	d := testDevice(t, Config{})
	a, b = newSide(t, d, memory, nil), newSide(t, d, memory, nil)
	join(t, a, b)
	return a, b
}

// next waits for a completion.
func next(t testing.TB, q rdma.CompletionQueue) rdma.Completion {
	t.Helper()
	ctx := context.Background()
	var c [1]rdma.Completion
	for {
		if n, err := q.Poll(c[:]); err != nil {
			t.Fatal(err)
		} else if n == 1 {
			return c[0]
		}
		if err := q.Arm(false); err != nil {
			t.Fatal(err)
		}
		if n, _ := q.Poll(c[:]); n == 1 {
			return c[0]
		}
		bound, cancel := context.WithTimeout(ctx, within)
		err := q.Wait(bound)
		cancel()
		if err != nil {
			t.Fatalf("no completion: %v", err)
		}
	}
}

func (s *side) send(r rdma.SendRequest) {
	s.t.Helper()
	if _, err := s.qp.PostSend([]rdma.SendRequest{r}); err != nil {
		s.t.Fatalf("post %s: %v", r.Op, err)
	}
}

func (s *side) recv(id uint64, offset, length int) {
	s.t.Helper()
	r := rdma.RecvRequest{ID: id}
	if length > 0 {
		r.SGEs = s.sge(offset, length)
	}
	if _, err := s.qp.PostRecv([]rdma.RecvRequest{r}); err != nil {
		s.t.Fatalf("post receive: %v", err)
	}
}

func (s *side) sge(offset, length int) []rdma.SGE {
	return []rdma.SGE{{Region: s.memory, Offset: offset, Length: length}}
}

func (s *side) at(offset int) rdma.Remote {
	return rdma.Remote{Address: s.memory.Address() + uint64(offset), Key: s.memory.Key()}
}

func (s *side) ended() error {
	s.t.Helper()
	select {
	case <-s.qp.Done():
	case <-time.After(within):
		s.t.Fatal("the queue pair does not fail")
	}
	return s.qp.Err()
}

func (s *side) event(kind rdma.EventKind) rdma.Event {
	s.t.Helper()
	for {
		select {
		case e := <-s.events:
			if e.Kind == kind {
				return e
			}
		case <-time.After(within):
			s.t.Fatalf("no event %s", kind)
		}
	}
}

func wants(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error %v, want %v", err, target)
	}
}
