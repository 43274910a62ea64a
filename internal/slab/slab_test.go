package slab

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

func newPool(t testing.TB, limit int64) *Pool {
	d, err := fake.NewNetwork().NewDevice(fake.InfiniBand("a")).OpenDomain(rdma.DomainConfig{})
	if err != nil {
		t.Fatal(err)
	}
	p := New(d, rdma.AccessLocalWrite, limit)
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestSizes(t *testing.T) {
	p := newPool(t, 64<<20)
	for _, size := range []int{0, 1, 256, 320, 321, 4096, 1<<20 + 64, 1<<20 + 65, 3 << 20, 20 << 20} {
		s, ok, err := p.TryGet(size)
		if err != nil || !ok {
			t.Fatalf("%d bytes: %t, %v", size, ok, err)
		}
		if len(s.Bytes()) < size || s.Size() < size || cap(s.Bytes()) != s.Size() || s.None() {
			t.Errorf("%d bytes: %d, %d", size, len(s.Bytes()), s.Size())
		}
		if size > 320 && s.Size() > 2*size+extra+bigUnit {
			t.Errorf("%d bytes took %d", size, s.Size())
		}
		r := s.Remote()
		if r.Key != s.Region().Key() || r.Address != s.Region().Address()+uint64(s.Offset()) || &s.Region().Bytes()[s.Offset()] != &s.Bytes()[0] {
			t.Errorf("%d bytes: remote %+v", size, r)
		}
		p.Put(s)
	}
	if p.Used() != 0 {
		t.Errorf("%d bytes in use", p.Used())
	}
	for _, size := range []int{65 << 20, 1 << 40} {
		if _, _, err := p.TryGet(size); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// Random gets and puts never hand out the same bytes twice, never register more
// than the limit, and all of it can be had again in any shape afterwards.
func TestModel(t *testing.T) {
	const limit = 24 << 20
	p := newPool(t, limit)
	r := rand.New(rand.NewPCG(1, 2))
	type held struct {
		s    Slab
		mark byte
	}
	var out []held
	refused := 0
	for i := range 20_000 {
		if len(out) > 0 && r.IntN(100) < 49 {
			j := r.IntN(len(out))
			h := out[j]
			b := h.s.Bytes()
			if b[0] != h.mark || b[len(b)-1] != h.mark {
				t.Fatal("somebody else wrote there")
			}
			out[j] = out[len(out)-1]
			out = out[:len(out)-1]
			p.Put(h.s)
			continue
		}
		size := 1 << r.IntN(24)
		s, ok, err := p.TryGet(size)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			refused++
			continue
		}
		h := held{s, byte(i)}
		b := s.Bytes()
		b[0], b[len(b)-1] = h.mark, h.mark
		out = append(out, h)
		if p.Registered() > limit {
			t.Fatalf("%d bytes registered", p.Registered())
		}
	}
	if refused == 0 {
		t.Error("the limit was never reached")
	}
	for _, h := range out {
		p.Put(h.s)
	}
	for _, size := range []int{300, 60_000, 1 << 20, limit, 4000} {
		s, ok, err := p.TryGet(size)
		if !ok || err != nil {
			t.Fatalf("%d bytes cannot be had from an empty pool: %v", size, err)
		}
		p.Put(s)
	}
}

// Waiters get their memory in the order in which they came, and leave when
// their context ends.
func TestWaiting(t *testing.T) {
	p := newPool(t, 8<<20)
	ctx := context.Background()
	all, err := p.Get(ctx, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := p.Get(short, 100); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	order := make(chan int, 3)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			s, err := p.Get(ctx, 5<<20) // one at a time
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			p.Put(s)
		})
		for p.waiters() != i+1 {
			runtime.Gosched() // the waiter is on its way
		}
	}
	if _, ok, _ := p.TryGet(1); ok {
		t.Error("overtook those who wait")
	}
	p.Put(all)
	wg.Wait()
	for want := range 3 {
		if got := <-order; got != want {
			t.Errorf("waiter %d came where %d was due", got, want)
		}
	}
	if p.Used() != 0 {
		t.Errorf("%d bytes in use", p.Used())
	}
}

func (p *Pool) waiters() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting.Len()
}

func TestConcurrent(t *testing.T) {
	p := newPool(t, 6<<20)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for range 2000 {
				s, err := p.Get(ctx, 1<<r.IntN(23))
				if err != nil {
					t.Error(err)
					return
				}
				s.Bytes()[0] = byte(g)
				p.Put(s)
			}
		})
	}
	wg.Wait()
	if p.Used() != 0 {
		t.Errorf("%d bytes in use", p.Used())
	}
}

func TestClosed(t *testing.T) {
	p := newPool(t, 6<<20)
	s, err := p.Get(context.Background(), 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Put(s)
	if _, err := p.Get(context.Background(), 100); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestNoAllocations(t *testing.T) {
	p := newPool(t, 6<<20)
	if n := testing.AllocsPerRun(1000, func() {
		s, _, err := p.TryGet(1000)
		if err != nil {
			t.Fatal(err)
		}
		p.Put(s)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
