package slab

import (
	"testing"
	"testing/synctest"
	"time"
)

// A slab that is spoilt is never handed out again. Its region goes with the last of the
// others, and only then is it told; one that cannot be closed is not told of.
func TestSpoil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 64<<20)
		gone := 0
		told := func(want int) {
			t.Helper()
			if synctest.Wait(); gone != want {
				t.Errorf("%d are gone, want %d", gone, want)
			}
			p.check(t)
		}
		spoil := func(s Slab) { p.Spoil(s, func() { gone++ }) }
		spoil(get(t, p, 4<<20))
		told(1)
		a, b, c := get(t, p, 1000), get(t, p, 1000), get(t, p, 1000)
		p.Put(c) // on a shelf
		spoil(a)
		for range 1000 {
			s := get(t, p, 1000)
			if s.Region() == a.Region() {
				t.Fatal("the region still lends")
			}
			defer p.Put(s)
		}
		told(1)
		p.Put(b)
		told(2)
		o := p.NewPrivate()
		s, err := o.Get(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		spoil(s)
		told(3)
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		large := get(t, p, 4<<20)
		d.keeps = func() bool { return true }
		before := p.Registered()
		spoil(large)
		told(3)
		if time.Sleep(time.Minute); p.Registered() != before {
			t.Errorf("%d bytes of %d are counted of a region that stays", p.Registered(), before)
		}
		d.keeps = nil
		p.failure = nil // the pool is to close without a complaint
		_ = large.Region().Close()
	})
}
