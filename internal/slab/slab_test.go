package slab

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
)

func get(t testing.TB, p *Pool, size int) Slab {
	t.Helper()
	s, ok, err := p.TryGet(size)
	if !ok || err != nil {
		t.Fatalf("%d bytes cannot be had: %v", size, err)
	}
	return s
}

func TestSizes(t *testing.T) {
	p, _ := newPool(t, 64<<20)
	o := p.NewPrivate()
	for _, size := range []int{-1, 0, 1, 256, 320, 321, 448, 449, 4096, 1<<20 + 64, 1<<20 + 65, 3 << 20, 20 << 20, 64 << 20} {
		for _, take := range []func(int) (Slab, bool, error){p.TryGet, o.TryGet} {
			s, ok, err := take(size)
			if err != nil || !ok {
				t.Fatalf("%d bytes: %t, %v", size, ok, err)
			}
			if len(s.Bytes()) < size || s.Size() < size || cap(s.Bytes()) != s.Size() || s.None() {
				t.Errorf("%d bytes: %d, %d", size, len(s.Bytes()), s.Size())
			}
			if size > 512 && s.Size() > size*3/2+page {
				t.Errorf("%d bytes took %d", size, s.Size())
			}
			r := s.Remote()
			if r.Key != s.Region().Key() || r.Address != s.Region().Address()+uint64(s.Offset()) || &s.Region().Bytes()[s.Offset()] != &s.Bytes()[0] {
				t.Errorf("%d bytes: remote %+v", size, r)
			}
			p.Put(s)
			p.check(t)
		}
	}
	if p.Used() != 0 {
		t.Errorf("%d bytes in use", p.Used())
	}
	for _, size := range []int{64<<20 + 1, 1 << 40, 1<<63 - 1} {
		if _, _, err := p.TryGet(size); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if _, err := o.Get(context.Background(), size); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes of an owner's: %v", size, err)
		}
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// Every size up to the largest class has the class that wastes least, and every
// class but one an arena of which cutting wastes an eighth or a page at most.
func TestClasses(t *testing.T) {
	for size := range largest + extra + 1 {
		k := classOf(size)
		if strides[k] < size || k > 0 && strides[k-1] >= size {
			t.Fatalf("%d bytes: class %d has %d", size, k, strides[k])
		}
	}
	for k, stride := range strides {
		for arena := leasts[k]; arena <= lastArena+arenaExtra; arena = (arena-arenaExtra)*2 + arenaExtra {
			if waste := arena % stride; waste > max(arena/8, page) && stride != 768<<10+extra {
				t.Errorf("%d bytes of an arena of %d are left over by slabs of %d", waste, arena, stride)
			}
		}
	}
}

// What a runtime asks for fits: receives of 32 KiB, places of a send queue,
// chunks of 512 KiB, each with their headers.
func TestUsualSizesWasteLittle(t *testing.T) {
	for _, test := range []struct{ size, slab, arena, count int }{
		{32<<10 + 64, 32<<10 + 64, 32<<10 + 4096, 1},
		{16<<10 + 64, 16<<10 + 64, 16<<10 + 4096, 1},
		{8 << 10, 8<<10 + 64, 16<<10 + 4096, 2},
		{6 << 10, 6<<10 + 64, 64<<10 + 4096, 11},
		{512<<10 + 64, 512<<10 + 64, 512<<10 + 4096, 1},
		{1<<20 + 64, 1<<20 + 64, 1<<20 + 4096, 1},
		{64, 256 + 64, 16<<10 + 4096, 64},
	} {
		k := classOf(test.size)
		if strides[k] != test.slab || leasts[k] != test.arena || leasts[k]/strides[k] != test.count {
			t.Errorf("%d bytes: slabs of %d, %d in %d", test.size, strides[k], leasts[k]/strides[k], leasts[k])
		}
	}
}

// A small pool stays small, a large one does not have many regions.
func TestArenasGrowWithThePool(t *testing.T) {
	p, d := newPool(t, 256<<20)
	var out []Slab
	out = append(out, get(t, p, 1000))
	if n := p.Registered(); n != 16<<10+4096 {
		t.Errorf("the first slab took %d bytes", n)
	}
	for p.Registered() < 1<<20 {
		out = append(out, get(t, p, 32<<10+64))
	}
	if d.allocated > 12 {
		t.Errorf("%d regions for 1 MiB", d.allocated)
	}
	for p.Registered() < 128<<20 {
		out = append(out, get(t, p, 32<<10+64))
	}
	if d.allocated > 64+24 {
		t.Errorf("%d regions for 128 MiB", d.allocated)
	}
	if n, m := p.Used(), p.Registered(); n < m/100*97 {
		t.Errorf("%d bytes of %d are used", n, m)
	}
	for _, s := range out {
		p.Put(s)
	}
}

// Random gets and puts never hand out the same bytes twice, never register more
// than the limit, and all of it can be had again in any shape afterwards.
func TestModel(t *testing.T) {
	const limit = 24 << 20
	p, _ := newPool(t, limit)
	r := rand.New(rand.NewPCG(1, 2))
	type held struct {
		s    Slab
		mark byte
	}
	var out []held
	refused := 0
	for i := range 20_000 {
		if i%100 == 0 {
			p.check(t)
		}
		if len(out) > 0 && chance(r, 49) {
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
	}
	if refused == 0 {
		t.Error("the limit was never reached")
	}
	for _, h := range out {
		p.Put(h.s)
	}
	for _, size := range []int{300, 60_000, 1 << 20, limit, 4000} {
		p.Put(get(t, p, size))
		p.check(t)
	}
}

func TestConcurrent(t *testing.T) {
	p, d := newPool(t, 6<<20)
	var slow sync.Mutex
	r := rand.New(rand.NewPCG(5, 6))
	d.takes = func() time.Duration {
		slow.Lock()
		defer slow.Unlock()
		return time.Duration(r.IntN(20)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			o := p.NewPrivate()
			for i := range 1000 {
				size := 1 << r.IntN(23)
				var s Slab
				var err error
				switch r.IntN(4) {
				case 0:
					s, err = o.Get(ctx, size)
				case 1:
					if s, err = p.GetNow(ctx, size); errors.Is(err, ErrExhausted) {
						continue
					}
				case 2:
					err = p.Trim()
				default:
					s, err = p.Get(ctx, size)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if s.None() {
					continue
				}
				b := s.Bytes()
				b[0], b[len(b)-1] = byte(g), byte(i)
				runtime.Gosched()
				if b[0] != byte(g) || b[len(b)-1] != byte(i) {
					t.Error("somebody else wrote there")
				}
				p.Put(s) // who waits holds nothing, or all could wait for each other
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p.check(t)
	if p.Used() != 0 {
		t.Errorf("%d bytes in use", p.Used())
	}
}

func TestClosed(t *testing.T) {
	p, d := newPool(t, 6<<20)
	ctx := context.Background()
	o := p.NewPrivate()
	s, err := p.Get(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	s2, err := o.Get(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if len(d.regions) != 2 {
		t.Errorf("%d regions are left, of two slabs", len(d.regions))
	}
	p.Put(s)
	p.Put(s2)
	if err := errors.Join(o.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	for _, take := range []func(context.Context, int) (Slab, error){p.Get, p.GetNow, o.Get, o.GetNow} {
		if _, err := take(ctx, 100); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
}

// What a slab's last user leaves behind must not come as a surprise: it stays,
// and memory that nobody had is zero.
func TestFreshMemoryIsZero(t *testing.T) {
	p, _ := newPool(t, 6<<20)
	s := get(t, p, 1000)
	for _, b := range s.Bytes() {
		if b != 0 {
			t.Fatal("not zero")
		}
	}
	p.Put(s)
}

// Regions of a pool that promises it keep still, arenas, private ones and those of large slabs.
func TestSteady(t *testing.T) {
	for _, promised := range []bool{false, true} {
		p, d := newPool(t, 64<<20)
		if promised {
			p.Steady()
		}
		private := p.NewPrivate()
		var slabs []Slab
		for _, get := range []func() (Slab, bool, error){
			func() (Slab, bool, error) { return p.TryGet(4 << 10) },
			func() (Slab, bool, error) { return p.TryGet(8 << 20) },
			func() (Slab, bool, error) { return private.TryGet(4 << 10) },
		} {
			s, ok, err := get()
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			slabs = append(slabs, s)
		}
		if len(d.regions) < 3 {
			t.Fatalf("%d regions, want three kinds", len(d.regions))
		}
		for r := range d.regions {
			if r.steady != promised {
				t.Errorf("promised: %v; a region of %d bytes keeps still: %v", promised, len(r.memory), r.steady)
			}
		}
		for _, s := range slabs {
			p.Put(s)
		}
		if err := private.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPutTwice(t *testing.T) {
	if !race.Enabled {
		t.Skip("the race detector's build looks for it")
	}
	p, _ := newPool(t, 6<<20)
	s := get(t, p, 1000)
	p.Put(s)
	defer func() {
		if recover() == nil {
			t.Error("nobody noticed")
		}
	}()
	p.Put(s)
}

// A device that refuses gets back what is free and is asked for less.
func TestDeviceRefuses(t *testing.T) {
	p, d := newPool(t, 64<<20)
	var out []Slab
	for range 16 {
		out = append(out, get(t, p, 1<<20))
	}
	large := get(t, p, 10<<20)
	p.Put(large)
	room := d.bytes + 1<<20 // of which 10 MiB are idle
	d.refuses = func(size int) bool { return d.bytes+int64(size) > room }
	out = append(out, get(t, p, 32<<10), get(t, p, 7<<20))
	if _, ok, err := p.TryGet(5 << 20); ok || !errors.Is(err, errDevice) {
		t.Errorf("got %t, %v", ok, err)
	}
	p.check(t)
	for _, s := range out {
		p.Put(s)
	}
	d.refuses = nil
	p.Put(get(t, p, 64<<20))
	p.check(t)
}

// A region that cannot be closed stays counted, and is told of.
func TestDeviceKeepsRegions(t *testing.T) {
	d := newDevice(t, 8<<20)
	p := New(d, 0, 8<<20)
	p.Put(get(t, p, 3<<20))
	p.Put(get(t, p, 1000))
	d.keeps = func() bool { return true }
	if _, ok, err := p.TryGet(6 << 20); ok || err != nil {
		t.Errorf("got %t, %v", ok, err) // 3 MiB are lost
	}
	p.check(t)
	d.keeps = nil
	p.Put(get(t, p, 4<<20))
	p.check(t)
	if err := p.Trim(); err != nil {
		t.Error(err)
	}
	if n := p.Registered(); n != d.bytes || n < 3<<20 {
		t.Errorf("%d bytes are counted, the device has %d", n, d.bytes)
	}
	if err := p.Close(); !errors.Is(err, errDevice) {
		t.Errorf("got %v", err)
	}
}

func TestNoAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	p, _ := newPool(t, 64<<20)
	o := p.NewPrivate()
	for _, size := range []int{1000, 100_000, 2 << 20} {
		if n := testing.AllocsPerRun(1000, func() {
			s, _, err := p.TryGet(size)
			if err != nil {
				t.Fatal(err)
			}
			p.Put(s)
		}); n != 0 {
			t.Errorf("%d bytes: %v allocations", size, n)
		}
	}
	kept, _, _ := o.TryGet(100_000)
	other, _, _ := o.TryGet(100_000)
	p.Put(other)
	if n := testing.AllocsPerRun(1000, func() {
		s, _, _ := o.TryGet(100_000)
		if s.None() {
			t.Fatal("no memory")
		}
		p.Put(s)
	}); n > 1 { // the owner's place among the others
		t.Errorf("%v allocations of private memory", n)
	}
	p.Put(kept)
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// The pair is on the path of each eager message.
func BenchmarkTryGetPut(b *testing.B) {
	for _, bench := range []struct {
		name string
		size int
		held int // meanwhile
	}{{"shelf", 1000, 1}, {"burst", 1000, 16}, {"lock", 100_000, 1}} {
		b.Run(bench.name, func(b *testing.B) {
			p, _ := newPool(b, 64<<20)
			keep := get(b, p, bench.size)
			out := make([]Slab, bench.held)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				at := &out[i%len(out)]
				if !at.None() {
					p.Put(*at)
				}
				s, ok, err := p.TryGet(bench.size)
				if !ok || err != nil {
					b.Fatal(ok, err)
				}
				*at = s
			}
			for _, s := range append(out, keep) {
				if !s.None() {
					p.Put(s)
				}
			}
		})
	}
}

func BenchmarkUsed(b *testing.B) {
	p, _ := newPool(b, 64<<20)
	p.Put(get(b, p, 1000))
	p.Put(get(b, p, 20_000))
	for b.Loop() {
		if p.Used() != 0 {
			b.Fatal()
		}
	}
}

func BenchmarkContended(b *testing.B) {
	p, _ := newPool(b, 64<<20)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s, ok, _ := p.TryGet(1000)
			if !ok {
				continue // another registers
			}
			p.Put(s)
		}
	})
}

// A pool really has room for what Holds says, and says no less than three quarters
// of what would fit without arenas for sizes that fill their class.
func TestHolds(t *testing.T) {
	for _, limit := range []int64{300 << 10, 512 << 10, 1 << 20, 4<<20 + 12345, 32 << 20} {
		for _, size := range []int{300, 4 << 10, 16<<10 + 64, 20 << 10, 32<<10 + 64, 100 << 10, 256<<10 + 16} {
			p, _ := newPool(t, limit)
			want := p.Holds(size)
			var slabs []Slab
			for range want {
				s, err := p.GetNow(context.Background(), size)
				if err != nil {
					t.Fatalf("%d bytes of slabs of %d: %d of %d: %v", limit, size, len(slabs), want, err)
				}
				slabs = append(slabs, s)
			}
			if stride := strides[classOf(size)]; limit >= 4<<20 && stride <= 33<<10 && int64(want)*int64(stride) < limit/4*3 {
				t.Errorf("%d bytes hold %d slabs of %d", limit, want, size)
			}
			for _, s := range slabs {
				p.Put(s)
			}
		}
	}
}
