package biased

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needFavours ends the test where nobody is ever favoured.
func needFavours(t testing.TB) {
	t.Helper()
	if !Pays() {
		testneed.Missing(t, "this process may not call membarrier", "run on Linux 4.14 or later, without a filter that forbids it")
	}
}

// lockAndFavour locks m for a moment, and asks for a favour then.
func (m *Mutex) lockAndFavour(u *User) bool {
	m.Lock(u)
	defer m.Unlock()
	return m.Favour(u)
}

// favoured returns a mutex whose favourite is u.
func favoured(t *testing.T, u *User) *Mutex {
	t.Helper()
	needFavours(t)
	m := &Mutex{}
	for row := 1; ; row++ {
		got := m.lockAndFavour(u)
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
	var locked atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		m.Lock(&b)
		locked.Store(true)
		m.Unlock()
	})
	for m.favourite.Load() != nil { // until the favour has been taken
		runtime.Gosched()
	}
	for range 100_000 { // meanwhile the other one looks, some hundred times
		runtime.Gosched()
		if locked.Load() {
			t.Fatal("locked while the favourite is inside")
		}
	}
	a.Leave()
	done.Wait()
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

// use adds to what m guards, inside or with a lock, and tells whether it was inside.
func (g *guarded) use(m *Mutex, u *User) (entered bool) {
	if m.Enter(u) {
		g.add()
		u.Leave()
		return true
	}
	m.Lock(u)
	defer m.Unlock()
	g.add()
	m.Favour(u)
	return false
}

// The favour is taken as soon as it has been given, while the favourite enters all the time. One at a time is inside
// or has locked, and what it did is seen by the next.
func TestFavoursAreTakenAllTheTime(t *testing.T) {
	const (
		takes = 20_000
		most  = time.Second // with one processor the favourite gives it away each 10 ms
	)
	needFavours(t)
	var (
		m             Mutex
		value         guarded
		taken         int
		uses, entered int
		stop          atomic.Bool
		done          sync.WaitGroup
	)
	done.Go(func() {
		var u User
		for c := newCold(1); !stop.Load(); uses++ {
			c.write()
			if value.use(&m, &u) {
				entered++
			}
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
		entered atomic.Int64
		done    sync.WaitGroup
	)
	for id := range users {
		done.Go(func() {
			var u User
			c := newCold(id)
			for turn := range turns {
				for range length {
					c.write()
					if value.use(&m, &u) {
						entered.Add(1)
					}
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
	if Pays() && entered.Load() == 0 {
		t.Error("nobody has ever been favoured")
	}
	t.Logf("%d of %d entered", entered.Load(), users*turns*length)
}

func BenchmarkEnter(b *testing.B) {
	needFavours(b)
	var m Mutex
	var u User
	for !m.lockAndFavour(&u) {
	}
	for b.Loop() {
		if !m.Enter(&u) {
			b.Fatal("the favourite may not enter")
		}
		u.Leave()
	}
}

// Two take the favour from each other.
func BenchmarkRevoke(b *testing.B) {
	needFavours(b)
	var m Mutex
	var users [2]User
	for i := 0; b.Loop(); i++ {
		for !m.lockAndFavour(&users[i&1]) {
		}
	}
}
