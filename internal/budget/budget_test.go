package budget

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

var names atomic.Int64

// each names another peer every time.
func each() string { return fmt.Sprint(names.Add(1)) }

func check(t *testing.T, b *Budget) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var sum, peers int64
	for a := range b.accounts {
		sum += a.total
	}
	for name, p := range b.byPeer {
		if p.users <= 0 || p.total < 0 || p.total > b.limit {
			t.Fatalf("peer %s: %+v", name, p)
		}
		peers += p.total
	}
	if peers != b.used {
		t.Fatalf("%d bytes used, peers have %d", b.used, peers)
	}
	if sum != b.used || b.used < 0 || b.used > b.limit {
		t.Fatalf("%d bytes of %d used, accounts have %d", b.used, b.limit, sum)
	}
}

// granted takes the token that a must have.
func granted(a *Account) {
	select {
	case <-a.Granted():
	default:
		panic("no token: a reader would wait for ever")
	}
}

// What an account needs for small messages is its own, however full the budget is.
func TestSmallPass(t *testing.T) {
	b := New(8*mib, mib)
	hogs := make([]*Account, 8)
	for i := range hogs {
		hogs[i] = b.Open(each(), nil)
		for hogs[i].Take(64 << 10) {
		}
	}
	if used := b.Used(); used < 6*mib || used > 7*mib {
		t.Errorf("the hogs have %d bytes", used)
	}
	a := b.Open(each(), nil)
	for range 100 {
		if !a.Take(64<<10) || a.Ask(64<<10, false) {
			t.Fatal("its own memory was refused, or more than that was given")
		}
		a.Withdraw()
		a.Give(64 << 10)
	}
	check(t, b)
}

// One account cannot have everything.
func TestShare(t *testing.T) {
	b := New(64*mib, 16*mib)
	a := b.Open(each(), nil)
	n := int64(0)
	for a.Take(mib) {
		n += mib
	}
	if n > 48*mib/shares+Own || n < 48*mib/shares-mib {
		t.Errorf("one account got %d bytes", n)
	}
}

// A peer with many accounts leaves others their share, and its accounts take turns
// with those of others in being favored.
func TestSharesOfPeers(t *testing.T) {
	b := New(64*mib, 16*mib)
	var hogs []*Account
	for range 20 {
		a := b.Open("hog", nil)
		for a.Take(mib) {
		}
		hogs = append(hogs, a)
	}
	if used := b.Used(); used > 24*mib || used < 23*mib {
		t.Errorf("one peer got %d bytes", used)
	}
	other := b.Open("other", nil)
	for range 10 {
		if !other.Take(mib) {
			t.Fatal("nothing is left for another peer")
		}
	}
	for i, a := range hogs {
		if a.Ask(8*mib, true) != (i == 0) {
			t.Fatalf("account %d", i)
		}
	}
	if other.Ask(12*mib, true) {
		t.Fatal("two are favored")
	}
	hogs[0].Finish()
	if granted(other); !other.Ask(12*mib, true) {
		t.Fatal("the other peer has no turn")
	}
	check(t, b)
	for _, a := range append(hogs, other) {
		a.Withdraw()
		a.Finish()
		a.Give(a.held)
	}
	check(t, b)
	if b.Used() != 0 || len(b.byPeer) != 0 {
		t.Errorf("%d bytes of %d peers are left", b.Used(), len(b.byPeer))
	}
}

// Messages that are half there do not wait for each other: the favored one gets
// what it needs, then the next.
func TestFavor(t *testing.T) {
	b := New(8*mib, 4*mib)
	var all []*Account
	for range 8 {
		a := b.Open(each(), nil)
		for a.Take(256 << 10) {
		}
		all = append(all, a)
	}
	if all[7].Ask(mib-lease, false) || all[1].Ask(mib, true) != true || all[2].Ask(mib, true) {
		t.Fatal("not the first urgent account is favored")
	}
	for range 2 {
		if !all[1].Take(mib) {
			t.Fatal("the favored account has to wait")
		}
		check(t, b)
	}
	all[1].Finish()
	if granted(all[2]); !all[2].Ask(mib, true) {
		t.Fatal("the favor was not passed on")
	}
	// What comes back goes to those who wait.
	all[1].Give(all[1].held)
	all[3].Give(all[3].held)
	if granted(all[7]); !all[7].Ask(mib-lease, false) {
		t.Fatal("memory came back and nobody got it")
	}
	check(t, b)
}

