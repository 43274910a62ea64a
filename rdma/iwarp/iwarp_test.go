package iwarp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

func fill(b []byte, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(b); i += 8 {
		v := r.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	return b
}

// TestOperations moves data by each operation over each kind of stream.
func TestOperations(t *testing.T) {
	for name, join := range joins {
		t.Run(name, func(t *testing.T) {
			const size = 4 << 20
			a, b := newPair(t, 2*size, join)
			for i, n := range []int{0, 1, 3, 4, 511, 1024, 1025, 65471, 65472, 65473, 1 << 20, size} {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					data := fill(a.memory.Bytes()[:n], uint64(i+1))
					id := uint64(100 * i)

					b.recv(id, 0, n)
					a.send(rdma.SendRequest{ID: id + 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, n)})
					if c := next(t, b.recvs); c.ID != id || c.Status != rdma.StatusSuccess || int(c.Length) != n || c.QueuePair != b.qp.Number() {
						t.Fatalf("receive: %+v", c)
					}
					if c := next(t, a.sends); c.ID != id+1 || c.Status != rdma.StatusSuccess {
						t.Fatalf("send: %+v", c)
					}
					if !bytes.Equal(b.memory.Bytes()[:n], data) {
						t.Fatal("the Send's data differs")
					}

					clear(b.memory.Bytes()[:size])
					b.recv(id, 0, 0)
					a.send(rdma.SendRequest{ID: id + 2, Op: rdma.OpWrite, SGEs: a.sge(0, n), Remote: b.at(0)})
					a.send(rdma.SendRequest{ID: id + 3, Op: rdma.OpSend, Flags: rdma.Signaled})
					next(t, b.recvs)
					if c := next(t, a.sends); c.ID != id+3 {
						t.Fatalf("an unsignalled Write completed: %+v", c)
					}
					if !bytes.Equal(b.memory.Bytes()[:n], data) {
						t.Fatal("the Write's data differs")
					}

					a.send(rdma.SendRequest{ID: id + 4, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(size, n), Remote: b.at(0)})
					if c := next(t, a.sends); c.ID != id+4 || int(c.Length) != n || c.Status != rdma.StatusSuccess {
						t.Fatalf("read: %+v", c)
					}
					if !bytes.Equal(a.memory.Bytes()[size:size+n], data) {
						t.Fatal("the Read's data differs")
					}
				})
			}
		})
	}
}

// TestBothWays loads both directions with all operations at once.
func TestBothWays(t *testing.T) {
	for name, join := range joins {
		t.Run(name, func(t *testing.T) {
			const size = 1 << 20
			a, b := newPair(t, 4*size, join)
			done := make(chan error, 2)
			run := func(self, peer *side, seed uint64) {
				r := rand.New(rand.NewPCG(seed, 2))
				data := fill(self.memory.Bytes()[:size], seed)
				for range 60 {
					n := 1 + r.IntN(size)
					if r.IntN(2) == 0 {
						n = 1 + r.IntN(2000)
					}
					o := r.IntN(size - n + 1)
					requests := []rdma.SendRequest{
						{ID: 1, Op: rdma.OpWrite, SGEs: self.sge(o, n), Remote: peer.at(size + o)},
						{ID: 2, Op: rdma.OpRead, SGEs: self.sge(2*size+o, n), Remote: peer.at(size + o)},
						{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Fence, SGEs: self.sge(o, min(n, 1024))},
					}
					if k, err := self.qp.PostSend(requests); k != 3 {
						done <- err
						return
					}
					if c := next(t, self.sends); c.ID != 3 || c.Status != rdma.StatusSuccess {
						done <- fmt.Errorf("completion %+v, %w", c, self.qp.Err())
						return
					}
					if !bytes.Equal(data[o:o+n], self.memory.Bytes()[2*size+o:2*size+o+n]) {
						done <- errors.New("data differs")
						return
					}
				}
				done <- nil
			}
			for i := range 60 {
				a.recv(uint64(i), 3*size+1024*i, 1024)
				b.recv(uint64(i), 3*size+1024*i, 1024)
			}
			go run(a, b, 3)
			go run(b, a, 4)
			for range 2 {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestRefusedAccess(t *testing.T) {
	for _, test := range []struct {
		name string
		op   rdma.Opcode
		to   func(b *side) rdma.Remote
	}{
		{"write, unknown key", rdma.OpWrite, func(b *side) rdma.Remote { r := b.at(0); r.Key ^= 1; return r }},
		{"write, out of bounds", rdma.OpWrite, func(b *side) rdma.Remote { return b.at(4096 - 4) }},
		{"write, before the start", rdma.OpWrite, func(b *side) rdma.Remote { r := b.at(0); r.Address--; return r }},
		{"read, unknown key", rdma.OpRead, func(b *side) rdma.Remote { r := b.at(0); r.Key ^= 1; return r }},
		{"read, wrap", rdma.OpRead, func(b *side) rdma.Remote { r := b.at(0); r.Address = ^uint64(0); return r }},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := newPair(t, 4096, joinListener)
			before := bytes.Clone(b.memory.Bytes())
			fill(a.memory.Bytes(), 9)
			a.send(rdma.SendRequest{ID: 1, Op: test.op, SGEs: a.sge(0, 8), Remote: test.to(b)})
			wants(t, a.ended(), rdma.ErrRemoteAccess)
			var terminated *TerminateError
			if err := a.qp.Err(); !errors.As(err, &terminated) || terminated.Sent {
				t.Fatalf("error %v", err)
			}
			if e := a.event(rdma.EventQueuePairError); e.QueuePair != a.qp || !errors.Is(e.Err, rdma.ErrRemoteAccess) {
				t.Fatalf("event %+v", e)
			}
			if err := b.ended(); errors.Is(err, rdma.ErrRemoteAccess) || !errors.As(err, &terminated) || !terminated.Sent {
				t.Fatalf("the target's error: %v", err)
			}
			if !bytes.Equal(before, b.memory.Bytes()) {
				t.Fatal("memory was touched")
			}
			if _, err := a.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend}}); !errors.Is(err, rdma.ErrState) {
				t.Fatalf("post after the failure: %v", err)
			}
		})
	}
}

// TestCloseWhileConnecting closes a queue pair whose peer does not answer.
func TestCloseWhileConnecting(t *testing.T) {
	s := rawSide(t, 4096)
	s.recv(1, 0, 8)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := s.qp.Connect(bounded(t), l.Addr().String(), nil)
		failed <- err
	}()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if _, err := readSetup(peer, false); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.Close(); err != nil {
		t.Fatal(err)
	}
	n, err := s.recvs.Poll(make([]rdma.Completion, 4))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Fatal("Connect of a closed queue pair succeeds")
	} else {
		t.Log(err)
	}
	if more, _ := s.recvs.Poll(make([]rdma.Completion, 4)); more != 0 {
		t.Fatalf("%d completions before Close had returned, %d after", n, more)
	}
}

// TestConnectContext ends a set-up by its context.
func TestConnectContext(t *testing.T) {
	s := rawSide(t, 4096)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		if peer, err := l.Accept(); err == nil {
			_, _ = readSetup(peer, false)
			cancel()
			_, _ = io.Copy(io.Discard, peer)
			peer.Close()
		}
	}()
	if _, err := s.qp.Connect(ctx, l.Addr().String(), nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
