package slab

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// What nobody uses goes back after some seconds, and no timer is left.
func TestTrim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 256<<20)
		o := p.NewPrivate()
		keep := get(t, p, 32<<10)
		before := p.Registered()
		var out []Slab
		for range 1000 {
			out = append(out, get(t, p, 32<<10), get(t, p, 1000))
		}
		for range 10 {
			s, _, _ := o.TryGet(512 << 10)
			out = append(out, s, get(t, p, 3<<20))
		}
		after := p.Registered()
		for _, s := range out {
			p.Put(s)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := p.Registered(); n != after {
			t.Errorf("%d bytes after 3 s, of %d", n, after)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := p.Registered(); n > before+lastArena+arenaExtra || d.bytes != n {
			t.Errorf("%d bytes are left, there were %d", n, before)
		}
		if p.trim.armed {
			t.Error("the timer runs although nothing is free")
		}
		p.check(t)
		p.Put(keep)
		p.Put(get(t, p, 1000)) // it lies on a shelf
		p.Put(get(t, p, 1000))
		time.Sleep(time.Minute)
		synctest.Wait()
		if p.Registered() != 0 || p.trim.armed {
			t.Errorf("%d bytes are left, armed: %t", p.Registered(), p.trim.armed)
		}
		p.check(t)
	})
}

// What is used now and then stays; once it is missed soon after it went, it
// stays longer, and when it has not been missed for long it goes sooner again.
func TestTrimIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 64<<20)
		load := func() {
			p.Put(get(t, p, 3<<20))
			p.Put(get(t, p, 100_000))
			p.Put(get(t, p, 1000))
		}
		every := func(period time.Duration, times int) (registered int) {
			before := d.allocated
			for range times {
				load()
				time.Sleep(period)
				synctest.Wait()
				p.check(t)
			}
			return d.allocated - before
		}
		if n := every(2*time.Second, 20); n != 3 {
			t.Errorf("%d regions for a load of every 2 s", n)
		}
		every(10*time.Second, 5)
		if n := every(10*time.Second, 20); n != 0 {
			t.Errorf("%d regions for a load of every 10 s that is known", n)
		}
		time.Sleep(time.Hour)
		load()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := p.Registered(); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
	})
}

func TestTrimAtOnce(t *testing.T) {
	p, d := newPool(t, 64<<20)
	keep := get(t, p, 1000)
	before := p.Registered()
	o := p.NewPrivate()
	for range 2 {
		p.Put(get(t, p, 1000))
		p.Put(get(t, p, 100_000))
		p.Put(get(t, p, 10<<20))
		s, _, _ := o.TryGet(64)
		p.Put(s)
		if err := p.Trim(); err != nil {
			t.Error(err)
		}
		if p.check(t); p.Registered() != before || d.bytes != before {
			t.Errorf("%d bytes are left, there were %d", p.Registered(), before)
		}
	}
	p.Put(keep)
}

// gather moves each slab to a denser region, if there is one.
func gather(p *Pool, slabs []Slab) {
	for i, s := range slabs {
		if better, ok := p.Denser(s); ok {
			p.Put(s)
			slabs[i] = better
		}
	}
}

// What is used here and there comes together where more is used.
func TestDenser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 256<<20)
		var out []Slab
		for range 1000 {
			out = append(out, get(t, p, 32<<10))
		}
		most := p.Registered()
		var left []Slab
		for i, s := range out {
			if i%25 == 0 {
				s.Bytes()[0] = byte(i)
				left = append(left, s)
			} else {
				p.Put(s)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := p.Registered(); n < most/2 {
			t.Fatalf("%d bytes of %d before anything moved: this shows nothing", n, most)
		}
		for range 10 {
			gather(p, left)
		}
		p.check(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := p.Registered(); n > most/8 {
			t.Errorf("%d bytes of %d are left for %d slabs of 32 KiB", n, most, len(left))
		}
		for _, s := range left {
			p.Put(s)
		}
		large := get(t, p, 3<<20)
		if _, ok := p.Denser(large); ok {
			t.Error("a slab with a region of its own has a denser one")
		}
		p.Put(large)
		p.check(t)
	})
}

// Slabs that are alone in a large region move to a new one, as small as holds them all.
func TestDenserMakesASmallRegion(t *testing.T) {
	const size = 32 << 10
	for _, test := range []struct {
		count int
		bytes int64 // registered afterwards
	}{
		{1, 36 << 10}, {2, 68 << 10}, {3, 132 << 10}, {4, 132 << 10}, {5, 260 << 10}, {20, 1028 << 10}, {32, 1028 << 10},
		{33, 2052 << 10}, {60, 2052 << 10}, // what they are in already
	} {
		count := test.count
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := newPool(t, 64<<20)
				var all []Slab
				for p.Registered() < 12<<20 {
					all = append(all, get(t, p, size))
				}
				large := all[len(all)-1].arena
				for large.out < count {
					all = append(all, get(t, p, size))
				}
				var left []Slab
				for _, s := range all {
					if s.arena == large && len(left) < count {
						left = append(left, s)
					} else {
						p.Put(s)
					}
				}
				if err := p.Trim(); err != nil {
					t.Fatal(err)
				}
				before := p.Registered()
				if before != large.size() || large.out != count {
					t.Fatalf("%d bytes are registered, %d slabs are out of the large region: this shows nothing", before, large.out)
				}
				gather(p, left)
				p.check(t)
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := p.Registered(); n != test.bytes {
					t.Errorf("%d bytes are registered for %d slabs, %d would do", n, count, test.bytes)
				}
				for _, s := range left {
					if _, ok := p.Denser(s); ok {
						t.Fatal("a slab of the smallest region that holds them all has a denser one")
					}
				}
				for _, s := range left {
					p.Put(s)
				}
				p.check(t)
			})
		})
	}
}

// A few slabs that are left in a large region move to small ones, so that it goes back:
// what counts is how much room a region has, and not how much of it is used. Where none is
// used, an idle one takes the first.
func TestDenserIsSmaller(t *testing.T) {
	for _, others := range []int{4, 0} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := newPool(t, 256<<20)
			var all []Slab
			for p.Registered() < 8<<20 {
				all = append(all, get(t, p, 32<<10))
			}
			large := all[len(all)-1].arena
			for large.out < large.count {
				all = append(all, get(t, p, 32<<10))
			}
			var left []Slab
			inLarge, inSmall := 0, 0
			for _, s := range all {
				switch a := s.arena; {
				case a == large && inLarge < 6:
					inLarge++
					left = append(left, s)
				case a.count < 5 && s.index == 0 && inSmall < others:
					inSmall++
					left = append(left, s)
				default:
					p.Put(s)
				}
			}
			if large.count < 30 || inSmall != others {
				t.Fatalf("a region of %d slabs and %d small ones: this shows nothing", large.count, inSmall)
			}
			gather(p, left)
			p.check(t)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := p.Registered(); n > 4*(fastArena+arenaExtra) {
				t.Errorf("%d bytes are registered for %d slabs beside %d others", n, len(left), others)
			}
			for _, s := range left {
				p.Put(s)
			}
			p.check(t)
		})
	}
}