// A favor that comes while its account gives up goes to the next.
func TestWithdraw(t *testing.T) {
	b := New(2*mib, mib)
	var hogs []*Account
	for range shares + 1 {
		a := b.Open(each(), nil)
		for a.Take(64 << 10) {
		}
		hogs = append(hogs, a)
	}
	a, c, d := b.Open(each(), nil), b.Open(each(), nil), b.Open(each(), nil)
	if !a.Ask(mib, true) || c.Ask(mib, true) || d.Ask(mib, true) {
		t.Fatal("one is favored")
	}
	a.Finish()
	a.Give(mib)
	c.Withdraw() // it has been granted
	c.Finish()
	if granted(d); !d.Ask(mib, true) {
		t.Fatal("the favor is lost")
	}
	d.Finish()
	d.Give(mib)
	for _, h := range hogs {
		h.Finish()
		h.Give(h.held)
	}
	if b.Used() != 0 {
		t.Errorf("%d bytes are left", b.Used())
	}
	check(t, b)
}

// Peers that leave a message unfinished while others wait are found; those that
// go on, those that have finished and those that wait themselves are not.
func TestEndStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(64*mib, 16*mib)
		var ended []string
		open := func(name string) *Account {
			a := b.Open(each(), func() { ended = append(ended, name) })
			for range 4 {
				a.Take(mib)
			}
			return a
		}
		open("silent")
		slow, done, waiting, favored := open("slow"), open("done"), open("waiting"), open("favored")
		done.Finish()
		for favored.Take(mib) {
		}
		favored.Ask(mib, true)
		waiting.Ask(60*mib, false)
		time.Sleep(Stalled - time.Second)
		slow.Moved()
		favored.Moved() // not enough: it has not filled what it was given
		b.EndStalled()
		if len(ended) > 0 {
			t.Errorf("%v were ended too early", ended)
		}
		time.Sleep(time.Second)
		b.EndStalled()
		if len(ended) != 2 || ended[0] == ended[1] || ended[0] != "silent" && ended[1] != "silent" {
			t.Errorf("%v were ended, want the silent and the favored one", ended)
		}
	})
}

// Random connections, each with an application that waits for its message: all
// messages arrive, and the bounds hold.
func TestEverybodyGetsThere(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		const longest = 4 * mib
		b := New(8*mib, longest)
		type reader struct {
			a          *Account
			total, got int64
			asking     int64
			left       int
		}
		readers := make([]*reader, 1+r.IntN(12))
		for i := range readers {
			readers[i] = &reader{a: b.Open(each(), nil), left: 5}
		}
		for round := 0; ; round++ {
			busy := false
			moved := false
			for _, i := range r.Perm(len(readers)) {
				rd := readers[i]
				if rd.left == 0 {
					continue
				}
				busy = true
				if rd.total == 0 {
					rd.total = 1 + r.Int64N(1<<r.IntN(23))
				}
				n := min(256<<10, rd.total-rd.got)
				if rd.asking == 0 && !rd.a.Take(n) {
					rd.asking = n
				}
				if rd.asking > 0 {
					if !rd.a.Ask(rd.asking, r.IntN(2) == 0 || round%50 == 49) {
						continue
					}
					rd.asking = 0
				}
				moved = true
				if rd.got += n; rd.got == rd.total {
					rd.a.Finish()
					rd.a.Give(rd.got)
					rd.got, rd.total = 0, 0
					rd.left--
				}
				check(t, b)
			}
			if !busy {
				break
			}
			if !moved && round%50 == 49 {
				t.Fatalf("seed %d: nobody can go on: %s", seed, b)
			}
		}
		if b.Used() != 0 {
			t.Fatalf("seed %d: %d bytes are left", seed, b.Used())
		}
	}
}

func (b *Budget) String() string {
	return fmt.Sprintf("%d of %d (%d) used, %d wait, favored %v", b.used, b.limit, b.ordinary, len(b.waiting), b.favored != nil)
}

func BenchmarkOwn(b *testing.B) {
	a := New(64*mib, 16*mib).Open("", nil)
	for b.Loop() {
		a.Take(1 << 10)
		a.Finish()
		a.Give(1 << 10)
	}
}
