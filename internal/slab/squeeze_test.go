package slab

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A pool that is squeezed gives back at once what is free, and from then on what
// comes free, down to what it is allowed; relaxed it grows again.
func TestSqueezeShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		var out []Slab
		for range 10 {
			out = append(out, get(t, p, 4<<20))
		}
		for _, s := range out[:3] {
			p.Put(s)
		}
		if p.Registered() < 40<<20 {
			t.Fatalf("%d bytes are registered", p.Registered())
		}
		p.Squeeze(p.InUse() / 2) // 14 MiB
		synctest.Wait()          // without time passing
		if n := p.Registered(); n != p.InUse() || n > 30<<20 || !p.Squeezed() {
			t.Errorf("%d bytes are registered of which %d are in use", n, p.InUse())
		}
		for i, s := range out[3:] {
			before := p.Registered()
			p.Put(s)
			synctest.Wait() // without time passing
			if n := p.Registered(); i < 3 && n >= before {
				t.Errorf("what came free stays: %d bytes, then %d", before, n)
			}
		}
		if n := p.Registered(); n == 0 || n > 14<<20+1<<20 {
			t.Errorf("%d bytes stay for the next", n)
		}
		time.Sleep(tick)
		synctest.Wait()
		if n := p.Registered(); n != 0 {
			t.Errorf("%d bytes stay after a second", n)
		}
		p.Relax()
		out = out[:0]
		for range 10 {
			out = append(out, get(t, p, 4<<20))
		}
		for _, s := range out {
			p.Put(s)
		}
		p.check(t)
	})
}

// Whoever puts a slab back may hold locks, so it waits for no region that goes.
func TestPutClosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 64<<20)
		o := p.NewPrivate()
		out := []Slab{get(t, p, 4<<20), get(t, p, 4<<20), get(t, p, 4<<20)}
		own, err := o.Get(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		last := get(t, p, 2<<20)
		d.takes = func() time.Duration { return 5 * time.Second }
		began := time.Now()
		p.Squeeze(0)
		for _, s := range out {
			p.Put(s)
		}
		_ = o.Close()
		p.Put(own)
		if past := time.Since(began); past > 0 {
			t.Errorf("they waited for %v", past)
		}
		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		synctest.Wait()
		p.Put(last)
		if past := time.Since(began); past > 0 {
			t.Errorf("the last waited for %v", past)
		}
		p.Settle()
		if err := <-closed; err != nil || p.Registered() != 0 {
			t.Errorf("%d bytes stay, %v", p.Registered(), err)
		}
	})
}

// A caller that holds locks does without memory for which a region would have to go.
func TestTryQuickClosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 8<<20)
		keep := get(t, p, 1000)
		p.Put(get(t, p, 7<<20))
		d.takes = func() time.Duration { return 5 * time.Second }
		began := time.Now()
		if _, ok, err := p.TryQuick(2 << 20); ok || err != nil || time.Since(began) > 0 {
			t.Errorf("got some: %t, %v, after %v", ok, err, time.Since(began))
		}
		d.takes = nil
		d.refuses = func(int) bool { return true }
		before := p.Registered()
		if _, ok, err := p.TryQuick(500); ok || !errors.Is(err, errDevice) || p.Registered() != before {
			t.Errorf("got some: %t, %v, %d bytes of %d stay", ok, err, p.Registered(), before)
		}
		d.refuses = nil
		if s, ok, err := p.TryQuick(7 << 20); !ok || err != nil {
			t.Errorf("what is there: %t, %v", ok, err)
		} else {
			p.Put(s)
		}
		p.Put(keep)
		p.check(t)
	})
}

// Who holds locks does not wait until somebody has closed a region, and gets what it
// needs although memory is short.
func TestTryNowWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(t, 8<<20)
		keep := get(t, p, 1000)
		p.Put(get(t, p, 7<<20))
		d.takes = func() time.Duration { return 5 * time.Second }
		w := wait(p.Get, 2<<20) // closes a region for it
		began := time.Now()
		if _, ok, err := p.TryNow(2 << 20); ok || err != nil || time.Since(began) > 0 {
			t.Errorf("got some: %t, %v, after %v", ok, err, time.Since(began))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		d.takes = nil
		p.Put(w.had(t))
		p.Squeeze(p.InUse())
		if _, ok, err := p.TryQuick(3 << 20); ok || err != nil {
			t.Errorf("got some while memory is short: %t, %v", ok, err)
		}
		if s, ok, err := p.TryNow(3 << 20); !ok || err != nil {
			t.Errorf("held back: %t, %v", ok, err)
		} else {
			p.Put(s)
		}
		p.Put(keep)
		p.check(t)
	})
}

// However often somebody squeezes, who waits longest waits for its two seconds.
func TestSqueezingCountsNoTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		held := get(t, p, 4<<20)
		p.Squeeze(p.InUse())
		w := wait(p.Get, 4<<20)
		for range 10 {
			p.Squeeze(p.InUse())
			synctest.Wait() // without time passing
		}
		for range 15 {
			time.Sleep(tick / 10)
			p.Squeeze(p.InUse())
			w.waits(t)
		}
		time.Sleep(2 * tick)
		p.Put(w.had(t))
		p.Put(held)
		p.check(t)
	})
}

