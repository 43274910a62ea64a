package slab

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A waiting is a Get in a goroutine of its own.
type waitingGet struct {
	slab   Slab
	err    error
	over   atomic.Bool
	cancel context.CancelFunc
}

// wait begins a Get, and returns when it waits or is over.
func wait(get func(context.Context, int) (Slab, error), size int) *waitingGet {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waitingGet{cancel: cancel}
	go func() {
		w.slab, w.err = get(ctx, size)
		w.over.Store(true)
	}()
	synctest.Wait()
	return w
}

// had is the slab that a wait has ended with.
func (w *waitingGet) had(t *testing.T) Slab {
	t.Helper()
	synctest.Wait()
	if !w.over.Load() || w.err != nil {
		t.Fatalf("over: %t, %v", w.over.Load(), w.err)
	}
	w.cancel()
	return w.slab
}

func (w *waitingGet) waits(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if w.over.Load() {
		t.Fatalf("does not wait: %v", w.err)
	}
}

// Requests for the same get their memory in the order in which they came, and
// leave when their context ends.
func TestOrder(t *testing.T) {
	for _, size := range []int{5 << 20, 8<<20 - 1<<20} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := newPool(t, 8<<20)
			all := get(t, p, 8<<20)
			var waits []*waitingGet
			for range 4 {
				waits = append(waits, wait(p.Get, size))
			}
			if _, ok, _ := p.TryGet(size); ok {
				t.Error("overtook those who wait")
			}
			waits[1].cancel()
			synctest.Wait()
			if !errors.Is(waits[1].err, context.Canceled) || !strings.Contains(waits[1].err.Error(), "8388608 of 8388608 in use") {
				t.Errorf("got %v", waits[1].err)
			}
			p.Put(all)
			for _, i := range []int{0, 2, 3} {
				s := waits[i].had(t)
				for _, w := range waits[i+1:] {
					if !w.over.Load() {
						w.waits(t)
					}
				}
				p.check(t)
				p.Put(s)
			}
			if p.Used() != 0 {
				t.Errorf("%d bytes in use", p.Used())
			}
		})
	}
}

// Small requests go on while a large one waits, whatever the large ones hold,
// and as long as they leave it what it needs.
func TestSmallPassLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1 << 30
		p, _ := newPool(t, limit)
		posted := get(t, p, 32<<10+64)
		var large []Slab
		for range 7 {
			large = append(large, get(t, p, 128<<20))
		}
		if _, ok, err := p.TryGet(64 << 20); ok || err != nil {
			t.Errorf("a large request has of the last eighth: %t, %v", ok, err)
		}
		w := wait(p.Get, 128<<20)
		w.waits(t)
		o := p.NewPrivate()
		var out []Slab
		for p.smallUse < limit/smallShare-4<<20 {
			out = append(out, get(t, p, 32<<10+64), get(t, p, 512<<10+64), get(t, p, 100))
			if s, ok, _ := o.TryGet(512 << 10); ok {
				out = append(out, s)
			} else {
				t.Fatal("no private memory")
			}
		}
		// Others that want what there is not wait for themselves.
		for {
			s, ok, err := p.TryGet(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			out = append(out, s)
		}
		w.waits(t)
		p.check(t)
		p.Put(get(t, p, 100))
		// What comes free is the large one's.
		p.Put(large[0])
		p.Put(w.had(t))
		for _, s := range append(append(out, posted), large[1:]...) {
			p.Put(s)
		}
		p.check(t)
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What comes free beyond the share of small requests is kept for a large one,
// even if it comes free bit by bit.
func TestLargeGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		var large []Slab
		for range 14 {
			large = append(large, get(t, p, 4<<20))
		}
		w := wait(p.Get, 40<<20)
		var small []Slab
		for i, s := range large {
			p.Put(s)
			for {
				s, ok, _ := p.TryGet(1 << 20)
				if !ok {
					break
				}
				small = append(small, s)
			}
			if _, ok, _ := p.TryGet(2 << 20); ok && i < 9 {
				t.Error("a large request passes another")
			}
			p.check(t)
			synctest.Wait()
			if w.over.Load() {
				if i > 9 {
					t.Errorf("it took until large region %d", i)
				}
				large = large[i+1:]
				break
			}
		}
		p.Put(w.had(t))
		for _, s := range append(small, large...) {
			p.Put(s)
		}
	})
}

