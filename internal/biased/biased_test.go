package biased

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// favoured returns a mutex whose favourite is u.
func favoured(t *testing.T, u *User) *Mutex {
	t.Helper()
	if !Pays() {
		t.Skip("this system has no membarrier")
	}
	m := &Mutex{}
	for row := 1; ; row++ {
		m.Lock(u)
		got := m.Favour(u)
		m.Unlock()
		if got != (row >= rowsToFavour) {
			t.Fatalf("in a row of %d: favoured %t", row, got)
		}
		if got {
			return m
		}
		if m.Enter(u) {
			t.Fatalf("entered without a favour, in a row of %d", row)
		}
	}
}

// Who has locked in a row may enter, until another one locks; and again after another row.
func TestFavour(t *testing.T) {
	var a, b User
	m := favoured(t, &a)
	for range 2 {
		if !m.Enter(&a) {
			t.Fatal("the favourite may not enter")
		}
		a.Leave()
	}
	if m.Enter(&b) {
		t.Fatal("another one has entered")
	}
	m.Lock(&a) // its own lock takes nothing away
	m.Unlock()
	if !m.Enter(&a) {
		t.Fatal("the favourite may not enter after it has locked")
	}
	a.Leave()

	m.Lock(&b)
	if m.Favour(&b) {
		t.Fatal("favoured by the first lock")
	}
	m.Unlock()
	if m.Enter(&a) {
		t.Fatal("entered after another one has locked")
	}
	if a.inside.Load() != 0 {
		t.Fatal("inside, after it was not let in")
	}
	m.Lock(&a) // which ends the other's row
	m.Unlock()
	m.Lock(&b)
	if m.Favour(&b) {
		t.Fatal("favoured by the second lock, with another's in between")
	}
	m.Unlock()
}

// Who gives the favour up has to lock.
func TestDisfavour(t *testing.T) {
	var a, b User
	m := favoured(t, &a)
	m.Lock(&a)
	m.Disfavour(&b) // it has none
	m.Unlock()
	if !m.Enter(&a) {
		t.Fatal("another one's end has taken the favour")
	}
	a.Leave()
	m.Lock(&a)
	m.Disfavour(&a)
	m.Unlock()
	if m.Enter(&a) || m.favourite.Load() != nil {
		t.Fatal("it has the favour still")
	}
}

// A lock waits until the favourite is outside.
func TestLockWaitsForTheFavourite(t *testing.T) {
	var a, b User
	m := favoured(t, &a)
	if !m.Enter(&a) {
		t.Fatal("the favourite may not enter")
	}
	synctest.Test(t, func(t *testing.T) {
		var locked atomic.Bool
		go func() {
			m.Lock(&b)
			locked.Store(true)
			m.Unlock()
		}()
		time.Sleep(time.Second) // of thousands of looks
		if m.favourite.Load() != nil || locked.Load() {
			t.Fatalf("favourite: %v; locked while it is inside: %t", m.favourite.Load(), locked.Load())
		}
		a.Leave()
		time.Sleep(time.Second)
		if !locked.Load() {
			t.Fatal("not locked although the favourite is outside")
		}
	})
	if m.Enter(&a) {
		t.Fatal("entered after another one has locked")
	}
}

// cold is memory that is in no cache. The processor keeps what is stored behind a write to it to itself for a while.
type cold struct {
	memory []byte
	at     uint64
}

func newCold(seed int) *cold { return &cold{make([]byte, 32<<20), uint64(seed)} }

func (c *cold) write() {
	c.at = c.at*6364136223846793005 + 1442695040888963407
	c.memory[c.at>>32%uint64(len(c.memory))]++
}

// A guarded value is the same in all words when nobody uses it.
type guarded [8]int

func (g *guarded) add() {
	for i := range g {
		g[i]++
	}
}

func (g *guarded) check(t *testing.T, want int) {
	t.Helper()
	for i, n := range g {
		if n != want {
			t.Errorf("word %d was added to %d times, of %d", i, n, want)
		}
	}
}

// The favour is taken as soon as it has been given, while the favourite enters all the time. One at a time is inside
// or has locked, and what it did is seen by the next.
func TestFavoursAreTakenAllTheTime(t *testing.T) {
	const (
		takes = 20_000
		most  = time.Second // with one processor the favourite gives it away each 10 ms
	)
	var (
		m       Mutex
		value   guarded
		taken   int
		entered int
		uses    int
		stop    atomic.Bool
		done    sync.WaitGroup
	)
	if !Pays() {
		t.Skip("this system has no membarrier")
	}
	done.Go(func() {
		var u User
		for c := newCold(1); !stop.Load(); uses++ {
			c.write()
			if m.Enter(&u) {
				value.add()
				u.Leave()
				entered++
				continue
			}
			m.Lock(&u)
			value.add()
			m.Favour(&u)
			m.Unlock()
		}
	})
	var u User
	for began := time.Now(); taken < takes && time.Since(began) < most; {
		for m.favourite.Load() == nil {
			runtime.Gosched()
		}
		m.Lock(&u)
		value.add()
		taken++
		m.Unlock()
	}
	stop.Store(true)
	done.Wait()
	value.check(t, taken+uses)
	t.Logf("%d of %d entered, beside %d that took the favour", entered, uses, taken)
}

// Users take turns of some length, so that favours are given and taken.
func TestTurns(t *testing.T) {
	const users, turns, length = 4, 3000, 40
	var (
		m       Mutex
		value   guarded
		entered int
		done    sync.WaitGroup
	)
	for id := range users {
		done.Go(func() {
			var u User
			c := newCold(id)
			for turn := range turns {
				for range length {
					c.write()
					if m.Enter(&u) {
						value.add()
						entered++
						u.Leave()
						continue
					}
					m.Lock(&u)
					value.add()
					m.Favour(&u)
					m.Unlock()
				}
				if turn%users == id {
					runtime.Gosched()
				}
			}
			m.Lock(&u)
			m.Disfavour(&u)
			m.Unlock()
		})
	}
	done.Wait()
	value.check(t, users*turns*length)
	if Pays() && entered == 0 {
		t.Error("nobody has ever been favoured")
	}
	t.Logf("%d of %d entered", entered, users*turns*length)
}

func BenchmarkEnter(b *testing.B) {
	var m Mutex
	var u User
	for range rowsToFavour {
		m.Lock(&u)
		m.Favour(&u)
		m.Unlock()
	}
	for b.Loop() {
		if m.Enter(&u) {
			u.Leave()
			continue
		}
		m.Lock(&u)
		m.Unlock()
	}
}

// Two take the favour from each other.
func BenchmarkRevoke(b *testing.B) {
	var m Mutex
	var users [2]User
	for i := 0; b.Loop(); i++ {
		u := &users[i&1]
		for range rowsToFavour {
			m.Lock(u)
			m.Favour(u)
			m.Unlock()
		}
	}
}
