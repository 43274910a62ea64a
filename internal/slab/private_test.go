package slab

import (
	"testing"
	"testing/synctest"
)

func private(t *testing.T, o *Private, size int) Slab {
	t.Helper()
	s, ok, err := o.TryGet(size)
	if !ok || err != nil {
		t.Fatalf("%d bytes cannot be had: %v", size, err)
	}
	return s
}

// No key opens what another owner, or anybody, put into the pool.
func TestPrivateRegions(t *testing.T) { synctest.Test(t, testPrivateRegions) }

// In a bubble no time passes, so that the trimmer gives nothing back meanwhile.
func testPrivateRegions(t *testing.T) {
	p, d := newPool(t, 64<<20)
	a, b := p.NewPrivate(), p.NewPrivate()
	p.Put(get(t, p, 512<<10))
	keys := map[uint32]string{}
	for name, o := range map[string]*Private{"a": a, "b": b} {
		for _, size := range []int{100, 64 << 10, 512<<10 + 64, 1<<20 + 64, 3 << 20} {
			s := private(t, o, size)
			if s.Offset() != 0 || s.Size() != len(s.Region().Bytes()) {
				t.Error("something else lies in the region")
			}
			for _, b := range s.Bytes() {
				if b != 0 {
					t.Fatal("somebody had it before")
				}
			}
			for i := range s.Bytes() {
				s.Bytes()[i] = name[0]
			}
			keys[s.Region().Key()] = name
			p.Put(s)
		}
	}
	// What comes back is reused by its owner and by nobody else.
	before := d.allocated
	for name, o := range map[string]*Private{"a": a, "b": b} {
		for _, size := range []int{100, 64 << 10, 512<<10 + 64, 1<<20 + 64, 3 << 20} {
			s := private(t, o, size)
			if keys[s.Region().Key()] != name || s.Bytes()[0] != name[0] {
				t.Errorf("owner %s has memory of %s", name, keys[s.Region().Key()])
			}
			p.Put(s)
		}
	}
	if d.allocated != before {
		t.Errorf("%d regions more", d.allocated-before)
	}
	for _, size := range []int{100, 512<<10 + 64, 3 << 20} {
		s := get(t, p, size)
		if keys[s.Region().Key()] != "" {
			t.Error("private memory is handed out to everybody")
		}
		p.Put(s)
	}
	p.check(t)

	// An owner that goes takes its regions with it.
	last := private(t, a, 64<<10)
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	p.check(t)
	left := func() (n int) {
		for r := range d.regions {
			if keys[r.key] == "a" {
				n++
			}
		}
		return n
	}
	if left() != 1 {
		t.Errorf("%d regions are left of an owner that has gone", left())
	}
	p.Put(last)
	p.Settle()
	if p.check(t); left() != 0 {
		t.Errorf("%d regions are left of an owner that has gone", left())
	}
	if _, _, err := a.TryGet(100); err != ErrClosed {
		t.Errorf("got %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// When the limit presses, the owner that has been inactive for longest loses its
// free regions first.
func TestPrivateUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 8<<20)
		var owners []*Private
		keys := map[uint32]int{}
		for i := range 3 {
			o := p.NewPrivate()
			owners = append(owners, o)
			for range 2 {
				s, s2 := private(t, o, 1<<20), private(t, o, 1<<20)
				keys[s.Region().Key()], keys[s2.Region().Key()] = i, i
				p.Put(s)
				p.Put(s2)
			}
		}
		p.Put(private(t, owners[0], 1<<20)) // it is the last one now
		lost := func() (n [3]int) {
			for r := range d.regions {
				if i, ok := keys[r.key]; ok {
					n[i]++
				}
			}
			return n
		}
		out := []Slab{get(t, p, 1<<20)}
		for _, want := range [][3]int{{2, 1, 2}, {2, 0, 2}, {2, 0, 1}, {2, 0, 0}, {1, 0, 0}, {0, 0, 0}} {
			out = append(out, private(t, p.NewPrivate(), 1<<20))
			if p.check(t); lost() != want {
				t.Errorf("after %d MiB the owners have %v regions, want %v", len(out), lost(), want)
			}
		}
		// One that uses its memory keeps it; who wants more waits.
		w := wait(owners[1].Get, 1<<20)
		w.waits(t)
		p.Put(out[3])
		p.Put(w.had(t))
		for i, s := range out {
			if i != 3 {
				p.Put(s)
			}
		}
		for _, o := range owners {
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