// Requests that come at once do not count as in use before each has been told, so that
// they are not allowed for what they have only asked for.
func TestBurstIsToldOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		turn := make(chan struct{}, 1)
		told := 0
		p.OnTake(func(int64) {
			turn <- struct{}{}
			defer func() { <-turn }()
			time.Sleep(time.Millisecond) // others plan meanwhile
			if told++; told == 3 {
				if n := p.InUse(); n > 10<<20 {
					t.Errorf("%d bytes are in use by two", n)
				}
				p.Squeeze(p.InUse())
			}
		})
		var all []*waitingGet
		for range 10 {
			all = append(all, wait(p.Get, 4<<20))
		}
		time.Sleep(tick / 2)
		synctest.Wait()
		if n := p.Registered(); n > 10<<20 {
			t.Errorf("%d bytes are registered, two requests are allowed", n)
		}
		p.Relax()
		time.Sleep(tick)
		for _, w := range all {
			p.Put(w.had(t))
		}
		p.check(t)
	})
}

// While the machine has no room, whoever is overdue waits for it, but not for ever.
func TestOverdueNeedsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		var room atomic.Bool
		p.OnOverdue(func(bytes int64) bool {
			if bytes < 4<<20 || bytes > 5<<20 {
				t.Errorf("asked for %d bytes", bytes)
			}
			return room.Load()
		})
		held := get(t, p, 4<<20)
		p.Squeeze(p.InUse())
		w := wait(p.Get, 4<<20)
		time.Sleep((overdue + 1) * tick)
		w.waits(t)
		room.Store(true)
		time.Sleep(tick)
		p.Put(w.had(t))
		time.Sleep(2 * tick) // what is free goes back
		room.Store(false)
		w = wait(p.Get, 4<<20)
		time.Sleep((longOverdue - 1) * tick)
		w.waits(t)
		time.Sleep(2 * tick)
		p.Put(w.had(t))
		p.Put(held)
		p.check(t)
	})
}

// While memory is short, what sets something up has all the room but what the one needs
// that has waited longest, which gets it after its two seconds.
func TestSqueezeLetsSetUpPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		out := []Slab{get(t, p, 4<<20)}
		p.Squeeze(p.InUse())
		w := wait(p.Get, 16<<20)
		var bytes int
		for {
			s, err := p.GetNow(t.Context(), 1<<20)
			if errors.Is(err, ErrExhausted) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			bytes += s.Size()
			out = append(out, s)
		}
		if bytes < 40<<20-lastArena || bytes > 48<<20 {
			t.Errorf("%d bytes of 64 MiB beside one that waits for 16", bytes)
		}
		w.waits(t)
		p.Put(out[0])
		time.Sleep(3 * tick)
		p.Put(w.had(t))
		for _, s := range out[1:] {
			p.Put(s)
		}
		p.check(t)
	})
}

// Requests beyond what is allowed wait for what comes free, and the first of them
// for two seconds at most. What sets something up does not wait.
func TestSqueezeHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		first := get(t, p, 4<<20)
		p.Squeeze(p.InUse() + 1<<20)
		if _, ok, err := p.TryGet(4 << 20); ok || err != nil {
			t.Fatal("grown beyond what is allowed", err)
		}
		second, third := wait(p.Get, 4<<20), wait(p.Get, 4<<20)
		second.waits(t)
		if p.Waiting() != 2 {
			t.Errorf("%d wait", p.Waiting())
		}
		now, err := p.GetNow(t.Context(), 1000)
		if err != nil {
			t.Errorf("what sets something up: %v", err)
		}
		p.Put(first)
		s := second.had(t)
		third.waits(t)
		time.Sleep(3 * tick)
		p.Put(third.had(t)) // although nothing came back
		if n := p.Registered(); n < 4<<20 {
			t.Errorf("%d bytes", n)
		}
		fourth := wait(p.Get, 30<<20)
		fourth.waits(t)
		p.Relax()
		p.Put(fourth.had(t))
		p.Put(s)
		p.Put(now)
		p.check(t)
	})
}

// Who is told that memory will be taken can refuse it: the request waits.
func TestTakingIsForetold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 64<<20)
		var told int64
		p.OnTake(func(n int64) {
			if told += n; told > 10<<20 {
				p.Squeeze(10 << 20)
			}
		})
		a, b := get(t, p, 4<<20), get(t, p, 4<<20)
		if _, ok, err := p.TryGet(4 << 20); ok || err != nil {
			t.Fatal("taken all the same", err)
		}
		if n := p.Registered(); n > 9<<20 || told < 12<<20 {
			t.Errorf("%d bytes are registered, %d were told of", n, told)
		}
		w := wait(p.Get, 4<<20)
		w.waits(t)
		p.Put(a)
		p.Put(w.had(t))
		p.Put(b)
		p.check(t)
	})
}

// The hard limit holds for whoever may pass.
func TestSqueezeKeepsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 8<<20)
		all := get(t, p, 8<<20)
		p.Squeeze(0)
		w := wait(p.Get, 1<<20)
		time.Sleep(time.Minute)
		w.waits(t)
		if _, err := p.GetNow(t.Context(), 1<<20); !errors.Is(err, ErrExhausted) {
			t.Errorf("got %v", err)
		}
		p.Put(all)
		time.Sleep(3 * tick)
		p.Put(w.had(t))
		p.check(t)
	})
}