// A small request that has to leave room for a large one gets it when that one
// does not want it any more.
func TestHeadLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		out := []Slab{get(t, p, 40<<20)}
		large := wait(p.Get, 50<<20)
		for {
			s, ok, _ := p.TryGet(1 << 20)
			if !ok {
				break
			}
			out = append(out, s)
		}
		small := []*waitingGet{wait(p.Get, 1<<20), wait(p.NewPrivate().Get, 1<<20)}
		for _, w := range small {
			w.waits(t)
		}
		large.cancel()
		synctest.Wait()
		for _, w := range small {
			out = append(out, w.had(t))
		}
		for _, s := range out {
			p.Put(s)
		}
		p.check(t)
	})
}

// Those who want the same while one registers an arena share it.
func TestArenaIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 64<<20)
		d.takes = func() time.Duration { return time.Second }
		var waits []*waitingGet
		for range 20 {
			waits = append(waits, wait(p.Get, 32<<10))
		}
		time.Sleep(time.Minute)
		for _, w := range waits {
			w.had(t)
		}
		if d.allocated != 7 {
			t.Errorf("%d regions for 20 slabs, of which 1, 1, 2, and then 4 fit into each", d.allocated)
		}
		for _, w := range waits {
			p.Put(w.slab)
		}
	})
}

// A load of small requests that never ends spreads over all arenas. Each slab
// comes back at some time, but no arena would ever be free. A large request is
// served all the same, and so is a small one of another class; and no more than
// a part of the small ones has to wait for them.
func TestNobodyStarves(t *testing.T) {
	for _, test := range []struct {
		name   string
		owner  bool
		size   int
		greedy bool // the load takes all that it can have
	}{
		{name: "large", size: 24 << 20},
		{name: "large, greedy load", size: 24 << 20, greedy: true},
		{name: "all", size: 64 << 20, greedy: true},
		{name: "small", size: 200},
		{name: "small, greedy load", size: 200, greedy: true},
		{name: "chunk", size: 1 << 20},
		{name: "private", owner: true, size: 1 << 20},
		{name: "private, greedy load", owner: true, size: 1 << 20, greedy: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := newPool(t, 64<<20)
				r := rand.New(rand.NewPCG(7, 8))
				// Fill the pool, then put back every other slab.
				var out []Slab
				for {
					s, ok, err := p.TryGet(16 << 10)
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					out = append(out, s)
				}
				r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
				slices.SortStableFunc(out, func(a, b Slab) int { // no arena becomes free
					return cmp.Compare(min(a.arena.count, 3), min(b.arena.count, 3))
				})
				for _, s := range out[len(out)/2:] {
					p.Put(s)
				}
				out = out[:len(out)/2]
				holds := len(out)
				take := p.Get
				if test.owner {
					take = p.NewPrivate().Get
				}
				w := wait(take, test.size)
				w.waits(t)
				// Each slab is held for as many steps as there are slabs.
				type held struct {
					slab  Slab
					until int
				}
				var load []held
				for i, s := range out {
					load = append(load, held{s, i})
				}
				refused, steps := 0, 0
				for ; !w.over.Load() && steps < 10*holds; steps++ {
					for {
						s, ok, _ := p.TryGet(16 << 10)
						if !ok {
							refused++
							break
						}
						load = append(load, held{s, steps + holds})
						if !test.greedy {
							break
						}
					}
					for len(load) > 0 && load[0].until <= steps {
						p.Put(load[0].slab)
						load = load[1:]
					}
					synctest.Wait()
					if steps%100 == 0 {
						p.check(t)
					}
				}
				if !w.over.Load() {
					t.Fatalf("starves: %d of %d requests were refused meanwhile", refused, steps)
				}
				if steps > 3*holds || refused > steps/4 && !test.greedy {
					t.Errorf("after %d steps with %d slabs, of which %d were refused", steps, holds, refused)
				}
				p.Put(w.had(t))
				for _, h := range load {
					p.Put(h.slab)
				}
				p.check(t)
			})
		})
	}
}

// Without the rule above the same load would keep the large request waiting: it
// is really met by draining, not by luck.
func TestDrainedArenasOpenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 16<<20)
		var out []Slab
		for {
			s, ok, _ := p.TryGet(16 << 10)
			if !ok {
				break
			}
			out = append(out, s)
		}
		for i, s := range out {
			if i%2 == 0 {
				p.Put(s)
			}
		}
		w := wait(p.Get, 8<<20)
		for range 2 * patientPasses {
			if s, ok, _ := p.TryGet(16 << 10); ok {
				p.Put(s)
			}
		}
		p.check(t)
		if p.drainedUse < 7<<20 || p.drainedUse > 10<<20 {
			t.Errorf("%d bytes drain for a request of 8 MiB", p.drainedUse)
		}
		w.cancel()
		synctest.Wait()
		if p.check(t); p.drainedUse != 0 {
			t.Errorf("%d bytes still drain", p.drainedUse)
		}
		for i := range out {
			if i%2 == 0 {
				out[i] = get(t, p, 16<<10)
			}
		}
		for _, s := range out {
			p.Put(s)
		}
	})
}

func TestGetNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 8<<20)
		ctx := context.Background()
		s, err := p.GetNow(ctx, 8<<20)
		if err != nil {
			t.Fatal(err)
		}
		w := wait(p.Get, 1000)
		began := time.Now()
		_, err = p.GetNow(ctx, 6<<10)
		if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "no 6144 bytes now: of 8388608 bytes 8388608 are in use and 8388608 registered, and 1 requests wait") {
			t.Errorf("got %v", err)
		}
		if time.Since(began) > 0 {
			t.Error("it was not refused at once")
		}
		p.Put(s)
		p.Put(w.had(t))
		if err := p.Trim(); err != nil {
			t.Fatal(err)
		}

		// Who comes while another registers the only arena gets a slab of it.
		d.takes = func() time.Duration { return time.Second }
		var waits []*waitingGet
		for range 8 {
			waits = append(waits, wait(p.GetNow, 1<<20))
		}
		if _, ok, err := p.TryGet(1 << 20); ok || err != nil {
			t.Errorf("got %t, %v", ok, err) // it does not wait even for that
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		n := 0
		for _, w := range waits {
			if w.err == nil {
				p.Put(w.had(t))
				n++
			} else if !errors.Is(w.err, ErrExhausted) || !w.over.Load() {
				t.Errorf("got %v", w.err)
			}
		}
		if n != 7 {
			t.Errorf("%d of 8 had memory, there was enough for 7", n)
		}
		// And who comes while it is closed gets the room.
		go p.Trim()
		synctest.Wait()
		w = wait(p.GetNow, 8<<20)
		time.Sleep(20 * time.Second)
		p.Put(w.had(t))
	})
}

// A device that takes long to register or close keeps nobody else waiting.
func TestSlowDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 64<<20)
		keep := get(t, p, 40_000)
		p.Put(get(t, p, 50<<20))
		d.takes = func() time.Duration { return time.Hour }
		for _, slow := range []func() (Slab, error){
			func() (Slab, error) { return p.Get(context.Background(), 40<<20) }, // it evicts
			func() (Slab, error) { return Slab{}, p.Trim() },
			func() (Slab, error) { return p.Get(context.Background(), 2<<20) },
		} {
			got := make(chan Slab, 1)
			go func() {
				s, err := slow()
				if err != nil {
					t.Error(err)
				}
				got <- s
			}()
			synctest.Wait()
			began := time.Now()
			p.Put(get(t, p, 40_000))
			if p.Used() < 40_000 || p.Registered() == 0 || time.Since(began) > 0 {
				t.Error("waited for the device")
			}
			p.check(t)
			if s := <-got; !s.None() {
				p.Put(s)
			}
			p.check(t)
		}
		d.takes = nil
		p.Put(keep)
	})
}

// Close ends all waits, and returns when nobody is busy any more.
func TestCloseEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 8<<20)
		o, o2 := p.NewPrivate(), p.NewPrivate()
		s := get(t, p, 7<<20)
		waits := []*waitingGet{wait(p.Get, 5<<20), wait(o.Get, 1<<20), wait(o.Get, 1<<20), wait(p.Get, 1<<20), wait(o2.Get, 1<<20)}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		p.check(t)
		synctest.Wait()
		for i, w := range waits {
			if i == 2 && !errors.Is(w.err, ErrClosed) {
				t.Errorf("wait %d of an owner that is closed: %v", i, w.err)
			}
		}
		d.takes = func() time.Duration { return time.Minute }
		slow := wait(p.NewPrivate().Get, 64)
		d.takes = nil
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !errors.Is(slow.err, ErrClosed) {
			t.Errorf("the one that registered: %v", slow.err)
		}
		for i, w := range waits {
			if w.slab.None() && !errors.Is(w.err, ErrClosed) {
				t.Errorf("wait %d: %v", i, w.err)
			} else if !w.slab.None() {
				p.Put(w.slab)
			}
		}
		p.Put(s)
		p.check(t)
	})
}
